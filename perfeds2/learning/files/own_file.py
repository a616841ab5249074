"""Make a task of a user's own file: FILE.csv, FILE.npz, or a folder of npz files, one per UE."""

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from perfeds2.learning.data import Shards
from perfeds2.learning.files.formats import DataBroken, naming
from perfeds2.learning.files.tables import Meaning, SampleTable, read_arrays, read_csv, read_folder
from perfeds2.learning.partition import SIZE_SPREAD, Dirichlet, Natural, Partition, Quantity, Samples, Split
from perfeds2.learning.target import tenths

MEANINGS: Mapping[str, Meaning] = {"mse": "numbers", "cross-entropy": "labels", "binary": "labels"}
USUAL_ALPHA = 0.5  # of the Dirichlet split that is the default for labels


@dataclass(frozen=True)
class OwnFile:
    """A file or folder of samples, and the sha256 of its content."""

    path: Path
    digest: str

    @classmethod
    def open(cls, path: Path | str) -> "OwnFile":
        """Find a file or folder and compute its sha256.

        Raises:
            ValueError: It does not exist, is no data or cannot be read. The message follows what the user gave.
        """
        path = Path(path)
        if not os.path.exists(path):
            raise ValueError(f"was not found: there is no {path} in {Path.cwd()}")
        if not (path.is_dir() or path.suffix in (".csv", ".npz")):
            raise ValueError("is not a data file; expected FILE.csv, FILE.npz, or a folder of npz files")
        try:
            files = sorted(path.glob("*.npz")) if path.is_dir() else [path]
            found = [(file, file.stat()) for file in files]
            digests = [_digest(file, state.st_ino, state.st_size, state.st_mtime_ns) for file, state in found]
        except OSError as error:
            raise ValueError(f"cannot be read: {os.strerror(error.errno or 0)}") from None
        if not path.is_dir():
            return cls(path, digests[0])
        lines = [f"{digest} {file.name}\n" for digest, file in zip(digests, files, strict=True)]
        return cls(path, hashlib.sha256("".join(lines).encode()).hexdigest())

    def table(self, target: tuple[str, ...], ue_column: str | None, loss: str | None) -> SampleTable:
        """Return its samples. The loss decides whether the target is read as numbers or as labels."""
        return _read_once(self.path, self.digest, target, ue_column).meant(MEANINGS.get(loss or ""))

    def defaults(self, target: tuple[str, ...], ue_column: str | None, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings that fit it, by section; ``given`` has the loss, metric and split the user chose."""
        loss, metric = given.get("loss"), given.get("metric")
        table = self.table(target, ue_column, loss if isinstance(loss, str) else None)
        metric = metric or ("accuracy" if table.labels else "r2")
        task: dict[str, Any] = {"loss": usual_loss(table), "metric": metric}
        if given.get("split") is None and given.get("labels_per_ue") is None:
            task["split"] = str(usual_split(table))
        deviation = float(np.sqrt(np.mean(np.square(table.unit)))) if table.unit else 1.0
        reached = {"r2": 0.5} | dict.fromkeys(("rmse", "mae"), float(f"{-0.5 * deviation:.3g}"))
        run = {"target_accuracy": reached[metric]} if isinstance(metric, str) and metric in reached else {}
        natural = table.names and (given.get("split") or task.get("split")) == "natural"
        return {"task": task, "run": run} | ({"cell": {"ues": len(table.names)}} if natural else {})


def usual_loss(table: SampleTable) -> str:
    return "mse" if not table.labels else "binary" if len(table.labels) == 2 else "cross-entropy"


def usual_split(table: SampleTable) -> Split:
    if table.owners is not None:
        return Natural()
    return Dirichlet(USUAL_ALPHA) if table.labels else Quantity(SIZE_SPREAD)


def own_data(read: Callable[[], SampleTable], ues: int, split: Split, seed: int) -> Shards:
    """Divide a file's samples among UEs. Columns get mean 0 and deviation 1 over all training parts."""
    table = read()
    x, parts, count = table.x, _parts(table, ues, split, seed), len(table.centre)
    if count:
        mean, deviation = _scale_of(x[:, :count], parts)
        x = np.concatenate([((x[:, :count] - mean) / deviation).astype(x.dtype), x[:, count:]], axis=1)
    return Shards.of(x, table.y, parts)


def _parts(table: SampleTable, ues: int, split: Split, seed: int) -> Partition:
    groups = table.y if table.labels else tenths(table.y[:, 0])
    return split(Samples.of(groups, table.tests, table.owners, table.names), ues, seed)


def in_words(table: SampleTable, ues: int, split: Split, seed: int) -> dict[str, str]:
    """Return, as JSON texts, what is needed to use a model that was trained on a file.

    These are its inputs and outputs and their scales. The model takes (column − mean) / deviation. An output that is a
    number must be multiplied by the deviation, and the mean added.
    """
    told: dict[str, Any] = {}
    if table.columns:
        told["inputs"] = list(table.columns)
    if table.centre:
        mean, deviation = _scale_of(table.x[:, : len(table.centre)], _parts(table, ues, split, seed))
        more = len(table.columns) - len(table.centre)
        told["input_mean"] = [*(np.array(table.centre) + np.array(table.stretch) * mean).tolist(), *[0.0] * more]
        told["input_deviation"] = [*(np.array(table.stretch) * deviation).tolist(), *[1.0] * more]
    if table.labels:
        told["labels"] = list(table.labels)
    else:
        told |= {"output_mean": list(table.shift), "output_deviation": list(table.unit)}
    return {name: json.dumps(value) for name, value in told.items()}


def _scale_of(x: np.ndarray, parts: Partition) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean and deviation of each column over the training parts; the deviation of a constant is 1."""
    ends = np.stack([parts.train_count, parts.test_count], axis=1).ravel()
    training = parts.order[np.repeat(np.tile([True, False], parts.start.size), ends)]
    mean, deviation = x[training].mean(axis=0, dtype=float), x[training].std(axis=0, dtype=float)
    return mean, np.where(deviation > 1e-6, deviation, 1.0)


@lru_cache(maxsize=8192)
def _digest(file: Path, *_: int) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


@lru_cache(maxsize=1)  # shared by all seeds
def _read_once(path: Path, digest: str, target: tuple[str, ...], ue_column: str | None) -> SampleTable:  # noqa: ARG001 (another digest is another file)
    with naming():
        if path.suffix == ".csv" and not path.is_dir():
            return read_csv(path, target, ue_column)
        if target or ue_column:
            raise DataBroken("has arrays x and y but no columns; leave out --target and --ue-column.")
        return read_folder(path) if path.is_dir() else read_arrays(path)
