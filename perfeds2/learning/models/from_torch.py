"""Convert a PyTorch module to named arrays and a function of them.

``torch.export`` turns the module into a list of operations once, and ``aten`` has each of them in JAX. From then on
the model is compiled, differentiated twice and vmapped like any other, without PyTorch. Its outputs are compared with
the module's.
"""

import copy
import hashlib
import inspect
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree, Shaped

from perfeds2.errors import InputError, need_extra
from perfeds2.learning.models.aten import ATEN, CHECKS, PLACES
from perfeds2.learning.models.model import Params, RandomKey

Arrays = Mapping[str, np.ndarray]
# PyTorch is an extra, so a type checker may not know it: the package, and a module, tensor, operation, step and program of it.
Torch: TypeAlias = Any
Module: TypeAlias = Any
Tensor: TypeAlias = Any
Operation: TypeAlias = Any
Node: TypeAlias = Any
Program: TypeAlias = Any
Argument: TypeAlias = Any  # of an operation: a number, a name, an array, or several
SAMPLES = 7  # batch size of the export; others may follow, and no layer has this size
BATCH = ""  # name of the samples among a module's arrays, whose names are never empty
NEAR = 1e-3  # allowed difference from PyTorch's outputs, relative to the largest
_drawing = threading.Lock()  # PyTorch has one generator for all threads


def is_torch(thing: object) -> bool:
    """Return whether something is a PyTorch module or module class. Does not import PyTorch."""
    torch: Torch = sys.modules.get("torch")
    module = None if torch is None else torch.nn.Module
    return module is not None and (issubclass(thing, module) if inspect.isclass(thing) else isinstance(thing, module))


def weights_of(thing: Module) -> str:
    """Return the sha256 of a module's tensors and modes; an empty text for anything else, such as a class."""
    if inspect.isclass(thing) or not is_torch(thing):
        return ""
    digest = hashlib.sha256(repr([each.training for each in thing.modules()]).encode())
    for name, tensor in [*thing.named_parameters(), *thing.named_buffers()]:
        digest.update(f"{name} {tensor.requires_grad}".encode() + _array(tensor).tobytes())
    return digest.hexdigest()


# ---- the model


@dataclass(frozen=True)
class Ref:
    """The name of an input or of an earlier step's result."""

    name: str


@dataclass(frozen=True)
class Step:
    """One operation of a module."""

    result: str
    operation: str  # "conv2d"
    args: tuple[Argument, ...]
    named: Mapping[str, Argument]
    layer: str  # position in the module: "features.0 (Conv2d)"

    def __call__(self, known: Mapping[str, PyTree]) -> PyTree:
        """Apply the operation to earlier results. Errors name it and its layer."""
        try:
            named = {name: _looked_up(known, value) for name, value in self.named.items()}
            return ATEN[self.operation](*_looked_up(known, self.args), **named)
        except Exception as error:
            refused = isinstance(error, NotImplementedError)
            why = f": {error}" if refused else f" is not supported with these settings ({_told(error)})"
            raise InputError(f"PyTorch's {self.operation} in {self.layer}{why}.") from error


def _looked_up(known: Mapping[str, PyTree], value: Argument) -> Argument:
    if isinstance(value, tuple):
        return tuple(_looked_up(known, each) for each in value)
    return known[value.name] if isinstance(value, Ref) else value


@dataclass(frozen=True)
class Exported:
    """A module as PyTorch exports it."""

    steps: tuple[Step, ...]
    inputs: tuple[tuple[str, str], ...]  # names in the steps and in the module
    output: str
    weights: Arrays  # the module's own, or drawn ones
    constants: Arrays  # buffers, and parameters that require no gradient
    statistics: Mapping[str, str]  # of BatchNorm in training: the buffer of each step


