"""Keep a copy of the files that a run's spec names in the run's folder. Needs no JAX."""

from collections.abc import Mapping
from pathlib import Path

from perfeds2.errors import InputError
from perfeds2.files import read_json, write_json
from perfeds2.network.fleet_file import FleetFile
from perfeds2.network.sites import Sites
from perfeds2.network.trajectories import Trajectories
from perfeds2.spec.fields import Spec
from perfeds2.spec.names import Named, Value, Values

FILES = {  # by section and key: what reads such a file, and its copy in a run's folder, with its traces
    ("cell", "kind"): (FleetFile, "fleet.json"),
    ("cells", "sites"): (Sites, "base_stations.json"),
    ("radio", "mobility"): (Trajectories, "trajectories.json"),
}


def keep_files(folder: Path, spec: Spec) -> None:
    """Copy the data files that a run's spec names into the folder of the run."""
    for (section, key), (kind, name) in FILES.items():
        named = dict(dict(spec)[section])[key]
        if isinstance(named, Named) and isinstance(named.value, kind) and not (folder / name).exists():
            write_json(folder / name, {of: text.decode() for of, text in named.value.texts.items()})


def with_kept_files(values: Mapping[str, Value], folder: Path) -> Values:
    """Return a run's nested values; a file that is missing is replaced by the copy in the folder."""
    values = dict(values)
    for (section, key), (kind, name) in FILES.items():
        given: Value = values.get(section)
        place = str(given.get(key)) if isinstance(given, Mapping) else ""
        if place.endswith((".csv", ".xml")) and not Path(place).exists() and (folder / name).exists():
            try:
                kept = read_json(folder / name)
                file = kind.open(place, {str(of): str(text).encode() for of, text in kept.items()})
            except (ValueError, OSError, AttributeError) as error:
                raise InputError(f"{folder / name} is damaged ({error}); restore {place}.") from None
            values[section] = {**given, key: Named(place, file, place, file.digest)}
    return values
