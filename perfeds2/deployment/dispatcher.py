"""Send jobs to a federation's devices, and follow up on those that fail, are refused or stay unanswered."""

import math
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from perfeds2.deployment.crew import Crew, Device, should_log
from perfeds2.deployment.fields import DeploymentSpec
from perfeds2.deployment.transport import Arrays, Asked, Kind, Request, Transport
from perfeds2.deployment.validate import in_words, reason_of
from perfeds2.timeline.protocol import IDLE


@dataclass
class Dispatcher:
    """The jobs of a federation's devices, and the problems that devices and the network have."""

    transport: Transport
    crew: Crew
    own: DeploymentSpec
    clock: Callable[[], float]  # seconds since round 0 opened
    log: Callable[[str], None]
    save: Callable[[], None]  # called when a device was set aside: a crash before the next round would lose it
    next_ticket: int = 0
    first_ticket: int = 0  # of this server; devices may still answer jobs of the one before
    sent: int = 0  # jobs since this server started
    refused: int = 0  # replies that failed validation
    reasons: Counter[str] = field(default_factory=Counter)  # of those that were refused since this server started
    troubles: dict[int | None, str] = field(default_factory=dict)  # by UE, or None for the network
    troubled: Counter[int | None] = field(default_factory=Counter)  # how often each had a problem
    reached_s: float = -math.inf  # when the network was last unreachable, or the server paused
    _waiting: deque[tuple[float, int, int]] = field(default_factory=deque)  # (time, UE, ticket), oldest first

    def send(
        self,
        device: Device,
        params: Arrays,
        version: int,
        kind: Kind = "train",
        merged: int | None = None,
        asked: Asked | None = None,
    ) -> None:
        """Send a device a new job."""
        device.job = Request(self.next_ticket, device.ue, version, kind, merged, asked)
        device.sent_s = self.clock()
        self.next_ticket += 1
        self.sent += 1
        if self.own.job_s and kind != "evaluate":
            self._waiting.append((device.sent_s, device.ue, device.job.ticket))
        self.crew.file(device)
        self.transport.dispatch(device.job, params)

    def look(self) -> list[Device]:
        """Update which devices are reachable, and return those that left. They lose an unanswered job."""
        went, came = self.transport.changes()
        for ue in sorted(went):
            device = self.crew[ue]
            if device.job is not None:
                self.log(f"lost: UE {ue} went away with ticket {device.job.ticket}")
                self.drop(device)
            device.keys.clear()
        self.crew.move(went, here=False)
        self.crew.move(came, here=True)
        for ue, why in self.transport.troubles().items():
            if why != self.troubles.get(ue):
                self._trouble(ue, why)
        return [self.crew[ue] for ue in went]

    def _trouble(self, ue: int | None, why: str | None) -> None:
        """Record that a UE, or the whole network (None), has a problem, or has it no longer."""
        who = "network" if ue is None else f"UE {ue}"
        if why is None:
            del self.troubles[ue]
            self.log(f"no more trouble: {who}")
            return
        self.troubles[ue] = why
        self.troubled[ue] += 1
        if should_log(self.troubled[ue]):
            self.log(f"trouble: {who}: {in_words(why)}")

    def give_up(self) -> None:
        """Fail jobs that were not answered within ``job_s``. The time starts again after a network outage."""
        time_s = self.clock()
        if None in self.troubles:
            self.reached_s = time_s
        while self._waiting:
            sent_s, ue, ticket = self._waiting[0]
            device, waited_s = self.crew[ue], time_s - max(sent_s, self.reached_s)
            outstanding = device.job is not None and device.job.ticket == ticket
            if outstanding and waited_s <= self.own.job_s:
                return
            self._waiting.popleft()
            if outstanding and device.overdue != ticket and device.job is not None and device.job.uploads_masked:
                device.overdue = ticket
                self.transport.cancel(ue)  # it should confirm or leave, so that no upload comes after it counts as gone
                self._waiting.append((time_s, ue, ticket))
            elif outstanding:
                self.log(f"given up: UE {ue} did not answer ticket {ticket} within {self.own.job_s:g} s (--job-s)")
                device.overdue = ticket
                self.fail(device, time_s)

    def refuse(self, device: Device, why: str) -> None:
        """Count and log a reply that failed validation."""
        device.refused += 1
        self.refused += 1
        self.reasons[reason_of(why)] += 1
        self.crew.changed.add(device.ue)
        if should_log(device.refused):
            self.log(f"refused: UE {device.ue} {why} ({device.refused} so far)")

    def fail(self, device: Device, time_s: float) -> None:
        """Record a failed job, and set its device aside after too many in a row."""
        self.drop(device)
        device.keys.clear()  # it may have been started again, without them
        device.failures += 1
        if device.failures >= self.own.set_aside_after:
            self.set_aside(device, time_s, f"after {device.failures} failures in a row")
        self.crew.file(device)

    def set_aside(self, device: Device, time_s: float, why: str) -> None:
        if not device.set_aside:
            device.set_aside_s = time_s
            self.log(f"set aside: UE {device.ue} {why}")
            self.crew.file(device)
            self.save()

    def drop(self, device: Device) -> None:
        """Take a device's job away, so that it can be handed another."""
        if device.job is not None and device.job.kind == "train" and device.wanted:
            device.version = IDLE  # the protocol no longer waits for it
        device.job = None

    def readmit(self) -> None:
        """Readmit devices that were set aside long enough ago. One more failure sets them aside again."""
        after_s = self.own.readmit_s
        for device in self.crew.set_aside_by(self.clock() - after_s) if after_s else ():
            device.set_aside_s, device.failures = None, self.own.set_aside_after - 1
            self.crew.file(device)
            self.log(f"readmitted: UE {device.ue} after {after_s:g} s")
