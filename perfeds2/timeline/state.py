"""Define the state of the clock: the fixed conditions, the progress of every UE, and the record of a round."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from perfeds2.allocation.bandwidth import Mask, Policy, Uplink, equal_share
from perfeds2.network.availability import Availability
from perfeds2.network.cell import Cell
from perfeds2.network.energy import EnergyModel
from perfeds2.network.handover import Attached, Settled
from perfeds2.network.link import Numbers, PerUe
from perfeds2.timeline.jobs import OPEN, Jobs
from perfeds2.timeline.protocol import IDLE, Closing, Planned, Protocol, Server, oldest_version

Ues = Int[np.ndarray, " _"]
WorkLeft = tuple[PerUe, PerUe, PerUe]  # compute_s, bits and arrived_s, as in ``Clock``
# Maps a round number to the UEs that close the round, or to groups of UEs: the first complete one closes it.
# If its parameter is named ``moment``, the schedule gets a ``Moment`` instead of the round number.
Schedule = Callable[[Any], Planned]
ALL_BUT = 1 - 1e-9  # a budget counts as spent from this fraction on, because sums are rounded


# ---- Energy: a UE's budget is checked only when it would get a model, so a UE always finishes a job it has begun


@dataclass(frozen=True)
class Work:
    """The work that every UE has left at a time."""

    time_s: float
    compute_s: PerUe
    bits: PerUe


@dataclass(frozen=True)
class Budget:
    """The energy that each UE may spend, and the power that its work draws."""

    joules: PerUe | float  # infinite for a UE without a budget
    computing_w: PerUe
    sending_w: PerUe
    joules_per_bit: float
    computing_s: PerUe  # of one job, once its model has arrived

    @classmethod
    def of(cls, joules: PerUe | float, model: EnergyModel, cell: Cell, samples: float | PerUe) -> "Budget":
        computing_s = cell.compute_s(samples) - cell.downlink_s
        return cls(joules, model.computing_w(cell), model.radio_w(cell), model.joules_per_bit, computing_s)

    def spent(self, before: Work, after: Work, arrival_s: PerUe, job_s: PerUe | None = None) -> PerUe:
        """Return the joules spent between two times, given that no job starts between them.

        ``arrival_s`` is when each update is complete. ``job_s`` is the computing time of each UE's current job, if
        jobs of a UE differ.
        """
        job_s = self.computing_s if job_s is None else job_s
        computed_s = np.minimum(before.compute_s, job_s) - np.minimum(after.compute_s, job_s)
        began_s, ended_s = before.time_s + before.compute_s, np.minimum(arrival_s, after.time_s)
        sent_s = np.where(before.bits > 0, np.maximum(ended_s - began_s, 0.0), 0.0)
        bits_j = self.joules_per_bit * (before.bits - after.bits)
        return self.computing_w * computed_s + self.sending_w * sent_s + bits_j

    def gone(self, spent_j: PerUe) -> Mask:
        return spent_j >= self.joules * ALL_BUT


def too_few(versions: Numbers, round_: int, protocol: Protocol, has_energy: Mask | None = None) -> bool:
    """Return whether fewer than A UEs have a job that this round could merge, so that it can never close.

    If UEs leave and return, an idle UE with energy counts too, because it may still get a job.
    """
    can = versions >= oldest_version(round_, protocol)
    can = can if has_energy is None else can | (has_energy & (versions == IDLE))
    return int(np.count_nonzero(can)) < protocol.quorum


# ---- The clock


@dataclass(frozen=True)
class Conditions:
    """What stays the same from round to round."""

    cell: Cell
    protocol: Protocol
    payload_bits: float  # Z: bits of one upload
    compute_s: PerUe  # computing time of one job
    shares: PerUe  # η
    bandwidth: Policy = equal_share
    schedule: Schedule | None = None  # None: a round closes on the first A arrivals
    budget: Budget | None = None  # None: no UE runs out of energy
    feedback: PerUe | None = None  # what each UE last reported; changed in place from chunk to chunk

    @cached_property
    def usual_s(self) -> PerUe:
        """Expected time from hand-out until a UE has computed its update."""
        cell = self.cell
        return self.compute_s + (cell.model_s(self.protocol.quorum) - cell.downlink_s if cell.downlink else 0.0)

    @property
    def presence(self) -> Availability | Attached | Settled | None:
        """When UEs are present; None if they always are."""
        return None if self.cell.fleet is None else self.cell.fleet.presence

    @cached_property
    def has_idle(self) -> bool:
        """Whether a UE may be without a job."""
        protocol = self.protocol
        resting = protocol.waits or protocol.rests or protocol.rest_rounds > 1
        return resting or self.budget is not None or self.presence is not None

    @cached_property
    def looks(self) -> bool:
        """Whether the schedule takes a ``Moment`` instead of a round number."""
        return self.schedule is not None and "moment" in inspect.signature(self.schedule).parameters


@dataclass(frozen=True)
class JobTimes:
    """The times of each UE's job, for fleets where UEs leave and return or jobs differ."""

    begun_s: PerUe  # when the current part began
    sending_s: PerUe  # when the UE begins to send, if it stays
    model_s: PerUe  # how long the part waits for the model
    job_s: PerUe  # computing time of the whole job
    rate_factor: PerUe  # multiplies the rate of the UE's own uplink

    def begin(self, ues: Ues, now_s: float, compute_s: PerUe) -> "JobTimes":
        """Begin or continue the jobs of these UEs; ``compute_s`` is the time left to wait and compute."""
        begun_s, sending_s, model_s = self.begun_s.copy(), self.sending_s.copy(), self.model_s.copy()
        begun_s[ues], sending_s[ues] = now_s, now_s + compute_s[ues]
        model_s[ues] = np.maximum(compute_s[ues] - self.job_s[ues], 0.0)
        return replace(self, begun_s=begun_s, sending_s=sending_s, model_s=model_s)


