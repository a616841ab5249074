"""Define the candidates of a tuning: for each algorithm all combinations of values, on separate seeds."""

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from perfeds2.errors import InputError, refuse_twice
from perfeds2.runs.folder import TUNING
from perfeds2.runs.session import reading
from perfeds2.spec.fields import LearningSpec, Spec
from perfeds2.spec.methods import settings_name
from perfeds2.spec.names import Named, Values
from perfeds2.spec.resolve import EACH, place_of, put, resolve
from perfeds2.spec.tasks import metric_of
from perfeds2.studies.grid import AxisValues, Listed, axis_values, copied, own_files, recorded, without_recorded
from perfeds2.studies.search import FACTOR, RUNGS, TUNING_SEEDS

FACTORS = {"alpha": (1 / 3, 1, 3, 9, 27), "beta": (1 / 9, 1 / 3, 1, 3, 9, 27)}  # multiples of the current values
FIRST_SEED = 1_000_000  # first tuning seed
EVALUATIONS = 20  # per training
MOST_TRIALS = 20_000
Settings = dict[str, Any]


@dataclass(frozen=True)
class Search:
    """The candidates, seeds and rungs of a tuning."""

    base: Values  # nested values of a spec, as given
    spec: Spec  # resolved
    named: dict[str, Named]  # algorithms by their names in settings
    axes: dict[str, dict[str, AxisValues]]  # values by algorithm and setting
    seeds: tuple[int, ...]
    rungs: int

    @property
    def unwritten(self) -> list[str]:
        """Return the names of objects that were given from Python and cannot be saved."""
        return self.spec.unwritten

    @property
    def horizons_s(self) -> list[float]:
        """Return the horizon of each rung; the last is the whole horizon."""
        assert self.spec.run.horizon_s is not None
        return [self.spec.run.horizon_s / FACTOR**more for more in reversed(range(self.rungs))]

    @property
    def metric(self) -> str:
        """Return the name of the metric that is reported as accuracy."""
        return metric_of(self.spec) if self.spec.task.metric is not None else "accuracy"

    def candidates(self, algorithm: str) -> list[Settings]:
        axes = self.axes[algorithm]
        return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]

    def usual(self, algorithm: str) -> int | None:
        """Return the index of the candidate with the untuned settings; None if they are not searched."""
        now = dict(self.spec.learning_of(algorithm)) | self.spec.method_settings(algorithm)
        same = (all(now.get(key) == value for key, value in each.items()) for each in self.candidates(algorithm))
        return next((number for number, is_usual in enumerate(same) if is_usual), None)

    def spec_of(self, algorithm: str, settings: Settings, horizon_s: float) -> Spec:
        """Return the spec of one candidate with all seeds."""
        run = {"seeds": list(self.seeds), "horizon_s": horizon_s, "eval_every_s": horizon_s / EVALUATIONS}
        values = one_method(
            self.base, self.spec, algorithm, self.named[algorithm], settings, stop_when_diverged=True, **run
        )
        put(values, "task", "held_out", True)
        return resolve(values)

    @property
    def trainings(self) -> int:
        """Return the number of trainings of all rungs."""
        total = 0
        for name in self.axes:
            count = len(self.candidates(name))
            for _ in range(self.rungs):
                total += count * len(self.seeds)
                count = share_kept(count)
        return total

    def to_toml(self) -> str:
        search = {name: {key: list(values) for key, values in axes.items()} for name, axes in self.axes.items()}
        base = recorded(self.base, self.spec) | own_files([self.spec])
        return tomli_w.dumps({"seeds": list(self.seeds), "rungs": self.rungs, "search": search, "base": base})


