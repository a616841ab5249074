"""Which step sizes suit each algorithm?

Every algorithm is tried with every combination of the settings that are searched, first for a short simulated time; the
better third goes on three times as long, and so on up to the horizon (successive halving); what the task has by itself
goes along for comparison. What counts is the mean over
simulated time of the personalised accuracy on a validation part that is held out of the UEs' training data: the test
part is never looked at. The seeds are none that an evaluation has unless it asks for them.
"""

import itertools
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tomli_w

from perfeds2.errors import InputError
from perfeds2.files import clear_unfinished, write_text
from perfeds2.learning.task import Recipe
from perfeds2.runs.crew import Assignment, Crew, StandingWatch, check_crew, crew_here, do_all, open_crew
from perfeds2.runs.execute import refuse_days
from perfeds2.runs.folder import alone, claim_folder
from perfeds2.runs.grid import values_of
from perfeds2.runs.statistics import mean_over_time, statistic
from perfeds2.runs.worker import Result
from perfeds2.spec.build import alpha_of, check_model, settings_name
from perfeds2.spec.fields import LearningSpec, Spec
from perfeds2.spec.names import Named, refuse_while_loading
from perfeds2.spec.resolve import EACH, nested, place_of, put, read_toml, resolve

if TYPE_CHECKING:
    import pandas as pd

FACTORS = {"alpha": (1 / 3, 1, 3, 9, 27), "beta": (1 / 9, 1 / 3, 1, 3, 9, 27)}  # searched, of what the task has
FIRST_SEED = 1_000_000  # tuning seeds start here
EVALUATIONS = 20  # of one training
KEPT = 3  # one of so many goes on, for so many times as long
MOST_TRIALS = 20_000
Settings = dict[str, Any]


@dataclass(frozen=True)
class Search:
    """What is tried."""

    base: dict[str, Any]  # nested values of a spec, only what was given
    spec: Spec  # … with everything filled in
    axes: dict[str, dict[str, tuple[Any, ...]]]  # by algorithm: the settings and their values
    seeds: tuple[int, ...]
    rungs: int

    @property
    def horizons_s(self) -> list[float]:
        """Of each rung; the last is the whole horizon."""
        assert self.spec.run.horizon_s is not None
        return [self.spec.run.horizon_s / KEPT**more for more in reversed(range(self.rungs))]

    @property
    def named(self) -> dict[str, Named]:
        """The algorithms, by the names their settings are given under."""
        return {settings_name(named) or named.text: named for named in self.spec.algorithms}

    def candidates(self, algorithm: str) -> list[Settings]:
        axes = self.axes[algorithm]
        return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]

    def usual(self, algorithm: str) -> int | None:
        """Which candidate is what the algorithm has without tuning, if that is searched."""
        now = dict(self.spec.learning_of(algorithm))
        same = (all(now[key] == value for key, value in each.items()) for each in self.candidates(algorithm))
        return next((number for number, is_usual in enumerate(same) if is_usual), None)

    def spec_of(self, algorithm: str, settings: Settings, rung: int) -> Spec:
        """One training of the search."""
        values, horizon_s = _copied(self.base), self.horizons_s[rung]
        values[EACH] = {name: own for name, own in values.get(EACH, {}).items() if name == algorithm}
        put(values, "task", "held_out", True)
        run = {
            "algorithms": [self.named[algorithm]],
            "seeds": list(self.seeds),
            "horizon_s": horizon_s,
            "eval_every_s": horizon_s / EVALUATIONS,
            "stop_when_diverged": True,
        }
        for key, value in run.items():
            put(values, "run", key, value)
        for key, value in settings.items():
            put(values, EACH, f"{algorithm}.{key}", value)
        return resolve(values)

    def to_toml(self) -> str:
        search = {name: {key: list(values) for key, values in axes.items()} for name, axes in self.axes.items()}
        own = {"own": self.spec.own} if self.spec.own else {}
        return tomli_w.dumps(
            {
                "seeds": list(self.seeds),
                "rungs": self.rungs,
                "search": search,
                "base": _as_read(self.base, self.spec) | own,
            }
        )


def _copied(values: Mapping[str, Any]) -> dict[str, Any]:
    """Nested values of one's own; what stands in them (somebody's Task, say) is the same."""
    return {name: _copied(inner) if isinstance(inner, Mapping) else inner for name, inner in values.items()}


