"""The settings that a tuning tries: for each algorithm all combinations of some values, on seeds of its own."""

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from perfeds2.errors import InputError
from perfeds2.spec.fields import LearningSpec, Spec
from perfeds2.spec.methods import settings_name
from perfeds2.spec.names import Named
from perfeds2.spec.resolve import EACH, place_of, put, read_toml, resolve
from perfeds2.spec.tasks import metric_of
from perfeds2.studies.grid import values_of
from perfeds2.studies.search import FACTOR

FACTORS = {"alpha": (1 / 3, 1, 3, 9, 27), "beta": (1 / 9, 1 / 3, 1, 3, 9, 27)}  # searched, of what the task has
FIRST_SEED = 1_000_000  # tuning seeds start here
TUNING_SEEDS, RUNGS = 2, 3  # unless told otherwise
EVALUATIONS = 20  # of one training
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
        return [self.spec.run.horizon_s / FACTOR**more for more in reversed(range(self.rungs))]

    @property
    def metric(self) -> str:
        """What stands for the accuracy."""
        return metric_of(self.spec) if self.spec.task.metric is not None else "accuracy"

    @property
    def named(self) -> dict[str, Named]:
        """The algorithms, by the names their settings are given under."""
        return {settings_name(named) or named.text: named for named in self.spec.algorithms}

    def candidates(self, algorithm: str) -> list[Settings]:
        axes = self.axes[algorithm]
        return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]

    def usual(self, algorithm: str) -> int | None:
        """Which candidate is what the algorithm has without tuning, if that is searched."""
        now = dict(self.spec.learning_of(algorithm)) | self.spec.method_settings(algorithm)
        same = (all(now.get(key) == value for key, value in each.items()) for each in self.candidates(algorithm))
        return next((number for number, is_usual in enumerate(same) if is_usual), None)

    def spec_of(self, algorithm: str, settings: Settings, horizon_s: float) -> Spec:
        """Return the spec of one candidate with all seeds."""
        values = copied(self.base)
        values[EACH] = copied(self.spec.methods_of(algorithm))
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

    @property
    def trainings(self) -> int:
        """How many trainings all rungs have."""
        total = 0
        for name in self.axes:
            count = len(self.candidates(name))
            for _ in range(self.rungs):
                total += count * len(self.seeds)
                count = share_kept(count)
        return total

    def to_toml(self) -> str:
        search = {name: {key: list(values) for key, values in axes.items()} for name, axes in self.axes.items()}
        own = {"own": self.spec.own} if self.spec.own else {}
        return tomli_w.dumps(
            {
                "seeds": list(self.seeds),
                "rungs": self.rungs,
                "search": search,
                "base": as_read(self.base, self.spec) | own,
            }
        )


def share_kept(count: int) -> int:
    """Return how many candidates go on."""
    return -(-count // FACTOR)


def copied(values: Mapping[str, Any]) -> dict[str, Any]:
    """Nested values of one's own; what stands in them (somebody's Task, say) is the same."""
    return {name: copied(inner) if isinstance(inner, Mapping) else inner for name, inner in values.items()}


def as_read(values: Mapping[str, Any], spec: Spec) -> dict[str, Any]:
    """What was given, as the spec has it: a flag's text becomes a number."""
    read = spec.values()
    kept = {
        section: {key: read[section][key] for key in inner if key in read[section]}
        for section, inner in values.items()
        if section != EACH
    }
    return {section: inner for section, inner in (kept | {EACH: read.get(EACH, {})}).items() if inner}


def make_search(
    values: Mapping[str, Any],
    search: Mapping[str, Iterable[Any]],
    *,
    seeds: int | None = None,
    rungs: int | None = None,
) -> Search:
    """What is to be tried, checked before anything runs."""
    seeds, rungs = TUNING_SEEDS if seeds is None else seeds, RUNGS if rungs is None else rungs
    base = copied({section: inner for section, inner in values.items() if section != "own"})
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
        now = dict(spec.learning_of(algorithm))
        asked = {key: tuple(float(f"{now[key] * each:.2g}") for each in FACTORS[key]) for key in FACTORS}
    found: dict[str, tuple[Any, ...]] = {}
    for key, given in asked.items():
        tried = dict.fromkeys(_read(spec, algorithm, key, value) for value in given)
        found[key] = tuple(sorted(tried) if all(isinstance(each, int | float) for each in tried) else tried)
    return found


def _read(spec: Spec, algorithm: str, key: str, value: Any) -> Any:
    """Return a value as a spec reads it."""
    if key in LearningSpec.model_fields:
        return resolve({"learning": {key: value}}).values()["learning"][key]
    own = {EACH: {algorithm: {key: value}}, "run": {"algorithms": spec.algorithms}}
    return resolve(own).values()[EACH][algorithm][key]


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
