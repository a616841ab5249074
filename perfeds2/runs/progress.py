"""Publish the progress of a command to the terminal, ``watch``, the live page and ``events.log``.

A command that trains appends to ``live.jsonl`` in its folder: its name, every evaluation of every training (written
by the process that trains it), and about once a second its overall progress. Readers follow the file, and none of
them delays a training. The file is deleted when the command is done. After a kill it stays, and the resumed command
appends to it.
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
from typing import Protocol, runtime_checkable

from perfeds2.files import Json, is_alive

LIVE = "live.jsonl"
DONE = "done"
INTERRUPTED = "interrupted"
WRITE_EVERY_S = 1.0  # overall progress
LOOK_EVERY_S = 0.5  # polling interval of followers in this process
Row = Json  # one evaluation: round, time_s, metrics, costs


# ---- progress


@dataclass(frozen=True)
class Progress:
    """The progress of a command, for a progress bar."""

    what: str  # the training or step that moved last
    share: float  # of the whole command, from 0 to 1
    time_s: float = 0.0  # simulated seconds in that training
    rounds: int = 0  # trained so far, by all workers
    total: int = 1  # trainings
    done: int = 0
    found: int = 0  # trainings that were already done at the start
    failed: int = 0
    retried: int = 0
    error: str = ""  # message of a training that has just failed


Watch = Callable[[Progress], None]


@dataclass
class _Running:
    """A job that a worker is training."""

    title: str
    count: int  # trainings
    share: float = 0.0
    rounds: int = 0


class Reporter:
    """Collects the progress of a command, writes it to the live file and a log, and passes it to a callback.

    Args:
        watch: Called with every ``Progress``, in the thread that started the command.
        live: Where evaluations and progress are written; None writes nothing.
        total: Number of trainings of the whole command; None counts those announced by ``asked``.
        log: Called with a sentence for every training that ends or fails.
    """

    def __init__(
        self,
        watch: Watch | None = None,
        live: "LiveFile | None" = None,
        total: int | None = None,
        log: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.live, self.log, self._watch, self._planned = live, log, watch, total
        self._counts: dict[str, int] = dict.fromkeys(("asked", "done", "found", "failed", "retried", "rounds"), 0)
        self._wrote_s = 0.0
        self._running: dict[int, _Running] = {}  # by worker number
        self._part = (0.0, 1.0, 0)  # shares of the whole at which it begins and ends, trainings announced before it

    def asked(self, count: int, found: int) -> None:
        """Announce ``count`` more trainings, of which ``found`` are already done."""
        for name, more in (("asked", count), ("done", found), ("found", found)):
            self._counts[name] += more

    def next_part(self, share: float) -> None:
        """Count the trainings announced from now on as this estimated share of all that is left."""
        asked = self._counts["asked"]
        begin = self._part[1] if asked else 0.0
        self._part = begin, begin + share * (1 - begin), asked

    def started(self, worker: int, title: str, count: int) -> None:
        self._running[worker] = _Running(title, count)
        self._tell(title)

    def moved(self, worker: int, share: float, time_s: float, rounds: int) -> None:
        job = self._running[worker]
        job.share, job.rounds = share, rounds
        self._tell(job.title, time_s)

    def done(self, worker: int) -> None:
        job = self._running.pop(worker)
        self._counts["done"] += job.count
        self._counts["rounds"] += job.rounds
        self._tell(job.title)

    def failed(self, worker: int, error: str, *, again: bool) -> None:
        job = self._running.pop(worker, _Running("", 1))  # its simulation may have failed before it started
        self._counts["retried" if again else "failed"] += 1 if again else job.count
        self._tell(job.title, error=error)

    def clock(self, title: str, time_s: float) -> None:
        """Report the simulation of a timeline, as long as no training runs."""
        if not self._running and self._counts["done"] == self._counts["found"]:
            self._tell(title, time_s)

    def step(self, what: str, share: float, time_s: float = 0.0, rounds: int = 0) -> None:
        """Report work other than training, such as a simulation."""
        self._send(Progress(what, share, time_s, rounds))

    def _tell(self, what: str, time_s: float = 0.0, error: str = "") -> None:
        jobs, counts = self._running.values(), dict(self._counts)
        total = max(self._planned or counts["asked"], 1)
        del counts["asked"]
        counts["rounds"] += sum(job.rounds for job in jobs)
        ended = counts["done"] + counts["failed"] + sum(job.share * job.count for job in jobs)
        begin, end, before = self._part
        share = begin + (end - begin) * min(max(ended - before, 0) / max(total - before, 1), 1.0)
        self._send(Progress(what, share, time_s, total=total, error=error, **counts))

    def _send(self, now: Progress) -> None:
        if self.live is not None and time.monotonic() - self._wrote_s >= WRITE_EVERY_S:
            self._wrote_s = time.monotonic()
            self.live.share(now)
        if self._watch is not None:
            self._watch(now)


# ---- the live file


class LiveFile:
    """Appends to the live file of a folder. Disk errors never stop the command."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file: int | None = None
        self._written: dict[str, int] = {}  # evaluations written, by training

    def write(self, **said: object) -> None:
        """Append a line in a single write, since several threads and processes append."""
        with suppress(OSError):
            if self._file is None:
                self._file = os.open(self.folder / LIVE, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
                size = os.lseek(self._file, 0, os.SEEK_END)
                if size and os.lseek(self._file, size - 1, os.SEEK_SET) and os.read(self._file, 1) != b"\n":
                    os.write(self._file, b"\n")  # a killed process left an incomplete line
            os.write(self._file, json.dumps(said, separators=(",", ":")).encode() + b"\n")

    def begin(self, command: str) -> None:
        who = {"host": socket.gethostname(), "process": os.getpid(), "born": born(os.getpid())}
        self.write(begin=command, at=time.time(), **who)

    def share(self, now: Progress) -> None:
        what = now.what if now.total == 1 else f"{now.done:,} of {now.total:,} trainings"
        failed = {"failed": now.failed} if now.failed else {}
        self.write(share=now.share, at=time.time(), what=what, **failed)

    def training(self, label: str, algorithm: str, seed: int, of: int, **known: object) -> str:
        """Announce a training that will be evaluated ``of`` times, and return its name in the file."""
        name = hashlib.sha256(json.dumps([label, algorithm, seed]).encode()).hexdigest()[:16]
        if name not in self._written:
            self.write(training=name, label=label, algorithm=algorithm, seed=seed, of=of, **known)
            self._written[name] = 0
        return name

    def evaluations(self, name: str, rows: Callable[[int], Iterable[Row]]) -> None:
        """Append the evaluations of a training that this process has not written yet.

        After a resume all of them are written again, because lines may have been lost; readers skip those they know.
        """
        for row in rows(self._written[name]):
            self.write(t=name, n=self._written[name], row=row)
            self._written[name] += 1

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


@contextmanager
def open_live_file(folder: Path, command: str, followers: "Sequence[Follower]" = ()) -> Iterator[LiveFile]:
    """Keep a command's live file while the command runs, and pass new lines to followers in this process."""
    live, over, end = LiveFile(folder), threading.Event(), INTERRUPTED
    live.begin(command)
    following = threading.Thread(target=_follow, args=(folder, list(followers), over), daemon=True)
    if followers:
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
        over.set()
        if followers:
            following.join()
        if end == DONE:
            with suppress(OSError):
                (folder / LIVE).unlink()


def _follow(folder: Path, followers: "list[Follower]", over: threading.Event) -> None:
    """Show new lines to the followers until the command ends. A follower that raises is dropped."""
    tail, board, ended = Tail(folder), Board(), False
    while not ended:
        ended = over.wait(LOOK_EVERY_S)
        news = board.take(tail.read())
        for follower in list(followers):
            try:
                follower.look(board, news)
                if ended:
                    follower.end(board)
            except Exception as error:
                followers.remove(follower)
                print(f"perfeds2: {' '.join(str(error).split())} (the run continues)", file=sys.stderr)
    tail.close()


# ---- readers


@dataclass
class LiveTraining:
    """What the live file says about one training: when it was evaluated, and its scores."""

    name: str
    label: str  # distinguishes trainings of the same algorithm and seed; empty in a comparison
    algorithm: str
    seed: int
    of: int  # number of evaluations
    metric: str = "accuracy"
    target: float | None = None
    config: Json = field(default_factory=dict)
    time_s: list[float] = field(default_factory=list)
    score: list[float] = field(default_factory=list)  # test_accuracy_personal

    @property
    def curve(self) -> str:
        """Return the name of the curve it belongs to, which all seeds share."""
        return f"{self.algorithm}, {self.label}" if self.label else self.algorithm

    @property
    def is_over(self) -> bool:
        return len(self.time_s) >= self.of


News = tuple[LiveTraining, int, Row]  # a new evaluation: its training, number and row


@dataclass
class Board:
    """The state of a command, from the lines read so far."""

    command: str = ""
    who: tuple[str, int, str] = ("", 0, "")  # host, PID, start time of the process
    began_s: float = 0.0
    heard_s: float = 0.0
    shares: tuple[float, float, float] | None = None  # first share since the start, last share, time of the first
    what: str = ""
    failed: int = 0
    end: str = ""  # done, interrupted, or the error message
    trainings: dict[str, LiveTraining] = field(default_factory=dict)

    @property
    def share(self) -> float:
        return 1.0 if self.end == DONE else 0.0 if self.shares is None else self.shares[1]

    @property
    def left_s(self) -> float | None:
        """Estimate the remaining seconds from the pace since the command (re)started."""
        if self.shares is None or self.end:
            return None
        first, last, since_s = self.shares
        return (self.heard_s - since_s) * (1 - last) / (last - first) if last > first else None

    @property
    def is_dead(self) -> bool:
        """Return whether the process is gone without an end line. Processes of other hosts never count as dead."""
        host, process, birth = self.who
        return not self.end and host == socket.gethostname() and born(process) != birth

    def take(self, lines: Iterable[Json]) -> list[News]:
        """Process more lines and return the new evaluations; repeated ones are skipped."""
        news = list[News]()
        for line in lines:
            with suppress(LookupError, TypeError, ValueError):  # ignore malformed lines
                if (one := self._take(line)) is not None:
                    news.append(one)
        return news

    def _take(self, line: Json) -> News | None:
        if "row" in line:
            training, number, row = self.trainings[line["t"]], int(line["n"]), line["row"]
            if number != len(training.time_s):
                return None
            time_s, score = float(row["time_s"]), float(row["test_accuracy_personal"])
            training.time_s.append(time_s)
            training.score.append(score)
            return training, number, row
        if "training" in line:
            name = line.pop("training")
            self.trainings.setdefault(name, LiveTraining(name, **line))
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
    """Reads the lines added to a live file since the last read; an open file stays readable after it is deleted."""

    def __init__(self, folder: Path) -> None:
        self._path, self._file, self._rest = folder / LIVE, None, b""

    @property
    def is_open(self) -> bool:
        return self._file is not None

    def read(self) -> list[Json]:
        if self._file is None:
            with suppress(OSError):
                self._file = self._path.open("rb")
        if self._file is None:
            return []
        *whole, self._rest = (self._rest + self._file.read()).split(b"\n")
        lines: list[object] = []
        for text in whole:
            with suppress(ValueError, RecursionError):
                lines.append(json.loads(text))
        return [line for line in lines if isinstance(line, dict)]

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def born(process: int) -> str:
    """Return the start time of a process, which tells apart processes that reuse a PID; empty if it is not running.

    If the system does not report start times, return a constant.
    """
    if not is_alive(process):
        return ""
    try:
        stat = Path(f"/proc/{process}/stat").read_text(encoding="ascii", errors="replace")
        state, *rest = stat.rpartition(")")[2].split()
        return "" if state == "Z" else rest[18]
    except (OSError, IndexError):
        return "some day"


# ---- followers in this process


@runtime_checkable
class Follower(Protocol):
    """An object that receives new evaluations, in a thread of the command."""

    def look(self, board: Board, news: Sequence[News]) -> None:
        """Receive the state and the new evaluations, a few times a second."""

    def end(self, board: Board) -> None:
        """Receive the final state."""
