"""Store the jobs of a timeline, and the log of their parts when UEs leave and return.

An interrupted job has several rows in a log, one per stay of its UE. The last row says how the job ended.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float, Int

Whole = Int[np.ndarray, " j"]  # a whole number per job
Seconds = Float[np.ndarray, " j"]
MERGED, LOST, OPEN = 0, 1, 2
PAUSED = 3  # only in a log: the UE has left and keeps the job


@dataclass(frozen=True)
class Jobs:
    """One row per job or part: waiting for the model, computing until ``sending_s``, sending until ``arrival_s``, over at ``end_s``."""

    ue: Whole
    version: Whole  # model the job started from
    start_s: Seconds
    sending_s: Seconds
    arrival_s: Seconds  # at most end_s: a job that has not arrived by then is cut there
    end_s: Seconds
    outcome: Whole  # MERGED, LOST (restarted or refused) or OPEN (the timeline ended first)
    round: Whole  # round in which it ended; K for open jobs; -1 for a part that was continued
    model_s: Seconds  # seconds from hand-out until the model arrived and computing began

    @property
    def begun_s(self) -> Seconds:
        """When computing began, because the model had arrived."""
        return np.minimum(self.start_s + self.model_s, self.sending_s)

    @classmethod
    def joined(cls, parts: "Sequence[Jobs]") -> "Jobs":
        return cls(*(np.concatenate(column) for column in zip(*(vars(each).values() for each in parts), strict=True)))

    def take(self, rows: np.ndarray) -> "Jobs":
        return Jobs(*(column[rows] for column in vars(self).values()))


def in_order(log: Jobs) -> Jobs:
    """Sort a log by UE and time, so that it does not depend on how it was cut and joined."""
    return log.take(np.lexsort((log.outcome, log.end_s, log.start_s, log.round, log.version, log.ue)))


def job_ends(log: Jobs) -> tuple[Whole, Whole]:
    """Return how and in which round the job of each row ended, given a sorted log."""
    last = np.where(log.outcome == PAUSED, log.ue.size - 1, np.arange(log.ue.size))
    last = np.minimum.accumulate(last[::-1])[::-1]  # the next row that is not paused
    return log.outcome[last], log.round[last]


def cut(log: Jobs, rounds: int, time_s: float) -> tuple[Jobs, Jobs]:
    """Return a sorted log as it was after ``rounds`` rounds, and the rows that were open then, uncut."""
    _, over = job_ends(log)
    begun = np.flatnonzero((log.version <= rounds) & (log.start_s <= time_s))
    log, over = log.take(begun), over[begun]
    running, held = log.round >= rounds, over >= rounds
    # A job that is paused at the cut gets an empty row.
    last = held & ~np.append((log.ue[1:] == log.ue[:-1]) & held[1:], False)
    away = np.flatnonzero(last & ~running)
    now, open_, round_ = np.full(away.size, time_s), np.full(away.size, OPEN), np.full(away.size, rounds)
    paused = Jobs(log.ue[away], log.version[away], now, now, now, now, open_, round_, np.zeros(away.size))
    sending_s = np.minimum(log.sending_s, time_s)
    kept = replace(
        log,
        sending_s=sending_s,
        arrival_s=np.minimum(log.arrival_s, time_s),
        end_s=np.minimum(log.end_s, time_s),
        outcome=np.where(running, OPEN, log.outcome),
        round=np.minimum(log.round, rounds),
        model_s=np.minimum(log.model_s, sending_s - log.start_s),
    )
    return in_order(Jobs.joined([kept, paused])), Jobs.joined([log.take(np.flatnonzero(running)), paused])


def one_by_one(first: Int[np.ndarray, " l"], count: Int[np.ndarray, " l"]) -> tuple[Whole, Whole]:
    """Expand rows that describe several consecutive UEs; return the row each UE comes from, and the UEs."""
    count = np.maximum(count, 0)
    row = np.repeat(np.arange(count.size), count)
    return row, np.arange(row.size) + np.repeat(first - (np.cumsum(count) - count), count)


def check_log(log: Jobs, ues: int, rounds: int) -> None:
    """Raise ValueError unless the log fits this many UEs and rounds."""
    if {values.shape for values in vars(log).values()} != {(log.ue.size,)}:
        raise ValueError("timeline log must have columns of one length.")
    check_whole("log", log.ue, 0, ues - 1)
    check_whole("log", log.version, 0, rounds)
    check_whole("log", log.round, 0, rounds)
    check_whole("log", log.outcome, MERGED, PAUSED)
    if not (np.isfinite(log.model_s).all() and (log.model_s >= 0).all()):
        raise ValueError("timeline log must hold waits for models that are finite and at least 0.")
    times = np.stack([log.start_s, log.sending_s, log.arrival_s, log.end_s])
    if not (np.isfinite(times).all() and (np.diff(times, axis=0) >= 0).all() and (times >= 0).all()):
        raise ValueError("timeline log must hold finite seconds that do not run backwards.")


def check_whole(what: str, values: np.ndarray, low: int, high: int) -> None:
    if not np.issubdtype(values.dtype, np.signedinteger) or ((values < low) | (values > high)).any():
        raise ValueError(f"timeline {what} must hold whole numbers from {low} to {high}.")
