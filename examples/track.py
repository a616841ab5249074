"""Send the evaluations of a running command to TensorBoard, Weights & Biases or MLflow::

    perfeds2 compare --out runs/a                  # in one terminal
    python examples/track.py runs/a tensorboard    # in another, as soon as you like

It follows the file from which ``perfeds2 watch`` draws. There is one tracked run per training and one point per evaluation.
``track.json`` records which points were sent, so that after a resume the same line sends only new ones. Nothing leaves the
machine unless you have configured the tracker to send it. A tracker of your own is one class with ``log`` and ``close``.
"""

import argparse
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from perfeds2 import InputError
from perfeds2.runs import Board, Tail

LOOK_EVERY_S = 0.5
WAIT_S = 60.0  # for a command that was just started
TOLD = "track.json"
Row = dict[str, Any]  # one evaluation


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
    config: Row  # the spec, flat: {"protocol.quorum": 5, …}
    folder: Path  # the run's folder, for files of the tracker


class Tracker(Protocol):
    """Receives the evaluations of one training."""

    def log(self, row: Row) -> None:
        """Receive one evaluation: time_s (simulated), round, metrics, joules and bits."""

    def flush(self) -> None:
        """Write what was received, a few times a second."""

    def close(self, done: bool) -> None:
        """End. ``done`` is False if the command failed or was interrupted."""


# ---- trackers


def logged(row: Row) -> Row:
    """Return the numbers of an evaluation: time_s, round, metrics, joules and bits."""
    return {key: value for key, value in row.items() if isinstance(value, int | float) and key != "seed"}


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

    def flush(self) -> None:
        self._writer.flush()

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

    def flush(self) -> None:
        """Do nothing: every point is sent at once."""

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

    def flush(self) -> None:
        """Do nothing: every point is sent at once."""

    def close(self, done: bool) -> None:
        self._client.set_terminated(self._id, "FINISHED" if done else "KILLED")


TRACKERS: dict[str, Callable[[Tracked], Tracker]] = {  # by the name of its package
    "tensorboard": TensorBoard,
    "wandb": WandB,
    "mlflow": MLflow,
}


# ---- following a command


class Tracking:
    """Follows a command and sends new evaluations to one tracker."""

    def __init__(self, tracker: str, folder: Path) -> None:
        self._tracker, self._folder = tracker, folder.resolve()
        self._told: dict[str, int] | None = None  # points sent, by training
        self._open: dict[str, Tracker] = {}

    def look(self, board: Board, news: Sequence[tuple[Any, int, Row]]) -> None:
        """Send new evaluations, and record them once the tracker has them."""
        if self._told is None:
            self._told = read_told(self._folder).get(self._tracker, {})
        new = [(training, number, row) for training, number, row in news if number >= self._told.get(training.name, 0)]
        for training, number, row in new:
            if training.name not in self._open:
                self._open[training.name] = self._begin(training, number)
            self._open[training.name].log(row)
            self._told[training.name] = number + 1
        for name in {training.name for training, *_ in new}:
            self._open[name].flush()
        if new:
            told = read_told(self._folder) | {self._tracker: self._told}
            self._write(told)
        self._close([name for name in self._open if board.trainings[name].is_over], done=True)

    def end(self, board: Board) -> None:
        self._close(list(self._open), done=board.end == "done")

    def _write(self, told: dict[str, dict[str, int]]) -> None:
        """Replace the record at once, so that a kill leaves the old one or the new one."""
        part = self._folder / f".{TOLD}.part"
        part.write_text(json.dumps(told, indent=1) + "\n")
        os.replace(part, self._folder / TOLD)

    def _begin(self, training: Any, told: int) -> Tracker:
        digest = hashlib.sha256(f"{self._folder} {training.name}".encode()).hexdigest()[:16]
        name, settings = f"{training.curve}, seed {training.seed}", flattened(training.config)
        config = {key: ",".join(map(str, each)) if isinstance(each, list) else each for key, each in settings.items()}
        known = (name, training.algorithm, training.seed, training.label, digest, told, config)
        return TRACKERS[self._tracker](Tracked(self._folder.name, *known, self._folder))

    def _close(self, names: Sequence[str], *, done: bool) -> None:
        for tracker in [self._open.pop(name) for name in names]:
            tracker.close(done)


def read_told(folder: Path) -> dict[str, dict[str, int]]:
    """Return how many points each tracker has received of each training; empty if the file is missing or damaged."""
    with suppress(OSError, ValueError, AttributeError, TypeError):
        found = json.loads((folder / TOLD).read_text())
        return {str(tracker): {str(name): int(count) for name, count in own.items()} for tracker, own in found.items()}
    return {}


def flattened(settings: Row, prefix: str = "") -> Row:
    """Return nested settings by dotted names: {"protocol.quorum": 5, …}."""
    flat: Row = {}
    for key, value in settings.items():
        flat |= flattened(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return flat


def follow(folder: Path, tracker: str, wait_s: float = WAIT_S) -> None:
    """Send the evaluations of the command that writes into a folder until it ends.

    Raises:
        InputError: If no command works in the folder.
    """
    tracking, board, ends_s = Tracking(tracker, folder), Board(), time.monotonic() + wait_s
    with closing(Tail(folder)) as tail:
        while not board.end:
            is_dead = board.is_dead  # read before the last look, because it may have ended normally since
            tracking.look(board, board.take(tail.read()))
            if not tail.is_open and time.monotonic() > ends_s:
                raise InputError(f"no command works in {folder}; start one with --out or --resume {folder}.")
            if tail.is_open and is_dead and board.is_dead:
                break
            time.sleep(LOOK_EVERY_S)
        tracking.end(board)


def main(given: Sequence[str] | None = None) -> None:
    """Follow the folder on the command line."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("::")[0])
    parser.add_argument("folder", type=Path, help="folder that the command writes into")
    parser.add_argument("tracker", choices=TRACKERS)
    asked = parser.parse_args(given)
    try:
        follow(asked.folder, asked.tracker)
    except InputError as error:
        sys.exit(f"track.py: {error}")
    except ImportError:
        sys.exit(f"track.py: {asked.tracker} is missing: {sys.executable} -m pip install {asked.tracker}")


if __name__ == "__main__":
    main()
