"""Assign the model versions of a timeline to the slots of a short buffer, the shelf."""

import heapq

import numpy as np
from jaxtyping import Int

from perfeds2.timeline.jobs import OPEN
from perfeds2.timeline.record import Timeline

LEAST_SLOTS = 32


def shelve(
    timeline: Timeline, written: Int[np.ndarray, " first"] | None = None, slots: int = LEAST_SLOTS
) -> tuple[int, Int[np.ndarray, "K A"], Int[np.ndarray, " K"]]:
    """Assign a slot of the shelf to every version that will be read, until its last read.

    w_0 is in slot 0. The last slot takes the versions that are never read.

    Args:
        timeline: The timeline.
        written: For a timeline that still grows: the slots that its first rounds have written. Versions that open
            jobs work from are kept.
        slots: The least number of slots.

    Returns:
        The number of slots, the slot each merge reads, and the slot each round writes. Rounds that were written
        before read nothing.
    """
    rounds, versions = timeline.rounds, timeline.versions
    first = 0 if written is None else written.size
    last_read = np.full(rounds + 1, -1)
    np.maximum.at(last_read, versions[first:], np.arange(first, rounds)[:, None])
    place = np.full(rounds + 1, -1)
    place[0] = 0
    if written is not None:
        place[1 : first + 1] = written
        last_read[timeline.rows(OPEN).version] = rounds
        last_read[_newest(timeline, rounds)] = rounds  # UEs may get these before the next round closes
        last_read[_newest(timeline, first)] = rounds  # the cloud's model may replace these
    held = np.flatnonzero(last_read[: first + 1] >= 0)
    length = 1 + int(place[held].max(initial=0))
    taken = [(int(last_read[version]), int(place[version])) for version in held]  # (last round that reads it, slot)
    taken += [(-1, slot) for slot in set(range(length)) - set(place[held].tolist())]
    heapq.heapify(taken)
    for version in range(first + 1, rounds + 1):
        if last_read[version] < 0:
            continue
        if taken[0][0] < version:  # a round reads before it writes, so round version − 1 may be its last reader
            _, free = heapq.heappop(taken)
        else:
            free, length = length, length + 1
        place[version] = free
        heapq.heappush(taken, (int(last_read[version]), free))
    slots = max(slots, power_of_two(length + 1))
    place[place < 0] = slots - 1
    return slots, place[versions], place[1:]


def _newest(timeline: Timeline, rounds: int) -> Int[np.ndarray, " E"]:
    """Return the newest version of every server after this many rounds."""
    if timeline.cloud is None:
        return np.array([rounds])
    newest = np.zeros(timeline.cloud.edges, np.int64)
    newest[timeline.cloud.cell[:rounds]] = np.arange(1, rounds + 1)
    return newest


def power_of_two(size: int) -> int:
    return 1 << max(size - 1, 1).bit_length()
