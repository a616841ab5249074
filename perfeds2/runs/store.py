"""Store results, one file per training under its key, and checkpoints of running trainings."""

import csv
import hashlib
import json
import shutil
import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from perfeds2.errors import InputError
from perfeds2.files import Json, clear_unfinished, read_json, write_atomically, write_text
from perfeds2.timeline.record import Timeline, save_timelines

Arrays = dict[str, np.ndarray]
Row = Json  # one row of metrics.csv or ue_metrics.csv
Facts = Json  # facts about a training's timeline and settings, as JSON
TRAININGS = "trainings"  # store of a study, kept with its results
PARTS = "parts"  # store of a run, deleted once its tables are written
RESULT = ".safetensors"
CHECKPOINT = ".checkpoint.safetensors"
INDEX = "trainings.json"  # keys and facts of a finished run; the rows are in its tables


@dataclass(frozen=True)
class Result:
    """The result of one training."""

    rows: list[Row]  # one per evaluation: algorithm, seed, round, time_s, metrics, costs
    ue_rows: list[Row]  # one per UE: metrics of the final model
    facts: Facts
    group: str = ""  # hash of the group it was trained in; empty if trained alone
    weights: Arrays = field(default_factory=dict, repr=False)
    timeline: Timeline | None = field(default=None, repr=False)


class Store:
    """Results by key, and checkpoints of running trainings. Files are written atomically and have checksums.

    Args:
        path: The folder of the files. None is a temporary folder without checkpoints, deleted with the store.
        reuse: Other studies whose results may be copied.
        whole: Keep weights and timelines too, not only rows.
    """

    def __init__(self, path: Path | None, *, reuse: "Sequence[OtherStore]" = (), whole: bool = False) -> None:
        self.has_checkpoints, self.whole, self._reuse = path is not None, whole, reuse
        if path is None:
            path = Path(mkdtemp(prefix="perfeds2-")) / TRAININGS
            weakref.finalize(self, shutil.rmtree, path.parent, ignore_errors=True)
        self.path = path
        self.path.mkdir(exist_ok=True)
        clear_unfinished(self.path)
        for checkpoint in path.glob(f"*{CHECKPOINT}"):  # left by a process killed right after it stored the result
            if (path / checkpoint.name.replace(CHECKPOINT, RESULT)).exists():
                checkpoint.unlink(missing_ok=True)

    def get(self, key: str) -> Result | None:
        """Return a training's result; None if there is none or its file is damaged."""
        return _read_result(self.path, key, whole=self.whole)

    def put(self, key: str, result: Result) -> None:
        """Store a result and delete the training's checkpoint."""
        if self.whole and result.timeline is not None:
            save_timelines(self.path / f"{key}.npz", {"": result.timeline})
        facts = {"rows": result.rows, "ue_rows": result.ue_rows, "facts": result.facts, "group": result.group}
        save_arrays(self.path / f"{key}{RESULT}", result.weights if self.whole else {}, facts)
        self._checkpoint(key).unlink(missing_ok=True)

    def take(self, key: str, group: str) -> bool:
        """Copy a result from the folders to reuse if it was trained in an equal group; return whether it did."""
        for source in self._reuse:
            found = source.get(key)
            if found is not None and found.group == group and not self.whole:
                self.put(key, found)
                source.taken += 1
                return True
        return False

    def save_checkpoint(self, key: str, arrays: Arrays, facts: Facts) -> None:
        save_arrays(self._checkpoint(key), arrays, facts)

    def load_checkpoint(self, key: str) -> tuple[Arrays, Facts] | None:
        """Return the last checkpoint of a training; None if there is none or it is damaged."""
        with suppress(InputError):
            return load_arrays(self._checkpoint(key)) if self._checkpoint(key).exists() else None
        return None

    def _checkpoint(self, key: str) -> Path:
        return self.path / f"{key}{CHECKPOINT}"


def _read_result(path: Path, key: str, *, whole: bool) -> Result | None:
    with suppress(InputError, OSError, ValueError, LookupError, TypeError):
        weights, kept = load_arrays(path / f"{key}{RESULT}")
        timeline = Timeline.load(path / f"{key}.npz") if whole else None
        return Result(**kept, weights=weights, timeline=timeline)
    return None


