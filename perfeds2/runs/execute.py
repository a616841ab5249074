"""Which algorithm learns fastest on the same cell, data, fading and initial weights, in the same simulated time?"""

import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from perfeds2.spec.build import Algorithm, paper_algorithms
from perfeds2.runs.folder import Arrays, Folder, alone, open_folder, save_arrays
from perfeds2.spec.fields import OWN_FLAGS, InputError, Spec, put, resolve
from perfeds2.runs.summary import Row, summarise
from perfeds2.files import write_text
from perfeds2.learning.evaluate import evaluate
from perfeds2.learning.metrics import METRICS
from perfeds2.learning.models.model import Params
from perfeds2.learning.replay import Script, State, on_one, start
from perfeds2.learning.datasets import TASKS
from perfeds2.learning.task import Task, cycles_per_sample, payload_bits
from perfeds2.learning.train_many import Trial, group_trials, train_together
from perfeds2.learning.train import EvaluationPoint, Training, evaluation_points, train
from perfeds2.network.cell import Cell
from perfeds2.timeline.simulate import simulate
from perfeds2.timeline.file import save_timelines
from perfeds2.timeline.timeline import Timeline

if TYPE_CHECKING:
    import pandas as pd

Which = tuple[str, int]  # (algorithm, seed)
CHECKPOINT_EVERY_S = 2.0


@dataclass(frozen=True)
class Progress:
    """How far a command is: for a bar, nothing else."""

    algorithm: str
    seed: int
    share: float  # of the whole command
    time_s: float  # simulated, in this run
    rounds: int  # trained by this process so far


Watch = Callable[[Progress], None]


class Teller:
    """Adds up the progress of parts that run side by side, and stops them all when one must."""

    def __init__(self, watch: Watch | None, parts: int) -> None:
        self._watch, self._parts = watch, parts
        self._at: dict[Which, tuple[float, int]] = {}  # share and rounds of each part
        self._lock = threading.Lock()
        self._stopped = False
        self._told_at = time.monotonic()

    def tell(self, algorithm: str, seed: int, now: EvaluationPoint, last: EvaluationPoint) -> None:
        with self._lock:
            if self._stopped:
                raise CancelledError
            self._at[algorithm, seed] = (now.time_s / max(last.time_s, 1e-300), now.round)
            if self._watch is not None:
                share = sum(share for share, _ in self._at.values()) / self._parts
                self._watch(
                    Progress(algorithm, seed, share, now.time_s, sum(rounds for _, rounds in self._at.values()))
                )

    def tell_clock(self, seed: int, algorithm: Algorithm, closed: int, time_s: float) -> None:  # noqa: ARG002 (as the clock says it)
        """The clock is being played ahead. Said now and then, as long as nothing has been trained."""
        with self._lock:
            if self._watch is not None and not self._at and time.monotonic() - self._told_at > 0.2:
                self._told_at = time.monotonic()
                self._watch(Progress(algorithm.name, seed, 0.0, time_s, 0))

    def stop(self) -> None:
        with self._lock:
            self._stopped = True


@dataclass(frozen=True)
class Part:
    """What one algorithm left with one seed."""

    rows: list[Row]
    ue_rows: list[Row]
    params: Arrays


@dataclass(frozen=True)
class Comparison:
    """What came out of a comparison."""

    spec: Spec
    summary: dict[str, Any]
    timelines: dict[Which, Timeline]
    rows: list[Row] = field(repr=False)
    ue_rows: list[Row] = field(repr=False)
    models: dict[Which, Arrays] = field(repr=False)

    @property
    def metrics(self) -> "pd.DataFrame":
        """One row per algorithm, seed and evaluation."""
        import pandas as pd

        return pd.DataFrame(self.rows)


