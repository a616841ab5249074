"""How does a federation survive the death of its server?

When a round has closed, and before the new model goes out, everything that was merged is written in one atomic file. A
server that starts again takes it up there: the jobs that were out are given up, everybody is handed the newest model, and
nothing is merged twice, because no ticket is used twice.
"""

from typing import Any

import numpy as np

from perfeds2.deployment.federation import Device, Federation
from perfeds2.deployment.record import Record
from perfeds2.deployment.transport import Arrays
from perfeds2.deployment.validate import form_of
from perfeds2.errors import InputError
from perfeds2.runs.folder import Folder

NAME = "federation"
TICKETS_AHEAD = 1_000_000  # tickets given out after the checkpoint and before the crash are not known: skip past them


def save_checkpoint(folder: Folder, federation: Federation, started_unix: float) -> None:
    import jax

    arrays = {f"params/{name}": values for name, values in federation.params.items()}
    leaves = jax.tree.leaves(federation.optimiser)
    arrays |= {f"optimiser/{number:04d}": np.asarray(leaf) for number, leaf in enumerate(leaves)}
    facts = {
        "round": federation.round,
        "opened_s": federation.opened_s,
        "next_ticket": federation.next_ticket,
        "devices": [(device.merged_in, device.held, device.refused) for device in federation.devices],
        "record": vars(federation.record),
        "started_unix": started_unix,
    }
    folder.save_part(NAME, arrays, facts)


def load_checkpoint(folder: Folder, federation: Federation) -> float | None:
    """Bring a fresh federation to where the folder's was. Returns when that had started; None if there was none."""
    part = folder.load_part(NAME)
    if part is None:
        return None
    arrays, facts = part
    import jax

    params = _under("params/", arrays)
    leaves, structure = jax.tree.flatten(federation.optimiser)
    saved = [values for _, values in sorted(_under("optimiser/", arrays).items())]
    devices = facts.get("devices", [])
    if form_of(params) != federation.form or len(saved) != len(leaves) or len(devices) != federation.ues:
        raise InputError(f"checkpoint {folder.parts / NAME}.safetensors does not fit this federation; delete it.")
    federation.params = params
    federation.optimiser = structure.unflatten(saved)
    federation.record = Record.read(facts["record"])
    federation.round, federation.opened_s = facts["round"], facts["opened_s"]
    federation.next_ticket = facts["next_ticket"] + TICKETS_AHEAD
    federation.devices = [Device(merged_in=m, held=held, refused=refused) for m, held, refused in devices]
    for seen in federation.record.evaluations:
        device = federation.devices[seen.ue]
        device.evaluated = max(device.evaluated, seen.version)
    started_unix = float(facts["started_unix"])
    save_checkpoint(folder, federation, started_unix)  # should we die before the next round, the tickets are gone too
    return started_unix


def _under(prefix: str, arrays: Arrays) -> dict[str, Any]:
    return {name.removeprefix(prefix): values for name, values in arrays.items() if name.startswith(prefix)}
