"""Save a federation's state, so that its server can be killed at any time and resume.

When a round has closed, and before the new model is sent, everything that was merged is written to disk. New rows of
the record are appended as one line to a journal. The model and the few numbers that change go into a small checkpoint
file, which is replaced atomically after the journal was written and contains the journal's length and checksum.
Anything in the journal beyond that length is from an interrupted save, and the next save truncates it.

A restarted server resumes there: it gives up the jobs that were outstanding and hands every device the newest model.
Nothing is merged twice, because no ticket is used twice.
"""

import hashlib
import json
import os
from typing import Any

from perfeds2.deployment.federation import Federation
from perfeds2.deployment.leaves import from_leaves, named_leaves
from perfeds2.deployment.validate import Norms
from perfeds2.errors import InputError
from perfeds2.runs.folder import Folder

NAME = "federation"
TICKETS_AHEAD = 1_000_000  # skips the unknown number of tickets issued between the checkpoint and the crash


class Checkpoints:
    """The journal and the checkpoint of a federation. The cost of a save does not grow with the run."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self.journal = folder.parts / f"{NAME}.jsonl"
        self._bytes = 0  # valid length of the journal
        self._digest = hashlib.sha256()  # of these bytes
        self._lengths: dict[str, int] = {}  # of the record's lists at the last save

    def save(self, federation: Federation, started_unix: float) -> None:
        self._append(federation)
        facts = {
            "round": federation.round,
            "opened_s": federation.opened_s,
            "next_ticket": federation.next_ticket,
            "ues": federation.ues,
            "norms": list(federation.norms.votes.items()),
            "started_unix": started_unix,
            "journal": {"bytes": self._bytes, "sha256": self._digest.hexdigest()},
        }
        self.folder.save_part(NAME, named_leaves(NAME, (federation.params, federation.merging)), facts)

    def _append(self, federation: Federation) -> None:
        """Append a line with the new rows of the record and the devices that changed."""
        crew, record = federation.crew, federation.record
        changed = [crew[ue] for ue in sorted(crew.changed)]
        devices = [(one.ue, one.merged_in, one.held, one.refused, one.set_aside_s) for one in changed]
        line = (json.dumps({"record": record.since(self._lengths), "devices": devices}) + "\n").encode()
        with self.journal.open("r+b" if self._bytes else "wb") as file:
            file.seek(self._bytes)
            file.truncate()
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        self._bytes += len(line)
        self._digest.update(line)
        self._lengths = record.lengths()
        crew.changed.clear()

    def load(self, federation: Federation) -> float | None:
        """Restore a new federation from the checkpoint in the folder.

        Returns:
            When the run started, in Unix seconds; None if there is no checkpoint.

        Raises:
            InputError: The checkpoint is corrupt or does not fit the federation.
        """
        part = self.folder.load_part(NAME)
        if part is None:
            return None
        arrays, facts = part
        saved = from_leaves(NAME, arrays, (federation.params, federation.merging))
        if saved is None or facts["ues"] != federation.ues:
            raise InputError(
                f"checkpoint {self.folder.parts / NAME}.safetensors belongs to another federation; "
                f"delete {self.folder.parts} to start again."
            )
        federation.round, federation.opened_s = facts["round"], facts["opened_s"]
        federation.become(*saved)
        federation.next_ticket = facts["next_ticket"] + TICKETS_AHEAD
        federation.norms = Norms(federation.ues, ((ue, norm) for ue, norm in facts["norms"]))
        for line in self._lines(**facts["journal"]):
            federation.record.extend(line["record"])
            for ue, merged_in, held, refused, set_aside_s in line["devices"]:
                device = federation.crew[ue]
                device.merged_in, device.held = merged_in, held
                device.refused, device.set_aside_s = refused, set_aside_s
        self._lengths = federation.record.lengths()
        federation.recall()
        started_unix = float(facts["started_unix"])
        self.save(federation, started_unix)  # otherwise a crash before the next round would reuse tickets
        return started_unix

    def _lines(self, bytes: int, sha256: str) -> list[dict[str, Any]]:  # noqa: A002 (as the file has it)
        text = self.journal.read_bytes()[:bytes] if self.journal.exists() else b""
        digest = hashlib.sha256(text)
        if len(text) != bytes or digest.hexdigest() != sha256:
            raise InputError(
                f"{self.journal} is corrupt (wrong checksum); delete {self.folder.parts} to start the run again."
            )
        self._bytes, self._digest = bytes, digest
        return [json.loads(line) for line in text.splitlines()]