@dataclass(frozen=True)
class TorchModel:
    """A PyTorch module computed by JAX. Two are equal if they come from one module, function or class."""

    identity: str  # sha256 of the steps, of constants, and of weights that are not drawn
    make: Callable[[], Module] | None  # draws weights; None: every seed starts from the module's own
    sample: tuple[int, ...]  # shape of one sample, which comes as a row
    module: Exported = field(compare=False, repr=False)

    def init(self, key: RandomKey) -> Params:
        """Return the module's weights, or new ones drawn by its class with a seed from the key."""
        weights = {name: jnp.asarray(values) for name, values in self.module.weights.items()}
        if self.make is None:
            return weights
        draw = partial(_weights_drawn, self.make)
        return jax.pure_callback(draw, weights, jax.random.bits(key, (), jnp.uint32), vmap_method="sequential")

    def __call__(self, params: Params, x: Shaped[Array, "*s x"]) -> Float[Array, "..."]:
        logits = self._results(params, x)[self.module.output]
        rank = len(self.sample) if x.shape[-len(self.sample) :] == self.sample else 1  # a sample may also be a row
        return logits.reshape(*x.shape[: x.ndim - rank], *logits.shape[1:])

    def with_statistics(self, params: Params, x: Shaped[Array, "*s x"]) -> Params:
        """Return the weights with BatchNorm's statistics of these samples, which the model then uses."""
        known = self._results({name: params[name] for name in self.module.weights}, x)
        return params | {name: known[step] for step, name in self.module.statistics.items()}

    def _results(self, params: Params, x: Array) -> dict[str, PyTree]:
        arrays = {**self.module.constants, **params, BATCH: x.reshape(-1, *self.sample)}
        known: dict[str, PyTree] = {
            name: jax.tree.map(jnp.asarray, arrays.get(theirs)) for name, theirs in self.module.inputs
        }
        for step in self.module.steps:
            known[step.result] = step(known)
        return known


# ---- conversion


def from_torch(given: Module | Callable[[], Module], sample: jax.ShapeDtypeStruct) -> TorchModel:
    """Return the model of a module, or of a class or function that makes one.

    Every seed starts from a module's own weights. A class or function is called again for each seed, after
    ``torch.manual_seed``, so seeds start from different weights, as with our own models. The module keeps its mode:
    call ``.eval()`` to turn dropout off and to fix the statistics of BatchNorm. In training mode BatchNorm normalises a
    batch by its own statistics, and an evaluation takes those of the UE's training samples.

    Raises:
        InputError: PyTorch is missing, or the module cannot be converted.
    """
    torch = import_torch()
    is_module = isinstance(given, torch.nn.Module)
    module = copy.deepcopy(given).to("cpu") if is_module else _drawn(torch, given, 0)
    _check_forward(torch, module, sample)
    found = _exported(torch, module, sample)
    if not found.weights:
        raise InputError(f"{_name(module)} has nothing to train: no parameter requires a gradient.")
    if not is_module:
        _check_draws(torch, given, _name(module), found)
    identity = hashlib.sha256(repr((found.steps, found.inputs, found.output)).encode())
    for name, values in {**found.constants, **(found.weights if is_module else {})}.items():
        identity.update(name.encode() + values.tobytes())
    model = TorchModel(identity.hexdigest(), None if is_module else given, sample.shape, found)
    _check_same(torch, module, model, sample)
    return model


def import_torch() -> Torch:
    """Import PyTorch, or say how to install it."""
    need_extra("a PyTorch model", "torch", "torch")
    import torch  # type: ignore[import-not-found]  # an extra
    import torch.export  # type: ignore[import-not-found]

    return torch


def _drawn(torch: Torch, make: Callable[[], Module], seed: int) -> Module:
    """Make a module with the given seed. PyTorch's generator is left unchanged."""
    with _drawing, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = make() if callable(make) else make
    if not isinstance(module, torch.nn.Module):
        raise InputError(f"expected a PyTorch module, or a callable that returns one; got a {type(module).__name__}.")
    return module.to("cpu")


def _weights_drawn(make: Callable[[], Module], seed: Array | np.ndarray) -> Arrays:
    return _arrays(_drawn(import_torch(), make, int(seed)).named_parameters(), trained=True)


def _arrays(named: Iterable[tuple[str, Tensor]], *, trained: bool = False) -> dict[str, np.ndarray]:
    """Return as NumPy arrays the tensors that are trained, or those that are not."""
    return {name: _array(tensor) for name, tensor in named if tensor.requires_grad == trained}


def _array(tensor: Tensor) -> np.ndarray:
    kind = _numpy_type(tensor.dtype)
    tensor = tensor.detach().cpu()
    return np.array((tensor.float() if kind == jnp.bfloat16 else tensor).numpy(), kind)


