"""What model do a round's updates make? In float32 and in the simulator's order, so that a replay gives the same weights."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from perfeds2.deployment.transport import Arrays
from perfeds2.learning.merges import Arrived, OfMean
from perfeds2.learning.replay import Learner, merge_now


def merged(
    params: Arrays,
    updates: list[Arrays],
    learner: Learner,
    merging: Any = None,
    senders: Sequence[tuple[int, int]] = (),
) -> tuple[dict[str, np.ndarray], Any]:
    """The next model, in float32 and in the order of ``learning/replay.py``, so that a replay gives the same weights.

    ``senders`` says of every update which UE sent it and how stale it is; a merge of the mean does not ask.
    """
    if not isinstance(learner.merge, OfMean):
        return _merged_each(params, updates, learner, merging, senders)
    quorum = np.float32(len(updates))
    mean = {}
    for name, values in params.items():
        total = np.zeros_like(values)
        for update in updates:
            total = total + update[name]
        mean[name] = total / quorum
    new: Any
    new, merging = learner.merge.step(dict(params), mean, np.float32(learner.beta), merging)
    return {name: np.asarray(values) for name, values in new.items()}, merging


def _merged_each(
    params: Arrays, updates: list[Arrays], learner: Learner, merging: Any, senders: Sequence[tuple[int, int]]
) -> tuple[dict[str, np.ndarray], Any]:
    uploads = {name: np.stack([update[name] for update in updates]) for name in params}
    ues, staleness = np.array(senders, np.int32).T
    arrived = Arrived(uploads, None, None, staleness, ues, np.float32(learner.beta), learner.local_steps)
    new, merging = merge_now(learner.merge, dict(params), arrived, merging)
    return {name: np.asarray(values) for name, values in new.items()}, merging