def compare(
    *,
    out: Path | str | None = None,
    extra: Sequence[Algorithm] = (),
    watch: Watch | None = None,
    together: bool | None = None,
    **settings: Any,
) -> Comparison:
    """Run algorithms side by side: ``compare(task="digits", ues=20, quorum=5, seeds=range(3), horizon_s=30)``.

    Settings are the command line's flags as keywords, or whole sections (``cell={"layout": "equal"}``). Your own
    ``Algorithm`` goes in as ``extra``. Without ``out`` nothing is written. ``together`` is explained at ``execute``.
    """
    values: dict[str, Any] = {name: dict(value) for name, value in settings.items() if isinstance(value, dict)}
    flags = {flag.removeprefix("--").replace("-", "_"): place for place, flag in OWN_FLAGS.items()}
    for name, value in settings.items():
        if isinstance(value, dict):
            continue
        if name not in flags:
            raise InputError(f"{name} is not a setting of compare; expected one of {', '.join(flags)}.")
        put(values, *flags[name], tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else value)
    spec = resolve(values)
    if out is None:
        return execute(spec, "compare", None, extra=extra, watch=watch, together=together)
    folder = open_folder(Path(out), spec)
    with alone(folder.path):
        return execute(spec, "compare", folder, extra=extra, watch=watch, together=together)


def execute(
    spec: Spec,
    command: str,
    folder: Folder | None,
    *,
    extra: Sequence[Algorithm] = (),
    watch: Watch | None = None,
    together: bool | None = None,
) -> Comparison:
    """Do what a spec says, going on from what the folder already has.

    Parts are independent. A processor trains one on each core, while the next timelines are being simulated. Anything
    else (a GPU) trains parts of equal shape together, usually all seeds of an algorithm: one of them alone would leave
    it idle. ``together`` decides instead of the kind of device.
    """
    together = jax.default_backend() != "cpu" if together is None else together
    names = [*spec.run.algorithms, *(algorithm.name for algorithm in extra)]
    timelines: dict[Which, Timeline] = {}
    futures: list[Future[dict[Which, Part]]] = []
    finished: dict[Which, Part] = {}
    jobs: list[Job] = []
    teller = Teller(watch, len(names) * len(spec.run.seeds))
    busy = together or jax.default_backend() != "cpu" or jax.local_device_count() > 1  # one loop is enough for these
    with ThreadPoolExecutor(1 if busy else os.cpu_count()) as pool:
        try:
            for job in _jobs(spec, extra, teller):
                jobs.append(job)
                timelines[job.which] = job.trial.timeline
                if not together:
                    futures.append(pool.submit(_finish, spec, [job], folder, teller))
            if together:
                for numbers in group_trials([job.trial for job in jobs]):
                    futures.append(pool.submit(_finish, spec, [jobs[number] for number in numbers], folder, teller))
            for future in futures:
                finished |= future.result()
                if folder is not None and not folder.finished:
                    write_text(folder.path / "metrics.csv", csv_text(_in_order(names, spec, finished, "rows")))
        except BaseException:
            teller.stop()
            pool.shutdown(cancel_futures=True)
            raise
    algorithms = [job.algorithm for job in jobs if job.trial.seed == spec.run.seeds[-1]]
    comparison = Comparison(
        spec,
        summarise(spec, command, algorithms, timelines, {which: part.rows for which, part in finished.items()}),
        timelines,
        _in_order(names, spec, finished, "rows"),
        _in_order(names, spec, finished, "ue_rows"),
        {which: part.params for which, part in finished.items()},
    )
    if folder is not None and not folder.finished:
        write_results(comparison, folder)
    return comparison


def execute_timelines(spec: Spec, command: str, folder: Folder | None, watch: Watch | None = None) -> Comparison:
    """Only the clock: who is merged when, without training anything."""
    timelines: dict[Which, Timeline] = {}
    algorithms: list[Algorithm] = []
    parts, rounds = len(spec.run.algorithms) * len(spec.run.seeds), 0

    def tell(algorithm: Algorithm, closed: int, time_s: float) -> None:
        if watch is not None:
            share = (len(timelines) + _share_played(spec, closed, time_s)) / parts
            watch(Progress(algorithm.name, seed, share, time_s, rounds + closed))

    for seed in spec.run.seeds:
        cell = make_cell(spec, seed)
        algorithms = paper_algorithms(spec, cell, upload_bits(spec))
        for algorithm, timeline in zip(algorithms, make_timelines(spec, cell, algorithms, tell), strict=True):
            timelines[algorithm.name, seed] = timeline
            rounds += timeline.rounds
            if watch is not None:
                watch(Progress(algorithm.name, seed, len(timelines) / parts, timeline.end_s, rounds))
    comparison = Comparison(spec, summarise(spec, command, algorithms, timelines, None), timelines, [], [], {})
    if folder is not None and not folder.finished:
        write_results(comparison, folder)
    return comparison


