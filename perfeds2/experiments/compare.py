"""Which algorithm learns fastest on the same cell, data, fading and initial weights, in the same simulated time?"""

import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from perfeds2.experiments.algorithms import Algorithm, paper_algorithms
from perfeds2.experiments.folder import Arrays, Folder, open_folder, save_arrays
from perfeds2.experiments.spec import OWN_FLAGS, InputError, Spec, put, resolve
from perfeds2.experiments.summary import Row, summarise
from perfeds2.files import write_text
from perfeds2.learning.evaluate import evaluate
from perfeds2.learning.metrics import METRICS
from perfeds2.learning.models import Params
from perfeds2.learning.replay import Script, State, start
from perfeds2.learning.tasks import MODELS, Task, cycles_per_sample, payload_bits
from perfeds2.learning.tasks import make_task as task_by_name
from perfeds2.learning.train import Point, Training, evaluation_points, train
from perfeds2.network.cell import Cell
from perfeds2.timeline.simulate import simulate
from perfeds2.timeline.timeline import Timeline, save_timelines

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

    def tell(self, algorithm: str, seed: int, now: Point, last: Point) -> None:
        with self._lock:
            if self._stopped:
                raise CancelledError
            self._at[algorithm, seed] = (now.time_s / max(last.time_s, 1e-300), now.round)
            if self._watch is not None:
                share = sum(share for share, _ in self._at.values()) / self._parts
                self._watch(
                    Progress(algorithm, seed, share, now.time_s, sum(rounds for _, rounds in self._at.values()))
                )

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
    *, out: Path | str | None = None, extra: Sequence[Algorithm] = (), watch: Watch | None = None, **settings: Any
) -> Comparison:
    """Run algorithms side by side: ``compare(task="digits", ues=20, quorum=5, seeds=range(3), horizon_s=30)``.

    Settings are the command line's flags as keywords, or whole sections (``cell={"layout": "equal"}``). Your own
    ``Algorithm`` goes in as ``extra``. Without ``out`` nothing is written.
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
    folder = None if out is None else open_folder(Path(out), spec)
    return execute(spec, "compare", folder, extra=extra, watch=watch)


def execute(
    spec: Spec,
    command: str,
    folder: Folder | None,
    *,
    extra: Sequence[Algorithm] = (),
    watch: Watch | None = None,
) -> Comparison:
    """Do what a spec says, going on from what the folder already has.

    Parts are independent, so on a CPU they are trained side by side, while the next timelines are being simulated.
    """
    names = [*spec.run.algorithms, *(algorithm.name for algorithm in extra)]
    timelines: dict[Which, Timeline] = {}
    futures: dict[Which, Future[Part]] = {}
    finished: dict[Which, Part] = {}
    algorithms: list[Algorithm] = []
    teller = Teller(watch, len(names) * len(spec.run.seeds))
    with ThreadPoolExecutor(os.cpu_count() if jax.default_backend() == "cpu" else 1) as pool:
        try:
            for seed in spec.run.seeds:
                task, cell = make_task(spec, seed), make_cell(spec, seed)
                algorithms = [*paper_algorithms(spec, cell, upload_bits(spec)), *extra]
                for algorithm, timeline in zip(algorithms, make_timelines(spec, cell, algorithms), strict=True):
                    which = (algorithm.name, seed)
                    timelines[which] = timeline
                    futures[which] = pool.submit(_finish_part, spec, task, timeline, algorithm, seed, folder, teller)
            for which, future in futures.items():
                finished[which] = future.result()
                if folder is not None and not folder.finished:
                    write_text(folder.path / "metrics.csv", csv_text(_in_order(names, spec, finished, "rows")))
        except BaseException:
            teller.stop()
            pool.shutdown(cancel_futures=True)
            raise
    comparison = Comparison(
        spec,
        summarise(spec, command, algorithms, timelines, {which: part.rows for which, part in finished.items()}),
        timelines,
        _in_order(names, spec, finished, "rows"),
        _in_order(names, spec, finished, "ue_rows"),
        {which: part.params for which, part in finished.items()},
    )
    if folder is not None and not folder.finished:
        _write_results(comparison, folder)
    return comparison


def execute_timelines(spec: Spec, command: str, folder: Folder | None, watch: Watch | None = None) -> Comparison:
    """Only the clock: who is merged when, without training anything."""
    timelines: dict[Which, Timeline] = {}
    algorithms: list[Algorithm] = []
    rounds = 0
    for seed in spec.run.seeds:
        cell = make_cell(spec, seed)
        algorithms = paper_algorithms(spec, cell, upload_bits(spec))
        for algorithm, timeline in zip(algorithms, make_timelines(spec, cell, algorithms), strict=True):
            timelines[algorithm.name, seed] = timeline
            rounds += timeline.rounds
            if watch is not None:
                share = len(timelines) / (len(spec.run.algorithms) * len(spec.run.seeds))
                watch(Progress(algorithm.name, seed, share, timeline.end_s, rounds))
    comparison = Comparison(spec, summarise(spec, command, algorithms, timelines, None), timelines, [], [], {})
    if folder is not None and not folder.finished:
        _write_results(comparison, folder)
    return comparison


def check(spec: Spec, command: str) -> None:
    """Find out what cannot work before anything is written."""
    seed = spec.run.seeds[0]
    paper_algorithms(spec, make_cell(spec, seed), upload_bits(spec))
    if command != "simulate":
        make_task(spec, seed)


def make_task(spec: Spec, seed: int) -> Task:
    try:
        return task_by_name(spec.task.name, spec.cell.ues, spec.task.labels_per_ue, seed, spec.task.data_dir)
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
        cycles_per_sample=given.cycles_per_sample or cycles_per_sample(MODELS[spec.task.name]),
        power_w=given.power_w,
        bandwidth_hz=given.bandwidth_hz,
        path_loss_exponent=given.path_loss_exponent,
        noise_dbm_per_hz=given.noise_dbm_per_hz,
        fading_scale=given.fading_scale,
        downlink_s=given.downlink_s,
    )
    return cell if given.distance_m is None else cell.with_distances(given.distance_m)


def upload_bits(spec: Spec) -> float:
    return spec.cell.payload_bits or payload_bits(MODELS[spec.task.name])


def make_timelines(spec: Spec, cell: Cell, algorithms: Sequence[Algorithm]) -> Iterator[Timeline]:
    """Each algorithm's timeline. It knows no weights, so those that differ only in what they learn share one."""
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
            )
        yield known[same]


