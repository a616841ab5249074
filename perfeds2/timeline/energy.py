"""Compute the energy that went into a timeline: per UE, per activity and over time.

A job draws computing power while it computes and sending power while it sends, even if it is never merged. Waiting
for a model or for the round to close is free. A timeline does not record how many bits an interrupted job had sent;
we assume the mean rate of that UE's merged uploads, or of all uploads if it has none. Only models with a cost per bit
need this.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from perfeds2.network.cell import Cell
from perfeds2.network.energy import EnergyModel
from perfeds2.network.link import PerUe
from perfeds2.timeline.choices import Choices
from perfeds2.timeline.jobs import LOST, MERGED, Jobs, job_ends
from perfeds2.timeline.record import Timeline
from perfeds2.timeline.usage import long_rows, short_row_jobs

Times = Float[np.ndarray, " t"]
Changes = Float[np.ndarray, " c"]


@dataclass(frozen=True)
class Energy:
    """Energy of a timeline, in joules."""

    computing_j: PerUe  # per UE
    sending_j: PerUe
    by_time_j: Times  # of all UEs, until each requested time

    @property
    def ue_j(self) -> PerUe:
        return self.computing_j + self.sending_j

    @property
    def total_j(self) -> float:
        return float(self.ue_j.sum())


@dataclass(frozen=True)
class Powers:
    """Power draw of each UE."""

    computing_w: PerUe
    sending_w: PerUe


def energy_of(
    timeline: Timeline, cell: Cell, model: EnergyModel, payload_bits: PerUe | float, times_s: Times
) -> Energy:
    """Return the energy of all jobs, by UE and until each time in ``times_s``."""
    powers = _powers(timeline, cell, model, payload_bits)
    if timeline.choices is not None and timeline.rounds:
        fixed_w = powers.sending_w - model.radiates * cell.sent_power_w
        return _as_chosen(timeline, timeline.choices, powers, fixed_w, times_s)
    computing_j, sending_j, by_time_j = _of_long_rows(timeline, powers, times_s)
    for jobs in short_row_jobs(timeline.log, timeline.compute_s):
        own_j = job_joules(jobs, powers)
        computing_j += np.bincount(jobs.ue, own_j[0], timeline.population)
        sending_j += np.bincount(jobs.ue, own_j[1], timeline.population)
        by_time_j += _until(jobs, powers, times_s)
    return Energy(computing_j, sending_j, by_time_j)


def _powers(timeline: Timeline, cell: Cell, model: EnergyModel, payload_bits: PerUe | float) -> Powers:
    """Return the power draw of each UE, with what the bits of its uploads take on average."""
    bits_w: PerUe | float = 0.0
    if model.joules_per_bit:
        bits_w = model.joules_per_bit * payload_bits * _transmissions(timeline) / _sending_seconds(timeline)
    return Powers(model.computing_w(cell), model.radio_w(cell) + bits_w)


def _transmissions(timeline: Timeline) -> PerUe | float:
    """Return how often each UE sent a merged upload, on average."""
    if timeline.tries is None or not timeline.rounds:
        return 1.0
    jobs, n = timeline.jobs(), timeline.population
    jobs = jobs.take((jobs.outcome == MERGED) & (jobs.round >= 0))
    sent = timeline.tries.sent[timeline.tries.row_at(jobs.ue, jobs.start_s)].astype(float)
    merges = np.bincount(jobs.ue, minlength=n)
    return np.where(merges > 0, np.bincount(jobs.ue, sent, n) / np.maximum(merges, 1), sent.mean())


@dataclass(frozen=True)
class Failures:
    """Transmissions with errors of the jobs that are over."""

    failed: int
    share: float  # of all their transmissions
    joules: float  # spent in vain: by transmissions that were repeated, and by jobs whose upload was discarded
    weakest_merges: float  # share of the merges of the quarter of UEs with the weakest signals


def failures_of(timeline: Timeline, cell: Cell, model: EnergyModel, payload_bits: PerUe | float) -> Failures | None:
    """Return what errors did to a timeline; None if uploads have none."""
    if timeline.tries is None or not timeline.rounds:
        return None
    jobs, powers = timeline.jobs(), _powers(timeline, cell, model, payload_bits)
    row = timeline.tries.row_at(jobs.ue, jobs.start_s)
    sent, fails = timeline.tries.sent[row], timeline.tries.fails[row]
    merged, last = jobs.outcome == MERGED, jobs.round >= 0
    discarded = (
        (jobs.outcome == LOST)
        & last
        & fails
        & (jobs.end_s != timeline.start_s[np.maximum(jobs.round, 0) + 1 - (jobs.round == timeline.rounds)])
    )
    computing_j, sending_j = job_joules(jobs, powers)
    repeats = int((sent - 1)[merged & last].sum())
    failed = repeats + int(np.count_nonzero(discarded))
    joules = (sending_j * (sent - 1) / sent)[merged].sum() + (computing_j + sending_j)[discarded].sum()
    weakest = np.argsort(cell.mean_signal_hz, kind="stable")[: max(cell.ues // 4, 1)]
    transmissions = failed + np.count_nonzero(merged & last)
    return Failures(failed, failed / max(transmissions, 1), float(joules), float(timeline.shares[weakest].sum()))


def job_joules(jobs: Jobs, powers: Powers) -> tuple[Float[np.ndarray, " j"], Float[np.ndarray, " j"]]:
    """Return the computing and the sending energy of each job."""
    computing = powers.computing_w[jobs.ue] * (jobs.sending_s - jobs.begun_s)
    return computing, powers.sending_w[jobs.ue] * (jobs.arrival_s - jobs.sending_s)


def _until(jobs: Jobs, powers: Powers, times_s: Times) -> Times:
    """Return the energy of these jobs until each time; the total power changes only where a job changes state."""
    computing_w, sending_w = powers.computing_w[jobs.ue], powers.sending_w[jobs.ue]
    at_s = np.concatenate([jobs.begun_s, jobs.sending_s, jobs.arrival_s])
    return _sum_until(at_s, np.concatenate([computing_w, sending_w - computing_w, -sending_w]), times_s)


def _sum_until(at_s: Changes, change_w: Changes, times_s: Times) -> Times:
    """Return the energy until each time of a power that changes at some times."""
    order = np.argsort(at_s, kind="stable")
    at_s, power_w = at_s[order], np.cumsum(change_w[order])
    if not at_s.size:
        return np.zeros(times_s.size)
    return np.interp(times_s, at_s, np.concatenate([[0.0], np.cumsum(power_w[:-1] * np.diff(at_s))]))


def _as_chosen(timeline: Timeline, choices: Choices, powers: Powers, fixed_w: PerUe, times_s: Times) -> Energy:
    """Return the energy at the frequencies and powers that the policy chose; ``fixed_w`` depends on no choice."""
    jobs, n = timeline.jobs(), timeline.population
    speed = choices.speed[choices.row_at(jobs.ue, jobs.start_s)]
    job, row, begin_s, end_s = choices.pieces(jobs.ue, jobs.sending_s, jobs.arrival_s)
    ue = jobs.ue[job]
    computing_w = powers.computing_w[jobs.ue] * speed**3
    sending_w = fixed_w[ue] * (choices.power[row] > 0) + (powers.sending_w - fixed_w)[ue] * choices.power[row]
    by_time_j = _sum_until(
        np.concatenate([jobs.begun_s, jobs.sending_s, begin_s, end_s]),
        np.concatenate([computing_w, -computing_w, sending_w, -sending_w]),
        times_s,
    )
    computing_j = np.bincount(jobs.ue, computing_w * (jobs.sending_s - jobs.begun_s), n)
    return Energy(computing_j, np.bincount(ue, sending_w * (end_s - begin_s), n), by_time_j)


def _sending_seconds(timeline: Timeline) -> PerUe:
    """Return the mean time that each UE needed to send a merged upload."""
    log, merges = timeline.log, timeline.merges
    merged = job_ends(log)[0] == MERGED
    ue, seconds = log.ue[merged], (log.arrival_s - log.sending_s)[merged]
    everybody = float(seconds.sum() / merges.sum()) if seconds.size else 1.0
    mean_s = np.bincount(ue, seconds, timeline.population) / np.maximum(merges, 1)
    return np.maximum(np.where(merges > 0, mean_s, everybody), 1e-12)


# ---- A large fleet with restarts has more jobs than fit in memory, so its long rows are summed without expanding them


def _of_long_rows(timeline: Timeline, powers: Powers, times_s: Times) -> tuple[PerUe, PerUe, Times]:
    """Return the energy of the long rows, spreading each row evenly over its duration."""
    n, long, by_time_j = (
        timeline.population,
        timeline.log.take(np.flatnonzero(long_rows(timeline.log, timeline.compute_s))),
        np.zeros(times_s.size),
    )
    if not long.ue.size:
        return np.zeros(n), np.zeros(n), by_time_j
    first, past, begin_s, compute_s = long.ue, long.ue + long.count, long.start_s, timeline.compute_s
    jobs, lasted_s = (_covering(n, first, past, worth) for worth in (np.ones(first.size), long.end_s - begin_s))
    computing_j = jobs * powers.computing_w * compute_s
    sending_j = powers.sending_w * (lasted_s - jobs * compute_s)
    a_job_j = np.cumsum(np.concatenate([[0.0], powers.computing_w * compute_s - powers.sending_w * compute_s]))
    a_second_w = np.cumsum(np.concatenate([[0.0], powers.sending_w]))
    row_j = a_job_j[past] - a_job_j[first] + (a_second_w[past] - a_second_w[first]) * (long.end_s - begin_s)
    for row in range(row_j.size):
        by_time_j += row_j[row] * np.clip((times_s - begin_s[row]) / (long.end_s[row] - begin_s[row]), 0.0, 1.0)
    return computing_j, sending_j, by_time_j


def _covering(n: int, first: np.ndarray, past: np.ndarray, worth: Float[np.ndarray, " r"]) -> PerUe:
    """Return, for each UE, the sum of ``worth`` over the rows that cover it."""
    change = np.zeros(n + 1)
    np.add.at(change, first, worth)
    np.add.at(change, past, -worth)
    return np.cumsum(change)[:-1]
