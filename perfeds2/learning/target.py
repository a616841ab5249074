"""Say what a model must predict: labels or numbers, with which loss and which metric."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from perfeds2.learning.losses import LOSSES, MEASURES, OF_NUMBERS, R2, Loss, Metric, accuracy, cross_entropy
from perfeds2.learning.models.model import Judged, Model, bare


@dataclass(frozen=True)
class Targets:
    """What is to be said of a sample: which of so many labels it has, or some numbers."""

    labels: int = 0  # how many there are; 0: numbers
    shift: tuple[float, ...] = ()  # of numbers, the mean: they are learned in units of their own,
    unit: tuple[float, ...] = ()  # of one standard deviation

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
        """How many numbers a model says to a sample."""
        return self.labels or len(self.unit)

    def in_units(self, y: np.ndarray) -> np.ndarray:
        if self.labels:
            return y.astype(int)
        return ((y.reshape(len(y), -1) - np.array(self.shift)) / np.array(self.unit)).astype(np.float32)

    def groups(self, y: np.ndarray) -> np.ndarray:
        """What a split may go by: the labels, or in which tenth of all a number is (the first, where there are several)."""
        return y.astype(int) if self.labels else tenths(y.reshape(len(y), -1)[:, 0])


def tenths(values: np.ndarray) -> np.ndarray:
    """In which tenth of all values each is, from 0; of fewer different values there are fewer tenths."""
    edges = np.unique(np.quantile(values, np.arange(1, 10) / 10))
    return np.unique(np.searchsorted(edges, values, side="right"), return_inverse=True)[1].reshape(-1)


def judged(model: Model, target: Targets, loss: str | Loss | None, metric: str | Metric | None) -> Model:
    """A model with a loss and a metric that fit the target. By cross-entropy and accuracy it is as it is."""
    for flag, name in (("--loss", loss), ("--metric", metric)):
        if isinstance(name, str) and (name in OF_NUMBERS) != (not target.labels):
            what = f"is one of {target.labels} labels" if target.labels else "is a number"
            raise ValueError(f"{flag} {name} is for {'numbers' if target.labels else 'labels'}, and the target {what}.")
    if loss == "binary" and target.labels != 2:
        raise ValueError(f"--loss binary is for 2 labels, and there are {target.labels}.")
    loss = loss or ("cross-entropy" if target.labels else "mse")
    metric = metric or ("accuracy" if target.labels else "r2")
    loss_function = LOSSES[loss] if isinstance(loss, str) else loss
    measure: Any = MEASURES[metric] if isinstance(metric, str) else metric
    measure = R2(target.unit) if measure is R2 else measure
    if loss_function is cross_entropy and measure is accuracy:
        return bare(model)
    return Judged(bare(model), loss_function, measure, target.shift, target.unit)
