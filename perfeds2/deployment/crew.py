"""Track the state of every device, updated at each change so that no step has to scan all devices."""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import takewhile

import numpy as np

from perfeds2.allocation.schedulers import Chosen, Moment, replace_absent
from perfeds2.deployment.status import STATES, UNUSABLE, DeviceState
from perfeds2.deployment.transport import Reply, Request
from perfeds2.timeline.protocol import IDLE

LOGGED = 20  # refusals of one device that are all logged; of later ones only powers of two


@dataclass
class Device:
    """What the server knows about one device."""

    ue: int
    here: bool = False  # whether it is reachable
    version: int = IDLE  # the model it works from, as the protocol sees it
    merged_in: int = -1  # round in which it was last merged
    merges: int = 0
    merged_ticket: int | None = None  # ticket of its last merged job
    job: Request | None = None  # sent and not yet answered
    sent_s: float = 0.0
    overdue: int = -1  # ticket of the last job that timed out
    wanted: bool = True  # False: the reply will be dropped, because the device is due a newer model
    reply: Reply | None = None  # its update, waiting for the round to close
    held: int = IDLE  # version of its last job, until that is merged
    held_arrived_s: float = np.inf  # when the update of that job arrived
    keys: dict[int, str] = field(default_factory=dict)  # by UE: keys for masks that it has got
    failures: int = 0  # consecutive
    failed: int = 0  # jobs, since this server started
    refused: int = 0
    clipped: int = 0  # updates, since this server started
    losses: np.ndarray | None = None  # ε after 0, 1, 2, … merges; None without noise
    most_merges: float = np.inf  # that its privacy budget allows
    set_aside_s: float | None = None  # when it was set aside; None: it takes part
    seen_s: float | None = None
    evaluated: int = -1  # newest version it has evaluated
    accuracy: float | None = None  # personal accuracy it reported for that version, if finite
    loss: float = np.nan  # training loss it reported for that version, before personal steps
    took_s: float = np.nan  # duration of its last job, from sending the model to receiving the update

    @property
    def set_aside(self) -> bool:
        return self.set_aside_s is not None

    @property
    def epsilon(self) -> float | None:
        return None if self.losses is None else float(self.losses[self.merges])

    @property
    def spent(self) -> bool:
        """Whether another merge would exceed its privacy budget. It has at most one job, so no merge is uncounted."""
        return self.merges >= self.most_merges

    @property
    def arrived_s(self) -> float:
        """Arrival time of the update that waits to be merged; infinite if there is none."""
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
            return "spent" if self.spent else "idle"
        return "working" if self.wanted or self.job.kind == "evaluate" else "finishing"


def should_log(times: int) -> bool:
    """Return whether to log the n-th occurrence: the first few, then powers of two, to bound the log."""
    return times <= LOGGED or times.bit_count() == 1


def asks(schedule: object) -> bool:
    """Return whether a schedule asks for the losses of devices."""
    return getattr(schedule, "feedback", None) is not None


def memory_of(schedule: object) -> dict[str, np.ndarray]:
    """Return what a schedule remembers between rounds."""
    return getattr(schedule, "memory", {})


