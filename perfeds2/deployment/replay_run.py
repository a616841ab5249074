"""Check that the simulator, replaying the timeline of a real federation, reaches the same weights."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from perfeds2.deployment.calibrate import read_laps
from perfeds2.deployment.device import compute_job, kept_at_first
from perfeds2.deployment.edge import EDGES, read_adoptions
from perfeds2.deployment.merging import StartModel, merged, noise_on, start_model
from perfeds2.deployment.noise_ledger import secret_learner
from perfeds2.deployment.record import LAPS
from perfeds2.deployment.setup import Setup, data_folder, read_timeline
from perfeds2.deployment.transport import Arrays
from perfeds2.deployment.validate import shortened
from perfeds2.errors import InputError
from perfeds2.learning.learner import Learner
from perfeds2.learning.replay import replay
from perfeds2.learning.task import Task
from perfeds2.runs.store import load_arrays
from perfeds2.timeline.cloud import Cloud
from perfeds2.timeline.edges import edge_versions, joined
from perfeds2.timeline.record import Timeline

TARGET = 1e-5
CLOUD = -1  # number of the cloud, or of the only server, among those of edges


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
    if setup.own.edge is not None:
        raise InputError(
            f"{path} is the run of an edge; give the folder of the cloud, with those of its edges in edges/."
        )
    weights, _ = load_arrays(path / "model.safetensors")
    timeline, scales = read_timeline(path), {CLOUD: _clipped(path)}
    if setup.is_cloud:
        timeline, setup = joined_timeline(path, setup), setup.edges[0]
        scales |= {edge: _clipped(path / EDGES / str(edge)) for edge in range(setup.cells or 0)}
    learner = secret_learner(setup.algorithm.learner, path)
    if setup.own.app_module is None:
        tasks = [setup.task(0)] * timeline.population
        if not any(scales.values()):  # the simulator's loop cannot clip as the server did
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


def joined_timeline(path: Path, setup: Setup) -> Timeline:
    """Return the timeline of a cloud with all of its edges, whose run folders are in edges/.

    An edge's clock starts when it gets the cloud's first model. Because clocks differ, the rounds of a job are shifted
    to lie between the times at which the cloud made the model and received the answer.

    Raises:
        InputError: A run folder is missing, or rounds are missing in it.
    """
    cloud, edges = read_timeline(path), list[Timeline]()
    handed, count = np.zeros((cloud.rounds, setup.ues), bool), setup.spec.cells.edge_rounds or 1
    for edge in range(setup.ues):
        own, starts = read_timeline(path / EDGES / str(edge)), read_adoptions(path / EDGES / str(edge))
        versions, merged = np.array([each.version for each in starts]), cloud.ues == edge
        answers = int(merged.sum())
        if (
            [each.round for each in starts] != list(range(0, count * len(starts), count))
            or versions[:answers].tolist() != cloud.versions[merged].tolist()
            or versions[0] != 0
            or own.rounds < count * answers
        ):
            raise InputError(
                f"the records of edge {edge} and the cloud disagree: a server lost its newest checkpoints, or the edge "
                f"came late. Such a run cannot be replayed."
            )
        segment = np.arange(own.rounds) // count
        arrived_s = np.append(cloud.arrival_s[merged], np.full(len(starts), np.inf))[segment]
        edges.append(
            replace(own, time_s=np.clip(own.time_s - starts[0].time_s, cloud.start_s[versions][segment], arrived_s))
        )
        handed[versions[1:] - 1, edge] = True
    size = setup.edges[0].ues
    return joined(
        edges,
        [np.arange(edge * size, (edge + 1) * size) for edge in range(setup.ues)],
        count,
        cells=cloud.ues,
        staleness=cloud.staleness,
        arrival_s=cloud.arrival_s,
        time_s=cloud.time_s,
        handed=handed,
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
    scales: Mapping[int, Mapping[tuple[int, int], float]],
) -> Arrays:
    """Compute every job with the device's own program. Keeps every version of the model in memory.

    Args:
        setup: The setup of the server of the devices.
        learner: The same server's learner.
        timeline: Which jobs were merged when.
        tasks: What each UE trains on.
        scales: Factors of clipped updates, by edge (or ``CLOUD``: the only server, or the cloud), sender and version.
    """
    first, cloud, (rounds, own_versions) = dict(setup.first_params()), timeline.cloud, edge_versions(timeline)
    merging = learner.merge.init(first, timeline.population)
    models = [start_model(first, learner, merging)]
    kept = dict.fromkeys(range(timeline.population), kept_at_first(learner, first))
    above = None if cloud is None else _CloudModels(cloud, scales[CLOUD], models[0])
    for number, (ues, versions) in enumerate(zip(timeline.ues.tolist(), timeline.versions.tolist(), strict=True)):
        edge = CLOUD if above is None else int(above.cloud.cell[number])
        newest = models[-1] if above is None else above.newest[edge]
        updates, start_models, senders = [], [models[version] for version in versions], []
        for ue, start, version in zip(ues, start_models, own_versions[number].tolist(), strict=True):
            update, left = compute_job(setup, tasks[ue], start, ue, version, kept[ue])
            scale = scales[edge].get((ue - max(edge, 0) * setup.ues, version))
            kept[ue] = kept[ue] if scale == 0 else left  # as on a device that is gone
            updates.append(update if scale is None else shortened(update, scale))
            senders.append((ue, int(rounds[number]) - version))
        noise = noise_on(first, learner, number)
        model, merging = merged(newest.params, updates, learner, merging, senders, start_models, noise)
        models.append(start_model(model, learner, merging))
        if above is not None:
            above.after(number, models, learner)
    return models[-1].params if above is None else above.params


class _CloudModels:
    """The models of a cloud and its edges, while jobs are computed again."""

    def __init__(self, cloud: Cloud, scales: Mapping[tuple[int, int], float], first: StartModel) -> None:
        self.cloud, self.scales, self.params = cloud, scales, first.params
        self.newest, self.handed = [first] * cloud.edges, [first.params] * cloud.edges
        self.made = [0] * cloud.edges  # number of each edge's newest model
        self.round = 0

    def after(self, row: int, models: list[StartModel], learner: Learner) -> None:
        """Take the model that a row has made, and play the cloud rounds that follow it."""
        edge = self.cloud.cell[row]
        self.newest[edge], self.made[edge] = models[-1], row + 1
        while self.round < self.cloud.rows.size and self.cloud.rows[self.round] == row + 1:
            changes = []
            for edge, staleness in zip(self.cloud.cells[self.round], self.cloud.staleness[self.round], strict=True):
                change = {name: value - self.newest[edge].params[name] for name, value in self.handed[edge].items()}
                scale = self.scales.get((int(edge), self.round - int(staleness)))
                changes.append(change if scale is None else shortened(change, scale))
            self.params, _ = merged(self.params, changes, Learner(learner.objective, beta=1.0))
            for edge in np.flatnonzero(self.cloud.handed[self.round]):
                self.handed[edge] = self.params
                self.newest[edge] = models[self.made[edge]] = start_model(self.params, learner, None)
            self.round += 1


def compare_weights(timeline: Timeline, weights: Arrays, again: Arrays) -> Agreement:
    if weights.keys() != again.keys():
        raise InputError(f"the federation's model has arrays {sorted(weights)}, but the replay has {sorted(again)}.")
    apart = {name: float(np.abs(weights[name] - again[name]).max(initial=0.0)) for name in weights}
    scale = {name: max(float(np.abs(weights[name]).max(initial=0.0)), 1e-30) for name in weights}
    where = max(apart, key=lambda name: apart[name] / scale[name])
    return Agreement(timeline.rounds, timeline.ues.size, max(apart.values()), apart[where] / scale[where], where)
