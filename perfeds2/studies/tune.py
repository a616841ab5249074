"""Which step sizes suit each algorithm?

Every algorithm is tried with every combination of the settings that are searched, first for a short simulated time; the
better third goes on three times as long, and so on up to the horizon (successive halving). What the task has by itself
goes along for comparison. What counts is the mean over simulated time of the personalised accuracy on a validation part
that is held out of the UEs' training data: the test part is never looked at. The seeds are none that an evaluation has
unless it asks for them.
"""

import itertools
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tomli_w

from perfeds2.errors import InputError
from perfeds2.files import clear_unfinished, write_text
from perfeds2.runs.crew import Assignment, Crew, StandingWatch, check_crew, crew_for, do_all
from perfeds2.runs.execute import refuse_days
from perfeds2.runs.folder import alone, claim_folder
from perfeds2.runs.live import Follower, Live, open_live
from perfeds2.runs.statistics import mean_over_time, statistic
from perfeds2.runs.trackers import trackers
from perfeds2.runs.worker import Result
from perfeds2.spec.build import check_model, recipe_of
from perfeds2.spec.names import refuse_while_loading
from perfeds2.spec.resolve import EACH, nested, put, read_toml, resolve
from perfeds2.studies.tune_space import KEPT, Search, Settings, as_read, copied, make_search, read_search

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Best:
    """What was found for an algorithm."""

    algorithm: str
    settings: Settings
    score: dict[str, Any]  # mean over the horizon of the validation accuracy, over seeds
    before: dict[str, Any] | None  # the same of the settings that were there before, if they were tried as long
    edges: tuple[str, ...]  # the settings whose best value is the smallest or largest that was tried


@dataclass(frozen=True)
class Tuning:
    """What came out of a search."""

    path: Path
    search: Search
    best: tuple[Best, ...]

    @cached_property
    def table(self) -> "pd.DataFrame":
        """A row per algorithm, rung, setting and seed."""
        import pandas as pd

        return pd.read_csv(self.path / "tune.csv")


def tune(
    base: Mapping[str, Any] | Path | str,
    search: Mapping[str, Iterable[Any]] | None = None,
    *,
    out: Path | str,
    seeds: int | None = None,
    rungs: int | None = None,
    on: str = "processes",
    workers: int | None = None,
    watch: StandingWatch | None = None,
    yes: bool = False,
    track: Any = None,
) -> Tuning:
    """Find each algorithm's settings: ``tune({"task": "digits"}, {"beta": [0.02, 0.07, 0.2]}, out="runs/tuned")``.

    The base is a spec file, or settings as ``compare`` takes them. ``search`` names learning settings and the values to
    try, of one algorithm as ``PerFedS2.beta``; without it α and β are searched, on two seeds and three rungs. A folder that holds part of this search
    is completed. ``track`` is that of ``compare``.
    """
    refuse_while_loading("tune")
    values = read_toml(Path(base)) if isinstance(base, Path | str) else nested(base)
    return run_search(
        make_search(values, search or {}, seeds=seeds, rungs=rungs),
        Path(out),
        on=on,
        workers=workers,
        watch=watch,
        yes=yes,
        followers=trackers(track, out),
    )


def run_search(
    search: Search,
    path: Path,
    *,
    on: str | Callable[[Path], Crew] = "processes",
    workers: int | None = None,
    retries: int = 2,
    watch: StandingWatch | None = None,
    yes: bool = False,
    followers: Sequence[Follower] = (),
    live: Live | None = None,
    label: str = "",
) -> Tuning:
    """Try what the folder does not have yet, rung by rung, and write what was found.

    Others see how far it is where it is ``live``, under a label: in its folder, unless it is part of something larger.
    """
    if isinstance(on, str):
        check_crew(on, workers)
    if recipe_of(search.spec) is not None:  # an own one would be made here; the GPU is for the workers
        check_model(search.spec)
        last = search.rungs - 1
        refuse_days([search.spec_of(name, search.candidates(name)[0], last) for name in search.axes], yes=yes)
    claim_folder(path, "tuning", search.to_toml(), lambda: read_search(path).to_toml(), search.spec.unwritten)
    with alone(path):
        for folder in (path, *(path / "trials").glob("*")):
            clear_unfinished(folder)
        log = path / "workers.log"
        rungs = {name: _next_rung(path, search, name) for name in search.axes}
        if any(rung is not None for rung in rungs.values()):
            crew = crew_for(search.spec.unwritten, on, workers, log)
            with nullcontext(live) if live is not None else open_live(path, "tune", followers) as shown:
                watch = watch if live is not None else shown.standing(watch)
                _climb(path, search, rungs, crew, retries, watch, partial(_shown, search, shown, label))
        if log.exists() and log.stat().st_size == 0:
            log.unlink()
        return _written(path, search)