def _as_read(values: Mapping[str, Any], spec: Spec) -> dict[str, Any]:
    """What was given, as the spec has it: a flag's text becomes a number."""
    read = spec.values()
    kept = {
        section: {key: read[section][key] for key in inner if key in read[section]}
        for section, inner in values.items()
        if section != EACH
    }
    return {section: inner for section, inner in (kept | {EACH: read.get(EACH, {})}).items() if inner}


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
    seeds: int = 2,
    rungs: int = 3,
    on: str = "processes",
    workers: int | None = None,
    watch: StandingWatch | None = None,
    yes: bool = False,
) -> Tuning:
    """Find each algorithm's settings: ``tune({"task": "digits"}, {"beta": [0.02, 0.07, 0.2]}, out="runs/tuned")``.

    The base is a spec file, or settings as ``compare`` takes them. ``search`` names learning settings and the values to
    try, of one algorithm as ``PerFedS2.beta``; without it α and β are searched. A folder that holds part of this search
    is completed.
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
    )


def make_search(
    values: Mapping[str, Any], search: Mapping[str, Iterable[Any]], *, seeds: int = 2, rungs: int = 3
) -> Search:
    """What is to be tried, checked before anything runs."""
    base = _copied({section: inner for section, inner in values.items() if section != "own"})
    spec = resolve(values)
    if spec.run.horizon_s is None:
        raise InputError(f"--rounds {spec.run.rounds}: tune compares in simulated time; give --horizon-s instead.")
    if not 1 <= rungs <= 6:
        raise InputError(f"--rungs must be from 1 to 6, got {rungs}.")
    if seeds < 1:
        raise InputError(f"--tuning-seeds must be at least 1, got {seeds}.")
    names = _tunable(spec)
    common: dict[str, tuple[Any, ...]] = {}
    own: dict[str, dict[str, tuple[Any, ...]]] = {}
    for name, given in search.items():
        section, key = place_of(name, "a setting that can be tuned")
        algorithm, _, key = key.rpartition(".")
        if section not in ("learning", EACH) or (algorithm and algorithm not in names):
            known = ", ".join(LearningSpec.model_fields)
            raise InputError(f"--search {name} cannot be tuned; expected one of {known}, or such as {names[0]}.beta.")
        tried = values_of(given)
        if not tried or any(value is None for value in tried):
            raise InputError(f"--search {name} is empty or has an empty value; give at least one value.")
        axes_of = own.setdefault(algorithm, {}) if algorithm else common
        if key in axes_of:
            raise InputError(f"--search {name} is given twice; put all its values into one.")
        axes_of[key] = tried
    asked = {name: common | own.get(name, {}) for name in names}
    count = sum(math.prod(map(len, (axes or FACTORS).values())) for axes in asked.values()) * seeds
    if count > MOST_TRIALS:
        raise InputError(
            f"this search has {count:,} trainings in its first rung; at most {MOST_TRIALS:,} are possible."
        )
    axes = {name: _values(spec, name, of_name) for name, of_name in asked.items()}
    return Search(base, spec, axes, tuple(FIRST_SEED + number for number in range(seeds)), rungs)


def _tunable(spec: Spec) -> list[str]:
    """The algorithms' names; refuses one that takes no settings."""
    names: list[str] = []
    for named in spec.algorithms:
        name = settings_name(named)
        if name is None:
            raise InputError(
                f"--algorithms {named} brings its own settings, so nothing of it can be tuned; leave it out."
            )
        if name in names:
            raise InputError(f"--algorithms has {name} twice; give each its own name.")
        names.append(name)
    return names


def _values(spec: Spec, algorithm: str, asked: Mapping[str, tuple[Any, ...]]) -> dict[str, tuple[Any, ...]]:
    """The values to try, as a spec reads them; around what the algorithm has now where nothing was asked."""
    if not asked:
        now = {"alpha": alpha_of(spec, algorithm).value, "beta": spec.learning_of(algorithm).beta}
        asked = {key: tuple(float(f"{now[key] * each:.2g}") for each in FACTORS[key]) for key in FACTORS}
    found: dict[str, tuple[Any, ...]] = {}
    for key, given in asked.items():
        tried = dict.fromkeys(resolve({"learning": {key: value}}).values()["learning"][key] for value in given)
        found[key] = tuple(sorted(tried) if all(isinstance(each, int | float) for each in tried) else tried)
    return found


