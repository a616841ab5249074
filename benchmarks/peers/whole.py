"""Measure the time from the command to the figure: the paper's exp_1 on MNIST.

    python benchmarks/peers/whole.py                     (five seeds; FedJAX trains one of them, which takes minutes)
    python benchmarks/peers/whole.py --only curve,fedjax --horizon-s 60

There are three rows. Each is a fresh process that begins with its imports and ends with a PNG:

* figure: `perfeds2 reproduce exp_1 --task mnist --scale paper`: six algorithms, five seeds, clock, claims and page.
* curve: FedAvg-SYN in perfeds2, the only one of the six curves that a peer can express.
* fedjax: the same curve in FedJAX, the closest peer, with the same data, rounds, batch size and evaluations. FedJAX
  models neither time nor late clients, so it cannot produce the other five curves or this one's time axis. It is
  given the rounds and their closing times for free.

MNIST is read from where `perfeds2 data fetch mnist` puts it, or from $PERFEDS2_DATA.
"""

import argparse
import subprocess  # only runs this Python
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
ROWS = ("figure", "curve", "fedjax")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(ROWS), help="rows, with commas between")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--fedjax-seeds", type=int, default=1, help="number of seeds for FedJAX")
    parser.add_argument("--horizon-s", type=float, default=600.0, help="simulated; the paper's is 600")
    parser.add_argument("--timeout-s", type=float, default=900.0, help="of a row")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for row in given.only.split(","):
            if row not in ROWS:
                sys.exit(f"--only names {', '.join(ROWS)}, not {row}.")
            seeds = given.fedjax_seeds if row == "fedjax" else given.seeds
            if row == "fedjax":
                write_work(folder / "work.npz", seeds, given.horizon_s)
            command, picture = command_of(row, folder, seeds, given.horizon_s)
            began = time.perf_counter()
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=given.timeout_s)  # noqa: S603 (above)
            except subprocess.TimeoutExpired:
                print(f"{row}: more than {given.timeout_s:g} s", flush=True)
                continue
            seconds = time.perf_counter() - began
            words = done.stderr if done.returncode else done.stdout
            said = ([line for line in words.splitlines() if line.strip()] or ["nothing"])[-1]
            if done.returncode or not picture.exists():
                print(f"{row}: not run: {said.strip()[:300]}", flush=True)
            else:
                print(f"{row}: {seconds:.1f} s, {seeds} seeds{'' if row == 'figure' else ': ' + said}", flush=True)


def command_of(row: str, folder: Path, seeds: int, horizon_s: float) -> tuple[list[str], Path]:
    """Return the command of a row and the path of the figure it writes."""
    if row == "figure":
        out = folder / "figure"
        what = [
            "-m",
            "perfeds2",
            "reproduce",
            "exp_1",
            "--task",
            "mnist",
            "--scale",
            "paper",
            "--seeds",
            str(seeds),
        ]
        more = ["--set", f"run.horizon_s={horizon_s:g}", "--quiet", "--out", str(out)]
        return [sys.executable, *what, *more], out / "exp_1.png"
    picture = folder / f"{row}.png"
    given = [str(folder / "work.npz"), str(picture)] if row == "fedjax" else [str(seeds), str(horizon_s), str(picture)]
    return [sys.executable, str(HERE / f"whole_{row}.py"), *given], picture


def write_work(path: Path, seeds: int, horizon_s: float) -> None:
    """Write FedAvg-SYN of exp_1 as arrays for other frameworks: data, rounds, evaluation times and step sizes."""
    from whole_curve import spec

    from perfeds2.learning.data import Shards
    from perfeds2.learning.points import evaluation_points
    from perfeds2.spec.build import Stage, make_algorithms, make_timelines
    from perfeds2.spec.tasks import make_task

    arrays = {}
    made = spec(tuple(range(seeds)), horizon_s)
    for seed in range(seeds):
        task, stage = make_task(made, seed), Stage.of(made, seed)
        (algorithm,) = make_algorithms(made, stage)
        (timeline,) = make_timelines(made, stage, [algorithm])
        learner, data = algorithm.learner, task.data
        assert isinstance(data, Shards)
        looks = evaluation_points(timeline, horizon_s=horizon_s, every_s=made.run.eval_every_s)
        arrays |= {f"x{seed}": data.x, f"y{seed}": data.y, f"start{seed}": data.start}
        arrays |= {f"train{seed}": data.train_count, f"test{seed}": data.test_count}
        arrays |= {f"seconds{seed}": [look.time_s for look in looks], f"rounds{seed}": [look.round for look in looks]}
        arrays |= {
            "steps": [learner.beta, learner.personal_step],
            "batch": learner.batch,
            f"looked{seed}": data.lengths(),
        }
    np.savez(path, **{name: np.asarray(values) for name, values in arrays.items()})


if __name__ == "__main__":
    main()
