"""Who may start a federation in a folder? Nobody where one runs."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from perfeds2.deployment.setup import Setup
from perfeds2.runs.folder import Folder, alone, claimed


@contextmanager
def starting(path: Path, setup: Setup) -> Iterator[Folder]:
    """A run's folder, for whoever starts the processes of its federation and looks after them: one at a time.

    The server is another process, which claims the folder itself, so this one claims the folder of the logs. Where a
    federation runs already nothing is touched.
    """
    with claimed(path, setup.spec, otherwise=already_runs(path)) as folder:
        logs = path / "logs"
        logs.mkdir(exist_ok=True)
    with alone(logs, otherwise=already_runs(path)):
        yield folder


def already_runs(path: Path) -> str:
    return f"a federation runs there: follow it with perfeds2 federate watch {path}, or stop it first"