def run_search(
    search: Search,
    path: Path,
    *,
    on: str | Callable[[Path], Crew] = "processes",
    workers: int | None = None,
    retries: int = 2,
    watch: StandingWatch | None = None,
    yes: bool = False,
) -> Tuning:
    """Try what the folder does not have yet, rung by rung, and write what was found."""
    if isinstance(on, str):
        check_crew(on, workers)
    if isinstance(search.spec.task.name.value, Recipe):  # an own one would be made here; the GPU is for the workers
        check_model(search.spec)
        last = search.rungs - 1
        refuse_days([search.spec_of(name, search.candidates(name)[0], last) for name in search.axes], yes=yes)
    claim_folder(path, "tuning", search.to_toml(), lambda: read_search(path).to_toml(), search.spec.unwritten)
    with alone(path):
        for folder in (path, *(path / "trials").glob("*")):
            clear_unfinished(folder)
        log = path / "workers.log"
        standings = {name: _standing(path, search, name) for name in search.axes}
        if any(standing is not None for standing in standings.values()):
            _climb(path, search, standings, _crew(search, on, workers, log), retries, watch)
        if log.exists() and log.stat().st_size == 0:
            log.unlink()
        return _written(path, search)


def _crew(search: Search, on: str | Callable[[Path], Crew], workers: int | None, log: Path) -> Crew:
    """Who does it. What is written down nowhere cannot be told to another process, so it is done in this one."""
    if search.spec.unwritten:
        return crew_here()
    return open_crew(on, workers, log) if isinstance(on, str) else on(log)


def read_search(path: Path) -> Search:
    """What a folder was started with."""
    known = path / "tune.toml"
    if not known.exists():
        raise InputError(f"{path} holds no tuning (no tune.toml); give the folder of one that was started.")
    values = read_toml(known)
    try:
        asked = {f"{name}.{key}": listed for name, axes in values["search"].items() for key, listed in axes.items()}
        base, seeds, rungs = dict(values["base"]), len(values["seeds"]), int(values["rungs"])
    except (LookupError, AttributeError, TypeError, ValueError):
        raise InputError(f"{known} is not what tune writes; start anew in another folder.") from None
    return make_search(base, asked, seeds=seeds, rungs=rungs)


# ---- rung by rung

Candidates = list[tuple[int, Settings]]  # numbered
Standing = tuple[int, Candidates]  # a rung, and who is tried on it


def _standing(path: Path, search: Search, algorithm: str) -> Standing | None:
    """How far an algorithm is: the first rung on which something is missing, and all who belong there. None: through."""
    candidates = list(enumerate(search.candidates(algorithm)))
    for rung in range(search.rungs):
        scores = {number: _score(path, rung, algorithm, number, search.seeds) for number, _ in candidates}
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
    standings: Mapping[str, Standing | None],
    crew: Crew,
    retries: int,
    watch: StandingWatch | None,
) -> None:
    """Let every algorithm climb its rungs, none waiting for the others."""
    numbers, waiting = itertools.count(), Counter[str]()

    def jobs_of(algorithm: str, standing: Standing | None) -> list[Assignment]:
        jobs = [] if standing is None else _assignments(path, search, algorithm, *standing, crew, numbers)
        waiting[algorithm] = len(jobs)
        return jobs

    def keep(job: Assignment, results: Sequence[Sequence[Result]]) -> list[Assignment]:
        algorithm = job.shape
        rung = next(rung for rung, each in enumerate(search.horizons_s) if each == job.specs[0].run.horizon_s)
        _save(path, rung, job, results)
        waiting[algorithm] -= 1
        return [] if waiting[algorithm] else jobs_of(algorithm, _standing(path, search, algorithm))

    first = [job for name, standing in standings.items() for job in jobs_of(name, standing)]
    total = to_do = 0
    for name, standing in standings.items():
        count = len(search.candidates(name))
        for rung in range(search.rungs):
            total += count * len(search.seeds)
            to_do += count * len(search.seeds) if standing is not None and rung > standing[0] else 0
            count = _kept(count)
    found = total - to_do - sum(job.runs for job in first)
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
        candidates = [each for each in candidates if _load(path, rung, algorithm, each[0], search.seeds) is None]
    pieces = 1 if crew.together else max(1, round(3 * crew.workers / len(search.axes)))
    jobs: list[Assignment] = []
    for part in np.array_split(np.arange(len(candidates)), min(pieces, len(candidates))):
        own = [candidates[place] for place in part]
        specs = [search.spec_of(algorithm, settings, rung) for _, settings in own]
        label = f"{algorithm}, {len(own)} settings for {search.horizons_s[rung]:.4g} s"
        points, runs = tuple(number for number, _ in own), len(own) * len(search.seeds)
        jobs.append(Assignment(next(numbers), points, runs, label, algorithm, specs, crew.together))
    return jobs