# ---- results of other studies


class OtherStore:
    """The results of another folder: a study, an unfinished run or a finished run."""

    def __init__(self, folder: Path | str) -> None:
        folder, self.taken = Path(folder), 0  # the count of results copied from here
        self._stores = [folder / name for name in (TRAININGS, PARTS) if (folder / name).is_dir()]
        self._finished = read_finished(folder) if (folder / INDEX).exists() else {}
        if not self._stores and not (folder / INDEX).exists():
            raise InputError(
                f"--reuse {folder} has no trainings; give the folder of a comparison, sweep, tuning or plan."
            )

    def get(self, key: str) -> Result | None:
        found = (_read_result(path, key, whole=False) for path in self._stores)
        return next((one for one in found if one is not None), self._finished.get(key))


Reuse = Sequence[OtherStore | Path | str]  # folders of other studies whose results may be copied


def open_others(reuse: Reuse) -> list[OtherStore]:
    """Open the folders of other studies; called before anything is written."""
    return [other if isinstance(other, OtherStore) else OtherStore(other) for other in reuse]


def write_index(folder: Path, results: Sequence[tuple[str, Result]]) -> None:
    """Write which trainings a finished run's tables contain, so that other studies can reuse them."""
    listed = [{"key": key, "group": one.group, "facts": one.facts} for key, one in results]
    write_text(folder / INDEX, json.dumps(listed) + "\n")


def read_finished(folder: Path) -> dict[str, Result]:
    """Return a finished run's results by key, from its index and tables."""
    try:
        rows, ue_rows = (read_rows(folder / f"{name}.csv") for name in ("metrics", "ue_metrics"))
        found: dict[str, Result] = {}
        for one in read_json(folder / INDEX):
            which = one["facts"]["algorithm"], one["facts"]["seed"]
            found[one["key"]] = Result(rows[which], ue_rows[which], one["facts"], one["group"])
        return found
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise InputError(f"--reuse {folder} cannot be read ({type(error).__name__}: {error}).") from None


def read_rows(path: Path) -> dict[tuple[str, int], list[Row]]:
    """Return the rows of a run's metrics.csv or ue_metrics.csv by (algorithm, seed)."""
    found: dict[tuple[str, int], list[Row]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for read in csv.DictReader(file):
            row: Row = {name: text if name == "algorithm" else _number(text) for name, text in read.items()}
            found.setdefault((row["algorithm"], row["seed"]), []).append(row)
    return found


def _number(text: str) -> float:
    return int(text) if text.removeprefix("-").isdecimal() else float(text)


# ---- arrays and facts in one file


def save_arrays(path: Path, arrays: Arrays, facts: Facts | None = None) -> None:
    """Write named arrays, and facts as JSON, to one safetensors file with a checksum."""
    arrays = {key: np.asarray(values, order="C") for key, values in arrays.items()}
    checked = {"sha256": _digest(arrays, facts or {}), "facts": facts or {}}
    with write_atomically(path) as file:
        file.write(save(arrays, {"facts": json.dumps(checked)}))


def load_arrays(path: Path) -> tuple[Arrays, Facts]:
    """Read a file written by ``save_arrays``.

    Raises:
        InputError: If the file is damaged.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            checked = json.loads((file.metadata() or {})["facts"])
            arrays = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a mapping)
        if checked["sha256"] != _digest(arrays, checked["facts"]):
            raise ValueError("its checksum does not match")
        return arrays, checked["facts"]
    except (SafetensorError, LookupError, TypeError, ValueError, OSError, RecursionError) as error:
        raise InputError(
            f"checkpoint {path} is corrupt ({' '.join(str(error).split())}); delete it to repeat that part of the run."
        ) from None


def _digest(arrays: Arrays, facts: Facts) -> str:
    digest = hashlib.sha256(json.dumps(facts).encode())
    for key in sorted(arrays):
        values = arrays[key]
        digest.update(f"{key} {values.dtype} {values.shape} ".encode())
        digest.update(values.tobytes())
    return digest.hexdigest()
