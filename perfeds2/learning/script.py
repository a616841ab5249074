"""Arrange a timeline for the compiled loop of a replay."""

import jax
import numpy as np
from jaxtyping import Array, Int

from perfeds2.learning.cells import CloudScript
from perfeds2.learning.merges import MEAN, Merge, OfMean, Undrafted
from perfeds2.learning.methods.safa import with_undrafted
from perfeds2.learning.settings import setting, traced
from perfeds2.learning.shelf import power_of_two, shelve
from perfeds2.timeline.cloud import edge_versions
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
    def of(cls, timeline: Timeline, merge: Merge | OfMean = MEAN) -> "Script":
        if isinstance(merge, Undrafted):
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