def _file(path: Path, rung: int, algorithm: str, number: int) -> Path:
    return path / "trials" / f"{rung + 1}-{algorithm.replace('/', '_')}" / f"{number:04}.json"


def _save(path: Path, rung: int, job: Assignment, results: Sequence[Sequence[Result]]) -> None:
    for number, of_seeds in zip(job.points, results, strict=True):
        file = _file(path, rung, job.shape, number)
        file.parent.mkdir(parents=True, exist_ok=True)
        kept = {
            str(result["seed"]): {
                "mean": mean_over_time(result["algorithms"][0]["metrics"]),
                "end": _number(result["algorithms"][0]["metrics"][-1]["test_accuracy_personal"]),
            }
            for result in of_seeds
        }
        write_text(file, json.dumps(kept) + "\n")


def _number(value: float) -> float:
    return value if math.isfinite(value) else 0.0  # diverged


def _load(path: Path, rung: int, algorithm: str, number: int, seeds: Sequence[int]) -> list[dict[str, float]] | None:
    """What came out of one candidate, by seed; None if it has not been tried, or its file is damaged."""
    try:
        found = json.loads(_file(path, rung, algorithm, number).read_text(encoding="utf-8"))
        read = [{key: float(found[str(seed)][key]) for key in ("mean", "end")} for seed in seeds]
        return read if all(0 <= share <= 1 for each in read for share in each.values()) else None
    except (OSError, ValueError, LookupError, TypeError, ArithmeticError, RecursionError):
        return None


def _score(path: Path, rung: int, algorithm: str, number: int, seeds: Sequence[int]) -> float | None:
    """Its mean over seeds; None if it has not been tried."""
    found = _load(path, rung, algorithm, number, seeds)
    return None if found is None else float(np.mean([each["mean"] for each in found]))


# ---- what was found


def _written(path: Path, search: Search) -> Tuning:
    """tune.csv, and tuned.toml: what was given, and for each algorithm what was found."""
    import pandas as pd

    table = pd.DataFrame(_rows(path, search))
    write_text(path / "tune.csv", table.to_csv(index=False, lineterminator="\n"))
    best = tuple(_best(path, search, name) for name in search.axes)
    values = _copied(search.base)
    put(values, "run", "algorithms", list(search.named.values()))
    for section, key in (("run", "seeds"), ("run", "eval_every_s"), ("task", "held_out")):
        values.get(section, {}).pop(key, None)  # an evaluation has its own
    for each in best:
        for key, value in each.settings.items():
            put(values, EACH, f"{each.algorithm}.{key}", value)
    write_text(path / "tuned.toml", tomli_w.dumps(_as_read(values, resolve(values))))
    return Tuning(path, search, best)


def _rows(path: Path, search: Search) -> Iterator[dict[str, Any]]:
    for name in search.axes:
        for rung, horizon_s in enumerate(search.horizons_s):
            for number, settings in enumerate(search.candidates(name)):
                for seed, found in zip(search.seeds, _load(path, rung, name, number, search.seeds) or (), strict=False):
                    row = {"algorithm": name, "number": number, "rung": rung + 1, "horizon_s": horizon_s, **settings}
                    yield row | {"seed": seed, "accuracy_mean": found["mean"], "accuracy_end": found["end"]}


def _best(path: Path, search: Search, algorithm: str) -> Best:
    last, seeds = search.rungs - 1, search.seeds
    candidates = list(enumerate(search.candidates(algorithm)))
    scores = {number: _score(path, last, algorithm, number, seeds) for number, _ in candidates}
    through = {number: score for number, score in scores.items() if score is not None}
    best = max(through, key=lambda number: through[number])  # of equals, who was listed first
    settings = candidates[best][1]
    axes, usual = search.axes[algorithm], search.usual(algorithm)
    edges = [
        key
        for key, listed in axes.items()
        if len(listed) > 2 and isinstance(listed[0], int | float) and _is_edge(settings[key], listed)
    ]
    return Best(
        algorithm,
        settings,
        _statistic(path, last, algorithm, best, seeds),
        _statistic(path, last, algorithm, usual, seeds) if usual in through else None,
        tuple(edges),
    )


def _is_edge(value: float, listed: Sequence[Any]) -> bool:
    """Whether there are values beyond it: below a step size of 0, or one local step, there are none."""
    return value == listed[-1] or (value == listed[0] and value > isinstance(value, int))


def _statistic(path: Path, rung: int, algorithm: str, number: int, seeds: Sequence[int]) -> dict[str, Any]:
    return statistic([each["mean"] for each in _load(path, rung, algorithm, number, seeds) or ()])
