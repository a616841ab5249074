"""Train a small part of a model: low-rank adapters of its matrices, or some of its layers.

An adapter is a model that wraps a model. Its parameters are only what is trained, so uploads, energy, privacy and the
Hessian are those of the adapter; the body stays frozen on every UE. LoRA (Hu et al., ICLR 2022) adds (α/r)·B·A to a
matrix, with A of r rows drawn at random and B of r columns 0, so training starts at the body's own outputs.
"""

import hashlib
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree, Shaped
from safetensors import SafetensorError
from safetensors.numpy import load

from perfeds2.learning.models.from_torch import TorchModel
from perfeds2.learning.models.model import Model, ModelWithLoss, Params, RandomKey, bare

Weights = Mapping[str, np.ndarray]
DOWN, UP = ".lora_a", ".lora_b"  # added to the name of a matrix
FORM = re.compile(r"(lora:(?P<rank>[1-9]\d{0,4})|head)(?P<more>([:,][a-z]+=[^,=]+)*)")


@dataclass(frozen=True)
class Adapter:
    """Which part of a model is trained."""

    rank: int | None = None  # of LoRA; None: the chosen arrays themselves are trained
    alpha: float | None = None  # of LoRA; None: the rank, so that B·A is added unscaled
    layers: tuple[str, ...] = ()  # parts of the names of arrays; empty: all matrices for LoRA, else the last layer

    @classmethod
    def parse(cls, text: str) -> "Adapter":
        """Read ``lora:8``, ``lora:8,alpha=16,layers=inner+outer``, ``head`` or ``head:layers=dense``.

        Raises:
            ValueError: It is something else; the message continues a sentence that begins with the text.
        """
        found = FORM.fullmatch(text)
        if found is None:
            raise ValueError("is not an adapter; expected lora:8, lora:8,alpha=16,layers=inner+outer, or head")
        rank = None if found["rank"] is None else int(found["rank"])
        given = dict(word.split("=") for word in re.split("[:,]", found["more"]) if word)
        layers = tuple(given.pop("layers", "").split("+")) if "layers" in given else ()
        try:
            alpha = float(given.pop("alpha")) if rank is not None and "alpha" in given else None
        except ValueError:
            alpha = math.nan
        if given or not (alpha is None or 0 < alpha < math.inf):
            known = "alpha=NUMBER above 0 and layers=NAME+NAME" if rank is not None else "layers=NAME+NAME"
            raise ValueError(f"has an unknown or invalid setting; its settings are {known}")
        return cls(rank, alpha, layers)

    @property
    def scale(self) -> float:
        """Return α/r."""
        return 1.0 if self.alpha is None or self.rank is None else self.alpha / self.rank

    def chosen(self, shapes: Mapping[str, tuple[int, ...]], last: str) -> tuple[str, ...]:
        """Return the names of the arrays that are adapted or trained; ``last`` is the model's last layer.

        Raises:
            ValueError: There are none.
        """
        if self.layers:
            names = [name for name in shapes if any(part in name for part in self.layers)]
        elif self.rank is None:
            names = [name for name in shapes if layer_of(name) == last]
        else:
            names = list(shapes)
        names = names if self.rank is None else [name for name in names if len(shapes[name]) > 1]
        if not names:
            what = f"no array named {' or '.join(self.layers)}" if self.layers else "nothing to adapt"
            kind = "" if self.rank is None else " with two or more axes"
            raise ValueError(f"finds {what}{kind}; the model has {', '.join(shapes)}")
        return tuple(names)


def layer_of(name: str) -> str:
    """Return the layer of an array: its name without ``weight`` or ``bias``."""
    return name.rpartition(".")[0]


def last_layer(model: Model, names: list[str]) -> str:
    """Return the name of a model's last layer: of our own models ``dense``, of others the one of the last array."""
    if not isinstance(model, TorchModel):
        dense = {layer_of(name) for name in names if name.startswith("dense")}
        if dense:
            return max(dense, key=lambda layer: (len(layer), layer))
    return layer_of(names[-1])


