"""Merge a round's updates on the server, and pack the model that goes out to devices.

Merges run in float32 and in the simulator's order, so a replay yields the same weights. If a
merge needs what each update started from, ``Shelf`` keeps a version while a device works from it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree

from perfeds2.deployment.transport import Arrays
from perfeds2.errors import input_errors
from perfeds2.learning.learner import Learner
from perfeds2.learning.merges import Arrived
from perfeds2.learning.noise import noise_keys, noise_now
from perfeds2.learning.objectives import Objective
from perfeds2.learning.replay import merge_now

BROADCAST = "broadcast/"  # prefix of the names of arrays that a merge sends along


class StartModel(NamedTuple):
    """What a device receives with a job and starts its update from."""

    params: Arrays
    broadcast: Arrays | None = None  # arrays that the merge sent along

    def packed(self) -> Arrays:
        """Return model and extra arrays as one mapping, ready to send."""
        return {**self.params, **{BROADCAST + name: values for name, values in (self.broadcast or {}).items()}}


def start_model(params: Arrays, learner: Learner, merging: PyTree) -> StartModel:
    """Return a model together with the arrays that its merge sends along."""
    sent = learner.merge.broadcast(merging)
    return StartModel(params, None if sent is None else {name: np.asarray(values) for name, values in sent.items()})


def unpacked(came: Arrays) -> StartModel:
    """Split the arrays that a device received into the model and what the merge sent along."""
    sent = {name.removeprefix(BROADCAST): values for name, values in came.items() if name.startswith(BROADCAST)}
    return StartModel({name: values for name, values in came.items() if not name.startswith(BROADCAST)}, sent or None)


def uploaded(arrays: Arrays, learner: Learner) -> Arrays:
    """Return the arrays of a model that devices upload, without those that the objective withholds.

    Raises:
        InputError: The objective does not fit the model.
    """
    form = tuple((name, values.shape, values.dtype) for name, values in arrays.items())
    stays = _withheld(learner.objective, form)
    return {name: values for name, values in arrays.items() if name not in stays}


@lru_cache(maxsize=100)  # finding out takes half as long as a small job
def _withheld(objective: Objective, form: tuple[tuple[str, tuple[int, ...], np.dtype], ...]) -> frozenset[str]:
    """Return the names of the arrays that an objective withholds. Nothing is computed."""
    shapes = {name: jax.ShapeDtypeStruct(shape, kind) for name, shape, kind in form}
    with input_errors(f"{type(objective).__name__} does not fit this model"):
        return frozenset(jax.eval_shape(objective.withheld, shapes))


@dataclass
class Shelf:
    """Which devices work from which version and, if the merge needs it, what they started from.

    Holds only versions whose updates may still arrive: at most S + 1, or one per device if S is unbounded.
    """

    _models: dict[int, StartModel] = field(default_factory=dict)
    _holders: dict[int, list[int]] = field(default_factory=dict)

    def lend(self, version: int, ue: int, model: StartModel | None) -> None:
        self._holders.setdefault(version, []).append(ue)
        if model is not None:
            self._models[version] = model

    def holders(self, version: int) -> list[int]:
        """Return the UEs that were handed this version. Some may have been handed a newer one since."""
        return self._holders.get(version, [])

    def __getitem__(self, version: int) -> StartModel:
        return self._models[version]

    def __len__(self) -> int:
        return len(self._models)

    def clear(self, version_of: Callable[[int], int]) -> None:
        """Drop the versions that no device works from."""
        for version, holders in list(self._holders.items()):
            while holders and version_of(holders[-1]) != version:
                holders.pop()
            if not holders:
                del self._holders[version]
                self._models.pop(version, None)


def needs_past(learner: Learner) -> bool:
    """Return whether the merge needs what each update started from."""
    return not learner.merge.needs.isdisjoint({"start_models", "broadcast"})


def noise_on(params: Arrays, learner: Learner, round_: int) -> Arrays | None:
    """Return the noise on the sum of a round, for what devices upload, from the server's secret seed; None without."""
    if learner.noise is None:
        return None
    assert learner.clip is not None
    assert learner.noise_seed is not None
    deviation = learner.noise * np.float32(learner.clip)
    keys = noise_keys(learner.noise_seed)
    drawn = noise_now(keys, np.int32(round_), dict(params), deviation, learner.bands)
    return {name: np.asarray(drawn[name]) for name in uploaded(params, learner)}


def merged(
    params: Arrays,
    updates: list[Arrays],
    learner: Learner,
    merging: PyTree | None = None,
    senders: Sequence[tuple[int, int]] = (),
    start_models: Sequence[StartModel] = (),
    noise: Arrays | None = None,
) -> tuple[dict[str, np.ndarray], PyTree | None]:
    """Merge updates into the next model, in float32 and in the order of ``learning/replay.py``.

    Args:
        params: The current model, w_k.
        updates: The updates to merge. Arrays that devices keep to themselves are missing and count as zeros.
        learner: Provides the merge, β and the number of local steps.
        merging: State of the merge.
        senders: UE and staleness of each update. A merge of their mean does not need them.
        start_models: What each update started from, if ``needs_past(learner)``.
        noise: Noise to add once to the (weighted) sum of the updates.

    Returns:
        The next model, w_{k+1}, and the new state of the merge.
    """
    updates = [update if len(update) == len(params) else _with_nothing(update, params) for update in updates]
    merge, beta = learner.merge, np.float32(learner.beta)
    weights = merge.weights(np.array(senders, np.int32)[:, 1]) if learner.merge_weighs else None
    if noise is not None:
        share = np.float32(len(updates) if weights is None else np.sum(weights))  # as in the simulator
        updates = [{**update, **{name: update[name] + z / share for name, z in noise.items()}} for update in updates]
    if "uploads" not in merge.needs:
        if weights is not None:
            shares = np.asarray(weights)
            updates = [
                {name: share * update[name] for name in params} for share, update in zip(shares, updates, strict=True)
            ]
        mean = {name: sum(update[name] for update in updates) / np.float32(len(updates)) for name in params}
        new, merging = merge.step(dict(params), Arrived(beta, mean, steps=learner.local_steps), merging)
    else:
        ues, staleness = np.array(senders, np.int32).T
        models = _stacked([one.params for one in start_models]) if "start_models" in merge.needs else None
        broadcast = _stacked([one.broadcast or {} for one in start_models]) if "broadcast" in merge.needs else None
        arrived = Arrived(beta, None, _stacked(updates), models, broadcast, staleness, ues, learner.local_steps)
        new, merging = merge_now(merge, dict(params), arrived, merging)
    return {name: np.asarray(values) for name, values in new.items()}, merging


def _with_nothing(update: Arrays, params: Arrays) -> Arrays:
    """Add zeros for the arrays that the device keeps to itself."""
    return {name: update[name] if name in update else np.zeros_like(values) for name, values in params.items()}


def _stacked(rows: Sequence[Arrays]) -> dict[str, np.ndarray]:
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}
