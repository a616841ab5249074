"""Execute a study: its workers, the results it reuses, its followers, and its folder."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfeds2.errors import InputError
from perfeds2.runs.folder import RUN, Folder, FolderKind, StudyRequest, claim, locked, prepare_parts
from perfeds2.runs.pool import PROCESSES, Results, WorkerChoice, run_all
from perfeds2.runs.progress import Follower, Reporter, Watch, open_live_file
from perfeds2.runs.store import Reuse, Store, open_others
from perfeds2.runs.training import Training
from perfeds2.spec.names import Values, refuse_while_loading
from perfeds2.spec.resolve import nested, read_toml

Base = Mapping[str, Any] | Path | str  # settings as ``compare`` takes them, or a spec file
KEYWORDS = ("workers", "retries", "reuse", "watch", "yes")  # of ``Execution.from_python``


@dataclass(frozen=True)
class Execution:
    """How the trainings of a study are executed."""

    workers: WorkerChoice = WorkerChoice(None, PROCESSES)  # noqa: RUF009 (frozen)
    reuse: Reuse = ()  # folders of other studies whose results may be copied
    watch: Watch | None = None  # called with a ``Progress`` while the study proceeds
    yes: bool = False  # run even if the estimate exceeds one day
    followers: Sequence[Follower] = ()  # receive every evaluation
    page: Callable[[Path], object] = lambda _: None  # draws the folder before it is unlocked
    typed: str = ""  # the command line, for the log of a run

    @classmethod
    def from_python(
        cls,
        study: str,
        *,
        on: str = PROCESSES,
        workers: int | None = None,
        retries: int = 2,
        together: bool | None = None,
        reuse: Reuse = (),
        watch: Watch | None = None,
        yes: bool = False,
    ) -> "Execution":
        """Make an execution from the keywords that the functions of studies share.

        Args:
            study: The name of the function, for errors.
            on: Where to train: processes or here. Objects that are defined in no file are trained here, in this process.
            workers: How many trainings run at a time; None is one per core, or per GPU.
            retries: How often a failed training is retried.
            together: Train seeds of equal shape in one batch; None does so on a GPU only.
            reuse: Folders of comparisons, sweeps and other studies whose results may be copied.
            watch: Called with a ``Progress`` while the study proceeds.
            yes: Run even if the estimate exceeds one day.
        """
        refuse_while_loading(study)
        return cls(WorkerChoice(workers, on, retries, together), reuse, watch, yes)


@dataclass
class Session:
    """A study at work, which no other process writes into."""

    path: Path | None
    store: Store
    workers: WorkerChoice
    reporter: Reporter
    folder: Folder | None = None  # of a run
    shows: bool = True  # whether there is anything to draw

    @classmethod
    @contextmanager
    def open(
        cls,
        kind: FolderKind,
        request: Any,  # a StudyRequest
        path: Path | None,
        how: Execution,
        read: Callable[[Path], StudyRequest] | None = None,
        total: int | None = None,
        *,
        command: str = "",
        claims: Callable[..., None] = claim,
    ) -> "Iterator[Session]":
        """Lock the folder of a study, create or reopen it, and draw it at the end.

        Args:
            kind: What the folder holds.
            request: What is asked for.
            path: The folder; None stores nothing.
            how: How to train.
            read: Reads the request of an existing folder, for ``claims``.
            total: Number of trainings, for the progress; None counts them as they are announced.
            command: The command; by default that of the request's file.
            claims: Claims the folder, with the arguments of ``folder.claim``.
        """
        others, is_run = open_others(how.reuse), kind is RUN
        with ExitStack() as stack:
            folder = None
            if path is not None:
                stack.enter_context(locked(path))
                claims(kind, path, request, read)
                folder = prepare_parts(path, request) if is_run else None
            if folder is not None and folder.finished:
                session = cls(path, Store(None), how.workers, Reporter(), folder)
                yield session
            else:
                log = (lambda _: None) if folder is None else folder.log
                if how.typed:
                    log(f"started: {how.typed}")
                name = command or Path(kind.requests[0]).stem
                with nullcontext() if path is None else open_live_file(path, name, how.followers) as live:
                    store = Store(path and path / kind.store, reuse=others, whole=is_run)
                    session = cls(path, store, how.workers, Reporter(how.watch, live, total, log), folder)
                    yield session
            if path is not None and session.shows:
                how.page(path)

    def train(self, trainings: Sequence[Training], *, strict: bool = False) -> Results:
        """Train what the store lacks. List trainings that fail for good in the results, or raise if ``strict``."""
        return run_all(trainings, self.store, self.workers, self.reporter, strict=strict)


def base_values(base: Base) -> Values:
    """Return nested values of a spec file, or of settings as ``compare`` takes them."""
    return read_toml(Path(base)) if isinstance(base, Path | str) else nested(base)


@contextmanager
def reading(path: Path, kind: FolderKind) -> Iterator[Values]:
    """Yield the values in the file that identifies a study's folder.

    Raises:
        InputError: If the folder holds no such study, or its file was edited and no longer fits.
    """
    file = path / kind.requests[0]
    if not file.exists():
        raise InputError(f"{path} holds no {kind.holds} (no {file.name}); give the folder of one that was started.")
    try:
        yield read_toml(file)
    except InputError:
        raise
    except (LookupError, AttributeError, TypeError, ValueError) as error:
        raise InputError(
            f"{file} is not a valid request for {file.stem} ({error}); start again in another folder."
        ) from None
