"""Create, lock and resume the folder of a run.

A folder contains ``spec.toml`` from the start and the results at the end. In between, ``parts/`` is the store of its
trainings. Every file is written atomically, so a run can be resumed after a kill at any moment.
"""

import errno
import fcntl
import hashlib
import json
import os
import shutil
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

from perfeds2.errors import InputError
from perfeds2.files import FULL, clear_unfinished, naming, retry_while_full, write_atomically, write_text
from perfeds2.runs.store import PARTS, TRAININGS
from perfeds2.spec.fields import Spec
from perfeds2.spec.kept_files import keep_files, with_kept_files
from perfeds2.spec.names import Values
from perfeds2.spec.resolve import flattened, read_toml, resolve

WAIT = "wait until it has ended, or choose another folder"
DONE = ".parts.done"  # parts about to be deleted
EVENTS = "events.jsonl"
LOG = "events.log"
LINK = 32  # hexadecimal digits of the hash at the end of a chained line


@dataclass(frozen=True)
class FolderKind:
    """How a folder says what it holds."""

    holds: str  # in messages
    requests: tuple[str, ...]  # files with what was asked for, written first; a second one has the request's ``spec``
    result: str  # written last
    store: str = TRAININGS  # folder of the trainings; a run deletes its own at the end
    tables: tuple[str, ...] = ()  # files to list at the end

    def is_in(self, folder: Path) -> bool:
        return (folder / self.requests[0]).exists()

    def texts(self, request: Any) -> dict[str, str]:
        """Return the text of each request file; ``request`` is a ``StudyRequest``."""
        first, *more = self.requests
        return {first: request.to_toml(), **{name: request.spec.to_toml() for name in more}}


RUN = FolderKind("run", ("spec.toml",), "summary.json", PARTS)
FEDERATION = FolderKind("run", ("federation.toml", "spec.toml"), "summary.json", PARTS)
SWEEP = FolderKind(
    "sweep", ("sweep.toml",), "sweep_summary.csv", tables=("sweep.csv", "sweep_summary.csv", "sweep_front.csv")
)
TUNING = FolderKind("tuning", ("tune.toml",), "tuned.toml", tables=("tuned.toml", "tune.csv"))
ARENA = FolderKind("arena", ("arena.toml",), "arena.json", tables=("arena.csv", "arena_metrics.csv", "arena.json"))
PLAN = FolderKind("plan", ("plan.toml", "spec.toml"), "plan.json")
OWN = FolderKind("study", ("study.toml",), "study.json", tables=("study.csv",))
REPRODUCTION = FolderKind("reproduction", ("reproduce.toml",), "claims.csv")


class StudyRequest(Protocol):
    """What a study was asked for, as saved in its folder."""

    @property
    def unwritten(self) -> Sequence[str]: ...  # objects given from Python, which cannot be saved

    def to_toml(self) -> str: ...


@dataclass(frozen=True)
class Folder:
    """A run's folder, ready for writing."""

    path: Path
    chained: bool = False  # each line of events.log ends with a hash over it and the line before

    @property
    def parts(self) -> Path:
        return self.path / PARTS

    @property
    def finished(self) -> bool:
        return (self.path / "summary.json").exists() and not self.parts.exists()

    def log(self, event: str, **facts: int) -> None:
        """Append an event to events.log, and with its facts to events.jsonl if that file exists."""
        at = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        line = f"{at} {in_one_line(event)}"
        _append(self.path / LOG, lambda head: f"{line} {chain(head, line)}\n" if self.chained else f"{line}\n")
        if (path := self.path / EVENTS).exists():
            told = json.dumps({"time": at, **facts, "event": event}, ensure_ascii=False) + "\n"
            retry_while_full(lambda: _append(path, lambda _: told))  # otherwise a repetition would log it twice

    def head(self) -> str:
        """Return the hash of the last line of a chained events.log, once the log is on disk."""
        with _whole_lines(self.path / LOG) as (file, head):
            os.fsync(file.fileno())
            return head

    def log_json(self) -> None:
        """Create events.jsonl, so that every later event is also written there."""
        (self.path / EVENTS).touch()

    def free_logs(self) -> None:
        """Replace the logs by copies, because a process that was stopped may hold the lock of one, and writes on later."""
        for path in (self.path / LOG, self.path / EVENTS):
            if path.exists():
                with write_atomically(path) as file:
                    file.write(path.read_bytes())

    def close(self) -> None:
        """Delete the parts of a finished run."""
        self.parts.rename(self.path / DONE)  # atomic: the run is either finished or not
        shutil.rmtree(self.path / DONE)


