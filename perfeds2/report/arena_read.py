"""What does an arena's folder hold, and what do its numbers say in words?

Every sentence follows from arena.json: who is first, than whom that is significant, where PerFedS2 and one's own stand.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from perfeds2.learning.metrics import Score, score_of
from perfeds2.report.run import Estimate
from perfeds2.report.tables import listed, seconds
from perfeds2.runs.statistics import INTERVAL_SEEDS

SIGNIFICANT = 0.05
WATCHED = "PerFedS2"  # said of it, and of one's own, where they stand


@dataclass(frozen=True)
class Contestant:
    """One method in one bout, over its seeds."""

    name: str
    seeds: int
    reached: int  # so many of them the target
    diverged: int
    tried: int  # settings
    settings: Mapping[str, Any]  # that tuning found
    edges: tuple[str, ...]  # of these, those that are the smallest or largest that was tried
    estimates: Mapping[str, Estimate]  # by the name it has in arena.csv
    medians: Mapping[str, float | None]  # of what it took to the target; who never got there is later than all

    @property
    def seconds(self) -> float:
        """To the target; infinite if half of the seeds never met it."""
        found = self.medians["seconds_to_target"]
        return math.inf if found is None else found

    @property
    def accuracy(self) -> float:
        """Personalised, at the end."""
        return self.estimates["accuracy"].mean or 0.0


@dataclass(frozen=True)
class Verdict:
    """Two methods by one measure."""

    better: str  # by the mean over seeds
    worse: str
    difference: float
    p: float  # adjusted by Holm's method

    @property
    def is_significant(self) -> bool:
        return self.p < SIGNIFICANT


@dataclass(frozen=True)
class BoutFound:
    """What came out on one task and cell."""

    task: str
    cell: str
    ues: int
    horizon_s: float
    eval_every_s: float
    target_accuracy: float
    score: Score  # what stands for the accuracy
    tuning: Mapping[str, int] | None  # its seeds and rungs
    missing: tuple[str, ...]  # methods that failed
    methods: tuple[Contestant, ...]
    compared: Mapping[str, tuple[Verdict, ...]]  # by measure; empty with fewer than three seeds
    curves: pd.DataFrame | None = None  # rows of arena_metrics.csv

    @property
    def title(self) -> str:
        return self.task if self.cell == "paper" else f"{self.task} ({self.cell})"

    @property
    def ranked(self) -> list[Contestant]:
        """Who was first at the target comes first; of equals, who is better at the end."""
        return sorted(self.methods, key=lambda each: (*_late(each), -each.accuracy))

    @property
    def target(self) -> str:
        named = "" if self.score.is_share else f"{self.score.word} "
        return named + self.score.level(self.target_accuracy)


@dataclass(frozen=True)
class ArenaFound:
    """What an arena's folder holds."""

    version: str
    seeds: tuple[int, ...]
    tries: int
    mine: tuple[str, ...]  # methods that are the user's own
    bouts: tuple[BoutFound, ...]

    @property
    def has_tests(self) -> bool:
        return len(self.seeds) >= INTERVAL_SEEDS


def load_arena(folder: Path) -> ArenaFound:
    """Read an arena's folder. Only arena.json must be there."""
    said = json.loads((folder / "arena.json").read_text(encoding="utf-8"))
    table = folder / "arena_metrics.csv"
    texts = dict.fromkeys(("task", "cell", "method"), str)
    metrics = pd.read_csv(table, converters=texts) if table.exists() else None
    return ArenaFound(
        str(said["perfeds2"]),
        tuple(map(int, said["seeds"])),
        int(said["tune"]),
        tuple(map(str, said["mine"])),
        tuple(_bout(each, metrics) for each in said["bouts"]),
    )


