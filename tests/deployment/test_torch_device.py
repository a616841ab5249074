"""Can a device be written in plain PyTorch, from the wire format alone?"""

import ast
import importlib.util
import json
import queue
import subprocess
import sys
import threading
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from needs import needs

from perfeds2.deployment.credentials import make_credentials
from perfeds2.deployment.mqtt.broker import running_broker
from perfeds2.deployment.mqtt.runs import serve_run
from perfeds2.deployment.setup import Setup
from perfeds2.deployment.site import Site
from perfeds2.learning.gradients import MeanLoss
from perfeds2.learning.models.mlp import MLP
from perfeds2.learning.objectives import Context, FedAvg, PerFed
from perfeds2.runs.folder import open_folder

EXAMPLE = Path(__file__).parents[2] / "examples" / "torch_device.py"


def test_the_example_imports_neither_jax_nor_perfeds2_and_fits_on_three_screens():
    text = EXAMPLE.read_text(encoding="utf-8")
    imported = {
        name.split(".")[0]
        for node in ast.walk(ast.parse(text))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert imported - set(sys.stdlib_module_names) == {"cryptography", "numpy", "paho", "safetensors", "torch"}
    assert len(text.splitlines()) <= 153


def load_example() -> Any:
    spec = importlib.util.spec_from_file_location("torch_device", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def as_tensors(params):
    import torch  # type: ignore[import-not-found]  # not a dependency

    return {key: torch.tensor(np.array(values)) for key, values in params.items()}


def same(theirs, ours):
    for key, values in ours.items():
        np.testing.assert_allclose(theirs[key].numpy(), np.asarray(values), rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@needs("torch")
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # which torch's own jvp uses
def test_its_meta_gradient_is_ours():
    example, model = load_example(), MLP((5, 4, 3))
    params, random = model.init(jax.random.key(1)), np.random.default_rng(2)
    x, y = random.normal(size=(3, 8, 5)).astype(np.float32), random.integers(0, 3, (3, 8))
    batches = iter([tuple(as_tensors({"x": x[k], "y": y[k]}).values()) for k in range(3)])
    theirs = example.perfed(as_tensors(params), lambda: next(batches), 0.4)
    context = Context(MeanLoss(model), jnp.float32(0.2), jnp.int32(0), jnp.int32(0), jax.random.key(0))
    ours = jax.jit(lambda w, batches: PerFed(alpha=0.4).gradient(w, w, batches, context))
    same(theirs, ours(params, (jnp.asarray(x), jnp.asarray(y))))


@pytest.mark.slow
@needs("torch")
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
@pytest.mark.parametrize("algorithm", ["FedAvgS2", "PerFedS2"])
def test_its_local_steps_are_ours(algorithm):
    """On a single sample, so that all batches are the same."""
    settings = {"algorithm": algorithm, "batch": 4, "local-steps": 2, "alpha": 0.3, "beta": 0.2}
    example, model = load_example(), MLP((5, 4, 3))
    params, x, y = model.init(jax.random.key(1)), np.ones((1, 5), np.float32), np.array([2])
    data = {"train": tuple(as_tensors({"x": x, "y": y}).values())}
    objective = PerFed(alpha=0.3) if algorithm == "PerFedS2" else FedAvg()
    context = Context(MeanLoss(model), jnp.float32(0.2), jnp.int32(0), jnp.int32(0), jax.random.key(0))
    sample = (jnp.asarray(x)[None].repeat(3, 0), jnp.asarray(y)[None].repeat(3, 0))

    first = objective.gradient(params, params, sample, context)
    moved = {name: values - 0.2 * first[name] for name, values in params.items()}
    second = objective.gradient(moved, moved, sample, context)
    theirs = example.train(as_tensors(params), data, settings)
    same(theirs, {name: first[name] + second[name] for name in first})


training = threading.Lock()


class Inbox(queue.SimpleQueue):
    """Of a device in a thread, which ends when it is given None."""

    def get(self, *_):
        found = super().get()
        if found is None:
            raise SystemExit
        return found


@contextmanager
def device(number, where, *, is_command):
    """A device as users start it, or in a thread of this process, which has loaded PyTorch."""
    server, credentials, data = where
    if is_command:
        flags = ("--number", str(number), "--server", server, "--credentials", credentials, "--data", data)
        process = subprocess.Popen([sys.executable, EXAMPLE, *flags])
        try:
            yield
        finally:
            process.kill()
            process.wait()
        return
    example, me, inbox = load_example(), f"device-{number}", Inbox()
    train = example.train

    def one_at_a_time(*given):
        with training:  # threads would share PyTorch's levels of forward differentiation
            return train(*given)

    example.train = one_at_a_time
    client = example.connect(me, server, credentials, inbox)

    def work():
        with suppress(SystemExit):
            example.work(client, me, inbox, example.read_data(data))

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        inbox.put(None)
        thread.join(60)
        client.loop_stop()
        client.disconnect()


@needs("torch")
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
def test_a_federation_of_such_devices_learns(tmp_path):
    """Over TLS, with certificates, against our own server; device 0 is a command, as users start it.

    Its meta-gradient is tested above: PyTorch takes two seconds to import what it needs for it.
    """
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    texts = {"devices": 3, "quorum": 2, "rounds": 40, "beta": 0.5, "algorithm": "FedAvgS2", "norm-factor": "off"}
    setup, run = Setup.from_texts(texts), tmp_path / "run"
    open_folder(run, setup.spec)
    setup.write(run)
    credentials = make_credentials(tmp_path / "credentials", 3, ["127.0.0.1"])
    with running_broker(credentials, ("127.0.0.1", 0), tmp_path / "broker") as broker, ExitStack() as devices:
        for number in range(3):
            mine = np.arange(len(labels)) % 3 == number
            data = tmp_path / f"{number}.npz"
            np.savez(data, x=pixels[mine].astype(np.float32) / 16, y=labels[mine])
            where = (f"127.0.0.1:{broker.port}", credentials.folder, data)
            devices.enter_context(device(number, where, is_command=number == 0))
        serve_run(run, Site("127.0.0.1", broker.port, credentials))
    summary = json.loads((run / "summary.json").read_text())
    assert [device["refused"] for device in summary["devices"]] == [0, 0, 0]
    assert summary["algorithms"][0]["rounds"]["mean"] == 40
    assert summary["algorithms"][0]["test_accuracy_personal"]["mean"] > 0.7  # chance is 0.1
