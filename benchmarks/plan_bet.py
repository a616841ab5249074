"""Compare the choice of `plan` with the best of all choices, on fresh cells and with fresh seeds.

    python benchmarks/plan_bet.py --cells 10 --jobs 16 --out bets
    python benchmarks/plan_bet.py --cells 2 --ues 8 --seeds 3 --search bits=32 --search local-steps=1 --out bets

A cell's number determines its UEs, radio, layout, processors and labels per UE. On each cell ``plan`` makes its
choice. Then all combinations of the same search are trained, with the same seeds and evaluation times, until the
second at which the plan's choice keeps the target. To have a lower median time, a choice must have reached the target
by then in at least half of the seeds. A choice that has not cannot win, however long it trains, and is dropped as soon
as too many seeds have missed. All others are trained for the whole horizon on all seeds and judged as ``plan`` judges.
This finds the same best choice as training everything for the whole horizon. The plan's choice is also trained with as
many fresh seeds.

Each cell is a plan, followed by one part for each combination of bits and local steps. Each of these runs in its own
single-core process, ``--jobs`` at a time. Results are kept in --out: running the same command again resumes and
summarises.
"""

import argparse
import itertools
import json
import math
import os
import random
import subprocess  # only runs this file
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfeds2.files import write_text
from perfeds2.spec.resolve import spec_from
from perfeds2.studies.grid import parse_grid
from perfeds2.studies.plan_data import Choice, Plan, PlanRequest, median_s
from perfeds2.studies.plan_search import PlanSearch
from perfeds2.studies.plan_space import Space, fits, make_space
from perfeds2.studies.plan_trials import EVALUATIONS, Trials
from perfeds2.studies.search import Rung