def _numpy_type(dtype: object) -> np.dtype:
    """Return JAX's type for a PyTorch type: 64 bits become 32 unless JAX is set otherwise."""
    return jax.dtypes.canonicalize_dtype(jnp.dtype(str(dtype).removeprefix("torch.")))


def _name(module: Module) -> str:
    return f"the PyTorch model {type(module).__name__}"


# ---- export


def _exported(torch: Torch, module: Module, sample: jax.ShapeDtypeStruct) -> Exported:
    batch, x = torch.export.Dim.AUTO, _zeros(torch, sample)
    try:
        with _quietly():
            program = torch.export.export(module, (x,), dynamic_shapes=({0: batch},), strict=False)
            if program.graph_signature.buffers_to_mutate or not all(map(_is_known, _operations(program))):
                decompositions = torch.export.default_decompositions()
                for operation in [each for each in decompositions if _key(each)]:
                    decompositions.pop(operation)
                program = program.run_decompositions(decompositions)  # express operations we lack by those we have
    except Exception as error:  # a module may raise anything
        hint = "; forward may look at shapes, not at values" if "data-dependent" in str(error) else ""
        raise InputError(f"{_name(module)} cannot be exported by PyTorch ({_told(error)}){hint}.") from error
    signature = program.graph_signature
    changed = signature.buffers_to_mutate
    for name in changed.values():
        if not isinstance(module.get_submodule(name.rpartition(".")[0]), torch.nn.modules.batchnorm._BatchNorm):
            raise InputError(
                f"{_name(module)} changes its buffer {name} while it computes, which no UE uploads; call .eval() on it."
            )
    statistics = {step: name for step, name in changed.items() if not name.endswith("num_batches_tracked")}
    nodes = {node.name: node for node in program.graph.nodes}
    (x_name,), (output,) = signature.user_inputs, signature.user_outputs
    if any(isinstance(nodes[name].meta["val"].shape[0], int) for name in (x_name, output)):
        raise InputError(f"{_name(module)} accepts only a fixed number of samples; use x.shape[0] or -1 in forward.")
    first = {id(tensor): name for name, tensor in module.named_parameters()}  # tied weights go by their first name
    inputs = [(x_name, BATCH)]
    for spec in signature.input_specs:
        if spec.kind.name == "PARAMETER":
            inputs.append((spec.arg.name, first[id(module.get_parameter(spec.target))]))
        elif spec.kind.name in ("BUFFER", "CONSTANT_TENSOR"):
            inputs.append((spec.arg.name, str(spec.target)))
    weights = _arrays(module.named_parameters(), trained=True)
    constants = _arrays([*module.named_buffers(), *module.named_parameters()])
    constants = {name: values for name, values in constants.items() if name not in statistics.values()}
    for name, tensor in program.constants.items():  # tensors that are written in the code
        if isinstance(tensor, torch.Tensor):
            constants[name] = _array(tensor)
    steps = tuple(_step(torch, module, node) for node in _operations(program))
    return Exported(steps, tuple(inputs), output, weights, constants, statistics)


def _operations(program: Program) -> list[Node]:
    """Return the steps of a program that compute something."""
    return [
        node
        for node in program.graph.nodes
        if node.op == "call_function" and not str(node.target).removeprefix("aten.").startswith(CHECKS)
    ]


def _is_known(node: Node) -> bool:
    """Return whether a step is an operation of ours that writes into none of its inputs."""
    schema = getattr(node.target, "_schema", None)
    return bool(_key(node.target)) and not (schema and schema.is_mutable)


