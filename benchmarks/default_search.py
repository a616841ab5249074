"""Search for a default comparison in which PerFedS2 wins after the personal step and keeps a good global model.

    python benchmarks/default_search.py --jobs 16 --out search

Each setting is trained once for the longest horizon and judged at every shorter one. A seed counts as good if PerFedS2
has the highest personalised accuracy of all algorithms and a global accuracy within ten points of the best. The
settings with the most good seeds are judged again with fresh seeds. Settings run in single-core processes, --jobs at a
time. Their metrics are kept in --out: running the same command again resumes and summarises.
"""

import argparse
import itertools
import os
import subprocess  # only runs perfeds2
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pandas as pd

WITHIN = 0.1  # allowed distance of the global accuracy to the best algorithm's
AGAIN = 12  # settings judged again with fresh seeds
SEARCHED, FRESH = "0..9", "200..219"  # seeds
ONE_CORE = {"OMP_NUM_THREADS": "1", "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}


@dataclass(frozen=True)
class Setting:
    labels_per_ue: int
    alpha: float
    beta: float


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--labels-per-ue", type=int, nargs="+", default=[2, 3, 4])
    parser.add_argument("--alpha", type=float, nargs="+", default=[0.02, 0.022, 0.025, 0.03, 0.04])
    parser.add_argument("--beta", type=float, nargs="+", default=[0.06, 0.07, 0.075, 0.08, 0.1])
    parser.add_argument("--horizon-s", type=float, default=15.0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--out", type=Path, default=Path("search"))
    given = parser.parse_args(arguments)
    grid = [Setting(*values) for values in itertools.product(given.labels_per_ue, given.alpha, given.beta)]
    times_s = np.arange(4.0, given.horizon_s + 0.5)
    searched = judge_all(grid, SEARCHED, times_s, given)
    best = searched.sort_values(["good", "lead"], ascending=False).drop_duplicates(["labels_per_ue", "alpha", "beta"])
    again = [Setting(*row) for row in best[["labels_per_ue", "alpha", "beta"]].head(AGAIN).itertuples(index=False)]
    fresh = judge_all(again, FRESH, times_s, given)
    searched.to_csv(given.out / "searched.csv", index=False)
    fresh.to_csv(given.out / "fresh.csv", index=False)
    print(fresh.sort_values(["good", "lead"], ascending=False).head(20).round(3).to_string(index=False))


def judge_all(settings: Sequence[Setting], seeds: str, times_s: np.ndarray, given: argparse.Namespace) -> pd.DataFrame:
    """Return a row for each setting and time."""
    rows: list[dict[str, float]] = []
    with ThreadPoolExecutor(given.jobs) as pool:
        tables = pool.map(lambda setting: train(setting, seeds, given.horizon_s, given.out), settings)
        for done, (setting, metrics) in enumerate(zip(settings, tables, strict=True), 1):
            print(f"\rseeds {seeds}: {done} of {len(settings)} settings", end="", file=sys.stderr, flush=True)
            rows += [asdict(setting) | {"time_s": float(at)} | judge(metrics, at) for at in times_s]
    print(file=sys.stderr)
    return pd.DataFrame(rows)


def train(setting: Setting, seeds: str, horizon_s: float, out: Path) -> pd.DataFrame:
    """Return the metrics of the default algorithms, trained in a process of their own."""
    folder = out / f"{setting.labels_per_ue}-{setting.alpha}-{setting.beta}-{seeds}"
    if not (folder / "summary.json").exists():
        flags = {"labels-per-ue": setting.labels_per_ue, "alpha": setting.alpha, "beta": setting.beta}
        flags |= {"schedule": "first", "seeds": seeds, "horizon-s": horizon_s, "jobs": 1, "out": folder}
        words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
        command = [sys.executable, "-m", "perfeds2", "compare", "--quiet", *words]
        subprocess.run(command, check=True, env=os.environ | ONE_CORE)  # noqa: S603 (our own command)
    return pd.read_csv(folder / "metrics.csv")


def judge(metrics: pd.DataFrame, time_s: float) -> dict[str, float]:
    """Compare PerFedS2 with the other algorithms, seed by seed, at a time."""
    last = metrics[metrics.time_s <= time_s].groupby(["seed", "algorithm"]).last()
    personal, plain = last.test_accuracy_personal.unstack(), last.test_accuracy.unstack()
    lead = personal.PerFedS2 - personal.drop(columns="PerFedS2").max(axis=1)
    gap = plain.max(axis=1) - plain.PerFedS2
    found = {"seeds": len(lead), "good": int(((lead > 0) & (gap <= WITHIN)).sum())}
    found |= {"lead": float(lead.mean()), "gap": float(gap.mean())}
    return found | {f"personal {name}": float(of_seeds.mean()) for name, of_seeds in personal.items()}


if __name__ == "__main__":
    main()