def _bout(said: Mapping[str, Any], metrics: pd.DataFrame | None) -> BoutFound:
    task, cell = str(said["task"]), str(said["cell"])
    curves = None
    if metrics is not None:
        curves = pd.DataFrame(metrics[(metrics["task"] == task) & (metrics["cell"] == cell)])
    return BoutFound(
        task=task,
        cell=cell,
        ues=int(said["ues"]),
        horizon_s=float(said["horizon_s"]),
        eval_every_s=float(said["eval_every_s"]),
        target_accuracy=float(said["target_accuracy"]),
        score=score_of(str(said["metric"])),
        tuning=said["tuning"],
        missing=tuple(map(str, said["missing"])),
        methods=tuple(map(_contestant, said["methods"])),
        compared={
            measure: tuple(Verdict(str(v["better"]), str(v["worse"]), float(v["difference"]), float(v["p"])) for v in all_)
            for measure, all_ in said["compared"].items()
        },
        curves=curves,
    )  # fmt: skip


def _contestant(said: Mapping[str, Any]) -> Contestant:
    numbers = {name: found for name, found in said.items() if isinstance(found, dict) and "values" in found}
    return Contestant(
        name=str(said["method"]),
        seeds=int(said["seeds"]),
        reached=int(said["reached"]),
        diverged=int(said["diverged"]),
        tried=int(said["tried"]),
        settings=dict(said["settings"]),
        edges=tuple(map(str, said["edges"])),
        estimates={
            name: Estimate(found["mean"], found["low"], found["high"], tuple(found["values"]))
            for name, found in numbers.items()
        },
        medians={name: found["median"] for name, found in numbers.items() if "median" in found},
    )


# ---- in words


def headline(arena: ArenaFound) -> str:
    """Who was first most often; of one bout, its first sentence."""
    firsts = [soonest(bout) for bout in arena.bouts]
    if len(arena.bouts) == 1:
        return _to_target(arena.bouts[0])[0]
    names = [contestant.name for first in firsts for contestant in first]
    if not names:
        return f"No method reached its target in any of {len(arena.bouts)} bouts."
    most = max(map(names.count, names))
    best = [name for name in dict.fromkeys(names) if names.count(name) == most]
    who = listed(best) if len(best) <= 3 else f"{len(best)} methods"
    were = "were each" if len(best) > 1 else "was"
    among = "soonest" if all(len(first) <= 1 for first in firsts) else "among the soonest"
    return f"{who} {were} {among} at the target in {most} of {len(arena.bouts)} bouts."


def words(arena: ArenaFound, bout: BoutFound) -> list[str]:
    """A bout in paragraphs: the target, the end, the worst served; who stands where; what to be careful with."""
    watched = [name for name in dict.fromkeys((WATCHED, *arena.mine)) if name in [each.name for each in bout.methods]]
    said = [
        _to_target(bout),
        _best(bout, "accuracy", f"ends with the best personalised {bout.score.word}"),
        _best(bout, "worst_decile", "serves the worst tenth of the UEs best"),
        [_stands(bout, name) for name in watched] if len(bout.methods) > 1 else [],
        _careful(arena, bout),
    ]
    return [" ".join(sentences) for sentences in said if sentences]


def soonest(bout: BoutFound) -> list[Contestant]:
    """Who is at the target first: reached by more seeds counts before reached sooner, as a lucky seed is no answer."""
    ranked = [each for each in bout.ranked if each.reached]
    return [each for each in ranked if _late(each) == _late(ranked[0])]


def _late(contestant: Contestant) -> tuple[int, float]:
    return -contestant.reached, contestant.seconds


def _to_target(bout: BoutFound) -> list[str]:
    where = f"{bout.target} on {bout.title}"
    first = soonest(bout)
    if not first:
        return [f"No method reached {where}."]
    names, one = [each.name for each in first], first[0]
    parts = [] if math.isinf(one.seconds) else [f"after {seconds(one.seconds)} in the median"]
    parts += (
        [] if one.reached == one.seeds else [f"in {one.reached} of {one.seeds} seeds"]
    )  # few of them have no median
    who, how_many = (
        (listed(names), "both " if len(names) == 2 else "") if len(names) <= 3 else (f"{len(names)} methods", "all ")
    )
    said = [f"{who} reached {where} soonest, {how_many}{', '.join(parts)}."]
    said += [f"They are {listed(names)}."] if len(names) > 3 else []
    if len(first) == 1:
        said += _than(bout, "seconds_to_target", one.name, "sooner")
    never = [each.name for each in bout.methods if not each.reached]
    return said + ([f"Never reached by {listed(never)}."] if never else [])


