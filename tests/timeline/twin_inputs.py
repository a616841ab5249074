"""What the slow twins of the clock are told: radios, batteries, base stations, rules and networks, and how they tell a round."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from perfeds2.allocation.bandwidth import Policy, Uplink

Steps = tuple[Sequence[tuple[float, float]], float]
Levels = Callable[[float], Sequence[Sequence[float]]]  # what UEs measure at a second, in dB, by UE and base station


@dataclass(frozen=True)
class Radio:
    """What the model is given about the cell."""

    signal_hz: Callable[[int], np.ndarray]  # of a round; with a coherence time, of a block of time
    bandwidth_hz: float
    policy: Callable[[Uplink], Any]
    cap: float = math.inf  # bit/s/Hz
    coherence_s: float = math.inf  # how long a block of time is
    own: Mapping[int, Steps] = field(
        default_factory=dict
    )  # phone: (second, bit/s) of an uplink of its own, and its period
    hours: Mapping[int, Steps] = field(default_factory=dict)  # phone: (from, until) when it is there, and its period
    keeps: bool = False  # who leaves keeps its job
    own_bps: np.ndarray | None = None  # for schedules that look
    job: Callable[[int, int], tuple[float, float]] | None = (
        None  # of (phone, version): its seconds, and times its own rate
    )

    cpu_hz: np.ndarray | None = None  # of each, if the policy chooses frequencies and powers
    power_w: float = 1.0
    least_bps: float = 0.0  # with a lower rate an upload waits, or its job is lost
    loses: bool = False
    band: Sequence[tuple[float, float]] = ((0.0, 1.0),)  # (second, share of the band that others leave)
    # Of (phone, version, jobs on it before, gains): how often an upload is sent, and whether it is lost.
    tries: Callable[[int, int, int, np.ndarray], tuple[int, bool]] | None = None

    def give(self, phone: Any, band: float, gain: float) -> None:
        """Give a phone its rate: none, if it would be too low."""
        rate = self.rate(band, gain)
        phone.is_weak = band > 0 and rate < self.least_bps
        phone.set_rate(0.0 if phone.is_weak else rate)

    def rate(self, band: float, gain: float) -> float:
        return band * min(math.log2(1 + gain / band), self.cap) if band > 0 else 0.0


@dataclass(frozen=True)
class Battery:
    """What every phone begins with, and what it takes of it."""

    joules: np.ndarray | float  # of each, or of all
    computing_w: np.ndarray  # of each
    sending_w: np.ndarray
    joules_per_bit: float = 0.0
    model_s: float = 0.0  # part of the computing time that is spent waiting for the model

    def joules_of(self, phone: int) -> float:
        return float(self.joules[phone]) if isinstance(self.joules, np.ndarray) else self.joules


@dataclass(frozen=True)
class Mast:
    """What the base station sends models with."""

    way: str  # multicast or unicast
    model_bits: float
    heard_hz: Callable[[float], np.ndarray]  # what phones hear of it at a second
    usual_s: np.ndarray  # what a schedule is told about how long it takes


@dataclass(frozen=True)
class RoundRules:
    quorum: int
    max_staleness: int | None
    stale: str
    schedule: Callable[..., np.ndarray] | None = None  # of the round's number, or of the moment
    rests: bool = False  # only the planned are handed a model
    drafts: bool = False  # SAFA: who was merged in the round before comes last
    rest_rounds: int = 1  # a UE is merged at most once in this many rounds


@dataclass(frozen=True)
class Round:
    """How one round ended."""

    time_s: float
    ues: tuple[int, ...]  # in order of arrival
    staleness: tuple[int, ...]


@dataclass(frozen=True)
class Site:
    """A base station, and the UEs that it describes."""

    ues: Sequence[int]
    signal_hz: Callable[[int], np.ndarray]  # of these UEs in a round; with a coherence time, in a block of time
    bandwidth_hz: float
    policy: Policy
    cap: float | None = None  # bit/s/Hz
    coherence_s: float = math.inf
    mast: Mast | None = None  # None: models are there at once
    known_hz: Callable[[int], np.ndarray] | None = None  # what policies are told in a round or block; None: the signals
    cpu_hz: np.ndarray | None = None  # of these UEs, if the policy chooses frequencies and powers
    power_w: np.ndarray | float = 1.0  # the highest

    def rate(self, band: float, gain: float) -> float:
        return band * min(math.log2(1 + gain / band), self.cap or math.inf) if band > 0 else 0.0


@dataclass(frozen=True)
class Place:
    """A server: its base stations, and the UEs that its schedule numbers from 0."""

    sites: Sequence[int]
    ues: Sequence[int]
    schedule: Callable[..., np.ndarray] | None
    usual_s: np.ndarray  # of these UEs, from a hand-out until an update is computed
    transfer_s: float = 0.0  # of a model to the cloud
    job: Callable[[int, int], tuple[float, float]] | None = None  # of (UE, version): seconds, and times its own rate
    # Of (UE, version, jobs on it before, signal-to-noise ratio): how often an upload is sent, and whether it is lost then.
    tries: Callable[[int, int, int, float], tuple[int, bool]] | None = None


@dataclass(frozen=True)
class Inputs:
    """What is given. Sequences without another word are by UE."""

    sites: Sequence[Site]
    places: Sequence[Place]
    rules: RoundRules
    compute_s: Sequence[float]
    payload_bits: float
    serving: Sequence[int]  # the base station of each UE at first
    trip_s: Sequence[Sequence[float]]  # of an update, by server and base station
    fixed_s: float = 0.0  # from every hand-out until the model is there
    level_db: Levels | None = None  # None: no UE moves
    hours: Mapping[int, Steps] = field(default_factory=dict)  # by UE: (from, until), and the period
    keeps: bool = True  # a UE that leaves its cell, or the network, keeps its job
    uplinks: dict[int, Steps] = field(default_factory=dict)  # by UE with its own: (second, bit/s), and the period
    own_bps: np.ndarray | None = None  # for schedules
    battery: Battery | None = None
    co_channel: Sequence[Sequence[bool]] = ()  # by base station: whose uploads are noise to it
    shares_at_events: bool = False  # share a band also when a UE starts or stops sending, or fading is redrawn
    cloud: RoundRules | None = None  # None: no cloud
    edge_rounds: int = 1
    least_bps: float = 0.0  # with a lower rate on a band an upload waits, or its job is lost
    loses: bool = False
    band: Sequence[tuple[float, float]] = ((0.0, 1.0),)  # (second, part of every band that others leave)
    reports: Callable[[np.ndarray], np.ndarray] | None = None  # of how often each was merged: what UEs tell schedules
    chunk: int = 0  # rounds of all servers between two reports
