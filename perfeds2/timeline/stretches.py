"""Which stretches of work does a job consist of, where UEs come and go?

A job that is interrupted is several rows, each within one stay of its UE; the last says how the job ended. From these rows a
timeline tells what UEs did when, exactly, and what it took of their batteries.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float, Int

from perfeds2.timeline.rounds import IDLE
from perfeds2.timeline.timeline import OPEN, PAUSED, Jobs

if TYPE_CHECKING:
    from perfeds2.timeline.simulate import Clock


def stretches(
    clock: "Clock",
    ues: Int[np.ndarray, " j"],
    until_s: Float[np.ndarray, " j"],
    end_s: float,
    outcome: int,
    here: Bool[np.ndarray, " n"] | None = None,
) -> Jobs:
    """The last stretches of these UEs' jobs: working until a second, over at another. Who is away has none, but an end."""
    assert clock.begun_s is not None
    assert clock.sends_s is not None
    end = np.full(ues.size, end_s)
    begun_s, sends_s = clock.begun_s[ues], np.minimum(clock.sends_s[ues], until_s)
    if here is not None:
        away = ~here[ues] & np.isinf(clock.arrived_s[ues])
        begun_s, sends_s, until_s = (np.where(away, end, each) for each in (begun_s, sends_s, until_s))
    version, many = clock.server.versions[ues], lambda *values: (np.full(ues.size, value) for value in values)
    return Jobs(ues, version, begun_s, np.maximum(sends_s, begun_s), until_s, end, *many(outcome, clock.server.round))


@dataclass(frozen=True)
class Ended:
    """The work that ended in a round."""

    log: Jobs
    gone: Int[np.ndarray, " g"]  # who left and lost a job,
    gone_version: Int[np.ndarray, " g"]  # and on which model

    def lost_rows(self, round_: int) -> list[np.ndarray]:
        """The jobs of those who left, as a timeline has lost ones."""
        size = self.gone.size
        return [self.gone, self.gone_version, np.full(size, round_), np.full(size, np.inf), np.ones(size, np.int64)]


class Log:
    """Collects stretches of work, from where a log ended."""

    def __init__(self, past: Jobs | None) -> None:
        self.parts = [] if past is None else [take(past, np.flatnonzero(past.outcome != OPEN))]

    def until(self, clock: "Clock", here: Bool[np.ndarray, " n"] | None) -> Jobs:
        """All of it, and what everybody has in hand when the clock stops."""
        ues = np.flatnonzero(clock.server.versions != IDLE)
        here = np.ones(clock.bits.size, bool) if here is None else here
        working_s = np.minimum(clock.arrived_s[ues], clock.time_s)
        return in_order(Jobs.joined([*self.parts, stretches(clock, ues, working_s, clock.time_s, OPEN, here)]))


def in_order(log: Jobs) -> Jobs:
    """By UE and time: however it was cut and joined, a log is the same."""
    return take(log, np.lexsort((log.outcome, log.end_s, log.start_s, log.round, log.version, log.ue)))


def take(log: Jobs, rows: np.ndarray) -> Jobs:
    return Jobs(*(column[rows] for column in log.columns.values()))


def whole(log: Jobs) -> tuple[Int[np.ndarray, " j"], Int[np.ndarray, " j"]]:
    """For each row of an ordered log how its job ended, and in which round: what its last row says."""
    last = np.where(log.outcome == PAUSED, log.ue.size - 1, np.arange(log.ue.size))
    last = np.minimum.accumulate(last[::-1])[::-1]  # the next row that is not paused
    return log.outcome[last], log.round[last]


def cut(log: Jobs, rounds: int, time_s: float) -> tuple[Jobs, Jobs]:
    """An ordered log as it was when so many rounds had closed, at a second; and, once more, what was open then."""
    _, over = whole(log)
    log, over = (take(log, begun := np.flatnonzero((log.version <= rounds) & (log.start_s <= time_s))), over[begun])
    running, held = log.round >= rounds, over >= rounds
    outcome = np.where(running, OPEN, log.outcome)
    # of a job that is paused then, nothing is running
    last = held & ~np.append((log.ue[1:] == log.ue[:-1]) & held[1:], False)
    away = np.flatnonzero(last & ~running)
    now = np.full(away.size, time_s)
    paused = Jobs(
        log.ue[away], log.version[away], now, now, now, now, np.full(away.size, OPEN), np.full(away.size, rounds)
    )
    sending_s, arrival_s, end_s = (np.minimum(each, time_s) for each in (log.sending_s, log.arrival_s, log.end_s))
    round_ = np.minimum(log.round, rounds)
    kept = Jobs(log.ue, log.version, log.start_s, sending_s, arrival_s, end_s, outcome, round_)
    whole_log = in_order(Jobs.joined([kept, paused]))
    at_hand = Jobs.joined([take(log, np.flatnonzero(running)), paused])
    return whole_log, at_hand
