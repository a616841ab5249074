"""Execute a study: its workers, the results it reuses, its followers, and its folder."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from perfeds2.errors import InputError
from perfeds2.runs.folder import FILES, claim_folder, locked
from perfeds2.runs.pool import PROCESSES, Workers
from perfeds2.runs.progress import Follower, Reporter, Watch, open_live
from perfeds2.runs.store import TRAININGS, Reuse, Store, open_others
from perfeds2.runs.trackers import TrackerChoice, trackers
from perfeds2.spec.names import Values, refuse_while_loading
from perfeds2.spec.resolve import nested, read_toml

Base = Mapping[str, Any] | Path | str  # settings as ``compare`` takes them, or a spec file
KEYWORDS = ("on", "workers", "retries", "reuse", "watch", "yes", "track")  # of ``Execution.from_python``


@runtime_checkable
class StudyRequest(Protocol):
    """What a study was asked for, as saved in its folder."""

    @property
    def unwritten(self) -> Sequence[str]: ...  # objects given from Python, which cannot be saved

    def to_toml(self) -> str: ...


@dataclass(frozen=True)
class Execution:
    """How the trainings of a study are executed."""

    workers: Workers = Workers(None, PROCESSES)  # noqa: RUF009 (frozen)
    reuse: Reuse = ()  # folders of other studies whose results may be copied
    watch: Watch | None = None  # called with a ``Progress`` while the study proceeds
    yes: bool = False  # run even if the estimate exceeds one day
    followers: Sequence[Follower] = ()  # receive every evaluation

    @classmethod
    def from_python(
        cls,
        study: str,
        out: Path | str,
        *,
        on: str = PROCESSES,
        workers: int | None = None,
        retries: int = 2,
        reuse: Reuse = (),
        watch: Watch | None = None,
        yes: bool = False,
        track: TrackerChoice = None,
    ) -> "Execution":
        """Make an execution from the keywords that ``sweep``, ``tune`` and ``arena`` share.

        Args:
            study: The name of the function, for errors.
            out: The folder of the results.
            on: Where to train: processes, ray or ray://HOST:PORT. Objects that are defined in no file are trained in
                this process.
            workers: How many trainings run at a time; None is one per core, or per GPU.
            retries: How often a failed training is retried.
            reuse: Folders of comparisons, sweeps and other studies whose results may be copied.
            watch: Called with a ``Progress`` while the study proceeds.
            yes: Run even if the estimate exceeds one day.
            track: Trackers that receive every evaluation, such as "tensorboard" (docs/how-to/live.md).
        """
        refuse_while_loading(study)
        return cls(Workers(workers, on, retries), reuse, watch, yes, trackers(track, out))

    @contextmanager
    def open(
        self,
        path: Path,
        what: str,
        request: StudyRequest,
        read: Callable[[Path], StudyRequest],
        total: int | None = None,
    ) -> Iterator[tuple[Store, Reporter]]:
        """Lock the folder of a study, then create or reopen it.

        Args:
            path: The folder.
            what: The kind of study, a key of ``runs.folder.FILES``.
            request: What is asked for.
            read: Reads the request of an existing folder.
            total: Number of trainings, for the progress; None counts them as they are announced.

        Yields:
            The store of the study and a reporter.
        """
        others, name = open_others(self.reuse), FILES[what]
        with locked(path):
            claim_folder(path, what, {name: request.to_toml()}, lambda: {name: read(path).to_toml()}, request.unwritten)
            with self.reporting(path, Path(name).stem, total) as reporter:
                yield Store(path / TRAININGS, reuse=others), reporter

    @contextmanager
    def reporting(self, path: Path | None, command: str, total: int | None = None) -> Iterator[Reporter]:
        """Yield a reporter of a command's progress: to ``watch``, and in a folder to its live file and followers."""
        with nullcontext() if path is None else open_live(path, command, self.followers) as live:
            yield Reporter(self.watch, live, total)


def base_values(base: Base) -> Values:
    """Return nested values of a spec file, or of settings as ``compare`` takes them."""
    return read_toml(Path(base)) if isinstance(base, Path | str) else nested(base)


@contextmanager
def reading(path: Path, what: str) -> Iterator[Values]:
    """Yield the values in the file that identifies a study's folder.

    Raises:
        InputError: If the folder holds no such study, or its file was edited and no longer fits.
    """
    file = path / FILES[what]
    if not file.exists():
        raise InputError(f"{path} holds no {what} (no {file.name}); give the folder of one that was started.")
    try:
        yield read_toml(file)
    except InputError:
        raise
    except (LookupError, AttributeError, TypeError, ValueError) as error:
        raise InputError(
            f"{file} is not a valid request for {file.stem} ({error}); start again in another folder."
        ) from None
