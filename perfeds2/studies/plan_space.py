"""The space of choices of a plan, their neighbours, and the spec of each."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from perfeds2.errors import InputError
from perfeds2.spec.fields import Section, Spec
from perfeds2.spec.methods import method_of, settings_name
from perfeds2.spec.names import Named, Values
from perfeds2.spec.privacy import has_noise
from perfeds2.spec.resolve import place_of, put, resolve
from perfeds2.spec.rounds import bound_of
from perfeds2.spec.values import POLICY, SCHEDULE
from perfeds2.studies.grid import AxisValues, Listed
from perfeds2.studies.plan_data import Choice, or_inf

PLACES = {field.name: place_of(field.name) for field in fields(Choice)}  # section and key of each axis
NAMED = {"schedule": SCHEDULE, "bandwidth": POLICY}
STEPPED = ("quorum", "max_staleness", "local_steps")  # numeric axes, on which a choice has neighbours
CELL_AXES = ("edge_rounds", "cloud_quorum", "frequency_reuse")  # axes of many cells
# Policies that need to know the UEs of a round in advance.
FOR_PLANS = ("equal_finish", "planned_share", "between", "least_energy", "time_and_energy")


@dataclass(frozen=True)
class Space:
    """The values to search, around those of a spec."""

    spec: Spec
    axes: dict[str, AxisValues]  # values of each axis: numbers in order (None is unbounded), or names
    named: dict[tuple[str, str], Named]  # the objects of names, by axis and name

    @property
    def asked(self) -> Choice:
        """Return the spec's own choice."""
        protocol, name = self.spec.protocol, algorithm_of(self.spec)
        assert protocol.quorum is not None
        return Choice(
            protocol.quorum,
            bound_of(self.spec),
            str(protocol.schedule),
            str(protocol.bandwidth),
            protocol.stale,
            self.spec.learning_of(name).local_steps,
            self.spec.radio.bits or 32,
            protocol.rest_rounds or 1,
            self.spec.cells.edge_rounds or 1,
            self.spec.cells.cloud_quorum or self.spec.edges,
            self.spec.cells.frequency_reuse or 1,
        )

    def spec_of(self, choice: Choice, seeds: Sequence[int], horizon_s: float, looks: int) -> Spec:
        """Return the spec of one choice, evaluated ``looks`` times."""
        name = algorithm_of(self.spec)
        values: Values = {
            key: dict(part) if isinstance(part, Section | Mapping) else part for key, part in dict(self.spec).items()
        }
        values["methods"] = {
            whose: {key: value for key, value in own.items() if (whose, key) != (name, "local_steps")}
            for whose, own in values["methods"].items()
        }
        for axis, place in PLACES.items():
            put(values, *place, self._value(axis, choice))
        run = {"seeds": list(seeds), "horizon_s": horizon_s, "eval_every_s": horizon_s / looks, "rounds": None}
        for key, value in (run | {"stop_when_diverged": True}).items():
            put(values, "run", key, value)
        values.pop("own")
        return resolve(values)

    def lacks(self, choice: Choice) -> str:
        """Return the flags that add a choice to the search; empty if it is among what is searched."""
        new = {
            axis: [*values, vars(choice)[axis]]
            for axis, values in self.axes.items()
            if vars(choice)[axis] not in values
        }
        return " ".join(
            f"--search {axis.replace('_', '-')}={','.join('unbounded' if each is None else str(each) for each in values)}"
            for axis, values in new.items()
        )

    def _value(self, axis: str, choice: Choice) -> object:
        value, (section, key) = vars(choice)[axis], PLACES[axis]
        if axis in NAMED:
            return self.named[axis, value]
        if value == (32 if axis == "bits" else 1) and dict(dict(self.spec)[section])[key] is None:
            return None  # as in a spec that does not set it
        return "unbounded" if axis == "max_staleness" and value is None else value


def algorithm_of(spec: Spec) -> str:
    """Return the name of the one algorithm of a plan, as used in settings."""
    (named,) = spec.algorithms
    return settings_name(named) or named.label