def open_folder(path: Path, spec: Spec) -> Folder:
    """Create the folder of a run, or reopen it. The caller holds its lock.

    Raises:
        InputError: If the folder holds something else or cannot be written.
    """
    claim(RUN, path, spec, read_run)
    return prepare_parts(path, spec)


def prepare_parts(path: Path, spec: Spec) -> Folder:
    """Make a claimed folder ready for the trainings of a spec."""
    folder = Folder(path)
    with _refusing(path):
        keep_files(path, spec)
        clear_unfinished(folder.parts)
        shutil.rmtree(path / DONE, ignore_errors=True)
        if not folder.finished:
            folder.parts.mkdir(exist_ok=True)
    return folder


def read_run(path: Path) -> Spec:
    """Read the spec of a run's folder."""
    if not RUN.is_in(path):
        raise InputError(f"{path} holds no run (no {RUN.requests[0]}); give the folder of one that was started.")
    return resolve(with_kept_files(read_toml(path / "spec.toml"), path))


def with_interval(spec: Spec, values: Values, path: Path | None) -> tuple[Spec, bool]:
    """Give a spec the interval between evaluations of the run in a folder, unless it is given.

    Args:
        spec: The settings.
        values: The nested settings that it was made of.
        path: The folder of the run, which may not exist.

    Returns:
        The spec, and whether the interval is still open.
    """
    if values.get("run", {}).get("eval_every_s") is not None:
        return spec, False
    with suppress(InputError):
        if path is not None and (path / "spec.toml").exists():
            return evaluated_every(read_run(path).run.eval_every_s, spec), False
    return spec, True


def evaluated_every(seconds: float | None, spec: Spec) -> Spec:
    """Return a spec with this interval between evaluations."""
    return spec.with_(run=spec.run.with_(eval_every_s=seconds))


def claim(kind: FolderKind, path: Path, request: StudyRequest, read: Callable[[Path], StudyRequest]) -> None:
    """Write the files that identify a folder's content, or reopen a folder with the same content.

    The caller holds the folder's lock: otherwise two processes could both find it empty.

    Args:
        kind: What the folder holds.
        path: The folder.
        request: What is asked for.
        read: Reads the request of an existing folder, whose text may have the format of an earlier version.

    Raises:
        InputError: If the folder holds something else or cannot be written. With objects that cannot be saved, an
            existing folder is refused, too.
    """
    texts, unwritten = kind.texts(request), request.unwritten
    with _refusing(path):
        path.mkdir(parents=True, exist_ok=True)
        known = [path / name for name in texts if (path / name).exists()]
        if known:
            if unwritten:
                raise InputError(
                    f"--out {path} holds a {kind.holds}, and {unwritten[0]} was defined interactively and "
                    f"cannot be saved, so it may differ; choose another folder, or put it into a file."
                )
            for file in known:
                text = texts[file.name]
                if file.read_text(encoding="utf-8", errors="replace") == text:
                    continue
                written = kind.texts(read(path))[file.name]
                there, asked = flattened(tomllib.loads(written)), flattened(tomllib.loads(text))
                if there != asked:
                    key = next(key for key in {**asked, **there} if asked.get(key) != there.get(key))
                    raise InputError(
                        f"--out {path} already holds a different {kind.holds}: in {file}, {key} is "
                        f"{there.get(key, 'not set')}, and {asked.get(key, 'not set')} was asked for. "
                        f"Ask for the same, choose another folder, or delete it."
                    )
        elif any(not entry.name.startswith(tuple(f".{name}." for name in texts)) for entry in path.iterdir()):
            raise InputError(
                f"--out {path} holds other files and no {kind.requests[0]}; choose an empty or new folder."
            )
        clear_unfinished(path)
        for name, text in texts.items():  # first of all, so that the folder is identified from the start
            if path / name not in known:
                write_text(path / name, text)


