"""Measure what a million UEs cost: seconds per round of the clock and per merge, and memory.

Every point is measured in a fresh process, so peak memory is its own. Times are CPU seconds, the best of a few turns,
which depend least on the machine's load. The CSV also has wall-clock seconds.

    python benchmarks/scale.py --out runs/scale        (takes minutes; writes scale.csv and scale.png, prints a table)
"""

import argparse
import json
import subprocess  # only runs this Python
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np

from perfeds2 import Cell, Protocol, simulate
from perfeds2.timeline.record import Timeline

PAYLOAD_BITS, SAMPLES = 44_352.0, 120.0  # upload size and samples per job of the synthetic task
MOST_QUORUM = 1_000


@dataclass(frozen=True)
class Case:
    """One point to measure."""

    what: str  # clock or training
    against: str  # n or A
    stale: str  # restart (S = 5) or unbounded
    ues: int
    quorum: int
    rounds: int


@dataclass(frozen=True)
class Cost:
    """Costs per round."""

    cpu_s: float
    wall_s: float
    peak_bytes: int  # of the whole process


def cases(largest: int) -> list[Case]:
    """Return the clock's cases over n and A, with restarting and with unbounded jobs, then the training cases."""
    populations = [10**power for power in range(2, 7) if 10**power <= largest]
    crowd = min(largest, 100_000)
    quorums = [quorum for quorum in (10, 100, 1_000, 10_000) if quorum <= crowd // 4]
    many = [
        Case("clock", "n", stale, n, min(MOST_QUORUM, n // 4), 200 if n <= 10_000 else 30)
        for stale in ("restart", "unbounded")
        for n in populations
    ]
    return [
        *many,
        *(Case("clock", "A", "restart", crowd, quorum, 30) for quorum in quorums),
        *(Case("training", "n", "restart", n, 25, 20) for n in populations),
        *(Case("training", "A", "restart", crowd, quorum, 20) for quorum in quorums if quorum <= MOST_QUORUM),
    ]


def play(case: Case) -> Timeline:
    bound = 5 if case.stale == "restart" else None
    protocol, cell = Protocol(case.quorum, bound), Cell.draw(case.ues, 0, cycles_per_sample=138_600.0)
    return simulate(cell, protocol, payload_bits=PAYLOAD_BITS, samples=SAMPLES, rounds=case.rounds)


def clock_cost(case: Case) -> Cost:
    return timed(lambda: play(case), case.rounds)


def training_cost(case: Case, timeline: Path) -> Cost:
    """Measure training along a timeline that another process has made."""
    import jax

    from perfeds2.learning.datasets import synthetic
    from perfeds2.learning.learner import Learner
    from perfeds2.learning.objectives import PerFed
    from perfeds2.learning.replay import replay

    task, line, learner = synthetic(case.ues, 3, 0), Timeline.load(timeline), Learner(PerFed(0.03))
    return timed(lambda: jax.block_until_ready(replay(task, line, learner)), case.rounds)


def timed(work: Callable[[], object], rounds: int, turns: int = 3) -> Cost:
    """Return the best of a few turns, after one warm-up turn that compiles."""
    work()
    cpu_s, wall_s = [], []
    for _ in range(turns):
        began = time.process_time(), time.perf_counter()
        work()
        cpu_s.append(time.process_time() - began[0])
        wall_s.append(time.perf_counter() - began[1])
    return Cost(min(cpu_s) / rounds, min(wall_s) / rounds, peak_bytes())


def peak_bytes() -> int:
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def measure(case: Case, out: Path) -> Cost:
    """Measure a case in a fresh process."""
    timeline = out / "training-timeline.npz"
    if case.what == "training":
        _start("--make-timeline", json.dumps(asdict(case)), str(timeline))
    said = _start("--measure", json.dumps(asdict(case)), str(timeline))
    timeline.unlink(missing_ok=True)
    return Cost(**json.loads(said))


def _start(*arguments: str) -> str:
    command = [sys.executable, __file__, *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout  # noqa: S603 (see above)


def exponent(x: Sequence[float], y: Sequence[float]) -> float:
    """Return p in y ~ x^p, by least squares on logarithms."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


# ---- output: a table, a CSV and a figure


def csv_lines(found: dict[Case, Cost]) -> str:
    names = [field.name for kind in (Case, Cost) for field in fields(kind)]
    rows = [[*asdict(case).values(), *asdict(cost).values()] for case, cost in found.items()]
    return "\n".join(",".join(map(str, row)) for row in [names, *rows]) + "\n"


def table_lines(found: dict[Case, Cost]) -> str:
    """Return the Markdown table of docs/reports/scale.md."""
    lines = ["| what | n | A | ms per round | µs per merge | peak MiB |", "|---|---:|---:|---:|---:|---:|"]
    for case, cost in found.items():
        words = (
            f"{case.what}, {'S = 5' if case.stale == 'restart' else 'unbounded'}" if case.what == "clock" else case.what
        )
        a_round, a_merge = 1e3 * cost.cpu_s, 1e6 * cost.cpu_s / case.quorum
        size = f"{cost.peak_bytes / 2**20:,.0f}"
        lines.append(f"| {words} | {case.ues:,} | {case.quorum:,} | {a_round:,.3g} | {a_merge:,.3g} | {size} |")
    return "\n".join(lines)


def series(found: dict[Case, Cost], what: str, against: str, stale: str = "restart") -> list[tuple[Case, Cost]]:
    return [
        (case, cost) for case, cost in found.items() if (case.what, case.against, case.stale) == (what, against, stale)
    ]


def slopes(found: dict[Case, Cost]) -> dict[str, float]:
    """Return scaling exponents. The clock's start at 10,000 UEs, because below that NumPy's call overhead dominates."""
    result = {}
    for stale in ("restart", "unbounded"):
        large = [pair for pair in series(found, "clock", "n", stale) if pair[0].ues >= 10_000]
        if len(large) > 1:
            result[f"clock a round against n, {stale}"] = exponent(
                [c.ues for c, _ in large], [t.cpu_s for _, t in large]
            )
    for what, against in (("clock", "A"), ("training", "A"), ("training", "n")):
        pairs = series(found, what, against)
        if len(pairs) > 1:
            x = [case.quorum if against == "A" else case.ues for case, _ in pairs]
            result[f"{what} a round against {against}"] = exponent(x, [cost.cpu_s for _, cost in pairs])
    return result


def draw(found: dict[Case, Cost], path: Path) -> None:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    from perfeds2.chart import NEUTRAL
    from perfeds2.report.on_paper import STYLE
    from perfeds2.report.style import COLOURS

    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update({**STYLE, "text.parse_math": True})  # for powers of ten on the axes
        figure = Figure(figsize=(7.0, 2.4), layout="constrained")
        clock, a_round, memory = figure.subplots(1, 3)
        lines = (
            (clock, "clock", "n", "restart", COLOURS["PerFed"], "o-", "restart, S = 5"),
            (clock, "clock", "n", "unbounded", COLOURS["FedAvg"], "s--", "unbounded"),
            (a_round, "clock", "A", "restart", COLOURS["PerFed"], "o-", "clock"),
            (a_round, "training", "A", "restart", COLOURS["FedAvg"], "s--", "training"),
            (memory, "clock", "n", "restart", COLOURS["PerFed"], "o-", "clock"),
            (memory, "training", "n", "restart", COLOURS["FedAvg"], "s--", "training"),
        )
        for axes, what, against, stale, tint, look, label in lines:
            pairs = series(found, what, against, stale)
            x = [case.quorum if against == "A" else case.ues for case, _ in pairs]
            y = [cost.peak_bytes / 2**20 if axes is memory else 1e3 * cost.cpu_s for _, cost in pairs]
            axes.plot(x, y, look, color=tint, markersize=3, label=label)
        largest = max(case.ues for case in found)
        clock.plot([largest / 100, largest], [1, 100], ":", color=NEUTRAL, label="proportional to n")
        for axes, x, y in (
            (clock, "UEs n", "clock, ms per round"),
            (a_round, f"quorum A, n = {max(c.ues for c in found if c.against == 'A'):,}", "ms per round"),
            (memory, "UEs n", "peak memory, MiB"),
        ):
            axes.set(xscale="log", yscale="log", xlabel=x, ylabel=y)
            axes.legend(loc="upper left")
        memory.set_ylim(20, 4_096)
        figure.savefig(path, dpi=160, metadata={"Software": None})


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/scale"), help="where scale.csv and scale.png go")
    parser.add_argument("--largest", type=int, default=1_000_000, help="the largest n")
    parser.add_argument("--measure", nargs=2, metavar=("CASE", "TIMELINE"), help=argparse.SUPPRESS)
    parser.add_argument("--make-timeline", nargs=2, metavar=("CASE", "TIMELINE"), help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.make_timeline:
        play(Case(**json.loads(given.make_timeline[0]))).save(given.make_timeline[1])
    elif given.measure:
        case, timeline = Case(**json.loads(given.measure[0])), Path(given.measure[1])
        print(json.dumps(asdict(clock_cost(case) if case.what == "clock" else training_cost(case, timeline))))
    else:
        given.out.mkdir(parents=True, exist_ok=True)
        found = {}
        for case in cases(given.largest):
            print(f"{case.what}: n = {case.ues:,}, A = {case.quorum:,}, {case.stale} …", file=sys.stderr, flush=True)
            found[case] = measure(case, given.out)
        (given.out / "scale.csv").write_text(csv_lines(found), encoding="utf-8")
        draw(found, given.out / "scale.png")
        print(table_lines(found))
        for name, slope in slopes(found).items():
            print(f"{name}: exponent {slope:.2f}")


if __name__ == "__main__":
    main()
