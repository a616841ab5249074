"""Define a task: data divided among UEs, and a model."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Shaped

from perfeds2.learning.data import Chosen, Data, Shards, split_off
from perfeds2.learning.files.own_file import OwnFile, own_data, usual_loss, usual_split
from perfeds2.learning.files.sources import Source, find
from perfeds2.learning.files.tables import as_rows
from perfeds2.learning.losses import Loss, Metric
from perfeds2.learning.models.from_torch import from_torch
from perfeds2.learning.models.mlp import MLP, mlp
from perfeds2.learning.models.model import Model, bare
from perfeds2.learning.partition import ByLabel, Samples, Split
from perfeds2.learning.target import Targets, with_loss

# Per sample. A median device then computes about as long as it sends (docs/explanation/design.md).
CYCLES_PER_PARAMETER = 100


class UeSamples(NamedTuple):
    """The samples of one UE: inputs, and labels or rows of numbers."""

    train_x: Shaped[np.ndarray, "..."]
    train_y: Shaped[np.ndarray, "..."]
    test_x: Shaped[np.ndarray, "..."]
    test_y: Shaped[np.ndarray, "..."]


@dataclass(frozen=True)
class Task:
    """A model, and data divided among n UEs."""

    name: str
    model: Model
    data: Data
    new: Chosen | None = None  # UEs of the same data that never train and are only evaluated

    @property
    def ues(self) -> int:
        return self.data.ues

    def with_new_ues(self, count: int, seed: int) -> "Task":
        """Return the task with ``count`` of its UEs, drawn from the seed, held out from training.

        The other UEs keep their samples and their order. Training is the same as on a task that has only them.

        Args:
            count: Number of UEs that never train.
            seed: Seed that draws them.

        Returns:
            The task, whose evaluations also say how accurate the model is for the new UEs after 0, 1, 5 and 10
            personal steps.

        Raises:
            ValueError: No UE would train.

        Example:
            >>> from perfeds2 import digits
            >>> task = digits(25, labels_per_ue=2, seed=0).with_new_ues(5, seed=0)
            >>> task.ues, task.new.ues
            (20, 5)
        """
        data, new = split_off(self.data, count, seed)
        return replace(self, data=data, new=new)

    @property
    def payload_bits(self) -> float:
        """Return Z, the size of one uncompressed upload in bits: 32 per parameter."""
        return payload_bits(self.model)

    @property
    def sample(self) -> jax.ShapeDtypeStruct:
        """Return the shape and type of one sample."""
        x, _ = jax.eval_shape(lambda: self.data.batches(jax.random.key(0), jnp.int32(0), (1,)))
        return jax.ShapeDtypeStruct(x.shape[1:], x.dtype)

    def ue(self, number: int) -> "UeSamples":
        """Return all samples of one UE, on the CPU.

        Args:
            number: The UE, from 0.

        Returns:
            Its training and test samples. A task that makes samples on the fly has as many as an evaluation uses.

        Example:
            >>> from perfeds2 import digits
            >>> samples = digits(20, labels_per_ue=2, seed=0).ue(3)
            >>> samples.train_x.shape[1], len(set(samples.test_y.tolist()))
            (64, 2)
        """
        if not 0 <= number < self.ues:
            raise ValueError(f"the task has UEs 0 to {self.ues - 1}, got {number}.")
        unlimited = int(np.asarray(self.data.train_count)[number]) == 0
        halves = []
        for part, length in zip((self.data.train_part, self.data.test_part), self.data.lengths(), strict=True):
            x, y, mask = part(jnp.int32(number), length)
            while not unlimited and mask.all():  # there may be more
                length *= 2
                x, y, mask = part(jnp.int32(number), length)
            halves += [np.asarray(x)[np.asarray(mask)], np.asarray(y)[np.asarray(mask)]]
        return UeSamples(*halves)

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
        """Divide your own samples among UEs.

        Args:
            name: Name of the task.
            x: Samples of shape (N, …), flattened to rows. Bytes (uint8) stay bytes, which the default model divides
                by 255; everything else becomes float32.
            y: N labels from 0, or numbers of a float type, of shape (N,) or (N, c).
            ues: Number of UEs.
            seed: Seed of the division.
            labels_per_ue: Labels of each UE if there is no ``split``; by default 3, or all if there are fewer. For
                numbers, the tenth that a target is in counts as its label.
            split: How samples are divided (``perfeds2.learning.partition``). For numbers, give this or
                ``labels_per_ue``.
            owners: UE of each sample, from 0, of shape (N,), for the split ``Natural()``.
            model: The model; by default one hidden layer of 32 for up to 64 inputs, else of 100.
            loss: Name or function (``perfeds2.learning.losses``); by default cross-entropy for labels and ``mse`` for
                numbers.
            metric: Name or function; by default accuracy for labels and ``r2`` for numbers.

        Returns:
            The task.

        Raises:
            ValueError: The split leaves a UE without enough samples, or the loss or metric does not fit the targets.
        """
        (rows, _), y = as_rows(np.asarray(x)), np.asarray(y)
        target = Targets.of(y)
        if split is None:
            split = ByLabel(min(3, target.labels) if labels_per_ue is None else labels_per_ue)
        parts = split(Samples.of(target.groups(y), owners=owners), ues, seed)
        outputs = 1 if loss == "binary" else target.outputs
        network = with_loss(model or usual_model(rows.shape[1], outputs, rows.dtype), target, loss, metric)
        return cls(name, network, Shards.of(rows, target.in_units(y), parts))

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
        """Read your own samples from FILE.csv, FILE.npz or a folder of npz files, one per UE (docs/how-to/data.md).

        Args:
            path: The file or folder.
            ues: Number of UEs; by default as many as the file names, or 20.
            seed: Seed of the division.
            split: How samples are divided (``perfeds2.learning.partition``); by default as the file says, else a
                common one.
            target: Columns of a CSV file to predict; by default the column label, target or y.
            ue_column: Column of a CSV file with each sample's UE; by default the column ue or client, if there is one.
            model: The model; by default one hidden layer, as in ``of_arrays``.
            loss: Name or function (``perfeds2.learning.losses``); by default one that fits the targets.
            metric: Name or function; by default accuracy for labels and ``r2`` for numbers.

        Returns:
            The task.

        Raises:
            ValueError: The file cannot be read, does not fit the split, or does not fit the loss or metric.
        """
        file = OwnFile.open(path)
        table = file.table(tuple(target), ue_column, loss if isinstance(loss, str) else None)
        chosen = loss or usual_loss(table)
        recipe = Recipe.of_file(file, tuple(target), ue_column, chosen if isinstance(chosen, str) else None)
        split = split or usual_split(table)
        task = recipe(ues or (len(table.names) or 20), None, seed, split=split)
        return replace(task, model=with_loss(model or bare(task.model), recipe.learned, chosen, metric))

    @classmethod
    def from_torch(cls, module: Any, x: Any, y: Any, *, name: str = "torch", **how: Any) -> "Task":
        """Divide your own samples among UEs, with a PyTorch model (docs/how-to/torch.md).

        Args:
            module: A module, whose weights every seed starts from; or a class or function that returns a module when
                called without arguments, which draws new weights for each seed.
            x: Samples of shape (N, …). The module gets them in this shape, as float32.
            y: N labels from 0, or numbers of a float type, of shape (N,) or (N, c).
            name: Name of the task.
            **how: What ``of_arrays`` takes: ues, seed, labels_per_ue and others.

        Returns:
            The task.

        Raises:
            InputError: PyTorch is missing, or the module cannot be converted.
        """
        rows = np.asarray(x, np.float32)
        model = from_torch(module, jax.ShapeDtypeStruct(rows.shape[1:], np.float32))
        return cls.of_arrays(name, rows.reshape(len(rows), -1), np.asarray(y), **how, model=model)


@dataclass(frozen=True)
class Recipe:
    """How to make a task for n UEs, and what is known before its data are read."""

    name: str
    model: Model
    data: Callable[..., Data]  # called with (ues, split, seed), and with the ``Found`` files if there is a source
    sample: jax.ShapeDtypeStruct  # shape and type of one sample, to choose a model before the data are read
    # Settings that differ from the general defaults, by section: {"run": {"horizon_s": 600.0}}.
    defaults: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, hash=False)
    target: Targets | None = None  # None: the labels that its model distinguishes
    shape: tuple[int, ...] = ()  # of a sample in its file, in which a PyTorch module gets it; empty: that of ``sample``
    said: str = ""  # how the columns or arrays of a file were understood
    source: Source | None = None  # where its files come from; None: it needs none

    @classmethod
    @lru_cache(maxsize=16)
    def of_file(cls, file: OwnFile, target: tuple[str, ...], ue_column: str | None, loss: str | None) -> "Recipe":
        """Return the recipe of a user's own file."""
        table = file.table(target, ue_column, loss)
        learned = Targets(len(table.labels), table.shift, table.unit)
        sample = jax.ShapeDtypeStruct(table.x.shape[1:], table.x.dtype)
        network = usual_model(table.x.shape[1], 1 if loss == "binary" else learned.outputs, table.x.dtype)
        data = partial(own_data, partial(file.table, target, ue_column, loss))
        return cls(file.path.stem, network, data, sample, target=learned, shape=table.shape, said="; ".join(table.said))

    @property
    def learned(self) -> Targets:
        """Return what the model must predict."""
        return self.target or Targets(logits(self.model, self.sample)[0])

    def __call__(
        self,
        ues: int,
        labels_per_ue: int | None,
        seed: int,
        data_dir: Path | str | None = None,
        split: Split | None = None,
    ) -> Task:
        """Make the task of a seed. Each seed divides the data anew.

        Args:
            ues: Number of UEs.
            labels_per_ue: Labels of each UE, if no split is given.
            seed: Seed of the division.
            data_dir: Folder with the data sets; by default $PERFEDS2_DATA, then the user's cache.
            split: How samples are divided (``perfeds2.learning.partition``).

        Returns:
            The task.

        Raises:
            InputError: The data set is not on this machine.
            ValueError: The data do not fit the split.
        """
        if split is None:
            assert labels_per_ue is not None
            split = ByLabel(labels_per_ue)
        found = [] if self.source is None else [find(self.source, data_dir)]
        return Task(self.name, self.model, self.data(ues, split, seed, *found))


