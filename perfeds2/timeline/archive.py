"""Write named groups of arrays to one .npz file and read them back, without trusting the file."""

import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from perfeds2.files import write_atomically

MAX_BYTES = 1 << 34  # uncompressed; a timeline of a million UEs with a million merged updates takes 0.1 GB
Columns = Mapping[str, np.ndarray]


def write_arrays(path: Path, groups: Mapping[str, Columns]) -> None:
    """Write arrays with the keys ``group/name``; a group's name may be empty. Equal arrays give equal bytes."""
    with write_atomically(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for group, columns in groups.items():
            for name, values in columns.items():
                entry = f"{group}/{name}".lstrip("/") + ".npy"  # opened by name, it gets no timestamp
                with archive.open(entry, "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, np.asarray(values, order="C"), allow_pickle=False)


def read_arrays(path: Path) -> dict[str, dict[str, np.ndarray]]:
    """Read such a file by group and name.

    Raises:
        ValueError: If the file is not readable.
    """
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            if sum(member.file_size for member in archive.zip.infolist()) > MAX_BYTES:
                raise ValueError(f"it unpacks to more than {MAX_BYTES} bytes")
            arrays = {key: archive[key] for key in archive.files}
    except FileNotFoundError:
        raise
    except Exception as error:
        raise ValueError(
            f"{path} is not a readable timeline ({first_line(error)}); expected an .npz written by perfeds2."
        ) from error
    grouped: dict[str, dict[str, np.ndarray]] = {}
    for key, values in arrays.items():
        group, _, name = key.rpartition("/")
        if isinstance(values, np.ndarray):  # np.load returns raw bytes for members that are not arrays
            grouped.setdefault(group, {})[name] = values
    return grouped


def first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
