"""Sum the time that UEs spend on jobs. In a crowd, jobs that share a row may not fit in memory one by one."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool

from perfeds2.network.link import PerUe
from perfeds2.timeline.jobs import LOST, Jobs, written_out

JOBS_AT_A_TIME = 2**22  # about a quarter of a gigabyte
LONG_ROW = 32  # UEs


@dataclass(frozen=True)
class Spent:
    """UE-seconds, summed over the jobs of a timeline."""

    computing_s: float
    sending_s: float
    waiting_s: float  # for the model, or for the round to close after the update arrived
    busy_s: float  # computing or sending
    lost_s: float  # the part of busy_s spent on jobs without a merge


def spent(log: Jobs, compute_s: PerUe) -> Spent:
    """Return the sums over all jobs; long rows are added without writing them out."""
    long = log.take(np.flatnonzero(long_rows(log, compute_s)))
    past = long.ue + long.count
    before_s = np.concatenate([[0.0], compute_s.cumsum()])  # computing time of all UEs with smaller numbers
    computing_s = (before_s[past] - before_s[long.ue]).sum()
    busy_s = ((long.end_s - long.start_s) * long.count).sum()
    sums = np.array([computing_s, busy_s - computing_s, 0.0, busy_s, busy_s])
    for jobs in short_row_jobs(log, compute_s):
        begun_s = jobs.begun_s
        busy_s = jobs.arrival_s - begun_s
        sums += [
            (jobs.sending_s - begun_s).sum(),
            (jobs.arrival_s - jobs.sending_s).sum(),
            (jobs.end_s - jobs.arrival_s).sum() + (begun_s - jobs.start_s).sum(),
            busy_s.sum(),
            busy_s[jobs.outcome == LOST].sum(),
        ]
    return Spent(*sums.tolist())


def long_rows(log: Jobs, compute_s: PerUe) -> Bool[np.ndarray, " j"]:
    """Mask the rows with many UEs, all sending when their job was lost."""
    return (log.count > LONG_ROW) & (log.model_s == 0) & (log.end_s - log.start_s >= compute_s.max())


def short_row_jobs(log: Jobs, compute_s: PerUe) -> Iterator[Jobs]:
    """Yield all jobs except those of ``long_rows``, one range of UEs at a time."""
    log = log.take(np.flatnonzero(~long_rows(log, compute_s)))
    step = -(-compute_s.size // (1 + int(log.count.sum()) // JOBS_AT_A_TIME))
    for first in range(0, compute_s.size, step):
        yield written_out(log, range(first, first + step), compute_s)
