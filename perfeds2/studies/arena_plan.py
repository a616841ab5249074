"""Plan an arena: its methods, tasks and cells, and how much each method is tuned.

In a bout (one task on one cell) all methods have the same cell, fading, data, initial weights and seeds. They are
tuned with the same number of settings, on separate seeds and held-out data.
"""

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import tomli_w

from perfeds2.errors import InputError, refuse_twice
from perfeds2.learning.methods import BASELINES
from perfeds2.runs.folder import ARENA
from perfeds2.runs.session import reading
from perfeds2.spec.fields import SECTIONS, Spec
from perfeds2.spec.methods import method_of, name_in_tables, settings_name
from perfeds2.spec.names import Named, Values
from perfeds2.spec.resolve import EACH, nested, place_of, put, read_toml, resolve, validated
from perfeds2.spec.values import ALGORITHM, CELL, read_list
from perfeds2.studies.figure import merged
from perfeds2.studies.grid import AxisValues, Listed, axis_values, copied, own_files, recorded
from perfeds2.studies.search import RUNGS, TUNING_SEEDS
from perfeds2.studies.tune_space import Search, Settings, make_search, one_method

USUAL = (  # methods compared by default
    *("PerFedS2", "FedAvgS2", "FedAvg-SYN", "FedBuff", "FedAsync", "CA2FL"),
    *("FADAS", "FedAdam", "SCAFFOLD", "pFedMe", "Ditto", "FedRep"),
    *BASELINES,
)
TRIES = 40  # settings tried per method
LOCAL_STEPS = (1, 5)  # multiples of the current number of local steps that are tried
MOST_TRIES = 400
STEP = 3.0  # factor from one value to the next, unless there are many
A_CELLS_OWN = tuple(section for section in SECTIONS if section not in ("task", "run"))


@dataclass(frozen=True)
class Bout:
    """One task on one cell."""

    task: str
    cell: str
    values: Values  # nested values of a spec
    spec: Spec  # resolved, with all methods and all seeds
    search: Search | None  # search over the methods that can be tuned; None if nothing is

    @property
    def methods(self) -> dict[str, Named]:
        """Return the methods by name."""
        return {name_in_tables(named): named for named in self.spec.algorithms}

    def spec_of(self, method: str, settings: Settings) -> Spec:
        """Return the spec of one method with all seeds, in the settings found for it."""
        return resolve(one_method(self.values, self.spec, method, self.methods[method], settings))


@dataclass(frozen=True)
class ArenaPlan:
    """Everything an arena runs."""

    base: Values  # nested values of a spec, as given
    tasks: AxisValues  # as given: names, or objects from Python
    cells: dict[str, Values]  # by name: overrides of the base
    methods: tuple[Named, ...]
    tries: int  # settings tried per method; 0 tunes nothing
    tuning_seeds: int
    rungs: int
    asked: dict[str, AxisValues]  # values by METHOD.setting that replace the default search
    suite: str = ""  # the benchmark it belongs to

    @cached_property
    def bouts(self) -> tuple[Bout, ...]:
        return tuple(self._bout(task, cell) for task in self.tasks for cell in self.cells)

    @property
    def seeds(self) -> tuple[int, ...]:
        return self.bouts[0].spec.run.seeds

    @property
    def trainings(self) -> int:
        tuning = sum(bout.search.trainings for bout in self.bouts if bout.search is not None)
        return tuning + sum(len(bout.methods) * len(self.seeds) for bout in self.bouts)

    @property
    def unwritten(self) -> list[str]:
        """Return the names of objects that were given from Python and cannot be saved."""
        return [text for bout in self.bouts for text in bout.spec.unwritten]

    def _bout(self, task: object, cell: str) -> Bout:
        chosen = {"task": {"name": task}, "run": {"algorithms": list(self.methods)}}
        values = merged(copied(self.base), chosen, self.cells[cell])
        spec = resolve(values)
        if spec.run.horizon_s is None:
            raise InputError(
                f"--rounds {spec.run.rounds}: an arena compares over simulated time; give --horizon-s instead."
            )
        return Bout(spec.task.name.label, cell, values, spec, self._search(values, spec))

    def _search(self, values: Values, spec: Spec) -> Search | None:
        tuned = {name: named for named in self.methods if (name := settings_name(named)) is not None and axes_of(named)}
        if not self.tries or not tuned:
            return None
        own = copied(values)
        put(own, "run", "algorithms", list(tuned.values()))
        replaced = {key.rpartition(".")[0] for key in self.asked}
        for name in replaced - tuned.keys():
            raise InputError(f"--search is for {name}, which does not take part or has fixed settings.")
        usual = {
            f"{name}.{key}": tried
            for name, named in tuned.items()
            if name not in replaced
            for key, tried in tried_values(spec, named, self.tries).items()
        }
        return make_search(own, usual | self.asked, seeds=self.tuning_seeds, rungs=self.rungs)

    def to_toml(self) -> str:
        base = recorded(self.base, validated(Spec, self.base).with_(methods=self.bouts[0].spec.methods))
        return tomli_w.dumps(
            {
                **({"suite": self.suite} if self.suite else {}),
                "tasks": [bout.spec.task.name.text for bout in self.bouts][:: len(self.cells)],
                "methods": [named.text for named in self.methods],
                "tries": self.tries,
                "tuning_seeds": self.tuning_seeds,
                "rungs": self.rungs,
                "search": {name: list(values) for name, values in self.asked.items()},
                "cells": self.cells,
                "base": base | own_files(bout.spec for bout in self.bouts),
            }
        )


