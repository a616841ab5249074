"""What is the slow twin of the clock told? The radio, the batteries, the mast and the rules, and how it tells a round."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from perfeds2.allocation.bandwidth import Uplink

Steps = tuple[Sequence[tuple[float, float]], float]


@dataclass(frozen=True)
class Radio:
    """What the model is given about the cell."""

    signal_hz: Callable[[int], np.ndarray]  # of a round; with a coherence time, of a block of time
    bandwidth_hz: float
    policy: Callable[[Uplink], np.ndarray]
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
