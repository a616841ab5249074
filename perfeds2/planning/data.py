"""What does a plan say? Pure data: it needs no JAX, and goes to JSON and back."""

from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import pydantic

ClosesOn = Literal["planned", "first"]  # a round closes on its planned UEs, or on the first A arrivals
Source = Literal["pilot", "law"]
Place = tuple[int, int | None, ClosesOn]  # A, S and what closes a round


@dataclass(frozen=True)
class Target:
    """What is to be reached, in the two languages spoken here: a loss for trainings, ε for the bounds."""

    loss: float  # F(w), the mean over UEs of the training loss after one personal step
    epsilon: float  # mean over the rounds of ‖∇F(w_k)‖²
    accuracy: float | None  # personalised test accuracy of the reference pilot where it met the target
    loss_from: str  # who chose the loss, in words
    epsilon_from: str


@dataclass(frozen=True)
class MeasuredConstant:
    """One constant of the assumptions, with what is known of its uncertainty."""

    name: str
    symbol: str
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Theory:
    """What the lemmas make of the constants, and what the bounds then ask for. At the spec's staleness bound."""

    smoothness: float  # L_F
    noise: float  # σ_F²
    diversity: float  # γ_F²
    gap: float  # F(w_0) − F*
    beta: float  # β, what the spec steps
    largest_beta_printed: float
    largest_beta_sharpened: float
    largest_beta_proved: float
    printed_quorum: float | None  # A* as printed; None where S or the shares allow none
    corrected_quorum: int | None  # A*, corrected
    rounds: int | None  # K* for the corrected A*
    meets_target: bool | None  # whether the printed bound's second term stays within ε at the corrected A*
    obstacle: str | None  # why A* is None


@dataclass(frozen=True)
class BoundRounds:
    """How many rounds a bound asks for, or why it promises nothing."""

    rounds: int | None
    seconds: float | None
    obstacle: str | None


@dataclass(frozen=True)
class Candidate:
    """One way to run the cell: A, S and how a round closes, with what it is predicted to take."""

    quorum: int  # A
    max_staleness: int | None  # S; None is no bound
    closing: ClosesOn
    bandwidth: str  # the policy that goes with it: equal_finish (Theorem 2) for planned rounds, else equal_share
    obstacle: str | None = None  # why it cannot be done; then nothing below is filled in
    note: str | None = None  # what was changed to make it possible
    # from the simulated clock
    seconds_per_round: float | None = None
    staleness_mean: float | None = None
    staleness_square: float | None = None  # mean of τ²
    staleness_max: int | None = None
    inequality: float | None = None  # n·Ση² − 1 of the shares achieved: 0 is equal participation
    share_error: float | None = None  # the largest |achieved − target| / target
    waiting_share: float | None = None
    # from the bounds
    rule: BoundRounds | None = None  # the paper's planning rule: the printed bound's first term alone at ε
    printed: BoundRounds | None = None
    sharpened: BoundRounds | None = None
    proved: BoundRounds | None = None
    # from pilot trainings
    rounds: float | None = None  # to the target loss; None if a pilot did not get there
    rounds_from: Source | None = None
    seconds: float | None = None  # rounds × seconds a round

    @property
    def place(self) -> Place:
        return self.quorum, self.max_staleness, self.closing

    @property
    def feasible(self) -> bool:
        return self.obstacle is None


@dataclass(frozen=True)
class PilotRun:
    """A short training that was measured."""

    quorum: int
    max_staleness: int | None
    closing: ClosesOn
    rounds: float | None  # to the target loss; None if it did not get there
    trained_rounds: int
    final_loss: float | None


@dataclass(frozen=True)
class Law:
    """rounds = base·(1 + noise/A + staleness·m + late·m² + inequality·(n·Ση² − 1)), m the mean of τ²; fitted to the pilots."""

    base: float
    noise: float
    staleness: float
    late: float  # rounds hardly grow with staleness until they grow steeply: hence the square
    inequality: float
    left_out_factor: float | None  # the worst factor by which a fit without one pilot misses that pilot


@dataclass(frozen=True)
class UeRow:
    """What the plan means for one UE."""

    ue: int
    distance_m: float
    cpu_hz: float
    share_target: float
    share_planned: float | None  # the nearest that can be met; None where rounds close on the first arrivals
    share_achieved: float  # in the simulated rounds
    merges_per_period: int  # in the rows shown
    longest_gap: int  # rounds in a row it sits out
    rounds: tuple[int, ...]  # of the rows shown, those it is merged in
    bandwidth_hz: tuple[float, ...]  # its band in those rounds


@dataclass(frozen=True)
class Chosen:
    """The plan to carry out."""

    period: int | None  # K_p: after so many rounds the schedule repeats; None if it is not seen to, or there is none
    rows: tuple[tuple[int, ...], ...]  # the UEs merged in each round of the first period
    ues: tuple[UeRow, ...]


@dataclass(frozen=True)
class Check:
    """A prediction and what a training with other noise then took."""

    quorum: int
    max_staleness: int | None
    closing: ClosesOn
    predicted_rounds: float
    predicted_s: float
    predicted_from: Source
    measured_rounds: float | None
    measured_s: float | None  # on the simulated clock; None if it did not get there in three times the rounds predicted


@dataclass(frozen=True)
class Plan:
    """Which A and S reach the target soonest in seconds, and how to run them."""

    perfeds2: str  # version
    task: str
    population: int  # n
    seed: int  # whose cell, data and pilots these are
    stale: str
    shares: str  # the participation targets, in words
    spec_quorum: int
    spec_max_staleness: int | None
    target: Target
    constants: tuple[MeasuredConstant, ...]
    theory: Theory | None
    candidates: tuple[Candidate, ...]
    choice: int  # the place of the soonest among the candidates
    planned_choice: int | None  # the place of the soonest with planned rounds, which keep the shares
    law: Law
    pilots: tuple[PilotRun, ...]
    chosen: Chosen
    planned: Chosen | None  # the soonest with planned rounds, where that is another
    checks: tuple[Check, ...]
    notes: tuple[str, ...]

    @property
    def best(self) -> Candidate:
        return self.candidates[self.choice]

    @property
    def check_seed(self) -> int:
        """Whose initial weights and training noise the checks have."""
        return (self.seed + 1) % 2**32

    @property
    def best_planned(self) -> Candidate | None:
        return None if self.planned_choice is None else self.candidates[self.planned_choice]

    def find(self, quorum: int, max_staleness: int | None, closing: ClosesOn) -> Candidate | None:
        """One candidate by what it is."""
        return next((c for c in self.candidates if c.place == (quorum, max_staleness, closing)), None)

    def to_json(self) -> str:
        return _adapter().dump_json(self, indent=1).decode()

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        return _adapter().validate_json(text)


@cache
def _adapter() -> Any:
    return pydantic.TypeAdapter(Plan)
