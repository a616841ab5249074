"""Send evaluations to experiment trackers: one tracked run per training, one point per evaluation.

A tracker is a callable that takes a ``Tracked`` at the first point of its training, and returns an object with
``log(row)`` and optionally ``flush()`` and ``close(done)``. It runs in a thread beside the training. ``track.json``
records which points it has received, so that a resumed run sends only new ones. Nothing leaves the machine unless the
user has configured the tracker to send it.
"""

import hashlib
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from perfeds2.errors import InputError, need_extra
from perfeds2.files import Json, read_json, write_json
from perfeds2.learning.metrics import METRICS, NEW_UES_METRICS
from perfeds2.runs.costs import SPENT
from perfeds2.runs.progress import DONE, Board, LiveTraining, News, Row
from perfeds2.spec.names import Kind, Named, call
from perfeds2.spec.resolve import flattened

TOLD = "track.json"
LOGGED = ("time_s", "round", *METRICS, *NEW_UES_METRICS, *SPENT)  # columns that are sent


@dataclass(frozen=True)
class Tracked:
    """One training, as described to a tracker."""

    project: str  # the folder's name
    name: str  # such as "PerFedS2, seed 0"
    algorithm: str
    seed: int
    label: str  # distinguishes it in a sweep; empty in a comparison
    id: str  # stays the same after a resume
    told: int  # points sent before
    config: Json  # the spec, flat: {"protocol.quorum": 5, …}
    folder: Path  # the run's folder, for files of the tracker


@runtime_checkable
class Tracker(Protocol):
    """An object that receives the evaluations of one training.

    It may also have ``flush()``, called a few times a second, and ``close(done)``, called when the training is over;
    ``done`` is False if the command failed or was interrupted.
    """

    def log(self, row: Row) -> None:
        """Receive one evaluation: time_s (simulated), round, metrics, joules and bits."""


MakeTracker = Callable[[Tracked], Tracker]
TrackerChoice = str | MakeTracker | Sequence[str | MakeTracker] | None


# ---- built-in trackers


def logged(row: Row) -> Row:
    return {key: row[key] for key in LOGGED if key in row}


def _unless_set(**usual: str) -> None:
    for name, value in usual.items():
        os.environ.setdefault(name, value)


class TensorBoard:
    """Writes event files to DIR/tensorboard, one folder per training. Steps are rounds; RELATIVE is simulated time."""

    def __init__(self, training: Tracked) -> None:
        from tensorboard.compat.proto.event_pb2 import Event  # pyright: ignore  # an extra, as the others
        from tensorboard.summary.writer.event_file_writer import EventFileWriter  # pyright: ignore[reportMissingImports]

        name = "".join(letter if letter.isalnum() or letter in "._=+-" else "_" for letter in training.name)[:120]
        self._event, self._writer = Event, EventFileWriter(str(training.folder / "tensorboard" / name))
        self.flush = self._writer.flush
        if training.told == 0:
            event = Event(wall_time=0.0)
            settings = event.summary.value.add(tag="spec/text_summary")
            settings.metadata.plugin_data.plugin_name = "text"
            rows = "".join(f"| {key} | {value} |\n" for key, value in training.config.items())
            settings.tensor.dtype = 7  # DT_STRING
            settings.tensor.string_val.append(f"| setting | value |\n|---|---|\n{rows}".encode())
            self._writer.add_event(event)

    def log(self, row: Row) -> None:
        event = self._event(wall_time=row["time_s"], step=row["round"])
        for key, value in logged(row).items():
            event.summary.value.add(tag=key, simple_value=value)
        self._writer.add_event(event)

    def close(self, done: bool) -> None:  # noqa: ARG002 (a file knows no end)
        self._writer.close()


class WandB:
    """Weights & Biases: offline files in DIR/wandb unless WANDB_MODE is set. Charts are over simulated seconds."""

    def __init__(self, training: Tracked) -> None:
        _unless_set(WANDB_MODE="offline", WANDB_ERROR_REPORTING="false", WANDB_SILENT="true")
        import wandb  # pyright: ignore[reportMissingImports]

        quiet = {"console": "off", "disable_git": True, "x_disable_stats": True, "x_disable_machine_info": True}
        self._at = training.told
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", training.project),
            name=training.name,
            id=training.id,
            group=training.label or None,
            tags=[training.algorithm[:64], f"seed {training.seed}"],
            config=training.config,
            dir=str(training.folder),
            resume="allow" if training.told and os.environ["WANDB_MODE"] == "online" else None,
            reinit="create_new",
            save_code=False,
            settings=wandb.Settings(**quiet),
        )
        self._run.define_metric("time_s")
        self._run.define_metric("*", step_metric="time_s")

    def log(self, row: Row) -> None:
        self._run.log(logged(row), step=self._at)
        self._at += 1

    def close(self, done: bool) -> None:
        self._run.finish(exit_code=0 if done else 1)


