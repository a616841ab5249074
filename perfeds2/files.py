"""Write files atomically: after a crash there is either the old file or the new one."""

import errno
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")
FULL = (errno.ENOSPC, errno.EDQUOT)  # errors of a full disk
ROOM_EVERY_S = 1.0
Json = dict[str, Any]  # a JSON object
UNFINISHED = re.compile(r"\..+\.(\d+)-\w{8}")  # .NAME.PID-RANDOM


@contextmanager
def write_atomically(path: Path, mode: int = 0o644) -> Iterator[IO[bytes]]:
    """Open a temporary file beside ``path`` and rename it to ``path`` once its content is on disk.

    Only the owner can read the temporary file; the final file has permissions ``mode``.
    """
    with naming(path):
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.{os.getpid()}-")
        try:
            with os.fdopen(descriptor, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, mode)
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):  # report the first error
                os.unlink(temporary)
            raise


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Make OSErrors name the user's file instead of the temporary one."""
    try:
        yield
    except OSError as error:
        error.filename, error.filename2 = str(path), None
        raise


def retry_while_full(write: Callable[[], T], paused: Callable[[str], None] = lambda _: None) -> T:
    """Call ``write`` again every second while the disk is full, and say so on stderr once.

    Args:
        write: A write that can be repeated.
        paused: Called with a sentence before every wait.
    """
    said = False
    while True:
        try:
            return write()
        except OSError as error:
            if error.errno not in FULL:
                raise
            why = f"the disk is full: {error.filename} cannot be written; make room there"
        if not said:
            with suppress(OSError):  # stderr may be a file on the same disk
                print(why, file=sys.stderr, flush=True)
        said = True
        paused(why)
        time.sleep(ROOM_EVERY_S)


def write_text(path: Path, text: str) -> None:
    with write_atomically(path) as file:
        file.write(text.encode())


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def write_json(path: Path, value: object) -> None:
    write_text(path, json.dumps(value, indent=1) + "\n")


def read_table(path: Path, **options: Any) -> "pd.DataFrame":
    """Read a CSV file to the last digit."""
    import pandas as pd

    if tuple(map(int, pd.__version__.split(".")[:2])) < (3, 1):  # later versions do so by default
        options["float_precision"] = "round_trip"
    return pd.read_csv(path, **options)


def clear_unfinished(folder: Path) -> None:
    """Delete temporary files left by killed processes; those of running processes stay."""
    for path in folder.glob(".*"):
        match = UNFINISHED.fullmatch(path.name)
        # A predecessor in a container may have had the PID of this process.
        if match is not None and (int(match[1]) == os.getpid() or not is_alive(int(match[1]))):
            path.unlink(missing_ok=True)


def is_alive(process: int) -> bool:
    """Return whether a process with this PID exists on this machine."""
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # it exists but belongs to another user
        pass
    return True
