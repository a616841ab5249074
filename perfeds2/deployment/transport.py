"""What does a federation need of the network? To dispatch a request, poll for replies, say who came and went, and who cannot come.

``mqtt/`` is the engine that can do this; ``InProcess`` is another, for tests, and the place to start reading before adding one more.
"""

import heapq
import itertools
import queue
import threading
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
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
    merged: int | None = None  # the last of this UE's tickets that was merged, for a device that keeps something


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


# By UE, or of the network as a whole (None): what the trouble is, or None when it is over.
Troubles = Mapping[int | None, str | None]


class Changes(typing.NamedTuple):
    """Who went and who came since the last look. Who is in both was away in between, and has lost what it was doing."""

    went: set[int]
    came: set[int]


class Presence:
    """Who can be reached, for a transport to keep. A look costs as much as has changed; several threads may tell of changes."""

    def __init__(self, here: Iterable[int] = ()) -> None:
        self._lock = threading.Lock()
        self.here = set(here)
        self._went, self._came = set[int](), set(self.here)

    def add(self, ue: int) -> None:
        """It is here. Nothing changes if it was."""
        with self._lock:
            if ue not in self.here:
                self.here.add(ue)
                self._came.add(ue)

    def discard(self, ue: int) -> None:
        """It is gone, with its unfinished job. For one that began anew: ``discard``, then ``add``."""
        with self._lock:
            if ue in self.here:
                self.here.discard(ue)
                self._came.discard(ue)
                self._went.add(ue)

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

    def dispatch(self, request: Request, params: Arrays) -> None:
        """Send a request with its model, as soon as possible."""
        ...

    def poll(self, wait_s: float) -> list[Reply]:
        """The replies that came in since, after waiting for the first of them for at most so long."""
        ...

    def changes(self) -> Changes:
        """Which UEs went and came since the last call; a ``Presence`` keeps this. UE numbers below n only."""
        ...

    def troubles(self) -> Troubles:
        """Why UEs cannot take part, and why nobody can be reached; where that changed since the last call."""
        ...

    def now(self) -> float:
        """Seconds on a clock that never runs backwards; only differences matter."""
        ...


# ---- without a network

Answer = Callable[[Request, Arrays], Reply]  # what a device does with a request; when it arrives is decided here


class InProcess:
    """A transport without a network: devices are functions, delays are given, time is virtual."""

    def __init__(self, answer: Answer, delay_s: Callable[[Request], float], ues: int) -> None:
        self.answer, self.delay_s = answer, delay_s
        self.present = Presence(range(ues))
        self.trouble: Troubles = {}
        self.time_s = 0.0
        self.sent: list[Request] = []
        self._on_the_way: list[tuple[float, int, Reply]] = []
        self._order = itertools.count()

    def dispatch(self, request: Request, params: Arrays) -> None:
        self.sent.append(request)
        reply, delay_s = self.answer(request, params), self.delay_s(request)
        self.deliver(replace(reply, compute_s=min(reply.compute_s, delay_s)), delay_s)  # it computed on another clock

    def deliver(self, reply: Reply, delay_s: float) -> None:
        """Let a reply arrive after a delay: an answer, or one nobody asked for."""
        arrival_s = self.time_s + delay_s
        heapq.heappush(self._on_the_way, (arrival_s, next(self._order), replace(reply, received_s=arrival_s)))

    def poll(self, wait_s: float) -> list[Reply]:
        """Jump to the next arrival, if it is near enough."""
        next_s = self._on_the_way[0][0] if self._on_the_way else float("inf")
        self.time_s = max(self.time_s, min(next_s, self.time_s + wait_s))
        arrived = []
        while self._on_the_way and self._on_the_way[0][0] <= self.time_s:
            reply = heapq.heappop(self._on_the_way)[2]
            if reply.ue in self.present.here:  # what a lost device had not sent is lost with it
                arrived.append(reply)
        return arrived

    def changes(self) -> Changes:
        return self.present.changes()

    def troubles(self) -> Troubles:
        told, self.trouble = self.trouble, {}
        return told

    def now(self) -> float:
        return self.time_s
