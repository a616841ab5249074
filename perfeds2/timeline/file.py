"""How do timelines lie in a file, and is what lies there one?"""

import zipfile
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

import numpy as np

from perfeds2.files import write_atomically
from perfeds2.timeline.timeline import Jobs, Timeline

LOG = "log"
# files of before had a row for every lost job; without a downlink there are no waits for models
MAY_LACK = {"lost_count", "model_s", "lost_model_s", "open_model_s"}
MOST_BYTES = 1 << 34  # unpacked; a million UEs for a million merged updates have 0.1 GB


def save_timelines(path: Path | str, timelines: Mapping[str, Timeline]) -> None:
    """Write several named timelines into one .npz (keys ``name/field``; the name may be empty)."""
    arrays = {
        f"{name}/{field}".lstrip("/"): column
        for name, timeline in timelines.items()
        for field, column in timeline.columns.items()
    }
    with (
        write_atomically(Path(path)) as file,
        zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
    ):
        for key, values in arrays.items():
            with archive.open(zipfile.ZipInfo(f"{key}.npy"), "w", force_zip64=True) as member:  # no clock in the bytes
                np.lib.format.write_array(member, np.ascontiguousarray(values), allow_pickle=False)


def load_timeline(path: Path | str) -> Timeline:
    """Read the one timeline of a file."""
    timelines = load_timelines(path)
    if list(timelines) != [""]:
        raise ValueError(
            f"{path} holds {len(timelines)} timelines ({', '.join(timelines)}); read it with load_timelines."
        )
    return timelines[""]


def load_timelines(path: Path | str) -> dict[str, Timeline]:
    """Read the timelines of a run's folder or file, by name."""
    path = Path(path)
    if path.is_dir():
        path = path / "timeline.npz"
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            if sum(member.file_size for member in archive.zip.infolist()) > MOST_BYTES:
                raise ValueError(f"it unpacks to more than {MOST_BYTES} bytes")
            arrays = {key: archive[key] for key in archive.files}
    except FileNotFoundError:
        raise
    except Exception as error:
        raise ValueError(
            f"{path} is not a readable timeline ({_first_line(error)}); expected an .npz written by perfeds2."
        ) from error
    columns = {f"{LOG}_{field.name}" for field in fields(Jobs)}
    names = {field.name for field in fields(Timeline) if field.name != LOG}
    grouped: dict[str, dict[str, np.ndarray]] = {}
    for key, values in arrays.items():
        name, _, field = key.rpartition("/")
        if isinstance(values, np.ndarray):  # np.load gives the bytes of members that are not arrays
            grouped.setdefault(name, {})[field] = values
    logs = {name: {key: group.pop(key) for key in sorted(columns & group.keys())} for name, group in grouped.items()}
    for group in grouped.values() or [{}]:
        if not names - MAY_LACK <= group.keys() <= names:
            raise ValueError(
                f"{path} is not a timeline: it lacks {sorted(names - MAY_LACK - group.keys())} and has extra {sorted(group.keys() - names)}."
            )
    for log in logs.values():
        if log and not columns - {f"{LOG}_model_s"} <= log.keys():  # files of before had none
            raise ValueError(f"{path} is not a timeline: it lacks {sorted(columns - log.keys())}.")
    try:
        return {name: Timeline(**group, log=_log(logs[name])) for name, group in grouped.items()}
    except ValueError as error:
        raise ValueError(f"{path} is not a timeline: {_first_line(error)}") from error


def _log(columns: Mapping[str, np.ndarray]) -> Jobs | None:
    """Of UEs that come and go."""
    return Jobs(**{key.removeprefix(f"{LOG}_"): values for key, values in columns.items()}) if columns else None


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