@dataclass(frozen=True)
class Clock:
    """The state of every UE at one time."""

    time_s: float
    server: Server
    compute_s: PerUe  # seconds left to wait for the model and to compute
    bits: PerUe  # bits left to send
    arrived_s: PerUe  # when the update was complete at the server; infinite if it is not
    planned: Planned | None = None  # UEs that close the round, if only they get its model
    spent_j: PerUe | None = None  # None without a budget
    model_s: PerUe | None = None  # how long each UE waited for its model; None without a downlink
    sent_s: float = 0.0  # when the base station has sent all models
    jobs: JobTimes | None = None  # None in a plain cell

    @property
    def work(self) -> Work:
        return Work(self.time_s, self.compute_s, self.bits)

    @property
    def busy(self) -> Mask:
        """UEs with a job that has not arrived."""
        return (self.server.versions != IDLE) & np.isinf(self.arrived_s)


class Air(NamedTuple):
    """The bandwidths in use, and the rates and arrival times they give if nothing changes."""

    uplink: Uplink
    bandwidth_hz: PerUe
    rate_bps: PerUe
    arrival_s: PerUe  # infinite for absent UEs


@dataclass(frozen=True)
class RoundInfo:
    """What happened in one round."""

    start_s: float
    closing: Closing
    handed: Ues  # that start a new job when the round closes
    lost: Ues  # whose job ended without a merge
    staleness: Int[np.ndarray, " A"]
    uplink: Uplink
    bandwidth_hz: PerUe
    rate_bps: PerUe
    arrival_s: PerUe  # when each update arrives if the round stays open long enough
    versions: Numbers  # the model each UE worked from when the round closed
    interrupted: Sequence[Jobs]  # parts of jobs whose UE left before the round closed
    ended: Sequence[Jobs]  # parts of jobs that ended when the round closed


def open_parts(clock: Clock, present: Mask | None) -> Jobs:
    """Return the current parts of all open jobs."""
    ues = np.flatnonzero(clock.server.versions != IDLE)
    return parts_of(clock, ues, np.minimum(clock.arrived_s[ues], clock.time_s), OPEN, clock.time_s, present)


def parts_of(
    clock: Clock,
    ues: Ues,
    until_s: Float[np.ndarray, " j"],
    outcome: int,
    end_s: float | None = None,
    present: Mask | None = None,
) -> Jobs:
    """Return the current parts of these UEs' jobs, at work until ``until_s`` and over at ``end_s``.

    The part of an absent UE is empty, unless its update has already arrived.
    """
    jobs, server = clock.jobs, clock.server
    assert jobs is not None
    end = np.full(ues.size, clock.time_s if end_s is None else end_s)
    begun_s, sending_s = jobs.begun_s[ues], np.minimum(jobs.sending_s[ues], until_s)
    if present is not None:
        away = ~present[ues] & np.isinf(clock.arrived_s[ues])
        begun_s, sending_s, until_s = (np.where(away, end, each) for each in (begun_s, sending_s, until_s))
    sending_s = np.maximum(sending_s, begun_s)
    model_s = np.minimum(jobs.model_s[ues], sending_s - begun_s)
    outcomes, round_ = np.full(ues.size, outcome), np.full(ues.size, server.round)
    return Jobs(ues, server.versions[ues], begun_s, sending_s, until_s, end, outcomes, round_, model_s)