def share_kept(count: int) -> int:
    """Return how many candidates continue to the next rung."""
    return -(-count // FACTOR)


def one_method(values: Values, spec: Spec, name: str, named: Named, settings: Settings, **run: object) -> Values:
    """Return nested values with only one of the methods of a spec, its settings, and the given values of [run]."""
    own = copied(values)
    own[EACH] = copied(spec.methods_of(name))
    for key, value in {"algorithms": [named], **run}.items():
        put(own, "run", key, value)
    for key, value in settings.items():
        put(own, EACH, f"{name}.{key}", value)
    return own


def make_search(values: Values, search: Listed, *, seeds: int = TUNING_SEEDS, rungs: int = RUNGS) -> Search:
    """Plan a search, and check it before anything runs.

    Args:
        values: Nested values of a spec.
        search: Values to try by setting or ALGORITHM.setting; empty searches α and β.
        seeds: Number of tuning seeds.
        rungs: Number of rungs.

    Raises:
        InputError: If anything is invalid or the search is too large.
    """
    base = without_recorded(copied({section: inner for section, inner in values.items() if section != "own"}))
    spec = resolve(values)
    if spec.run.horizon_s is None:
        raise InputError(f"--rounds {spec.run.rounds}: tune compares in simulated time; give --horizon-s instead.")
    if not 1 <= rungs <= 6:
        raise InputError(f"--rungs must be from 1 to 6, got {rungs}.")
    if seeds < 1:
        raise InputError(f"--tuning-seeds must be at least 1, got {seeds}.")
    named = _tunable(spec)
    common: dict[str, AxisValues] = {}
    own: dict[str, dict[str, AxisValues]] = {}
    for name, given in search.items():
        section, key = place_of(name, "a setting that can be tuned")
        algorithm, _, key = key.rpartition(".")
        if section not in ("learning", EACH) or (algorithm and algorithm not in named):
            known = ", ".join(LearningSpec.model_fields)
            raise InputError(
                f"--search {name} cannot be tuned; expected one of {known}, or such as {next(iter(named))}.beta."
            )
        axes_of = own.setdefault(algorithm, {}) if algorithm else common
        if key in axes_of:
            raise InputError(f"--search {name} is given twice; put all its values into one.")
        axes_of[key] = axis_values(f"--search {name}", given)
    asked = {name: common | own.get(name, {}) for name in named}
    count = sum(math.prod(map(len, (axes or FACTORS).values())) for axes in asked.values()) * seeds
    if count > MOST_TRIALS:
        raise InputError(
            f"this search has {count:,} trainings in its first rung; at most {MOST_TRIALS:,} are possible."
        )
    axes = {name: _values(spec, name, of_name) for name, of_name in asked.items()}
    return Search(base, spec, named, axes, tuple(FIRST_SEED + number for number in range(seeds)), rungs)


def _tunable(spec: Spec) -> dict[str, Named]:
    """Return the algorithms by name; refuse one that takes no settings."""
    found: dict[str, Named] = {}
    for named in spec.algorithms:
        name = settings_name(named)
        if name is None:
            raise InputError(
                f"--algorithms {named} brings its own settings, so nothing of it can be tuned; leave it out."
            )
        refuse_twice("--algorithms has", [*found, name])
        found[name] = named
    return found


def _values(spec: Spec, algorithm: str, asked: Mapping[str, AxisValues]) -> dict[str, AxisValues]:
    """Return the values to try as a spec reads them, by default around the algorithm's current ones."""
    if not asked:
        now = dict(spec.learning_of(algorithm))
        asked = {key: tuple(float(f"{now[key] * each:.2g}") for each in FACTORS[key]) for key in FACTORS}
    found: dict[str, AxisValues] = {}
    for key, given in asked.items():
        tried = dict.fromkeys(_read(spec, algorithm, key, value) for value in given)
        found[key] = tuple(sorted(tried) if all(isinstance(each, int | float) for each in tried) else tried)
    return found


def _read(spec: Spec, algorithm: str, key: str, value: Any) -> Any:
    """Return a value as a spec reads it."""
    run = {"algorithms": spec.algorithms}
    if key in LearningSpec.model_fields:
        return resolve({"learning": {key: value}, "run": run}).values()["learning"][key]
    return resolve({EACH: {algorithm: {key: value}}, "run": run}).values()[EACH][algorithm][key]


def read_search(path: Path) -> Search:
    """Read a search from its folder."""
    with reading(path, TUNING) as values:
        asked = {f"{name}.{key}": listed for name, axes in values["search"].items() for key, listed in axes.items()}
        return make_search(dict(values["base"]), asked, seeds=len(values["seeds"]), rungs=int(values["rungs"]))
