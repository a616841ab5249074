"""What is a trained model in ONNX, which runs where neither Python nor JAX is?

The graph is built node by node from our parameters; nothing is traced. Input ``x`` holds samples as they stand in the data
(pixels of 8 bit, numbers of letters), a row each; output ``logits`` has one number per class. A constant is called as the
parameter it comes from, so weights are found again by their names.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from onnx import TensorProto, checker, helper, numpy_helper

from perfeds2.errors import InputError
from perfeds2.learning.models.lenet import KERNEL, LeNet
from perfeds2.learning.models.lstm import LSTM, named
from perfeds2.learning.models.mlp import MLP
from perfeds2.learning.models.model import Model, bare

Arrays = Mapping[str, np.ndarray]
OPERATORS = 17  # the version of ONNX's operators: what runtimes since 2022 know
FILE_FORMAT = 8  # which belongs to it
ACTIVATIONS = {jax.nn.relu: "Relu", jnp.tanh: "Tanh"}
GATES = (0, 3, 1, 2)  # ours are input, forget, candidate, output; ONNX has input, output, forget, candidate


class Graph:
    """Nodes and constants, in the order they are added; every node has one result, known by its name."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: dict[str, np.ndarray] = {}

    def constant(self, name: str, values: Any) -> str:
        self.constants[name] = np.asarray(values, order="C")
        return name

    def node(self, operator: str, *inputs: str, result: str = "", **settings: Any) -> str:
        result = result or f"{operator.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [result], **settings))
        return result

    def bytes(self, x_type: int, x_size: int | str, classes: int, about: Mapping[str, str]) -> bytes:
        x = helper.make_tensor_value_info("x", x_type, ["batch", x_size])
        logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", classes])
        constants = [numpy_helper.from_array(values, name) for name, values in self.constants.items()]
        graph = helper.make_graph(self.nodes, "perfeds2", [x], [logits], constants)
        operators = [helper.make_opsetid("", OPERATORS)]
        model = helper.make_model(graph, opset_imports=operators, ir_version=FILE_FORMAT, producer_name="perfeds2")
        helper.set_model_props(model, dict(about))
        checker.check_model(model, full_check=True)
        return model.SerializeToString()


def to_onnx(model: Model, params: Arrays, about: Mapping[str, str]) -> bytes:
    """An ONNX file's bytes. ``about`` goes into it as texts."""
    model = bare(model)
    if isinstance(model, MLP):
        return _mlp(model, params, about)
    if isinstance(model, LeNet):
        return _lenet(model, params, about)
    if isinstance(model, LSTM):
        return _lstm(model, params, about)
    raise InputError(
        f"--format onnx is for mlp, lenet5, lenet5-relu, cnn, lstm and lstm-leaf, and this model is a {type(model).__name__}; "
        f"--format safetensors takes any."
    )


def _mlp(model: MLP, params: Arrays, about: Mapping[str, str]) -> bytes:
    graph, x, x_type = Graph(), "x", TensorProto.FLOAT
    if model.input_scale != 1:
        x_type = TensorProto.UINT8
        x = graph.node("Cast", x, to=TensorProto.FLOAT)
        x = graph.node("Div", x, graph.constant("input_scale", np.float32(model.input_scale)))
    _dense_layers(graph, model, params, x)
    return graph.bytes(x_type, model.sizes[0], model.sizes[-1], about)


def _dense_layers(graph: Graph, model: MLP, params: Arrays, x: str) -> None:
    last = len(model.sizes) - 1
    for number in range(1, last + 1):
        weight, bias = (f"dense{number}.{kind}" for kind in ("weight", "bias"))
        inputs = (graph.constant(name, params[name]) for name in (weight, bias))
        x = graph.node("Gemm", x, *inputs, result="logits" if number == last else "")
        x = x if number == last else graph.node(_activation(model), x)


def _activation(model: MLP | LeNet) -> str:
    found = ACTIVATIONS.get(model.activation)
    if found is None:
        raise InputError(
            f"--format onnx knows the activations relu and tanh, and this model has {model.activation}; --format "
            f"safetensors takes any."
        )
    return found


def _lenet(model: LeNet, params: Arrays, about: Mapping[str, str]) -> bytes:
    graph, colours = Graph(), model.channels[0]
    x = graph.node("Reshape", "x", graph.constant("image", np.array([-1, colours, model.side, model.side], np.int64)))
    if model.input_scale != 1:
        x = graph.node("Cast", x, to=TensorProto.FLOAT)
        x = graph.node("Div", x, graph.constant("largest_pixel", np.float32(model.input_scale)))
    for operator, name, values in (("Sub", "mean", model.mean), ("Div", "deviation", model.deviation)):
        x = graph.node(operator, x, graph.constant(name, np.array(values, np.float32).reshape(colours, 1, 1)))
    for number in (1, 2):
        weight, bias = f"conv{number}.weight", f"conv{number}.bias"
        # A column of ours is (row, column, channel) of a patch; ONNX has (channel, row, column).
        kernel = params[weight].reshape(KERNEL, KERNEL, model.channels[number - 1], -1).transpose(3, 2, 0, 1)
        x = graph.node("Conv", x, graph.constant(weight, kernel), graph.constant(bias, params[bias]))
        x = graph.node(_activation(model), x)  # what it does to the largest is the largest of what it does
        pool = "MaxPool" if model.pooling == "largest" else "AveragePool"
        x = graph.node(pool, x, kernel_shape=[2, 2], strides=[2, 2])
    _dense_layers(graph, model.head, params, graph.node("Flatten", x))
    x_type = TensorProto.FLOAT if model.input_scale == 1 else TensorProto.UINT8
    return graph.bytes(x_type, colours * model.side**2, model.dense[-1], about)


def _lstm(model: LSTM, params: Arrays, about: Mapping[str, str]) -> bytes:
    graph = Graph()
    text = graph.node("Transpose", graph.node("Cast", "x", to=TensorProto.INT64), perm=[1, 0])  # letter by letter
    x, direction = graph.node("Gather", graph.constant("letters", params["letters"]), text), np.array([1], np.int64)
    for layer in range(model.layers):
        names = [named(what, layer) for what in ("input.weight", "hidden.weight", "gates.bias")]
        weight, recurrent, bias = (_gates(params[name]) for name in names)
        biases = np.concatenate([bias, np.zeros_like(bias)])  # ONNX adds a second one, of the recurrence
        inputs = [graph.constant(name, a[None]) for name, a in zip(names, (weight, recurrent, biases), strict=True)]
        x = graph.node("LSTM", x, *inputs, hidden_size=model.hidden)  # [letter, direction, batch, hidden]
        x = graph.node("Squeeze", x, graph.constant("direction", direction))
    x = graph.node("Gather", x, graph.constant("last", np.array(-1, np.int64)))
    graph.node(
        "Gemm", x, *(graph.constant(name, params[name]) for name in ("dense.weight", "dense.bias")), result="logits"
    )
    return graph.bytes(TensorProto.UINT8, "letters_read", model.letters, about)


def _gates(values: np.ndarray) -> np.ndarray:
    """Our columns (…, 4·hidden) as ONNX's rows, its order of gates."""
    rows = values.T.reshape(4, -1, *values.shape[:-1])
    return rows[list(GATES)].reshape(-1, *values.shape[:-1])
