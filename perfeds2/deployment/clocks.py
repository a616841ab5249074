"""How long would the simulator's clock have taken for what a federation did?"""

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from perfeds2.deployment.federation import Federation
from perfeds2.deployment.fields import DeploymentSpec
from perfeds2.deployment.in_process import InProcess
from perfeds2.deployment.record import Record
from perfeds2.deployment.setup import Setup
from perfeds2.deployment.transport import Arrays, Reply, Request
from perfeds2.timeline.record import Timeline

DIGITS = 6  # of a time
PATIENT = DeploymentSpec(job_s=0)  # on a virtual clock every device answers


def both_clocks(setup: Setup, record: Record) -> dict[str, Any]:
    """When each round closed, really and on the simulator's clock; there a device's jobs take, one after the other, what they took.

    Should the simulator hand a device more jobs than it answered, they begin anew. Also how long a job was computed and
    how long it took besides, in the median.
    """
    laps: dict[int, list[float]] = defaultdict(list)
    for lap in record.laps:
        laps[lap.ue].append(max(lap.took_s, 1e-9))
    own_s = {ue: itertools.cycle(took_s) for ue, took_s in laps.items()}
    simulated = play(setup, lambda request: next(own_s[request.ue]), laps, len(record.closed_s))
    return {
        "real_s": _rounded(record.closed_s),
        "simulated_s": _rounded(simulated.time_s),
        "compute_s": float(np.median([lap.compute_s for lap in record.laps])),
        "beyond_s": float(np.median([lap.took_s - lap.compute_s for lap in record.laps])),
    }


def play(setup: Setup, job_s: Callable[[Request], float], here: Iterable[int], rounds: int) -> Timeline:
    """The rounds of devices whose jobs take so long, on a virtual clock. The weights do not matter, so there is one."""
    algorithm, nothing = setup.algorithm, {"w": np.zeros(1, np.float32)}

    def answer(request: Request, params: Arrays) -> Reply:
        return Reply(request.ue, request.ticket, request.version, params)

    clock = InProcess(answer, job_s, setup.ues)
    for ue in set(range(setup.ues)).difference(here):
        clock.present.discard(ue)
    federation = Federation(algorithm.protocol, algorithm.learner, nothing, clock, setup.ues, rounds, PATIENT)
    while federation.round < rounds:
        federation.step(wait_s=math.inf)
    return federation.timeline()


def _rounded(times_s: Any) -> list[float]:
    return [float(f"{time_s:.{DIGITS}g}") for time_s in times_s]
