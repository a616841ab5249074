"""Check and plan the rounds of edge servers below a cloud."""

from perfeds2.errors import InputError, input_errors
from perfeds2.learning.learner import Learner
from perfeds2.learning.replay import why_not_at_edges
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
from perfeds2.timeline.state import Schedule

EdgePlan = tuple[PerUe | None, Schedule | None]  # shares and schedule


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
    moving = spec.radio.mobility not in (None, "none")
    if mode == "SYN" and moving:
        raise InputError(
            f"a round of {name} waits for all UEs of a cell, and UEs move to others. Use other --algorithms."
        )
    if cells is not None and schedule is not None:
        with input_errors(f"--cells {spec.cells.sites}"):
            refuse_schedules_of_movers(cells, [schedule])
    privacy, why = spec.privacy, ""
    if own_rounds:
        why = f"the rounds of {name} are those of one server"
    elif learner.feedback is not None:
        why = f"the schedule of {name} hears of losses from one server"
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
