"""Does the example Flower app train in Flower's own simulation, and does its timeline replay to the same weights?"""

import os
import subprocess

import numpy as np
import pytest
from needs import FLOWER, ROOT, needs

from perfeds2.deployment.setup import Setup
from perfeds2.learning.replay import replay
from perfeds2.runs.store import load_arrays
from perfeds2.timeline.record import Timeline

EXAMPLE = ROOT / "examples" / "flower"
SETTINGS = "devices = 4\nquorum = 2\nmax-staleness = 3\nrounds = 5\n"
SIMULATE = """
import sys
from pathlib import Path

from flwr.serverapp import ServerApp
from flwr.simulation import run_simulation

from perfeds2_flower.client_app import app as client
from perfeds2_flower.server_app import run

server = ServerApp()


@server.main()
def main(grid, context):
    run(grid, sys.argv[1], Path(sys.argv[2]))


one = {"num_cpus": 1}  # and so one process for all clients, which imports and compiles once
run_simulation(server, client, num_supernodes=4, backend_config={"init_args": one, "client_resources": one})
"""


@pytest.mark.slow
@needs("flower")
def test_it_trains_in_flowers_simulation_and_replays_to_the_same_weights(tmp_path):
    paths = f"{EXAMPLE}{os.pathsep}{ROOT}"
    environment = os.environ | {"PYTHONPATH": paths, "FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    environment |= {"FLWR_HOME": str(tmp_path / "home"), "JAX_PLATFORMS": "cpu"}
    environment["RAY_prestart_worker_first_driver"] = "0"  # no client would use that worker
    command = [str(FLOWER), "-c", SIMULATE, SETTINGS, str(tmp_path / "out")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "test_accuracy_personal: " in done.stdout
    setup, timeline = Setup.from_toml(SETTINGS), Timeline.load(tmp_path / "out" / "timeline.npz")
    assert timeline.ues.shape == (5, 2)
    assert timeline.staleness.max() <= 3
    again = replay(setup.task(0), timeline, setup.algorithm.learner, setup.seed)
    weights, _ = load_arrays(tmp_path / "out" / "model.safetensors")
    for name, values in weights.items():
        np.testing.assert_allclose(values, again[name], rtol=0, atol=1e-6 * np.abs(values).max())


def test_it_uses_flowers_public_modules_only():
    public = {"flwr.app", "flwr.clientapp", "flwr.serverapp"}
    files = sorted((EXAMPLE / "perfeds2_flower").glob("*.py"))
    lines = [line for file in files for line in file.read_text().splitlines()]
    imported = {line.split()[1] for line in lines if line.startswith(("from flwr", "import flwr"))}
    assert imported == public
    assert len(lines) + len((EXAMPLE / "pyproject.toml").read_text().splitlines()) <= 300
