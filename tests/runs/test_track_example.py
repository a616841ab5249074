"""Are trackers told every evaluation once, also across a kill, and does nothing leave the machine unasked?"""

import json
import socket
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd
import pytest
from in_numpy import train_in_numpy
from needs import needs

from examples import track as module
from examples.track import TOLD, TRACKERS, Tracked, Tracking, flattened, follow, main, read_told
from perfeds2 import compare
from perfeds2.errors import InputError
from perfeds2.files import read_table
from perfeds2.runs.progress import LIVE, Board, LiveFile, Tail

TINY: dict[str, Any] = {
    "task": "synthetic",
    "ues": 4,
    "quorum": 2,
    "batch": 4,
    "horizon_s": 0.5,
    "eval_every_s": 0.1,
    "algorithms": ("FedAvgS2",),
    "seeds": (0, 1),
}


def rows_to(of: int) -> list[dict[str, Any]]:
    return [
        {
            "round": 3 * n,
            "time_s": n / 2,
            "test_accuracy_personal": n / 10,
            "train_loss": 1 / (n + 1),
            "joules": 0.5 * n,
        }
        for n in range(of)
    ]


def run_until(folder: Path, named: str, evaluations: int, of: int = 5) -> None:
    """A command that is tracked, and ends after this many evaluations: interrupted, unless these are all."""
    one = Tracking(named, folder)
    live = LiveFile(folder)
    live.begin("compare")
    config = {"protocol": {"quorum": 2}, "run": {"seeds": [0, 1]}}
    live.evaluations(live.training("", "A", 0, of, config=config), lambda first: rows_to(evaluations)[first:])
    live.close()
    tail, board = Tail(folder), Board()
    one.look(board, board.take(tail.read()))
    one.end(board)
    tail.close()


class Lines:
    """A tracker that writes down what it is told."""

    def __init__(self, training: Tracked) -> None:
        self.path, self.name = training.folder / "own.jsonl", training.name
        self.write(open={"id": training.id, "told": training.told, "quorum": training.config["protocol.quorum"]})

    def write(self, **said: Any) -> None:
        with self.path.open("a") as file:
            print(json.dumps(said), file=file)

    def log(self, row: dict[str, Any]) -> None:
        self.write(name=self.name, **row)

    def flush(self) -> None:
        self.write(flushed=self.name)

    def close(self, done: bool) -> None:
        self.write(close=self.name, done=done)


@pytest.fixture
def own(monkeypatch) -> str:
    monkeypatch.setitem(TRACKERS, "json", Lines)  # whose package is there
    return "json"


def lines_in(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "own.jsonl").read_text().splitlines()]


# ---- once each


@pytest.mark.slow
def test_a_tracker_is_told_what_metrics_csv_says_also_when_the_run_was_interrupted(tmp_path, own, monkeypatch):
    train_in_numpy(monkeypatch.setattr)
    monkeypatch.setattr(module, "LOOK_EVERY_S", 0.01)

    def refuse(*_):
        raise AssertionError("nothing leaves this machine")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    told: list[Any] = []

    def stop(now):
        told.append(now)
        if len(told) == 5:
            raise KeyboardInterrupt

    def tracked(**more: Any) -> None:
        following = threading.Thread(target=follow, args=(tmp_path / "run", own))
        following.start()
        try:
            compare(out=tmp_path / "run", **TINY, **more)
        finally:
            following.join()

    with pytest.raises(KeyboardInterrupt):
        tracked(watch=stop)
    before = [line for line in lines_in(tmp_path / "run") if "round" in line]
    assert 0 < len(before) < 12
    (tmp_path / "run" / LIVE).write_text("")  # so that the second look does not end with the first command
    tracked()
    points = pd.DataFrame([line for line in lines_in(tmp_path / "run") if "round" in line])
    points["seed"] = points["name"].str.rpartition(" ")[2].astype(int)
    points = points.sort_values(["seed", "time_s"], ignore_index=True)
    written = read_table(tmp_path / "run" / "metrics.csv").sort_values(["seed", "time_s"], ignore_index=True)
    same = ["seed", "round", "time_s", "train_loss", "test_accuracy_personal", "joules", "merged_bits"]
    pd.testing.assert_frame_equal(
        pd.DataFrame(points[same]), pd.DataFrame(written[same]), check_dtype=False, check_exact=True
    )
    opened = [line["open"] for line in lines_in(tmp_path / "run") if "open" in line]
    assert {each["quorum"] for each in opened} == {2}
    assert len({each["id"] for each in opened}) == 2  # one tracked run for each training, the same when it is resumed
    assert [line["done"] for line in lines_in(tmp_path / "run") if "close" in line][-2:] == [True, True]