class MLflow:
    """A store in DIR/mlflow unless MLFLOW_TRACKING_URI is set. Steps are rounds; times are simulated milliseconds."""

    def __init__(self, training: Tracked) -> None:
        _unless_set(MLFLOW_DISABLE_TELEMETRY="true", MLFLOW_LOGGING_LEVEL="WARNING")
        from mlflow import MlflowClient  # pyright: ignore[reportMissingImports]
        from mlflow.entities import Metric, Param  # pyright: ignore[reportMissingImports]

        store = os.environ.get("MLFLOW_TRACKING_URI")
        if not store:
            own = (training.folder / "mlflow").resolve()
            own.mkdir(exist_ok=True)
            store = f"sqlite:///{own / 'mlflow.db'}"
        self._metric, self._client = Metric, MlflowClient(store)
        found = self._client.get_experiment_by_name(training.project)
        where = found.experiment_id if found is not None else self._client.create_experiment(training.project)
        known = self._client.search_runs([where], f"tags.`perfeds2.training` = '{training.id}'")
        if known:
            self._id = known[0].info.run_id
            self._client.update_run(self._id, status="RUNNING")
            return
        tags = {"perfeds2.training": training.id, "algorithm": training.algorithm, "seed": str(training.seed)}
        tags |= {"label": training.label} if training.label else {}
        self._id = self._client.create_run(where, tags=tags, run_name=training.name).info.run_id
        params = [Param(key, str(value)[:500]) for key, value in training.config.items()]
        for first in range(0, len(params), 100):  # MLflow's limit per batch
            self._client.log_batch(self._id, params=params[first : first + 100])

    def log(self, row: Row) -> None:
        at, step = round(1000 * row["time_s"]), row["round"]
        metrics = [self._metric(key, float(value), at, step) for key, value in logged(row).items()]
        self._client.log_batch(self._id, metrics=metrics)

    def close(self, done: bool) -> None:
        self._client.set_terminated(self._id, "FINISHED" if done else "KILLED")


TRACKERS: dict[str, MakeTracker] = {  # each named as its package and as the extra that installs it
    "tensorboard": TensorBoard,
    "wandb": WandB,
    "mlflow": MLflow,
}
TRACKER = Kind("tracker", "perfeds2.runs.trackers:TRACKERS")


# ---- using trackers


def trackers(asked: TrackerChoice, out: Path | str | None) -> list["Tracking"]:
    """Return a follower for each tracker asked for; called before anything is written.

    Args:
        asked: None, a comma-separated string of names, a callable, or a list of these.
        out: The folder of the run.

    Raises:
        InputError: If a name is unknown, its package is missing, or there is no folder.
    """
    given = [] if asked is None else [asked] if isinstance(asked, str) or callable(asked) else list(asked)
    every = (part for one in given for part in (map(str.strip, one.split(",")) if isinstance(one, str) else [one]))
    named = [TRACKER.named("--track", each) for each in every]
    if named and out is None:
        raise InputError(f"--track {named[0]} needs a folder to remember what was sent; give --out DIR.")
    for one in named:
        if one.text in TRACKERS:
            need_extra(f"--track {one}", one.text, one.text)
    return [Tracking(one, Path(out)) for one in dict.fromkeys(named) if out is not None]


class Tracking:
    """Follows a command and sends new evaluations to one tracker."""

    def __init__(self, tracker: Named, folder: Path) -> None:
        self._tracker, self._folder = tracker, folder.resolve()
        self._told: dict[str, int] | None = None  # points sent, by training
        self._open: dict[str, Tracker] = {}

    def look(self, board: Board, news: Sequence[News]) -> None:
        """Send new evaluations, and record them once the tracker has them."""
        if self._told is None:
            self._told = read_told(self._folder).get(self._tracker.text, {})
        new = [(training, number, row) for training, number, row in news if number >= self._told.get(training.name, 0)]
        for training, number, row in new:
            if training.name not in self._open:
                self._open[training.name] = self._begin(training, number)
            self._open[training.name].log(row)
            self._told[training.name] = number + 1
        for name in {training.name for training, *_ in new}:
            getattr(self._open[name], "flush", lambda: None)()
        if new:
            told = read_told(self._folder) | {self._tracker.text: self._told}
            write_json(self._folder / TOLD, told)
        self._close([name for name in self._open if board.trainings[name].is_over], done=True)

    def end(self, board: Board) -> None:
        self._close(list(self._open), done=board.end == DONE)

    def _begin(self, training: LiveTraining, told: int) -> Tracker:
        digest = hashlib.sha256(f"{self._folder} {training.name}".encode()).hexdigest()[:16]
        name, settings = f"{training.curve}, seed {training.seed}", flattened(training.config)
        config = {key: ",".join(map(str, each)) if isinstance(each, list) else each for key, each in settings.items()}
        known = (name, training.algorithm, training.seed, training.label, digest, told, config)
        tracked = Tracked(self._folder.name, *known, self._folder)
        return call(self._tracker.value, f"--track {self._tracker}", {"training": tracked})

    def _close(self, names: Sequence[str], *, done: bool) -> None:
        for tracker in [self._open.pop(name) for name in names]:
            getattr(tracker, "close", lambda _: None)(done)


def read_told(folder: Path) -> dict[str, dict[str, int]]:
    """Return how many points each tracker has received of each training; empty if the file is missing or damaged."""
    with suppress(OSError, ValueError, AttributeError, TypeError):
        found = read_json(folder / TOLD)
        return {str(tracker): {str(name): int(count) for name, count in own.items()} for tracker, own in found.items()}
    return {}
