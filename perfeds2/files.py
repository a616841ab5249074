"""How is a file written so that a crash leaves the old one or the new one, never half of either?"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def write_atomically(path: Path) -> Iterator[IO[bytes]]:
    """Open a temporary file beside ``path``; it takes the name only when everything is on disk."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    with write_atomically(path) as file:
        file.write(text.encode())
