"""How far is a command? The one channel that the terminal, ``watch``, the live page and trackers read.

A command that trains appends to ``live.jsonl`` in its folder: what it is, every evaluation of every training (written by the
process that trains it), and about once a second how far the whole is. Readers follow the file; none of them delays a
training. The file is deleted when the command is done. After a kill it stays, and the resumed command appends to it.
"""

import hashlib
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

LIVE = "live.jsonl"
DONE = "done"
INTERRUPTED = "interrupted"
WRITE_EVERY_S = 1.0  # how far the whole is
LOOK_EVERY_S = 0.5  # followers in this process
Line = dict[str, Any]
Row = dict[str, Any]  # of one evaluation: round, time_s, metrics, costs


# ---- how far it is


@dataclass(frozen=True)
class Progress:
    """How far a command is, for a progress bar or table."""

    what: str  # the training or step that moved last
    share: float  # of the whole command, from 0 to 1
    time_s: float = 0.0  # simulated, in that training
    rounds: int = 0  # trained so far, by all workers
    total: int = 1  # trainings
    done: int = 0
    found: int = 0  # of those done, how many were there before
    failed: int = 0
    retried: int = 0
    elapsed_s: float = 0.0
    workers: Mapping[int, tuple[str, float]] = field(default_factory=dict)  # what each trains, and the share done
    error: str = ""  # of a training that has just failed

    @property
    def left_s(self) -> float | None:
        """Estimate the remaining seconds from the pace so far."""
        fresh = self.done - self.found
        return None if fresh == 0 else self.elapsed_s / fresh * (self.total - self.done - self.failed)


Watch = Callable[[Progress], None]


@dataclass
class _Running:
    """What a worker is training."""

    title: str
    count: int  # trainings
    share: float = 0.0
    rounds: int = 0


class Reporter:
    """Collects how far a command is, writes it to the live file, and passes it on to a watcher.

    Args:
        watch: Called with every ``Progress``, in the thread that started the command.
        live: Where evaluations and shares are written; None writes nothing.
        total: Trainings of the whole command; None counts those that are asked for.
    """

    def __init__(self, watch: Watch | None = None, live: "Live | None" = None, total: int | None = None) -> None:
        self.live, self._watch, self._planned = live, watch, total
        self._counts: dict[str, int] = dict.fromkeys(("asked", "done", "found", "failed", "retried", "rounds"), 0)
        self._began_s, self._wrote_s = time.monotonic(), 0.0
        self._running: dict[int, _Running] = {}  # by worker

    def asked(self, count: int, found: int) -> None:
        """More trainings are wanted, of which some were found."""
        for name, more in (("asked", count), ("done", found), ("found", found)):
            self._counts[name] += more

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
        job = self._running.pop(worker, _Running("", 1))  # its clock may have failed
        self._counts["retried" if again else "failed"] += 1 if again else job.count
        self._tell(job.title, error=error)

    def clock(self, title: str, time_s: float) -> None:
        """A clock is being played, and nothing is trained yet."""
        if not self._running and self._counts["done"] == self._counts["found"]:
            self._tell(title, time_s)

    def step(self, what: str, share: float, time_s: float = 0.0, rounds: int = 0) -> None:
        """Report work that is no training, such as a clock that is played."""
        self._send(Progress(what, share, time_s, rounds))

    def _tell(self, what: str, time_s: float = 0.0, error: str = "") -> None:
        jobs, counts = self._running.values(), dict(self._counts)
        total = max(self._planned or counts["asked"], 1)
        del counts["asked"]
        counts["rounds"] += sum(job.rounds for job in jobs)
        ended = counts["done"] + counts["failed"] + sum(job.share * job.count for job in jobs)
        workers = {worker: (job.title, job.share) for worker, job in self._running.items()}
        elapsed_s, share = time.monotonic() - self._began_s, min(ended / total, 1.0)
        self._send(
            Progress(what, share, time_s, total=total, elapsed_s=elapsed_s, workers=workers, error=error, **counts)
        )

    def _send(self, now: Progress) -> None:
        if self.live is not None and time.monotonic() - self._wrote_s >= WRITE_EVERY_S:
            self._wrote_s = time.monotonic()
            self.live.share(now)
        if self._watch is not None:
            self._watch(now)


# ---- the file


class Live:
    """Appends to a folder's live file. A disk that does not take it does not stop the command."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file: int | None = None
        self._written: dict[str, int] = {}  # evaluations of each training

    def write(self, **said: Any) -> None:
        """Append a line in one piece: several threads and processes do."""
        with suppress(OSError):
            if self._file is None:
                self._file = os.open(self.folder / LIVE, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
                size = os.lseek(self._file, 0, os.SEEK_END)
                if size and os.lseek(self._file, size - 1, os.SEEK_SET) and os.read(self._file, 1) != b"\n":
                    os.write(self._file, b"\n")  # a killed process stopped in the middle of a line
            os.write(self._file, json.dumps(said, separators=(",", ":")).encode() + b"\n")

    def begin(self, command: str) -> None:
        who = {"host": socket.gethostname(), "process": os.getpid(), "born": born(os.getpid())}
        self.write(begin=command, at=time.time(), **who)

    def share(self, now: Progress) -> None:
        what = now.what if now.total == 1 else f"{now.done:,} of {now.total:,} trainings"
        failed = {"failed": now.failed} if now.failed else {}
        self.write(share=now.share, at=time.time(), what=what, **failed)

    def training(self, label: str, algorithm: str, seed: int, of: int, **known: Any) -> str:
        """Announce a training that will be evaluated ``of`` times. Returns its name in the file."""
        name = hashlib.sha256(json.dumps([label, algorithm, seed]).encode()).hexdigest()[:16]
        if name not in self._written:
            self.write(training=name, label=label, algorithm=algorithm, seed=seed, of=of, **known)
            self._written[name] = 0
        return name

    def evaluations(self, name: str, rows: Callable[[int], Iterable[Row]]) -> None:
        """Append a training's evaluations from the first that this process has not written.

        One resumed from a checkpoint writes all of them again: a line may have been lost. Readers skip what they know.
        """
        for row in rows(self._written[name]):
            self.write(t=name, n=self._written[name], row=row)
            self._written[name] += 1

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


@contextmanager
def open_live(folder: Path, command: str, followers: "Sequence[Follower]" = ()) -> Iterator[Live]:
    """Write a command's live file while it works, and show it to followers in this process."""
    live, over, end = Live(folder), threading.Event(), INTERRUPTED
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
    """Show followers what is new until it is over. One that fails is not asked again, and the command goes on."""
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
                print(f"perfeds2: {' '.join(str(error).split())} (the run itself goes on)", file=sys.stderr)
    tail.close()


# ---- readers


@dataclass
class LiveTraining:
    """What the live file says of one training: when it was evaluated, and how good it was."""

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


News = tuple[LiveTraining, int, Row]  # one evaluation that was not known before


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
    trainings: dict[str, LiveTraining] = field(default_factory=dict)

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
            self.trainings.setdefault(line["training"], LiveTraining(line["training"], **known, **more))
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
        lines: list[Any] = []
        for text in whole:
            with suppress(ValueError, RecursionError):
                lines.append(json.loads(text))
        return [line for line in lines if isinstance(line, dict)]

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


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
