"""Does the command line do what the README says, and fail in one sentence?"""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from command_line import told
from in_numpy import train_in_numpy

from perfeds2 import console

QUICK = ["--ues", "6", "--quorum", "2", "--horizon-s", "1", "--batch", "8", "--seeds", "2"]


@pytest.mark.slow
def test_help_teaches_every_command_without_loading_jax():
    code = (
        "import sys; sys.argv = ['perfeds2', '--help']\n"
        "from perfeds2.cli import main\n"
        "try:\n    main()\nexcept SystemExit as stop:\n    assert stop.code == 0\n"
        "slow = {'jax', 'pandas', 'matplotlib', 'plotly', 'sklearn', 'scipy', 'numpy'} & set(sys.modules)\n"
        "assert not slow, slow"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    for command in ("compare", "run", "simulate", "report"):
        assert command in shown.stdout
    _, flags, _ = told("compare", "--help-all")
    for flag in ("--task", "--quorum", "--max-staleness", "--stale", "--labels-per-ue", "--shares", "--bandwidth"):
        assert flag in flags
    assert "Folder that perfeds2 wrote" in told("report", "--help")[1]  # typer and click must fit for that


@pytest.mark.slow
def test_importing_the_package_loads_nothing_heavy():
    code = "import sys, perfeds2; assert not {'jax', 'numpy', 'scipy'} & set(sys.modules); perfeds2.Cell; perfeds2.simulate; assert 'jax' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_every_public_name_can_be_imported():
    import perfeds2

    for name in perfeds2._NAMES:
        assert getattr(perfeds2, name) is not None
    assert 40 <= len(perfeds2._NAMES) <= 53
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        getattr(perfeds2, "nonsense")  # noqa: B009 (a type checker knows that it is none)


@pytest.mark.slow
def test_compare_writes_a_run_that_its_own_spec_reproduces(tmp_path, monkeypatch):
    train_in_numpy(monkeypatch.setattr, traced=True)  # test_same_bytes.py compiles
    monkeypatch.chdir(tmp_path)
    status, said, complaint = told("compare", *QUICK, "--algorithms", "PerFedS2", "--out", "one")
    assert status == 0, complaint
    assert "PerFedS2" in said
    assert "one/report.html" in said
    assert told("compare", "--spec", "one/spec.toml", "--out", "two", "--quiet") == (0, "", "")
    assert (tmp_path / "one/metrics.csv").read_bytes() == (tmp_path / "two/metrics.csv").read_bytes()
    status, said, _ = told("compare", "--spec", "one/spec.toml", "--out", "one")
    assert status == 0
    assert "already holds this finished run" in said
    page = (tmp_path / "one/report.html").read_text()
    assert "PerFedS2" in page
    status, _, complaint = told("report", "one", "--paper")
    assert status == 0, complaint
    assert list((tmp_path / "one/figures").glob("*.pdf"))


@pytest.mark.slow
def test_run_and_simulate_write_single_timelines(tmp_path, monkeypatch):
    from perfeds2.timeline.record import Timeline

    train_in_numpy(monkeypatch.setattr)
    monkeypatch.chdir(tmp_path)
    status, _, said = told("run", *QUICK[:-2], "--seed", "3", "--out", "run")
    assert status == 0, said
    status, _, said = told("simulate", *QUICK[:-2], "--seed", "3", "--algorithms", "PerFedS2", "--out", "clock")
    assert status == 0, said
    trained, simulated = (Timeline.load(tmp_path / name / "timeline.npz") for name in ("run", "clock"))
    assert (trained.time_s == simulated.time_s).all()
    assert not (tmp_path / "clock" / "metrics.csv").exists()
    assert json.loads((tmp_path / "clock" / "summary.json").read_text())["command"] == "simulate"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--quorum", "21"], "--quorum must be from 1 to the number of UEs, 20"),
        (["--labels-per-ue", "11"], "--labels-per-ue must be from 1 to the task's 10 labels, got 11"),
        (["--algorithms", "PerFed2"], "did you mean PerFedS2?"),
        (["--beta", "nan"], "--beta must be a finite number"),
        (["--nonsense"], "No such option"),
        (["cell.toml"], "give a spec with --spec"),
        (["--resume", "nowhere"], "holds no run"),
        (["--out", "/proc/nowhere"], "cannot be written"),
        (["--schedule", "deficit", "--stale", "wait", "--max-staleness", "1"], "--schedule deficit"),
        (
            ["--set", "FedBuff.beta=0.1"],
            "--set FedBuff.beta=0.1 is for FedBuff, which does not take part; leave it out, or add",
        ),
        (
            ["--algorithms", "PerFedS2", "--set", "FedAvgS2.merge=mean"],
            "--set FedAvgS2.merge=mean is for FedAvgS2, which does not",
        ),
        (["--tiers", "3"], "--tiers 3 is for methods that have tiers (TiFL, FedAT), and none takes part"),
    ],
)
def test_bad_input_is_exit_2_and_one_sentence_and_leaves_nothing_behind(tmp_path, monkeypatch, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    status, _, said = told("compare", *arguments)
    assert status == 2, said
    assert sentence in said
    assert said.strip().count("\n") == 0
    assert list(tmp_path.iterdir()) == []


def test_a_read_only_folder_is_exit_2(tmp_path):
    if os.geteuid() == 0:
        target = "/sys/perfeds2"  # root writes everywhere else
    else:
        tmp_path.chmod(0o500)
        target = str(tmp_path / "x")
    status, _, said = told("compare", "--out", target)
    assert status == 2
    assert "cannot be written" in said


def test_a_corrupt_timeline_is_exit_2_and_one_sentence(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, _, said = told("simulate", *QUICK[:-2], "--algorithms", "PerFedS2", "--out", "run")
    assert status == 0, said
    for spoiled in (b"", b"PK\x03\x04 nonsense", (tmp_path / "run/timeline.npz").read_bytes()[:-200]):
        (tmp_path / "run/timeline.npz").write_bytes(spoiled)
        status, _, said = told("report", "run")
        assert status == 2, said
        assert "timeline" in said
        assert said.strip().count("\n") == 0


def long_run(folder):
    return [
        *(sys.executable, "-m", "perfeds2", "run", "--horizon-s", "3600", "--eval-every-s", "5", "--seed", "1"),
        *("--algorithms", "PerFedS2,FedAvg-ASY", "--quiet", "--out", str(folder)),
    ]


@pytest.mark.slow
def test_a_ctrl_c_that_python_drops_is_heeded_at_the_next_step(tmp_path, monkeypatch):
    for name in ("_interrupted", "_leaving"):
        monkeypatch.setattr(console, name, threading.Event())
    monkeypatch.setattr(console, "atexit", SimpleNamespace(register=lambda _: None))  # this process goes on
    monkeypatch.chdir(tmp_path)
    with suppress(KeyboardInterrupt):
        console._interrupt(2, None)
    status, _, said = told("simulate", "--quiet", "--out", "dropped")
    assert status == 130
    assert "continue with: perfeds2 simulate --resume dropped" in said


@pytest.mark.slow
def test_ctrl_c_says_how_to_go_on(tmp_path):
    folder = tmp_path / "stopped"
    process = subprocess.Popen(long_run(folder), stderr=subprocess.PIPE, text=True)
    while not (folder / "parts").exists() and process.poll() is None:
        time.sleep(0.05)
    time.sleep(random.uniform(0, 0.5))
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert f"perfeds2 run --resume {folder}" in said
    assert "Exception ignored" not in said
    assert "Traceback" not in said


def test_the_readme_counts_the_methods():
    from perfeds2.spec.methods import listed_methods

    count = len(list(listed_methods()))
    readme = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    assert f"{count - 1} other methods run on the same cells" in readme  # than PerFedS2