WITHIN = 1.15  # allowed ratio of the plan's time to the best
FRESH = 1000  # first of the seeds that plan never saw
TOGETHER = 16  # choices trained together
ONE_CORE = {"NPROC": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
Row = dict[str, Any]


def cell_of(number: int, ues: int | None) -> Row:
    """Return the settings of a cell, drawn from its number."""
    draw = random.Random(number)  # noqa: S311 (a cell, no secret)
    radio = draw.choice(["paper", "umi", "uma"])
    slow = draw.choice([2e8, 5e8, 1e9])
    settings = {
        "ues": draw.choice([10, 15, 20, 30]),
        "layout": draw.choice(["disc", "uniform"]),
        "cpu_hz": [slow, slow * draw.choice([2.0, 5.0, 10.0])],
        "labels_per_ue": draw.choice([2, 3, 5]),
        "target_accuracy": 0.9,
    }
    real = {"radio": radio, "power_w": 0.2} if radio != "paper" else {}
    return settings | real | ({} if ues is None else {"ues": ues})


# ---- one piece of work, in its own process


@dataclass(frozen=True)
class Piece:
    """Part of a cell's work: "plan", "fresh", or the choices with given local steps and bits ("2 steps 8 bits")."""

    cell: int
    what: str

    def file(self, out: Path) -> Path:
        return out / f"cell-{self.cell}" / f"{self.what.replace(' ', '-')}.json"

    def found(self, out: Path) -> Row | None:
        return json.loads(self.file(out).read_text(encoding="utf-8")) if self.file(out).exists() else None


def space_of(cell: int, arguments: argparse.Namespace) -> Space:
    settings = cell_of(cell, arguments.ues)
    spec = spec_from(**settings, schedule="first", algorithms=["PerFedS2"], seeds=arguments.seeds)
    return make_space(spec, parse_grid(arguments.search, "--search"))


def do(piece: Piece, arguments: argparse.Namespace) -> Row:
    from perfeds2.commands.jax_setup import prepare_to_train

    prepare_to_train()
    space, folder, began = space_of(piece.cell, arguments), arguments.out / f"cell-{piece.cell}", time.process_time()
    if piece.what == "plan":
        return chosen_by_plan(space, parse_grid(arguments.search, "--search"), folder / "planned")
    made = Plan.from_json((folder / "planned" / "plan.json").read_text(encoding="utf-8"))
    if piece.what == "fresh":
        found = fresh(made, Trials(space, made.request.keep), arguments.seeds)
    else:
        steps, _, bits, _ = piece.what.split()
        choices = [c for c in everything(space) if (c.local_steps, c.bits) == (int(steps), int(bits))]
        found = best_of(space, made, choices)
    return found | {"core_s": time.process_time() - began}


def chosen_by_plan(space: Space, search: Row, out: Path) -> Row:
    from perfeds2.report.plan import write_plan
    from perfeds2.studies.plan import plan

    began, core = time.monotonic(), time.process_time()
    made = plan(space.spec, out=out, search=search)
    write_plan(made, out)
    row: Row = {"sentence": made.sentence, "plan_took_s": time.monotonic() - began, "trainings": made.trainings}
    row |= {"core_s": time.process_time() - core, "horizon_s": made.target.horizon_s}
    best = made.best
    return row | {
        "chosen": None if best is None else str(best.choice),
        "chosen_s": None if best is None else best.seconds,
    }


def fresh(made: Plan, trials: Trials, seeds: int) -> Row:
    """Train the plan's choice with seeds it never saw: is the target lost, and are the seconds as promised?"""
    best, target = made.best, made.target
    assert best is not None
    unseen = tuple(FRESH + number for number in range(seeds))
    for horizon_s in (target.horizon_s, target.confirm_s):
        trials.train([best.choice], Rung(unseen, horizon_s))
    found, longer = (trials.known(best.choice, unseen, each) for each in (target.horizon_s, target.confirm_s))
    low, high = best.promise_s or (0.0, 0.0)
    return {
        "fresh_lost": sum(trial.state in ("lost", "diverged", "never") for trial in longer),
        "fresh_seeds": seeds,
        "fresh_s": median_s(found),
        "promise_s": [low, high],
        "as_promised": sum(trial.time_s is not None and low <= trial.time_s <= high for trial in found),
    }


def everything(space: Space) -> Iterator[Choice]:
    """Yield every combination of the searched settings."""
    axes = space.axes
    for values in itertools.product(*(axes[name] for name in axes)):
        choice = Choice(**dict(zip(axes, values, strict=True)))
        if fits(choice.schedule, choice.bandwidth) or len(axes["bandwidth"]) == 1:
            yield choice


def best_of(space: Space, made: Plan, choices: Sequence[Choice]) -> Row:
    """Return the choices that hold the target sooner than the plan's, and the best of them with a safe margin."""
    assert made.best is not None
    assert made.best.seconds is not None
    trials = Trials(space, made.request.keep)
    race = PlanSearch(space, trials, PlanRequest(), made.target, scouting=1.0)
    soon, short = in_time(space, made, choices)
    for begin in range(0, len(soon), TOGETHER):
        race.watch(soon[begin : begin + TOGETHER], race.seeds)
        print(f"watched {min(begin + TOGETHER, len(soon))} of {len(soon)}", flush=True)
    sooner = {choice: median_s(race.watched(choice)) or math.inf for choice in soon if race.stands(choice, race.seeds)}
    standing = sorted((each for each in sooner if sooner[each] < made.best.seconds), key=lambda each: sooner[each])
    safe = None
    for choice in standing:
        race.check_neighbours(choice)
        if race.has_margin(choice) and race.confirm(choice):
            safe = choice
            break
    return {
        "choices": len(choices),
        "in_time": len(soon),
        "standing": [[str(choice), sooner[choice]] for choice in standing],
        "safe": None if safe is None else [str(safe), sooner[safe]],
        "all_trainings": short + len(trials.outcomes),
    }


def in_time(space: Space, made: Plan, choices: Sequence[Choice]) -> tuple[list[Choice], int]:
    """Return the choices that could still beat the plan's, and the number of trainings.

    They reach the target, kept or not, by the time the plan's choice keeps it, in at least half of the seeds.
    """
    assert made.best is not None
    assert made.best.seconds is not None
    seeds, limit_s = made.seeds, made.best.seconds
    every_s = made.target.horizon_s / EVALUATIONS
    looks = math.ceil(limit_s / every_s)  # the last evaluation is not before the limit
    trials = Trials(space, 0.0, evaluations=looks)
    late = dict.fromkeys(choices, 0)
    for number, seed in enumerate(seeds):
        left = [choice for choice in choices if late[choice] <= len(seeds) // 2]
        for begin in range(0, len(left), TOGETHER):
            some = left[begin : begin + TOGETHER]
            trials.train(some, Rung((seed,), looks * every_s))
            for choice in some:
                reached = [each.reached_s for each in trials.known(choice, [seed], looks * every_s)]
                late[choice] += not reached or reached[0] is None or reached[0] > limit_s
        print(f"seed {number + 1} of {len(seeds)}: {len(left)} choices, {len(trials.outcomes)} trainings", flush=True)
    return [choice for choice in choices if late[choice] <= len(seeds) // 2], len(trials.outcomes)


# ---- all pieces


def pieces_of(cell: int, arguments: argparse.Namespace) -> list[Piece]:
    axes = space_of(cell, arguments).axes
    parts = [f"{steps} steps {bits} bits" for steps in axes["local_steps"] for bits in axes["bits"]]
    return [Piece(cell, "fresh"), *(Piece(cell, part) for part in parts)]


def do_all(arguments: argparse.Namespace) -> None:
    """Run all pieces, ``--jobs`` at a time. A cell's other pieces follow its plan."""
    out, began = arguments.out, time.monotonic()
    waiting = [Piece(cell, "plan") for cell in cells_of(arguments)]
    running: dict[Piece, subprocess.Popen[bytes]] = {}
    failed = 0
    while waiting or running:
        while waiting and len(running) < arguments.jobs:
            piece = waiting.pop(0)
            found = piece.found(out)
            if found is None:
                running[piece] = _start(piece, arguments)
            elif piece.what == "plan" and found["chosen"]:
                waiting += pieces_of(piece.cell, arguments)
        for piece, process in list(running.items()):
            if process.poll() is None:
                continue
            del running[piece]
            found = piece.found(out)
            failed += found is None
            if found is not None and piece.what == "plan" and found["chosen"]:
                waiting += pieces_of(piece.cell, arguments)
            words = (
                f"failed, see {_log(piece, out)}"
                if found is None
                else found.get("sentence", f"{found['core_s']:.0f} s")
            )
            at = f"{time.monotonic() - began:.0f} s, {len(running)} at work, {len(waiting)} to do"
            print(f"[{at}] cell {piece.cell}, {piece.what}: {words}", flush=True)
        time.sleep(0.1)
    if failed:
        print(f"{failed} pieces failed; the same command tries them again.")


def _log(piece: Piece, out: Path) -> Path:
    return piece.file(out).with_suffix(".log")


def _start(piece: Piece, arguments: argparse.Namespace) -> "subprocess.Popen[bytes]":
    piece.file(arguments.out).parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, __file__, *sys.argv[1:], "--piece", str(piece.cell), piece.what]
    with _log(piece, arguments.out).open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | ONE_CORE)  # noqa: S603


def cells_of(arguments: argparse.Namespace) -> range:
    return range(arguments.first, arguments.first + arguments.cells)


def rows_of(arguments: argparse.Namespace) -> list[Row]:
    """Return a row for every cell whose pieces are all done."""
    rows = []
    for cell in cells_of(arguments):
        planned = Piece(cell, "plan").found(arguments.out)
        if planned is None:
            continue
        row: Row = {"cell": cell, **cell_of(cell, arguments.ues), **planned}
        pieces = pieces_of(cell, arguments) if planned["chosen"] else []
        found = [piece.found(arguments.out) for piece in pieces]
        parts = [each for each in found if each is not None]
        if len(parts) < len(pieces):
            print(f"cell {cell}: {len(parts)} of {len(pieces)} parts are done")
            continue
        for part in parts[:1]:
            row |= {key: value for key, value in part.items() if key != "core_s"}
        own = [[planned["chosen"], planned["chosen_s"]]]
        standing = own + [each for part in parts[1:] for each in part["standing"]]
        safe = own + [part["safe"] for part in parts[1:] if part["safe"]]
        for name, some in (("best", standing), ("safe", safe)) if parts else ():
            row[name], row[f"{name}_s"] = min(some, key=lambda each: each[1])
        for key in ("choices", "in_time", "all_trainings", "core_s"):
            row[key] = sum(part.get(key, 0) for part in parts) + (planned["core_s"] if key == "core_s" else 0)
        rows.append(row)
        write_text(arguments.out / f"cell-{cell}.json", json.dumps(row, indent=1) + "\n")
    return rows


def say(rows: list[Row]) -> None:
    """Print how close the plans came to the best choices, and how often the target was lost on fresh seeds."""
    for row in rows:
        said = ", ".join(
            f"{key} {value:g}" if isinstance(value, float) else f"{key} {value}" for key, value in row.items()
        )
        print(said)
    chosen = [row for row in rows if row["chosen"]]
    for name, words in (("best_s", "the best of all"), ("safe_s", "the best whose neighbours stand")):
        ratios = [row["chosen_s"] / row[name] for row in chosen]
        if ratios:
            good = sum(ratio <= WITHIN for ratio in ratios)
            each = ", ".join(f"{100 * (ratio - 1):+.0f} %" for ratio in ratios)
            print(f"Against {words}: within {100 * (WITHIN - 1):.0f} % on {good} of {len(ratios)} cells ({each}).")
    lost = [row for row in chosen if row["fresh_lost"] >= row["fresh_seeds"] / 3]
    print(f"Lost again by a third of the fresh seeds or more: {len(lost)} of {len(chosen)} choices.")
    promised = [row for row in chosen if row["promise_s"][1]]
    seeds = sum(row["fresh_seeds"] for row in promised)
    kept = sum(row["as_promised"] for row in promised)
    print(f"Seconds as promised: {kept} of {seeds} fresh seeds of {len(promised)} choices (nine of ten are promised).")
    print(f"Nothing recommended: {len(rows) - len(chosen)} of {len(rows)} cells.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=10, help="how many cells")
    parser.add_argument("--first", type=int, default=0, help="the first cell's number")
    parser.add_argument("--seeds", type=int, default=5, help="of each plan, and as many fresh ones")
    parser.add_argument("--ues", type=int, default=None, help="number of UEs in every cell, instead of a draw")
    parser.add_argument("--search", action="append", default=[], help="as of perfeds2 plan: bits=32,8")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at a time; 0 only summarises")
    parser.add_argument("--out", type=Path, default=Path("runs/plan-bet"), help="what is done is kept here")
    parser.add_argument("--piece", nargs=2, help=argparse.SUPPRESS)  # used by the child processes
    arguments = parser.parse_args()
    if arguments.piece is not None:
        piece = Piece(int(arguments.piece[0]), arguments.piece[1])
        write_text(piece.file(arguments.out), json.dumps(do(piece, arguments)) + "\n")
        return
    if arguments.jobs > 0:
        do_all(arguments)
    say(rows_of(arguments))


if __name__ == "__main__":
    main()
