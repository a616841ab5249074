"""Does a reader of a running command see what it writes in the end, once each, whichever process trains or is killed?"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from in_numpy import train_in_numpy
from recorder import Recorder, same_as_written

from perfeds2 import compare
from perfeds2.runs import progress as module
from perfeds2.runs.pool import HERE, WorkerChoice
from perfeds2.runs.progress import DONE, INTERRUPTED, LIVE, Board, LiveFile, Reporter, Tail, born, open_live_file
from perfeds2.runs.session import Execution
from perfeds2.spec.resolve import nested, spec_from
from perfeds2.studies.compare import train_spec
from perfeds2.studies.grid import make_grid
from perfeds2.studies.sweep import run_sweep
from perfeds2.studies.tune import run_search
from perfeds2.studies.tune_space import make_search

TINY: dict[str, Any] = {
    "task": "synthetic",
    "ues": 4,
    "quorum": 2,
    "batch": 4,
    "horizon_s": 0.5,
    "eval_every_s": 0.1,
    "algorithms": ("FedAvgS2", "FedAvg-SYN"),
    "seeds": (0, 1),
}


def test_the_share_of_a_search_never_falls_however_much_is_announced_later():
    """Half of all that is left, then half of the rest, and so on, with more trainings each time."""
    shares: list[float] = []
    reporter = Reporter(lambda now: shares.append(now.share))
    for count in (2, 10, 50):
        reporter.next_part(0.5)
        reporter.asked(count, 0)
        for _ in range(count):
            reporter.started(0, "", 1)
            reporter.moved(0, 0.5, 1.0, 1)
            reporter.done(0)
    assert shares == sorted(shares)
    assert (shares[1], shares[5], shares[-1]) == (0.125, 0.5, 0.875)


# ---- what commands show


@pytest.mark.slow
def test_those_who_follow_see_what_metrics_csv_says_in_the_end(tmp_path, monkeypatch):
    """So they do if processes train and one is killed: test_jobs.py and test_sharing.py."""
    train_in_numpy(monkeypatch.setattr)
    recorder, spec = Recorder(), spec_from(**TINY)
    train_spec(spec, "compare", tmp_path / "run", Execution(WorkerChoice(), followers=[recorder]))
    same_as_written(recorder, tmp_path / "run")
    assert recorder.ends == 1
    assert (recorder.board.end, recorder.board.share) == (DONE, 1.0)
    assert {each.metric for each in recorder.board.trainings.values()} == {"accuracy"}
    assert {each.config["protocol"]["quorum"] for each in recorder.board.trainings.values()} == {2}
    assert not (tmp_path / "run" / LIVE).exists()  # it has come to its end


@pytest.mark.slow
def test_a_run_that_was_interrupted_shows_everything_once_when_it_goes_on(tmp_path, monkeypatch):
    train_in_numpy(monkeypatch.setattr)
    first, second, spec, told = Recorder(), Recorder(), spec_from(**TINY), []

    def stop(now):
        told.append(now)
        if len(told) == 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_spec(spec, "compare", tmp_path / "run", Execution(WorkerChoice(), watch=stop, followers=[first]))
    assert first.board.end == INTERRUPTED
    before = len(first.rows)
    assert 0 < before < 4 * 6
    train_spec(spec, "compare", tmp_path / "run", Execution(WorkerChoice(), followers=[second]))
    same_as_written(second, tmp_path / "run")  # the file remembers what was shown before


@pytest.mark.slow
def test_sweeps_and_tunings_show_every_training_under_its_settings(tmp_path, monkeypatch):
    train_in_numpy(monkeypatch.setattr)
    base = nested({**TINY, "algorithms": ["FedAvgS2"], "seeds": [0, 1]})
    recorder = Recorder()
    execution = Execution(WorkerChoice(on=HERE), followers=[recorder])
    swept = run_sweep(make_grid(base, {"quorum": [1, 2]}), tmp_path / "sweep", execution)
    shown, table = recorder.table(), swept.table
    assert set(shown["label"]) == {"quorum=1", "quorum=2"}
    for quorum in (1, 2):
        own = pd.DataFrame(shown[shown["label"] == f"quorum={quorum}"]).sort_values(["seed", "n"])
        swept_there = pd.DataFrame(table[table["quorum"] == quorum]).sort_values(["seed", "time_s"])
        assert own["test_accuracy_personal"].tolist() == swept_there["test_accuracy_personal"].tolist()
    assert recorder.board.what.startswith("4 of 4 trainings") or recorder.board.share == 1.0

    recorder = Recorder()
    search = make_search(nested({**TINY, "algorithms": ["FedAvgS2"]}), {"beta": [0.02, 0.07]}, seeds=1, rungs=2)
    run_search(search, tmp_path / "tune", Execution(WorkerChoice(), followers=[recorder]))
    labels = {each.label for each in recorder.board.trainings.values()}
    assert {label.rpartition(", ")[0] for label in labels} == {"beta=0.02", "beta=0.07"}
    assert len({label.rpartition(", ")[2] for label in labels}) == 2  # two rungs, a third and the whole of the horizon
    assert not list(tmp_path.rglob(LIVE))


def test_one_who_fails_while_following_does_not_stop_the_command(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(module, "LOOK_EVERY_S", 0.01)

    class Broken:
        def look(self, board, news):  # noqa: ARG002
            raise OSError("the tracker's disk is full")

        def end(self, board):  # noqa: ARG002
            raise AssertionError("it is not asked again")

    recorder = Recorder()
    with open_live_file(tmp_path, "compare", [Broken(), recorder]) as live:
        show(live, "", "A", 1, [{"time_s": 0.0, "test_accuracy_personal": 0.5}])
    assert len(recorder.rows) == 1
    assert capsys.readouterr().err == "perfeds2: the tracker's disk is full (the run continues)\n"


def test_a_disk_that_takes_nothing_does_not_stop_the_command(tmp_path):
    live = LiveFile(tmp_path / "nowhere")
    live.begin("compare")
    show(live, "", "A", 1, [{"time_s": 0.0, "test_accuracy_personal": 0.5}])
    live.close()


def show(live: LiveFile, label: str, algorithm: str, of: int, rows: list[dict[str, Any]]) -> None:
    live.evaluations(live.training(label, algorithm, 0, of), lambda first: rows[first:])


# ---- what is read


def log_of(path: Path, evaluations: int, resumed_at: int = 0) -> bytes:
    """What a command has written that trains two, was killed and goes on from a checkpoint."""
    for again in (0, resumed_at):
        live = LiveFile(path)
        live.begin("compare")
        for name in ("A", "B"):
            rows = [
                {"round": n, "time_s": n / 2, "test_accuracy_personal": n / 10, "name": name}
                for n in range(evaluations if again or not resumed_at else min(resumed_at + 2, evaluations))
            ]
            show(live, "", name, evaluations, rows)
        live.close()
        if not resumed_at:
            break
    return (path / LIVE).read_bytes()


@pytest.mark.slow
@given(st.integers(1, 6), st.integers(0, 6), st.lists(st.integers(1, 60), max_size=80), st.integers(0, 30))
def test_however_the_file_comes_it_says_the_same_and_nothing_twice(tmp_path_factory, of, resumed, pieces, half):
    folder = tmp_path_factory.mktemp("log")
    text = log_of(folder, of, min(resumed, of))
    first = text.index(b"\n", len(text) // 2) + 1
    text = text[:first] + b'{"t":"A","n":1,"ro'[:half].replace(b"\n", b"") + (b"\n" if half else b"") + text[first:]
    arriving = tmp_path_factory.mktemp("arriving")
    tail, board, news, at = Tail(arriving), Board(), [], 0
    for piece in [*pieces, len(text)]:
        with (arriving / LIVE).open("ab") as file:
            file.write(text[at : at + piece])
        at += piece
        news += board.take(tail.read())
    tail.close()
    assert sorted((training.algorithm, number) for training, number, _ in news) == [
        (name, number) for name in ("A", "B") for number in range(of)
    ]
    for training in board.trainings.values():
        assert training.is_over
        assert training.time_s == [n / 2 for n in range(of)]
        assert training.score == [n / 10 for n in range(of)]


def test_a_killed_writer_leaves_half_a_line_and_the_next_begins_a_new_one(tmp_path):
    (tmp_path / LIVE).write_bytes(b'{"share":0.1,"at":1.0,"wh')
    live = LiveFile(tmp_path)
    live.write(share=0.2, at=2.0, what="B")
    live.close()
    assert (tmp_path / LIVE).read_text().splitlines()[1] == '{"share":0.2,"at":2.0,"what":"B"}'


@pytest.mark.parametrize(
    "line",
    [
        *["null", "[]", '"row"', "{}", '{"row":1,"t":"A","n":0}', '{"row":{},"t":"?","n":0}', '{"share":"x","at":0}'],
        *['{"training":["A"],"label":"","algorithm":"A","seed":0,"of":1}', '{"begin":"compare"}', "[" * 5000, "\x00"],
    ],
)
def test_a_line_that_is_none_of_ours_is_passed_over(tmp_path, line):
    board, tail = Board(), Tail(tmp_path)
    (tmp_path / LIVE).write_text(f"{line}\n" + '{"share":0.5,"at":1.0,"what":"B"}\n')
    assert board.take(tail.read()) == []
    tail.close()
    assert (board.share, board.what) == (0.5, "B")


def test_the_rest_takes_as_long_as_the_pace_since_the_last_start_says():
    board = Board()
    begin = {"begin": "compare", "host": "h", "process": 1, "born": ""}
    board.take([{**begin, "at": 0.0}, {"share": 0.0, "at": 1.0, "what": ""}, {"share": 0.2, "at": 11.0, "what": ""}])
    assert board.left_s == pytest.approx(40.0)  # 20 % in 10 s
    board.take([{**begin, "at": 100.0}])  # resumed: 20 % are there, and no one knows the pace
    assert board.left_s is None
    board.take([{"share": 0.2, "at": 101.0, "what": ""}, {"share": 0.6, "at": 103.0, "what": ""}])
    assert board.left_s == pytest.approx(2.0)  # 40 % in 2 s
    board.take([{"end": DONE, "at": 105.0}])
    assert (board.left_s, board.share) == (None, 1.0)


def test_a_process_that_is_gone_without_a_word_is_dead_and_one_of_another_machine_is_not(tmp_path):
    code = "import sys; from pathlib import Path; from perfeds2.runs.progress import LiveFile; LiveFile(Path(sys.argv[1])).begin('run')"
    subprocess.run([sys.executable, "-c", code, tmp_path], check=True)
    text = (tmp_path / LIVE).read_text()
    board = Board()
    board.take([json.loads(text)])
    assert board.is_dead
    board.take([json.loads(text) | {"host": "elsewhere"}])
    assert not board.is_dead
    board.take([json.loads(text), {"end": DONE, "at": time.time()}])
    assert not board.is_dead
    board.take([json.loads(text) | {"process": os.getpid(), "born": born(os.getpid())}])
    assert not board.is_dead
    board.take([json.loads(text) | {"process": os.getpid()}])  # another with the same number
    assert board.is_dead
    assert born(2**31 - 1) == ""


@pytest.mark.slow
def test_from_python_the_folder_can_be_followed_too(tmp_path, monkeypatch):
    """As ``perfeds2 watch`` does, from outside."""
    train_in_numpy(monkeypatch.setattr)
    tail, board, seen = Tail(tmp_path / "run"), Board(), []

    def watch(_):
        board.take(tail.read())
        seen.append(sum(len(each.time_s) for each in board.trainings.values()))

    compare(out=tmp_path / "run", watch=watch, **TINY)
    board.take(tail.read())  # the file is gone, and can still be read to its end
    tail.close()
    assert board.end == DONE
    assert sum(len(each.time_s) for each in board.trainings.values()) == 4 * 6
    assert seen == sorted(seen)
    assert seen[len(seen) // 2] > 0
