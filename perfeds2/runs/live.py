"""The live channel of commands that still use the old crew."""

import hashlib
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfeds2.runs.progress import DONE as DONE
from perfeds2.runs.progress import INTERRUPTED as INTERRUPTED
from perfeds2.runs.progress import LIVE as LIVE
from perfeds2.runs.progress import Board as Board
from perfeds2.runs.progress import Follower as Follower
from perfeds2.runs.progress import Live as _Live
from perfeds2.runs.progress import LiveTraining as Training  # noqa: F401
from perfeds2.runs.progress import News as News
from perfeds2.runs.progress import Row as Row
from perfeds2.runs.progress import Tail as Tail
from perfeds2.runs.progress import _Following
from perfeds2.runs.progress import born as born

if TYPE_CHECKING:
    from perfeds2.runs.crew import Standing, StandingWatch
    from perfeds2.runs.entrants import Progress, ProgressWatch

TELL_EVERY_S = 1.0
Place = tuple[str, list[str]]


class Live(_Live):
    """Where a command says how far it is."""

    _told_s = 0.0

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
