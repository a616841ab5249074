"""How does a server keep its rounds when devices are slow, fail, leave and come back?

The rounds themselves are ``timeline/rounds.py``, driven here by real arrivals. This module adds what only reality has:
devices that cannot take a job now, and replies that must not be believed. The rule that joins the two: the protocol sees
the devices that hold a job, no others. A device that is away, set aside or still busy with a job nobody wants any more
holds none; when it is free again it is handed the newest model.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from perfeds2.deployment.fields import DEFAULTS, DeploymentSpec
from perfeds2.deployment.record import Evaluation, Lap, Loss, Merge, Record
from perfeds2.deployment.status import ClosedRound, DeviceState, DeviceStatus, Status
from perfeds2.deployment.transport import Arrays, Kind, Reply, Request, Transport
from perfeds2.deployment.validate import Form, form_of, refusal
from perfeds2.learning.metrics import METRICS
from perfeds2.learning.replay import Learner
from perfeds2.timeline.rounds import IDLE, Closing, Protocol, Server, close_round, hand_out
from perfeds2.timeline.timeline import Timeline

RECENT = 12  # rounds in the live table


@dataclass
class Device:
    """What the server knows of one device."""

    job: Request | None = None  # sent, and not yet answered
    sent_s: float = 0.0
    wanted: bool = True  # False: the answer will be dropped, the device has been promised a newer model
    reply: Reply | None = None  # its update has arrived, and waits for its round to close
    held: int = IDLE  # the model of its last job, until that is merged
    held_arrived_s: float = np.inf  # when the update of that job came
    failures: int = 0  # in a row
    refused: int = 0
    set_aside: bool = False
    seen_s: float | None = None
    evaluated: int = -1  # the newest model it has evaluated

    @property
    def free(self) -> bool:
        return self.job is None and self.reply is None and not self.set_aside

    @property
    def arrived_s(self) -> float:
        """When the update that waits arrived; infinite if none does."""
        return np.inf if self.reply is None else self.held_arrived_s


@dataclass
class Federation:
    """A server between two events."""

    protocol: Protocol
    learner: Learner
    params: dict[str, np.ndarray]  # w_k
    transport: Transport
    ues: int
    rounds: int  # so many will be closed
    own: DeploymentSpec = DEFAULTS
    log: Callable[[str], None] = lambda _: None
    save: Callable[["Federation"], None] = lambda _: None  # called when a round has closed, before anything goes out
    origin_s: float = 0.0  # when round 0 opened, on the transport's clock
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

    @property
    def time_s(self) -> float:
        return self.transport.now() - self.origin_s

    def step(self, wait_s: float = 0.5) -> None:
        """Hand out what can be handed out, take what comes in, close the rounds that can be closed."""
        self._go_on()
        for reply in sorted(self.transport.poll(wait_s), key=lambda reply: (reply.received_s, reply.ue)):
            self.take(reply)
        self._go_on()

    def _go_on(self) -> None:
        members, before = self.transport.members(), self.round
        self._miss(members)
        while self.round < self.rounds and self._close(members):
            pass
        if self.round < self.rounds:
            self._hand_to_the_free(members)
            if self.round > before:
                self.record.turns_s.append(self.time_s - self.server.opened_s)

    def take(self, reply: Reply) -> None:
        """Believe a reply, or do not."""
        device, who, time_s = self.devices[reply.ue], f"UE {reply.ue}", reply.received_s - self.origin_s
        device.seen_s = time_s
        job = device.job
        if job is None or (reply.ticket if reply.on is None else reply.on) != job.ticket:
            if reply.error is None:  # else of a job that was given up already
                device.refused += 1
                self.log(f"refused: {who} answers ticket {reply.ticket}, which is not outstanding")
            return
        device.job = None
        why = refusal(reply, job, self.form, self.own.norm_bound) if reply.error is None else None
        if reply.error is not None or why is not None:
            self._drop(reply.ue, job)
            device.refused += why is not None
            told = (
                f"refused: {who} ticket {job.ticket} {why}"
                if why
                else f"failed: {who} ticket {job.ticket}: {reply.error}"
            )
            self.log(told)
            if not reply.gone:
                self._count_failure(reply.ue)
            return
        device.failures = 0
        if set(reply.metrics) == set(METRICS) and reply.version > device.evaluated:
            device.evaluated = reply.version
            values = tuple(reply.metrics[name] for name in METRICS)
            self.record.evaluations.append(Evaluation(reply.ue, reply.version, values))
        if job.kind == "evaluate":
            return
        if not device.wanted:
            self.log(f"late: {who} ticket {job.ticket} on version {job.version}, which has been given up")
            return
        self.record.laps.append(Lap(reply.ue, time_s - device.sent_s, float(reply.compute_s)))
        device.reply, device.held_arrived_s = reply, time_s

    def _drop(self, ue: int, job: Request) -> None:
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
        if device.failures >= self.own.set_aside_after and not device.set_aside:
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
        ours = replace(self.server, versions=self.server.versions[here], merged_in=self.server.merged_in[here])
        closing = close_round(ours, arrival_s, self.protocol)
        if not np.isfinite(closing.time_s):
            return False
        self._merge(here[closing.merged], closing)
        theirs, handed = hand_out(ours, closing, self.protocol)
        versions, merged_in = self.server.versions.copy(), self.server.merged_in.copy()
        versions[here], merged_in[here] = theirs.versions, theirs.merged_in
        versions[here[handed.handed]] = IDLE  # until the model is really on its way
        self.server = replace(theirs, versions=versions, merged_in=merged_in)
        for ue in here[np.union1d(closing.merged, handed.lost)]:
            device = self.devices[ue]
            device.reply = None
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
        updates, merges = [], []
        for ue in ues.tolist():
            device, version = self.devices[ue], int(self.server.versions[ue])
            assert device.reply is not None
            assert device.reply.update is not None
            updates.append(device.reply.update)
            merges.append(Merge(self.round, ue, version, device.reply.ticket, device.arrived_s))
            device.held, device.held_arrived_s = IDLE, np.inf
        self.params, self.optimiser = merged(self.params, updates, self.learner, self.optimiser)
        self.record.merges += merges
        self.record.closed_s.append(closing.time_s)
        who = ", ".join(f"UE {m.ue} (version {m.version}, ticket {m.ticket})" for m in merges)
        self.log(f"round {self.round} closed at {closing.time_s:.3f} s: merged {who}")

    def _hand_to_the_free(self, members: frozenset[int]) -> None:
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
            device, version, time_s = self.devices[ue], self.round, self.time_s
            if not self._dispatch(ue, "train"):
                continue
            if device.held not in (IDLE, version):
                self.record.losses.append(Loss(ue, device.held, version - 1, device.held_arrived_s))
            device.held, device.held_arrived_s = version, np.inf
            device.sent_s, device.wanted = time_s, True
            self._hold(ue, version)

    def _dispatch(self, ue: int, kind: Kind) -> bool:
        request = Request(self.next_ticket, ue, self.round, kind)
        self.next_ticket += 1
        if not self.transport.dispatch(request, self.params):
            self.log(f"not sent: UE {ue} ticket {request.ticket}")
            return False
        self.devices[ue].job = request
        return True

    def want_no_more(self) -> None:
        """The rounds are over: what is still under way comes too late."""
        for device in self.devices:
            device.wanted = False

    def ask_everybody(self, asked: set[int]) -> bool:
        """Send the last model for evaluation to whoever is there and free, each once. Is anybody still at work?"""
        members = self.transport.members()
        for ue in sorted(members - asked):
            if self.devices[ue].job is None and not self.devices[ue].set_aside and self._dispatch(ue, "evaluate"):
                asked.add(ue)
        return any(self.devices[ue].job is not None for ue in members)

    def timeline(self) -> Timeline:
        """The rounds so far."""
        held = np.array([device.held for device in self.devices], np.int64)
        arrived_s = np.array([device.held_arrived_s for device in self.devices])
        return self.record.timeline(self.ues, self.protocol.quorum, held, arrived_s)

    def status(self, phase: str) -> Status:
        members, record, quorum = self.transport.members(), self.record, self.protocol.quorum
        closed_s = [0.0, *record.closed_s]
        recent = [
            ClosedRound(
                k, closed_s[k + 1], closed_s[k + 1] - closed_s[k],
                [merge.ue for merge in record.merges[k * quorum : (k + 1) * quorum]],
            )
            for k in range(max(self.round - RECENT, 0), self.round)
        ]  # fmt: skip
        merges = record.merges_by_ue(self.ues)
        devices = [self._device_status(ue, ue in members, merges[ue]) for ue in range(self.ues)]
        return Status(os.getpid(), phase, self.round, self.rounds, self.time_s, devices, recent)

    def _device_status(self, ue: int, is_here: bool, merges: int) -> DeviceStatus:
        device, version = self.devices[ue], int(self.server.versions[ue])
        state: DeviceState = (
            "set aside" if device.set_aside
            else "arrived" if device.reply is not None
            else "away" if not is_here
            else "idle" if device.job is None
            else "working" if device.wanted
            else "finishing"
        )  # fmt: skip
        holds = (None, None) if version == IDLE else (version, self.round - version)
        return DeviceStatus(ue, state, *holds, device.seen_s, merges, device.refused)


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
