"""Do several devices that share the trainings of a group get the numbers of one?"""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from perfeds2.learning.datasets import digits
from perfeds2.learning.lanes import Lane
from perfeds2.learning.learner import Learner
from perfeds2.learning.methods import CA2FL, Ditto
from perfeds2.learning.models.mlp import MLP
from perfeds2.learning.points import evaluation_points
from perfeds2.learning.train import train_together
from perfeds2.network.cell import Cell
from perfeds2.timeline.protocol import Protocol
from perfeds2.timeline.simulate import simulate

pytestmark = pytest.mark.slow

SCRIPT = f"""
import gc, sys
gc.disable()
sys.path.insert(0, {str(Path(__file__).parent)!r})
import numpy, test_many_devices
numpy.savez(sys.argv[1], **test_many_devices.numbers())
"""


def numbers():
    """Four trainings that go together, of a method whose UEs and server keep something: every upload and every row counts."""
    task, learner = replace(digits(4, 3, 0), model=MLP((64, 10))), Learner(Ditto(), batch=4, merge=CA2FL())
    line = simulate(Cell.draw(4, 0), Protocol(3, 2), payload_bits=1e5, samples=12, rounds=4)
    points = evaluation_points(line, about=2)
    trials = [Lane(task, line, replace(learner, beta=0.1 * (n + 1)), points, 3) for n in range(4)]
    *_, end = train_together(trials)
    arrays = dict(end.state.params)
    arrays |= {f"values {n} {k}": v for n in range(4) for k, v in end.values[n][-1].items()}
    arrays |= {f"rows {k}": w for k, w in end.state.client_state.items()}
    arrays["devices"] = len(end.state.params["dense1.weight"].devices())
    return {k: np.asarray(v) for k, v in arrays.items()}


def numbers_with(devices, path):
    flags = {"XLA_FLAGS": f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count={devices}"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(path)], env=os.environ | flags, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return dict(np.load(path))


def test_eight_devices_compute_what_one_does(tmp_path):
    one, eight = numbers(), numbers_with(8, tmp_path / "eight.npz")
    assert one.pop("devices") == 1
    assert eight.pop("devices") == 4  # four trainings on four of the devices
    assert one.keys() == eight.keys()
    for name, expected in one.items():
        np.testing.assert_allclose(eight[name], expected, rtol=1e-5, atol=1e-5, err_msg=name)