def _share_played(spec: Spec, closed: int, time_s: float) -> float:
    """How much of a timeline is there, by its rounds or by its horizon."""
    if spec.run.rounds is not None:
        return min(closed / spec.run.rounds, 1.0)
    return min(time_s / spec.run.horizon_s, 1.0) if spec.run.horizon_s else 0.0


def check(spec: Spec, command: str) -> None:
    """Find out what cannot work before anything is written."""
    seed = spec.run.seeds[0]
    paper_algorithms(spec, make_cell(spec, seed), upload_bits(spec))
    if command != "simulate":
        make_task(spec, seed)


def make_task(spec: Spec, seed: int) -> Task:
    try:
        return TASKS[spec.task.name](spec.cell.ues, spec.task.labels_per_ue, seed, spec.task.data_dir)
    except ValueError as error:
        raise InputError(f"--task {spec.task.name}: {error}".replace("labels_per_ue", "--labels-per-ue")) from None


def make_cell(spec: Spec, seed: int) -> Cell:
    """The cell of a seed: who is where and how fast, and the fading everybody meets."""
    given = spec.cell
    cell = Cell.draw(
        given.ues,
        seed,
        layout=given.layout,
        radius_m=given.radius_m,
        cpu_hz=given.cpu_hz,
        cycles_per_sample=given.cycles_per_sample or cycles_per_sample(TASKS[spec.task.name].model),
        power_w=given.power_w,
        bandwidth_hz=given.bandwidth_hz,
        path_loss_exponent=given.path_loss_exponent,
        noise_dbm_per_hz=given.noise_dbm_per_hz,
        fading_scale=given.fading_scale,
        downlink_s=given.downlink_s,
    )
    return cell if given.distance_m is None else cell.with_distances(given.distance_m)


def upload_bits(spec: Spec) -> float:
    return spec.cell.payload_bits or payload_bits(TASKS[spec.task.name].model)


def make_timelines(
    spec: Spec,
    cell: Cell,
    algorithms: Sequence[Algorithm],
    tell: Callable[[Algorithm, int, float], None] | None = None,
) -> Iterator[Timeline]:
    """Each algorithm's timeline. It knows no weights, so those that differ only in what they learn share one.

    ``tell`` hears of the rounds closed and the second reached on the way.
    """
    known: dict[Any, Timeline] = {}
    for algorithm in algorithms:
        same = (
            algorithm.protocol,
            algorithm.learner.samples,
            algorithm.bandwidth,
            id(algorithm.schedule),
            id(algorithm.shares),
        )
        if same not in known:
            known[same] = simulate(
                cell,
                algorithm.protocol,
                payload_bits=upload_bits(spec),
                samples=algorithm.learner.samples,
                rounds=spec.run.rounds,
                horizon_s=spec.run.horizon_s,
                bandwidth=algorithm.bandwidth,
                schedule=algorithm.schedule,
                shares=algorithm.shares,
                tell=None if tell is None else partial(tell, algorithm),
            )
        yield known[same]


@dataclass(frozen=True)
class Job:
    """One algorithm with one seed, to be trained."""

    algorithm: Algorithm
    trial: Trial

    @property
    def which(self) -> Which:
        return self.algorithm.name, self.trial.seed

    @property
    def name(self) -> str:
        return f"{self.algorithm.name}-{self.trial.seed}"


