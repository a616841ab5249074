"""Do exported weights compute what ours do, in a program that knows nothing of us?"""

from contextlib import suppress
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from command_line import told
from safetensors.numpy import load_file

from perfeds2.errors import InputError
from perfeds2.learning.models.lenet import LENET, LENET_RELU, LeNet
from perfeds2.learning.models.lstm import LSTM
from perfeds2.learning.models.mlp import MLP
from perfeds2.runs.export import choose

onnx = pytest.importorskip("onnx", reason="pip install 'perfeds2[onnx]'")
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


def as_numpy(params):
    return {key: np.asarray(values) for key, values in params.items()}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "mlp" else pytest.mark.slow) for name in MODELS]
)
def test_a_graph_computes_our_logits(name):
    from perfeds2.learning.models.onnx_graph import to_onnx

    model, x = MODELS[name]
    params = {key: 2 * values for key, values in model.init(jax.random.key(3)).items()}
    ours = np.asarray(model(params, jnp.asarray(x)))
    graph = to_onnx(model, as_numpy(params), {"task": name})
    assert ours.std() > 0.05
    for evaluate in evaluators():
        np.testing.assert_allclose(evaluate(graph, x), ours, rtol=2e-5, atol=2e-6)
        np.testing.assert_allclose(evaluate(graph, x[:1]), ours[:1], rtol=2e-5, atol=2e-6)  # any number of samples


@pytest.mark.slow
@pytest.mark.parametrize("model", [LENET, LENET_RELU], ids=["1998", "relu"])
def test_so_does_the_whole_lenet(model):
    from perfeds2.learning.models.onnx_graph import to_onnx

    params = model.init(jax.random.key(3))
    x = random.integers(0, 256, (3, 3072), np.uint8)
    graph = to_onnx(model, as_numpy(params), {})
    for evaluate in evaluators():
        np.testing.assert_allclose(evaluate(graph, x), np.asarray(model(params, jnp.asarray(x))), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_model_that_is_not_ours_or_has_an_unknown_activation_is_refused():
    from perfeds2.learning.models.onnx_graph import to_onnx

    class Mine:
        def init(self, key):  # noqa: ARG002 (the interface)
            return {}

        def __call__(self, params, x):  # noqa: ARG002 (the interface)
            return x

    with pytest.raises(InputError, match="this model is a Mine; use --format safetensors"):
        to_onnx(Mine(), {}, {})
    with pytest.raises(InputError, match="activations relu and tanh"):
        to_onnx(LeNet(**SMALL, activation=jax.nn.gelu), as_numpy(LeNet(**SMALL).init(jax.random.key(0))), {})


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("export") / "run"
    settings = "--task digits --ues 4 --quorum 2 --rounds 2 --seeds 0,1 --algorithms PerFedS2,FedAvgS2 --quiet"
    assert told("compare", *settings.split(), "--out", folder)[0] == 0
    return folder


@pytest.mark.slow
def test_the_command_writes_the_model_that_was_asked_for(trained, tmp_path):
    every = load_file(trained / "model.safetensors")
    for name in ("FedAvgS2", "PerFedS2"):
        for kind in ("safetensors", "onnx"):
            ask = ("--format", kind, "--algorithm", name, "--seed", 1, "--out", tmp_path / f"{name}.{kind}")
            status, said, _ = told("export", trained, *ask)
            assert status == 0
            assert f"{name}, seed 1: 2,410 numbers" in said
        arrays = load_file(tmp_path / f"{name}.safetensors")
        graph = onnx.load(tmp_path / f"{name}.onnx")
        constants = {each.name: onnx.numpy_helper.to_array(each) for each in graph.graph.initializer}
        assert {(each.key, each.value) for each in graph.metadata_props} > {("task", "digits"), ("algorithm", name)}
        for key in ("dense1.weight", "dense1.bias", "dense2.weight", "dense2.bias"):
            np.testing.assert_array_equal(arrays[key], every[f"{name}/1/{key}"])
            np.testing.assert_array_equal(constants[key], every[f"{name}/1/{key}"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ask", "sentence"),
    [
        ("--seed 0", "the run has 4 models; choose one by --algorithm, of PerFedS2, FedAvgS2."),
        ("--algorithm PerFedS2", "choose one by --seed, of 0, 1."),
        ("--algorithm PerFed", "--algorithm PerFed is not in this run; did you mean PerFedS2?"),
        ("--seed 7", "--seed 7 is not in this run; expected one of 0, 1."),
        ("--format pickle", "--format takes safetensors or onnx, got 'pickle'."),
    ],
)
def test_what_cannot_be_exported_is_said_in_one_sentence(trained, tmp_path, ask, sentence):
    status, _, said = told("export", trained, *ask.split(), "--out", tmp_path / "model")
    assert status == 2
    assert sentence in said
    assert not (tmp_path / "model").exists()


def test_a_folder_without_a_model_is_refused(tmp_path):
    status, _, said = told("export", tmp_path, "--out", tmp_path / "model")
    assert status == 2
    assert "holds no finished run with a model" in said


def test_a_run_with_one_model_needs_no_choice():
    assert choose([("PerFedS2", 3)], None, None) == ("PerFedS2", 3)
    assert choose([("A", 0), ("A", 1), ("B", 0), ("B", 1)], "B", 1) == ("B", 1)
