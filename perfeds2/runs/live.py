"""How does somebody else see how far a command is, while it works?

A command that trains appends to ``live.jsonl`` in its folder: who it is, every evaluation of every training (written by the
process that trains it), and about once a second how far the whole is. A view of this file is a reader of what was added since:
the terminal, the page, a tracker. None of them is in the way of the training. The file goes when the command has come to
its end; of one that was killed it stays, and goes on when the command does.
"""

import hashlib
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from perfeds2.runs.crew import Standing, StandingWatch
    from perfeds2.runs.entrants import Progress, ProgressWatch

LIVE = "live.jsonl"
DONE = "done"
INTERRUPTED = "interrupted"
TELL_EVERY_S = 1.0  # how far the whole is
LOOK_EVERY_S = 0.5  # those who follow from within
Place = tuple[str, list[str]]  # for another process: the folder, and what each spec's trainings are called besides
Line = dict[str, Any]
Row = dict[str, Any]  # of one evaluation: round, time_s, metrics, costs


# ---- the one who works


class Live:
    """Where a command says how far it is. A disk that does not take it does not stop the command."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file: int | None = None
        self._told_s = 0.0

    def write(self, **said: Any) -> None:
        """Append a line, in one piece: several threads and processes do."""
        with suppress(OSError):
            if self._file is None:
                self._file = os.open(self.folder / LIVE, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
                size = os.lseek(self._file, 0, os.SEEK_END)
                if size and os.lseek(self._file, size - 1, os.SEEK_SET) and os.read(self._file, 1) != b"\n":
                    os.write(self._file, b"\n")  # a killed one stopped in the middle of a line
            os.write(self._file, json.dumps(said, separators=(",", ":")).encode() + b"\n")

    def begin(self, command: str) -> None:
        who = {"host": socket.gethostname(), "process": os.getpid(), "born": born(os.getpid())}
        self.write(begin=command, at=time.time(), **who)

    def training(self, label: str, algorithm: str, seed: int, of: int, **known: Any) -> "Course":
        """One that is about to be evaluated so many times."""
        name = hashlib.sha256(json.dumps([label, algorithm, seed]).encode()).hexdigest()[:16]
        self.write(training=name, label=label, algorithm=algorithm, seed=seed, of=of, **known)
        return Course(self, name)

    def progress(self, watch: "ProgressWatch | None") -> "ProgressWatch":
        """Passes progress on, and writes it down now and then."""

        def tell(now: "Progress") -> None:
            self.share(now.share, f"{now.algorithm} seed {now.seed}")
            if watch is not None:
                watch(now)

        return tell

    def standing(self, watch: "StandingWatch | None") -> "StandingWatch":
        """The same for a command that has workers."""

        def tell(now: "Standing") -> None:
            at = sum(share for _, share in now.workers.values())  # workers are at about as many runs each
            over = now.done + now.failed
            more = {"failed": now.failed} if now.failed else {}
            self.share(min((over + at) / max(now.total, 1), 1.0), f"{now.done:,} of {now.total:,} runs", **more)
            if watch is not None:
                watch(now)

        return tell

    def share(self, share: float, what: str, **more: Any) -> None:
        """How much of the whole is done."""
        if time.monotonic() - self._told_s >= TELL_EVERY_S:
            self._told_s = time.monotonic()
            self.write(share=share, at=time.time(), what=what, **more)

    def place(self, labels: Sequence[str]) -> Place:
        return str(self.folder), list(labels)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


@dataclass
class Course:
    """One training's lines. Whoever goes on from a checkpoint says again what that has: a line may have been lost."""

    live: Live
    name: str
    told: int = 0  # evaluations

    def tell(self, rows: Iterable[Row]) -> None:
        """The evaluations that come next."""
        for row in rows:
            self.live.write(t=self.name, n=self.told, row=row)
            self.told += 1


@contextmanager
def open_live(folder: Path, command: str, followers: "Sequence[Follower]" = ()) -> Iterator[Live]:
    """Say how far a command is as long as it works, and let others follow it from within."""
    live, following, end = Live(folder), None, INTERRUPTED
    live.begin(command)
    if followers:
        following = _Following(folder, followers)
        following.start()
    try:
        yield live
        end = DONE
    except Exception as error:
        end = " ".join(str(error).split()) or type(error).__name__
        raise
    finally:
        live.write(end=end, at=time.time())
        live.close()
        if following is not None:
            following.stop()
        if end == DONE:
            with suppress(OSError):
                (folder / LIVE).unlink()


# ---- the one who looks


@dataclass
class Training:
    """What is known of one training: when it was evaluated, and how good it was."""

    name: str
    label: str  # what sets it apart from others of the same algorithm and seed; empty in a comparison
    algorithm: str
    seed: int
    of: int  # evaluations until it is over
    metric: str = "accuracy"
    target: float | None = None
    config: dict[str, Any] = field(default_factory=dict)
    time_s: list[float] = field(default_factory=list)
    score: list[float] = field(default_factory=list)  # test_accuracy_personal

    @property
    def curve(self) -> str:
        """Whose curve it belongs to: seeds go together."""
        return f"{self.algorithm}, {self.label}" if self.label else self.algorithm

    @property
    def is_over(self) -> bool:
        return len(self.time_s) >= self.of


