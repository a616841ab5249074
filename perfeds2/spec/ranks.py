"""Say which rank each UE's adapter has, if a fleet file limits it (``adapter_rank``)."""

import re

import numpy as np

from perfeds2.learning.models.adapter import Adapter
from perfeds2.network.fleet_file import FleetFile
from perfeds2.spec.fields import Spec


def ranks_of(spec: Spec) -> tuple[int, ...] | None:
    """Return the rank of each UE's adapter; None if all have the one of ``--adapter``."""
    fleet, text = None if spec.cell.kind is None else spec.cell.kind.value, spec.task.adapter
    most = None if text is None else Adapter.parse(text).rank
    if most is None or not isinstance(fleet, FleetFile):
        return None
    ranks = np.fmin(fleet.column("adapter_rank"), most).astype(int)
    return tuple(ranks.tolist()) if ranks.min() < most else None


def at_rank(spec: Spec, rank: int) -> Spec:
    """Return a spec in which every UE has an adapter of this rank."""
    text = re.sub(r"^lora:\d+", f"lora:{rank}", str(spec.task.adapter))
    return spec.with_(task=spec.task.with_(adapter=text), cell=spec.cell.with_(kind=None))
