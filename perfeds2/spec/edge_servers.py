"""Check and plan the rounds of edge servers below a cloud."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from perfeds2.errors import InputError, input_errors
from perfeds2.learning.learner import Learner
from perfeds2.learning.method import Rounds
from perfeds2.learning.replay import why_not_at_edges
from perfeds2.network.cell import Ues
from perfeds2.network.cells import Cells
from perfeds2.network.link import PerUe
from perfeds2.spec.cells import cloud_protocol
from perfeds2.spec.fields import Spec
from perfeds2.spec.methods import method_of
from perfeds2.spec.names import Named
from perfeds2.spec.privacy import has_noise
from perfeds2.spec.rounds import plan_rounds
from perfeds2.spec.tasks import model_of
from perfeds2.timeline.cells import refuse_schedules_of_movers
from perfeds2.timeline.protocol import Planned
from perfeds2.timeline.state import Schedule

EdgePlan = tuple[PerUe | None, Schedule | None]  # shares and schedule


@dataclass(frozen=True)
class ByEdge:
    """The schedule of each edge, for its own UEs."""

    schedules: tuple[Schedule, ...]

    def __call__(self, _round: int) -> Planned:
        raise TypeError(f"there are schedules of {len(self.schedules)} edges; call those.")


def join_rounds(of_edges: Sequence[Rounds], members: Sequence[Ues]) -> Rounds:
    """Return the rounds that a method plans for each edge as one: rows of UEs get the numbers of the network."""
    first = of_edges[0]
    population = sum(own.size for own in members)

    def join(*values: Any) -> Any:
        if np.shape(values[0])[:1] != members[0].shape:
            return values[0]
        rows = np.empty((population, *np.shape(values[0])[1:]), values[0].dtype)
        for own, value in zip(members, values, strict=True):
            rows[own] = value
        return rows

    schedules = tuple(one.schedule for one in of_edges if one.schedule is not None)
    objective = jax.tree.map(join, *(one.objective for one in of_edges))
    return replace(first, schedule=ByEdge(schedules) if schedules else None, objective=objective)


def has_own_rounds(named: Named) -> bool:
    """Return whether the rounds of a method are neither synchronous, semi-synchronous nor asynchronous."""
    found = method_of(named)
    return found is not None and found[1].has_own_rounds


def refuse_at_edges(
    spec: Spec,
    cells: Cells | None,
    *,
    name: str,
    mode: str | None,
    learner: Learner,
    schedule: Schedule | None,
    own_rounds: bool,
) -> None:
    """Raise InputError for an algorithm that edges below a cloud do not support."""
    cloud_protocol(spec)
    moving = spec.radio.moves
    if mode == "SYN" and moving:
        raise InputError(
            f"a round of {name} waits for all UEs of a cell, and UEs move to others. Use other --algorithms."
        )
    if cells is not None and schedule is not None and not own_rounds:
        with input_errors(f"--cells {spec.cells.sites}"):
            refuse_schedules_of_movers(cells, [schedule])
    privacy, why = spec.privacy, ""
    if learner.objective.is_alone:
        why = f"the UEs of {name} send nothing to a server"
    elif own_rounds and moving:
        why = f"{name} groups the UEs of a cell, and UEs move to others"
    elif has_noise(privacy) or privacy.secure_aggregation:
        why = "privacy is accounted for one server"
    elif str(spec.protocol.shares) != "equal" and moving:
        why = "--shares are targets of the UEs of a cell, and UEs move to others"
    why = why or why_not_at_edges(model_of(spec), learner)
    if why:
        raise InputError(
            f"--cells with edge servers cannot be used here: {why}. Use --merge-at cloud, or leave it out."
        )


def plan_edges(spec: Spec, cells: Cells, seed: int, samples: int) -> list[EdgePlan]:
    """Return the shares and the schedule of each edge, which plans its own rounds."""
    plans = [plan_rounds(spec, cells.alone(edge), seed, samples) for edge in range(spec.edges)]
    if cells.joint:  # a share for every UE that the cell describes
        return [(None, schedule) for _, schedule in plans]
    return list(plans)
