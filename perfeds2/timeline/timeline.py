"""Who was merged in each round, how stale, and when?"""

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Float, Int

from perfeds2.files import write_atomically
from perfeds2.timeline.rounds import IDLE

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


MERGED, LOST, OPEN = 0, 1, 2


@dataclass(frozen=True)
class Timeline:
    """Who arrived in each round, how stale, and when. Pure data; knows no weights."""

    ues: Int[np.ndarray, "K A"]  # UE merged in slot a of round k, in order of arrival
    staleness: Int[np.ndarray, "K A"]  # it started from model k - staleness (τ in the paper)
    arrival_s: Float[np.ndarray, "K A"]  # when its update was complete at the server
    time_s: Float[np.ndarray, " K"]  # when round k closed
    compute_s: Float[np.ndarray, " n"]  # how long each UE computes on one job
    lost_ue: Int[np.ndarray, " l"]  # jobs that ended without a merge: whose,
    lost_version: Int[np.ndarray, " l"]  # from which model,
    lost_round: Int[np.ndarray, " l"]  # at the close of which round,
    lost_arrival_s: Float[np.ndarray, " l"]  # and when it had arrived, if it had (else infinite)
    open_version: Int[np.ndarray, " n"]  # the model each UE holds when the timeline ends, or IDLE
    open_arrival_s: Float[np.ndarray, " n"]  # when that job's update arrived, if it has (else infinite)

    def __post_init__(self) -> None:
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

    def jobs(self) -> Jobs:
        """Every job: the merged ones, then the lost ones, then those still open."""
        start_s = self.start_s
        still = np.flatnonzero(self.open_version != IDLE)
        ue = np.concatenate([self.ues.ravel(), self.lost_ue, still])
        version = np.concatenate([self.versions.ravel(), self.lost_version, self.open_version[still]])
        end_s = np.concatenate(
            [np.repeat(self.time_s, self.quorum), start_s[self.lost_round + 1], np.full(still.size, self.end_s)]
        )
        arrival_s = np.concatenate([self.arrival_s.ravel(), self.lost_arrival_s, self.open_arrival_s[still]])
        outcome = np.repeat([MERGED, LOST, OPEN], [self.ues.size, self.lost_ue.size, still.size])
        started_s = start_s[version]
        sending_s = np.minimum(started_s + self.compute_s[ue], end_s)
        return Jobs(ue, version, started_s, sending_s, np.clip(arrival_s, sending_s, end_s), end_s, outcome)

    def activity(self, ue: int) -> list[tuple[State, float, float]]:
        """What one UE did, as (state, from second, to second), without gaps from 0 to the end."""
        jobs = self.jobs()
        mine = np.flatnonzero(jobs.ue == ue)
        intervals: list[tuple[State, float, float]] = []
        now = 0.0
        for job in mine[np.argsort(jobs.version[mine])]:
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
        jobs = self.jobs()
        computing = float((jobs.sending_s - jobs.start_s).sum())
        sending = float((jobs.arrival_s - jobs.sending_s).sum())
        waiting = float((jobs.end_s - jobs.arrival_s).sum())
        idle = max(self.end_s * self.population - computing - sending - waiting, 0.0)
        return {"computing": computing, "sending": sending, "waiting": waiting, "idle": idle}

    @property
    def waiting_share(self) -> float:
        """The fraction of their time that UEs neither compute nor send."""
        seconds = self.seconds()
        return (seconds["waiting"] + seconds["idle"]) / max(sum(seconds.values()), 1e-300)

    @property
    def wasted_share(self) -> float:
        """The fraction of computing and sending time that went into jobs nobody merged."""
        jobs = self.jobs()
        busy_s = jobs.arrival_s - jobs.start_s
        return float(busy_s[jobs.outcome == LOST].sum() / max(busy_s.sum(), 1e-300))

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
        ue = np.concatenate([self.ues.ravel(), self.lost_ue, still])
        version = np.concatenate([self.versions.ravel(), self.lost_version, self.open_version[still]])
        over = np.concatenate([last.ravel(), self.lost_round, np.full(still.size, self.rounds)])
        arrival_s = np.concatenate([self.arrival_s.ravel(), self.lost_arrival_s, self.open_arrival_s[still]])
        crossing = (version <= rounds) & (over >= rounds)
        open_version = np.full(self.population, IDLE, np.int64)
        open_arrival_s = np.full(self.population, np.inf)
        open_version[ue[crossing]] = version[crossing]
        open_arrival_s[ue[crossing]] = np.where(arrival_s[crossing] <= end_s, arrival_s[crossing], np.inf)
        gone = self.lost_round < rounds
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
        )

    def until(self, time_s: float) -> int:
        """How many rounds had closed by a time."""
        return int(np.searchsorted(self.time_s, time_s, side="right"))

    def save(self, path: Path | str) -> None:
        """Write one .npz; the same timeline always gives the same bytes."""
        save_timelines(path, {"": self})

    @classmethod
    def load(cls, path: Path | str) -> "Timeline":
        """Read a timeline back, and refuse anything that is not one."""
        timelines = load_timelines(path)
        if list(timelines) != [""]:
            raise ValueError(
                f"{path} holds {len(timelines)} timelines ({', '.join(timelines)}); read it with load_timelines."
            )
        return cls(**{f.name: getattr(timelines[""], f.name) for f in fields(cls)})

    def _check(self) -> None:
        k, n = self.time_s.size, self.compute_s.size
        shapes = {
            "staleness": self.ues.shape,
            "arrival_s": self.ues.shape,
            "compute_s": (n,),
            "lost_ue": (self.lost_ue.size,),
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
        for name, shape in shapes.items():
            if getattr(self, name).shape != shape:
                raise ValueError(f"timeline field {name} has shape {getattr(self, name).shape}; expected {shape}.")
        for name, low, high in (
            ("ues", 0, n - 1),
            ("staleness", 0, max(k - 1, 0)),
            ("lost_ue", 0, n - 1),
            ("lost_version", 0, max(k - 1, 0)),
            ("lost_round", 0, max(k - 1, 0)),
            ("open_version", IDLE, k),
        ):
            values = getattr(self, name)
            if not np.issubdtype(values.dtype, np.signedinteger) or ((values < low) | (values > high)).any():
                raise ValueError(f"timeline field {name} must hold whole numbers from {low} to {high}.")
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


def save_timelines(path: Path | str, timelines: Mapping[str, Timeline]) -> None:
    """Write several named timelines into one .npz (keys ``name/field``; the name may be empty)."""
    arrays = {
        f"{name}/{field.name}".lstrip("/"): getattr(timeline, field.name)
        for name, timeline in timelines.items()
        for field in fields(Timeline)
    }
    with (
        write_atomically(Path(path)) as file,
        zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
    ):
        for key, values in arrays.items():
            with archive.open(zipfile.ZipInfo(f"{key}.npy"), "w", force_zip64=True) as member:  # no clock in the bytes
                np.lib.format.write_array(member, np.ascontiguousarray(values), allow_pickle=False)


def load_timelines(path: Path | str) -> dict[str, Timeline]:
    """Read the timelines of a run's folder or file, by name."""
    path = Path(path)
    if path.is_dir():
        path = path / "timeline.npz"
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in archive.files}
    except FileNotFoundError:
        raise
    except Exception as error:
        raise ValueError(
            f"{path} is not a readable timeline ({_first_line(error)}); expected an .npz written by perfeds2."
        ) from error
    names = {field.name for field in fields(Timeline)}
    grouped: dict[str, dict[str, np.ndarray]] = {}
    for key, values in arrays.items():
        name, _, field = key.rpartition("/")
        if isinstance(values, np.ndarray):  # np.load gives the bytes of members that are not arrays
            grouped.setdefault(name, {})[field] = values
    for group in grouped.values() or [{}]:
        if group.keys() != names:
            raise ValueError(
                f"{path} is not a timeline: it lacks {sorted(names - group.keys())} and has extra {sorted(group.keys() - names)}."
            )
    try:
        return {name: Timeline(**group) for name, group in grouped.items()}
    except ValueError as error:
        raise ValueError(f"{path} is not a timeline: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
