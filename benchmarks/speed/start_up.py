"""Measure how long a user waits for the first output."""

import subprocess  # only runs this Python
import sys
from collections.abc import Iterator
from functools import partial

import numpy as np

from benchmarks.speed.timing import Announce, Measurement, measured, take_turns


def start_up_group(repeats: int, seed: int, announce: Announce) -> Iterator[Measurement]:  # noqa: ARG001 (nothing is random here)
    """Time whole processes, including the start of the interpreter."""
    announce(f"start-up: three fresh processes, {repeats} turns …")
    seconds = take_turns(
        {
            "nothing": partial(_python, "-c", "pass"),
            "import": partial(_python, "-c", "import perfeds2"),
            "help": partial(_python, "-m", "perfeds2", "--help"),
        },
        repeats,
    )
    yield measured("start-up/python", "python -c pass, for comparison", seconds["nothing"], "s")
    yield measured("start-up/import", "python -c 'import perfeds2'", seconds["import"], "s", at_most=0.3)
    yield measured("start-up/help", "perfeds2 --help", seconds["help"], "s", at_most=0.6)
    loaded = _python("-c", "import sys, perfeds2.cli; print(sum(name == 'jax' for name in sys.modules))")
    yield measured(
        "start-up/jax", "times the command line loads JAX to print its help", np.array([float(loaded)]), "", at_most=0
    )


def _python(*arguments: str) -> str:
    done = subprocess.run([sys.executable, *arguments], check=True, capture_output=True, text=True)  # noqa: S603
    return done.stdout