def usual_model(inputs: int, outputs: int, dtype: np.dtype) -> MLP:
    """Return the model for a user's own samples. Its hidden layer is as large as the one for digits or for MNIST."""
    return mlp(inputs, outputs, dtype, hidden=32 if inputs <= 64 else 100)


def logits(model: Model, sample: jax.ShapeDtypeStruct) -> tuple[int, ...]:
    """Return the shape of a model's output for one sample."""
    batch = jax.ShapeDtypeStruct((2, *sample.shape), sample.dtype)
    return jax.eval_shape(lambda x: model(model.init(jax.random.key(0)), x), batch).shape[1:]


def parameters(model: Model) -> int:
    """Return the number of a model's parameters."""
    return sum(shape.size for shape in weight_shapes(model).values())


@lru_cache(maxsize=64)  # called often, and tracing is slow
def weight_shapes(model: Model) -> dict[str, jax.ShapeDtypeStruct]:
    """Return the shapes of a model's arrays by name."""
    return jax.eval_shape(lambda: model.init(jax.random.key(0)))  # abstract, so no GPU is used


def payload_bits(model: Model) -> float:
    """Return Z, the size of one upload in bits: 32 per parameter.

    Args:
        model: The model whose weights are uploaded.

    Returns:
        The size in bits.

    Example:
        >>> from perfeds2 import digits, payload_bits
        >>> payload_bits(digits.model)
        77120.0
    """
    return 32.0 * parameters(model)


def cycles_of_parameters(model: Model) -> float:
    """Return 100 CPU cycles per parameter and sample, as earlier versions did. ``counted_cycles`` counts operations."""
    return float(CYCLES_PER_PARAMETER * parameters(model))