@contextmanager
def _quietly() -> Iterator[None]:
    """Silence PyTorch's warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300].removesuffix('.')}"


def _key(target: Operation) -> str | None:
    """Return the key of an operation in ``ATEN``, or None."""
    text = str(target)
    if not text.startswith("aten."):  # a Python operator on numbers, such as operator.mul
        return target.__name__ if getattr(target, "__module__", "") == "_operator" and target.__name__ in ATEN else None
    overload = text.removeprefix("aten.")
    return next((name for name in (overload, overload.partition(".")[0]) if name in ATEN), None)


def _step(torch: Torch, module: Module, node: Node) -> Step:
    def converted(value: Argument) -> Argument:
        if isinstance(value, torch.fx.Node):
            return Ref(value.name)
        if isinstance(value, list | tuple):
            return tuple(converted(each) for each in value)
        return _numpy_type(value) if isinstance(value, torch.dtype) else value

    key, layer = _key(node.target), _layer(module, node)
    if key is None:
        where = f"PyTorch's {str(node.target).removeprefix('aten.')} in {layer}"
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            raise InputError(
                f"{where}: random numbers in forward are not supported; call .eval() on the module to switch dropout off."
            )
        raise InputError(
            f"{where} is not supported (docs/how-to/torch.md); use other operations, or write the model in JAX."
        )
    named = {name: converted(value) for name, value in node.kwargs.items() if name not in PLACES}
    return Step(node.name, key, converted(node.args), named, layer)


def _layer(module: Module, node: Node) -> str:
    """Return a step's layer, such as ``features.0 (Conv2d)``."""
    path, kind = list(node.meta.get("nn_module_stack", {"": ("", "")}).values())[-1][:2]
    name = kind.__name__ if inspect.isclass(kind) else str(kind).rpartition(".")[2]
    return f"{path} ({name})" if path else _name(module)


# ---- checks


def _zeros(torch: Torch, sample: jax.ShapeDtypeStruct) -> Tensor:
    return torch.from_numpy(np.zeros((SAMPLES, *sample.shape), sample.dtype))


def _check_forward(torch: Torch, module: Module, sample: jax.ShapeDtypeStruct) -> None:
    """Check that a module accepts the samples and returns one row for each."""
    numbers = f"{' × '.join(map(str, sample.shape))} numbers ({sample.dtype})"
    try:
        with _quietly(), torch.no_grad():
            out = copy.deepcopy(module)(_zeros(torch, sample))
    except Exception as error:  # a module may raise anything for samples of the wrong shape
        whole = "; begin with x.float() / 255" if np.issubdtype(sample.dtype, np.integer) else ""
        raise InputError(f"{_name(module)} does not take samples of {numbers}: {_told(error)}{whole}.") from error
    if not isinstance(out, torch.Tensor) or out.ndim < 1 or out.shape[0] != SAMPLES:
        got = f"shape {list(out.shape)}" if isinstance(out, torch.Tensor) else f"a {type(out).__name__}"
        raise InputError(f"{_name(module)} gives {got} for {SAMPLES} samples; expected a tensor with a row for each.")


def _check_draws(torch: Torch, make: Callable[[], Module], what: str, found: Exported) -> None:
    """Check that a seed determines the weights, and that it changes nothing else."""
    again, other = (_drawn(torch, make, seed) for seed in (0, 1))
    same = _arrays(again.named_parameters(), trained=True)
    fixed = _arrays([*other.named_buffers(), *other.named_parameters()])
    differently = " differently after the same torch.manual_seed; draw with PyTorch's own generator"
    untrained = ", which is not trained; give it fixed numbers, or make it a Parameter"
    for first, second, why in ((found.weights, same, differently), (found.constants, fixed, untrained)):
        for name, values in second.items():
            if not np.array_equal(first.get(name, values), values, equal_nan=True):
                raise InputError(f"{what} draws {name}{why}.")


def _check_same(torch: Torch, module: Module, model: TorchModel, sample: jax.ShapeDtypeStruct) -> None:
    """Check that JAX and PyTorch compute the same outputs."""
    random, shape = np.random.default_rng(0), (3, *sample.shape)
    drawn = random.standard_normal(shape) if np.issubdtype(sample.dtype, np.floating) else random.integers(0, 2, shape)
    x = drawn.astype(sample.dtype)
    params = {name: jnp.asarray(values) for name, values in model.module.weights.items()}
    with jax.default_matmul_precision("highest"):
        ours = np.asarray(jax.jit(model)(params, jnp.asarray(x.reshape(3, -1))), np.float32)
    with _quietly(), torch.no_grad():
        theirs = module(torch.from_numpy(x)).float().numpy()
    near = ours.shape == theirs.shape and np.allclose(
        ours, theirs, rtol=0, atol=NEAR * (1 + np.abs(theirs).max()), equal_nan=True
    )
    if not near:
        raise InputError(
            f"{_name(module)} gives different results in JAX and in PyTorch. This is a bug in perfeds2; please report it "
            f"with the module."
        )