def test_what_a_tracker_knows_is_not_told_again(tmp_path, own):
    folder = tmp_path / "run"
    folder.mkdir()
    run_until(folder, own, 3)
    run_until(folder, own, 5)  # resumed: the file has the first three twice
    run_until(folder, own, 5)  # and once more, with nothing to tell
    assert [line["time_s"] for line in lines_in(folder) if "round" in line] == [0.0, 0.5, 1.0, 1.5, 2.0]
    assert [line["open"]["told"] for line in lines_in(folder) if "open" in line] == [0, 3]
    assert [line["done"] for line in lines_in(folder) if "close" in line] == [False, True]
    assert list(read_told(folder)[own].values()) == [5]


@pytest.mark.parametrize("text", ["", "null", "[]", '{"a": 1}', '{"a": {"b": null}}', "{"])
def test_a_damaged_memory_of_what_was_told_is_none(tmp_path, text):
    (tmp_path / TOLD).write_text(text)
    assert read_told(tmp_path) == {}


def test_a_tracker_that_is_told_nothing_is_never_opened(tmp_path, own):
    live = LiveFile(tmp_path)
    live.begin("compare")
    live.write(end="done", at=0.0)
    follow(tmp_path, own)
    assert not (tmp_path / "own.jsonl").exists()
    assert not (tmp_path / TOLD).exists()


def test_a_command_that_was_killed_ends_the_tracked_runs(tmp_path, own, monkeypatch):
    monkeypatch.setattr(module, "LOOK_EVERY_S", 0.01)
    live = LiveFile(tmp_path)
    live.write(begin="compare", at=0.0, host=socket.gethostname(), process=2**22 + 1, born="never")
    config = {"protocol": {"quorum": 2}}
    live.evaluations(live.training("", "A", 0, 5, config=config), lambda first: rows_to(2)[first:])
    follow(tmp_path, own)
    assert [line["done"] for line in lines_in(tmp_path) if "close" in line] == [False]


# ---- what is refused


def test_a_folder_in_which_nothing_works_is_refused(tmp_path, own):
    with pytest.raises(InputError, match="no command works in"):
        follow(tmp_path, own, wait_s=0.0)


@pytest.mark.parametrize("name", TRACKERS)
def test_a_package_that_is_missing_is_named_with_the_line_that_installs_it(tmp_path, monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    live = LiveFile(tmp_path)
    live.begin("compare")
    live.evaluations(live.training("", "A", 0, 5, config={}), lambda first: rows_to(1)[first:])
    with pytest.raises(SystemExit, match=rf"{name} is missing: .* -m pip install {name}$"):
        main([str(tmp_path), name])


# ---- those that are there, with packages that only write down what they are asked


class Asked(ModuleType):
    """A package of which everything can be had, called and asked."""

    def __init__(self, name: str, calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]]) -> None:
        super().__init__(name)
        self.calls = calls

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        inner = Asked(f"{self.__name__}.{name}", self.calls)
        inner.__class__ = type(
            "Called", (Asked,), {"__call__": lambda *given, **more: given[0].take(*given[1:], **more)}
        )
        return inner

    def take(self, *given: Any, **more: Any) -> Any:
        name = self.__name__
        self.calls.append((name, given, more))
        return [] if name.endswith("search_runs") else Asked(f"{name}()", self.calls)


@pytest.fixture
def asked(monkeypatch):
    """The calls of a package that is none."""
    for name in (
        "WANDB_MODE",
        "WANDB_PROJECT",
        "MLFLOW_TRACKING_URI",
        "MLFLOW_DISABLE_TELEMETRY",
        "WANDB_ERROR_REPORTING",
    ):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)

    def fake(*modules: str) -> list[tuple[str, tuple[Any, ...], dict[str, Any]]]:
        calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        for name in modules:
            monkeypatch.setitem(sys.modules, name, Asked(name, calls))
        return calls

    return fake


