"""Save a federation's state, so that its server can be killed at any time and resume.

When a round has closed, and before the new model is sent, everything that was merged is written to disk. New rows of
the record are appended as one line to a journal. The model and the few numbers that change go into a small checkpoint
file, which is written atomically after the journal and contains the journal's length and checksum. Anything in the
journal beyond that length is from an interrupted save, and the next save truncates it.

The last three checkpoints are kept. A restarted server resumes from the newest that is intact: it gives up the jobs that
were outstanding and hands every device the newest model. Nothing is merged twice, because no ticket is used twice.

Each server numbers its checkpoints from a new million and copies the journal, so a stopped predecessor can only write
to files that are no longer read.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import PyTree

from perfeds2.deployment.crew import memory_of
from perfeds2.deployment.federation import Federation
from perfeds2.deployment.validate import Norms
from perfeds2.errors import InputError
from perfeds2.files import naming, write_text
from perfeds2.runs.folder import LOG, Folder
from perfeds2.runs.leaves import from_leaves, named_leaves
from perfeds2.runs.store import Arrays, Facts, load_arrays, save_arrays

NAME = "federation"
GENERATIONS = 3
SERVER = 1_000_000  # each server numbers its checkpoints from the next multiple
TICKETS_AHEAD = 1_000_000  # skips the unknown number of tickets issued between the checkpoint and the crash
TICKETS_FAR_AHEAD = 10**12  # the same if newer checkpoints may have been lost
STARTED = re.compile(r"^\S+ (started with|resumed:) ", re.MULTILINE)


Write = Callable[[Callable[[], None]], None]


class Generation(NamedTuple):
    """A checkpoint that is intact, with its journal."""

    arrays: Arrays
    facts: Facts
    journal: bytes

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.journal.splitlines()]


def _saved(federation: Federation) -> tuple[PyTree, ...]:
    """Return the arrays of a checkpoint."""
    return federation.params, federation.merging, federation.adopted, memory_of(federation.schedule)


class Checkpoints:
    """The journal and the checkpoints of a federation. The cost of a save does not grow with the run.

    Args:
        folder: The run's folder.
        write: Performs every write, which may be repeated.
    """

    def __init__(self, folder: Folder, write: Write = lambda what: what()) -> None:
        self.folder = folder
        self._write = write
        self._number = 0  # of the next checkpoint
        self._copies = GENERATIONS  # of the first checkpoint, so that fewer always mean a loss
        self._journal = self._path(0, "jsonl")
        self._bytes = 0  # valid length of the journal
        self._digest = hashlib.sha256()  # of these bytes
        self._lengths: dict[str, int] = {}  # of the record's lists at the last save

    def _path(self, number: int, kind: str) -> Path:
        return self.folder.parts / f"{NAME}-{number:012d}.{kind}"

    def _files(self, kind: str) -> list[Path]:
        return sorted(self.folder.parts.glob(f"{NAME}-*.{kind}"))

    def save(self, federation: Federation, started_unix: float) -> None:
        self._write(lambda: self._save(federation, started_unix))

    def _save(self, federation: Federation, started_unix: float) -> None:
        self._append(federation)
        facts = {
            "round": federation.round,
            "opened_s": federation.opened_s,
            "next_ticket": federation.dispatcher.next_ticket,
            "planned": None if (plan := federation.selection.plan) is None else plan.tolist(),
            "ues": federation.ues,
            "norms": list(federation.uploads.norms.votes.items()),
            "started_unix": started_unix,
            "head": self.folder.head(),
            "journal": {"bytes": self._bytes, "sha256": self._digest.hexdigest()},
        }
        arrays = named_leaves(NAME, _saved(federation))
        while self._copies:
            save_arrays(self._path(self._number, "safetensors"), arrays, facts)
            self._number += 1
            self._copies -= 1
        self._copies = 1
        self._prune()

    def _prune(self) -> None:
        """Delete all but the last three checkpoints, and the journals that belong to none of them."""
        files = self._files("safetensors")
        for path in files[:-GENERATIONS]:
            path.unlink(missing_ok=True)
        for old, journal in pairwise(self._files("jsonl")):
            if journal.stem <= files[-GENERATIONS:][0].stem:
                old.unlink(missing_ok=True)

    def _append(self, federation: Federation) -> None:
        """Append a line with the new rows of the record and the devices that changed."""
        crew, record = federation.crew, federation.record
        changed = [crew[ue] for ue in sorted(crew.changed)]
        devices = [(one.ue, one.merged_in, one.held, one.refused, one.set_aside_s) for one in changed]
        line = (json.dumps({"record": record.since(self._lengths), "devices": devices}) + "\n").encode()
        with naming(self._journal), self._journal.open("r+b" if self._bytes else "wb") as file:
            file.seek(self._bytes)
            file.truncate()
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        self._bytes += len(line)
        self._digest.update(line)
        self._lengths = record.lengths()
        crew.changed.clear()

    def intact(self) -> list[Generation]:
        """Return the checkpoints that can be read and whose journal is complete, oldest first."""
        found, journals = [], self._files("jsonl")
        for path in self._files("safetensors"):
            try:
                arrays, facts = load_arrays(path)
                journal = max(each for each in journals if each.stem <= path.stem)
                text = journal.read_bytes()[: facts["journal"]["bytes"]]
            except (InputError, ValueError, OSError):  # corrupt, without a journal, or deleted meanwhile
                continue
            if hashlib.sha256(text).hexdigest() == facts["journal"]["sha256"]:
                found.append(Generation(arrays, facts, text))
        return found

    def load(self, federation: Federation) -> float | None:
        """Restore a new federation from the newest intact checkpoint in the folder.

        Returns:
            When the run started, in Unix seconds; None if it has not.

        Raises:
            InputError: The run has started but no checkpoint is intact, or they do not fit the federation.
        """
        found, files, log = self.intact(), self._files("*"), self.folder.path / LOG
        if not found:
            if files or (log.exists() and STARTED.search(log.read_text(encoding="utf-8", errors="replace"))):
                raise InputError(
                    f"{self.folder.parts} has no intact checkpoint, but this federation has started. Restore that "
                    f"folder from a backup, or start a new run in another folder."
                )
            return None
        arrays, facts, text = found[-1]
        saved = from_leaves(NAME, arrays, _saved(federation))
        if saved is None or facts["ues"] != federation.ues:
            raise InputError(
                f"the checkpoint in {self.folder.parts} belongs to another federation; start a new run in another folder."
            )
        federation.round, federation.opened_s = facts["round"], facts["opened_s"]
        federation.become(*saved[:2])
        federation.adopted = saved[2]
        memory_of(federation.schedule).update(saved[3])
        federation.selection.plan = None if facts["planned"] is None else np.array(facts["planned"])
        lost = len(found) < GENERATIONS
        if lost and federation.learner.noise is not None:
            raise InputError(
                f"only {len(found)} of {GENERATIONS} checkpoints in {self.folder.parts} are intact, so rounds may be lost. "
                f"To repeat them with the same noise would reveal updates. Start a new run in another folder."
            )
        if lost:
            federation.log(f"warning: {len(found)} of {GENERATIONS} checkpoints are intact; using the newest of them")
        federation.dispatcher.next_ticket = facts["next_ticket"] + (TICKETS_FAR_AHEAD if lost else TICKETS_AHEAD)
        federation.dispatcher.first_ticket = federation.dispatcher.next_ticket
        federation.uploads.norms = Norms(federation.ues, ((ue, norm) for ue, norm in facts["norms"]))
        for line in found[-1].lines:
            federation.record.extend(line["record"])
            for ue, merged_in, held, refused, set_aside_s in line["devices"]:
                device = federation.crew[ue]
                device.merged_in, device.held = merged_in, held
                device.refused, device.set_aside_s = refused, set_aside_s
        self._lengths = federation.record.lengths()
        _rebuild(federation)
        self._number = (int(max(path.stem for path in files).rpartition("-")[2]) // SERVER + 1) * SERVER
        self._journal, self._bytes, self._digest = self._path(self._number, "jsonl"), len(text), hashlib.sha256(text)
        self._write(lambda: write_text(self._journal, text.decode()))
        started_unix = float(facts["started_unix"])
        self.save(federation, started_unix)  # otherwise a crash before the next round would reuse tickets
        return started_unix


def _rebuild(federation: Federation) -> None:
    """Rebuild counters and device states from the restored record and devices."""
    crew, record = federation.crew, federation.record
    federation.dispatcher.refused = sum(device.refused for device in federation.devices)
    for lap in record.laps:
        crew[lap.ue].took_s = lap.took_s
    gone = {(lap.ue, lap.version) for lap in record.laps if not lap.scale}
    for merge in record.merges:
        crew[merge.ue].merges += 1
        if (merge.ue, merge.version) not in gone:
            crew[merge.ue].merged_ticket = merge.ticket
    for seen in record.evaluations:
        federation.watch.update(crew[seen.ue], seen)
    aside = [(device.set_aside_s, device.ue) for device in federation.devices if device.set_aside_s is not None]
    for _, ue in sorted(aside):
        crew.file(crew[ue])
