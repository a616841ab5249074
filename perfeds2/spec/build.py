"""Which algorithms are compared? The paper's nine are one matrix: {FedAvg, FedProx, PerFed} × {SYN, S2, ASY}."""

from dataclasses import dataclass
from inspect import signature

import numpy as np
from jaxtyping import Float

from perfeds2.allocation import bandwidth as policies
from perfeds2.allocation import schedule as schedules
from perfeds2.allocation.bandwidth import Policy, equal_share
from perfeds2.allocation.shares import check_shares, distance_shares, equal_shares, nearest_feasible
from perfeds2.learning.objectives import OBJECTIVES
from perfeds2.learning.replay import Learner
from perfeds2.network.cell import Cell
from perfeds2.spec.fields import ALGORITHMS, InputError, Spec
from perfeds2.timeline.rounds import Protocol
from perfeds2.timeline.simulate import Schedule

ROWS = 4096  # of a schedule; a longer run repeats them


@dataclass(frozen=True)
class Algorithm:
    """What a UE computes, when a round closes, and how the band is shared. Make your own and compare it."""

    name: str
    learner: Learner
    protocol: Protocol
    bandwidth: Policy = equal_share
    schedule: Schedule | None = None  # None: a round closes on the first arrivals
    shares: Float[np.ndarray, " n"] | None = None  # η; None: equal
    mode: str = "custom"

    @property
    def objective(self) -> str:
        return type(self.learner.objective).__name__


def paper_algorithms(spec: Spec, cell: Cell, payload_bits: float) -> list[Algorithm]:
    """The spec's algorithms on a cell. Schedule and shares are the S2 algorithms'; the bandwidth policy is everybody's.

    Except that ASY shares the band equally instead of finishing together: it waits for nobody in particular, so who came
    first would be rounding noise (erratum 12).
    """
    bandwidth = bandwidth_policy(spec.protocol.bandwidth)
    together = spec.protocol.bandwidth == "equal_finish" or spec.protocol.bandwidth.startswith("between")
    planned: dict[
        int, tuple[Float[np.ndarray, " n"], Schedule | None]
    ] = {}  # by samples: FedAvg's and FedProx's is one
    algorithms = []
    for name in spec.run.algorithms:
        _, mode = ALGORITHMS[name]
        learner = make_learner(spec, name)
        if mode != "S2":
            own = equal_share if mode == "ASY" and together else bandwidth
            algorithms.append(Algorithm(name, learner, spec.protocol_of(mode), own, mode=mode))
            continue
        if learner.samples not in planned:
            planned[learner.samples] = plan_rounds(spec, cell, payload_bits, learner.samples)
        shares, schedule = planned[learner.samples]
        algorithms.append(Algorithm(name, learner, spec.protocol_of(mode), bandwidth, schedule, shares, mode))
    return algorithms


def make_learner(spec: Spec, name: str) -> Learner:
    """What the UEs of one of the nine compute."""
    learning = spec.learning
    objective = OBJECTIVES[ALGORITHMS[name][0]]
    wanted = {key: value for key, value in learning if key in signature(objective).parameters}
    return Learner(objective(**wanted), learning.beta, learning.batch, learning.local_steps, alpha=learning.alpha)


def bandwidth_policy(name: str) -> Policy:
    kind, _, number = name.partition(":")
    return policies.between(float(number)) if kind == "between" else getattr(policies, kind)


def plan_rounds(
    spec: Spec, cell: Cell, payload_bits: float, samples: int
) -> tuple[Float[np.ndarray, " n"], Schedule | None]:
    """Shares, and the schedule that gives them. Distance shares are moved to the nearest that the bounds allow."""
    protocol = spec.protocol_of("S2")
    quorum, bound = protocol.quorum, protocol.max_staleness
    planned = spec.protocol.schedule != "first"
    try:
        match spec.protocol.shares:
            case "equal":
                shares = equal_shares(cell.ues)
            case "distance":
                shares = distance_shares(cell, payload_bits, samples)
                shares = nearest_feasible(shares, quorum, bound) if planned else shares
            case given:
                shares = np.asarray(given, float)
                check_shares(shares, quorum, bound if planned else None)
        if not planned:
            return shares, None
        rows = getattr(schedules, spec.protocol.schedule)(shares, quorum, spec.run.rounds or ROWS)
        schedules.check_schedule(rows, cell.ues, bound, protocol.stale)
    except ValueError as error:
        raise InputError(
            f"--schedule {spec.protocol.schedule} --shares {_short(spec.protocol.shares)}: {error}"
        ) from None
    return shares, schedules.as_schedule(rows)


def _short(shares: str | tuple[float, ...]) -> str:
    return shares if isinstance(shares, str) else "given"
