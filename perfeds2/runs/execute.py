"""Which algorithm learns fastest on the same cell, data, fading and initial weights, in the same simulated time?"""

import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from safetensors.numpy import load_file

from perfeds2.errors import InputError
from perfeds2.files import write_text
from perfeds2.learning.evaluate import evaluate
from perfeds2.learning.metrics import METRICS
from perfeds2.learning.replay import on_one
from perfeds2.learning.task import Task, parameters
from perfeds2.learning.train import EvaluationPoint, Training, evaluation_points, train
from perfeds2.learning.train_many import Trial, group_trials, train_together
from perfeds2.runs.checkpoint import Pace, load_checkpoint, save_checkpoint
from perfeds2.runs.folder import Arrays, Folder, alone, open_folder, save_arrays
from perfeds2.runs.summary import Row, summarise
from perfeds2.spec.build import (
    Algorithm,
    make_algorithms,
    make_cell,
    make_task,
    make_timelines,
    model_of,
)
from perfeds2.spec.fields import Spec, spec_from
from perfeds2.spec.names import blaming, refuse_while_loading
from perfeds2.timeline.file import load_timelines, save_timelines
from perfeds2.timeline.timeline import Timeline

if TYPE_CHECKING:
    import pandas as pd

Which = tuple[str, int]  # (algorithm, seed)
DAY_S = 86_400.0


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


@dataclass(frozen=True)
class Progress:
    """How far a command is: for a bar, nothing else."""

    algorithm: str
    seed: int
    share: float  # of the whole command
    time_s: float  # simulated, in this run
    rounds: int  # trained by this process so far


ProgressWatch = Callable[[Progress], None]


def compare(
    *,
    out: Path | str | None = None,
    watch: ProgressWatch | None = None,
    together: bool | None = None,
    yes: bool = False,
    **settings: Any,
) -> Comparison:
    """Run algorithms side by side: ``compare(task="digits", ues=20, quorum=5, seeds=range(3), horizon_s=30)``.

    Settings are the command line's flags as keywords, or whole sections (``cell={"layout": "equal"}``). Where they take a
    name, your own object goes in as well: ``task`` a ``Task`` or a function of the seed, ``cell`` a ``Cell``, a
    subclass or a function, ``algorithms`` names and ``Algorithm``s, and so on (``perfeds2.spec.build`` says what is
    called with what). Without ``out`` nothing is written. ``together`` is explained at ``execute``; ``yes`` starts
    also what would take days.
    """
    refuse_while_loading("compare")
    spec = spec_from(**settings)
    refuse_days([spec], yes=yes)
    if out is None:
        return execute(spec, "compare", None, watch=watch, together=together)
    folder = open_folder(Path(out), spec)
    with alone(folder.path):
        if folder.finished:
            return load_comparison(spec, folder)
        return execute(spec, "compare", folder, watch=watch, together=together)


def load_comparison(spec: Spec, folder: Folder) -> Comparison:
    """What a finished run left in its folder."""
    import pandas as pd

    summary = json.loads((folder.path / "summary.json").read_text(encoding="utf-8"))
    every = [(row["algorithm"], seed) for row in summary["algorithms"] for seed in spec.run.seeds]
    prefix = {which: "/".join(map(str, which)) if len(every) > 1 else "" for which in every}
    timelines, weights = load_timelines(folder.path), load_file(folder.path / "model.safetensors")
    rows, ue_rows = (pd.read_csv(folder.path / f"{name}.csv").to_dict("records") for name in ("metrics", "ue_metrics"))
    models = {
        which: {
            key.removeprefix(f"{start}/"): w for key, w in weights.items() if not start or key.startswith(f"{start}/")
        }
        for which, start in prefix.items()
    }
    return Comparison(
        spec, summary, {which: timelines[start] for which, start in prefix.items()}, rows, ue_rows, models
    )  # type: ignore[arg-type]  # columns are texts


