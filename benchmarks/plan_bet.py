"""Can one bet on a plan? Its choice against the best of all, on fresh cells; and does the choice hold with fresh seeds?

    python benchmarks/plan_bet.py --cells 10 --out bets
    python benchmarks/plan_bet.py --cells 2 --ues 8 --seeds 3 --search bits=32 --search local-steps=1 --out bets

A cell is drawn by its number: how many UEs, which radio, layout and processors, how many labels a UE has. On each, ``plan`` chooses; then every
choice of the same search is trained, all combinations, for the same horizon on the same seeds (those whose first seed took more than three times
as long as the choice's are not trained with the others), and the plan's choice with as many fresh seeds. What is done is kept in --out: the
same command goes on.
"""

import argparse
import itertools
import json
import math
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from perfeds2.commands.common import prepare_to_train
from perfeds2.files import write_text
from perfeds2.planning.choices import Space, fits, make_space
from perfeds2.planning.data import Choice, Plan, median_s
from perfeds2.planning.kept import judge
from perfeds2.planning.plan import plan
from perfeds2.planning.race import Race, Request
from perfeds2.planning.trials import Played, Trials, Want
from perfeds2.report.plan import write_plan
from perfeds2.runs.grid import parse_grid
from perfeds2.spec.resolve import spec_from

WITHIN = 1.15  # of the best: what is asked of a plan
FRESH = 1000  # the first of the seeds nobody has seen
TOGETHER = 16  # choices
FAR = 3.0  # times as long as the choice's first seed: not trained with the others


def cell_of(number: int, ues: int | None) -> dict[str, Any]:
    """A cell by its number."""
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


def everything(space: Space) -> Iterator[Choice]:
    """Every combination of what was searched."""
    axes = space.axes
    for values in itertools.product(*(axes[name] for name in axes)):
        choice = Choice(**dict(zip(axes, values, strict=True)))
        if fits(choice.schedule, choice.bandwidth) or len(axes["bandwidth"]) == 1:
            yield choice


def exhaustive(space: Space, made: Plan, trials: Trials) -> dict[str, Any]:
    """The best of all choices: that stands, and that stands with its neighbours."""
    race = Race(space, trials, Request(), lambda *_: None, made.target)
    assert made.best is not None
    first, rest, limit_s = race.seeds[:1], race.seeds, FAR * (made.best.trials[0].time_s or math.inf)
    choices = [
        each for each in everything(space) if isinstance(race.play(each), Played) and race.left_out(each) is None
    ]
    for begin in range(0, len(choices), TOGETHER):
        some = choices[begin : begin + TOGETHER]
        race.watch(some, first, 0, 0)
        soon = [choice for choice in some if (race.watched(choice)[0].time_s or math.inf) <= limit_s]
        race.watch(soon, rest, 0, 0)
        print(f"  {begin + len(some)} of {len(choices)} choices, {trials.trained} trainings", flush=True)
    standing = [choice for choice in choices if len(race.watched(choice)) == len(rest) and race.stands(choice, rest)]
    standing.sort(key=lambda choice: median_s(race.watched(choice)) or math.inf)
    safe = None
    for choice in standing:
        race.look_beside(choice, 0, 0)
        if race.has_margin(choice) and race.confirm(choice, 0):
            safe = choice
            break
    return {
        "choices": len(choices),
        "best": None if not standing else str(standing[0]),
        "best_s": None if not standing else median_s(race.watched(standing[0])),
        "safe": None if safe is None else str(safe),
        "safe_s": None if safe is None else median_s(race.watched(safe)),
    }


def fresh(made: Plan, trials: Trials, seeds: int) -> dict[str, Any]:
    """The plan's choice with seeds nobody has seen, watched as long as it was before it was recommended."""
    assert made.best is not None
    wants = [Want(made.best.choice, FRESH + number, made.target.confirm_s) for number in range(seeds)]
    found = [judge(curve, made.target.accuracy, made.target.keep) for curve in trials.train(wants)]
    lost = sum(trial.state in ("lost", "diverged", "never") for trial in found)
    return {"fresh_lost": lost, "fresh_seeds": seeds, "fresh_s": median_s(found)}


def bet(number: int, arguments: argparse.Namespace, out: Path) -> dict[str, Any]:
    settings = cell_of(number, arguments.ues)
    spec = spec_from(**settings, algorithms=["PerFedS2"], seeds=arguments.seeds)
    search: dict[str, Any] = dict(parse_grid(arguments.search, "--search"))
    began = time.monotonic()
    made = plan(spec, out=out / f"cell-{number}", search=search, write=write_plan)
    took_s = time.monotonic() - began
    print(f"cell {number}: {settings}\n  {made.sentence}", flush=True)
    row: dict[str, Any] = {"cell": number, **settings, "plan_took_s": took_s, "trainings": made.trainings}
    if made.best is None:
        return row | {"chosen": None, "sentence": made.sentence}
    space = make_space(spec, search)
    trials = Trials(space, out / f"cell-{number}" / "trials")
    row |= {"chosen": str(made.best.choice), "chosen_s": made.best.seconds}
    row |= fresh(made, trials, arguments.seeds) | exhaustive(space, made, trials)
    return row | {"all_trainings": trials.trained}


def say(rows: list[dict[str, Any]]) -> None:
    """Within how many per cent, and how often lost again."""
    chosen = [row for row in rows if row.get("chosen")]
    for name, words in (("best_s", "the best of all"), ("safe_s", "the best whose neighbours stand")):
        ratios = [row["chosen_s"] / row[name] for row in chosen if row.get(name)]
        if ratios:
            good = sum(ratio <= WITHIN for ratio in ratios)
            each = ", ".join(f"{100 * (ratio - 1):+.0f} %" for ratio in ratios)
            print(f"Against {words}: within {100 * (WITHIN - 1):.0f} % on {good} of {len(ratios)} cells ({each}).")
    lost = [row for row in chosen if row["fresh_lost"] >= row["fresh_seeds"] / 3]
    print(f"Lost again by a third of the fresh seeds or more: {len(lost)} of {len(chosen)} choices.")
    print(f"Nothing recommended: {len(rows) - len(chosen)} of {len(rows)} cells.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=10, help="how many cells")
    parser.add_argument("--first", type=int, default=0, help="the first cell's number")
    parser.add_argument("--seeds", type=int, default=5, help="of each plan, and as many fresh ones")
    parser.add_argument("--ues", type=int, default=None, help="so many UEs in every cell, instead of a draw")
    parser.add_argument("--search", action="append", default=[], help="as of perfeds2 plan: bits=32,8")
    parser.add_argument("--out", type=Path, default=Path("runs/plan-bet"), help="what is done is kept here")
    arguments = parser.parse_args()
    prepare_to_train()
    rows: list[dict[str, Any]] = []
    for number in range(arguments.first, arguments.first + arguments.cells):
        known = arguments.out / f"cell-{number}.json"
        if not known.exists():
            arguments.out.mkdir(parents=True, exist_ok=True)
            write_text(known, json.dumps(bet(number, arguments, arguments.out), indent=1) + "\n")
        rows.append(json.loads(known.read_text(encoding="utf-8")))
        say(rows)


if __name__ == "__main__":
    main()
