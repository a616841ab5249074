"""What changes for PerFedS2 and its rivals when links are real?

    python benchmarks/real_links.py --out real-links
    python benchmarks/real_links.py --out real-links --only paper --jobs 2

The nine algorithms of the paper train on the default cell with four links: the paper's, umi with Shannon's rate, umi with
CQI steps, and umi with CQI steps, errors and HARQ. Results are kept in --out: running the same command again resumes, and
--only runs one of the links. The tables are written to real-links.md there.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from perfeds2.api import compare
from perfeds2.files import Json, write_text
from perfeds2.runs.costs import TIME
from perfeds2.spec.names import Values

LINKS: Mapping[str, Values] = {
    "paper": {},
    "umi, Shannon": {"radio": "umi", "link": "shannon"},
    "umi, CQI": {"radio": "umi"},
    "umi, CQI, HARQ": {"radio": "umi", "errors": "harq:3"},
}
ALGORITHMS = [
    *("PerFed-SYN", "PerFedS2", "PerFed-ASY"),
    *("FedAvg-SYN", "FedAvgS2", "FedAvg-ASY"),
    *("FedProx-SYN", "FedProxS2", "FedProx-ASY"),
]
ACCURACY = "test_accuracy_personal"


def rows_of(link: str, out: Path, settings: Values, jobs: int) -> dict[str, Json]:
    """Return the statistics of every algorithm on a link, by name; train what is missing."""
    folder = out / link.replace(", ", "-").lower()
    found = compare(out=folder, jobs=jobs, algorithms=ALGORITHMS, **settings, **LINKS[link])
    return {row["algorithm"]: row for row in found.summary["algorithms"]}


def tables(found: Mapping[str, Mapping[str, Json]]) -> str:
    """Return the seconds to the target, the accuracy at the end and the rounds, by algorithm and link."""
    shown = (
        ("seconds to the target", lambda row: _seconds(row[TIME]["values"])),
        ("accuracy at the end (%)", lambda row: _mean(row[ACCURACY], 100)),
        ("rounds", lambda row: _mean(row["rounds"], 1)),
    )
    parts = []
    for head, text in shown:
        lines = [f"| {head} | {' | '.join(found)} |", f"|---{'|--:' * len(found)}|"]
        for name in ALGORITHMS:
            lines.append(f"| {name} | {' | '.join(text(rows[name]) for rows in found.values())} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _seconds(values: Sequence[float | None]) -> str:
    """Return the median of all seeds and their range; a seed without the target counts as later than any other."""
    times = np.sort([np.inf if value is None else value for value in values])
    low, middle, high = (float(times[place]) for place in (0, times.size // 2, -1))
    if not np.isfinite(middle):
        return f"{np.isfinite(times).sum()} of {times.size}"
    return f"{middle:.1f} ({low:.1f} to {'never' if np.isinf(high) else f'{high:.1f}'})"


def _mean(value: Json, scale: float) -> str:
    """Return the mean over seeds and half of its 95 % interval."""
    mean, high = value["mean"], value["high"]
    form = ",.1f" if scale * mean < 1000 else ",.0f"
    return f"{scale * mean:{form}}" + ("" if high is None else f" ± {scale * (high - mean):{form}}")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("real-links"))
    parser.add_argument("--only", choices=[link.replace(", ", "-").lower() for link in LINKS])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--horizon-s", type=float, default=30.0)
    parser.add_argument("--jobs", type=int, default=1)
    given = parser.parse_args(arguments)
    settings: Values = {
        "seeds": list(range(given.seeds)),
        "horizon_s": given.horizon_s,
        "eval_every_s": given.horizon_s / 60,
    }
    chosen = [link for link in LINKS if given.only in (None, link.replace(", ", "-").lower())]
    text = tables({link: rows_of(link, given.out, settings, given.jobs) for link in chosen})
    write_text(given.out / "real-links.md", text)
    print(text)


if __name__ == "__main__":
    main()
