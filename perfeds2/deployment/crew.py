"""Who of the devices is where? Kept up to date at every change, so that nobody ever has to look at all of them."""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from perfeds2.deployment.status import STATES, DeviceState
from perfeds2.deployment.transport import Reply, Request
from perfeds2.timeline.protocol import IDLE


@dataclass
class Device:
    """What the server knows of one device."""

    ue: int
    here: bool = False  # whether it can be reached
    version: int = IDLE  # the model it works from, as the protocol sees it
    merged_in: int = -1  # the last round it was merged in
    merges: int = 0
    merged_ticket: int | None = None  # of the last of its jobs that was merged
    job: Request | None = None  # sent, and not yet answered
    sent_s: float = 0.0
    overdue: int = -1  # the ticket of the last job that was given up because no answer came
    wanted: bool = True  # False: the answer will be dropped, the device has been promised a newer model
    reply: Reply | None = None  # its update has arrived, and waits for its round to close
    held: int = IDLE  # the model of its last job, until that is merged
    held_arrived_s: float = np.inf  # when the update of that job came
    failures: int = 0  # in a row
    refused: int = 0
    set_aside_s: float | None = None  # when it was left out; None: it takes part
    seen_s: float | None = None
    evaluated: int = -1  # the newest model it has evaluated
    accuracy: float = np.nan  # what it said of that one, personalised

    @property
    def set_aside(self) -> bool:
        return self.set_aside_s is not None

    @property
    def arrived_s(self) -> float:
        """When the update that waits arrived; infinite if none does."""
        return np.inf if self.reply is None else self.held_arrived_s

    @property
    def state(self) -> DeviceState:
        if self.set_aside:
            return "set aside"
        if self.reply is not None:
            return "arrived"
        if not self.here:
            return "away"
        if self.job is None:
            return "idle"
        return "working" if self.wanted or self.job.kind == "evaluate" else "finishing"


class Crew:
    """All devices, by number and by state. Whoever changes a device says so: ``file`` puts it where it belongs now."""

    def __init__(self, ues: int) -> None:
        self.devices = [Device(ue) for ue in range(ues)]
        self.states: dict[DeviceState, dict[int, None]] = {state: {} for state in STATES}  # longest in it first
        self.states["away"] = dict.fromkeys(range(ues))
        self.changed: set[int] = set()  # since the last checkpoint
        self._filed: list[DeviceState] = ["away"] * ues
        self._turns: list[tuple[int, int]] = []  # a heap: the round it was last merged in, its number
        self._queued: set[int] = set()  # who is in it

    def __getitem__(self, ue: int) -> Device:
        return self.devices[ue]

    def count(self, *states: DeviceState) -> int:
        return sum(len(self.states[state]) for state in states)

    @property
    def usable(self) -> int:
        """How many can still be of use to the open round."""
        return len(self.devices) - self.count("away", "set aside")

    def move(self, ues: Iterable[int], here: bool) -> None:
        """Devices came or went."""
        for ue in sorted(ues):
            self[ue].here = here
            self.file(self[ue])

    def file(self, device: Device) -> None:
        """A device has changed."""
        ue, state, before = device.ue, device.state, self._filed[device.ue]
        self.changed.add(ue)
        if state != before:
            del self.states[before][ue]
            self.states[state][ue] = None
            self._filed[ue] = state
        if state == "idle" and ue not in self._queued:
            self._queued.add(ue)
            heapq.heappush(self._turns, (device.merged_in, ue))

    def longest_out(self, most: int) -> list[int]:
        """The idle devices whose turn it is, in order of their numbers. Each must be handed a job now."""
        found = []
        while self._turns and len(found) < most:
            _, ue = heapq.heappop(self._turns)
            self._queued.discard(ue)
            if self._filed[ue] == "idle":  # else it left meanwhile; it queues when it is back
                found.append(ue)
        return sorted(found)
