"""Does the simulator, along the timeline a real federation left, come to the same weights?"""

from dataclasses import dataclass
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from perfeds2.deployment.device import work
from perfeds2.deployment.federation import merged
from perfeds2.deployment.flower.local import read_settings
from perfeds2.deployment.settings import Settings
from perfeds2.deployment.transport import Arrays
from perfeds2.errors import InputError
from perfeds2.learning.replay import replay
from perfeds2.runs.folder import load_arrays
from perfeds2.timeline.timeline import Timeline

TARGET = 1e-5


@dataclass(frozen=True)
class Agreement:
    """How far apart two models are."""

    rounds: int
    merges: int
    largest: float  # of the differences of weights
    relative: float  # to the largest weight of the array it is in
    where: str

    @property
    def holds(self) -> bool:
        return self.relative <= TARGET


def replay_run(path: Path, data_folders: str | None = None) -> Agreement:
    """Train again along a federation's timeline, and compare. ``data_folders`` has {} for the device's number."""
    if not (path / "summary.json").exists() or not (path / "model.safetensors").exists():
        raise InputError(f"{path} holds no finished run; expected the folder of a federation that came to its end.")
    settings = read_settings(path)
    try:
        timeline = Timeline.load(path / "timeline.npz")
    except (ValueError, FileNotFoundError) as error:
        raise InputError(f"{path}: {error}") from None
    weights, _ = load_arrays(path / "model.safetensors")
    learner = settings.algorithm.learner
    if settings.app_module is None:
        again = replay(settings.task(0), timeline, learner, settings.seed)
        again = {name: np.asarray(values) for name, values in again.items()}
    elif data_folders is None:
        raise InputError("the devices had data of their own; say where copies are: --device-data 'FOLDER/{}'.")
    else:
        again = _job_by_job(settings, timeline, data_folders)
    return compare(timeline, weights, again)


def compare(timeline: Timeline, weights: Arrays, again: Arrays) -> Agreement:
    if weights.keys() != again.keys():
        raise InputError(f"the model has arrays {sorted(weights)}, the replay {sorted(again)}.")
    apart = {name: float(np.abs(weights[name] - again[name]).max(initial=0.0)) for name in weights}
    scale = {name: max(float(np.abs(weights[name]).max(initial=0.0)), 1e-30) for name in weights}
    where = max(apart, key=lambda name: apart[name] / scale[name])
    return Agreement(timeline.rounds, timeline.ues.size, max(apart.values()), apart[where] / scale[where], where)


def _job_by_job(settings: Settings, timeline: Timeline, data_folders: str) -> Arrays:
    """Every job as its device computed it; keeps every model there ever was."""
    tasks = {ue: settings.task(ue, Path(data_folders.format(ue))) for ue in range(timeline.population)}
    models, optimiser = [dict(settings.first_params())], None
    learner = settings.algorithm.learner
    if learner.optimiser is not None:
        optimiser = learner.optimiser.init({name: jnp.asarray(values) for name, values in models[0].items()})
    for ues, versions in zip(timeline.ues.tolist(), timeline.versions.tolist(), strict=True):
        updates = [
            work(
                tasks[ue], learner, models[version],
                alpha=settings.spec.learning.alpha, seed=settings.seed, ue=ue, version=version,
            ).update
            for ue, version in zip(ues, versions, strict=True)
        ]  # fmt: skip
        model, optimiser = merged(models[-1], updates, learner, optimiser)
        models.append(model)
    return models[-1]
