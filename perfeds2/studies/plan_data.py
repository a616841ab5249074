"""What does a plan say? Pure data: it needs no JAX, and goes to JSON and back."""

import math
from dataclasses import dataclass, replace
from functools import cache
from html import escape
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pydantic

from perfeds2.learning.metrics import Score, score_of
from perfeds2.runs.statistics import censored_median
from perfeds2.shown import as_html, axes_for, in_a_line

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

State = Literal["kept", "late", "lost", "never", "diverged"]
Verdict = Literal["holds", "on an edge", "wavers", "fails", "breaks a limit", "slower", "not possible"]
A_THIRD = 1 / 3  # of the seeds: so many may not lose the target again
MAP_IN = (6.0, 2.6)  # inches
CLEARLY = 0.75  # of the later looks: a neighbour that holds the target in fewer, and falls far below it, fails


@dataclass(frozen=True, order=True)
class Choice:
    """One way to run a cell: everything that is searched."""

    quorum: int  # A
    max_staleness: int | None  # S; None is no bound
    schedule: str  # what closes a round: "first" arrivals, or a plan
    bandwidth: str
    stale: str
    local_steps: int
    bits: int  # for each number of an upload

    def with_(self, **changed: Any) -> "Choice":
        return replace(self, **changed)

    @property
    def bound(self) -> str:
        return "unbounded" if self.max_staleness is None else str(self.max_staleness)

    def __str__(self) -> str:
        closes = "first arrivals" if self.schedule == "first" else f"schedule {self.schedule}"
        return f"A = {self.quorum}, S = {self.bound}, {closes}, {', '.join(self.details)}"

    @property
    def details(self) -> list[str]:
        steps = f"{self.local_steps} local step{'s' if self.local_steps > 1 else ''}"
        return [f"band {self.bandwidth}", f"stale {self.stale}", steps, f"{self.bits} bits"]


@dataclass(frozen=True)
class Target:
    """What is to be reached and kept."""

    accuracy: float  # personalised, on test data, or what stands for it
    metric: str
    keep: float  # the share of later looks in which it must be held
    horizon_s: float  # so long every choice is watched
    confirm_s: float  # so long the one that is recommended is watched
    horizon_from: str  # who says so

    @property
    def score(self) -> Score:
        return score_of(self.metric)

    @property
    def words(self) -> str:
        return f"{self.score.level(self.accuracy)} personalised test {self.score.word}"


@dataclass(frozen=True)
class Limits:
    """What a choice may not exceed, in any seed."""

    within_s: float | None = None  # the target is kept from then on
    joules: float | None = None  # of all UEs together, until the target is kept
    least_share: float | None = None  # of the merges, of any UE; None: nobody is left out altogether


@dataclass(frozen=True)
class Trial:
    """One seed of a choice, trained and watched."""

    seed: int
    state: State
    time_s: float | None  # when the target was reached and kept from then on
    reached_s: float | None  # when it was first reached, kept or not
    held: float | None  # the share of looks from then on in which it was held
    joules: float | None  # of all UEs until it was kept
    least_share: float  # of the merges: the UE that had fewest
    scores: tuple[float | None, ...]  # at equal distances from 0 to the horizon; None is no number
    fall: float  # how far it fell back below the target, or its best before, as a part of the way from the start to the target

    @property
    def fails(self) -> bool:
        """Whether it is clearly unstable. One that is only slow, or hovers about the target for a while, is not."""
        if self.state in ("lost", "late"):
            return (self.held or 0.0) < CLEARLY and self.fall > 0.1
        return self.state == "diverged" or (self.state == "never" and self.fall > 1 - CLEARLY)


@dataclass(frozen=True)
class ClockFacts:
    """What the clock shows of a choice, without training anything; of the first seed."""

    seconds_per_round: float
    merges_per_s: float
    staleness_mean: float
    staleness_max: int
    waiting_share: float
    least_share: float


@dataclass(frozen=True)
class Neighbour:
    """A choice one step away, and whether it stands."""

    axis: str
    choice: Choice
    fails: bool
    why: str


@dataclass(frozen=True)
class Candidate:
    """A choice and all that is known of it."""

    choice: Choice
    verdict: Verdict
    why: str  # in words, where it is not taken
    clock: ClockFacts | None = None
    scouted_s: float | None = None  # when its first seed reached the target, in a short look
    trials: tuple[Trial, ...] = ()  # watched for the whole horizon
    neighbours: tuple[Neighbour, ...] = ()  # those that were looked at
    confirmed: tuple[Trial, ...] = ()  # watched longer, before it is recommended

    @property
    def quorum(self) -> int:
        return self.choice.quorum

    @property
    def max_staleness(self) -> int | None:
        return self.choice.max_staleness

    @property
    def seconds(self) -> float | None:
        """The median over seeds of when the target was kept; None if half of them or more did not keep it."""
        return median_s(self.trials)

    @property
    def span_s(self) -> tuple[float, float] | None:
        times = [trial.time_s for trial in self.trials if trial.time_s is not None]
        return (min(times), max(times)) if times else None

    @property
    def kept(self) -> int:
        return sum(trial.state == "kept" for trial in self.trials)

    @property
    def held(self) -> float | None:
        """The mean over seeds of the share of looks that held the target once it had been reached."""
        shares = [trial.held or 0.0 for trial in self.confirmed or self.trials]
        return float(np.mean(shares)) if shares else None

    @property
    def joules(self) -> float | None:
        return censored_median([trial.joules for trial in self.trials]) if self.trials else None

    @property
    def least_share(self) -> float | None:
        return min((trial.least_share for trial in self.trials), default=None)


