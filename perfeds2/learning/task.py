"""What is to be learned: which data, which model?"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from perfeds2.learning.data import Data, Shards
from perfeds2.learning.files.own_file import OwnFile, own_data, usual_loss, usual_split
from perfeds2.learning.files.sources import Source, find
from perfeds2.learning.losses import Loss, Metric
from perfeds2.learning.models.from_torch import from_torch
from perfeds2.learning.models.mlp import MLP, mlp
from perfeds2.learning.models.model import Model, bare
from perfeds2.learning.partition import ByLabel, Samples, Split
from perfeds2.learning.target import Targets, judged

SAMPLES_PER_UE = 32  # a UE's distribution, as the theory's constants see it
MOST_UES = 32  # of a larger population so many, evenly spaced, stand for all
CYCLES_PER_PARAMETER = (
    100  # of one sample; then a median device computes about as long as it sends (docs/explanation/design.md)
)


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
    def payload_bits(self) -> float:
        """Size of one uncompressed upload in bits: 32 per parameter. Z in the paper."""
        return payload_bits(self.model)

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
        seed: int,
        labels_per_ue: int | None = None,
        split: Split | None = None,
        owners: np.ndarray | None = None,
        model: Model | None = None,
        loss: str | Loss | None = None,
        metric: str | Metric | None = None,
    ) -> "Task":
        """Your own samples in the hands of UEs: x one row each, y their labels from 0, or numbers (of a float's type).

        ``split`` says who gets which (``perfeds2.learning.partition``), ``labels_per_ue`` is one; ``owners`` is whose each
        sample is, from 0, for ``Natural()``. One hidden layer unless told. Of numbers the loss is ``mse`` and the metric
        ``r2``; both may be a name or a function (``perfeds2.learning.losses``).
        """
        x, y = np.asarray(x, np.float32).reshape(len(x), -1), np.asarray(y)
        target = Targets.of(y)
        if split is None:
            split = ByLabel(min(3, target.labels) if labels_per_ue is None else labels_per_ue)
        parts = split(Samples(target.groups(y), owners=owners), ues, seed)
        outputs = 1 if loss == "binary" else target.outputs
        network = judged(model or MLP((x.shape[1], 32, outputs)), target, loss, metric)
        return cls(name, network, Shards.of(x, target.in_units(y), parts))

    @classmethod
    def of_file(
        cls,
        path: Path | str,
        *,
        ues: int | None = None,
        seed: int = 0,
        split: Split | None = None,
        target: Sequence[str] = (),
        ue_column: str | None = None,
        model: Model | None = None,
        loss: str | Loss | None = None,
        metric: str | Metric | None = None,
    ) -> "Task":
        """Your own samples from FILE.csv, FILE.npz or a folder of npz files, one a UE (docs/how-to/data.md)."""
        file = OwnFile.open(path)
        table = file.table(tuple(target), ue_column, loss if isinstance(loss, str) else None)
        chosen = loss or usual_loss(table)
        recipe = Recipe.of_file(file, tuple(target), ue_column, chosen if isinstance(chosen, str) else None)
        split = split or usual_split(table)
        task = recipe(ues or (len(table.names) or 20), None, seed, split=split)
        return replace(task, model=judged(model or bare(task.model), recipe.learned, chosen, metric))

    @classmethod
    def from_torch(cls, module: Any, x: Any, y: Any, *, name: str = "torch", **how: Any) -> "Task":
        """Your own samples and a PyTorch model for them; ``how`` is what ``of_arrays`` takes (ues, labels_per_ue, seed).

        The module gets samples in the shape they have in ``x``, as float32.
        A module's weights are where every seed starts; a class, or a function that gives a module, is called without
        arguments and draws others for each seed (docs/how-to/torch.md).
        """
        rows = np.asarray(x, np.float32)
        model = from_torch(module, jax.ShapeDtypeStruct(rows.shape[1:], np.float32))
        return cls.of_arrays(name, rows.reshape(len(rows), -1), np.asarray(y), **how, model=model)


@dataclass(frozen=True)
class Recipe:
    """How to make a task for n UEs, and what is known of it before its data are read."""

    name: str
    model: Model
    data: Callable[..., Data]  # called with (ues, split, seed), and with the ``Found`` files where there is a source
    sample: jax.ShapeDtypeStruct  # what one sample will look like: a model can be chosen before the data are read
    # Settings that fit it, by section, where they differ from the general ones: {"run": {"horizon_s": 600.0}}.
    defaults: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, hash=False)
    target: Targets | None = None  # None: the labels that its model tells apart
    said: str = ""  # what was taken for what, in a file
    source: Source | None = None  # where its files come from; None: it needs none

    @classmethod
    @lru_cache(maxsize=16)
    def of_file(cls, file: OwnFile, target: tuple[str, ...], ue_column: str | None, loss: str | None) -> "Recipe":
        """Return the recipe of a user's own file."""
        table = file.table(target, ue_column, loss)
        learned = Targets(len(table.labels), table.shift, table.unit)
        sample = jax.ShapeDtypeStruct(table.x.shape[1:], table.x.dtype)
        hidden = 32 if table.x.shape[1] <= 64 else 100  # as digits' for few inputs, as MNIST's for many
        network = mlp(table.x.shape[1], 1 if loss == "binary" else learned.outputs, table.x.dtype, hidden)
        data = partial(own_data, partial(file.table, target, ue_column, loss))
        return cls(file.path.stem, network, data, sample, target=learned, said="; ".join(table.said))

    @property
    def learned(self) -> Targets:
        """What is to be said of a sample."""
        return self.target or Targets(logits(self.model, self.sample)[0])

    def __call__(
        self,
        ues: int,
        labels_per_ue: int | None,
        seed: int,
        data_dir: Path | str | None = None,
        split: Split | None = None,
    ) -> Task:
        """The task of a seed: who has which data is drawn anew for each. Without a split it is by so many labels a UE."""
        if split is None:
            assert labels_per_ue is not None
            split = ByLabel(labels_per_ue)
        found = [] if self.source is None else [find(self.source, data_dir)]
        return Task(self.name, self.model, self.data(ues, split, seed, *found))


def logits(model: Model, sample: jax.ShapeDtypeStruct) -> tuple[int, ...]:
    """The shape of what a model says to one sample."""
    batch = jax.ShapeDtypeStruct((2, *sample.shape), sample.dtype)
    return jax.eval_shape(lambda x: model(model.init(jax.random.key(0)), x), batch).shape[1:]


def parameters(model: Model) -> int:
    """How many numbers a model has."""
    return sum(shape.size for shape in weight_shapes(model).values())


@lru_cache(maxsize=64)  # asked for again and again, and tracing takes a while
def weight_shapes(model: Model) -> dict[str, jax.ShapeDtypeStruct]:
    """Of its arrays, by their names."""
    return jax.eval_shape(lambda: model.init(jax.random.key(0)))  # abstract: nobody's GPU is touched


def payload_bits(model: Model) -> float:
    """Z: what one upload takes, 32 bit a parameter."""
    return 32.0 * parameters(model)


def cycles_per_sample(model: Model) -> float:
    """CPU cycles for one sample of one batch; the paper gives no value, this is ours."""
    return float(CYCLES_PER_PARAMETER * parameters(model))


def stacked_samples(task: Task, samples: int = SAMPLES_PER_UE) -> tuple[np.ndarray, np.ndarray]:
    """x[n, m, …] and y[n, m, …]: evenly spaced training samples of each UE; one with fewer gives some more than once."""
    chosen = np.unique(np.linspace(0, task.ues - 1, min(MOST_UES, task.ues)).round().astype(int))
    xs, ys = [], []
    for ue in chosen:
        x, y, mask = (np.asarray(part) for part in task.data.train_part(jnp.asarray(ue), task.data.lengths()[0]))
        size = int(mask.sum())
        at = np.arange(samples) * size // samples if size >= samples else np.arange(samples) % size
        xs.append(x[at])
        ys.append(y[at])
    return np.stack(xs), np.stack(ys)
