"""What does a device keep between jobs, and when does that count?

A job of a device with a memory leaves two things: the upload, and what the device keeps then. Whether the upload is merged the
device learns with its next job, which names the last of its jobs that was. So what a job left is written down beside what
was kept before it, under its ticket, before the upload is sent; named by the next job, it takes the other's place. A
job that was lost is never named, and leaves no trace.

One small file for each run, written atomically, so that a device can be killed at any moment; it never leaves the device.
Nothing that stands in it is believed before its size, its checksum and its form have been looked at.
"""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from perfeds2.deployment.transport import Arrays
from perfeds2.errors import InputError
from perfeds2.files import clear_unfinished
from perfeds2.runs.store import load_arrays, save_arrays

MOST_RUNS = 16  # whose memory a device has; then the oldest goes
SLACK_BYTES = 64 * 1024  # by how much a file may be longer than its arrays
NOTHING = None  # the ticket of what a device has before its first job


@dataclass(frozen=True)
class Memory:
    """What one device keeps in one run."""

    folder: Path  # the device's own
    run: str
    first: Any  # what it has before its first job, as arrays

    @property
    def file(self) -> Path:
        return self.folder / f"{self.run}.safetensors"

    def after(self, ticket: int | None) -> Any:
        """What was kept after that job, the last that was merged; None: none was yet."""
        if ticket is NOTHING:
            return self.first
        known = self._read()
        if ticket not in known:
            raise InputError(
                f"{self.file} does not hold what this device kept after ticket {ticket}, the last that was merged; put the "
                f"file back, or start the run anew."
            )
        return known[ticket]

    def keep(self, merged: int | None, before: Any, ticket: int, left: Any) -> None:
        """Write down what a job left, beside what was kept before it."""
        arrays = {**_named("left", left), **({} if merged is NOTHING else _named("before", before))}
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        clear_unfinished(self.folder)
        save_arrays(self.file, arrays, {"left": ticket, "before": merged})
        others = [file for file in self.folder.glob("*.safetensors") if file != self.file]
        too_many = max(0, len(others) + 1 - MOST_RUNS)
        for file in sorted(others, key=lambda each: each.stat().st_mtime)[:too_many]:
            with suppress(OSError):
                file.unlink()

    def _read(self) -> dict[int, Any]:
        """What is known, by ticket; nothing if there is no file."""
        leaves, structure = jax.tree.flatten(self.first)
        try:
            size = self.file.stat().st_size
        except OSError:
            return {}
        if size > 2 * sum(np.asarray(leaf).nbytes for leaf in leaves) + SLACK_BYTES:
            raise InputError(
                f"{self.file} has {size:,} bytes, more than this device can have kept; put the right one back."
            )
        arrays, facts = load_arrays(self.file)
        known = {}
        for name in ("before", "left"):
            ticket = facts.get(name)
            if ticket is NOTHING:
                continue
            came = [arrays.get(f"{name}/{number:04d}") for number in range(len(leaves))]
            if type(ticket) is not int or not all(map(_is_like, came, leaves)):
                raise InputError(
                    f"{self.file} holds something else than this run's devices keep; put the right one back."
                )
            known[ticket] = structure.unflatten(came)
        return known


def _named(name: str, kept: Any) -> Arrays:
    return {f"{name}/{number:04d}": np.asarray(leaf) for number, leaf in enumerate(jax.tree.leaves(kept))}


def _is_like(came: Any, first: Any) -> bool:
    first = np.asarray(first)
    return isinstance(came, np.ndarray) and (came.shape, came.dtype) == (first.shape, first.dtype)