def folded(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return the shape of an array as a matrix, with the first or the last axis apart, whichever has shorter factors.

    A convolution's outputs are its last axis in our models, and its first in PyTorch.
    """
    first, last = (shape[0], math.prod(shape[1:])), (math.prod(shape[:-1]), shape[-1])
    return min(last, first, key=sum)


@dataclass(frozen=True)
class Adapted:
    """A model whose weights start from given ones. Only those that the adapter names are trained."""

    model: Model
    adapter: Adapter | None  # None: all weights are trained
    trained: tuple[str, ...]  # arrays that are adapted or trained
    identity: str  # sha256 of the body
    body: Weights = field(compare=False, repr=False)
    ranks: tuple[int, ...] = ()  # of each UE's adapter, at most that of ``adapter``; empty: all have its rank

    def init(self, key: RandomKey) -> Params:
        """Return the body's own weights of the trained arrays, or the first factors of their adapters."""
        if self.adapter is None or self.adapter.rank is None:
            return {name: jnp.asarray(self.body[name]) for name in self.trained}
        params: Params = {}
        for number, name in enumerate(self.trained):
            rows, columns = folded(self.body[name].shape)
            rank, most = min(self.adapter.rank, rows, columns), 1 / math.sqrt(columns)
            drawn = jax.random.uniform(jax.random.fold_in(key, number), (rank, columns), minval=-most, maxval=most)
            params[name + DOWN], params[name + UP] = drawn, jnp.zeros((rows, rank))
        return params

    def __call__(self, params: Params, x: Shaped[Array, "..."]) -> Float[Array, "..."]:
        return self.model(self.merged(params), x)

    def merged(self, params: Mapping[str, Array | np.ndarray]) -> Params:
        """Return all weights of the model, with the adapters added to the body."""
        factors = {name + end for name in self.trained for end in (DOWN, UP)}
        whole = {name: jnp.asarray(values) for name, values in self.body.items()}
        whole |= {name: jnp.asarray(values) for name, values in params.items() if name not in factors}
        if self.adapter is None or self.adapter.rank is None:
            return whole
        for name in self.trained:
            change = jnp.asarray(params[name + UP]) @ params[name + DOWN]
            whole[name] = whole[name] + self.adapter.scale * change.reshape(whole[name].shape)
        return whole

    def narrowed(self, tree: PyTree, ue: Int[Array, ""]) -> PyTree:
        """Return a tree of parameters with zeros in the columns of B and the rows of A that a UE does not have."""
        rank = jnp.asarray(self.ranks)[ue]

        def narrow(path: tuple[jax.tree_util.KeyEntry, ...], values: Array) -> Array:
            name = str(path[-1].key) if path and isinstance(path[-1], jax.tree_util.DictKey) else ""
            if name.endswith(DOWN):
                return jnp.where((jnp.arange(values.shape[0]) < rank)[:, None], values, 0)
            return jnp.where(jnp.arange(values.shape[1]) < rank, values, 0) if name.endswith(UP) else values

        return jax.tree_util.tree_map_with_path(narrow, tree)

    def with_statistics(self, params: Params, x: Shaped[Array, "*s x"]) -> Params:
        """Return the parameters with BatchNorm's statistics of these samples, if the model has any."""
        if not isinstance(self.model, TorchModel):
            return params
        fitted = self.model.with_statistics(self.merged(params), x)
        return params | {name: fitted[name] for name in self.model.module.statistics.values()}


def narrowed(model: Model, tree: PyTree, ue: Int[Array, ""]) -> PyTree:
    """Return a tree of a model's parameters as a UE has it: with zeros where its adapter has a smaller rank."""
    network = bare(model)
    return network.narrowed(tree, ue) if isinstance(network, Adapted) and network.ranks else tree


def adapt(
    model: Model,
    adapter: Adapter | str | None = None,
    weights: Weights | None = None,
    ranks: Sequence[int] | None = None,
) -> Model:
    """Return a model that starts from given weights and trains only an adapter.

    Args:
        model: The model; a loss and a metric that it has are kept.
        adapter: What is trained, such as ``lora:8``; None trains all weights.
        weights: The body, by the names of the model's arrays; None takes the model's own, such as those of a
            pre-trained PyTorch module.
        ranks: The highest rank of each UE, shape (n,). Arrays keep the adapter's rank; a UE trains their first columns
            and rows, and its update is zero in the others. None: every UE has the adapter's rank.

    Returns:
        The model.

    Raises:
        ValueError: The weights do not fit the model, there are none, or the adapter finds nothing to adapt.

    Example:
        >>> import jax
        >>> from perfeds2 import digits
        >>> from perfeds2.learning.models.adapter import adapt
        >>> pretrained = digits.model.init(jax.random.key(0))
        >>> sorted(adapt(digits.model, "head", pretrained).init(jax.random.key(1)))
        ['dense2.bias', 'dense2.weight']
    """
    inner, chosen = bare(model), Adapter.parse(adapter) if isinstance(adapter, str) else adapter
    body = _own_weights(inner) if weights is None else {name: np.asarray(values) for name, values in weights.items()}
    own = jax.eval_shape(lambda: inner.init(jax.random.key(0)))
    names = list(inner.module.weights) if isinstance(inner, TorchModel) else list(own)
    for name in names:
        shape = own[name].shape
        if name not in body or body[name].shape != shape:
            held = "has no such array" if name not in body else f"has shape {body[name].shape}"
            raise ValueError(f"does not fit the model, whose {name} has shape {shape}; the file {held}")
    if more := sorted(body.keys() - own.keys()):
        raise ValueError(f"does not fit the model, which has no {more[0]}; it has {', '.join(names)}")
    digest = hashlib.sha256()
    for name in names:
        digest.update(name.encode() + np.ascontiguousarray(body[name]).tobytes())
    shapes = {name: body[name].shape for name in names}
    trained = tuple(names) if chosen is None else chosen.chosen(shapes, last_layer(inner, names))
    most = None if chosen is None else chosen.rank
    by_ue = () if ranks is None or most is None else tuple(min(rank, most) for rank in ranks)
    by_ue = by_ue if most is not None and min(by_ue, default=most) < most else ()
    found = Adapted(inner, chosen, trained, digest.hexdigest(), {name: body[name] for name in names}, by_ue)
    return (
        ModelWithLoss(found, model.loss, model.metric, model.shift, model.unit)
        if isinstance(model, ModelWithLoss)
        else found
    )


def _own_weights(model: Model) -> Weights:
    """Return the weights of a model that draws none."""
    one, other = (model.init(jax.random.key(seed)) for seed in (0, 1))
    same: PyTree = jax.tree.map(np.array_equal, one, other)
    if not all(jax.tree.leaves(same)):
        raise ValueError(
            "needs a trained body, and this model draws its weights at random; add --init FILE.safetensors"
        )
    return {name: np.asarray(values) for name, values in one.items()}


@dataclass(frozen=True)
class WeightsFile:
    """A safetensors file of weights by name, and the sha256 of its content."""

    path: Path
    digest: str

    @classmethod
    def open(cls, path: Path | str) -> "WeightsFile":
        """Find a file and compute its sha256.

        Raises:
            ValueError: It does not exist or cannot be read. The message follows what the user gave.
        """
        try:
            return cls(Path(path), hashlib.sha256(Path(path).read_bytes()).hexdigest())
        except FileNotFoundError:
            raise ValueError(f"was not found: there is no {path} in {Path.cwd()}") from None
        except OSError as error:
            raise ValueError(f"cannot be read: {os.strerror(error.errno or 0)}") from None

    def weights(self) -> Weights:
        """Return the arrays.

        Raises:
            ValueError: It is no safetensors file, has changed, or holds several models.
        """
        data = self.path.read_bytes()
        if hashlib.sha256(data).hexdigest() != self.digest:
            raise ValueError("has changed since it was first read; start again")
        try:
            arrays = load(data)
        except (SafetensorError, ValueError, KeyError) as error:
            raise ValueError(f"is not a safetensors file ({error})") from None
        if models := sorted({name.rpartition("/")[0] for name in arrays if "/" in name}):
            raise ValueError(
                f"holds several models ({', '.join(models[:3])}, …); write one with perfeds2 export RUN --algorithm NAME "
                f"--seed SEED --out FILE.safetensors"
            )
        return arrays