def median_s(trials: tuple[Trial, ...] | list[Trial]) -> float | None:
    return censored_median([trial.time_s for trial in trials]) if trials else None


def too_many_fail(trials: tuple[Trial, ...] | list[Trial]) -> bool:
    """Whether a third of the seeds or more are unstable."""
    return bool(trials) and sum(trial.fails for trial in trials) >= math.ceil(A_THIRD * len(trials) - 1e-9)


@dataclass(frozen=True)
class MeasuredConstant:
    """One constant of the assumptions, with what is known of its uncertainty."""

    name: str
    symbol: str
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class BoundRounds:
    """How many rounds a bound asks for, or why it promises nothing."""

    rounds: int | None
    seconds: float | None
    obstacle: str | None


@dataclass(frozen=True)
class Theory:
    """What the lemmas make of the measured constants, and what the bounds then ask for, at the plan's choice."""

    epsilon: float  # mean over the rounds of ‖∇F(w_k)‖², of the choice's training until the target
    constants: tuple[MeasuredConstant, ...]
    obstacle: str | None  # why there is no more
    smoothness: float | None = None  # L_F
    noise: float | None = None  # σ_F²
    diversity: float | None = None  # γ_F²
    gap: float | None = None  # F(w_0) − F*
    beta: float | None = None  # β, what the spec steps
    largest_beta_printed: float | None = None
    largest_beta_sharpened: float | None = None
    largest_beta_proved: float | None = None
    printed_quorum: float | None = None  # A* as printed; None where S or the shares allow none
    corrected_quorum: int | None = None  # A*, corrected
    rounds: int | None = None  # K* for the corrected A*
    meets_target: bool | None = None  # whether the printed bound's second term stays within ε at the corrected A*
    promises: tuple[tuple[str, BoundRounds], ...] = ()  # by the paper's rule, and by each bound


@dataclass(frozen=True, repr=False)
class Plan:
    """Which choice reaches the target soonest and keeps it, and how to adopt it."""

    perfeds2: str  # version
    task: str
    radio: str
    population: int  # n
    algorithm: str
    seeds: tuple[int, ...]
    target: Target
    limits: Limits
    candidates: tuple[Candidate, ...]
    choice: int | None  # the place of the choice among the candidates; None: nothing can be recommended
    asked: int  # the place of what the spec itself says
    checked: bool  # whether that was to be checked
    sentence: str
    check: str | None  # whether what was asked for holds, and what is better
    command: str | None  # the line that adopts it; None where something was given from Python
    theory: Theory | None
    trainings: int  # how many it took
    notes: tuple[str, ...]

    def __repr__(self) -> str:
        best, what = self.best, (self.task, f"{self.population:,} UEs", self.target.words)
        if best is None:
            return in_a_line(self, *what, f"none of {len(self.candidates)} choices keeps it")
        return in_a_line(self, *what, f"soonest after {best.seconds or math.nan:.3g} s with {best.choice}")

    def _repr_html_(self) -> str:
        table = self.frame().drop(columns=["why", "scouted_s", "least_share"])
        adopt = "" if self.command is None else f"<pre>{escape(self.command)}</pre>"
        return as_html(self.sentence, table, self.plot, MAP_IN) + adopt

    def frame(self) -> "pd.DataFrame":
        """One row per choice: the one recommended, what was asked, then those that were watched, soonest first."""
        from perfeds2.studies.plan_shown import frame_of

        return frame_of(self)

    def plot(self, axes: "Axes | None" = None) -> "Axes":
        """A × S around the choice: seconds until the target is kept, and whether it is."""
        from perfeds2.studies.plan_shown import draw_plan

        return draw_plan(axes_for(axes, MAP_IN), self)

    @property
    def best(self) -> Candidate | None:
        return None if self.choice is None else self.candidates[self.choice]

    def find(self, choice: Choice) -> Candidate | None:
        return next((each for each in self.candidates if each.choice == choice), None)

    def to_json(self) -> str:
        return _adapter().dump_json(self, indent=1).decode()

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        return _adapter().validate_json(text)


@cache
def _adapter() -> Any:
    return pydantic.TypeAdapter(Plan)
