"""Check that the simulator, replaying the timeline of a real federation, reaches the same weights."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from perfeds2.deployment.calibrate import LAPS, read_laps
from perfeds2.deployment.device import compute_job, kept_at_first
from perfeds2.deployment.merging import handed_out, merged, noise_on
from perfeds2.deployment.setup import Setup, data_folder, read_timeline
from perfeds2.deployment.transport import Arrays
from perfeds2.deployment.validate import shortened
from perfeds2.errors import InputError
from perfeds2.learning.replay import Learner, replay
from perfeds2.learning.task import Task
from perfeds2.runs.store import load_arrays
from perfeds2.timeline.record import Timeline

TARGET = 1e-5


@dataclass(frozen=True)
class Agreement:
    """The differences between the weights of two models."""

    rounds: int
    merges: int
    largest: float  # largest difference of a weight
    relative: float  # largest difference relative to the largest weight of its array
    where: str
    job_by_job: bool = False  # computed with the devices' program, not with the simulator's

    @property
    def holds(self) -> bool:
        return self.relative <= TARGET


def replay_run(path: Path, data_folders: str | None = None) -> Agreement:
    """Train again along a finished federation's timeline, and compare the weights.

    The simulator's compiled loop rounds differently from the devices. If its weights are too far away, each job is
    computed again with the device's own program, which gives the same bits.

    Args:
        path: The federation's run folder.
        data_folders: Copies of the devices' own data, with {} for the device number. Needed only with --app-module.

    Returns:
        How far the federation's model and the replayed one differ.

    Raises:
        InputError: The run is not finished, or the data folders are missing.
    """
    if not (path / "summary.json").exists() or not (path / "model.safetensors").exists():
        raise InputError(f"{path} has no finished run; give the folder of a finished federation.")
    setup = Setup.read(path)
    timeline = read_timeline(path)
    weights, _ = load_arrays(path / "model.safetensors")
    scales, learner = _clipped(path), setup.secret_learner(path)
    if setup.own.app_module is None:
        tasks = [setup.task(0)] * timeline.population
        if not scales:  # the simulator's loop cannot clip as the server did
            again = replay(tasks[0], timeline, learner, setup.seed)
            agreement = compare_weights(timeline, weights, {name: np.asarray(values) for name, values in again.items()})
            if agreement.holds:  # otherwise rounding may have moved an activation across the kink of a ReLU
                return agreement
    elif data_folders is None:
        raise InputError("the devices used their own data; say where copies of it are: --device-data 'FOLDER/{}'.")
    else:
        tasks = [setup.task(ue, data_folder("--device-data", data_folders, ue)) for ue in range(timeline.population)]
    return replace(
        compare_weights(timeline, weights, _job_by_job(setup, learner, timeline, tasks, scales)), job_by_job=True
    )


def _clipped(path: Path) -> dict[tuple[int, int], float]:
    """Return the factor of every update that the server clipped, by UE and version."""
    if not (path / LAPS).exists():
        return {}
    laps = read_laps(path)
    rows = zip(laps.ue.tolist(), laps.version.tolist(), laps.scale.tolist(), strict=True)
    latest = {(ue, version): scale for ue, version, scale in rows}  # a job that was lost may have been computed twice
    return {job: scale for job, scale in latest.items() if scale != 1}


def _job_by_job(
    setup: Setup,
    learner: Learner,
    timeline: Timeline,
    tasks: Sequence[Task],
    scales: Mapping[tuple[int, int], float],
) -> Arrays:
    """Compute every job with the device's own program. Keeps every version of the model in memory."""
    first = dict(setup.first_params())
    merging = learner.merge.init(first, timeline.population)
    models = [handed_out(first, learner, merging)]
    kept = dict.fromkeys(range(timeline.population), kept_at_first(learner, first))
    for number, (ues, versions) in enumerate(zip(timeline.ues.tolist(), timeline.versions.tolist(), strict=True)):
        updates, handed = [], [models[version] for version in versions]
        for ue, version in zip(ues, versions, strict=True):
            update, left = compute_job(setup, tasks[ue], models[version], ue, version, kept[ue])
            scale = scales.get((ue, version))
            kept[ue] = kept[ue] if scale == 0 else left  # as on a device that is gone
            updates.append(update if scale is None else shortened(update, scale))
        senders = [(ue, number - version) for ue, version in zip(ues, versions, strict=True)]
        noise = noise_on(first, learner, number)
        model, merging = merged(models[-1].params, updates, learner, merging, senders, handed, noise)
        models.append(handed_out(model, learner, merging))
    return models[-1].params


def compare_weights(timeline: Timeline, weights: Arrays, again: Arrays) -> Agreement:
    if weights.keys() != again.keys():
        raise InputError(f"the federation's model has arrays {sorted(weights)}, but the replay has {sorted(again)}.")
    apart = {name: float(np.abs(weights[name] - again[name]).max(initial=0.0)) for name in weights}
    scale = {name: max(float(np.abs(weights[name]).max(initial=0.0)), 1e-30) for name in weights}
    where = max(apart, key=lambda name: apart[name] / scale[name])
    return Agreement(timeline.rounds, timeline.ues.size, max(apart.values()), apart[where] / scale[where], where)
