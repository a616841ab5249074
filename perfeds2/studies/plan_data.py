"""The data of a plan, which needs no JAX and converts to and from JSON."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from html import escape
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pydantic

from perfeds2.chart import INK, NEUTRAL, Chart, ChartAxis, LineStyle, Series, draw
from perfeds2.errors import InputError
from perfeds2.learning.metrics import Score, score_of
from perfeds2.runs.statistics import censored_median, prediction_interval
from perfeds2.shown import as_html, axes_for, in_a_line

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

State = Literal["kept", "late", "lost", "never", "diverged"]
Standing = Literal["holds", "on an edge", "wavers", "fails", "breaks a limit", "slower", "not possible"]
MAP_IN = (6.0, 2.6)  # inches
NUMBERS = {
    "seconds": "Seconds until the target is kept, median over seeds",
    "joules": "Joules of all UEs until the target is kept, median over seeds",
}  # quantities that a map can show
LOOKS = {  # marker of each verdict
    "holds": LineStyle("#009E73", (), "o"),
    "slower": LineStyle(NEUTRAL, (), "o"),
    "fails": LineStyle("#C8102E", (), "x"),
    "on an edge": LineStyle("#E69F00", (), "P"),
    "wavers": LineStyle("#E69F00", (), "^"),
    "breaks a limit": LineStyle("#8A5CC2", (), "X"),
    "not possible": LineStyle("#BCC3CB", (), "_"),
}
OF_CELLS = ("edge rounds", "cloud quorum", "reuse")  # settings of many cells
# labels of a choice's fields
LABELS = ("A", "S", "schedule", "band", "stale", "local steps", "bits", "rest rounds", *OF_CELLS)
CLEARLY = 0.75  # share of later evaluations below which a choice that also falls far below the target fails


@dataclass(frozen=True, order=True)
class Choice:
    """One way to run a cell: a value for everything that is searched."""

    quorum: int  # A
    max_staleness: int | None  # S; None is unbounded
    schedule: str  # what closes a round: "first" arrivals, or a plan
    bandwidth: str
    stale: str
    local_steps: int
    bits: int  # per number of an upload
    rest_rounds: int = 1  # B: a UE is merged at most once in B rounds
    edge_rounds: int = 1  # rounds of a cell per model sent to the cloud, with many cells
    cloud_quorum: int = 1  # models of cells that close a cloud round
    frequency_reuse: int = 1  # 3: neighbouring cells use different thirds of the band

    def with_(self, **changed: Any) -> "Choice":
        return replace(self, **changed)

    @property
    def bound(self) -> str:
        return "unbounded" if self.max_staleness is None else str(self.max_staleness)

    def __str__(self) -> str:
        schedule = "" if self.schedule == "first" else "schedule "
        return f"A = {self.quorum}, S = {self.bound}, {schedule}{self.rest}"

    @property
    def rest(self) -> str:
        """Return everything but A and S, in words."""
        closes = "first arrivals" if self.schedule == "first" else self.schedule
        steps = f"{self.local_steps} local step{'s' if self.local_steps > 1 else ''}"
        resting = f", {self.rest_rounds} rest rounds" if self.rest_rounds > 1 else ""
        below = "".join(f", {name} {self.settings[name]}" for name in OF_CELLS) if self.has_cells else ""
        return f"{closes}, band {self.bandwidth}, stale {self.stale}, {steps}, {self.bits} bits{resting}{below}"

    @property
    def has_cells(self) -> bool:
        """Return whether the choice differs from a single cell."""
        return any(self.settings[name] != "1" for name in OF_CELLS)

    @property
    def settings(self) -> dict[str, str]:
        """Return everything that is searched by name, in the order of the columns of tables."""
        values = ("unbounded" if value is None else str(value) for value in vars(self).values())
        return dict(zip(LABELS, values, strict=True))

    @property
    def without_a_and_s(self) -> "Choice":
        """Return a key that is equal for all choices of one map of A and S."""
        return replace(self, quorum=0, max_staleness=None)


@dataclass(frozen=True)
class PlanTarget:
    """The target to reach and keep."""

    accuracy: float  # personalised test accuracy, or the metric that replaces it
    metric: str
    horizon_s: float  # how long every choice is trained
    confirm_s: float  # how long the recommended choice is trained
    horizon_from: str  # how the horizon was derived, in words

    @property
    def score(self) -> Score:
        return score_of(self.metric)

    @property
    def words(self) -> str:
        return f"{self.score.level(self.accuracy)} personalised test {self.score.word}"


@dataclass(frozen=True)
class PlanRequest:
    """What a plan is asked for, besides the spec and the values to search."""

    keep: float = 0.9  # share of later evaluations in which the target must be met
    horizon_s: float | None = None  # how long every choice is trained; None derives it
    check: bool = False  # whether the spec's own choice is checked, too
    within_s: float | None = None  # limit, in every seed: the target must be kept by then
    joules: float | None = None  # limit: energy of all UEs together until the target is kept
    least_share: float | None = None  # limit: share of the merges of any UE; None: each is merged at least once

    def __post_init__(self) -> None:
        if not 0.5 <= self.keep <= 1:
            raise InputError(f"--keep must be from 0.5 to 1, a share of the later evaluations, got {self.keep:g}.")
        for name in ("horizon_s", "within_s", "joules"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise InputError(f"--{name.replace('_', '-')} must be a finite number above 0, got {value:g}.")
        if self.least_share is not None and not 0 <= self.least_share <= 1:
            raise InputError(f"--least-share must be from 0 to 1, a share of the merges, got {self.least_share:g}.")


@dataclass(frozen=True)
class SeedOutcome:
    """The outcome of one training: a choice with one seed."""

    seed: int
    state: State
    time_s: float | None  # when the target was reached and kept from then on
    reached_s: float | None  # when it was first reached, kept or not
    held: float | None  # share of evaluations from then on that met it
    joules: float | None  # of all UEs until it was kept
    least_share: float  # share of the merges of the UE with the fewest
    scores: tuple[float | None, ...]  # at equal intervals from 0 to the horizon; None is NaN
    fall: float  # drop below the target, or its best before, relative to the way from start to target
    needs_s: float  # until it was kept, else first reached, else the end: keeping it takes no less
    needs_j: float  # joules of all UEs until then
    end_global: float | None = None  # score of the global model at the end

    @property
    def fails(self) -> bool:
        """Return whether training is clearly unstable; one that is slow or hovers about the target is not."""
        if self.state in ("lost", "late"):
            return (self.held or 0.0) < CLEARLY and self.fall > 0.1
        return self.state == "diverged" or (self.state == "never" and self.fall > 1 - CLEARLY)


@dataclass(frozen=True)
class Neighbour:
    """A choice one step away, and whether it fails."""

    axis: str
    choice: Choice
    fails: bool
    why: str


@dataclass(frozen=True)
class Candidate:
    """A choice and everything known about it."""

    choice: Choice
    verdict: Standing
    why: str  # why it was not chosen, in words
    scouted_s: float | None = None  # when its first seed reached the target in a short training
    trials: tuple[SeedOutcome, ...] = ()  # trained for the whole horizon
    neighbours: tuple[Neighbour, ...] = ()  # those that were examined
    confirmed: tuple[SeedOutcome, ...] = ()  # trained for longer, before it is recommended
    fresh: tuple[SeedOutcome, ...] = ()  # trained with seeds that the choice was not made with
    noise: float | None = None  # σ over the horizon; None without noise, as are the next two
    noise_to_clip: float | None = None  # length of the noise on a mean update, relative to the clip
    epsilon_worst: float | None = None  # ε of the worst UE over the horizon

    @property
    def quorum(self) -> int:
        return self.choice.quorum

    @property
    def max_staleness(self) -> int | None:
        return self.choice.max_staleness

    @property
    def seconds(self) -> float | None:
        """Return the median over seeds of when the target was kept; None if fewer than half kept it."""
        return median_s(self.trials)

    @property
    def span_s(self) -> tuple[float, float] | None:
        times = [trial.time_s for trial in self.trials if trial.time_s is not None]
        return (min(times), max(times)) if times else None

    @property
    def promise_s(self) -> tuple[float, float] | None:
        """Return when nine of ten further seeds should keep the target; None if a fresh seed did not, or had it at the start."""
        times = [trial.time_s for trial in self.fresh if trial.time_s is not None]
        if len(times) < len(self.fresh) or min(times, default=0.0) <= 0:
            return None
        return prediction_interval(times)

    @property
    def kept(self) -> int:
        return sum(trial.state == "kept" for trial in self.trials)

    @property
    def held(self) -> float | None:
        """Return the mean over seeds of the share of evaluations that met the target once it was reached."""
        shares = [trial.held or 0.0 for trial in self.confirmed or self.trials]
        return float(np.mean(shares)) if shares else None

    @property
    def joules(self) -> float | None:
        return censored_median([trial.joules for trial in self.trials])

    @property
    def least_share(self) -> float | None:
        return min((trial.least_share for trial in self.trials), default=None)


def or_inf(value: float | None) -> float:
    """Return a number, or infinity for None (unbounded, or never)."""
    return math.inf if value is None else value


def median_s(trials: Sequence[SeedOutcome]) -> float | None:
    return censored_median([trial.time_s for trial in trials])


def too_many_fail(trials: Sequence[SeedOutcome]) -> bool:
    """Return whether at least a third of the seeds are unstable."""
    return bool(trials) and 3 * sum(trial.fails for trial in trials) >= len(trials)


@dataclass(frozen=True, repr=False)
class Plan:
    """The choice that reaches the target soonest and keeps it, and how to adopt it."""

    perfeds2: str  # version
    task: str
    radio: str
    population: int  # n
    algorithm: str
    seeds: tuple[int, ...]
    target: PlanTarget
    request: PlanRequest
    candidates: tuple[Candidate, ...]
    choice: int | None  # index of the choice among the candidates; None: nothing can be recommended
    asked: int  # index of the spec's own choice
    headline: str  # the recommendation in a line
    sentence: str
    check: str  # whether the spec's own choice holds, and what is better
    command: str | None  # the command that adopts it; None if something was given from Python
    trainings: int  # number of trainings
    notes: tuple[str, ...]

    def __repr__(self) -> str:
        return in_a_line(self, self.task, f"{self.population:,} UEs", self.headline)

    def _repr_html_(self) -> str:
        table = self.frame().drop(columns=["why", "scouted_s", "least_share"])
        adopt = "" if self.command is None else f"<pre>{escape(self.command)}</pre>"
        return as_html(self.sentence, table, self.plot, MAP_IN) + adopt

    def frame(self) -> "pd.DataFrame":
        """Return a table with one row per choice.

        The recommended choice comes first, then the spec's own, then those trained for the whole horizon, soonest
        first.

        Returns:
            The columns of ``Choice``, verdict, why, seconds, scouted_s, seeds, kept, held, joules and least_share;
            with noise, also noise (σ) and epsilon_worst.
            ``max_staleness`` is missing if S is unbounded, ``seconds`` if the target was not kept.
        """
        import pandas as pd

        rows = [
            asdict(each.choice)
            | {"verdict": each.verdict, "why": each.why, "seconds": each.seconds, "scouted_s": each.scouted_s}
            | {"seeds": len(each.trials), "kept": each.kept, "held": each.held}
            | {"joules": each.joules, "least_share": each.least_share}
            | ({"noise": each.noise, "epsilon_worst": each.epsilon_worst} if self.is_private else {})
            for each in ranked_candidates(self)
        ]
        numbers = dict.fromkeys(("seconds", "scouted_s", "held", "joules", "least_share"), "float64")
        return pd.DataFrame(rows).astype({"max_staleness": "Int64"} | numbers)

    def plot(self, axes: "Axes | None" = None) -> "Axes":
        """Draw a map of A and S around the choice: seconds until the target is kept, and whether it is.

        Args:
            axes: Where to draw; None makes a new figure.

        Returns:
            The axes that were drawn on.
        """
        axes, centre = axes_for(axes, MAP_IN), (self.best or self.candidates[self.asked]).choice.without_a_and_s
        group = [each for each in self.candidates if each.choice.without_a_and_s == centre]
        draw(axes, map_chart(group, self.best))
        axes.set_title(f"seconds until {self.target.words} is kept\n{centre.rest}", loc="left", fontsize="small")
        unique = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
        axes.legend(
            unique.values(), unique, loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize="small", frameon=False
        )
        return axes

    @property
    def best(self) -> Candidate | None:
        return None if self.choice is None else self.candidates[self.choice]

    @property
    def is_private(self) -> bool:
        return any(each.noise is not None for each in self.candidates)

    def to_json(self) -> str:
        return _adapter().dump_json(self, indent=1).decode()

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        return _adapter().validate_json(text)


@cache
def _adapter() -> Any:
    return pydantic.TypeAdapter(Plan)


# ---- tables and maps of A and S


def ranked_candidates(plan: Plan) -> list[Candidate]:
    """Return the candidates by relevance: the choice, the spec's own, then by verdict and time."""
    asked, order = plan.candidates[plan.asked], {"holds": 0, "on an edge": 1, "wavers": 2, "fails": 2, "slower": 3}

    def rank(each: Candidate) -> tuple[bool, bool, bool, int, float]:
        time_s = each.seconds or each.scouted_s or math.inf
        return each is not plan.best, each is not asked, not each.trials, order.get(each.verdict, 4), time_s

    return sorted(plan.candidates, key=rank)


