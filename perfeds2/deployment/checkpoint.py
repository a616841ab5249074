"""How does a federation survive the death of its server?

When a round has closed, and before the new model goes out, everything that was merged is put on disk. What has happened
only grows, so it goes into a file that only grows: a line for each time, with what is new since the last. The model and the
few numbers that stand where others stood are one small file, written atomically and after the line; it says how long the
other file was then, and its checksum. What stands beyond is of a save that was cut off, and is cut off too.

A server that starts again takes it up there: the jobs that were out are given up, everybody is handed the newest model, and
nothing is merged twice, because no ticket is used twice.
"""

import hashlib
import json
import os
from typing import Any

import jax
import numpy as np

from perfeds2.deployment.federation import Federation
from perfeds2.deployment.transport import Arrays
from perfeds2.deployment.validate import Norms, form_of
from perfeds2.errors import InputError
from perfeds2.runs.folder import Folder

NAME = "federation"
TICKETS_AHEAD = 1_000_000  # tickets given out after the checkpoint and before the crash are not known: skip past them


class Checkpoints:
    """The two files of a federation. A save costs as much as the model and what is new, however long the run has been."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self.journal = folder.parts / f"{NAME}.jsonl"
        self._bytes = 0  # of the journal that count
        self._digest = hashlib.sha256()  # of these
        self._lengths: dict[str, int] = {}  # of the record's lists when it was last saved

    def save(self, federation: Federation, started_unix: float) -> None:
        self._append(federation)
        arrays = {f"params/{name}": values for name, values in federation.params.items()}
        leaves = jax.tree.leaves(federation.merging)
        arrays |= {f"optimiser/{number:04d}": np.asarray(leaf) for number, leaf in enumerate(leaves)}
        facts = {
            "round": federation.round,
            "opened_s": federation.opened_s,
            "next_ticket": federation.next_ticket,
            "ues": federation.ues,
            "norms": list(federation.norms.votes.items()),
            "started_unix": started_unix,
            "journal": {"bytes": self._bytes, "sha256": self._digest.hexdigest()},
        }
        self.folder.save_part(NAME, arrays, facts)

    def _append(self, federation: Federation) -> None:
        """One line: what is new in the record, and how the devices stand that changed."""
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
        """Bring a fresh federation to where the folder's was. Returns when that had started; None if there was none."""
        part = self.folder.load_part(NAME)
        if part is None:
            return None
        arrays, facts = part
        params = _under("params/", arrays)
        leaves, structure = jax.tree.flatten(federation.merging)
        saved = [values for _, values in sorted(_under("optimiser/", arrays).items())]
        ours = form_of(federation.params), len(leaves), federation.ues
        if (form_of(params), len(saved), facts["ues"]) != ours:
            raise InputError(
                f"checkpoint {self.folder.parts / NAME}.safetensors does not fit this federation; "
                f"delete {self.folder.parts} to begin anew."
            )
        federation.take_up(params, structure.unflatten(saved), facts["round"], facts["opened_s"])
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
        self.save(federation, started_unix)  # should we die before the next round, the tickets are gone too
        return started_unix

    def _lines(self, bytes: int, sha256: str) -> list[dict[str, Any]]:  # noqa: A002 (as the file has it)
        text = self.journal.read_bytes()[:bytes] if self.journal.exists() else b""
        digest = hashlib.sha256(text)
        if len(text) != bytes or digest.hexdigest() != sha256:
            raise InputError(
                f"{self.journal} is corrupt (its checksum is another); delete {self.folder.parts} to begin the run anew."
            )
        self._bytes, self._digest = bytes, digest
        return [json.loads(line) for line in text.splitlines()]


def _under(prefix: str, arrays: Arrays) -> dict[str, Any]:
    return {name.removeprefix(prefix): values for name, values in arrays.items() if name.startswith(prefix)}
