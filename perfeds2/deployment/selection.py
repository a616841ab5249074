"""Select the devices that work on a round, and find how it closes: on the first arrivals, or as planned.

Both strategies look only at devices that can matter (``crew.py``).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from perfeds2.deployment.crew import Crew, Device, asks
from perfeds2.deployment.fields import DeploymentSpec
from perfeds2.deployment.merging import Shelf
from perfeds2.timeline.protocol import IDLE, Closing, Planned, Protocol, Server, assign_model, close_round
from perfeds2.timeline.state import Schedule


class OpenRound(NamedTuple):
    """What strategies need to know about the open round."""

    number: int
    opened_s: float
    time_s: float  # now
    merges: int  # of all devices so far

    def server(self, devices: list[Device]) -> Server:
        """Return what the protocol needs to know about these devices, in their order."""
        versions, merged_in = np.array([(device.version, device.merged_in) for device in devices], np.int64).T
        return Server(self.number, versions, merged_in, self.opened_s)


class Closed(NamedTuple):
    """How a round closes, by place in a list of devices."""

    devices: list[Device]
    server: Server
    closing: Closing

    @property
    def merged(self) -> list[Device]:
        return [self.devices[place] for place in self.closing.merged]


@dataclass
class FirstArrivals:
    """A round closes on the first A updates. Every device gets the newest model when it is free."""

    protocol: Protocol
    crew: Crew
    own: DeploymentSpec
    shelf: Shelf
    log: Callable[[str], None]
    plan: Planned | None = None  # devices of the open round, if a schedule chooses them

    def start(self, now: OpenRound) -> list[int]:
        """Return the idle devices that get the newest model."""
        most = (self.protocol.most_at_work if self.protocol.waits else None) or len(self.crew.devices)
        candidates = self.crew.take_longest_idle(most)
        idle = self._to_start(now, candidates)
        self.crew.queue(set(candidates) - set(idle))
        return self.crew.within_share(idle, self.own.max_share * now.merges, self.protocol.quorum)

    def close(self, now: OpenRound) -> Closed | None:
        """Return how the open round closes on the updates that have arrived; None if it cannot."""
        if self.plan is None and self.crew.count("arrived") < self.protocol.quorum:
            return None
        devices = [self.crew[ue] for ue in sorted(self._relevant(now.number))]
        server, arrived_s = now.server(devices), np.array([device.arrived_s for device in devices])
        planned = None if self.plan is None else np.arange(len(devices))
        closing = close_round(server, arrived_s, self.protocol, planned)
        return Closed(devices, server, closing) if np.isfinite(closing.time_s) else None

    def _relevant(self, round_: int) -> Iterable[int]:
        """Return the UEs whose version or arrival can affect how the open round closes."""
        arrived = self.crew.states["arrived"].keys()
        if self.protocol.waits:
            return arrived | self.crew.states["working"].keys()  # none may become too stale; at most A·(S+1) of them
        if self.protocol.stale != "restart" or self.protocol.max_staleness is None:
            return arrived
        oldest = round_ - self.protocol.max_staleness  # too stale once the open round has closed
        return arrived | {ue for ue in self.shelf.holders(oldest) if self.crew[ue].version == oldest}

    def _to_start(self, now: OpenRound, candidates: list[int], planned: Planned | None = None) -> list[int]:
        """Return which of these devices the protocol hands the newest model; the others at work count too."""
        if not candidates:
            return []
        devices = [self.crew[ue] for ue in candidates]
        if self.protocol.waits:  # at most A·(S+1) may work
            devices += [self.crew[ue] for state in ("working", "arrived") for ue in self.crew.states[state]]
        server = now.server(devices)
        chosen = assign_model(server, self.protocol, server.versions == IDLE, planned)[1]
        return sorted(devices[place].ue for place in chosen)


@dataclass
class Scheduled(FirstArrivals):
    """A round closes on the devices that a schedule chose; those that cannot be used are replaced."""

    schedule: Schedule = field(kw_only=True)
    together: bool = False  # whether all start at once
    _over_share: set[int] = field(default_factory=set)  # UEs for which an alarm was raised

    @property
    def max_share(self) -> float:
        """Largest share of merges of one device: at most twice its even share if devices report their losses."""
        return min(self.own.max_share, 2 / len(self.crew.devices)) if asks(self.schedule) else self.own.max_share

    def start(self, now: OpenRound) -> list[int]:
        if self.plan is None:
            moment = (
                self.crew.moment(now.number, now.time_s, self.protocol.quorum) if asks(self.schedule) else now.number
            )
            self.plan = self.schedule(moment)
        most = self.max_share * now.merges + 1
        for ue in self.plan.tolist():
            if self.crew[ue].merges > most and ue not in self._over_share:
                self._over_share.add(ue)
                what = "the losses it reports may be false" if asks(self.schedule) else "others take its place"
                self.log(f"alarm: UE {ue} has more than {self.max_share:.0%} of all merges; {what} (--max-share)")
        self.plan = self.crew.planned(self.plan, most)
        idle = [ue for ue in self.plan.tolist() if self.crew[ue].state == "idle"]
        if self.together and len(idle) < self.plan.size:
            return []
        return self._to_start(now, idle, np.arange(len(idle)))

    def _relevant(self, round_: int) -> Iterable[int]:
        return super()._relevant(round_) if self.plan is None else self.plan.tolist()
