"""What cell does a fleet file stand for, and how does it travel with a run's folder?"""

import inspect
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perfeds2.errors import InputError
from perfeds2.files import write_text
from perfeds2.network.cell import Cell
from perfeds2.network.fleet_file import FleetFile
from perfeds2.spec.fields import Spec
from perfeds2.spec.names import Named

KEPT = "fleet.json"  # in a run's folder: the fleet file and its traces


def cell_of_fleet(spec: Spec, file: FleetFile, **settings: Any) -> Cell:
    """The cell that is drawn without a file, with what the file says over it."""
    if spec.cell.distance_m is not None:
        raise InputError(f"--distance-m and --cell {spec.cell.kind} were both given; the file has a column distance_m.")
    if file.ues != spec.cell.ues:
        raise InputError(f"--cell {spec.cell.kind} has {file.ues} devices, but there are {spec.cell.ues} (--ues).")
    taken = inspect.signature(Cell).parameters.keys() | inspect.signature(Cell.draw).parameters.keys()
    drawn = Cell.draw(**{key: value for key, value in settings.items() if key in taken})
    try:
        cell = file.cell(
            drawn, spec.learning.batch, spec.cell.trace_end or "repeat", keeps=spec.cell.on_leave == "keep"
        )
    except ValueError as error:
        raise InputError(f"--cell {error}") from None
    if cell.downlink is not None and cell.fleet is not None and not cell.fleet.shares_band.all():
        raise InputError(
            f"--downlink {spec.radio.downlink} does not go with devices that have uplinks of their own ({spec.cell.kind}): how "
            f"models reach them is not known; leave it out, or give --downlink-s."
        )
    return cell


def seconds_a_step(spec: Spec) -> int | None:
    """The batch of which a fleet file says how long a step on it takes; None if none does."""
    kind = None if spec.cell.kind is None else spec.cell.kind.value
    tells = isinstance(kind, FleetFile) and any("compute_s" in row.numbers for row in kind.rows)
    return spec.learning.batch if tells else None


def limits_energy(spec: Spec) -> bool:
    """Return whether any UE has an energy budget, from the spec or from its fleet file."""
    kind = None if spec.cell.kind is None else spec.cell.kind.value
    return spec.energy.budget is not None or (isinstance(kind, FleetFile) and kind.has_energy_budgets)


def refuse_without_a_fleet(spec: Spec) -> None:
    """Settings of fleets that would change nothing."""
    kind = None if spec.cell.kind is None else spec.cell.kind.value
    for flag, given, needs in (
        ("--trace-end", spec.cell.trace_end, "traces (uplink_trace)"),
        ("--on-leave", spec.cell.on_leave, "hours (available)"),
    ):
        has = isinstance(kind, FleetFile) and (kind.has_traces if flag == "--trace-end" else kind.has_hours)
        if given is not None and not has and not isinstance(kind, Cell):
            raise InputError(f"{flag} {given} changes nothing without a --cell FILE.csv whose devices have {needs}.")


def keep_fleet(folder: Path, spec: Spec) -> None:
    """Put the files of a run's fleet into its folder."""
    kind = None if spec.cell.kind is None else spec.cell.kind.value
    if isinstance(kind, FleetFile) and not (folder / KEPT).exists():
        texts = {name: text.decode() for name, text in kind.texts.items()}
        write_text(folder / KEPT, json.dumps(texts, indent=1) + "\n")


def with_kept_fleet(values: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """A run's nested values; a fleet file that is not where it was is taken from the folder."""
    cell = values.get("cell")
    place = cell.get("kind") if isinstance(cell, Mapping) else None
    is_file = isinstance(place, str) and place.endswith(".csv") and not os.path.exists(place)
    if not isinstance(cell, Mapping) or not isinstance(place, str) or not is_file or not (folder / KEPT).exists():
        return dict(values)
    try:
        kept = json.loads((folder / KEPT).read_text(encoding="utf-8"))
        file = FleetFile.open(place, {str(name): str(text).encode() for name, text in kept.items()})
    except (ValueError, OSError, AttributeError) as error:
        raise InputError(f"{folder / KEPT} is no fleet that a run kept ({error}); put {place} back.") from None
    return {**values, "cell": {**cell, "kind": Named(place, file, place, file.digest)}}
