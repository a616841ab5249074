"""Which stretches of work does a job consist of, where UEs come and go?

A job that is interrupted is several rows, each within one stay of its UE; the last says how the job ended. From these rows a
timeline tells what UEs did when, exactly, and what it took of their batteries.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float, Int

from perfeds2.timeline.jobs import OPEN, Jobs, in_order
from perfeds2.timeline.protocol import IDLE

if TYPE_CHECKING:
    from perfeds2.timeline.simulate import Clock

PerUe = Float[np.ndarray, " n"]


@dataclass(frozen=True)
class InHand:
    """What is known of everybody's job where UEs come and go, or their jobs differ."""

    begun_s: PerUe  # since when it is at work without a break,
    sends_s: PerUe  # when it begins to send, if it stays,
    waits_s: PerUe  # and how long of it it waited for its model
    job_s: PerUe  # how long the job computes altogether
    ease: PerUe  # what the rate of an uplink of its own is multiplied by

    @classmethod
    def nothing(cls, ues: int) -> "InHand":
        nothing = np.zeros(ues)
        return cls(nothing, nothing, nothing, nothing, np.ones(ues))

    def at_work(self, ues: Int[np.ndarray, " b"], now_s: float, compute_s: PerUe) -> "InHand":
        """These begin now, or again, with so much to compute and to wait for."""
        begun_s, sends_s, waits_s = self.begun_s.copy(), self.sends_s.copy(), self.waits_s.copy()
        begun_s[ues], sends_s[ues] = now_s, now_s + compute_s[ues]
        waits_s[ues] = np.maximum(compute_s[ues] - self.job_s[ues], 0.0)
        return InHand(begun_s, sends_s, waits_s, self.job_s, self.ease)


def stretches(
    clock: "Clock",
    ues: Int[np.ndarray, " j"],
    until_s: Float[np.ndarray, " j"],
    end_s: float,
    outcome: int,
    here: Bool[np.ndarray, " n"] | None = None,
) -> Jobs:
    """The last stretches of these UEs' jobs: working until a second, over at another. Who is away has none, but an end."""
    hand = clock.in_hand
    assert hand is not None
    end = np.full(ues.size, end_s)
    begun_s, sends_s = hand.begun_s[ues], np.minimum(hand.sends_s[ues], until_s)
    if here is not None:
        away = ~here[ues] & np.isinf(clock.arrived_s[ues])
        begun_s, sends_s, until_s = (np.where(away, end, each) for each in (begun_s, sends_s, until_s))
    version, outcomes, round_ = (
        clock.server.versions[ues],
        np.full(ues.size, outcome),
        np.full(ues.size, clock.server.round),
    )
    sends_s = np.maximum(sends_s, begun_s)
    waits_s = np.minimum(hand.waits_s[ues], sends_s - begun_s)
    return Jobs(ues, version, begun_s, sends_s, until_s, end, outcomes, round_, waits_s)


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
        self.parts = [] if past is None else [past.take(np.flatnonzero(past.outcome != OPEN))]

    def until(self, clock: "Clock", here: Bool[np.ndarray, " n"] | None) -> Jobs:
        """All of it, and what everybody has in hand when the clock stops."""
        ues = np.flatnonzero(clock.server.versions != IDLE)
        here = np.ones(clock.bits.size, bool) if here is None else here
        working_s = np.minimum(clock.arrived_s[ues], clock.time_s)
        return in_order(Jobs.joined([*self.parts, stretches(clock, ues, working_s, clock.time_s, OPEN, here)]))
