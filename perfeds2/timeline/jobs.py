"""Store the jobs of a timeline in one table.

A job whose UE leaves and returns has a row for each stay of its UE. The last row says how the job ended. If very many
jobs are lost at once, consecutive UEs that lost the same job share a row.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float, Int

from perfeds2.network.link import PerUe

Whole = Int[np.ndarray, " j"]  # a whole number per job
Seconds = Float[np.ndarray, " j"]
MERGED, LOST, OPEN = 0, 1, 2
PAUSED = 3  # the UE has left and keeps the job


@dataclass(frozen=True)
class Jobs:
    """One row per job or part: waiting for the model, computing until ``sending_s``, sending until ``arrival_s``, over at ``end_s``."""

    ue: Whole  # the first, if several share the row
    version: Whole  # model the job started from
    start_s: Seconds
    sending_s: Seconds  # of the first UE
    arrival_s: Seconds  # at most end_s: a job that has not arrived by then is cut there
    end_s: Seconds
    outcome: Whole  # MERGED, LOST (restarted or refused) or OPEN (the timeline ended first); in a log also PAUSED
    round: Whole  # round in which it ended; K for open jobs; -1 for a part that was continued
    model_s: Seconds  # seconds from hand-out until the model arrived or will arrive, and computing began
    arrived: Bool[np.ndarray, " j"]  # whether the update was at the server when the row ended
    count: Whole  # consecutive UEs; several have sent nothing when they lost the job, or not all of it

    @property
    def begun_s(self) -> Seconds:
        """When computing began, because the model had arrived."""
        return np.minimum(self.start_s + self.model_s, self.sending_s)

    @classmethod
    def joined(cls, parts: "Sequence[Jobs]") -> "Jobs":
        return cls(*(np.concatenate(column) for column in zip(*(vars(part).values() for part in parts), strict=True)))

    def take(self, rows: np.ndarray) -> "Jobs":
        return Jobs(*(column[rows] for column in vars(self).values()))

    def of_ues(self, ues: range, compute_s: PerUe) -> "Jobs":
        """Return the jobs of consecutive UEs with a row for each UE, given how long a job of each computes."""
        first = np.maximum(self.ue, ues.start)
        row, ue = one_by_one(first, np.minimum(self.ue + self.count, ues.stop) - first)
        jobs = self.take(row)
        usual_s = np.minimum(jobs.start_s + (jobs.model_s + compute_s[ue]), jobs.end_s)
        sending_s = np.where(jobs.count > 1, usual_s, jobs.sending_s)
        return replace(jobs, ue=ue, sending_s=sending_s, count=np.ones_like(ue))


def one_by_one(first: Int[np.ndarray, " l"], count: Int[np.ndarray, " l"]) -> tuple[Whole, Whole]:
    """Expand rows that describe several consecutive numbers; return the row each number comes from, and the numbers."""
    count = np.maximum(count, 0)
    row = np.repeat(np.arange(count.size), count)
    return row, np.arange(row.size) + np.repeat(first - (np.cumsum(count) - count), count)


def in_order(log: Jobs) -> Jobs:
    """Sort a log by outcome and round, and open jobs by UE, so that it does not depend on how it was cut and joined."""
    ue, version = (np.where(log.outcome == OPEN, column, 0) for column in (log.ue, log.version))
    return log.take(np.lexsort((version, ue, log.round, log.outcome)))


def job_ends(log: Jobs) -> tuple[Whole, Whole]:
    """Return how and in which round the job of each row ended."""
    if not (log.outcome == PAUSED).any():
        return log.outcome, log.round
    order = np.lexsort((log.outcome, log.end_s, log.start_s, log.round, log.version, log.ue))
    last = np.where(log.outcome[order] == PAUSED, order.size - 1, np.arange(order.size))
    last = np.minimum.accumulate(last[::-1])[::-1]  # the next row of the job that is not paused
    outcome, round_ = log.outcome.copy(), log.round.copy()
    outcome[order], round_[order] = log.outcome[order[last]], log.round[order[last]]
    return outcome, round_


def written_out(log: Jobs, ues: range, compute_s: PerUe) -> Jobs:
    """Return the jobs of consecutive UEs with a row for each UE, and for each part the outcome of the whole job."""
    outcome, _ = job_ends(log)
    return replace(log, outcome=outcome, round=np.where(log.outcome == PAUSED, -1, log.round)).of_ues(ues, compute_s)


def cut(log: Jobs, rounds: int, time_s: float, compute_s: PerUe) -> Jobs:
    """Return a log as it was after ``rounds`` rounds."""
    _, over = job_ends(log)
    begun = np.flatnonzero((log.version <= rounds) & (log.start_s <= time_s))
    log, over = log.take(begun), over[begun]
    running, name = log.round >= rounds, log.ue * (rounds + 1) + log.version
    # A job that is paused at the cut gets an empty row.
    paused, rows = np.unique(name[~running & (over >= rounds)], return_index=True)
    rows = np.flatnonzero(~running & (over >= rounds))[rows[~np.isin(paused, name[running])]]
    away, now = log.take(rows), np.full(rows.size, time_s)
    away = replace(away, start_s=now, sending_s=now, arrival_s=now, end_s=now, model_s=0 * now)
    open_ = Jobs.joined([log.take(running).of_ues(range(compute_s.size), compute_s), away])
    open_ = replace(
        open_,
        sending_s=np.minimum(open_.sending_s, time_s),
        arrival_s=np.minimum(open_.arrival_s, time_s),
        end_s=np.minimum(open_.end_s, time_s),
        outcome=np.full_like(open_.outcome, OPEN),
        round=np.full_like(open_.round, rounds),
        arrived=open_.arrived & (open_.arrival_s <= time_s),
    )
    return in_order(Jobs.joined([log.take(~running), open_]))
