"""How does a server keep its rounds when devices are slow, fail, leave and come back?

The rounds themselves are ``timeline/rounds.py``, driven here by real arrivals. This module adds what only reality has:
devices that cannot take a job now, and replies that must not be believed. The rule that joins the two: the protocol sees
the devices that hold a job, no others. A device that is away, set aside or still busy with a job nobody wants any more
holds none; when it is free again it is handed the newest model.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from perfeds2.deployment.record import Lap, Look, Loss, Merge, Record
from perfeds2.deployment.transport import Arrays, Job, Reply, Transport
from perfeds2.deployment.validate import Form, Rules, form_of, refusal
from perfeds2.learning.metrics import METRICS
from perfeds2.learning.replay import Learner
from perfeds2.timeline.rounds import IDLE, Closing, Protocol, Server, close_round, hand_out
from perfeds2.timeline.timeline import Timeline

DeviceState = Literal["working", "arrived", "finishing", "idle", "away", "set aside"]


@dataclass
class Device:
    """What the server knows of one device."""

    job: Job | None = None  # sent, and not yet answered
    sent_s: float = 0.0
    wanted: bool = True  # False: the answer will be dropped, the device has been promised a newer model
    update: Arrays | None = None  # has arrived, and waits for its round to close
    ticket: int = -1  # which job the update answers
    arrived_s: float = np.inf
    held: int = IDLE  # the model of its last job, until that is merged
    held_arrived_s: float = np.inf
    failures: int = 0  # in a row
    refused: int = 0
    set_aside: bool = False
    seen_s: float | None = None
    looked: int = -1  # the newest model it has evaluated

    @property
    def free(self) -> bool:
        return self.job is None and self.update is None and not self.set_aside


@dataclass(frozen=True)
class DeviceStatus:
    """One line of the live table."""

    ue: int
    state: DeviceState
    version: int | None
    staleness: int | None
    seen_s: float | None
    merges: int
    refused: int


@dataclass
class Federation:
    """A server between two events."""

    ues: int
    protocol: Protocol
    learner: Learner
    params: dict[str, np.ndarray]  # w_k
    rules: Rules = field(default_factory=Rules)
    log: Callable[[str], None] = lambda _: None
    save: Callable[["Federation"], None] = lambda _: None  # called when a round has closed, before anything goes out
    optimiser: Any = None
    server: Server = field(init=False)
    devices: list[Device] = field(init=False)
    record: Record = field(default_factory=Record)
    next_ticket: int = 0
    form: Form = field(init=False)

    def __post_init__(self) -> None:
        self.protocol.check(self.ues)
        self.form = form_of(self.params)
        self.devices = [Device() for _ in range(self.ues)]
        self.server = Server(0, np.full(self.ues, IDLE, np.int64), np.full(self.ues, -1, np.int64), 0.0)
        if self.optimiser is None and self.learner.optimiser is not None:
            self.optimiser = self.learner.optimiser.init(self.params)

    @property
    def round(self) -> int:
        """How many rounds have closed."""
        return self.server.round

    def step(self, transport: Transport, origin_s: float, rounds: int, wait_s: float = 0.5) -> None:
        """Hand out what can be handed out, take what comes in, close the rounds that can be closed."""
        self._look_round(transport, origin_s, rounds)
        for reply in sorted(transport.poll(wait_s), key=lambda reply: (reply.received_s, reply.ue)):
            self.take(reply, reply.received_s - origin_s)
        self._look_round(transport, origin_s, rounds)

    def _look_round(self, transport: Transport, origin_s: float, rounds: int) -> None:
        members, before = transport.members(), self.round
        self._miss(members)
        while self.round < rounds and self._close(members):
            pass
        if self.round < rounds:
            self._hand_to_the_free(transport, members, origin_s)
            if self.round > before:
                self.record.turns_s.append(transport.now() - origin_s - self.server.opened_s)

    def take(self, reply: Reply, time_s: float) -> None:
        """Believe a reply, or do not."""
        device, who = self.devices[reply.ue], f"UE {reply.ue}"
        device.seen_s = time_s
        job = device.job
        if job is None or (reply.ticket if reply.on is None else reply.on) != job.ticket:
            if reply.error is not None:
                return  # of a job that was given up already
            device.refused += 1
            self.log(f"refused: {who} answers ticket {reply.ticket}, which is not outstanding")
            return
        device.job = None
        if reply.error is not None:
            self._drop(reply.ue, job)
            self.log(f"failed: {who} ticket {job.ticket}: {reply.error}")
            if not reply.gone:
                self._count_failure(reply.ue)
            return
        why = refusal(reply, job, self.form, self.rules)
        if why is not None:
            self._drop(reply.ue, job)
            device.refused += 1
            self.log(f"refused: {who} ticket {job.ticket} {why}")
            self._count_failure(reply.ue)
            return
        device.failures = 0
        self._look(reply)
        if job.kind == "evaluate":
            return
        if not device.wanted:
            self.log(f"late: {who} ticket {job.ticket} on version {job.version}, which has been given up")
            return
        self.record.laps.append(Lap(reply.ue, time_s - device.sent_s, float(reply.compute_s)))
        device.update, device.ticket, device.arrived_s = reply.update, job.ticket, time_s
        device.held_arrived_s = time_s

    def _look(self, reply: Reply) -> None:
        device = self.devices[reply.ue]
        if set(reply.metrics) == set(METRICS) and reply.version > device.looked:
            device.looked = reply.version
            self.record.looks.append(Look(reply.ue, reply.version, tuple(reply.metrics[name] for name in METRICS)))

    def _drop(self, ue: int, job: Job) -> None:
        """A job came to nothing: its device holds none, and is handed another when it can be."""
        if job.kind == "train" and self.devices[ue].wanted:
            self._hold(ue, IDLE)

    def _hold(self, ue: int, version: int) -> None:
        versions = self.server.versions.copy()
        versions[ue] = version
        self.server = replace(self.server, versions=versions)

    def _count_failure(self, ue: int) -> None:
        device = self.devices[ue]
        device.failures += 1
        if device.failures >= self.rules.set_aside_after and not device.set_aside:
            device.set_aside = True
            self.log(f"set aside: UE {ue} after {device.failures} failures in a row")

    def _miss(self, members: frozenset[int]) -> None:
        """Whoever went away with an unanswered job takes it along."""
        for ue, device in enumerate(self.devices):
            if device.job is not None and ue not in members:
                self.log(f"lost: UE {ue} went away with ticket {device.job.ticket}")
                self._drop(ue, device.job)
                device.job = None

    def _close(self, members: frozenset[int]) -> bool:
        """Close the open round if the arrivals suffice."""
        here = self._here(members)
        if here.size < self.protocol.quorum:
            return False
        arrival_s = np.array([self.devices[ue].arrived_s for ue in here])
        ours = Server(self.round, self.server.versions[here], self.server.merged_in[here], self.server.opened_s)
        closing = close_round(ours, arrival_s, self.protocol)
        if not np.isfinite(closing.time_s):
            return False
        self._merge(here[closing.merged], closing)
        theirs, handed = hand_out(ours, closing, self.protocol)
        versions, merged_in = self.server.versions.copy(), self.server.merged_in.copy()
        versions[here], merged_in[here] = theirs.versions, theirs.merged_in
        promised = here[handed.handed]
        versions[promised] = IDLE  # until the model is really on its way
        self.server = Server(theirs.round, versions, merged_in, theirs.opened_s)
        for ue in here[np.union1d(closing.merged, handed.lost)]:
            device = self.devices[ue]
            device.update, device.arrived_s = None, np.inf
            if device.job is not None:
                device.wanted = False  # a running job cannot be called back
        self.save(self)
        return True

    def _here(self, members: frozenset[int]) -> np.ndarray:
        """Who takes part in the open round: everybody with a job, and where turns are taken also those who could have one."""
        takes_part = self.server.versions != IDLE
        if self.protocol.waits:
            takes_part = takes_part | np.array([ue in members and d.free for ue, d in enumerate(self.devices)])
        return np.flatnonzero(takes_part)

    def _merge(self, ues: np.ndarray, closing: Closing) -> None:
        """w_{k+1} = w_k − β·mean of the updates, in the order the simulator adds them up."""
        updates = []
        for ue in ues.tolist():
            device, version = self.devices[ue], int(self.server.versions[ue])
            assert device.update is not None
            updates.append(device.update)
            self.record.merges.append(Merge(self.round, ue, version, device.ticket, device.arrived_s))
            device.held, device.held_arrived_s = IDLE, np.inf
        self.params, self.optimiser = merged(self.params, updates, self.learner, self.optimiser)
        self.record.closed_s.append(closing.time_s)
        who = ", ".join(f"UE {m.ue} (version {m.version}, ticket {m.ticket})" for m in self.record.merges[-ues.size :])
        self.log(f"round {self.round} closed at {closing.time_s:.3f} s: merged {who}")

    def _hand_to_the_free(self, transport: Transport, members: frozenset[int], origin_s: float) -> None:
        """The newest model goes to everybody who is there and has nothing to do; where turns are taken, longest out first."""
        idle = [
            ue
            for ue in np.argsort(self.server.merged_in, kind="stable").tolist()
            if ue in members and self.devices[ue].free and self.server.versions[ue] == IDLE
        ]
        if self.protocol.waits:
            assert self.protocol.max_staleness is not None
            most = self.protocol.quorum * (self.protocol.max_staleness + 1)
            idle = idle[: max(most - int((self.server.versions != IDLE).sum()), 0)]
        for ue in sorted(idle):
            self._dispatch(transport, ue, transport.now() - origin_s)

    def _dispatch(self, transport: Transport, ue: int, time_s: float) -> None:
        device, version = self.devices[ue], self.round
        job = Job(self.next_ticket, ue, version)
        self.next_ticket += 1
        if not transport.dispatch(job, self.params):
            self.log(f"not sent: UE {ue} ticket {job.ticket}")
            return
        if device.held not in (IDLE, version):
            self.record.losses.append(Loss(ue, device.held, version - 1, device.held_arrived_s))
        device.held, device.held_arrived_s = version, np.inf
        device.job, device.sent_s, device.wanted = job, time_s, True
        self._hold(ue, version)

    def ask_everybody(self, transport: Transport, asked: set[int]) -> None:
        """The rounds are over: send the last model for evaluation to whoever is there and free, each once."""
        for ue in sorted(transport.members() - asked):
            if self.devices[ue].job is None and not self.devices[ue].set_aside:
                job = Job(self.next_ticket, ue, self.round, "evaluate")
                self.next_ticket += 1
                if transport.dispatch(job, self.params):
                    self.devices[ue].job = job
                    asked.add(ue)

    def timeline(self) -> Timeline:
        """The rounds so far."""
        held = np.array([device.held for device in self.devices], np.int64)
        arrived_s = np.array([device.held_arrived_s for device in self.devices])
        return self.record.timeline(self.ues, self.protocol.quorum, held, arrived_s)

    def status(self, members: frozenset[int]) -> list[DeviceStatus]:
        merges = np.bincount([merge.ue for merge in self.record.merges], minlength=self.ues)
        return [
            DeviceStatus(
                ue,
                self._state(ue, members),
                None if self.server.versions[ue] == IDLE else int(self.server.versions[ue]),
                None if self.server.versions[ue] == IDLE else self.round - int(self.server.versions[ue]),
                device.seen_s,
                int(merges[ue]),
                device.refused,
            )
            for ue, device in enumerate(self.devices)
        ]

    def _state(self, ue: int, members: frozenset[int]) -> DeviceState:
        device = self.devices[ue]
        if device.set_aside:
            return "set aside"
        if device.update is not None:
            return "arrived"
        if ue not in members:
            return "away"
        if device.job is None:
            return "idle"
        return "working" if device.wanted else "finishing"


def merged(
    params: Arrays, updates: list[Arrays], learner: Learner, optimiser: Any = None
) -> tuple[dict[str, np.ndarray], Any]:
    """The next model, in float32 and in the order of ``learning/replay.py``, so that a replay gives the same weights."""
    quorum = np.float32(len(updates))
    mean = {}
    for name, values in params.items():
        total = np.zeros_like(values)
        for update in updates:
            total = total + update[name]
        mean[name] = total / quorum
    if learner.optimiser is None:
        return {name: values - np.float32(learner.beta) * mean[name] for name, values in params.items()}, None
    steps: Any
    steps, optimiser = learner.optimiser.update(mean, optimiser, dict(params))
    return {name: np.asarray(values + steps[name]) for name, values in params.items()}, optimiser
