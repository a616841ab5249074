"""A transport on a virtual clock without a network, which remembers every job and in which a test can cause trouble."""

import heapq
import itertools
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from perfeds2.deployment.transport import Arrays, Changes, Presence, Reply, Request, SignedKey, Troubles
from perfeds2.learning.metrics import METRICS

Answer = Callable[[Request, Arrays], Reply]  # a device's reply to a request; the transport sets its arrival time


def made_up(request: Request, params: Arrays) -> Reply:
    """Answer as a device does, but without computing, where weights and metrics do not matter."""
    size = 0.01 * (1 + request.ue + request.version)
    update = {name: np.full_like(values, size) for name, values in params.items()}
    train = request.kind == "train"
    metrics: dict[str, float] = dict.fromkeys(METRICS, 0.5)
    return Reply(request.ue, request.ticket, request.version, update if train else None, metrics, 0.1 * train)


class InProcess:
    """A transport without a network: devices are functions, delays are given, and time is virtual."""

    def __init__(self, answer: Answer, delay_s: Callable[[Request], float], ues: int) -> None:
        self.answer, self.delay_s = answer, delay_s
        self.present = Presence(range(ues))
        self.time_s = 0.0
        self.sent: list[Request] = []
        self.trouble: Troubles = {}
        self._on_the_way: list[tuple[float, int, Reply]] = []
        self._order = itertools.count()

    def dispatch(self, request: Request, params: Arrays) -> None:
        self.sent.append(request)
        reply, delay_s = self.answer(request, params), self.delay_s(request)
        self.deliver(replace(reply, compute_s=min(reply.compute_s, delay_s)), delay_s)  # measured on the real clock

    def cancel(self, ue: int) -> None:
        """Its devices do not listen while they work."""

    def deliver(self, reply: Reply, delay_s: float) -> None:
        """Deliver a reply after a delay, whether or not it was asked for."""
        arrival_s = self.time_s + delay_s
        heapq.heappush(self._on_the_way, (arrival_s, next(self._order), replace(reply, received_s=arrival_s)))

    def poll(self, wait_s: float) -> list[Reply]:
        """Advance the clock to the next arrival, by at most ``wait_s`` seconds, and return what has arrived."""
        next_s = self._on_the_way[0][0] if self._on_the_way else float("inf")
        self.time_s = max(self.time_s, min(next_s, self.time_s + wait_s))
        arrived = []
        while self._on_the_way and self._on_the_way[0][0] <= self.time_s:
            reply = heapq.heappop(self._on_the_way)[2]
            if reply.ue in self.present.here:  # replies of a device that left are lost
                arrived.append(reply)
        return arrived

    def changes(self) -> Changes:
        return self.present.changes()

    def troubles(self) -> Troubles:
        told, self.trouble = self.trouble, {}
        return told

    def key_of(self, ue: int) -> SignedKey | None:
        """Its devices mask nothing."""

    def now(self) -> float:
        return self.time_s
