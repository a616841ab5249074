"""Arrange a timeline for the compiled loop of a replay."""

from dataclasses import replace

import jax
import numpy as np
from jaxtyping import Array, Int

from perfeds2.learning.cells import CloudScript
from perfeds2.learning.merges import MEAN, Merge
from perfeds2.learning.settings import setting, traced
from perfeds2.learning.shelf import power_of_two, shelve
from perfeds2.timeline.edges import edge_versions
from perfeds2.timeline.record import Timeline


@traced
class Script:
    """A timeline as the compiled loop reads it: merge after merge, ``quorum`` of them per round.

    Lengths are rounded up and the quorum is traced, so one compiled loop serves the synchronous, semi-synchronous and
    asynchronous timelines of a comparison.
    """

    quorum: Int[Array, "*lanes"]  # scripts of several trainings can be stacked
    ues: Int[Array, "*lanes m"]
    versions: Int[Array, "*lanes m"]  # counted by the UE's own edge
    staleness: Int[Array, "*lanes m"]
    read: Int[Array, "*lanes m"]  # slot of the version on the shelf
    write: Int[Array, "*lanes k"]  # slot of the new model of a round
    cloud: CloudScript | None = None  # with many cells
    slots: int = setting(default=32, static=True)  # length of the shelf

    @classmethod
    def of(cls, timeline: Timeline, merge: Merge = MEAN) -> "Script":
        if "undrafted" in merge.needs:
            timeline = with_undrafted(timeline)
        return cls._of(timeline, *shelve(timeline))

    def grown(self, timeline: Timeline, first: int) -> "Script":
        """Return the script of a timeline that has grown since round ``first``. It may need a longer shelf."""
        return self._of(timeline, *shelve(timeline, np.asarray(self.write)[:first], self.slots))

    @classmethod
    def _of(cls, timeline: Timeline, slots: int, read: np.ndarray, write: np.ndarray) -> "Script":
        length = max(16384, power_of_two(timeline.ues.size))
        rounds, versions = edge_versions(timeline)
        columns = np.zeros((5, length), np.int32)
        parts = (timeline.ues, versions, rounds[:, None] - versions, read, write)
        for row, column in zip(columns, parts, strict=True):
            row[: column.size] = column.ravel()
        cloud = None if timeline.cloud is None else CloudScript.of(timeline.cloud, write)
        return cls(*jax.device_put((np.int32(timeline.quorum), *columns)), cloud=cloud, slots=slots)


def with_undrafted(timeline: Timeline) -> Timeline:
    """Return the timeline of a draft with two halves per row: UEs merged now, and UEs merged the round before.

    Some of the latter have arrived again, with the model they received then. The others are listed with the job that
    was merged last. Computed again, it gives the same model, so all rows have the same length and no entry changes.
    """
    ues, versions = timeline.ues, timeline.versions
    came = set(zip(*(column.tolist() for column in timeline.discarded), strict=True))
    second_ues, second_versions = ues.copy(), versions.copy()
    for k in range(1, timeline.rounds):
        second_ues[k] = ues[k - 1]
        for slot, ue in enumerate(ues[k - 1]):
            again = np.flatnonzero(ues[k] == ue)
            if (ue, k) in came:
                second_versions[k, slot] = k
            else:
                second_versions[k, slot] = versions[k, again[0]] if again.size else versions[k - 1, slot]
    staleness = np.arange(timeline.rounds)[:, None] - second_versions
    return replace(
        timeline,
        ues=np.concatenate([ues, second_ues], axis=1),
        staleness=np.concatenate([timeline.staleness, staleness], axis=1),
        arrival_s=np.concatenate([timeline.arrival_s, timeline.arrival_s], axis=1),
    )
