"""Where does a run live, and how does it go on after a crash?

A folder holds ``spec.toml`` from the first moment and the results at the end. In between, ``parts/`` is the store of its
trainings. Every file is written atomically, so a kill at any moment leaves a folder that can be continued.
"""

import json
import os
import re
import shutil
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfeds2.errors import InputError
from perfeds2.files import clear_unfinished, write_text
from perfeds2.runs.store import PARTS, Arrays, load_arrays, save_arrays
from perfeds2.spec.cells import keep_fleet, with_kept_fleet
from perfeds2.spec.fields import Spec
from perfeds2.spec.resolve import read_toml, resolve

FILES = {  # what a folder was started with, by what it holds
    "reproduction": "reproduce.toml",
    "arena": "arena.toml",
    "sweep": "sweep.toml",
    "tuning": "tune.toml",
    "plan": "plan.toml",
    "run": "spec.toml",
}
RESULTS = {  # what is written last
    "reproduction": "claims.csv",
    "arena": "arena.json",
    "sweep": "sweep_summary.csv",
    "tuning": "tuned.toml",
    "plan": "plan.json",
    "run": "summary.json",
}
WAIT = "wait until it has ended, or choose another folder"
DONE = ".parts.done"  # parts that are no longer needed
EVENTS = "events.jsonl"
NAMED = {"ue": re.compile(r"\b(?:UE |device-)(\d{1,9})\b"), "ticket": re.compile(r"\bticket (\d{1,18})\b")}

OF_WHAT = re.compile(r"^(round \d+|device-\d+) ")
WORDS = re.compile(r"[A-Za-z ]+")


@dataclass(frozen=True)
class Folder:
    """A run's folder, ready to be written to."""

    path: Path

    @property
    def parts(self) -> Path:
        return self.path / PARTS

    @property
    def finished(self) -> bool:
        return (self.path / "summary.json").exists() and not self.parts.exists()

    def log(self, event: str, **facts: int) -> None:
        """Append a line to events.log, and with what is known besides to events.jsonl where there is one."""
        at = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        with (self.path / "events.log").open("a", encoding="utf-8") as file:
            file.write(f"{at} {in_one_line(event)}\n")
        if (self.path / EVENTS).exists():
            with (self.path / EVENTS).open("a", encoding="utf-8") as file:
                file.write(f"{as_json(at, event, facts)}\n")

    def log_json(self) -> None:
        """From now on events.jsonl is written too, by whoever writes events."""
        (self.path / EVENTS).touch()

    def save_part(self, name: str, arrays: Arrays, facts: dict[str, Any]) -> None:
        save_arrays(self.parts / f"{name}.safetensors", arrays, facts)

    def load_part(self, name: str) -> tuple[Arrays, dict[str, Any]] | None:
        """What was saved under a name, or None if nothing was."""
        path = self.parts / f"{name}.safetensors"
        return load_arrays(path) if path.exists() else None

    def close(self) -> None:
        """Everything is in its place: the parts are no longer needed."""
        self.parts.rename(self.path / DONE)  # at once, so that the folder is finished or not
        shutil.rmtree(self.path / DONE)


def open_folder(path: Path, spec: Spec) -> Folder:
    """Make a folder for a run, or find it again. Refuses one that holds something else."""
    folder = Folder(path)
    claim_folder(path, "run", spec.to_toml(), lambda: read_run(path).to_toml(), spec.unwritten)
    with _refusing(path):
        keep_fleet(path, spec)
        clear_unfinished(folder.parts)
        shutil.rmtree(path / DONE, ignore_errors=True)
        if not folder.finished:
            folder.parts.mkdir(exist_ok=True)
    return folder


def read_run(path: Path) -> Spec:
    """The spec of a run's folder."""
    return resolve(with_kept_fleet(read_toml(path / "spec.toml"), path))


def claim_folder(path: Path, what: str, text: str, read: Callable[[], str], unwritten: Sequence[str]) -> None:
    """Make a folder for a run or a sweep, with a file that holds the text; or find it again with the same meaning.

    ``read`` tells what the file that is there would say if it were written today; ``unwritten`` is what no text can say.
    """
    with _refusing(path):
        name = FILES[what]
        known = path / name
        if path.exists() and not path.is_dir():
            raise InputError(f"--out {path} is a file; expected a folder.")
        if known.exists():
            if unwritten:
                raise InputError(
                    f"--out {path} holds a {what}, and {unwritten[0]} is written down nowhere, so nobody can tell whether "
                    f"it is the same; choose another folder, or put it into a file."
                )
            if known.read_text(encoding="utf-8") != text and tomllib.loads(read()) != tomllib.loads(text):
                raise InputError(
                    f"--out {path} already holds a different {what} (see {known}); choose another folder, or delete it."
                )
        elif path.exists() and any(entry for entry in path.iterdir() if not entry.name.startswith(f".{name}.")):
            raise InputError(f"--out {path} holds other files and no {name}; choose an empty or new folder.")
        path.mkdir(parents=True, exist_ok=True)
        clear_unfinished(path)
        if not known.exists():
            write_text(known, text)  # before anything else: whose folder it is


@contextmanager
def claimed(path: Path, spec: Spec, within_s: float = 0.0, otherwise: str = WAIT) -> Iterator[Folder]:
    """A run's folder, made or found again, and nobody else's meanwhile. Where it is somebody's, nothing in it is touched."""
    with _refusing(path):
        if not path.exists():
            path.mkdir(parents=True, exist_ok=True)
    with alone(path, within_s, otherwise):
        yield open_folder(path, spec)


@contextmanager
def alone(path: Path, within_s: float = 0.0, otherwise: str = WAIT) -> Iterator[None]:
    """Nobody else writes into this folder meanwhile: two would undo each other's work. The lock ends with the process.

    Somebody who does is waited for so long; ``otherwise`` is what the user is told to do then.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
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
            except OSError:  # a file system that has no locks
                pass
            break
        yield
    finally:
        os.close(descriptor)


def free_folder(parent: Path, name: str) -> Path:
    """The first of name-1, name-2, … that does not exist yet."""
    number = 1
    while (parent / f"{name}-{number}").exists():
        number += 1
    return parent / f"{name}-{number}"


@contextmanager
def _refusing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(f"--out {path} cannot be written: {os.strerror(error.errno or 0)}.") from None


# ---- events: a sentence for people; programs want its parts by name


def in_one_line(event: str) -> str:
    """What others sent may be quoted in an event: it must not look like another one, nor steer a terminal."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in event)


def as_json(at: str, event: str, facts: Mapping[str, int]) -> str:
    """``refused: UE 3 ticket 7 has no update`` as an object: time, kind, ue, ticket, what else is known, the sentence.

    Of a closed round, ues and tickets are lists. Else the first UE and ticket are ours; later ones may be quoted.
    """
    kind = kind_of(event)
    found = {name: list(map(int, form.findall(event))) for name, form in NAMED.items()}
    named = (
        {f"{name}s": numbers for name, numbers in found.items()}
        if kind == "closed"
        else {name: numbers[0] for name, numbers in found.items() if numbers}
    )
    told: dict[str, Any] = {"time": at, "kind": kind, **named, **facts, "event": event}
    return json.dumps(told, ensure_ascii=False)


def kind_of(event: str) -> str:
    """What stands before the colon, if that is words; else the first word. Whose it is, is not part of it."""
    event = OF_WHAT.sub("", event)
    words, colon, _ = event.partition(":")
    return words if colon and WORDS.fullmatch(words) else event.split(" ")[0].rstrip(":")