def short_s(value: float | None) -> str:
    return "never" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def map_chart(
    group: Sequence[Candidate], best: Candidate | None, axis: str = "seconds", name: str = "map", title: str = ""
) -> Chart:
    """Describe a map of A and S.

    Green holds, crosses lose the target again, the star is the choice; hollow markers were trained only shortly.
    """
    quorums = sorted({each.quorum for each in group})
    bounds = sorted({each.max_staleness for each in group}, key=or_inf)
    items: list[Series] = []

    def label(each: Candidate) -> str:
        if axis == "joules":
            return "" if each.joules is None else f"{each.joules:.3g}"
        if each.seconds is not None:
            return short_s(each.seconds)
        return "" if each.scouted_s is None else f"~{short_s(each.scouted_s)}"

    def mark(label: str, found: Sequence[Candidate], style: LineStyle, **more: Any) -> None:
        x, y = [quorums.index(each.quorum) for each in found], [bounds.index(each.max_staleness) for each in found]
        hollow = style.marker == "o" and not found[0].trials
        items.append(Series(label, x, y, style, "marks", hollow=hollow, **more))

    if best is not None and best in group:
        mark("the choice", [best], LineStyle(f"{INK}44", (), "*"), hover=["the choice"], size_px=30)
    for verdict, tried in dict.fromkeys((each.verdict, bool(each.trials)) for each in group):
        own = [each for each in group if (each.verdict, bool(each.trials)) == (verdict, tried)]
        hover = [f"{each.choice}: {verdict}{f' ({each.why})' if each.why else ''}" for each in own]
        mark(verdict, own, LOOKS[verdict], hover=hover, texts=[label(each) for each in own], size_px=11)
    x = ChartAxis("A", (-0.6, len(quorums) - 0.3), ticks={place: str(each) for place, each in enumerate(quorums)})
    texts = {place: "none" if bound is None else str(bound) for place, bound in enumerate(bounds)}
    y = ChartAxis("S", (-0.6, len(bounds) - 0.3), ticks=texts)
    return Chart(name, title, items, x, y, height_px=120 + 50 * len(bounds), group=name)