def make_space(spec: Spec, given: Listed) -> Space:
    """Return the values to search: those given, or defaults around the spec's own.

    Raises:
        InputError: If the spec does not have exactly one semi-synchronous algorithm, or a value is invalid.
    """
    if len(spec.algorithms) != 1:
        raise InputError(
            f"--algorithms: a plan is for one algorithm, got {len(spec.algorithms)}; give one, such as PerFedS2."
        )
    found = method_of(spec.algorithms[0])
    if found is None or found[1].mode != "S2" or found[1].has_own_rounds:
        raise InputError(
            f"--algorithms {spec.algorithms[0]} has rounds of its own, so no A and S can be planned for it; expected one that "
            f"runs in semi-synchronous rounds, such as PerFedS2, FedAvgS2 or FedBuff."
        )
    asked, protocol = Space(spec, {}, {}).asked, spec.protocol
    axes = _usual(spec, asked)
    for name, values in given.items():
        place = place_of(name, "something a plan can search")
        axis = next((axis for axis, known in PLACES.items() if known == place), None)
        if axis is None:
            raise InputError(f"--search {name} cannot be planned; expected one of {', '.join(PLACES)}.")
        axes[axis] = _checked(spec, axis, name, tuple(values))
    named = {("schedule", asked.schedule): protocol.schedule, ("bandwidth", asked.bandwidth): protocol.bandwidth}
    for axis, kind in NAMED.items():
        found = {str(each): each for each in map(kind.find, axes[axis])}
        named |= {(axis, text): each for text, each in found.items()}
        axes[axis] = tuple(found)
    return Space(spec, axes, named)


def _usual(spec: Spec, asked: Choice) -> dict[str, AxisValues]:
    """Return the default values, including the spec's own.

    About eight A from 1 to n, three S, first arrivals and planned rounds, and a few of each other setting. UEs rest only
    with noise, which in turn allows no fewer bits.
    """
    n, bound, edges = spec.cell.ues // spec.edges, asked.max_staleness, spec.edges
    spaced = {int(a) for a in np.geomspace(1, n, 7).round()}
    apart = {a for a in spaced if a in (1, n) or not 0.8 < a / asked.quorum < 1.25}
    private = has_noise(spec.privacy)
    bounds = {n, None} if bound is None else {bound, 2 * bound, max(n, 4 * bound)}
    return {
        "quorum": tuple(sorted(apart | {asked.quorum})),
        "max_staleness": tuple(sorted(bounds, key=or_inf)),
        "schedule": (spec.protocol.schedule, "first", "deficit") if edges == 1 else (spec.protocol.schedule,),
        "bandwidth": (spec.protocol.bandwidth, "equal_share", "equal_finish"),
        "stale": tuple(dict.fromkeys((asked.stale, "restart", "wait", "ignore"))),
        "local_steps": tuple(sorted({1, 2, 4, asked.local_steps})),
        "bits": tuple(sorted({asked.bits} if private else {32, 8, 4, asked.bits})),
        "rest_rounds": tuple(sorted({1, 2, 4, asked.rest_rounds} if private else {asked.rest_rounds})),
        "edge_rounds": tuple(sorted({asked.edge_rounds} if edges == 1 else {1, 2, 5, asked.edge_rounds})),
        "cloud_quorum": tuple(sorted({asked.cloud_quorum, *_cloud_quorums(spec)})),
        "frequency_reuse": tuple(sorted({asked.frequency_reuse} if edges == 1 else {1, 3})),
    }