def _best(bout: BoutFound, measure: str, does: str) -> list[str]:
    first = best_by(bout, measure)
    if first is None:
        return []
    name, found = first
    score = bout.score
    half = "" if found.half_width is None else f" ± {score.scale * found.half_width:{score.form}}"
    said = f"{score.scale * (found.mean or 0.0):{score.form}}{half}{score.unit}"
    return [f"{name} {does}, {said}.", *_than(bout, measure, name, "better")]


def best_by(bout: BoutFound, measure: str) -> tuple[str, Estimate] | None:
    """Who has the largest mean over seeds."""
    known = [(each.name, found) for each in bout.methods if (found := each.estimates[measure]).mean is not None]
    return max(known, key=lambda one: one[1].mean or 0.0, default=None)


def _than(bout: BoutFound, measure: str, name: str, how: str) -> list[str]:
    """Than whom that is significant."""
    of_it = [v for v in bout.compared.get(measure, ()) if name in (v.better, v.worse)]
    if not of_it:
        return []
    beaten = [v.worse for v in of_it if v.better == name and v.is_significant]
    if len(beaten) == len(of_it):
        return [f"That is significantly {how} than {'all others' if len(beaten) > 1 else beaten[0]}."]
    if not beaten:
        return [f"That is not significantly {how} than any other."]
    open_ = [v.worse if v.better == name else v.better for v in of_it if v.worse not in beaten]
    if len(beaten) <= len(open_):
        rest = listed(open_) if len(open_) <= 3 else f"the other {len(open_)}"
        return [f"It is significantly {how} than {listed(beaten)}, and not than {rest}."]
    return [f"It is significantly {how} than all but {listed(open_)}."]


def _stands(bout: BoutFound, name: str) -> str:
    """The rank of a method, and who is significantly better and worse."""
    mine = next(each for each in bout.methods if each.name == name)
    by_time = 1 + sum(_late(each) < _late(mine) for each in bout.methods)
    by_end = 1 + sum(each.accuracy > mine.accuracy for each in bout.methods)
    first = f"{_nth(by_time)} to the target" if mine.reached else "among those that never reached the target"
    said = f"{name} is {first} and {_nth(by_end)} at the end, of {len(bout.methods)}."
    return " ".join([said, *_tested(bout, name)])


def _tested(bout: BoutFound, name: str) -> list[str]:
    """Than whom a method is significantly sooner, later, better and worse."""
    said = []
    for measure, *how in (
        ("seconds_to_target", "sooner", "later"),
        ("accuracy", "better at the end", "worse at the end"),
    ):
        tests = [v for v in bout.compared.get(measure, ()) if v.is_significant]
        others = [v.worse for v in tests if v.better == name], [v.better for v in tests if v.worse == name]
        said += [f"{word} than {listed(names)}" for word, names in zip(how, others, strict=True) if names]
    if said:
        return [f"It is significantly {'; '.join(said)}."]
    return ["No difference between it and another is significant."] if any(bout.compared.values()) else []


def _nth(number: int) -> str:
    ending = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def _careful(arena: ArenaFound, bout: BoutFound) -> list[str]:
    said = []
    diverged = [f"{each.name} ({each.diverged} of {each.seeds} seeds)" for each in bout.methods if each.diverged]
    if diverged:
        said.append(f"Diverged: {listed(diverged)}; a diverged seed has an accuracy of 0.")
    if bout.missing:
        said.append(f"Failed, and not shown: {listed(bout.missing)}.")
    tried = sorted({each.tried for each in bout.methods})
    if len(tried) > 1:
        few = [f"{each.name} ({each.tried})" for each in bout.methods if each.tried != tried[-1]]
        said.append(f"Not all had {tried[-1]} settings tried: {listed(few)}.")
    edges = [f"{each.name} ({', '.join(each.edges)})" for each in bout.methods if each.edges]
    if edges:
        said.append(f"At the edge of what was searched, so perhaps better beyond it: {listed(edges)}.")
    if not arena.has_tests:
        said.append("Fewer than three seeds: no intervals and no tests, so a difference may be chance.")
    return said
