"""Does ``perfeds2 watch`` follow whatever works in a folder, end when it ends, and leave it alone?"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from command_line import told
from needs import needs

from perfeds2.commands import watch as command
from perfeds2.report import live as view
from perfeds2.report import terminal
from perfeds2.runs.progress import LIVE, LiveFile, Progress, open_live_file

ROOT = Path(__file__).parent.parent
KINDS = {  # by what says whose folder it is
    "run": ("spec.toml", "run"),
    "compare": ("spec.toml", "compare"),
    "sweep": ("sweep.toml", "sweep"),
    "tune": ("tune.toml", "tune"),
    "arena": ("arena.toml", "arena"),
    "plan": ("spec.toml", "plan"),
    "reproduce": ("reproduce.toml", "reproduce"),
}


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(command, "LOOK_EVERY_S", 0.02)
    monkeypatch.setattr(command, "GONE_S", 0.2)
    monkeypatch.setattr(terminal, "FIRST_LINE_S", 0.0)
    monkeypatch.setattr(terminal, "LINE_EVERY_S", 0.05)


def rows(first: int, last: int) -> list[dict[str, Any]]:
    return [{"round": n, "time_s": n / 2, "test_accuracy_personal": n / 10} for n in range(first, last)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_it_follows_every_kind_of_command_and_ends_with_it(tmp_path, kind):
    file, name = KINDS[kind]
    (tmp_path / file).write_text("")

    def work():
        with open_live_file(tmp_path, name) as live:
            one, other = (live.training("", each, 0, 4) for each in ("PerFedS2", "FedAvg-SYN"))
            live.evaluations(one, lambda _: rows(0, 4))
            live.share(Progress("PerFedS2 seed 0", 0.5))
            time.sleep(0.5)
            live.evaluations(other, lambda _: rows(0, 2))
            time.sleep(0.3)

    working = threading.Thread(target=work)
    working.start()
    status, out, err = told("watch", tmp_path)
    working.join()
    assert status == 0
    assert out == f"{name} has finished: {tmp_path}\n"
    lines = err.splitlines()
    assert any(line.startswith(f"{name}: 50%, PerFedS2 seed 0, 1 training over") for line in lines)
    assert lines[-1].startswith(f"{name}: 100%")
    assert "PerFedS2 30.0% at 1.5 s, FedAvg-SYN 10.0% at 0.5 s" in lines[-1]
    assert not (tmp_path / LIVE).exists()


@pytest.mark.slow
def test_a_killed_run_is_said_to_be_killed_and_how_it_goes_on(tmp_path):
    (tmp_path / "spec.toml").write_text("")
    code = (
        "import sys, time; from pathlib import Path; from perfeds2.runs.progress import LiveFile, Progress\n"
        "live = LiveFile(Path(sys.argv[1])); live.begin('compare'); live.share(Progress('x', 0.4)); print('here', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", code, tmp_path], stdout=subprocess.PIPE, cwd=ROOT)
    assert process.stdout is not None
    process.stdout.readline()
    threading.Timer(0.3, process.kill).start()
    status, out, err = told("watch", tmp_path)
    process.wait()
    process.stdout.close()
    assert (status, out) == (1, "")
    assert err.splitlines()[-1] == (
        f"perfeds2 watch: compare was killed at 40%; finished work is kept; continue with: perfeds2 compare --resume {tmp_path}."
    )


def test_what_was_interrupted_or_went_wrong_is_said(tmp_path):
    (tmp_path / "spec.toml").write_text("")
    with pytest.raises(KeyboardInterrupt), open_live_file(tmp_path, "run"):
        raise KeyboardInterrupt
    status, _, err = told("watch", tmp_path)
    assert (status, err.splitlines()[-1]) == (
        1,
        f"perfeds2 watch: run was interrupted at 0%; continue with: perfeds2 run --resume {tmp_path}.",
    )
    with pytest.raises(OSError, match="no space"), open_live_file(tmp_path, "run"):
        raise OSError("no space")
    status, _, err = told("watch", tmp_path)
    assert status == 1
    assert "run stopped at 0%: no space; continue with: " in err


@pytest.mark.parametrize(
    ("files", "status", "said"),
    [
        ({}, 2, "holds no run; expected a folder that perfeds2 writes to"),
        ({"notes.txt": ""}, 2, "holds no run"),
        ({"spec.toml": "", "summary.json": "{}"}, 0, "has finished (see summary.json)"),
        ({"sweep.toml": "", "sweep_summary.csv": ""}, 0, "has finished"),
        ({"spec.toml": ""}, 1, "ended before anything was trained"),
        ({"trainings/a.json": "{}"}, 0, "Nothing works in"),
        ({"federation.toml": "nonsense"}, 2, "nonsense"),
    ],
)
def test_a_folder_where_nothing_works_is_told_in_a_sentence(tmp_path, files, status, said, monkeypatch):
    monkeypatch.setattr(command, "WAIT_S", 0.2)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    found, out, err = told("watch", tmp_path)
    assert found == status
    if said != "nonsense":
        assert said in out + err
    assert len((out + err).strip().splitlines()) == 1


def test_a_study_of_ones_own_is_followed(tmp_path):
    with pytest.raises(OSError, match="no space"), open_live_file(tmp_path, "smallest-quorum"):
        raise OSError("no space")
    status, _, err = told("watch", tmp_path)
    assert status == 1
    assert "smallest-quorum stopped at 0%: no space" in err


def test_no_folder_is_told_in_a_sentence(tmp_path):
    status, _, err = told("watch", tmp_path / "nowhere")
    assert status == 2
    assert "is not a folder; give the --out folder of a command that was started" in err


@pytest.mark.slow
@needs("posix")
def test_ctrl_c_leaves_the_run_alone(tmp_path):
    (tmp_path / "spec.toml").write_text("")
    live = LiveFile(tmp_path)
    live.begin("compare")
    before = (tmp_path / LIVE).read_bytes()
    watching = subprocess.Popen(
        [sys.executable, "-m", "perfeds2", "watch", tmp_path],
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert watching.stderr is not None
    first = watching.stderr.readline()  # after two seconds
    watching.send_signal(signal.SIGINT)
    rest = watching.stderr.read()
    watching.stderr.close()
    assert first.startswith("compare: 0%")
    assert watching.wait(20) == 130
    assert "The command itself continues." in rest
    assert (tmp_path / LIVE).read_bytes() == before
    live.close()


def test_lines_are_few_and_none_twice(monkeypatch):
    monkeypatch.setattr(terminal, "LINE_EVERY_S", 10.0)
    board, lines = view.Board(command="run"), view.BoardLines()
    said = [line for _ in range(50) for line in lines(board)]
    assert len(said) == 1


def test_a_federation_is_followed_to_its_end_and_said_to_be_killed(tmp_path):
    from perfeds2.deployment.setup import Setup
    from perfeds2.deployment.status import Status

    Setup.from_texts({}).write(tmp_path)
    facts: dict[str, Any] = {"round": 3, "rounds": 9, "time_s": 1.0, "quorum": 2, "ues": 4, "states": {"working": 4}}
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    Status(process=gone.pid, phase="training", devices=[], recent=[], **facts).write(tmp_path)
    status, _, err = told("watch", tmp_path)
    assert status == 1
    assert f"the federation's server was killed in round 3; continue with: perfeds2 federate resume {tmp_path}." in err
    (tmp_path / "summary.json").write_text(json.dumps({}))
    status, out, _ = told("watch", tmp_path)
    assert (status, out) == (0, f"the federation has finished: {tmp_path}\n")
