"""Define the state of the clock: the fixed conditions, the work of every UE, the servers and cells, and what happened in a round."""

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float, Int

from perfeds2.allocation.bandwidth import Mask, Policy, Uplink, chooses_more, equal_share
from perfeds2.network.cell import Cell
from perfeds2.network.energy import EnergyModel
from perfeds2.network.fleet import Presence
from perfeds2.network.link import Numbers, PerUe
from perfeds2.timeline.jobs import OPEN, PAUSED, Jobs
from perfeds2.timeline.protocol import IDLE, NO_UES, Closing, Planned, Protocol, Server, oldest_version

Ues = Int[np.ndarray, " _"]
# When a policy shares the band again: when a round opens, or also whenever a UE starts or stops sending or fading changes.
Reshare = Literal["round", "events"]
# Maps a round number to the UEs that close the round, or to groups of UEs: the first complete one closes it.
# If its parameter is named ``moment``, the schedule gets a ``Moment`` instead of the round number.
Schedule = Callable[[Any], Planned]
FOREVER = np.iinfo(np.int64).max  # rounds
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


# ---- What stays the same


@dataclass(frozen=True)
class Network:
    """Cells that affect each other, all with the same UEs: jobs that follow their UEs, and interference."""

    cells: Sequence[Cell]
    trip_s: Float[np.ndarray, "S E"]  # from the cell that an update is sent to, to the server that gave the job
    co_channel: Bool[np.ndarray, "E E"] | None = None  # in which cells uploads are noise for each; None: in none
    hours: Presence | None = None  # when UEs are present in any cell; None: always
    keeps: bool = True  # whether a UE that is handed over keeps its job


@dataclass(frozen=True)
class Conditions:
    """What stays the same from round to round."""

    cell: Cell
    protocol: Protocol
    payload_bits: PerUe | float  # Z: bits of one upload; one number is that of every UE
    compute_s: PerUe  # computing time of one job
    shares: PerUe  # η
    bandwidth: Policy = equal_share
    schedule: Schedule | None = None  # None: a round closes on the first A arrivals
    budget: Budget | None = None  # None: no UE runs out of energy
    feedback: PerUe | None = None  # what each UE last reported; changed in place from chunk to chunk
    network: Network | None = None  # the cells of a server that has several; ``cell`` then has all UEs
    reshare: Reshare = "round"
    events: Sequence[Any] = ()  # further sources of events (``EventSource``)

    @cached_property
    def full_bits(self) -> PerUe:
        """Bits of one upload of each UE."""
        return np.broadcast_to(np.asarray(self.payload_bits, float), self.cell.ues)

    @cached_property
    def usual_s(self) -> PerUe:
        """Expected time from hand-out until a UE has computed its update."""
        cell = self.cell
        return self.compute_s + (cell.model_s(self.protocol.quorum) - cell.downlink_s if cell.downlink else 0.0)

    @cached_property
    def chooses_more(self) -> bool:
        """Whether the policy chooses powers and frequencies too."""
        return chooses_more(self.bandwidth)

    @cached_property
    def needs_moment(self) -> bool:
        """Whether the schedule takes a ``Moment`` instead of a round number."""
        return self.schedule is not None and "moment" in inspect.signature(self.schedule).parameters


@dataclass(frozen=True)
class JobTimes:
    """When the current part of each UE's job began, for fleets where UEs leave and return or jobs differ."""

    begun_s: PerUe
    sending_s: PerUe  # when the UE begins to send, if it stays
    model_s: PerUe  # how long the part waits for the model

    def begin(self, ues: Ues, now_s: float, compute_s: PerUe, job_s: PerUe) -> "JobTimes":
        """Begin or continue the jobs of these UEs, given the time left to wait and compute, and that of the whole job."""
        begun_s, sending_s, model_s = self.begun_s.copy(), self.sending_s.copy(), self.model_s.copy()
        begun_s[ues], sending_s[ues] = now_s, now_s + compute_s[ues]
        model_s[ues] = np.maximum(compute_s[ues] - job_s[ues], 0.0)
        return JobTimes(begun_s, sending_s, model_s)