def one_training(folder: Path, told: int = 0) -> Tracked:
    config = {"protocol.quorum": 2, "task.name": "digits"}
    return Tracked("study", "A, seed 0", "A", 0, "", "0123", told, config, folder)


def test_wandb_writes_offline_files_unless_it_was_set_up_otherwise(tmp_path, asked, monkeypatch):
    calls = asked("wandb")
    tracker = TRACKERS["wandb"](one_training(tmp_path, told=3))
    for row in rows_to(2):
        tracker.log(row)
    tracker.close(True)
    assert module.os.environ["WANDB_MODE"] == "offline"
    assert module.os.environ["WANDB_ERROR_REPORTING"] == "false"
    made = next(more for name, _, more in calls if name == "wandb.init")
    assert made["dir"] == str(tmp_path)
    assert (made["id"], made["project"], made["resume"]) == ("0123", "study", None)
    assert made["config"]["protocol.quorum"] == 2
    assert [more["step"] for name, _, more in calls if name == "wandb.init().log"] == [3, 4]  # goes on where it was
    monkeypatch.setenv("WANDB_MODE", "online")
    TRACKERS["wandb"](one_training(tmp_path, told=3))
    assert module.os.environ["WANDB_MODE"] == "online"  # as its user said
    assert [more["resume"] for name, _, more in calls if name == "wandb.init"] == [None, "allow"]


def test_mlflow_keeps_its_store_in_the_folder_unless_it_was_set_up_otherwise(tmp_path, asked, monkeypatch):
    calls = asked("mlflow", "mlflow.entities")
    tracker = TRACKERS["mlflow"](one_training(tmp_path))
    tracker.log(rows_to(2)[1])
    assert module.os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"
    (store,) = [given for name, given, _ in calls if name == "mlflow.MlflowClient"]
    assert store == (f"sqlite:///{tmp_path / 'mlflow' / 'mlflow.db'}",)
    points = {given[0]: given[1:] for name, given, _ in calls if name == "mlflow.entities.Metric"}
    assert points["test_accuracy_personal"] == (0.1, 500, 3)  # the value, simulated milliseconds, the round
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracking.example")
    TRACKERS["mlflow"](one_training(tmp_path))
    assert [given for name, given, _ in calls if name == "mlflow.MlflowClient"][1] == ("http://tracking.example",)


# ---- the packages themselves, where they are installed


@needs("tensorboard")
def test_tensorboard_reads_back_every_point_once(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import (  # pyright: ignore[reportMissingImports]
        EventAccumulator,
    )

    run_until(tmp_path, "tensorboard", 3)
    run_until(tmp_path, "tensorboard", 5)
    (folder,) = (tmp_path / "tensorboard").iterdir()
    read = EventAccumulator(str(folder))
    read.Reload()
    points = [(event.wall_time, event.step, event.value) for event in read.Scalars("test_accuracy_personal")]
    assert points == [(n / 2, 3 * n, pytest.approx(n / 10)) for n in range(5)]
    assert read.Tags()["tensors"] == ["spec/text_summary"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy:DeprecationWarning")  # MLflow's use of SQLAlchemy
@needs("mlflow")
def test_mlflow_reads_back_every_point_once(tmp_path, monkeypatch):
    from mlflow import MlflowClient  # pyright: ignore[reportMissingImports]

    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")
    run_until(tmp_path, "mlflow", 3)
    run_until(tmp_path, "mlflow", 5)
    client = MlflowClient(f"sqlite:///{tmp_path / 'mlflow' / 'mlflow.db'}")
    experiment = client.get_experiment_by_name(tmp_path.name)
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.status, run.data.params["protocol.quorum"]) == ("FINISHED", "2")
    found = client.get_metric_history(run.info.run_id, "test_accuracy_personal")
    assert [(one.timestamp, one.step, one.value) for one in found] == [(500 * n, 3 * n, n / 10) for n in range(5)]


def test_nested_settings_are_flattened_to_dotted_names():
    nested = {"run": {"seeds": [0, 1], "rounds": 3}, "each": {"A": {"beta": 0.1}}}
    assert flattened(nested) == {"run.seeds": [0, 1], "run.rounds": 3, "each.A.beta": 0.1}