def refuse_days(specs: Sequence[Spec], *, yes: bool, trains: bool = True) -> None:
    """Refuse what would take more than a day of this machine, by the pace of its first rounds and its arithmetic."""
    some = specs[:: max(1, len(specs) // 16)]  # of a sweep
    days = 0.0 if yes or not specs else sum(_needed_s(spec, trains) for spec in some) / len(some) * len(specs) / DAY_S
    if days > 1:
        raise InputError(
            f"this would take about {days:.3g} days of this machine's time; "
            f"give a shorter --horizon-s or fewer --rounds, or --yes if you mean it."
        )


def _needed_s(spec: Spec, trains: bool) -> float:
    seed, rounds, run = spec.run.seeds[0], 8, spec.run
    cell, needed_s = make_cell(spec, seed), 0.0
    short = spec.model_copy(update={"run": run.model_copy(update={"rounds": rounds, "horizon_s": None})})
    sample_s = 6.0 * parameters(model_of(spec)) / 2e10 if trains else 0.0  # forward and backward, at 20 Gflop/s
    for algorithm in make_algorithms(spec, cell, seed):
        began = time.perf_counter()
        (played,) = make_timelines(short, cell, [algorithm])
        round_s = (time.perf_counter() - began) / rounds + sample_s * algorithm.learner.samples * played.quorum
        needed_s += round_s * (run.rounds or (run.horizon_s or 0.0) / max(played.end_s / rounds, 1e-12))
    return needed_s * len(run.seeds)


def execute(
    spec: Spec,
    command: str,
    folder: Folder | None,
    *,
    watch: ProgressWatch | None = None,
    together: bool | None = None,
) -> Comparison:
    """Do what a spec says, going on from what the folder already has.

    Trainings are independent. A processor trains one on each core, while the next timelines are being simulated.
    Anything else (a GPU) trains those of equal shape together, usually all seeds of an algorithm: one of them alone
    would leave it idle. ``together`` decides instead of the kind of device.
    """
    (comparison,) = execute_all([spec], command, folder, watch=watch, together=together)
    if folder is not None and not folder.finished:
        write_results(comparison, folder)
    return comparison


@dataclass(frozen=True)
class Entrant:
    """One algorithm of a spec with one seed, to be trained."""

    spec: Spec
    number: int  # of the spec
    algorithm: Algorithm
    trial: Trial

    @property
    def which(self) -> Which:
        return self.algorithm.name, self.trial.seed

    @property
    def name(self) -> str:
        return f"{self.algorithm.name}-{self.trial.seed}"


@dataclass(frozen=True)
class Trained:
    """What an entrant leaves."""

    rows: list[Row]
    ue_rows: list[Row]
    params: Arrays


def execute_all(
    specs: Sequence[Spec],
    command: str,
    folder: Folder | None = None,
    *,
    watch: ProgressWatch | None = None,
    together: bool | None = None,
) -> list[Comparison]:
    """The same for several specs at once: what is of equal shape goes together, whichever spec it is of."""
    together = jax.default_backend() != "cpu" if together is None else together
    total = sum(len(spec.algorithms) * len(spec.run.seeds) for spec in specs)
    teller = Teller(watch, total)
    entrants: list[Entrant] = []
    futures: list[Future[list[tuple[Entrant, Trained]]]] = []
    trained: dict[tuple[int, Which], Trained] = {}
    busy = together or jax.default_backend() != "cpu" or jax.local_device_count() > 1  # one loop is enough for these
    with ThreadPoolExecutor(1 if busy else os.cpu_count()) as pool:
        try:
            for entrant in _entrants(specs, teller):
                entrants.append(entrant)
                if not together:
                    futures.append(pool.submit(_finish, [entrant], folder, teller))
            if together:
                for alike in _groups(entrants):
                    futures.append(pool.submit(_finish, alike, folder, teller))
            for future in futures:
                trained |= {(entrant.number, entrant.which): one for entrant, one in future.result()}
                if folder is not None and not folder.finished:
                    known = [trained.get((0, entrant.which)) for entrant in _ordered(entrants, 0)]
                    rows = [row for one in known if one is not None for row in one.rows]
                    write_text(folder.path / "metrics.csv", csv_text(rows))
        except BaseException:
            teller.stop()
            pool.shutdown(cancel_futures=True)
            raise
    return [_comparison(spec, command, _ordered(entrants, number), trained) for number, spec in enumerate(specs)]


def _entrants(specs: Sequence[Spec], teller: "Teller") -> Iterator[Entrant]:
    """Every algorithm with every seed, as their timelines are simulated. Specs that agree in the data share them."""
    tasks: dict[Any, Task] = {}
    for number, spec in enumerate(specs):
        for seed in spec.run.seeds:
            data = (spec.task, spec.cell.ues, seed)
            task = tasks[data] = tasks.get(data) or make_task(spec, seed)
            cell = make_cell(spec, seed)
            algorithms = make_algorithms(spec, cell, seed)
            tell = partial(teller.tell_clock, seed)
            for algorithm, timeline in zip(algorithms, make_timelines(spec, cell, algorithms, tell), strict=True):
                points = evaluation_points(timeline, horizon_s=spec.run.horizon_s, every_s=spec.run.eval_every_s)
                yield Entrant(spec, number, algorithm, Trial(task, timeline, algorithm.learner, points, seed))


def _groups(entrants: Sequence[Entrant]) -> Iterator[list[Entrant]]:
    """Who is trained together: those of equal shape that stop, or do not stop, when they diverge."""
    for stops in (False, True):
        own = [entrant for entrant in entrants if bool(entrant.spec.run.stop_when_diverged) is stops]
        for numbers in group_trials([entrant.trial for entrant in own]):
            yield [own[number] for number in numbers]


def _ordered(entrants: Sequence[Entrant], number: int) -> list[Entrant]:
    """A spec's entrants, algorithm by algorithm."""
    own = [entrant for entrant in entrants if entrant.number == number]
    names = list(dict.fromkeys(entrant.algorithm.name for entrant in own))
    return sorted(own, key=lambda entrant: names.index(entrant.algorithm.name))


def _comparison(
    spec: Spec, command: str, entrants: Sequence[Entrant], trained: dict[tuple[int, Which], Trained]
) -> Comparison:
    ended = {entrant.which: trained[entrant.number, entrant.which] for entrant in entrants}
    timelines = {entrant.which: entrant.trial.timeline for entrant in entrants}
    algorithms = [entrant.algorithm for entrant in entrants if entrant.trial.seed == spec.run.seeds[-1]]
    return Comparison(
        spec,
        summarise(spec, command, algorithms, timelines, {which: one.rows for which, one in ended.items()}),
        timelines,
        [row for one in ended.values() for row in one.rows],
        [row for one in ended.values() for row in one.ue_rows],
        {which: one.params for which, one in ended.items()},
    )


def _finish(entrants: Sequence[Entrant], folder: Folder | None, teller: "Teller") -> list[tuple[Entrant, Trained]]:
    """Train a few entrants of equal shape, or take what the folder has of them."""
    finished: list[tuple[Entrant, Trained]] = []
    for entrant in entrants:
        if folder is not None and (saved := folder.load_part(entrant.name)) is not None:
            params, facts = saved
            finished.append((entrant, Trained(facts["rows"], facts["ue_rows"], params)))
    found = {id(entrant) for entrant, _ in finished}
    left = [entrant for entrant in entrants if id(entrant) not in found]
    return finished + (_train(left, folder, teller) if left else [])


def _train(entrants: Sequence[Entrant], folder: Folder | None, teller: "Teller") -> list[tuple[Entrant, Trained]]:
    """Train entrants of equal shape: one as it is, several together, half of them at a time if memory is short."""
    try:
        train_them = _train_one if len(entrants) == 1 else _train_together
        with blaming(f"--algorithms {entrants[0].algorithm.name}", entrants[0].algorithm.learner.objective):
            ends = train_them(entrants, folder, teller)
        return [(one, _trained(one, training, folder)) for one, training in zip(entrants, ends, strict=True)]
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error) or len(entrants) == 1:
            raise
    half = len(entrants) // 2
    return _train(entrants[:half], folder, teller) + _train(entrants[half:], folder, teller)


def _train_one(entrants: Sequence[Entrant], folder: Folder | None, teller: "Teller") -> Sequence[Training]:
    (entrant,) = entrants
    trial, pace = entrant.trial, Pace()
    training = resume = None if folder is None else load_checkpoint(folder, entrant.name, trial)
    for training in train(
        *(trial.task, trial.timeline, trial.learner, trial.points),
        seed=trial.seed,
        resume=resume,
        stop_when_diverged=bool(entrant.spec.run.stop_when_diverged),
    ):
        if folder is not None and pace.is_due():
            save_checkpoint(folder, entrant.name, training)
            pace.is_done()
        teller.tell(entrant, len(training.values))
    assert training is not None
    return [training]


def _train_together(entrants: Sequence[Entrant], folder: Folder | None, teller: "Teller") -> Sequence[Training]:
    pace, stand = Pace(), None
    for stand in train_together(
        [entrant.trial for entrant in entrants],
        resume=None if folder is None else [load_checkpoint(folder, one.name, one.trial) for one in entrants],
        stop_when_diverged=bool(entrants[0].spec.run.stop_when_diverged),
    ):
        if folder is not None and pace.is_due():
            for number, entrant in enumerate(entrants):
                save_checkpoint(folder, entrant.name, stand[number])
            pace.is_done()
        for number in stand.moved:
            teller.tell(entrants[number], len(stand.values[number]))
    assert stand is not None
    return [stand[number] for number in range(len(entrants))]


def _trained(entrant: Entrant, training: Training, folder: Folder | None) -> Trained:
    """What an entrant leaves when it has been trained to its end."""
    (name, seed), timeline = entrant.which, entrant.trial.timeline
    rows = [
        {"algorithm": name, "seed": seed, "round": point.round, "time_s": point.time_s, **values}
        for point, values in zip(entrant.trial.points, training.values, strict=True)
    ]
    weights = on_one(training.state.params)
    params = {key: np.asarray(value) for key, value in weights.items()}
    ue_rows = _per_ue(entrant, weights)
    if folder is not None:
        folder.save_part(entrant.name, params, {"rows": rows, "ue_rows": ue_rows})
        folder.drop_part(f"{entrant.name}.checkpoint")
        folder.log(f"{name} seed {seed}: {timeline.rounds} rounds, {timeline.end_s:.6g} simulated seconds")
    return Trained(rows, ue_rows, params)


def _per_ue(entrant: Entrant, weights: Any) -> list[Row]:
    """How the final model serves each UE."""
    (name, seed), task = entrant.which, entrant.trial.task
    table = evaluate(task, weights, entrant.trial.learner.personal_step)
    metrics = {key: np.asarray(values) for key, values in table.items()}
    samples = np.asarray(getattr(task.data, "train_count", np.zeros(task.ues, int)))  # generated data have no end
    merges = entrant.trial.timeline.merges
    return [
        {"algorithm": name, "seed": seed, "ue": ue, "samples": int(samples[ue]), "merges": int(merges[ue])}
        | {key: float(metrics[key][ue]) for key in METRICS}
        for ue in range(metrics[METRICS[0]].size)
    ]


class Teller:
    """Adds up the progress of trainings that run side by side, and stops them all when one must."""

    def __init__(self, watch: ProgressWatch | None, total: int) -> None:
        self._watch, self._total = watch, total
        self._at: dict[tuple[int, Which], tuple[float, int]] = {}  # share and rounds of each
        self._lock = threading.Lock()
        self._stopped = False
        self._told_at = time.monotonic()

    def tell(self, entrant: Entrant, evaluated: int) -> None:
        """An entrant has been evaluated so many times."""
        points: Sequence[EvaluationPoint] = entrant.trial.points
        now, last = points[evaluated - 1], points[-1]
        with self._lock:
            if self._stopped:
                raise CancelledError
            self._at[entrant.number, entrant.which] = (now.time_s / max(last.time_s, 1e-300), now.round)
            if self._watch is not None:
                share = sum(share for share, _ in self._at.values()) / self._total
                rounds = sum(rounds for _, rounds in self._at.values())
                self._watch(Progress(*entrant.which, share, now.time_s, rounds))

    def tell_clock(self, seed: int, algorithm: Algorithm, closed: int, time_s: float) -> None:  # noqa: ARG002 (as the clock says it)
        """The clock is being played ahead. Said now and then, as long as nothing has been trained."""
        with self._lock:
            if self._watch is not None and not self._at and time.monotonic() - self._told_at > 0.2:
                self._told_at = time.monotonic()
                self._watch(Progress(algorithm.name, seed, 0.0, time_s, 0))

    def stop(self) -> None:
        with self._lock:
            self._stopped = True


def execute_timelines(
    spec: Spec, command: str, folder: Folder | None, watch: ProgressWatch | None = None
) -> Comparison:
    """Only the clock: who is merged when, without training anything."""
    timelines: dict[Which, Timeline] = {}
    algorithms: list[Algorithm] = []
    total, rounds = len(spec.algorithms) * len(spec.run.seeds), 0

    def tell(algorithm: Algorithm, closed: int, time_s: float) -> None:
        if watch is not None:
            share = (len(timelines) + _share_played(spec, closed, time_s)) / total
            watch(Progress(algorithm.name, seed, share, time_s, rounds + closed))

    for seed in spec.run.seeds:
        cell = make_cell(spec, seed)
        algorithms = make_algorithms(spec, cell, seed)
        for algorithm, timeline in zip(algorithms, make_timelines(spec, cell, algorithms, tell), strict=True):
            timelines[algorithm.name, seed] = timeline
            rounds += timeline.rounds
            if watch is not None:
                watch(Progress(algorithm.name, seed, len(timelines) / total, timeline.end_s, rounds))
    comparison = Comparison(spec, summarise(spec, command, algorithms, timelines, None), timelines, [], [], {})
    if folder is not None and not folder.finished:
        write_results(comparison, folder)
    return comparison


def _share_played(spec: Spec, closed: int, time_s: float) -> float:
    """How much of a timeline is there, by its rounds or by its horizon."""
    if spec.run.rounds is not None:
        return min(closed / spec.run.rounds, 1.0)
    return min(time_s / spec.run.horizon_s, 1.0) if spec.run.horizon_s else 0.0


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
