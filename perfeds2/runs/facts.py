"""What do a timeline and its algorithm say about a training, before and beside what it learns?"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from perfeds2.learning.objectives import Personal
from perfeds2.learning.train import EvaluationPoint
from perfeds2.network.cell import Cell
from perfeds2.spec.build import Algorithm
from perfeds2.spec.cells import make_energy, upload_bits
from perfeds2.spec.fields import Spec
from perfeds2.timeline.budget import too_few
from perfeds2.timeline.energy import energy_of
from perfeds2.timeline.record import Timeline

NAMED_STARVED = 6  # UEs that are named: one more than a note shows


def facts_of(spec: Spec, algorithm: Algorithm, timeline: Timeline, seed: int, cell: Cell | None) -> dict[str, Any]:
    """Everything that tables and notes say of one algorithm and seed, as JSON. Without a cell no energy is counted."""
    protocol, learner, rounds = algorithm.protocol, algorithm.learner, timeline.rounds
    bits = upload_bits(spec, learner.objective)
    known: dict[str, Any] = {
        "algorithm": algorithm.name,
        "seed": seed,
        "objective": algorithm.objective,
        "is_personal": isinstance(learner.objective, Personal),
        "beta": float(learner.beta),
        "local_steps": learner.local_steps,
        "upload_bits": bits,
        "mode": algorithm.mode,
        "quorum": protocol.quorum,
        "max_staleness": protocol.max_staleness,
        "stale": protocol.stale,
        "rounds": rounds,
        "end_s": float(timeline.end_s),
        "merges": int(timeline.ues.size),
        "staleness_mean": float(timeline.staleness.mean()) if rounds else 0.0,
        "staleness_max": int(timeline.staleness.max(initial=0)),
        "seconds_per_round": float(timeline.end_s / rounds) if rounds else None,
        "waiting_share": float(timeline.waiting_share),
        "wasted_share": float(timeline.wasted_share),
        "least_share": float(timeline.shares.min()) if rounds else 0.0,
        "starved": int(timeline.starved.size),
        "starved_ues": [int(ue) for ue in timeline.starved[:NAMED_STARVED]],
        # Where UEs come and go (there is a log), one without a job may only be away.
        "is_out_of_energy": timeline.log is None and too_few(timeline.open_version, rounds, protocol),
    }
    if cell is None:
        return known
    joules = float(energy_of(timeline, cell, make_energy(spec), bits, np.zeros(0)).total_j)
    return known | {"joules": joules, "joules_per_merge": joules / timeline.ues.size if rounds else None}


def costs_at(
    spec: Spec, cell: Cell, algorithm: Algorithm, timeline: Timeline, points: Sequence[EvaluationPoint]
) -> list[dict[str, float]]:
    """What had been spent at each evaluation: joules of all UEs, and the bits of the merged uploads."""
    bits = upload_bits(spec, algorithm.learner.objective)
    times_s = np.array([point.time_s for point in points], float)
    by_time_j = energy_of(timeline, cell, make_energy(spec), bits, times_s).by_time_j
    return [
        {"joules": float(joules), "merged_bits": float(point.round * timeline.quorum * bits)}
        for point, joules in zip(points, by_time_j, strict=True)
    ]
