"""Who was merged in each round, how stale, and when?"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from jaxtyping import Bool, Float, Int

from perfeds2.shown import as_html, axes_for, draw_activity, in_a_line
from perfeds2.timeline.rounds import IDLE

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

State = Literal["computing", "sending", "waiting", "idle"]


@dataclass(frozen=True)
class Jobs:
    """Every job of a timeline, one row each: computing until ``sending_s``, sending until ``arrival_s``, over at ``end_s``."""

    ue: Int[np.ndarray, " j"]
    version: Int[np.ndarray, " j"]  # the model it worked from
    start_s: Float[np.ndarray, " j"]
    sending_s: Float[np.ndarray, " j"]
    arrival_s: Float[np.ndarray, " j"]  # never later than end_s: what had not arrived by then is cut there
    end_s: Float[np.ndarray, " j"]
    outcome: Int[np.ndarray, " j"]  # MERGED, LOST (restarted or refused) or OPEN (the timeline ended)
    round: Int[
        np.ndarray, " j"
    ]  # in which it ended; of the open ones, which was not played; -1 of a stretch after which it went on
    model_s: Float[np.ndarray, " j"] | float = 0.0  # until its model was there; computing began then

    @property
    def columns(self) -> dict[str, np.ndarray]:
        """What a log has of each row."""
        return {name: column for name, column in vars(self).items() if isinstance(column, np.ndarray)}

    @classmethod
    def joined(cls, parts: "Sequence[Jobs]") -> "Jobs":
        none, never = np.empty(0, np.int64), np.empty(0)
        waits = [each.model_s if isinstance(each.model_s, np.ndarray) else np.zeros(each.ue.size) for each in parts]
        rows = [(none, none, never, never, never, never, none, none, never)]
        rows += [(*list(vars(each).values())[:8], wait) for each, wait in zip(parts, waits, strict=True)]
        return cls(*(np.concatenate(column) for column in zip(*rows, strict=True)))


MERGED, LOST, OPEN = 0, 1, 2
PAUSED = 3  # in a log: its UE has gone and keeps the job
JOBS_AT_A_TIME = 2**22  # a quarter of a gigabyte
LONG_ROW = 32  # UEs
SHOWN_ROUNDS, SHOWN_UES = 40, 30  # of a drawing


@dataclass(frozen=True)
class Spent:
    """UE-seconds, summed over the jobs of a timeline."""

    computing_s: float
    sending_s: float
    waiting_s: float  # at the server, for the round to close
    busy_s: float  # computing or sending
    lost_s: float  # of these, for jobs nobody merged


@dataclass(frozen=True)
class Timeline:
    """Who arrived in each round, how stale, and when. Pure data; knows no weights."""

    ues: Int[np.ndarray, "K A"]  # UE merged in slot a of round k, in order of arrival
    staleness: Int[np.ndarray, "K A"]  # it started from model k - staleness (τ in the paper)
    arrival_s: Float[np.ndarray, "K A"]  # when its update was complete at the server
    time_s: Float[np.ndarray, " K"]  # when round k closed
    compute_s: Float[np.ndarray, " n"]  # how long each UE computes on one job
    lost_ue: Int[np.ndarray, " l"]  # jobs that ended without a merge: whose (see lost_count),
    lost_version: Int[np.ndarray, " l"]  # from which model,
    lost_round: Int[np.ndarray, " l"]  # at the close of which round,
    lost_arrival_s: Float[np.ndarray, " l"]  # and when it had arrived, if it had (else infinite)
    open_version: Int[np.ndarray, " n"]  # the model each UE holds when the timeline ends, or IDLE
    open_arrival_s: Float[np.ndarray, " n"]  # when that job's update arrived, if it has (else infinite)
    # A crowd is restarted together: a row of the lost stands for so many UEs with successive numbers. None: one each.
    lost_count: Int[np.ndarray, " l"] | None = None
    # Where models take their time on the downlink: seconds from a hand-out until the UE had the model, before it computed.
    model_s: Float[np.ndarray, "K A"] | None = None  # of the merged, the lost and the open jobs; None: none
    lost_model_s: Float[np.ndarray, " l"] | None = None
    open_model_s: Float[np.ndarray, " n"] | None = None
    # Where UEs come and go: their stretches of work, in order (``stretches.py``). None: a job begins when its model exists.
    log: Jobs | None = None

    def __post_init__(self) -> None:
        if self.lost_count is None:
            object.__setattr__(self, "lost_count", np.ones(self.lost_ue.size, np.int64))
        self._check()

    @property
    def rounds(self) -> int:
        return self.ues.shape[0]

    @property
    def quorum(self) -> int:
        return self.ues.shape[1]

    @property
    def population(self) -> int:
        """n, merged or not."""
        return self.compute_s.size

    @property
    def end_s(self) -> float:
        return float(self.time_s[-1]) if self.rounds else 0.0

    @property
    def start_s(self) -> Float[np.ndarray, " K_plus_1"]:
        """When model w_k existed: the start of round k, and the end of the last."""
        return np.concatenate([[0.0], self.time_s])

    @property
    def versions(self) -> Int[np.ndarray, "K A"]:
        """The model each merged update was computed from."""
        return np.arange(self.rounds)[:, None] - self.staleness

    @property
    def depth(self) -> int:
        """How many recent models an arrival can refer to."""
        return int(self.staleness.max(initial=0)) + 1

    @property
    def merges(self) -> Int[np.ndarray, " n"]:
        return np.bincount(self.ues.ravel(), minlength=self.population)

    @property
    def shares(self) -> Float[np.ndarray, " n"]:
        """The participation each UE achieved, η of eq. (15)."""
        return self.merges / max(self.ues.size, 1)

    @property
    def starved(self) -> Int[np.ndarray, " s"]:
        """UEs that never got a merge in."""
        return np.flatnonzero(self.merges == 0)

    @property
    def lost(self) -> int:
        """How many jobs ended without a merge."""
        return int(self._lost_count.sum())

    @property
    def in_vain(self) -> tuple[Int[np.ndarray, " j"], Int[np.ndarray, " j"]]:
        """The updates that arrived and were not merged: whose, and in which round they were laid aside."""
        row, ue = _one_by_one(self.lost_ue, self._lost_count)
        arrived = np.isfinite(self.lost_arrival_s[row])
        return ue[arrived], self.lost_round[row][arrived]

    @property
    def _lost_count(self) -> Int[np.ndarray, " l"]:
        assert self.lost_count is not None  # see __post_init__
        return self.lost_count

    def jobs(self, ues: range | None = None) -> Jobs:
        """Every job (of the UEs in a range): the merged ones, then the lost ones, then those still open."""
        if self.log is not None:
            return self._logged(ues)
        start_s, merged_ue, versions = self.start_s, self.ues.ravel(), self.versions.ravel()
        merged, still = np.arange(merged_ue.size), np.flatnonzero(self.open_version != IDLE)
        if ues is None:
            ues = range(self.population)
        else:
            merged = np.flatnonzero((merged_ue >= ues.start) & (merged_ue < ues.stop))
            still = still[(still >= ues.start) & (still < ues.stop)]
        first = np.maximum(self.lost_ue, ues.start)
        row, lost_ue = _one_by_one(first, np.minimum(self.lost_ue + self._lost_count, ues.stop) - first)
        ue = np.concatenate([merged_ue[merged], lost_ue, still])
        version = np.concatenate([versions[merged], self.lost_version[row], self.open_version[still]])
        end_s = np.concatenate(
            [self.time_s[merged // self.quorum], start_s[self.lost_round[row] + 1], np.full(still.size, self.end_s)]
        )
        arrival_s = np.concatenate(
            [self.arrival_s.ravel()[merged], self.lost_arrival_s[row], self.open_arrival_s[still]]
        )
        outcome = np.repeat([MERGED, LOST, OPEN], [merged.size, row.size, still.size])
        started_s = start_s[version]
        model_s = 0.0
        if self.model_s is not None and self.lost_model_s is not None and self.open_model_s is not None:
            model_s = np.concatenate([self.model_s.ravel()[merged], self.lost_model_s[row], self.open_model_s[still]])
        sending_s = np.minimum(started_s + (model_s + self.compute_s[ue]), end_s)
        round_ = np.concatenate([merged // self.quorum, self.lost_round[row], np.full(still.size, self.rounds)])
        arrival_s = np.clip(arrival_s, sending_s, end_s)
        return Jobs(ue, version, started_s, sending_s, arrival_s, end_s, outcome, round_, model_s)

    def _logged(self, ues: range | None) -> Jobs:
        """The same where UEs come and go: a row for each stretch of work, with what became of its job."""
        from perfeds2.timeline.stretches import take, whole

        assert self.log is not None
        outcome, _ = whole(self.log)
        round_, rows = np.where(self.log.outcome == PAUSED, -1, self.log.round), np.arange(outcome.size)
        if ues is not None:
            rows = np.flatnonzero((self.log.ue >= ues.start) & (self.log.ue < ues.stop))
        return take(replace(self.log, outcome=outcome, round=round_), rows)

    def activity(self, ue: int) -> list[tuple[State, float, float]]:
        """What one UE did, as (state, from second, to second), without gaps from 0 to the end."""
        jobs = self.jobs(range(ue, ue + 1))
        intervals: list[tuple[State, float, float]] = []
        now = 0.0
        for job in np.lexsort((jobs.start_s, jobs.version)):
            ends: list[tuple[State, float]] = [
                ("idle", float(jobs.start_s[job])),
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
        """UE-seconds spent in each state, over all UEs."""
        spent = self._spent
        idle = max(self.end_s * self.population - spent.computing_s - spent.sending_s - spent.waiting_s, 0.0)
        return {
            "computing": spent.computing_s,
            "sending": spent.sending_s,
            "waiting": spent.waiting_s,
            "idle": idle,
        }

    @property
    def waiting_share(self) -> float:
        """The fraction of their time that UEs neither compute nor send."""
        seconds = self.seconds()
        return (seconds["waiting"] + seconds["idle"]) / max(sum(seconds.values()), 1e-300)

    @property
    def wasted_share(self) -> float:
        """The fraction of computing and sending time that went into jobs nobody merged."""
        return self._spent.lost_s / max(self._spent.busy_s, 1e-300)

    @cached_property
    def _spent(self) -> "Spent":
        """Sums over all jobs. A crowd that is restarted has more of them than memory holds: long rows are added up whole."""
        start_s, count = self.start_s, self._lost_count
        lasted_s = start_s[self.lost_round + 1] - start_s[self.lost_version]
        whole = (count > LONG_ROW) & np.isinf(self.lost_arrival_s) & (lasted_s >= self.compute_s.max())
        whole &= self.log is None and self.lost_model_s is None
        before_s = np.concatenate([[0.0], self.compute_s.cumsum()])  # computing of all UEs with smaller numbers
        computing_s = (before_s[self.lost_ue + count] - before_s[self.lost_ue])[whole].sum()
        busy_s = (lasted_s * count)[whole].sum()
        sums = np.array([computing_s, busy_s - computing_s, 0.0, busy_s, busy_s])
        rest = self.without_lost(whole)
        parts = -(-(rest.ues.size + rest.lost + rest.population) // JOBS_AT_A_TIME)
        step = -(-rest.population // parts)
        for first in range(0, rest.population, step):
            jobs = rest.jobs(range(first, first + step))
            busy_s = jobs.arrival_s - jobs.start_s
            sums += [
                (jobs.sending_s - jobs.start_s).sum(),
                (jobs.arrival_s - jobs.sending_s).sum(),
                (jobs.end_s - jobs.arrival_s).sum(),
                busy_s.sum(),
                busy_s[jobs.outcome == LOST].sum(),
            ]
        return Spent(*sums.tolist())

    @property
    def columns(self) -> dict[str, np.ndarray]:
        """Its arrays by their names; those that it has."""
        named = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "log"}
        log = {} if self.log is None else {f"log_{name}": column for name, column in self.log.columns.items()}
        return {name: column for name, column in named.items() if column is not None} | log

    def without_lost(self, rows: Bool[np.ndarray, " l"]) -> "Timeline":
        """The same but for these rows of the lost."""
        lost = {name: column[~rows] for name, column in self.columns.items() if name.startswith("lost_")}
        return replace(self, **lost)

    def prefix(self, rounds: int) -> "Timeline":
        """The first rounds of this timeline, exactly as a shorter simulation would have left them."""
        if not 0 <= rounds <= self.rounds:
            raise ValueError(f"prefix must have 0 to {self.rounds} rounds, got {rounds}.")
        if rounds == self.rounds:
            return self
        end_s = float(self.start_s[rounds])
        # Jobs begun by then and over later are open at the end of the prefix.
        last = np.arange(self.rounds)[:, None] + np.zeros_like(self.ues)
        still = np.flatnonzero(self.open_version != IDLE)
        lost = np.flatnonzero((self.lost_version <= rounds) & (self.lost_round >= rounds))
        row, lost_ue = _one_by_one(self.lost_ue[lost], self._lost_count[lost])
        row = lost[row]
        ue = np.concatenate([self.ues.ravel(), lost_ue, still])
        version = np.concatenate([self.versions.ravel(), self.lost_version[row], self.open_version[still]])
        over = np.concatenate([last.ravel(), self.lost_round[row], np.full(still.size, self.rounds)])
        arrival_s = np.concatenate([self.arrival_s.ravel(), self.lost_arrival_s[row], self.open_arrival_s[still]])
        crossing = (version <= rounds) & (over >= rounds)
        open_version = np.full(self.population, IDLE, np.int64)
        open_arrival_s = np.full(self.population, np.inf)
        open_version[ue[crossing]] = version[crossing]
        open_arrival_s[ue[crossing]] = np.where(arrival_s[crossing] <= end_s, arrival_s[crossing], np.inf)
        gone, log = self.lost_round < rounds, None
        models = (None, None, None)
        if self.model_s is not None and self.lost_model_s is not None and self.open_model_s is not None:
            model_s = np.concatenate([self.model_s.ravel(), self.lost_model_s[row], self.open_model_s[still]])
            open_model_s = np.zeros(self.population)
            open_model_s[ue[crossing]] = model_s[crossing]
            models = (self.model_s[:rounds], self.lost_model_s[gone], open_model_s)
        if self.log is not None:
            from perfeds2.timeline.stretches import cut

            log, held = cut(self.log, rounds, end_s)
            open_version[:], open_arrival_s[:] = IDLE, np.inf
            open_version[held.ue] = held.version
            arrived = (held.arrival_s < held.end_s) | (held.outcome == MERGED)
            arrived &= held.arrival_s <= end_s
            open_arrival_s[held.ue[arrived]] = held.arrival_s[arrived]
        return type(self)(
            self.ues[:rounds],
            self.staleness[:rounds],
            self.arrival_s[:rounds],
            self.time_s[:rounds],
            self.compute_s,
            self.lost_ue[gone],
            self.lost_version[gone],
            self.lost_round[gone],
            self.lost_arrival_s[gone],
            open_version,
            open_arrival_s,
            self._lost_count[gone],
            *models,
            log,
        )

    def until(self, time_s: float) -> int:
        """How many rounds had closed by a time."""
        return int(np.searchsorted(self.time_s, time_s, side="right"))

    def save(self, path: Path | str) -> None:
        """Write one .npz; the same timeline always gives the same bytes."""
        from perfeds2.timeline.file import save_timelines

        save_timelines(path, {"": self})

    @classmethod
    def load(cls, path: Path | str) -> "Timeline":
        """Read a timeline back, and refuse anything that is not one."""
        from perfeds2.timeline.file import load_timeline

        return load_timeline(path)

    def __repr__(self) -> str:
        if not self.rounds:
            return in_a_line(self, f"{self.population:,} UEs", "no round closed")
        rounds = f"{self.rounds:,} round{'s' * (self.rounds > 1)} of {self.quorum:,} in {self.end_s:.4g} s"
        stale = f"staleness {self.staleness.mean():.3g} (at most {self.staleness.max()})"
        return in_a_line(self, f"{self.population:,} UEs", rounds, stale, f"{self.lost:,} jobs lost")

    def _repr_html_(self) -> str:
        return as_html(repr(self), self.prefix(min(self.rounds, SHOWN_ROUNDS)).frame(), self.plot)

    def frame(self) -> "pd.DataFrame":
        """A row per job: whose, from which model, when it computed, sent and waited, and what became of it.

        ``round`` and ``staleness`` are those of the merge; of jobs that were not merged there are none.
        """
        import pandas as pd

        jobs = self.jobs()
        table = pd.DataFrame({field.name: getattr(jobs, field.name) for field in fields(jobs)})
        merged = np.full(len(table), -1)
        merged[: self.ues.size] = np.repeat(np.arange(self.rounds), self.quorum)
        round_ = pd.array(np.where(merged < 0, 0, merged), dtype="Int64")
        round_[merged < 0] = pd.NA
        words = np.array(["merged", "lost", "open"])[jobs.outcome]
        return table.assign(outcome=words, round=round_, staleness=round_ - jobs.version)

    def plot(self, axes: "Axes | None" = None, *, until_s: float | None = None) -> "Axes":
        """What each of the first UEs does, over the first seconds."""
        shown = self.prefix(min(self.rounds, SHOWN_ROUNDS) if until_s is None else self.until(until_s))
        ues = range(min(self.population, SHOWN_UES))
        jobs = shown.jobs(ues)
        merged, lost = ((jobs.ue[jobs.outcome == end], jobs.end_s[jobs.outcome == end]) for end in (MERGED, LOST))
        rows = [shown.activity(ue) for ue in ues]
        return draw_activity(axes_for(axes, (6, 3)), rows, merged, lost, max(shown.end_s, 1e-12))

    def _check(self) -> None:
        k, n = self.time_s.size, self.compute_s.size
        shapes = {
            "staleness": self.ues.shape,
            "arrival_s": self.ues.shape,
            "compute_s": (n,),
            "lost_ue": (self.lost_ue.size,),
            "lost_count": (self.lost_ue.size,),
            "lost_version": self.lost_ue.shape,
            "lost_round": self.lost_ue.shape,
            "lost_arrival_s": self.lost_ue.shape,
            "open_version": (n,),
            "open_arrival_s": (n,),
        }
        if self.ues.ndim != 2 or self.ues.shape[0] != k or self.time_s.ndim != 1 or (k and not self.ues.size):
            raise ValueError(
                f"timeline has {self.ues.shape} merges for {self.time_s.shape} round times; expected (K, A) and (K,)."
            )
        models = {"model_s": self.ues.shape, "lost_model_s": self.lost_ue.shape, "open_model_s": (n,)}
        given = [name for name in models if getattr(self, name) is not None]
        if given and len(given) < len(models):
            raise ValueError(f"timeline has {given[0]} but not all of {', '.join(models)}.")
        shapes |= {name: models[name] for name in given}
        for name in given:
            values = getattr(self, name)
            if not np.issubdtype(values.dtype, np.floating) or not (np.isfinite(values).all() and (values >= 0).all()):
                raise ValueError(f"timeline field {name} must hold seconds, finite and at least 0.")
        for name, shape in shapes.items():
            if getattr(self, name).shape != shape:
                raise ValueError(f"timeline field {name} has shape {getattr(self, name).shape}; expected {shape}.")
        for name, low, high in (
            ("ues", 0, n - 1),
            ("staleness", 0, max(k - 1, 0)),
            ("lost_ue", 0, n - 1),
            ("lost_count", 1, n),
            ("lost_version", 0, max(k - 1, 0)),
            ("lost_round", 0, max(k - 1, 0)),
            ("open_version", IDLE, k),
        ):
            values = getattr(self, name)
            if not np.issubdtype(values.dtype, np.signedinteger) or ((values < low) | (values > high)).any():
                raise ValueError(f"timeline field {name} must hold whole numbers from {low} to {high}.")
        if (self.lost_ue + self._lost_count > n).any():
            raise ValueError(f"timeline has a lost job of a UE beyond its {n}.")
        for name in ("arrival_s", "time_s", "compute_s", "lost_arrival_s", "open_arrival_s"):
            if not np.issubdtype(getattr(self, name).dtype, np.floating):
                raise ValueError(f"timeline field {name} must hold seconds, got {getattr(self, name).dtype}.")
        if (self.versions < 0).any() or (self.lost_version > self.lost_round).any():
            raise ValueError(
                "timeline has an update from a model that did not exist: staleness exceeds the round number."
            )
        if not (np.isfinite(self.time_s).all() and (np.diff(self.time_s, prepend=0.0) >= 0).all()):
            raise ValueError("timeline round times must be finite and never run backwards.")
        if not (np.isfinite(self.compute_s).all() and (self.compute_s >= 0).all()):
            raise ValueError("timeline field compute_s must be finite and at least 0.")
        if (
            np.isnan(self.lost_arrival_s).any()
            or np.isnan(self.open_arrival_s).any()
            or not np.isfinite(self.arrival_s).all()
        ):
            raise ValueError("timeline arrival times must be numbers, and finite for merged updates.")
        if self.log is not None:
            self._check_log(self.log)

    def _check_log(self, log: Jobs) -> None:
        sizes = {values.shape for values in log.columns.values()}
        if len(sizes) != 1 or log.ue.ndim != 1:
            raise ValueError("timeline log must have columns of one length.")
        for values, low, high in (
            (log.ue, 0, self.population - 1),
            (log.version, 0, self.rounds),
            (log.round, 0, self.rounds),
            (log.outcome, MERGED, PAUSED),
        ):
            if not np.issubdtype(values.dtype, np.signedinteger) or ((values < low) | (values > high)).any():
                raise ValueError(f"timeline log must hold whole numbers from {low} to {high}.")
        if not (np.isfinite(log.model_s).all() and (np.asarray(log.model_s) >= 0).all()):
            raise ValueError("timeline log must hold waits for models that are finite and at least 0.")
        times = np.stack([log.start_s, log.sending_s, log.arrival_s, log.end_s])
        if not (np.isfinite(times).all() and (np.diff(times, axis=0) >= 0).all() and (times >= 0).all()):
            raise ValueError("timeline log must hold finite seconds that do not run backwards.")


def _one_by_one(
    first: Int[np.ndarray, " l"], count: Int[np.ndarray, " l"]
) -> tuple[Int[np.ndarray, " j"], Int[np.ndarray, " j"]]:
    """Rows that stand for UEs with successive numbers, written out: the row each comes from, and its UE."""
    count = np.maximum(count, 0)
    row = np.repeat(np.arange(count.size), count)
    return row, np.arange(row.size) + np.repeat(first - (np.cumsum(count) - count), count)
