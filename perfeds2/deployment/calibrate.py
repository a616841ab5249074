"""Fit a fleet file to the devices of a finished federation, and compare the simulator's prediction with reality.

Every job was timed twice: by its device (computing time) and by the server (from handing out the model to receiving
the update). The difference is attributed to the uplink; it includes sending the update, receiving the model, and
transport overhead.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from perfeds2.deployment.record import LAP_COLUMNS, LAPS
from perfeds2.deployment.setup import Setup, read_timeline
from perfeds2.errors import InputError
from perfeds2.files import read_table, write_text
from perfeds2.network.cell import Cell
from perfeds2.network.fleet import MAX_SPREAD
from perfeds2.network.fleet_file import FleetFile
from perfeds2.spec.cells import cycles_per_sample
from perfeds2.timeline.record import Timeline
from perfeds2.timeline.simulate import simulate

LEAST_S = 1e-9
DEVIATIONS = 1.4826  # standard deviation of a normal variable over its median absolute deviation


@dataclass(frozen=True)
class Calibration:
    """Fitted devices, and when the run's rounds closed in reality and in the simulation."""

    devices: pd.DataFrame  # by UE: jobs, compute_s, compute_spread, rate_bps, rate_spread
    missing: list[int]  # devices that answered no job in these rounds
    rounds: int  # number of rounds used for the fit
    real_s: np.ndarray  # when each round of the run closed
    predicted_s: np.ndarray

    @property
    def checked(self) -> tuple[int, int]:
        """First and last (exclusive) round to compare: those not used for the fit, or all if none are left."""
        total = self.real_s.size
        return (self.rounds if self.rounds < total else 0), total

    @property
    def seconds(self) -> tuple[float, float]:
        """Duration of these rounds in seconds, real and simulated."""
        first, last = self.checked
        real_s, predicted_s = (
            float(times[last - 1] - (times[first - 1] if first else 0.0)) for times in (self.real_s, self.predicted_s)
        )
        return real_s, predicted_s

    @property
    def gap(self) -> float:
        """By how much the real duration exceeds the prediction, as a fraction."""
        real_s, predicted_s = self.seconds
        return real_s / predicted_s - 1


def read_laps(folder: Path) -> pd.DataFrame:
    path = folder / LAPS
    try:
        laps = read_table(path, usecols=list(LAP_COLUMNS)).astype(LAP_COLUMNS)
    except FileNotFoundError:
        raise InputError(f"{folder} has no {LAPS}; give the folder of a finished federation.") from None
    except ValueError as error:
        raise InputError(
            f"{path} is not a list of jobs ({error}); expected the columns {','.join(LAP_COLUMNS)}."
        ) from None
    fits = np.isfinite(laps.took_s) & (laps.compute_s >= 0) & (laps.compute_s <= laps.took_s * 1.01 + 1e-3)
    if not fits.all():
        raise InputError(f"{path} has a job that computed longer than it took; copy the file from the run again.")
    return laps


def calibrate(run: Path, out: Path, rounds: int | None = None) -> Calibration:
    """Fit the devices of a finished federation, write a fleet file, and simulate the run on it.

    Args:
        run: The federation's run folder.
        out: The fleet file to write.
        rounds: Number of first rounds to fit; all by default.

    Returns:
        The fitted devices, and the real and predicted time at which each round closed.

    Raises:
        InputError: The run is not finished, or too few devices answered a job in these rounds.
    """
    setup, laps = Setup.read(run), read_laps(run)
    timeline = read_timeline(run)
    rounds = timeline.rounds if rounds is None else min(rounds, timeline.rounds)
    learner = setup.algorithm.learner
    bits = setup.upload_bits
    devices = fit(laps.loc[(laps.version < rounds) & (laps.scale > 0)], timeline, rounds, bits)
    if devices.empty:
        raise InputError(f"no device answered a job in the first {rounds} rounds of {run}; use more rounds (--rounds).")
    write_text(out, fleet_text(devices, learner.samples))
    predicted = simulate_fleet(setup, out, bits, timeline.rounds)
    missing = sorted(set(range(setup.ues)).difference(devices.index))
    return Calibration(devices, missing, rounds, timeline.time_s, predicted.time_s)


def fit(laps: pd.DataFrame, timeline: Timeline, rounds: int, bits: float) -> pd.DataFrame:
    """Return each device's median computing time and rate, and their spreads.

    A spread is a robust standard deviation of the logarithm. The server's turnaround, from closing a round to handing
    out the next model, counts as uplink time.

    Args:
        laps: One row per job, as in ``laps.csv``.
        timeline: The timeline of the run.
        rounds: Number of first rounds to use.
        bits: Size of an update in bits.
    """
    compute_s = laps.compute_s.clip(lower=LEAST_S)
    beyond_s = (laps.took_s - laps.compute_s).clip(lower=LEAST_S) + _turnaround_s(laps, timeline, rounds)
    computing, sending = compute_s.groupby(laps.ue), beyond_s.groupby(laps.ue)
    return pd.DataFrame(
        {
            "jobs": computing.size(),
            "compute_s": computing.median(),
            "compute_spread": computing.agg(_spread),
            "rate_bps": bits / sending.median(),
            "rate_spread": sending.agg(_spread),
        }
    )


def _turnaround_s(laps: pd.DataFrame, timeline: Timeline, rounds: int) -> float:
    """Return the median time in seconds from closing a round to handing out the new model, over merged jobs."""
    columns = {"ue": timeline.ues, "version": timeline.versions, "arrival_s": timeline.arrival_s}
    merged = pd.DataFrame({name: values[:rounds].ravel() for name, values in columns.items()})
    jobs = merged.merge(laps.drop_duplicates(["ue", "version"], keep="last"))
    turns_s = jobs.arrival_s - timeline.start_s[jobs.version] - jobs.took_s
    return 0.0 if turns_s.empty else max(float(turns_s.median()), 0.0)


def _spread(values: pd.Series) -> float:
    logs = np.log(values)
    return float(DEVIATIONS * np.median(np.abs(logs - np.median(logs))))


def fleet_text(devices: pd.DataFrame, samples: int) -> str:
    """Return a fleet file. Speeds are in samples per second, so larger batches and more steps take longer."""
    spreads = devices[["compute_spread", "rate_spread"]].clip(upper=MAX_SPREAD)
    columns = devices.index, samples / devices.compute_s, spreads.compute_spread, devices.rate_bps, spreads.rate_spread
    rows = [
        f"device {ue},{speed:.6g},{compute_spread:.3g},{rate_bps:.6g},{rate_spread:.3g}"
        for ue, speed, compute_spread, rate_bps, rate_spread in zip(*columns, strict=True)
    ]
    return "\n".join(["name,samples_per_s,compute_spread,rate_bps,rate_spread", *rows, ""])


def simulate_fleet(setup: Setup, fleet: Path, bits: float, rounds: int) -> Timeline:
    """Simulate the run's rounds on the devices of a fleet file."""
    file, algorithm = FleetFile.open(fleet), setup.algorithm
    if algorithm.protocol.quorum > file.ues:
        raise InputError(
            f"{file.ues} devices answered a job, but a round needs {algorithm.protocol.quorum}; use more rounds (--rounds)."
        )
    drawn = Cell.draw(file.ues, setup.seed)
    if not setup.own.app_module:  # the cycles that ``simulate`` counts, so that both round alike
        drawn = replace(drawn, cycles_per_sample=cycles_per_sample(setup.spec))
    cell = file.cell(drawn, setup.spec.learning.batch)
    return simulate(cell, algorithm.protocol, payload_bits=bits, samples=algorithm.learner.samples, rounds=rounds)