News = tuple[Training, int, Row]  # one evaluation that was not known before


@dataclass
class Board:
    """Where a command stands, by the lines that were read so far."""

    command: str = ""
    who: tuple[str, int, str] = ("", 0, "")  # host, process, when it was born
    began_s: float = 0.0
    heard_s: float = 0.0
    shares: tuple[float, float, float] | None = None  # the first of this process, the last, and when the first was
    what: str = ""
    failed: int = 0
    end: str = ""  # done, interrupted, or what went wrong
    trainings: dict[str, Training] = field(default_factory=dict)

    @property
    def share(self) -> float:
        return 1.0 if self.end == DONE else 0.0 if self.shares is None else self.shares[1]

    @property
    def left_s(self) -> float | None:
        """How long the rest will take, by the pace since it (re)started."""
        if self.shares is None or self.end:
            return None
        first, last, since_s = self.shares
        return (self.heard_s - since_s) * (1 - last) / (last - first) if last > first else None

    @property
    def is_dead(self) -> bool:
        """Whether its process is gone and said no word. Of another machine's process nobody here knows."""
        host, process, birth = self.who
        return not self.end and host == socket.gethostname() and born(process) != birth

    def take(self, lines: Iterable[Line]) -> list[News]:
        """Read on. Returns the evaluations that are new: one that is said again is the same."""
        news = list[News]()
        for line in lines:
            with suppress(LookupError, TypeError, ValueError):  # a line that is no line of ours
                if (one := self._take(line)) is not None:
                    news.append(one)
        return news

    def _take(self, line: Line) -> News | None:
        if "row" in line:
            training, number, row = self.trainings[line["t"]], int(line["n"]), line["row"]
            if number != len(training.time_s):
                return None
            time_s, score = float(row["time_s"]), float(row["test_accuracy_personal"])
            training.time_s.append(time_s)
            training.score.append(score)
            return training, number, row
        if "training" in line:
            known = {key: line[key] for key in ("label", "algorithm", "seed", "of")}
            more = {key: line[key] for key in ("metric", "target", "config") if key in line}
            self.trainings.setdefault(line["training"], Training(line["training"], **known, **more))
        elif "share" in line:
            self.heard_s, share = float(line["at"]), float(line["share"])
            first, _, since_s = self.shares or (share, share, self.heard_s)
            self.shares = first, share, since_s
            self.what, self.failed = str(line["what"]), int(line.get("failed", 0))
        elif "begin" in line:
            self.command, self.end, self.shares, self.what = str(line["begin"]), "", None, ""
            self.who = str(line["host"]), int(line["process"]), str(line["born"])
            self.began_s = self.heard_s = float(line["at"])
        elif "end" in line:
            self.end, self.heard_s = str(line["end"]), float(line["at"])
        return None


class Tail:
    """What was added to a folder's file since. Once it is open it can be read to its end, also when it is gone."""

    def __init__(self, folder: Path) -> None:
        self._path, self._file, self._rest = folder / LIVE, None, b""

    @property
    def is_open(self) -> bool:
        return self._file is not None

    def read(self) -> list[Line]:
        if self._file is None:
            with suppress(OSError):
                self._file = self._path.open("rb")
        if self._file is None:
            return []
        *whole, self._rest = (self._rest + self._file.read()).split(b"\n")
        return [line for each in whole if (line := _read_line(each)) is not None]

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def _read_line(text: bytes) -> Line | None:
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return line if isinstance(line, dict) else None


def born(process: int) -> str:
    """When a process began, where the system says it: two may have the same number. Empty if there is none."""
    try:
        os.kill(process, 0) if os.name != "nt" else None  # where asking would end it
    except (ProcessLookupError, OverflowError):
        return ""
    except PermissionError:  # somebody else's
        pass
    try:
        stat = Path(f"/proc/{process}/stat").read_text(encoding="ascii", errors="replace")
        state, *rest = stat.rpartition(")")[2].split()
        return "" if state == "Z" else rest[18]
    except (OSError, IndexError):
        return "some day"


# ---- those who follow from within


@runtime_checkable
class Follower(Protocol):
    """Somebody who is shown what is new, from a thread of the command."""

    def look(self, board: Board, news: Sequence[News]) -> None:
        """A few times a second."""

    def end(self, board: Board) -> None:
        """The last time."""


class _Following:
    """Shows followers what is new. One that fails is not asked again, and the command goes on."""

    def __init__(self, folder: Path, followers: Sequence[Follower]) -> None:
        self._tail, self._board, self._followers = Tail(folder), Board(), list(followers)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="perfeds2 follow", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _follow(self) -> None:
        while not self._over.wait(LOOK_EVERY_S):
            self._look()

    def _look(self) -> None:
        news = self._board.take(self._tail.read())
        self._each(lambda one: one.look(self._board, news))

    def stop(self) -> None:
        self._over.set()
        self._thread.join()
        self._look()
        self._each(lambda one: one.end(self._board))
        self._tail.close()

    def _each(self, ask: Callable[[Follower], None]) -> None:
        for follower in list(self._followers):
            try:
                ask(follower)
            except Exception as error:
                self._followers.remove(follower)
                print(f"perfeds2: {' '.join(str(error).split())} (the run itself goes on)", file=sys.stderr)
