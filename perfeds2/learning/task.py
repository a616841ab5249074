"""What is to be learned: which data, which model?"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from inspect import signature
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from perfeds2.learning.data import Data, Shards
from perfeds2.learning.models.from_torch import from_torch
from perfeds2.learning.models.mlp import MLP
from perfeds2.learning.models.model import Model
from perfeds2.learning.partition import partition_by_label

SAMPLES_PER_UE = 32  # a UE's distribution, as the theory's constants see it
MOST_UES = 32  # of a larger population so many, evenly spaced, stand for all
CYCLES_PER_PARAMETER = 100  # of one sample; then a median device computes about as long as it sends (docs/design.md)


@dataclass(frozen=True)
class Task:
    """Data in the hands of n UEs, and a model for them."""

    name: str
    model: Model
    data: Data

    @property
    def ues(self) -> int:
        return self.data.ues

    @property
    def sample(self) -> jax.ShapeDtypeStruct:
        """What one sample looks like."""
        x, _ = jax.eval_shape(lambda: self.data.batches(jax.random.key(0), jnp.int32(0), (1,)))
        return jax.ShapeDtypeStruct(x.shape[1:], x.dtype)

    @classmethod
    def of_arrays(
        cls,
        name: str,
        x: np.ndarray,
        y: np.ndarray,
        *,
        ues: int,
        labels_per_ue: int,
        seed: int,
        model: Model | None = None,
    ) -> "Task":
        """Your own samples (x one row each, y their labels from 0) in the hands of UEs; one hidden layer unless told."""
        parts = partition_by_label(np.asarray(y, int), ues, labels_per_ue, seed)
        network = model or MLP((int(np.prod(x.shape[1:])), 32, int(np.max(y)) + 1))
        return cls(name, network, Shards.of(np.asarray(x, np.float32), np.asarray(y, int), parts))

    @classmethod
    def from_torch(cls, module: Any, x: Any, y: Any, *, name: str = "torch", **how: Any) -> "Task":
        """Your own samples and a PyTorch model for them; ``how`` is what ``of_arrays`` takes (ues, labels_per_ue, seed).

        The module gets samples in the shape they have in ``x``, as float32.
        A module's weights are where every seed starts; a class, or a function that gives a module, is called without
        arguments and draws others for each seed (docs/torch.md).
        """
        rows = np.asarray(x, np.float32)
        model = from_torch(module, jax.ShapeDtypeStruct(rows.shape[1:], np.float32))
        return cls.of_arrays(name, rows.reshape(len(rows), -1), np.asarray(y), **how, model=model)


@dataclass(frozen=True)
class Recipe:
    """How to make a task for n UEs, and what is known of it before its data are read."""

    name: str
    model: Model
    data: Callable[..., Data]  # called with (ues, labels_per_ue, seed), and with data_dir where it has such a parameter
    sample: jax.ShapeDtypeStruct  # what one sample will look like: a model can be chosen before the data are read
    # Settings that fit it, by section, where they differ from the general ones: {"run": {"horizon_s": 600.0}}.
    defaults: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, hash=False)

    def __call__(self, ues: int, labels_per_ue: int, seed: int, data_dir: Path | str | None = None) -> Task:
        """The task of a seed: who has which data is drawn anew for each."""
        where = {"data_dir": data_dir} if "data_dir" in signature(self.data).parameters else {}
        return Task(self.name, self.model, self.data(ues, labels_per_ue, seed, **where))


def logits(model: Model, sample: jax.ShapeDtypeStruct) -> tuple[int, ...]:
    """The shape of what a model says to one sample."""
    batch = jax.ShapeDtypeStruct((2, *sample.shape), sample.dtype)
    return jax.eval_shape(lambda x: model(model.init(jax.random.key(0)), x), batch).shape[1:]


def parameters(model: Model) -> int:
    """How many numbers a model has."""
    shapes = jax.eval_shape(lambda: model.init(jax.random.key(0)))  # abstract: nobody's GPU is touched
    return sum(int(np.prod(shape.shape)) for shape in shapes.values())


def payload_bits(model: Model) -> float:
    """Z: what one upload takes, 32 bit a parameter."""
    return 32.0 * parameters(model)


def cycles_per_sample(model: Model) -> float:
    """CPU cycles for one sample of one batch; the paper gives no value, this is ours."""
    return float(CYCLES_PER_PARAMETER * parameters(model))


def stacked_samples(task: Task, samples: int = SAMPLES_PER_UE, ues: int = MOST_UES) -> tuple[np.ndarray, np.ndarray]:
    """x[n, m, …] and y[n, m, …]: evenly spaced training samples of each UE; one with fewer gives some more than once."""
    chosen = np.unique(np.linspace(0, task.ues - 1, min(ues, task.ues)).round().astype(int))
    xs, ys = [], []
    for ue in chosen:
        x, y, mask = (np.asarray(part) for part in task.data.train_part(jnp.asarray(ue), task.data.lengths()[0]))
        size = int(mask.sum())
        at = np.arange(samples) * size // samples if size >= samples else np.arange(samples) % size
        xs.append(x[at])
        ys.append(y[at])
    return np.stack(xs), np.stack(ys)
