"""Keep a copy of the files that a run's spec names in the run's folder. Needs no JAX."""

from collections.abc import Mapping
from pathlib import Path

from perfeds2.errors import InputError
from perfeds2.files import read_json, write_json
from perfeds2.network.fleet_file import FleetFile
from perfeds2.network.sites import Sites
from perfeds2.spec.fields import Spec
from perfeds2.spec.names import Named, Value, Values

KEPT = "fleet.json"  # in a run's folder: a copy of the fleet file and its traces, or of the file of base stations
FILES = {("cell", "kind"): FleetFile, ("cells", "sites"): Sites}  # a run has at most one of them


def keep_files(folder: Path, spec: Spec) -> None:
    """Copy a run's fleet file and its traces, or its file of base stations, into the folder of the run."""
    for named in (spec.cell.kind, spec.cells.sites):
        if isinstance(named, Named) and isinstance(named.value, (*FILES.values(),)) and not (folder / KEPT).exists():
            write_json(folder / KEPT, {name: text.decode() for name, text in named.value.texts.items()})


def with_kept_files(values: Mapping[str, Value], folder: Path) -> Values:
    """Return a run's nested values; a file that is missing is replaced by the copy in the folder."""
    values = dict(values)
    for (section, key), kind in FILES.items():
        given: Value = values.get(section)
        place = str(given.get(key)) if isinstance(given, Mapping) else ""
        if place.endswith(".csv") and not Path(place).exists() and (folder / KEPT).exists():
            try:
                kept = read_json(folder / KEPT)
                file = kind.open(place, {str(name): str(text).encode() for name, text in kept.items()})
            except (ValueError, OSError, AttributeError) as error:
                raise InputError(f"{folder / KEPT} is damaged ({error}); restore {place}.") from None
            values[section] = {**given, key: Named(place, file, place, file.digest)}
    return values
