"""Record which UE was merged in each round, how stale its update was, and when; save and load such records."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import Float, Int

from perfeds2.chart import Chart
from perfeds2.shown import activity_chart, as_html, axes_for, draw_activity, in_a_line
from perfeds2.timeline.archive import first_line, read_arrays, write_arrays
from perfeds2.timeline.checks import check_log, check_merges
from perfeds2.timeline.choices import Choices, Tries
from perfeds2.timeline.cloud import Cloud
from perfeds2.timeline.jobs import LOST, MERGED, OPEN, Jobs, cut, written_out
from perfeds2.timeline.protocol import IDLE
from perfeds2.timeline.usage import Spent, spent

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

State = Literal["computing", "sending", "waiting", "idle"]
SHOWN_ROUNDS, SHOWN_UES = 40, 30  # in a plot


@dataclass(frozen=True)
class Timeline:
    """Which UE was merged in each round, how stale its update was, and when. Knows no weights."""

    ues: Int[np.ndarray, "K A"]  # UE merged in slot a of round k, in order of arrival
    staleness: Int[np.ndarray, "K A"]  # it started from model k - staleness (τ in the paper)
    arrival_s: Float[np.ndarray, "K A"]  # when its update was complete at the server
    time_s: Float[np.ndarray, " K"]  # when round k closed
    compute_s: Float[np.ndarray, " n"]  # computing time of one job, in rows of the log that several UEs share
    log: Jobs  # every job or part of one, in the order of ``in_order``
    cloud: Cloud | None = None  # with many cells: the edges and the cloud's rounds
    choices: Choices | None = None  # if the policy chooses frequencies and powers
    tries: Tries | None = None  # if uploads have errors

    def __post_init__(self) -> None:
        check_merges({name: vars(self)[name] for name in COLUMNS})
        check_log(self.log, self.population, self.rounds)
        if self.cloud is not None:
            self.cloud.check(self.time_s)
        for rows in filter(None, (self.choices, self.tries)):
            rows.check(self.population)

    @property
    def rounds(self) -> int:
        """K, the number of closed rounds."""
        return self.ues.shape[0]

    @property
    def quorum(self) -> int:
        """A, the updates merged per round."""
        return self.ues.shape[1]

    @property
    def population(self) -> int:
        """n, the number of UEs, merged or not."""
        return self.compute_s.size

    @property
    def end_s(self) -> float:
        """When the last round closed, in seconds; 0 without rounds."""
        return float(self.time_s[-1]) if self.rounds else 0.0

    @property
    def start_s(self) -> Float[np.ndarray, " K_plus_1"]:
        """When each model w_k was created: the start of every round, then the end of the last one. Shape (K + 1,)."""
        return np.concatenate([[0.0], self.time_s])

    @property
    def visible_s(self) -> Float[np.ndarray, " K"]:
        """When the model after each round is in use: ``time_s``, or the last cloud round before the next row."""
        visible_s = self.time_s.copy()
        if self.cloud is not None:
            np.maximum.at(visible_s, self.cloud.rows - 1, self.cloud.time_s)
        return visible_s

    @property
    def versions(self) -> Int[np.ndarray, "K A"]:
        """The model that each merged update was computed from, shape (K, A)."""
        return np.arange(self.rounds)[:, None] - self.staleness

    @property
    def merges(self) -> Int[np.ndarray, " n"]:
        """How often each UE was merged, shape (n,)."""
        return np.bincount(self.ues.ravel(), minlength=self.population)

    @property
    def shares(self) -> Float[np.ndarray, " n"]:
        """The participation share that each UE achieved, η in eq. (15), shape (n,)."""
        return self.merges / max(self.ues.size, 1)

    @property
    def starved(self) -> Int[np.ndarray, " s"]:
        """UEs that were never merged."""
        return np.flatnonzero(self.merges == 0)

    def rows(self, outcome: int) -> Jobs:
        """Return the rows of the log that ended in MERGED, LOST, OPEN or PAUSED."""
        return self.log.take(np.flatnonzero(self.log.outcome == outcome))

    @property
    def lost(self) -> int:
        """How many jobs ended without a merge."""
        return int(self.rows(LOST).count.sum())

    @property
    def discarded(self) -> tuple[Int[np.ndarray, " j"], Int[np.ndarray, " j"]]:
        """The updates that arrived but were not merged: their UEs, and the rounds that discarded them."""
        lost = self.log.take(np.flatnonzero((self.log.outcome == LOST) & self.log.arrived))
        return lost.ue, lost.round

    @cached_property
    def open_version(self) -> Int[np.ndarray, " n"]:
        """The model each UE holds when the timeline ends, or IDLE, shape (n,)."""
        open_, versions = self.rows(OPEN), np.full(self.population, IDLE, np.int64)
        versions[open_.ue] = open_.version
        return versions

    def jobs(self, ues: range | None = None) -> Jobs:
        """Return every job: first the merged ones, then the lost ones, then the open ones.

        If UEs leave and return, each part of a job has a row of its own, with the outcome of the whole job.

        Args:
            ues: Only the jobs of these UEs, a contiguous range; None for all.

        Returns:
            One row per job or part of a job, times in seconds.
        """
        return written_out(self.log, range(self.population) if ues is None else ues, self.compute_s)

    def activity(self, ue: int) -> list[tuple[State, float, float]]:
        """Return what one UE did, without gaps from time 0 to the end.

        Args:
            ue: The UE's number.

        Returns:
            Triples (state, from second, to second), in order of time.
        """
        jobs = self.jobs(range(ue, ue + 1))
        intervals: list[tuple[State, float, float]] = []
        now = 0.0
        for job in np.lexsort((jobs.start_s, jobs.version)):
            ends: list[tuple[State, float]] = [
                ("idle", float(jobs.start_s[job])),
                ("waiting", float(jobs.begun_s[job])),
                ("computing", float(jobs.sending_s[job])),
                ("sending", float(jobs.arrival_s[job])),
                ("waiting", float(jobs.end_s[job])),
            ]
            for state, end in ends:
                if end > now:
                    intervals.append((state, now, end))
                    now = end
        if now < self.end_s:
            intervals.append(("idle", now, self.end_s))
        return intervals

    def seconds(self) -> dict[State, float]:
        """Return the UE-seconds spent in each state, summed over all UEs.

        Returns:
            A mapping from "computing", "sending", "waiting" and "idle" to UE-seconds.
        """
        spent = self._spent
        idle = max(self.end_s * self.population - spent.computing_s - spent.sending_s - spent.waiting_s, 0.0)
        return {"computing": spent.computing_s, "sending": spent.sending_s, "waiting": spent.waiting_s, "idle": idle}

    @property
    def waiting_share(self) -> float:
        """The fraction of their time that UEs neither compute nor send."""
        seconds = self.seconds()
        return (seconds["waiting"] + seconds["idle"]) / max(sum(seconds.values()), 1e-300)

    @property
    def wasted_share(self) -> float:
        """The fraction of computing and sending time that went into jobs without a merge."""
        return self._spent.lost_s / max(self._spent.busy_s, 1e-300)

    @cached_property
    def _spent(self) -> Spent:
        return spent(self.log, self.compute_s)

    @property
    def columns(self) -> dict[str, np.ndarray]:
        """The arrays of this timeline by name."""
        columns = {name: column for name, column in vars(self).items() if name in COLUMNS}
        for part in PARTS:
            values = vars(self)[part]
            columns |= {} if values is None else {f"{part}_{name}": column for name, column in vars(values).items()}
        return columns

    def prefix(self, rounds: int) -> "Timeline":
        """Return the first rounds of this timeline, exactly as a shorter simulation would record them.

        Args:
            rounds: How many rounds to keep.

        Returns:
            The shorter timeline.

        Raises:
            ValueError: If the timeline has fewer rounds.
        """
        if not 0 <= rounds <= self.rounds:
            raise ValueError(f"prefix must have 0 to {self.rounds} rounds, got {rounds}.")
        if rounds == self.rounds:
            return self
        kept = {name: vars(self)[name][:rounds] for name in MERGE_COLUMNS}
        log = cut(self.log, rounds, float(self.start_s[rounds]), self.compute_s)
        cloud = None if self.cloud is None else self.cloud.prefix(rounds)
        end_s, parts = float(self.start_s[rounds]), {"choices": self.choices, "tries": self.tries}
        given = {name: rows and rows.before(end_s) for name, rows in parts.items()}
        return replace(self, **kept, log=log, cloud=cloud, **given)

    def until(self, time_s: float) -> int:
        """Return how many rounds had closed by a time.

        Args:
            time_s: Simulated time in seconds.

        Returns:
            The number of rounds that closed at or before it.
        """
        return int(np.searchsorted(self.time_s, time_s, side="right"))

    def save(self, path: Path | str) -> None:
        """Write the timeline to an .npz file. Equal timelines give equal bytes.

        Args:
            path: The file to write.
        """
        save_timelines(path, {"": self})

    @classmethod
    def load(cls, path: Path | str) -> "Timeline":
        """Read the only timeline of a file.

        Args:
            path: An .npz file written by ``save``, or the folder of a run.

        Returns:
            The timeline.

        Raises:
            ValueError: If the file is not a timeline or holds several.
        """
        timelines = load_timelines(path)
        if list(timelines) != [""]:
            raise ValueError(
                f"{path} holds {len(timelines)} timelines ({', '.join(timelines)}); read it with load_timelines."
            )
        return timelines[""]

    def __repr__(self) -> str:
        if not self.rounds:
            return in_a_line(self, f"{self.population:,} UEs", "no round closed")
        rounds = f"{self.rounds:,} round{'s' * (self.rounds > 1)} of {self.quorum:,} in {self.end_s:.4g} s"
        stale = f"staleness {self.staleness.mean():.3g} (at most {self.staleness.max()})"
        return in_a_line(self, f"{self.population:,} UEs", rounds, stale, f"{self.lost:,} jobs lost")

    def _repr_html_(self) -> str:
        return as_html(repr(self), self.prefix(min(self.rounds, SHOWN_ROUNDS)).frame(), self.plot)

    def frame(self) -> "pd.DataFrame":
        """Return a table with one row per job: its UE, model, times and outcome.

        Returns:
            A data frame. ``round`` and ``staleness`` are those of the merge, and missing if there was none.
        """
        import pandas as pd

        jobs = self.jobs()
        merged = (jobs.outcome == MERGED) & (jobs.round >= 0)  # a part that was continued has no round
        round_ = pd.Series(jobs.round, dtype="Int64").where(merged)
        words = np.array(["merged", "lost", "open"])[jobs.outcome]
        return (
            pd.DataFrame(vars(jobs))
            .drop(columns="count")
            .assign(outcome=words, round=round_, staleness=round_ - jobs.version)
        )

    def plot(self, axes: "Axes | None" = None, *, until_s: float | None = None) -> "Axes":
        """Draw what each of the first UEs does over the first rounds.

        Args:
            axes: Where to draw; None for new axes.
            until_s: Draw the rounds that closed by this time, in seconds; None for the first 40 rounds.

        Returns:
            The axes.
        """
        rounds = min(self.rounds, SHOWN_ROUNDS) if until_s is None else self.until(until_s)
        return draw_activity(axes_for(axes, (6, 3)), self.activity_chart(float(self.start_s[rounds]), SHOWN_UES))

    def activity_chart(self, until_s: float, ues: int) -> Chart:
        """Describe what each of the first UEs does until ``until_s``, and where its jobs were merged or lost."""
        rows, shown = range(min(ues, self.population)), self.prefix(min(self.until(until_s) + 1, self.rounds))
        jobs = shown.jobs(rows)
        ended = jobs.take((jobs.end_s <= until_s) & (jobs.round >= 0))
        merged, lost = ((ended.ue[at], ended.end_s[at]) for at in (ended.outcome == MERGED, ended.outcome == LOST))
        return activity_chart([shown.activity(ue) for ue in rows], merged, lost, until_s)


PARTS = {"log": Jobs, "cloud": Cloud, "choices": Choices, "tries": Tries}
COLUMNS = {field.name for field in fields(Timeline)} - PARTS.keys()
MERGE_COLUMNS = ("ues", "staleness", "arrival_s", "time_s")


def save_timelines(path: Path | str, timelines: Mapping[str, Timeline]) -> None:
    """Write several named timelines to one .npz file (keys ``name/field``; a name may be empty)."""
    write_arrays(Path(path), {name: timeline.columns for name, timeline in timelines.items()})


def load_timelines(path: Path | str) -> dict[str, Timeline]:
    """Read the timelines of a run's folder or file, by name.

    Raises:
        ValueError: If the file is not a readable timeline.
    """
    path = Path(path)
    path = path / "timeline.npz" if path.is_dir() else path
    grouped = read_arrays(path)
    try:
        return {name: _from_columns(columns) for name, columns in (grouped or {"": {}}).items()}
    except ValueError as error:
        raise ValueError(f"{path} is not a timeline: {first_line(error)}") from error


def _from_columns(columns: Mapping[str, np.ndarray]) -> Timeline:
    columns, needed = dict(columns), set(COLUMNS)
    kinds = {part: kind for part, kind in PARTS.items() if kind is Jobs or f"{part}_{fields(kind)[0].name}" in columns}
    names = {part: [f"{part}_{field.name}" for field in fields(kind)] for part, kind in kinds.items()}
    needed |= {name for of_part in names.values() for name in of_part}
    lacking, extra = needed - columns.keys(), columns.keys() - needed
    if lacking or extra:
        raise ValueError(f"it lacks {sorted(lacking)} and has extra {sorted(extra)}.")
    parts: dict[str, Any] = {part: kind(*map(columns.pop, names[part])) for part, kind in kinds.items()}
    return Timeline(**columns, **parts)