def _cloud_quorums(spec: Spec) -> set[int]:
    """Return half of the edges and all, as far as the cloud's staleness bound permits."""
    bound = spec.cells.cloud_staleness
    least = 1 if bound in (None, "unbounded") else -(-spec.edges // (bound + 1))
    return {max(-(-spec.edges // 2), least), spec.edges}


def _checked(spec: Spec, axis: str, name: str, values: AxisValues) -> AxisValues:
    """Return the values of an axis as the spec reads them."""
    section, key = PLACES[axis]
    if not values:
        raise InputError(f"--search {name} is empty; give at least one value.")
    read: dict[Any, None] = {}
    for value in values:
        given = "unbounded" if value is None else value
        around: Values = {"cell": {"ues": spec.cell.ues}, "cells": {}}
        around["cells"] |= {"sites": spec.cells.sites, "merge_at": spec.cells.merge_at}
        put(around, section, key, given)
        found = dict(dict(resolve(around))[section])[key]
        read[None if found == "unbounded" else found] = None
    return tuple(sorted(read, key=or_inf) if axis in (*STEPPED, *CELL_AXES, "bits", "rest_rounds") else read)


def map_of(space: Space, base: Choice) -> list[Choice]:
    """Return every A, S, schedule, bandwidth policy and number of local steps, with the bits of ``base``.

    Stale rules vary only for first arrivals; planned rounds have that of ``base``. UEs rest as long as with ``base``, or
    as long as the remaining UEs can close rounds.
    """
    names = ("local_steps", "quorum", "max_staleness", "schedule", "bandwidth", "stale")  # the first varies slowest
    every = itertools.product(*(space.axes[name] for name in names))
    found = [base.with_(**dict(zip(names, values, strict=True))) for values in every]
    only_band = len(space.axes["bandwidth"]) == 1
    found = [each for each in found if only_band or fits(each.schedule, each.bandwidth)]
    found = [each if each.schedule == "first" else each.with_(stale=base.stale) for each in found]
    return list(dict.fromkeys(each.with_(rest_rounds=_rest(space, each)) for each in found))


def _rest(space: Space, choice: Choice) -> int:
    """Return the longest rest that is searched, possible and no longer than the choice's."""
    can_rest = choice.schedule == "first" and choice.stale != "ignore"
    longest = space.spec.cell.ues // space.spec.edges // choice.quorum if can_rest else 1
    fitting = [each for each in space.axes["rest_rounds"] if each <= min(choice.rest_rounds, longest)]
    return max(fitting, default=choice.rest_rounds)


def fits(schedule: str, bandwidth: str) -> bool:
    """Return whether a policy fits a schedule: equal finish needs to know the UEs of a round in advance."""
    together = bandwidth.partition(":")[0] in FOR_PLANS
    return schedule != "first" or not together


def varied(space: Space, choice: Choice, axis: str, value: object) -> Choice:
    """Return a choice with another value of an axis. No plan suits UEs that rest: they close rounds by arriving first."""
    changed = choice.with_(**{axis: value})
    if changed.rest_rounds == 1 or changed.schedule == "first" or ("schedule", "first") not in space.named:
        return changed
    shared = ("bandwidth", "equal_share") in space.named and not fits("first", changed.bandwidth)
    return changed.with_(schedule="first", **{"bandwidth": "equal_share"} if shared else {})


def variants(space: Space, choice: Choice) -> list[Choice]:
    """Return the choices that keep A and S and differ in one other setting, and in the schedule where that requires it."""
    return [
        varied(space, choice, axis, value)
        for axis in ("local_steps", "bits", "stale", "rest_rounds", *CELL_AXES)
        for value in space.axes[axis]
        if value != vars(choice)[axis]
    ]


def around(space: Space, choice: Choice) -> list[Choice]:
    """Return the choices in the search space that are one step away in A or S."""
    return [
        choice.with_(**{axis: value})
        for axis in ("quorum", "max_staleness")
        for value in itertools.chain(*_steps(space, choice, axis))
    ]


def neighbours(space: Space, choice: Choice) -> list[tuple[str, Choice]]:
    """Return the neighbours: for every numeric axis, the choices one step away on it.

    A step leads to the next value that is searched if that is near: at most twice or half as large. Otherwise it is
    1.5 times A or twice S, whether that is searched or not. An unbounded S is near the largest S that matters.
    """
    n = space.spec.cell.ues // space.spec.edges
    largest = max([n, *(each for each in space.axes["max_staleness"] if each is not None)])

    def near(one: int | None, other: int | None) -> bool:
        small, large = sorted(2 * largest if each is None else each for each in (one, other))
        return large <= max(2 * small, small + 1)

    found: list[tuple[str, Choice]] = []
    for axis in STEPPED:
        now = vars(choice)[axis]
        smaller, larger = ([each for each in side if near(now, each)] for side in _steps(space, choice, axis))
        if axis == "quorum":
            smaller = smaller or [min(now - 1, int(now / 1.5))] * (now > 1)
            larger = larger or [min(max(now + 1, math.ceil(1.5 * now)), n)] * (now < n)
        elif axis == "max_staleness" and now is None:
            smaller = smaller or [largest]
        elif axis == "max_staleness":
            smaller, larger = smaller or [now // 2] * (now > 0), larger or [max(2 * now, 1)]
        found += [(axis, choice.with_(**{axis: step})) for step in (*smaller, *larger)]
    return found


def _steps(space: Space, choice: Choice, axis: str) -> tuple[list[int | None], list[int | None]]:
    """Return the next smaller and the next larger value that is searched, as lists of at most one."""
    values, now = space.axes[axis], or_inf(vars(choice)[axis])
    return [each for each in values if or_inf(each) < now][-1:], [each for each in values if or_inf(each) > now][:1]
