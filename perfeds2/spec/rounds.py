"""Which rounds has a method that decides itself who is merged when, and which schedules choose when a round opens?"""

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from perfeds2.allocation.schedulers import of_those_here
from perfeds2.allocation.tiers import AllTiers, OneTier, tiers_by_latency
from perfeds2.errors import InputError
from perfeds2.learning.methods.fedat import TierAverage
from perfeds2.learning.methods.safa import ModelCache
from perfeds2.learning.replay import Learner
from perfeds2.network.cell import Cell
from perfeds2.spec.fields import Spec
from perfeds2.spec.names import Named
from perfeds2.timeline.protocol import Protocol
from perfeds2.timeline.state import Schedule

TIERS = 5  # M of FedAT and TiFL


def bound_of(spec: Spec) -> int | None:
    return None if spec.protocol.max_staleness == "unbounded" else spec.protocol.max_staleness


def in_drafts(spec: Spec, learner: Learner) -> dict[str, Any]:
    """SAFA's rounds, as parts of an algorithm; the bound on staleness is its lag tolerance."""
    assert spec.protocol.quorum is not None
    bound = bound_of(spec)
    if isinstance(learner.merge, ModelCache):
        learner = replace(learner, merge=ModelCache(np.inf if bound is None else float(bound)))
    return {"learner": learner, "protocol": Protocol(spec.protocol.quorum, bound, drafts=True)}


def in_tiers(
    spec: Spec, learner: Learner, cell: Cell, seed: int, payload_bits: float, *, at_once: bool
) -> dict[str, Any]:
    """TiFL's and FedAT's rounds, as parts of an algorithm: A of a tier close one, or as many as the smallest tier has."""
    assert spec.protocol.quorum is not None
    if (spec.protocol.tiers or 0) > cell.ues:
        raise InputError(f"--tiers {spec.protocol.tiers} is more than there are UEs ({cell.ues}); choose fewer.")
    count, quorum = spec.protocol.tiers or TIERS, spec.protocol.quorum
    tiers = tiers_by_latency(cell, payload_bits, learner.samples, count, quorum)
    quorum = min(quorum, tiers.smallest)
    if isinstance(learner.merge, TierAverage):
        learner = replace(learner, merge=TierAverage.of(tiers.of))
    schedule = (AllTiers if at_once else OneTier)(tiers, quorum, seed)
    return {"learner": learner, "protocol": Protocol(quorum, rests=True), "schedule": schedule}


def is_schedule(function: Callable[..., Any]) -> bool:
    """Whether it plans a round; else it makes something that does."""
    return bool({"round_", "moment"} & inspect.signature(function).parameters.keys())


def when_opened(named: Named, protocol: Protocol, schedule: Any) -> Schedule:
    """A schedule that says when a round opens whom it plans. Nobody can know beforehand whether a UE sits out too long."""
    if not named.source and protocol.max_staleness is not None and protocol.stale != "restart":
        raise InputError(
            f"--schedule {named} may leave out a UE for more than {protocol.max_staleness} rounds, and with --stale {protocol.stale} "
            f"its round could wait for ever; use --stale restart, --max-staleness unbounded or --unplanned rest."
        )
    return schedule


def skipping(named: Named, protocol: Protocol, cell: Cell, schedule: Schedule) -> Schedule:
    """One of our schedules where UEs come and go: a round is not planned for who is away when it opens.

    But where only a plan that is kept to the letter keeps everybody within the bound: then the round waits.
    """
    comes_and_goes = cell.fleet is not None and cell.fleet.presence is not None
    to_the_letter = protocol.max_staleness is not None and protocol.stale != "restart"
    if named.source or not comes_and_goes or to_the_letter or "moment" in inspect.signature(schedule).parameters:
        return schedule
    return of_those_here(schedule)