def _finish_part(
    spec: Spec,
    task: Task,
    timeline: Timeline,
    algorithm: Algorithm,
    seed: int,
    folder: Folder | None,
    teller: "Teller",
) -> Part:
    """Train one algorithm with one seed, or take what the folder has of it."""
    name = f"{algorithm.name}-{seed}"
    if folder is not None and (saved := folder.load_part(name)) is not None:
        params, facts = saved
        return Part(facts["rows"], facts["ue_rows"], params)
    points = evaluation_points(timeline, horizon_s=spec.run.horizon_s, every_s=spec.run.eval_every_s)
    training = None if folder is None else _load_checkpoint(folder, name, task, timeline, algorithm, seed)
    saved_at = time.monotonic()
    steps = train(task, timeline, algorithm.learner, points, alpha=spec.learning.alpha, seed=seed, resume=training)
    for training in steps:
        if folder is not None and time.monotonic() - saved_at > CHECKPOINT_EVERY_S:
            _save_checkpoint(folder, name, training)
            saved_at = time.monotonic()
        teller.tell(algorithm.name, seed, points[len(training.values) - 1], points[-1])
    assert training is not None
    rows = [
        {"algorithm": algorithm.name, "seed": seed, "round": point.round, "time_s": point.time_s, **values}
        for point, values in zip(points, training.values, strict=True)
    ]
    params = {key: np.asarray(value) for key, value in training.state.params.items()}
    ue_rows = _per_ue(task, timeline, algorithm.name, seed, training.state.params, spec.learning.alpha)
    if folder is not None:
        folder.save_part(name, params, {"rows": rows, "ue_rows": ue_rows})
        folder.drop_part(f"{name}.checkpoint")
        folder.log(f"{algorithm.name} seed {seed}: {timeline.rounds} rounds, {timeline.end_s:.6g} simulated seconds")
    return Part(rows, ue_rows, params)


def _save_checkpoint(folder: Folder, name: str, training: Training) -> None:
    leaves = jax.tree.leaves(training.state)
    arrays = {f"{number:04d}": np.asarray(leaf) for number, leaf in enumerate(leaves)}
    folder.save_part(f"{name}.checkpoint", arrays, {"values": training.values})


def _load_checkpoint(
    folder: Folder, name: str, task: Task, timeline: Timeline, algorithm: Algorithm, seed: int
) -> Training | None:
    part = folder.load_part(f"{name}.checkpoint")
    if part is None:
        return None
    arrays, facts = part
    fresh: State = start(task, Script.of(timeline), algorithm.learner, seed)
    leaves, structure = jax.tree.flatten(fresh)
    saved = [arrays[key] for key in sorted(arrays)]
    if [(a.shape, a.dtype) for a in saved] != [(leaf.shape, leaf.dtype) for leaf in leaves]:
        raise InputError(f"checkpoint {folder.parts / name}.checkpoint.safetensors does not fit this run; delete it.")
    return Training(facts["values"], jax.tree.unflatten(structure, [jax.numpy.asarray(a) for a in saved]))


def _per_ue(task: Task, timeline: Timeline, name: str, seed: int, params: Params, alpha: float) -> list[Row]:
    """How the final model serves each UE."""
    metrics = {key: np.asarray(values) for key, values in evaluate(task, params, alpha).items()}
    samples = np.asarray(getattr(task.data, "train", np.zeros(task.ues, int)))  # generated data have no end
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


def _write_results(comparison: Comparison, folder: Folder) -> None:
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
