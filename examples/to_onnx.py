"""Export the trained model of a built-in task to ONNX, to run without Python and JAX.

perfeds2 export runs/first --out one.safetensors
python examples/to_onnx.py one.safetensors model.onnx

The graph is built node by node from the parameters; nothing is traced. Input ``x`` holds samples as they are in the
data (pixels of 8 bits, indices of letters), one per row; output ``logits`` has one number per class. A constant has
the name of the parameter it comes from.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from onnx import TensorProto, checker, helper, numpy_helper
from safetensors import safe_open

from perfeds2 import spec_from

Model = Any  # an MLP, a LeNet or an LSTM of perfeds2
Arrays = Mapping[str, np.ndarray]
OPERATORS = 17  # ONNX operator set, supported by runtimes since 2022
FILE_FORMAT = 8  # the file format that belongs to it
ACTIVATIONS = {jax.nn.relu: "Relu", jnp.tanh: "Tanh"}
KERNEL = 5  # side of LeNet's kernels
EPSILON = 1e-5  # added to variances
GATES = (0, 3, 1, 2)  # ours are input, forget, candidate, output; ONNX has input, output, forget, candidate


class Graph:
    """Nodes and constants in the order they are added. Every node has one named result."""

    def __init__(self, params: Arrays) -> None:
        self.params = params
        self.nodes: list[Any] = []
        self.constants: dict[str, np.ndarray] = {}

    def constant(self, name: str, values: Any = None) -> str:
        """Add a constant: the given values, or the parameter of that name."""
        self.constants[name] = np.asarray(self.params[name] if values is None else values, order="C")
        return name

    def node(self, operator: str, *inputs: str, result: str = "", **settings: Any) -> str:
        result = result or f"{operator.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [result], **settings))
        return result

    def scaled(self, x: str, scale: float) -> str:
        """Scale pixels of 8 bits to 0…1; leave other inputs unchanged."""
        if scale == 1:
            return x
        return self.node(
            "Div", self.node("Cast", x, to=TensorProto.FLOAT), self.constant("input_scale", np.float32(scale))
        )


def to_onnx(model: Model, params: Arrays, about: Mapping[str, str]) -> bytes:
    """Return the bytes of an ONNX file; ``about`` is stored in it as metadata.

    Raises:
        ValueError: The model has no ONNX export.
    """
    graph, reads_bytes, kind = Graph(params), True, type(model).__name__
    if kind == "MLP":
        _dense_layers(graph, model, graph.scaled("x", model.input_scale))
        x_size, classes, reads_bytes = model.sizes[0], model.sizes[-1], model.input_scale != 1
    elif kind == "LeNet":
        _lenet(graph, model)
        x_size, classes, reads_bytes = model.channels[0] * model.side**2, model.dense[-1], model.input_scale != 1
    elif kind == "LSTM":
        _lstm(graph, model)
        x_size, classes = "letters_read", model.letters
    else:
        raise ValueError(f"expected an MLP, a LeNet or an LSTM, but this model is a {kind}; use perfeds2 export.")
    x_type = TensorProto.UINT8 if reads_bytes else TensorProto.FLOAT
    x = helper.make_tensor_value_info("x", x_type, ["batch", x_size])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", classes])
    constants = [numpy_helper.from_array(values, name) for name, values in graph.constants.items()]
    made = helper.make_graph(graph.nodes, "perfeds2", [x], [logits], constants)
    operators = [helper.make_opsetid("", OPERATORS)]
    file = helper.make_model(made, opset_imports=operators, ir_version=FILE_FORMAT, producer_name="perfeds2")
    helper.set_model_props(file, dict(about))
    checker.check_model(file, full_check=True)
    return file.SerializeToString()


def _dense_layers(graph: Graph, model: Model, x: str) -> None:
    last = len(model.sizes) - 1
    for number in range(1, last + 1):
        x = _dense(graph, f"dense{number}", x, result="logits" if number == last else "")
        if number < last and model.normalised:
            scale, shift = graph.constant(f"norm{number}.scale"), graph.constant(f"norm{number}.shift")
            x = graph.node("LayerNormalization", x, scale, shift, epsilon=EPSILON)
        x = x if number == last else graph.node(_activation(model), x)


def _dense(graph: Graph, layer: str, x: str, result: str) -> str:
    return graph.node("Gemm", x, graph.constant(f"{layer}.weight"), graph.constant(f"{layer}.bias"), result=result)


def _activation(model: Model) -> str:
    found = ACTIVATIONS.get(model.activation)
    if found is None:
        raise ValueError(f"expected the activation relu or tanh, but this model has {model.activation}.")
    return found


def _lenet(graph: Graph, model: Model) -> None:
    colours = model.channels[0]
    x = graph.node("Reshape", "x", graph.constant("image", np.array([-1, colours, model.side, model.side], np.int64)))
    x = graph.scaled(x, model.input_scale)
    for operator, name, values in (("Sub", "mean", model.mean), ("Div", "deviation", model.deviation)):
        x = graph.node(operator, x, graph.constant(name, np.array(values, np.float32).reshape(colours, 1, 1)))
    for number in (1, 2):
        weight, bias = f"conv{number}.weight", f"conv{number}.bias"
        # Our columns are (row, column, channel) of a patch; ONNX has (channel, row, column).
        kernel = graph.params[weight].reshape(KERNEL, KERNEL, model.channels[number - 1], -1).transpose(3, 2, 0, 1)
        x = graph.node("Conv", x, graph.constant(weight, kernel), graph.constant(bias))
        x = graph.node(_activation(model), x)  # an increasing function, so it may precede max pooling
        pool = "MaxPool" if model.pooling == "largest" else "AveragePool"
        x = graph.node(pool, x, kernel_shape=[2, 2], strides=[2, 2])
    _dense_layers(graph, model.head, graph.node("Flatten", x))


def _lstm(graph: Graph, model: Model) -> None:
    text = graph.node("Transpose", graph.node("Cast", "x", to=TensorProto.INT64), perm=[1, 0])  # letters first
    x = graph.node("Gather", graph.constant("letters"), text)
    for layer in range(model.layers):
        number = layer + 1 if layer else ""
        names = [f"input{number}.weight", f"hidden{number}.weight", f"gates{number}.bias"]
        weight, recurrent, bias = (_gates(graph.params[name]) for name in names)
        biases = np.concatenate([bias, np.zeros_like(bias)])  # ONNX adds a second bias, for the recurrence
        inputs = [graph.constant(name, a[None]) for name, a in zip(names, (weight, recurrent, biases), strict=True)]
        x = graph.node("LSTM", x, *inputs, hidden_size=model.hidden)  # [letter, direction, batch, hidden]
        x = graph.node("Squeeze", x, graph.constant("direction", np.array([1], np.int64)))
    x = graph.node("Gather", x, graph.constant("last", np.array(-1, np.int64)))
    _dense(graph, "dense", x, result="logits")


def _gates(values: np.ndarray) -> np.ndarray:
    """Reorder our columns (…, 4·hidden) to ONNX's rows, in its order of gates."""
    rows = values.T.reshape(4, -1, *values.shape[:-1])
    return rows[list(GATES)].reshape(-1, *values.shape[:-1])


def main(source: Path, out: Path) -> None:
    with safe_open(source, framework="numpy") as file:
        about = file.metadata()
        params = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    model = spec_from(task=about["task"]).task.name.value.model
    out.write_bytes(to_onnx(model, params, about))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
