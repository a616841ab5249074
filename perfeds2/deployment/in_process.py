"""A federation without a network: devices are functions, delays are given, time is virtual."""

import heapq
import itertools
from collections.abc import Callable
from dataclasses import replace

from perfeds2.deployment.transport import Arrays, Changes, Presence, Reply, Request, Troubles

Answer = Callable[[Request, Arrays], Reply]  # what a device does with a request; when it arrives is decided here


class InProcess:
    """A transport for tests and for trying things out."""

    def __init__(self, answer: Answer, delay_s: Callable[[Request], float], ues: int) -> None:
        self.answer, self.delay_s = answer, delay_s
        self.present = Presence(range(ues))
        self.trouble: Troubles = {}
        self.time_s = 0.0
        self.sent: list[Request] = []
        self._on_the_way: list[tuple[float, int, Reply]] = []
        self._order = itertools.count()

    def dispatch(self, request: Request, params: Arrays) -> bool:
        self.sent.append(request)
        reply, delay_s = self.answer(request, params), self.delay_s(request)
        self.deliver(replace(reply, compute_s=min(reply.compute_s, delay_s)), delay_s)  # it computed on another clock
        return True

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
            if reply.ue in self.present:  # what a lost device had not sent is lost with it
                arrived.append(reply)
        return arrived

    def changes(self) -> Changes:
        return self.present.changes()

    def troubles(self) -> Troubles:
        told, self.trouble = self.trouble, {}
        return told

    def now(self) -> float:
        return self.time_s