class Crew:
    """All devices, by number and by state. Call ``file`` after changing a device."""

    def __init__(self, ues: int, losses: np.ndarray | None = None, budget: float | None = None) -> None:
        most = np.inf
        if losses is not None and budget is not None:
            most = float(np.searchsorted(losses, budget, "right")) - 1
        self.losses = losses
        self.devices = [Device(ue, losses=losses, most_merges=most) for ue in range(ues)]
        self.states: dict[DeviceState, dict[int, None]] = {state: {} for state in STATES}  # longest in the state first
        self.states["away"] = dict.fromkeys(range(ues))
        self.changed: set[int] = set()  # UEs, since the last checkpoint
        self._filed: list[DeviceState] = ["away"] * ues
        self._turns: list[tuple[int, int]] = []  # heap of (round last merged in, UE)
        self._queued: set[int] = set()  # UEs in the heap

    def __getitem__(self, ue: int) -> Device:
        return self.devices[ue]

    def count(self, *states: DeviceState) -> int:
        return sum(len(self.states[state]) for state in states)

    @property
    def usable(self) -> int:
        """Number of devices that can still contribute to the open round."""
        return len(self.devices) - self.count(*UNUSABLE)

    def planned(self, chosen: Chosen, most: float = np.inf) -> Chosen:
        """Return the devices that a round waits for: those chosen, or others in place of those that cannot be used.

        Devices with more than ``most`` merges are replaced too, while there are others.
        """
        if all(self[ue].state not in UNUSABLE and self[ue].merges <= most for ue in chosen.tolist()):
            return chosen
        merged_in = np.array([device.merged_in for device in self.devices])
        away = np.array([device.state in UNUSABLE for device in self.devices])
        over = np.array([device.merges > most for device in self.devices])
        found = replace_absent(chosen, away | over, merged_in)
        return replace_absent(chosen, away, merged_in) if away[found].any() else found

    def moment(self, round_: int, time_s: float, quorum: int) -> Moment:
        """Return what a schedule that asks for losses may look at. Channels are not known.

        A device's next job is expected to take as long as its last one, and a first job as long as that of the median device.
        """
        columns = [
            (one.version, one.merged_in, one.state not in UNUSABLE, one.loss, one.took_s) for one in self.devices
        ]
        versions, merged_in, present, losses, took_s = (np.array(column) for column in zip(*columns, strict=True))
        usual_s = np.median(took_s[np.isfinite(took_s)]) if np.isfinite(took_s).any() else 1.0
        job_s = np.maximum(np.nan_to_num(took_s, nan=usual_s), 1e-6)
        unknown = np.full(losses.size, np.nan)
        radio = (np.nan, unknown, unknown, unknown)
        return Moment(
            round_, time_s, quorum, *radio, versions, merged_in, present=present, feedback=losses, job_s=job_s
        )

    def resting(self, latest: int) -> int:
        """Return how many idle devices must rest, because they were merged after round ``latest``."""
        return sum(self[ue].merged_in > latest for ue in self.states["idle"])

    def shortage(self, resting: int) -> str:
        """Return why devices cannot be used now."""
        more = {"resting": resting, "without privacy budget": self.count("spent")}
        said = "".join(f", {count} {what}" for what, count in more.items() if count)
        return f"{self.count('away')} away, {self.count('set aside')} set aside{said}"

    def set_aside_by(self, time_s: float) -> list[Device]:
        """Return the devices that were set aside by then."""
        aside = (self[ue] for ue in self.states["set aside"])
        return list(takewhile(lambda device: (device.set_aside_s or 0.0) <= time_s, aside))

    def left(self, latest: int) -> int:
        """Return how many devices have privacy budget and do not rest, whether reachable or not."""
        return sum(not device.spent and device.merged_in <= latest for device in self.devices)

    def privacy(self) -> dict[str, float]:
        """Return the worst and the median ε of all devices; nothing without noise."""
        if self.losses is None:
            return {}
        found = self.losses[[device.merges for device in self.devices]]
        return {"epsilon_worst": float(found.max()), "epsilon_median": float(np.median(found))}

    def move(self, ues: Iterable[int], here: bool) -> None:
        """Mark devices as reachable or unreachable."""
        for ue in sorted(ues):
            self[ue].here = here
            self.file(self[ue])

    def file(self, device: Device) -> None:
        """Index a device under its current state and, if it is idle, queue it for a job."""
        ue, state, before = device.ue, device.state, self._filed[device.ue]
        self.changed.add(ue)
        if state != before:
            del self.states[before][ue]
            self.states[state][ue] = None
            self._filed[ue] = state
        if state == "idle" and ue not in self._queued:
            self.queue([ue])

    def queue(self, ues: Iterable[int]) -> None:
        """Queue idle devices for a job."""
        for ue in ues:
            self._queued.add(ue)
            heapq.heappush(self._turns, (self[ue].merged_in, ue))

    def take_longest_idle(self, most: int) -> list[int]:
        """Dequeue up to ``most`` idle devices, those merged longest ago first.

        The caller must hand each of them a job or queue it again.
        """
        found = []
        while self._turns and len(found) < most:
            _, ue = heapq.heappop(self._turns)
            self._queued.discard(ue)
            if self._filed[ue] == "idle":  # otherwise it has left, and queues again when it returns
                found.append(ue)
        return found

    def within_share(self, idle: list[int], most: float, quorum: int) -> list[int]:
        """Leave out the idle devices that have more than ``most`` merges, and queue them again.

        If too few others are at work to close a round, those with the fewest merges are handed a job anyway.
        """
        over = sorted((ue for ue in idle if self[ue].merges > most), key=lambda ue: (self[ue].merges, ue))
        others = len(idle) - len(over) + self.count("working", "arrived")
        resting = set(over[max(quorum - others, 0) :])
        self.queue(resting)
        return [ue for ue in idle if ue not in resting]