@contextmanager
def claimed(path: Path, spec: Spec, within_s: float = 0.0, otherwise: str = WAIT) -> Iterator[Folder]:
    """Create or reopen the folder of a run and hold its lock.

    If another process holds the lock, nothing in the folder is touched.
    """
    with locked(path, within_s, otherwise):
        yield open_folder(path, spec)


@contextmanager
def locked(path: Path, within_s: float = 0.0, otherwise: str = WAIT) -> Iterator[None]:
    """Create a folder if it is missing and hold its lock, so that what is claimed inside is claimed once.

    Raises:
        InputError: If the folder cannot be created, or another process still holds the lock.
    """
    with ExitStack() as stack:
        with _refusing(path):
            if path.exists() and not path.is_dir():
                raise InputError(f"--out {path} is a file; expected a folder.")
            if not path.exists():
                path.mkdir(parents=True, exist_ok=True)
            stack.enter_context(alone(path, within_s, otherwise))
        yield


@contextmanager
def alone(path: Path, within_s: float = 0.0, otherwise: str = WAIT) -> Iterator[None]:
    """Hold the lock of a folder, so that no other process writes into it. The lock ends with the process.

    Args:
        path: The folder.
        within_s: How long to wait for the lock, in seconds.
        otherwise: What the error tells the user to do if the wait is over.

    Raises:
        InputError: If another process still holds the lock.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        ends_s = time.monotonic() + within_s
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= ends_s:
                    raise InputError(f"another process is writing into {path}; {otherwise}.") from None
                time.sleep(0.1)
                continue
            except OSError:  # the file system does not support locks
                pass
            break
        yield
    finally:
        os.close(descriptor)


def free_folder(parent: Path, name: str) -> Path:
    """Return the first of name-1, name-2, … that does not exist."""
    number = 1
    while (parent / f"{name}-{number}").exists():
        number += 1
    return parent / f"{name}-{number}"


@contextmanager
def _refusing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in FULL:  # not the user's mistake
            raise
        raise InputError(f"--out {path} cannot be written: {os.strerror(error.errno or 0)}.") from None


# ---- events: sentences in events.log, JSON objects in events.jsonl


def chain(head: str, line: str) -> str:
    """Return the hash that ends a line of a chained log, given the hash that ends the line before."""
    return hashlib.sha256(f"{head}{line}".encode()).hexdigest()[:LINK]


@contextmanager
def _whole_lines(path: Path) -> Iterator[tuple[IO[bytes], str]]:
    """Open a log, delete a line that an interrupted write left unfinished, and yield the hash that ends the last line."""
    with naming(path):
        path.touch()
        with alone(path, within_s=10.0), path.open("ab+", buffering=0) as file:
            file.seek(max(file.seek(0, os.SEEK_END) - 1, 0))
            if file.read(1) not in (b"", b"\n"):
                file.seek(0)
                file.truncate(file.read().rfind(b"\n") + 1)
            file.seek(max(file.seek(0, os.SEEK_END) - LINK - 1, 0))
            yield file, file.read()[:-1].decode(errors="replace")


def _append(path: Path, line: Callable[[str], str]) -> None:
    with _whole_lines(path) as (file, head):
        data = line(head).encode()
        if file.write(data) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def in_one_line(event: str) -> str:
    """Escape non-printable characters of an event.

    An event may quote what a device sent, which must not forge another line or send control codes to a terminal.
    """
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in event)