# ---- rung by rung

Candidates = list[tuple[int, Settings]]  # numbered
Rung = tuple[int, Candidates]  # its number, and who is tried on it


def _next_rung(path: Path, search: Search, algorithm: str) -> Rung | None:
    """How far an algorithm is: the first rung on which something is missing, and all who belong there. None: through."""
    candidates = list(enumerate(search.candidates(algorithm)))
    for rung in range(search.rungs):
        scores = {number: _score(path, rung, algorithm, number, search) for number, _ in candidates}
        if None in scores.values():
            return rung, candidates
        ranked = sorted(candidates, key=lambda each: -(scores[each[0]] or 0.0))  # of equals, who was listed first
        kept, usual = ranked[: _kept(len(ranked))], search.usual(algorithm)
        if len(kept) > 2 and usual is not None and usual not in [number for number, _ in kept]:
            kept[-1] = next(each for each in ranked if each[0] == usual)  # so that one sees what tuning is worth
        candidates = sorted(kept, key=lambda each: each[0])
    return None


def _kept(count: int) -> int:
    return -(-count // KEPT)


def _climb(
    path: Path,
    search: Search,
    rungs: Mapping[str, Rung | None],
    crew: Crew,
    retries: int,
    watch: StandingWatch | None,
    show: Callable[[Assignment, str, int], Assignment],
) -> None:
    """Let every algorithm climb its rungs, none waiting for the others."""
    numbers, waiting = itertools.count(), Counter[str]()
    whose: dict[int, tuple[str, int]] = {}  # by a job's number: its algorithm and rung

    def jobs_of(algorithm: str, rung: Rung | None) -> list[Assignment]:
        jobs = [] if rung is None else _assignments(path, search, algorithm, *rung, crew, numbers)
        jobs = [show(job, algorithm, rung[0]) for job in jobs if rung is not None]
        whose.update({job.number: (algorithm, rung[0]) for job in jobs if rung is not None})
        waiting[algorithm] = len(jobs)
        return jobs

    def keep(job: Assignment, results: Sequence[Sequence[Result]]) -> list[Assignment]:
        algorithm, rung = whose[job.number]
        _save(path, rung, algorithm, job, results)
        waiting[algorithm] -= 1
        return [] if waiting[algorithm] else jobs_of(algorithm, _next_rung(path, search, algorithm))

    first = [job for name, rung in rungs.items() for job in jobs_of(name, rung)]
    total = later = 0  # runs, and those of rungs that come after the next
    for name, rung in rungs.items():
        count = len(search.candidates(name))
        for number in range(search.rungs):
            runs, count = count * len(search.seeds), _kept(count)
            total += runs
            later += runs if rung is not None and number > rung[0] else 0
    found = total - later - sum(job.runs for job in first)
    failures = do_all(first, crew, total, retries, keep, watch, found)
    if failures:
        why = f"{failures[0].label} failed: {failures[0].error.removesuffix('.')}"
        raise InputError(f"{why}; the same command with --out {path} goes on.")


def _assignments(
    path: Path, search: Search, algorithm: str, rung: int, candidates: Candidates, crew: Crew, numbers: Iterator[int]
) -> list[Assignment]:
    """What is missing of a rung, in a few jobs, so that every worker has something; a GPU gets the whole rung at once.

    Within a job timelines are shared.
    """
    if not crew.together:
        candidates = [each for each in candidates if _load(path, rung, algorithm, each[0], search) is None]
    pieces = 1 if crew.together else max(1, round(3 * crew.workers / len(search.axes)))
    jobs: list[Assignment] = []
    for part in np.array_split(np.arange(len(candidates)), min(pieces, len(candidates))):
        own = [candidates[place] for place in part]
        specs = [search.spec_of(algorithm, settings, rung) for _, settings in own]
        label = f"{algorithm}, {len(own)} settings for {search.horizons_s[rung]:.4g} s"
        points, runs = tuple(number for number, _ in own), len(own) * len(search.seeds)
        jobs.append(Assignment(next(numbers), points, runs, label, algorithm, specs, crew.together))
    return jobs


def _shown(search: Search, live: Live, label: str, job: Assignment, algorithm: str, rung: int) -> Assignment:
    """The same job, of which others see how far it is: each candidate by its settings and its time."""
    candidates, until = search.candidates(algorithm), f"{search.horizons_s[rung]:.4g} s"
    tried = [", ".join(f"{key}={value}" for key, value in candidates[number].items()) for number in job.points]
    return replace(job, live=live.place([f"{label}{each}, {until}" for each in tried]))


def _file(path: Path, rung: int, algorithm: str, number: int) -> Path:
    return path / "trials" / f"{rung + 1}-{algorithm.replace('/', '_')}" / f"{number:04}.json"


def _save(path: Path, rung: int, algorithm: str, job: Assignment, results: Sequence[Sequence[Result]]) -> None:
    for number, of_seeds in zip(job.points, results, strict=True):
        file = _file(path, rung, algorithm, number)
        file.parent.mkdir(parents=True, exist_ok=True)
        kept = {
            str(result["seed"]): {
                "mean": mean_over_time(result["algorithms"][0]["metrics"]),
                "end": mean_over_time(result["algorithms"][0]["metrics"], last=True),
            }
            for result in of_seeds
        }
        write_text(file, json.dumps(kept) + "\n")


def _load(path: Path, rung: int, algorithm: str, number: int, search: Search) -> list[dict[str, float]] | None:
    """What came out of one candidate, by seed; None if it has not been tried, or its file is damaged."""
    try:
        found = json.loads(_file(path, rung, algorithm, number).read_text(encoding="utf-8"))
        read = [{key: float(found[str(seed)][key]) for key in ("mean", "end")} for seed in search.seeds]
        most = 1 if search.metric == "accuracy" else math.inf
        return read if all(math.isfinite(value) and value <= most for each in read for value in each.values()) else None
    except (OSError, ValueError, LookupError, TypeError, ArithmeticError, RecursionError):
        return None


def _score(path: Path, rung: int, algorithm: str, number: int, search: Search) -> float | None:
    """Its mean over seeds; None if it has not been tried."""
    found = _load(path, rung, algorithm, number, search)
    return None if found is None else float(np.mean([each["mean"] for each in found]))


# ---- what was found


def load_tuning(path: Path) -> Tuning:
    """What came out of a search that is through."""
    search = read_search(path)
    if any(_next_rung(path, search, name) is not None for name in search.axes):
        raise InputError(f"{path} holds a tuning that is not through; perfeds2 tune --resume {path} goes on.")
    return Tuning(path, search, tuple(_best(path, search, name) for name in search.axes))


def _written(path: Path, search: Search) -> Tuning:
    """tune.csv, and tuned.toml: what was given, and for each algorithm what was found."""
    import pandas as pd

    table = pd.DataFrame(_rows(path, search))
    write_text(path / "tune.csv", table.to_csv(index=False, lineterminator="\n"))
    best = tuple(_best(path, search, name) for name in search.axes)
    values = copied(search.base)
    put(values, "run", "algorithms", list(search.named.values()))
    for section, key in (("run", "seeds"), ("run", "eval_every_s"), ("task", "held_out")):
        values.get(section, {}).pop(key, None)  # an evaluation has its own
    for each in best:
        for key, value in each.settings.items():
            put(values, EACH, f"{each.algorithm}.{key}", value)
    write_text(path / "tuned.toml", tomli_w.dumps(as_read(values, resolve(values))))
    return Tuning(path, search, best)


def _rows(path: Path, search: Search) -> Iterator[dict[str, Any]]:
    for name in search.axes:
        for rung, horizon_s in enumerate(search.horizons_s):
            for number, settings in enumerate(search.candidates(name)):
                for seed, found in zip(search.seeds, _load(path, rung, name, number, search) or (), strict=False):
                    row = {"algorithm": name, "number": number, "rung": rung + 1, "horizon_s": horizon_s, **settings}
                    yield row | {"seed": seed, "accuracy_mean": found["mean"], "accuracy_end": found["end"]}


def _best(path: Path, search: Search, algorithm: str) -> Best:
    last = search.rungs - 1
    candidates = list(enumerate(search.candidates(algorithm)))
    scores = {number: _score(path, last, algorithm, number, search) for number, _ in candidates}
    through = {number: score for number, score in scores.items() if score is not None}
    best = max(through, key=lambda number: through[number])  # of equals, who was listed first
    settings = candidates[best][1]
    axes, usual = search.axes[algorithm], search.usual(algorithm)
    edges = [
        key
        for key, listed in axes.items()
        if len(listed) > 1 and isinstance(listed[0], int | float) and _is_edge(settings[key], listed)
    ]
    return Best(
        algorithm,
        settings,
        _statistic(path, last, algorithm, best, search),
        _statistic(path, last, algorithm, usual, search) if usual in through else None,
        tuple(edges),
    )


def _is_edge(value: float, listed: Sequence[Any]) -> bool:
    """Whether the best may lie beyond it. Nothing lies below a step size of 0, or below one local step."""
    least = 1 if isinstance(value, int) else 0
    return value == listed[-1] or (value == listed[0] and value > least)


def _statistic(path: Path, rung: int, algorithm: str, number: int, search: Search) -> dict[str, Any]:
    return statistic([each["mean"] for each in _load(path, rung, algorithm, number, search) or ()])
