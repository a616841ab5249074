"""What model do a round's updates make? In float32 and in the simulator's order, so that a replay gives the same weights.

And what goes out: a model, with what its merge sends along. A merge that looks back, or sends something along, needs what an
update began with: that stands on a shelf as long as an update may come back that began with it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import numpy as np

from perfeds2.deployment.transport import Arrays
from perfeds2.errors import InputError
from perfeds2.learning.merges import Arrived, Backward, OfMean, Telling
from perfeds2.learning.objectives import Withholding
from perfeds2.learning.replay import Learner, merge_now

TOLD = "told/"  # before the names of what a merge sends along


class Handed(NamedTuple):
    """What an update begins with."""

    params: Arrays
    told: Arrays | None = None  # what the merge sent along with it

    def packed(self) -> Arrays:
        """As it travels."""
        return (
            self.params if self.told is None else {**self.params, **{TOLD + name: v for name, v in self.told.items()}}
        )


def handed_out(params: Arrays, learner: Learner, merging: Any) -> Handed:
    """A model, with what the merge sends along."""
    if not isinstance(learner.merge, Telling):
        return Handed(params)
    return Handed(params, {name: np.asarray(values) for name, values in learner.merge.tell(merging).items()})


def unpacked(came: Arrays, learner: Learner) -> Handed:
    """What came, at a device."""
    if not isinstance(learner.merge, Telling):
        return Handed(came)
    told = {name.removeprefix(TOLD): values for name, values in came.items() if name.startswith(TOLD)}
    return Handed({name: values for name, values in came.items() if not name.startswith(TOLD)}, told)


def uploaded(arrays: Arrays, learner: Learner) -> Arrays:
    """Of a model's arrays, those that devices send: not the part that they keep for themselves."""
    if not isinstance(learner.objective, Withholding):
        return arrays
    try:
        stays = jax.eval_shape(learner.objective.withheld, dict(arrays))  # by their names
    except ValueError as error:
        raise InputError(f"{type(learner.objective).__name__} does not fit this model: {error}") from None
    return {name: values for name, values in arrays.items() if name not in stays}


@dataclass
class Shelf:
    """Which devices work from which version, and what they were handed, where the merge asks for that.

    Holds the versions whose updates may still come: S + 1 at most, or one a device where S is unbounded.
    """

    _handed: dict[int, Handed] = field(default_factory=dict)
    _holders: dict[int, list[int]] = field(default_factory=dict)

    def lend(self, version: int, ue: int, handed: Handed | None) -> None:
        self._holders.setdefault(version, []).append(ue)
        if handed is not None:
            self._handed[version] = handed

    def holders(self, version: int) -> list[int]:
        """Return the UEs it was handed to. Some may have been handed another since."""
        return self._holders.get(version, [])

    def __getitem__(self, version: int) -> Handed:
        return self._handed[version]

    def __len__(self) -> int:
        return len(self._handed)

    def clear(self, version_of: Callable[[int], int]) -> None:
        """Let go of what nobody works from any more."""
        for version, holders in list(self._holders.items()):
            while holders and version_of(holders[-1]) != version:
                holders.pop()
            if not holders:
                del self._holders[version]
                self._handed.pop(version, None)


def needs_past(learner: Learner) -> bool:
    """Whether its merge asks what an update began with."""
    return isinstance(learner.merge, Backward | Telling)


def merged(
    params: Arrays,
    updates: list[Arrays],
    learner: Learner,
    merging: Any = None,
    senders: Sequence[tuple[int, int]] = (),
    handed: Sequence[Handed] = (),
) -> tuple[dict[str, np.ndarray], Any]:
    """The next model, in float32 and in the order of ``learning/replay.py``, so that a replay gives the same weights.

    ``senders`` says of every update which UE sent it and how stale it is; a merge of the mean does not ask. ``handed`` is what
    each began with, for a merge that needs it. Of arrays that devices keep for themselves, an update has nothing.
    """
    updates = [update if len(update) == len(params) else _with_nothing(update, params) for update in updates]
    merge, beta = learner.merge, np.float32(learner.beta)
    new: Any
    if isinstance(merge, OfMean):
        mean = {name: sum(update[name] for update in updates) / np.float32(len(updates)) for name in params}
        new, merging = merge.step(dict(params), mean, beta, merging)
    else:
        ues, staleness = np.array(senders, np.int32).T
        models = _stacked([one.params for one in handed]) if isinstance(merge, Backward) else None
        told = _stacked([one.told or {} for one in handed]) if isinstance(merge, Telling) else None
        arrived = Arrived(_stacked(updates), models, told, staleness, ues, beta, learner.local_steps)
        new, merging = merge_now(merge, dict(params), arrived, merging)
    return {name: np.asarray(values) for name, values in new.items()}, merging


def _with_nothing(update: Arrays, params: Arrays) -> Arrays:
    """An update with zeros for what its device keeps for itself."""
    return {name: update[name] if name in update else np.zeros_like(values) for name, values in params.items()}


def _stacked(rows: Sequence[Arrays]) -> dict[str, np.ndarray]:
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}