# ---- The state between two events


def empty() -> PerUe:
    return np.empty(0)


@dataclass
class SpeedAndPower:
    """What the policy has chosen besides the band, as fractions of the highest frequency and power."""

    speed: PerUe  # of the processor, for the current job
    power: PerUe  # while the UE sends; 0 without any band
    starts: Mask  # jobs that begin now, so that their frequency can be chosen


@dataclass
class Luck:
    """How the uploads of the current jobs will go."""

    fails: Mask
    version: Numbers  # of the UE's last job
    attempt: Numbers  # jobs on this version before it


@dataclass
class CellState:
    """A cell: how its base station receives the UEs now, and how it shares its band."""

    cell: Cell
    signal_hz: PerUe = field(default_factory=empty)
    uplink: Uplink | None = None  # as the policy saw it; None: ask the policy before time goes on
    bandwidth_hz: PerUe = field(default_factory=empty)
    free_s: float = 0.0  # when the base station has sent all models


@dataclass
class ServerState:
    """A server and the jobs that it has handed out. Arrays are replaced, never changed after an event."""

    conditions: Conditions
    server: Server
    arrived_s: PerUe  # when each update was complete at the server; infinite if it is not
    sent_s: PerUe  # when it was sent to a base station; differs from ``arrived_s`` for uploads on the backhaul
    closed_s: float = 0.0  # when the last round closed, and the model of the open one was made
    left: int = FOREVER  # rounds to play; an edge then waits for the cloud; below 0: none can close
    jobs: JobTimes | None = None  # None in a plain cell
    model_s: PerUe | None = None  # how long after ``closed_s`` each UE has its model; None if always at once
    begun_s: float = 0.0  # when the open round began
    opens_s: float = math.inf  # when the cloud's model will be at an edge that waits for it, if that is settled
    sent_to: Ues = field(default_factory=lambda: NO_UES)  # the cell that each update was sent to, in a network
    planned: Planned | None = None  # UEs that close the round, if only they get its model
    arrival_s: PerUe = field(default_factory=empty)  # when each update arrives if nothing changes
    interrupted: list[Jobs] = field(default_factory=list)  # parts of jobs since the round opened

    @property
    def busy(self) -> Mask:
        """UEs with a job that is not sent."""
        return (self.server.versions != IDLE) & np.isinf(self.arrived_s)

    @property
    def waits(self) -> bool:
        """Whether an edge waits for the cloud's model."""
        return math.isinf(self.server.opened_s)

    def parts(self, ues: Ues, outcome: int, now_s: float, present: Mask | None) -> Jobs:
        """Return the current parts of these UEs' jobs, over now. The part of an absent UE is empty, unless it arrived."""
        jobs, server, until_s = self.jobs, self.server, np.minimum(self.sent_s[ues], now_s)
        assert jobs is not None
        now = np.full(ues.size, now_s)
        begun_s, sending_s = jobs.begun_s[ues], np.minimum(jobs.sending_s[ues], until_s)
        if present is not None:
            away = ~present[ues] & np.isinf(self.arrived_s[ues])
            begun_s, sending_s, until_s = (np.where(away, now, times_s) for times_s in (begun_s, sending_s, until_s))
        sending_s = np.maximum(sending_s, begun_s)
        outcomes, rounds = np.full(ues.size, outcome), np.full(ues.size, server.round)
        times_s, ended = (begun_s, sending_s, until_s, now), (outcomes, rounds)
        arrived, one_each = self.arrived_s[ues] <= now_s, np.ones_like(ues)
        return Jobs(ues, server.versions[ues], *times_s, *ended, jobs.model_s[ues], arrived, one_each)

    def open_parts(self, now_s: float, present: Mask | None) -> Jobs | None:
        """Return the current parts of all open jobs; None in a plain cell."""
        open_ = np.flatnonzero(self.server.versions != IDLE)
        return None if self.jobs is None else self.parts(open_, OPEN, now_s, present)


