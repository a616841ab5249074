"""Tune the step sizes of each algorithm.

Every algorithm is tried with every combination of the settings to search, first for a short simulated time; the
better third continues for three times as long, and so on up to the horizon. The task's own settings are kept for
comparison. The score is the mean over simulated time of the personalised accuracy on validation data held out of the
UEs' training data; test data are never used. Tuning seeds differ from those of an evaluation unless it asks for them.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tomli_w

from perfeds2.errors import InputError
from perfeds2.files import read_table, write_text
from perfeds2.learning.metrics import NEW_UES_METRICS
from perfeds2.runs.folder import TUNING
from perfeds2.runs.pool import check_work
from perfeds2.runs.session import Base, Execution, Session, base_values
from perfeds2.runs.statistics import Statistic, mean_over_time, statistic
from perfeds2.runs.store import TRAININGS, Result, Row, Store
from perfeds2.runs.training import Training, trainings_of
from perfeds2.spec.resolve import EACH, put, resolve
from perfeds2.studies.grid import AxisValues, Listed, as_read, copied
from perfeds2.studies.search import RUNGS, TUNING_SEEDS, Rung, successive_halving
from perfeds2.studies.tune_space import Search, Settings, make_search, read_search, share_kept

if TYPE_CHECKING:
    import pandas as pd

Tried = tuple[str, int]  # an algorithm and the index of one of its candidates
Run = Callable[[Sequence[Training]], Sequence[Result]]


@dataclass(frozen=True)
class SeedScore:
    """The validation accuracy of one training, or the metric that replaces it."""

    mean: float  # over simulated time
    end: float
    new_ues: Row  # accuracies of UEs that never trained, at the end, by name; empty if there are none


Scores = dict[float, dict[Tried, list[SeedScore]]]  # a score per seed, by horizon of the rung


@dataclass(frozen=True)
class Best:
    """The best settings found for an algorithm."""

    algorithm: str
    settings: Settings
    score: Statistic  # statistic over seeds of the mean validation accuracy over the horizon
    before: Statistic | None  # the same for the settings before tuning, if they reached the last rung
    edges: tuple[str, ...]  # settings whose best value is the smallest or largest tried
    new_ues: dict[str, Statistic]  # accuracies of UEs that never trained, at the end, by name; empty if there are none


@dataclass(frozen=True)
class Tuning:
    """The results of a search."""

    path: Path
    search: Search
    best: tuple[Best, ...]

    @cached_property
    def table(self) -> "pd.DataFrame":
        """A table with one row per algorithm, rung, candidate and seed."""
        return read_table(self.path / "tune.csv")


def tune(
    base: Base,
    search: Listed | None = None,
    *,
    out: Path | str,
    seeds: int = TUNING_SEEDS,
    rungs: int = RUNGS,
    **execution: Any,
) -> Tuning:
    """Find each algorithm's best settings: ``tune({"task": "digits"}, {"beta": [0.02, 0.07, 0.2]}, out="runs/tuned")``.

    Args:
        base: A spec file, or settings as ``compare`` takes them.
        search: Values to try by learning setting, or by ``PerFedS2.beta`` for one algorithm; by default of α and β.
        out: The folder of the results. A search that was interrupted there is resumed.
        seeds: Number of tuning seeds.
        rungs: Number of successive-halving rungs, from 1 to 6.
        **execution: ``workers``, ``retries``, ``reuse``, ``watch`` and ``yes`` of
        ``Execution.from_python``.

    Returns:
        The best settings of each algorithm, which are also in ``tuned.toml``, and a table of all scores.

    Raises:
        InputError: If a setting is invalid, a training fails, or the folder holds something else.

    Example:
        >>> found = tune({"task": "digits"}, {"beta": [0.02, 0.07, 0.2]}, out="runs/tuned")  # doctest: +SKIP
        >>> found.table  # doctest: +SKIP
    """
    how = Execution.from_python("tune", **execution)
    return run_search(make_search(base_values(base), search or {}, seeds=seeds, rungs=rungs), Path(out), how)


def run_search(search: Search, path: Path, how: Execution = Execution()) -> Tuning:  # noqa: B008 (frozen)
    """Train what the folder lacks, rung by rung, and write the results."""
    check_work(longest_trainings(search), how.workers, yes=how.yes)
    with Session.open(TUNING, search, path, how, read_search, search.trainings) as session:
        return _written(path, search, climb(search, partial(train_or_refuse, session=session)))


def longest_trainings(search: Search) -> list[Training]:
    """Return one candidate of each algorithm on the last rung, from which the work is estimated."""
    last_s = search.horizons_s[-1]
    specs = [search.spec_of(name, search.candidates(name)[0], last_s) for name in search.axes]
    return [one for spec in specs for one in trainings_of(spec)]


def train_or_refuse(trainings: Sequence[Training], session: Session) -> list[Result]:
    """Train, and raise InputError with the command to continue if a training fails.

    Without its score the next rung cannot be selected.
    """
    results = session.train(trainings)
    if results.failures:
        why = f"{results.failures[0].label} failed: {results.failures[0].error.removesuffix('.')}"
        raise InputError(f"{why}; run the same command with --out {session.path} to continue.")
    return [results[one] for one in trainings]


def climb(search: Search, run: Run, label: str = "") -> Scores:
    """Run all rungs for every algorithm, and return all scores."""
    scores: Scores = {}
    candidates = {name: search.candidates(name) for name in search.axes}

    def train(tried: Sequence[Tried], rung: Rung) -> None:
        trainings: list[Training] = []
        for name, number in tried:
            settings = candidates[name][number]
            said = ", ".join(f"{key}={value}" for key, value in settings.items())
            spec = search.spec_of(name, settings, rung.horizon_s)
            trainings += trainings_of(spec, f"{label}{said}, {rung.horizon_s:.4g} s")
        results = iter(run(trainings))
        scores[rung.horizon_s] = {each: [_score(next(results)) for _ in rung.seeds] for each in tried}

    def better_third(tried: Sequence[Tried], rung: Rung) -> list[Tried]:
        found: list[Tried] = []
        for name in search.axes:
            own = [each for each in tried if each[0] == name]
            ranked = sorted(own, key=lambda each: -mean_score(scores[rung.horizon_s][each]))  # ties: the first listed
            kept, usual = ranked[: share_kept(len(ranked))], search.usual(name)
            if len(kept) > 2 and usual is not None and (name, usual) not in kept and (name, usual) in ranked:
                kept[-1] = (name, usual)  # keep the untuned settings for comparison
            found += sorted(kept)
        return found

    every = [(name, number) for name in search.axes for number in range(len(candidates[name]))]
    rungs = [Rung(search.seeds, horizon_s) for horizon_s in search.horizons_s]
    successive_halving(every, rungs, train, better_third)
    return scores


def _score(result: Result) -> SeedScore:
    end = result.rows[-1]
    new = {name: end[name] for name in NEW_UES_METRICS if name in end}
    return SeedScore(mean_over_time(result.rows), mean_over_time(result.rows, last=True), new)


def mean_score(scores: Sequence[SeedScore]) -> float:
    return float(np.mean([each.mean for each in scores]))


# ---- results


def load_tuning(path: Path) -> Tuning:
    """Load the results of a finished search."""
    search, store = read_search(path), Store(path / TRAININGS)

    def read(trainings: Sequence[Training]) -> list[Result]:
        found = [result for one in trainings if (result := store.get(one.key)) is not None]
        if len(found) < len(trainings):
            raise InputError(f"{path} holds an unfinished tuning; continue with perfeds2 tune --resume {path}.")
        return found

    return Tuning(path, search, best_of(search, climb(search, read)))


def _written(path: Path, search: Search, scores: Scores) -> Tuning:
    """Write tune.csv, and tuned.toml with the given values and the settings found for each algorithm."""
    import pandas as pd

    table = pd.DataFrame(_rows(search, scores))
    write_text(path / "tune.csv", table.to_csv(index=False, lineterminator="\n"))
    best = best_of(search, scores)
    values = copied(search.base)
    put(values, "run", "algorithms", list(search.named.values()))
    for section, key in (("run", "seeds"), ("run", "eval_every_s"), ("task", "held_out")):
        values.get(section, {}).pop(key, None)  # an evaluation has its own values
    for each in best:
        for key, value in each.settings.items():
            put(values, EACH, f"{each.algorithm}.{key}", value)
    write_text(path / "tuned.toml", tomli_w.dumps(as_read(values, resolve(values))))
    return Tuning(path, search, best)


def _rows(search: Search, scores: Scores) -> Iterator[Row]:
    for name in search.axes:
        for rung, horizon_s in enumerate(search.horizons_s):
            for number, settings in enumerate(search.candidates(name)):
                for seed, found in zip(search.seeds, scores[horizon_s].get((name, number), ()), strict=False):
                    row = {"algorithm": name, "number": number, "rung": rung + 1, "horizon_s": horizon_s, **settings}
                    yield row | {"seed": seed, "accuracy_mean": found.mean, "accuracy_end": found.end, **found.new_ues}


def best_of(search: Search, scores: Scores) -> tuple[Best, ...]:
    """Return the best settings of each algorithm, by its scores over the whole horizon."""
    found, last = list[Best](), scores[search.horizons_s[-1]]
    for name, axes in search.axes.items():
        own = {number: of_seeds for (algorithm, number), of_seeds in last.items() if algorithm == name}
        number = max(own, key=lambda number: mean_score(own[number]))  # ties: the first listed
        settings, usual = search.candidates(name)[number], search.usual(name)
        score, *before = (statistic([each.mean for each in own[at]]) for at in (number, usual) if at in own)
        edges = tuple(key for key, listed in axes.items() if _is_edge(settings[key], listed))
        new = {key: statistic([each.new_ues[key] for each in own[number]]) for key in own[number][0].new_ues}
        found.append(Best(name, settings, score, before[0] if before else None, edges, new))
    return tuple(found)


def _is_edge(value: object, listed: AxisValues) -> bool:
    """Return whether a better value may lie beyond; nothing lies below a step size of 0 or one local step."""
    if len(listed) == 1 or not isinstance(value, int | float):
        return False
    least = 1 if isinstance(value, int) else 0
    return value == listed[-1] or (value == listed[0] and value > least)