# ---- tuning


def tried_values(spec: Spec, named: Named, tries: int) -> dict[str, tuple[float, ...]]:
    """Return the values to try of a method's settings, ``tries`` combinations in all.

    Values lie around the current one, with more above it than below. Half of the combinations take five times as many
    local steps, unless ``tries`` is odd.
    """
    name, axes = name_in_tables(named), axes_of(named)
    found = method_of(named)
    several = () if found is not None and found[1].mode == "none" else LOCAL_STEPS[1 : 2 - tries % 2]
    steps = tuple(spec.learning_of(name).local_steps * each for each in (1, *several))
    counts = _counts(tries // len(steps), len(axes))
    shares = (2 / 5, 1 / 4, 1 / 4)  # below the current value; few for α, which is short in Table I for personal steps
    return {
        key: _around(_now(spec, name, key, usual), count, share)
        for (key, usual), count, share in zip(axes.items(), counts, shares, strict=False)
    } | {"local_steps": steps}


def axes_of(named: Named) -> dict[str, float | None]:
    """Return the settings of a method to search, and the centre value if the spec has none.

    A method declares them as ``search``; for all others they are β, and α if the evaluation uses it.
    """
    found = method_of(named)
    if found is None:
        return {}
    make: Any = found[1].make
    if hasattr(make, "search"):
        return make.search
    keeps_its_own = hasattr(make, "personal")  # own models, evaluated instead of a personal step
    takes_alpha = not keeps_its_own or "alpha" in inspect.signature(make).parameters
    return {"beta": None, "alpha": None} if takes_alpha else {"beta": None}


def _now(spec: Spec, method: str, key: str, usual: float | None) -> float:
    now = (dict(spec.learning_of(method)) | spec.method_settings(method)).get(key)
    return float(usual if now is None else now)  # type: ignore[arg-type]  # β always has one


def _counts(tries: int, axes: int) -> tuple[int, ...]:
    """Return the number of values per axis: the most equal factors of ``tries``, more for the first axes."""
    if axes == 1:
        return (tries,)
    few = max(number for number in range(1, tries + 1) if number**axes <= tries and tries % number == 0)
    return (*_counts(tries // few, axes - 1), few)


def _around(centre: float, count: int, share_below: float) -> tuple[float, ...]:
    """Return a geometric sequence that contains the centre, with ratio 3, or closer for more than six values."""
    step, below = STEP ** (1 / math.ceil(count / 6)), int((count - 1) * share_below)
    return tuple(
        centre if place == 0 else float(f"{centre * step**place:.3g}") for place in range(-below, count - below)
    )


# ---- request


def make_arena(
    values: Values,
    *,
    tasks: Sequence[object] = (),
    cells: Sequence[str] | Mapping[str, Mapping[str, object]] = (),
    methods: Sequence[object] = (),
    mine: Sequence[object] = (),
    search: Listed | None = None,
    tries: int | None = None,
    tuning_seeds: int = TUNING_SEEDS,
    rungs: int = RUNGS,
    suite: str = "",
) -> ArenaPlan:
    """Plan an arena, and check it before anything runs.

    If ``values`` has settings for single methods (a tuned.toml), they count as tuned, and nothing is tuned unless
    ``tries`` is given.

    Args:
        values: Nested values of a spec that all bouts share.
        tasks: Names of tasks or task objects; by default the task in ``values``.
        cells: Cells as ``parse_cells`` takes them, or overrides of ``values`` by name.
        methods: Names or objects of methods; by default those in ``values``, or ``USUAL``.
        mine: The user's own methods, in addition.
        search: Values to try by METHOD.setting; they replace the default search of that method.
        tries: Settings tried per method; 0 tunes nothing.
        tuning_seeds: Number of tuning seeds.
        rungs: Number of successive-halving rungs.
        suite: The name of the benchmark that these settings are.

    Raises:
        InputError: If anything is invalid or given twice.
    """
    base = copied({section: inner for section, inner in values.items() if section != "own"})
    has_own = bool(base.get(EACH))
    tries = (0 if has_own else TRIES) if tries is None else tries
    if not 0 <= tries <= MOST_TRIES:
        raise InputError(f"--tune must be from 0 (none) to {MOST_TRIES} settings of each method, got {tries}.")
    if search and not tries:
        raise InputError("--search has no effect without tuning; leave it out, or give --tune.")
    task, algorithms = _popped(base, "task", "name"), _popped(base, "run", "algorithms")
    if task is not None and tasks:
        raise InputError(f"--task {task} and --tasks were both given; give one of them.")
    named = _methods(methods or read_list(algorithms) or USUAL, mine)
    if not named:
        raise InputError("--methods is empty; name at least one, or leave it out.")
    chosen = dict(cells) if isinstance(cells, Mapping) else parse_cells(cells)
    if not chosen:  # the cell in the base, or the default
        given = resolve({"cell": base.get("cell", {})}).cell.kind
        chosen = {"paper" if given is None else given.label: {}}
    asked: dict[str, AxisValues] = {}
    for name, given in (search or {}).items():
        section, key = place_of(name, "a setting that can be tuned")
        if section != EACH:
            raise InputError(f"--search {name} must name a method, such as {name_in_tables(named[0])}.{key}.")
        asked[key] = axis_values(f"--search {name}", given)
    plan = ArenaPlan(
        base,
        tuple(tasks) or (task or resolve({}).task.name.text,),
        {name: copied(inner) for name, inner in chosen.items()},
        tuple(named),
        tries,
        tuning_seeds,
        rungs,
        asked,
        suite,
    )
    places = [f"{bout.task} on {bout.cell}" for bout in plan.bouts]
    twice = next((place for place in places if places.count(place) > 1), None)
    if twice is not None:
        raise InputError(f"--tasks and --cells give {twice} twice; give each once.")
    if own := values.get("own"):  # recorded in arena.toml: check that the files have not changed
        for bout in plan.bouts:
            resolve(bout.values | {"own": {source: own[source] for source in bout.spec.own if source in own}})
    return plan


def _popped(values: Values, section: str, key: str) -> Any:
    inner = values.get(section)
    return inner.pop(key, None) if isinstance(inner, dict) else None


def _methods(given: Sequence[object], mine: Sequence[object]) -> list[Named]:
    """Return the named methods; ``all`` stands for every built-in algorithm."""
    every = [name for each in given for name in (ALGORITHM.table() if each == "all" else [each])]
    found = [ALGORITHM.named("--methods", each) for each in every] + [ALGORITHM.named("--mine", each) for each in mine]
    named = list(dict.fromkeys(found))
    refuse_twice("--methods and --mine have" if mine else "--methods has", map(name_in_tables, named))
    return named


def parse_cells(texts: Sequence[str]) -> dict[str, Values]:
    """Return the overrides of each cell by name.

    A text is a cell (``paper``, ``mine.py:Cell``), settings (``quorum=10+max-staleness=unbounded``) or a file
    (``far.toml``).
    """
    cells: dict[str, Values] = {}
    for text in texts:
        if text.endswith(".toml"):
            name, values = Path(text).stem, read_toml(Path(text))
        elif "=" in text:
            parts = (part.partition("=") for part in text.split("+"))
            name, values = text, nested({key.strip(): value.strip() for key, _, value in parts})
        else:
            try:
                named = CELL.find(text)
            except ValueError as error:
                more = "; or settings such as quorum=10, or a FILE.toml"
                raise InputError(f"--cells {text!r} {error}{more}.") from None
            name, values = named.label, {"cell": {"kind": text}}
        wrong = next((section for section in values if section not in A_CELLS_OWN), None)
        if wrong is not None:
            raise InputError(f"--cells {text} has [{wrong}]; a cell has only {', '.join(A_CELLS_OWN)}.")
        if name in cells:
            raise InputError(f"--cells has {name} twice; give each once.")
        cells[name] = values
    return cells


def read_plan(path: Path) -> ArenaPlan:
    """Read an arena's plan from its folder."""
    with reading(path, ARENA) as values:
        return make_arena(values.pop("base"), **values)