def _jobs(spec: Spec, extra: Sequence[Algorithm], teller: Teller) -> Iterator[Job]:
    """Every algorithm with every seed, as their timelines are simulated."""
    for seed in spec.run.seeds:
        task, cell = make_task(spec, seed), make_cell(spec, seed)
        algorithms = [*paper_algorithms(spec, cell, upload_bits(spec)), *extra]
        tell = partial(teller.tell_clock, seed)
        for algorithm, timeline in zip(algorithms, make_timelines(spec, cell, algorithms, tell), strict=True):
            points = evaluation_points(timeline, horizon_s=spec.run.horizon_s, every_s=spec.run.eval_every_s)
            yield Job(algorithm, Trial(task, timeline, algorithm.learner, points, seed))


def _finish(spec: Spec, jobs: Sequence[Job], folder: Folder | None, teller: Teller) -> dict[Which, Part]:
    """Train a few parts of equal shape, or take what the folder has of them."""
    finished: dict[Which, Part] = {}
    for job in jobs:
        if folder is not None and (saved := folder.load_part(job.name)) is not None:
            params, facts = saved
            finished[job.which] = Part(facts["rows"], facts["ue_rows"], params)
    left = [job for job in jobs if job.which not in finished]
    return finished | (_train(spec, left, folder, teller) if left else {})


def _train(spec: Spec, jobs: Sequence[Job], folder: Folder | None, teller: Teller) -> dict[Which, Part]:
    """Train parts of equal shape: one as it is, several together, half of them at a time if memory is short."""
    try:
        ends = _train_one(spec, jobs[0], folder, teller) if len(jobs) == 1 else _train_all(spec, jobs, folder, teller)
        return {job.which: _part(spec, job, training, folder) for job, training in zip(jobs, ends, strict=True)}
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error) or len(jobs) == 1:
            raise
    half = len(jobs) // 2
    return _train(spec, jobs[:half], folder, teller) | _train(spec, jobs[half:], folder, teller)


def _train_one(spec: Spec, job: Job, folder: Folder | None, teller: Teller) -> Sequence[Training]:
    trial, saving = job.trial, Saving()
    training = resume = None if folder is None else _load_checkpoint(folder, job)
    for training in train(
        *(trial.task, trial.timeline, trial.learner, trial.points),
        seed=trial.seed,
        resume=resume,
        stop_when_diverged=bool(spec.run.stop_when_diverged),
    ):
        if folder is not None and saving.is_due():
            _save_checkpoint(folder, job.name, training)
            saving.is_done()
        teller.tell(*job.which, trial.points[len(training.values) - 1], trial.points[-1])
    assert training is not None
    return [training]


def _train_all(spec: Spec, jobs: Sequence[Job], folder: Folder | None, teller: Teller) -> Sequence[Training]:
    saving, stand = Saving(), None
    for stand in train_together(
        [job.trial for job in jobs],
        resume=None if folder is None else [_load_checkpoint(folder, job) for job in jobs],
        stop_when_diverged=bool(spec.run.stop_when_diverged),
    ):
        if folder is not None and saving.is_due():
            for number, job in enumerate(jobs):
                _save_checkpoint(folder, job.name, stand[number])
            saving.is_done()
        for number in stand.moved:
            points = jobs[number].trial.points
            teller.tell(*jobs[number].which, points[len(stand.values[number]) - 1], points[-1])
    assert stand is not None
    return [stand[number] for number in range(len(jobs))]


def _part(spec: Spec, job: Job, training: Training, folder: Folder | None) -> Part:
    """What a part leaves when it has been trained to its end."""
    name, seed = job.which
    task, timeline = job.trial.task, job.trial.timeline
    rows = [
        {"algorithm": name, "seed": seed, "round": point.round, "time_s": point.time_s, **values}
        for point, values in zip(job.trial.points, training.values, strict=True)
    ]
    weights = on_one(training.state.params)
    params = {key: np.asarray(value) for key, value in weights.items()}
    ue_rows = _per_ue(task, timeline, name, seed, weights, job.trial.learner.personal_step)
    if folder is not None:
        folder.save_part(job.name, params, {"rows": rows, "ue_rows": ue_rows})
        folder.drop_part(f"{job.name}.checkpoint")
        folder.log(f"{name} seed {seed}: {timeline.rounds} rounds, {timeline.end_s:.6g} simulated seconds")
    return Part(rows, ue_rows, params)