@dataclass
class ClockState:
    """The work left to every UE at a time, the servers and the cells. Arrays are replaced when time goes on.

    A single cell has one server. In a network, each cell has a server of its own, or one server has all cells.
    """

    time_s: float
    compute_s: PerUe  # seconds left to wait for the model and to compute
    bits: PerUe  # bits left to send; 0 without an unsent upload
    servers: list[ServerState]
    cells: list[CellState]
    network: Network | None = None  # None: a single cell
    spent_j: PerUe | None = None  # None without a budget
    present: Mask | None = None  # UEs that are present; None if all are
    serving: Ues = field(default_factory=lambda: NO_UES)  # the cell of each UE, in a network
    job_s: PerUe | None = None  # computing time of each UE's unsent job; None in a plain cell
    rate_factor: PerUe | None = None  # multiplies the rate of the UE's own uplink; None in a plain cell
    chosen: SpeedAndPower | None = None  # None if the policy shares only the band
    luck: Luck | None = None  # None if uploads have no errors
    weak: Mask = field(default_factory=lambda: np.empty(0, bool))  # uploads in outage, if there is a rule for them
    rate_bps: PerUe = field(default_factory=empty)
    # When each upload is sent if nothing changes; in a network infinite without one.
    sent_s: PerUe = field(default_factory=empty)
    # Time, servers and presence when a round last closed; None: as now.
    before: "tuple[float, list[ServerState], Mask | None] | None" = None

    def server_of(self, cell: int) -> ServerState:
        """Return the server that a cell belongs to."""
        return self.servers[cell if len(self.servers) > 1 else 0]

    def cells_of(self, server: int) -> range:
        """Return the cells of a server."""
        return range(server, server + 1) if len(self.servers) > 1 else range(len(self.cells))

    def in_cell(self, cell: int) -> Mask | None:
        """Return the UEs that are present in a cell; None if all are."""
        return self.present if self.network is None else self._and_present(self.serving == cell)

    def in_reach(self, server: int) -> Mask | None:
        """Return the UEs that are present in the cells of a server; None if all are."""
        return self.in_cell(server) if len(self.servers) > 1 else self.present

    def go_on(self, ues: Ues) -> None:
        """Begin another part of these UEs' unsent jobs, because the seconds that they still compute have changed."""
        for server in self.servers:
            busy = ues[server.busy[ues]]
            server.interrupted.append(server.parts(busy, PAUSED, self.time_s, self.present))
            self.begin_parts(server, busy)

    def begin_parts(self, server: ServerState, ues: Ues) -> None:
        """Begin or continue these UEs' jobs."""
        assert server.jobs is not None
        assert self.job_s is not None
        server.jobs = server.jobs.begin(ues, self.time_s, self.compute_s, self.job_s)

    @property
    def presence(self) -> Presence | None:
        """When UEs are present; None if they always are."""
        fleet = self.cells[0].cell.fleet
        if self.network is not None:
            return self.network.hours
        return None if fleet is None else fleet.presence

    def _and_present(self, ues: Mask) -> Mask:
        return ues if self.present is None else ues & self.present


@dataclass
class RoundInfo:
    """What happened in one round."""

    start_s: float
    closing: Closing
    lost: Ues  # whose job ended without a merge
    staleness: Int[np.ndarray, " A"]
    uplink: Uplink
    bandwidth_hz: PerUe
    rate_bps: PerUe
    arrival_s: PerUe  # when each update arrives if the round stays open long enough
    versions: Numbers  # the model each UE worked from when the round closed
    interrupted: Sequence[Jobs]  # parts of jobs whose UE left before the round closed
    ended: Sequence[Jobs]  # parts of jobs that ended when the round closed
    handed: Ues = field(default_factory=lambda: NO_UES)  # that start a new job when the round closes
