"""Describe what a model must predict, labels or numbers, and with which loss and metric."""

from dataclasses import dataclass

import numpy as np

from perfeds2.learning.losses import LOSSES, MEASURES, OF_NUMBERS, R2, Loss, Metric, accuracy, cross_entropy
from perfeds2.learning.models.model import Model, ModelWithLoss, bare


@dataclass(frozen=True)
class Targets:
    """What must be predicted for a sample: one of some labels, or some numbers."""

    labels: int = 0  # number of labels; 0: the targets are numbers
    shift: tuple[float, ...] = ()  # mean of each number; numbers are learned with mean 0
    unit: tuple[float, ...] = ()  # and deviation 1: this is their standard deviation

    @classmethod
    def of(cls, y: np.ndarray) -> "Targets":
        if y.dtype.kind != "f":
            return cls(int(y.max()) + 1)
        columns = y.reshape(len(y), -1)
        deviation = columns.std(axis=0, dtype=float)
        unit = np.where(deviation > 0, deviation, 1.0)
        return cls(0, tuple(columns.mean(axis=0, dtype=float).tolist()), tuple(unit.tolist()))

    @property
    def outputs(self) -> int:
        """Return how many numbers a model must output for a sample."""
        return self.labels or len(self.unit)

    def in_units(self, y: np.ndarray) -> np.ndarray:
        if self.labels:
            return y.astype(int)
        return ((y.reshape(len(y), -1) - np.array(self.shift)) / np.array(self.unit)).astype(np.float32)

    def groups(self, y: np.ndarray) -> np.ndarray:
        """Return what a split divides by: the label, or the tenth of all values that the first number is in."""
        return y.astype(int) if self.labels else tenths(y.reshape(len(y), -1)[:, 0])


def tenths(values: np.ndarray) -> np.ndarray:
    """Return the tenth of all values that each is in, from 0. Few distinct values make fewer tenths."""
    edges = np.unique(np.quantile(values, np.arange(1, 10) / 10))
    return np.unique(np.searchsorted(edges, values, side="right"), return_inverse=True)[1].reshape(-1)


def with_loss(model: Model, target: Targets, loss: str | Loss | None, metric: str | Metric | None) -> Model:
    """Return a model with a loss and a metric that fit the target.

    Cross-entropy with accuracy is the default, so such a model is returned bare.

    Raises:
        ValueError: The loss or metric is for the other kind of target.
    """
    for flag, name in (("--loss", loss), ("--metric", metric)):
        if isinstance(name, str) and (name in OF_NUMBERS) != (not target.labels):
            what = f"is one of {target.labels} labels" if target.labels else "is a number"
            raise ValueError(f"{flag} {name} is for {'numbers' if target.labels else 'labels'}, and the target {what}.")
    if loss == "binary" and target.labels != 2:
        raise ValueError(f"--loss binary is for 2 labels, and there are {target.labels}.")
    loss = loss or ("cross-entropy" if target.labels else "mse")
    metric = metric or ("accuracy" if target.labels else "r2")
    loss_function = LOSSES[loss] if isinstance(loss, str) else loss
    measure = MEASURES[metric] if isinstance(metric, str) else metric
    measure = R2(target.unit) if measure is R2 else measure
    if loss_function is cross_entropy and measure is accuracy:
        return bare(model)
    return ModelWithLoss(bare(model), loss_function, measure, target.shift, target.unit)
