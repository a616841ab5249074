"""Does the graph that examples/to_onnx.py writes compute what our model does?"""

import runpy
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import jax
import numpy as np
import onnx
import pytest
from command_line import told
from in_numpy import train_in_numpy
from safetensors.numpy import load_file

from perfeds2.learning.models.lenet import LENET, LeNet
from perfeds2.learning.models.lstm import LSTM
from perfeds2.learning.models.mlp import MLP

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "to_onnx.py")

to_onnx = runpy.run_path(EXAMPLE)["to_onnx"]
random = np.random.default_rng(0)
SMALL = {"side": 16, "channels": (3, 4, 5), "dense": (7, 6, 9)}
MODELS = {  # with a batch of samples, as they stand in the data
    "mlp": (MLP((5, 4, 3)), random.normal(size=(6, 5)).astype(np.float32)),
    "mlp-norm": (MLP((5, 6, 4, 3), normalised=True), random.normal(size=(6, 5)).astype(np.float32)),
    "mlp of pixels": (MLP((20, 8, 7, 3), input_scale=255), random.integers(0, 256, (6, 20), np.uint8)),
    "lenet5": (LeNet(**SMALL), random.integers(0, 256, (6, 3 * 16 * 16), np.uint8)),
    "lenet5-relu": (
        LeNet(**SMALL, activation=jax.nn.relu, pooling="largest"),
        random.integers(0, 256, (6, 768), np.uint8),
    ),
    "lstm": (LSTM(letters=11, embedding=3, hidden=5), random.integers(0, 11, (6, 12), np.uint8)),
    "lstm-leaf": (LSTM(letters=11, embedding=3, hidden=5, layers=2), random.integers(0, 11, (6, 12), np.uint8)),
}


def evaluators():
    """ONNX's own slow twin of a runtime, and a runtime where there is one."""
    from onnx.reference import ReferenceEvaluator

    makers: list[Any] = [ReferenceEvaluator]
    with suppress(ImportError):
        import onnxruntime  # type: ignore[import-not-found]  # not one of our own

        makers.append(onnxruntime.InferenceSession)
    return [lambda graph, x, make=make: make(graph).run(None, {"x": x})[0] for make in makers]


def drawn(model):
    """Weights of a model's shapes and usual sizes, without compiling how it draws its own."""
    shapes = {key: leaf.shape for key, leaf in jax.eval_shape(model.init, jax.random.key(0)).items()}
    sizes = {key: 2 / np.sqrt(max(1, np.prod(shape[:-1]))) for key, shape in shapes.items()}
    return {key: random.uniform(-sizes[key], sizes[key], shape).astype(np.float32) for key, shape in shapes.items()}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "mlp" else pytest.mark.slow) for name in MODELS]
)
def test_a_graph_computes_our_logits(name):
    model, x = MODELS[name]
    params = drawn(model)
    ours = np.asarray(jax.jit(model)(params, x))
    graph = to_onnx(model, params, {"task": name})
    assert ours.std() > 0.05
    for evaluate in evaluators():
        np.testing.assert_allclose(evaluate(graph, x), ours, rtol=2e-5, atol=2e-6)
        np.testing.assert_allclose(evaluate(graph, x[:1]), ours[:1], rtol=2e-5, atol=2e-6)  # any number of samples


@pytest.mark.slow
def test_so_does_the_whole_lenet():
    model, params = LENET, drawn(LENET)
    x = random.integers(0, 256, (3, 3072), np.uint8)
    graph = to_onnx(model, params, {})
    for evaluate in evaluators():
        np.testing.assert_allclose(evaluate(graph, x), jax.jit(model)(params, x), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_model_that_is_not_ours_or_has_an_unknown_activation_is_refused():
    class Mine:
        def init(self, key):  # noqa: ARG002 (the interface)
            return {}

        def __call__(self, params, x):  # noqa: ARG002 (the interface)
            return x

    with pytest.raises(ValueError, match="this model is a Mine; use perfeds2 export"):
        to_onnx(Mine(), {}, {})
    with pytest.raises(ValueError, match="activation relu or tanh"):
        to_onnx(LeNet(**SMALL, activation=jax.nn.gelu), drawn(LeNet(**SMALL)), {})


@pytest.mark.slow
def test_the_script_writes_the_model_that_was_asked_for(tmp_path, monkeypatch):
    train_in_numpy(monkeypatch.setattr)
    settings = "--task digits --ues 4 --quorum 2 --rounds 2 --seeds 0,1 --algorithms PerFedS2,FedAvgS2 --quiet"
    assert told("compare", *settings.split(), "--out", tmp_path / "run")[0] == 0
    one = tmp_path / "one.safetensors"
    assert told("export", tmp_path / "run", "--algorithm", "FedAvgS2", "--seed", 1, "--out", one)[0] == 0
    monkeypatch.setattr(sys, "argv", [EXAMPLE, str(one), str(tmp_path / "model.onnx")])
    runpy.run_path(EXAMPLE, run_name="__main__")
    graph = onnx.load(tmp_path / "model.onnx")
    constants = {each.name: onnx.numpy_helper.to_array(each) for each in graph.graph.initializer}
    every = load_file(tmp_path / "run" / "model.safetensors")
    assert {(each.key, each.value) for each in graph.metadata_props} >= {("task", "digits"), ("algorithm", "FedAvgS2")}
    for key in ("dense1.weight", "dense1.bias", "dense2.weight", "dense2.bias"):
        np.testing.assert_array_equal(constants[key], every[f"FedAvgS2/1/{key}"])
