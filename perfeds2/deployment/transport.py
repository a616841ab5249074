"""What does a federation need of the network? To dispatch a request, poll for replies, say who came and went, and who cannot come.

``mqtt/`` and ``flower/`` are engines that can do this; ``in_process.py`` is another, for tests, and the place to start reading
before adding one more, which needs nothing of the others.
"""

import queue
import threading
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

Arrays = Mapping[str, np.ndarray]
Kind = Literal["train", "evaluate"]


@dataclass(frozen=True)
class Request:
    """One job a device is asked to do."""

    ticket: int  # never used twice in a run, not even after a restart
    ue: int
    version: int  # of the model that goes with it
    kind: Kind = "train"
    merged: int | None = (
        None  # the ticket of the last of this UE's jobs that was merged, for a device that keeps something
    )


@dataclass(frozen=True)
class Reply:
    """What came back. Nothing in it is trusted, except who sent it and when it was complete here."""

    ue: int  # whose connection it came over
    ticket: int = -1  # what the sender says it answers
    version: int = -1
    update: Arrays | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    compute_s: float = 0.0
    received_s: float = 0.0  # on the transport's clock
    error: str | None = None  # the job failed; in words
    gone: bool = False  # it failed because the device went away: nobody's fault
    on: int | None = None  # the ticket of the job it came back on, where the transport knows better than the sender


Troubles = Mapping[
    int | None, str | None
]  # by UE, or of the network as a whole (None): what it is, or None when it is over


class Changes(typing.NamedTuple):
    """Who went and who came since the last look. Who is in both was away in between, and has lost what it was doing."""

    went: set[int]
    came: set[int]


class Presence:
    """Who can be reached, for a transport to keep. A look costs as much as has changed; several threads may tell of changes."""

    def __init__(self, here: Iterable[int] = ()) -> None:
        self._lock = threading.Lock()
        self._here = set(here)
        self._went, self._came = set[int](), set(self._here)

    def add(self, ue: int) -> None:
        """It is here. Nothing changes if it was."""
        with self._lock:
            if ue not in self._here:
                self._here.add(ue)
                self._came.add(ue)

    def discard(self, ue: int) -> None:
        """It is gone, with its unfinished job. For one that began anew: ``discard``, then ``add``."""
        with self._lock:
            if ue in self._here:
                self._here.discard(ue)
                self._came.discard(ue)
                self._went.add(ue)

    def become(self, here: Iterable[int]) -> None:
        """For who only learns of everybody at once."""
        here = set(here)
        for ue in self.members() - here:
            self.discard(ue)
        for ue in here - self.members():
            self.add(ue)

    def members(self) -> frozenset[int]:
        with self._lock:
            return frozenset(self._here)

    def __contains__(self, ue: int) -> bool:
        return ue in self._here

    def changes(self) -> Changes:
        """Since the last call; at first, everybody who is here has come."""
        with self._lock:
            changes, self._went, self._came = Changes(self._went, self._came), set(), set()
        return changes


def waited_for(replies: "queue.SimpleQueue[Reply]", wait_s: float) -> list[Reply]:
    """What is in a transport's queue, after waiting for the first for at most so long."""
    found = []
    try:
        found.append(replies.get(timeout=wait_s))
        while True:
            found.append(replies.get_nowait())
    except queue.Empty:
        return found


@typing.runtime_checkable
class Transport(typing.Protocol):
    """Reaches devices, known by their UE numbers."""

    def dispatch(self, request: Request, params: Arrays) -> bool:
        """Send a request with its model. False: it could not be sent."""
        ...

    def poll(self, wait_s: float) -> list[Reply]:
        """The replies that came in since, after waiting for the first of them for at most so long."""
        ...

    def changes(self) -> Changes:
        """Which UEs went and came since the last call; a ``Presence`` keeps this. UE numbers below n only."""
        ...

    def troubles(self) -> "Troubles":
        """Why UEs cannot take part, and why nobody can be reached; where that changed since the last call."""
        ...

    def now(self) -> float:
        """Seconds on a clock that never runs backwards; only differences matter."""
        ...
