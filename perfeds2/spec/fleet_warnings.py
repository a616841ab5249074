"""Warn about values of a cell or a fleet that seem to be in another unit, and about too little memory."""

import math
from collections.abc import Iterator

from perfeds2.learning.learner import Learner
from perfeds2.learning.objectives import FedAvg
from perfeds2.learning.operations import job_bytes
from perfeds2.network.fleet_file import unit_hint
from perfeds2.spec.cells import fleet_of, trajectories_of, upload_bits
from perfeds2.spec.fields import Spec
from perfeds2.spec.learners import make_learner
from perfeds2.spec.methods import method_of
from perfeds2.spec.stage import Algorithm
from perfeds2.spec.tasks import model_of, sample_of


def fleet_warnings(spec: Spec) -> list[str]:
    """Return warnings about values that seem to be in another unit, and about too little memory."""
    fleet, values = fleet_of(spec), {"power_w": [spec.cell.power_w], "cpu_hz": list(spec.cell.cpu_hz)}
    values["bandwidth_hz"], paths = [spec.cell.bandwidth_hz], trajectories_of(spec)
    said = [f"--{name.replace('_', '-')} {hint}." for name, of in values.items() if (hint := unit_hint(name, of))]
    if paths is not None and paths.time_s.min() > (spec.run.horizon_s or math.inf):
        said.append(f"--mobility {spec.radio.mobility} begins at {paths.time_s.min():g} s, when the run is over.")
    if fleet is None:
        return said
    said += fleet.unit_warnings(upload_bits(spec))
    if any("memory_mb" in row.numbers for row in fleet.rows):
        needed = {name: job_bytes(model_of(spec), sample_of(spec), learner) for name, learner in _learners(spec)}
        largest = max(needed, key=needed.__getitem__)
        said += fleet.memory_warning(largest, needed[largest])
    return said


def _learners(spec: Spec) -> Iterator[tuple[str, Learner]]:
    """Yield the names and learners of the algorithms; a gradient stands for one that a function makes later."""
    for named in spec.algorithms:
        found, own = method_of(named), named.value
        if found is not None:
            yield found[0], make_learner(spec, *found)
        elif isinstance(own, Algorithm):
            yield own.name, own.learner
        else:
            yield named.label, Learner(FedAvg(), batch=spec.learning.batch)
