"""Does Ctrl-C stop a command, wherever it hits, without noise?"""

import random
import signal
import subprocess
import sys
import time

import pytest
import typer

from perfeds2.console import give_up, guarded

PRESSES = 4
DROPPED = """
import gc, signal, sys, time
import typer
import perfeds2.spec.fields
from perfeds2.console import guarded, install_interrupt_handler

pressed = []

def press(*_):  # as JAX has one: what is raised in it goes nowhere
    if not pressed:
        pressed.append(signal.raise_signal(signal.SIGINT))

install_interrupt_handler()
try:
    with guarded("plan", []):
        gc.callbacks.append(press)
        gc.collect()
        time.sleep(30)  # heeds nothing
except typer.Exit as stop:
    sys.exit(stop.exit_code)
"""


def test_a_ctrl_c_dropped_in_a_callback_comes_again_and_nothing_is_said_of_it():
    begun = time.monotonic()
    stopped = subprocess.run([sys.executable, "-c", DROPPED], capture_output=True, text=True, check=False)
    assert (stopped.returncode, stopped.stderr) == (130, "\nInterrupted.\n")
    assert time.monotonic() - begun < 20


def test_a_command_that_gave_up_says_why_once(capsys):
    with pytest.raises(typer.Exit) as left, guarded("replay", []):
        give_up(1, "the weights differ")
    assert (left.value.exit_code, capsys.readouterr().err) == (1, "the weights differ\n")


def test_a_ctrl_c_that_comes_again_too_early_is_not_lost():
    """On a busy machine the hook may take longer than the pause before the next signal."""
    slow = """
import _thread

start = _thread.start_new_thread

def start_and_dawdle(function, arguments):
    start(function, arguments)
    _thread.start_new_thread = start
    time.sleep(1)

_thread.start_new_thread = start_and_dawdle
"""
    script = DROPPED.replace("install_interrupt_handler()\ntry", f"{slow}\ninstall_interrupt_handler()\ntry")
    stopped = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (stopped.returncode, stopped.stderr) == (130, "\nInterrupted.\n")


@pytest.mark.slow
def test_ctrl_c_in_the_middle_of_a_plan_is_130_without_noise(tmp_path):
    """Pressed several times. ``test_cli.py`` presses once."""
    process = subprocess.Popen(
        [sys.executable, "-m", "perfeds2", "plan", "--ues", "6", "--quorum", "2", "--quiet", "--out", "planned"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not (tmp_path / "planned" / "spec.toml").exists() and process.poll() is None:
        time.sleep(0.05)
    for _ in range(PRESSES):
        time.sleep(random.uniform(0, 1 / PRESSES))
        process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "Exception ignored" not in said
    assert "Traceback" not in said
