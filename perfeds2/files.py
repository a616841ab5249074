"""How is a file written so that a crash leaves the old one or the new one, never half of either?"""

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

UNFINISHED = re.compile(r"\..+\.(\d+)-\w{8}")  # .NAME.PROCESS-RANDOM


@contextmanager
def write_atomically(path: Path, mode: int = 0o644) -> Iterator[IO[bytes]]:
    """Open a temporary file beside ``path``; it takes the name only when everything is on disk.

    Until then only its owner can read it; ``mode`` is what it ends with.
    """
    with _naming(path):
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.{os.getpid()}-")
        try:
            with os.fdopen(descriptor, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, mode)
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):  # the first error is the one to tell
                os.unlink(temporary)
            raise


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Let an error of the disk name the file the user knows of, whichever step failed."""
    try:
        yield
    except OSError as error:
        error.filename, error.filename2 = str(path), None
        raise


def write_text(path: Path, text: str) -> None:
    with write_atomically(path) as file:
        file.write(text.encode())


def clear_unfinished(folder: Path) -> None:
    """Delete what killed processes left half-written. What a living process is writing stays."""
    for path in folder.glob(".*"):
        match = UNFINISHED.fullmatch(path.name)
        if match is not None and not _is_alive(int(match[1])):
            path.unlink(missing_ok=True)


def _is_alive(process: int) -> bool:
    if os.name == "nt":  # where asking would end it
        return True
    if process == os.getpid():  # in a container every process has the same number: the one before us
        return False
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # somebody else's
        pass
    return True
