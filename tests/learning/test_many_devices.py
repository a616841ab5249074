"""Do several devices that share the trainings of a group get the numbers of one?"""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from perfeds2.learning.datasets import digits
from perfeds2.learning.methods import CA2FL, Ditto
from perfeds2.learning.objectives import FedAvg
from perfeds2.learning.replay import Learner
from perfeds2.learning.train import evaluation_points, train
from perfeds2.learning.train_many import Lane, train_together
from perfeds2.network.cell import Cell
from perfeds2.timeline.protocol import Protocol
from perfeds2.timeline.simulate import simulate

pytestmark = pytest.mark.slow

SCRIPT = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import numpy, test_many_devices
numpy.savez(sys.argv[1], **test_many_devices.numbers())
"""


def numbers():
    """One training, four that go together, and two of a method whose UEs and server keep something."""
    task, learner = digits(12, 3, 0), Learner(FedAvg(), batch=8)
    line = simulate(Cell.draw(12, 0), Protocol(11, 2), payload_bits=1e5, samples=24, rounds=12)
    points = evaluation_points(line, about=2)
    end = list(train(task, line, learner, points))[-1]
    arrays = {f"alone {k}": w for k, w in end.state.params.items()}
    arrays |= {f"train {k}": v for k, v in end.values[-1].items()}
    trials = [Lane(task, line, replace(learner, beta=0.1 * (n + 1)), points, 3) for n in range(4)]
    stand = list(train_together(trials))[-1]
    arrays |= {f"together {n} {k}": w for n in range(4) for k, w in stand[n].state.params.items()}
    arrays |= {f"values {n} {k}": v for n in range(4) for k, v in stand.values[n][-1].items()}
    keeping = Learner(Ditto(), batch=8, merge=CA2FL())  # every upload and every UE's row counts
    both = list(train_together([replace(trial, learner=keeping) for trial in trials[:2]]))[-1]
    arrays |= {f"rows together {k}": w for k, w in both.state.memory.items()}
    arrays |= {f"own together {k}": v for k, v in both.values[1][-1].items()}
    shared = len(end.state.params["dense1.weight"].devices()), len(stand.state.params["dense1.weight"].devices())
    return {"devices": np.array(shared)} | {k: np.asarray(v) for k, v in arrays.items()}


def numbers_with(devices, path):
    flags = {"XLA_FLAGS": f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count={devices}"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(path)], env=os.environ | flags, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return dict(np.load(path))


def test_eight_devices_compute_what_one_does(tmp_path):
    one, eight = numbers(), numbers_with(8, tmp_path / "eight.npz")
    assert one.pop("devices").tolist() == [1, 1]
    assert eight.pop("devices").tolist() == [1, 4]  # four trainings on four of the devices
    assert one.keys() == eight.keys()
    for name, expected in one.items():
        np.testing.assert_allclose(eight[name], expected, rtol=1e-5, atol=1e-5, err_msg=name)