class Saving:
    """When to save: every two seconds, and where saving takes long, a twentieth of the time."""

    def __init__(self) -> None:
        self._wait_s, self._since = CHECKPOINT_EVERY_S, time.monotonic()

    def is_due(self) -> bool:
        self._began = time.monotonic()
        return self._began - self._since > self._wait_s

    def is_done(self) -> None:
        self._since = time.monotonic()
        self._wait_s = max(CHECKPOINT_EVERY_S, 20 * (self._since - self._began) if CHECKPOINT_EVERY_S else 0.0)


def _save_checkpoint(folder: Folder, name: str, training: Training) -> None:
    leaves = jax.tree.leaves(training.state)
    arrays = {f"{number:04d}": np.asarray(leaf) for number, leaf in enumerate(leaves)}
    folder.save_part(f"{name}.checkpoint", arrays, {"values": training.values})


def _load_checkpoint(folder: Folder, job: Job) -> Training | None:
    part = folder.load_part(f"{job.name}.checkpoint")
    if part is None:
        return None
    arrays, facts = part
    trial = job.trial
    fresh: State = start(trial.task, Script.of(trial.timeline), trial.learner, trial.seed)
    leaves, structure = jax.tree.flatten(fresh)
    saved = [arrays[key] for key in sorted(arrays)]
    if [(a.shape, a.dtype) for a in saved] != [(leaf.shape, leaf.dtype) for leaf in leaves]:
        raise InputError(
            f"checkpoint {folder.parts / job.name}.checkpoint.safetensors does not fit this run; delete it."
        )
    return Training(facts["values"], jax.tree.unflatten(structure, [jax.numpy.asarray(a) for a in saved]))


def _per_ue(task: Task, timeline: Timeline, name: str, seed: int, params: Params, alpha: float) -> list[Row]:
    """How the final model serves each UE."""
    metrics = {key: np.asarray(values) for key, values in evaluate(task, params, alpha).items()}
    samples = np.asarray(task.data.train_count)
    merges = timeline.merges
    return [
        {"algorithm": name, "seed": seed, "ue": ue, "samples": int(samples[ue]), "merges": int(merges[ue])}
        | {key: float(metrics[key][ue]) for key in METRICS}
        for ue in range(metrics[METRICS[0]].size)
    ]


def _in_order(names: Sequence[str], spec: Spec, finished: dict[Which, Part], what: str) -> list[Row]:
    return [
        row
        for name in names
        for seed in spec.run.seeds
        if (name, seed) in finished
        for row in getattr(finished[name, seed], what)
    ]


def write_results(comparison: Comparison, folder: Folder) -> None:
    """The contract's files; the summary last, so that a folder that has it has everything."""
    several = len(comparison.timelines) > 1
    names = {which: "/".join(map(str, which)) if several else "" for which in comparison.timelines}
    save_timelines(folder.path / "timeline.npz", {names[which]: t for which, t in comparison.timelines.items()})
    if comparison.models:
        weights = {
            f"{names[which]}/{key}".lstrip("/"): w
            for which, params in comparison.models.items()
            for key, w in params.items()
        }
        save_arrays(folder.path / "model.safetensors", weights)
        write_text(folder.path / "metrics.csv", csv_text(comparison.rows))
        write_text(folder.path / "ue_metrics.csv", csv_text(comparison.ue_rows))
    write_text(folder.path / "summary.json", json.dumps(comparison.summary, indent=1) + "\n")
    folder.log("finished")
    folder.close()


def csv_text(rows: Sequence[Row]) -> str:
    """Rows as CSV; floats in the shortest form that reads back the same."""
    if not rows:
        return ""
    lines = [",".join(rows[0])]
    lines += [
        ",".join(repr(value) if isinstance(value, float) else str(value) for value in row.values()) for row in rows
    ]
    return "\n".join(lines) + "\n"
