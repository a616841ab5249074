"""Compare methods on equal terms.

A bout is one task on one cell. In it each method is tuned with the same number of settings, on held-out data and
separate seeds; then all are trained with fresh seeds in the settings found.

The tables report the cost to the target, the final accuracy, fairness, and which method is better than which.
arena.csv has one row per task, cell, method and seed. Everything else follows from it: arena.json has intervals over
seeds, and paired tests between any two methods of a bout, corrected by Holm's method.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from perfeds2 import __version__
from perfeds2.files import read_json, read_table, write_json
from perfeds2.learning.metrics import NEW_UES_METRICS
from perfeds2.runs.costs import IN_ARENA
from perfeds2.runs.folder import ARENA
from perfeds2.runs.pool import Failure, check_work
from perfeds2.runs.session import KEYWORDS, Base, Execution, Session, base_values
from perfeds2.runs.statistics import (
    censored_median,
    jain,
    mean_over_time,
    pairwise_p,
    statistic,
    time_to_target,
    worst_decile,
)
from perfeds2.runs.store import Result, Row
from perfeds2.runs.table import evaluation_heads, write_csv
from perfeds2.runs.training import trainings_of
from perfeds2.spec.tasks import metric_of
from perfeds2.studies.arena_plan import ArenaPlan, Bout, make_arena, read_plan
from perfeds2.studies.tune import Best, best_of, climb, train_or_refuse

if TYPE_CHECKING:
    import pandas as pd

FACTS = ("rounds", "merges", "staleness_mean")
AT_END = ("accuracy", "accuracy_global", "accuracy_over_time", "worst_decile", "jain", *FACTS)
HEADS = ("task", "cell", "method", "mode", "seed", "target_accuracy", *IN_ARENA, *AT_END, "diverged")  # of arena.csv
BETTER = {"seconds_to_target": min, "accuracy": max, "worst_decile": max}  # which direction is better


@dataclass(frozen=True)
class Arena:
    """The results of an arena."""

    path: Path
    plan: ArenaPlan
    failures: tuple[Failure, ...]

    @cached_property
    def table(self) -> "pd.DataFrame":
        """A table with one row per task, cell, method and seed."""
        return read_table(self.path / "arena.csv")

    @cached_property
    def summary(self) -> Row:
        """The content of arena.json: for each bout, each method with its intervals and the pairwise comparisons."""
        return read_json(self.path / "arena.json")


def arena(base: Base = "", *, out: Path | str, **asked: Any) -> Arena:
    """Compare methods: ``arena({"horizon_s": 30}, methods=["PerFedS2", "FedBuff"], tasks=["digits"], out="runs/a")``.

    Args:
        base: A spec file, or settings as ``compare`` takes them.
        out: The folder of the results. An arena that was interrupted there is resumed.
        **asked: ``methods``, ``mine``, ``tasks``, ``cells``, ``tries``, ``tuning_seeds``, ``rungs`` and ``search`` of
        ``make_arena``; ``workers``, ``retries``, ``reuse``, ``watch`` and ``yes`` of
        ``Execution.from_python``.

    Returns:
        The tables, and the trainings that failed.

    Raises:
        InputError: If a setting is invalid or the folder holds something else.

    Example:
        >>> met = arena({"horizon_s": 30}, methods=["PerFedS2", "FedBuff"], out="runs/a")  # doctest: +SKIP
    """
    how = Execution.from_python("arena", **{key: asked.pop(key) for key in KEYWORDS if key in asked})
    return run_arena(make_arena(base_values(base or {}), **asked), Path(out), how)


def run_arena(plan: ArenaPlan, path: Path, how: Execution = Execution()) -> Arena:  # noqa: B008 (frozen)
    """Train what the folder lacks, bout by bout, and write the tables."""
    every = [one for bout in plan.bouts for one in trainings_of(bout.spec)]
    check_work(every, how.workers, yes=how.yes)
    failures: list[Failure] = []
    outcomes: list[MethodOutcome] = []
    with Session.open(ARENA, plan, path, how, read_plan, plan.trainings) as session:
        run = partial(train_or_refuse, session=session)
        for bout in plan.bouts:
            where, best = f"{bout.task}, {bout.cell}", {}
            if bout.search is not None:
                scores = climb(bout.search, run, f"{where}: tuning ")
                best = {each.algorithm: each for each in best_of(bout.search, scores)}
            settings = {name: best[name].settings if name in best else {} for name in bout.methods}
            trainings = {name: trainings_of(bout.spec_of(name, settings[name]), where) for name in bout.methods}
            results = session.train([one for own in trainings.values() for one in own])
            failures += results.failures
            for name, own in trainings.items():
                outcomes.append(outcome_of(bout, name, best.get(name), results.those_of(own)))
        write_metrics(path, outcomes)
        write_bouts(path, plan, outcomes, {name: bool(named.source) for name, named in plan.bouts[0].methods.items()})
        return Arena(path, plan, tuple(failures))


# ---- tables


@dataclass(frozen=True)
class MethodOutcome:
    """The results of one method in one bout."""

    bout: Bout
    method: str
    tuned: Row  # how many settings were tried, those found, and which of them are at an edge
    rows: Sequence[Row]  # measures, one row per seed; without failed seeds
    results: Sequence[Result] = ()  # of the same seeds


def outcome_of(bout: Bout, method: str, tuned: Best | None, results: Sequence[Result]) -> MethodOutcome:
    """Return the outcome of a method from its results, one per seed."""
    found: Row = {"tried": 0, "settings": {}, "edges": []}
    if tuned is not None and bout.search is not None:
        tried = len(bout.search.candidates(method))
        found = {"tried": tried, "settings": tuned.settings, "edges": list(tuned.edges)}
    target = bout.spec.run.target_accuracy
    where = {"task": bout.task, "cell": bout.cell, "method": method, "target_accuracy": target}
    rows = [where | {"mode": each.facts["mode"], "seed": each.facts["seed"]} | score(each, target) for each in results]
    return MethodOutcome(bout, method, found, rows, results)


def score(result: Result, target: float) -> Row:
    """Return the measures of one method and seed.

    Costs to the target are None if it was never reached. A diverged model has accuracy 0, or its worst value if that
    is negative.
    """
    rows = result.rows
    seen = [row[key] for row in rows for key in ("test_accuracy", "test_accuracy_personal")]
    worst = min([0.0, *(value for value in seen if math.isfinite(value))])  # a metric may be negative

    def finite(row: Row, key: str = "test_accuracy_personal") -> float:
        return float(row[key]) if math.isfinite(row[key]) else worst

    ues = [finite(row) for row in result.ue_rows]
    return {
        **{name: time_to_target(rows, target, cost.column) for name, cost in IN_ARENA.items()},
        "accuracy": finite(rows[-1]),
        "accuracy_global": finite(rows[-1], "test_accuracy"),
        "accuracy_over_time": mean_over_time(rows),
        "worst_decile": worst_decile(ues),
        "jain": jain(ues),
        **{name: finite(rows[-1], name) for name in NEW_UES_METRICS if name in rows[-1]},
        **{name: result.facts[name] for name in FACTS},
        "diverged": int(not math.isfinite(rows[-1]["train_loss"])),
    }


def summarise_method(rows: Sequence[Row]) -> Row:
    """Summarise one method over its seeds: medians of the costs to the target, means with intervals of all measures."""
    reached = sum(row["seconds_to_target"] is not None for row in rows)
    return {
        "seeds": len(rows),
        "reached": reached,
        "diverged": sum(row["diverged"] for row in rows),
        **{
            name: {"median": censored_median([row[name] for row in rows]), **statistic([row[name] for row in rows])}
            for name in IN_ARENA
        },
        **{name: statistic([row[name] for row in rows]) for name in (*AT_END, *NEW_UES_METRICS) if name in rows[0]},
    }


def verdicts(rows: Mapping[str, Sequence[Row]], measure: str, horizon_s: float) -> list[Row]:
    """Compare every two methods by one measure, over the seeds that all methods have.

    A seed that never reached the target counts as reaching it at the horizon.

    Returns:
        For each pair, the better and the worse method, the mean difference and the adjusted p-value.
    """
    seeds = [{row["seed"] for row in of_method} for of_method in rows.values()]
    both = set.intersection(*seeds) if seeds else set()
    values: dict[str, list[float]] = {
        name: [horizon_s if row[measure] is None else float(row[measure]) for row in of_method if row["seed"] in both]
        for name, of_method in rows.items()
    }
    found = []
    for (one, other), p in pairwise_p(values).items():
        difference = float(np.mean(np.subtract(values[one], values[other])))
        first, second = (one, other) if BETTER[measure]((difference, -difference)) == difference else (other, one)
        found.append({"better": first, "worse": second, "difference": abs(difference), "p": p})
    return found


def describe_bout(bout: Bout, outcomes: Sequence[MethodOutcome]) -> Row:
    """Summarise a bout. A method without rows is listed as missing."""
    spec, run = bout.spec, bout.spec.run
    assert run.horizon_s is not None
    rows = {one.method: one.rows for one in outcomes if one.rows}
    return {
        "task": bout.task,
        "cell": bout.cell,
        "ues": spec.cell.ues,
        "horizon_s": run.horizon_s,
        "eval_every_s": run.eval_every_s,
        "metric": metric_of(spec),
        "target_accuracy": run.target_accuracy,
        "tuning": None if bout.search is None else {"seeds": len(bout.search.seeds), "rungs": bout.search.rungs},
        "missing": [one.method for one in outcomes if not one.rows],
        "methods": [
            {"method": one.method, "mode": one.rows[0]["mode"], **one.tuned, **summarise_method(one.rows)}
            for one in outcomes
            if one.rows
        ],
        "compared": {measure: verdicts(rows, measure, run.horizon_s) for measure in BETTER},
    }


def write_metrics(path: Path, outcomes: Sequence[MethodOutcome]) -> None:
    """Write every evaluation of the available results to arena_metrics.csv."""
    where = ["task", "cell", "method", "seed"]
    every = (
        dict(zip(where, (one.bout.task, one.bout.cell, one.method, result.facts["seed"]), strict=True)) | row
        for one in outcomes
        for result in one.results
        for row in result.rows
    )
    write_csv(path / "arena_metrics.csv", [*where, *evaluation_heads([one.bout.spec for one in outcomes])], every)


def write_bouts(
    path: Path, plan: ArenaPlan, outcomes: Sequence[MethodOutcome], methods: Mapping[str, bool], **more: object
) -> None:
    """Write arena.csv, and arena.json last to mark completion.

    Args:
        path: The folder.
        plan: What was asked for.
        outcomes: The outcomes, bout by bout. A bout without any is left out.
        methods: Whether each method is the user's own, by name.
        **more: Other entries of arena.json.
    """
    new = NEW_UES_METRICS if any(bout.spec.task.new_ues for bout in plan.bouts) else ()
    write_csv(path / "arena.csv", (*HEADS, *new), (row for one in outcomes for row in one.rows))
    bouts = [(bout, own) for bout in plan.bouts if (own := [one for one in outcomes if one.bout is bout])]
    said = {
        "perfeds2": __version__,
        **({"suite": plan.suite} if plan.suite else {}),
        "tasks": list(dict.fromkeys(bout.task for bout, _ in bouts)),
        "cells": list(plan.cells),
        "methods": list(methods),
        "mine": [name for name, is_own in methods.items() if is_own],
        "seeds": list(plan.seeds),
        "tune": plan.tries,
        **more,
        "bouts": [describe_bout(bout, own) for bout, own in bouts],
    }
    write_json(path / "arena.json", said)
