"""How does a server keep its rounds when devices are slow, fail, leave and come back?

The rounds themselves are ``timeline/rounds.py``, driven here by real arrivals. This module adds what only reality has:
devices that cannot take a job now, and replies that must not be believed. The rule that joins the two: the protocol sees
the devices that hold a job, no others. A device that is away, set aside or still busy with a job nobody wants any more
holds none; when it is free again it is handed the newest model.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from perfeds2.deployment.fields import DEFAULTS, DeploymentSpec
from perfeds2.deployment.record import Evaluation, Lap, Loss, Merge, Record
from perfeds2.deployment.status import ClosedRound, DeviceState, DeviceStatus, Status
from perfeds2.deployment.transport import Arrays, Kind, Reply, Request, Transport
from perfeds2.deployment.validate import Form, form_of, refusal
from perfeds2.learning.metrics import METRICS
from perfeds2.learning.replay import Learner
from perfeds2.timeline.rounds import IDLE, Protocol, Server, close_round, hand_out
from perfeds2.timeline.timeline import Timeline

RECENT = 12  # rounds in the live table


@dataclass
class Device:
    """What the server knows of one device."""

    version: int = IDLE  # the model it works from, as the protocol sees it
    merged_in: int = -1  # the last round it was merged in
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

    def state(self, is_here: bool) -> DeviceState:
        if self.set_aside:
            return "set aside"
        if self.reply is not None:
            return "arrived"
        if not is_here:
            return "away"
        return "idle" if self.job is None else "working" if self.wanted else "finishing"


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
    round: int = 0  # the open one: so many have closed
    opened_s: float = 0.0
    next_ticket: int = 0
    record: Record = field(default_factory=Record)
    devices: list[Device] = field(init=False)
    form: Form = field(init=False)
    here: set[int] = field(init=False, default_factory=set)  # who can be reached

    def __post_init__(self) -> None:
        self.protocol.check(self.ues)
        self.form = form_of(self.params)
        self.devices = [Device() for _ in range(self.ues)]
        if self.optimiser is None and self.learner.optimiser is not None:
            self.optimiser = self.learner.optimiser.init(self.params)

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
        before, members = self.round, self.look()
        while self.round < self.rounds and self._close(members):
            pass
        if self.round < self.rounds:
            self._hand_to_the_free(members)
            if self.round > before:
                self.record.turns_s.append(self.time_s - self.opened_s)

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
        device.job, what = None, f"{who} ticket {job.ticket}"
        why = refusal(reply, job, self.form, self.own.norm_bound) if reply.error is None else None
        if reply.error is not None or why is not None:
            self._drop(reply.ue, job)
            device.refused += why is not None
            self.log(f"refused: {what} {why}" if why else f"failed: {what}: {reply.error}")
            device.failures += not reply.gone
            if device.failures >= self.own.set_aside_after and not device.set_aside:
                device.set_aside = True
                self.log(f"set aside: {who} after {device.failures} failures in a row")
            return
        device.failures = 0
        if set(reply.metrics) == set(METRICS) and reply.version > device.evaluated:
            device.evaluated = reply.version
            values = [reply.metrics[name] for name in METRICS]
            self.record.evaluations.append(Evaluation(reply.ue, reply.version, values))
        if job.kind == "train" and device.wanted:
            self.record.laps.append(Lap(reply.ue, time_s - device.sent_s, float(reply.compute_s)))
            device.reply, device.held_arrived_s = reply, time_s
        elif job.kind == "train":
            self.log(f"late: {what} on version {job.version}, which has been given up")

    def _drop(self, ue: int, job: Request) -> None:
        """A job came to nothing: its device holds none, and is handed another when it can be."""
        if job.kind == "train" and self.devices[ue].wanted:
            self.devices[ue].version = IDLE

    def look(self) -> frozenset[int]:
        """Who is here? Whoever went away with an unanswered job takes it along."""
        went, came = self.transport.changes()
        for ue in sorted(went):
            device = self.devices[ue]
            if device.job is not None:
                self.log(f"lost: UE {ue} went away with ticket {device.job.ticket}")
                self._drop(ue, device.job)
                device.job = None
        self.here = (self.here - went) | came
        return frozenset(self.here)

    def _close(self, members: frozenset[int]) -> bool:
        """Close the open round if the arrivals suffice."""
        here = self._here(members)
        if len(here) < self.protocol.quorum:
            return False
        devices = [self.devices[ue] for ue in here]
        versions, merged_in = np.array([(device.version, device.merged_in) for device in devices], np.int64).T
        ours = Server(self.round, versions, merged_in, self.opened_s)
        closing = close_round(ours, np.array([device.arrived_s for device in devices]), self.protocol)
        if not np.isfinite(closing.time_s):
            return False
        self._merge([here[place] for place in closing.merged], closing.time_s)
        theirs, handed = hand_out(ours, closing, self.protocol)
        for place, device in enumerate(devices):
            device.version, device.merged_in = int(theirs.versions[place]), int(theirs.merged_in[place])
        for place in handed.handed:
            devices[place].version = IDLE  # until the model is really on its way
        for place in np.union1d(closing.merged, handed.lost):
            devices[place].reply = None
            devices[place].wanted = devices[place].job is None  # a running job cannot be called back
        self.round, self.opened_s = theirs.round, theirs.opened_s
        self.save(self)
        return True

    def _here(self, members: frozenset[int]) -> list[int]:
        """Who takes part in the open round: everybody with a job, and where turns are taken also those who could have one."""
        waits = self.protocol.waits
        return [ue for ue, d in enumerate(self.devices) if d.version != IDLE or (waits and d.free and ue in members)]

    def _merge(self, ues: list[int], time_s: float) -> None:
        """w_{k+1} = w_k − β·mean of the updates, in the order the simulator adds them up."""
        updates, merges = [], []
        for ue in ues:
            device = self.devices[ue]
            assert device.reply is not None
            assert device.reply.update is not None
            updates.append(device.reply.update)
            merges.append(Merge(self.round, ue, device.version, device.reply.ticket, device.arrived_s))
            device.held, device.held_arrived_s = IDLE, np.inf
        self.params, self.optimiser = merged(self.params, updates, self.learner, self.optimiser)
        self.record.merges += merges
        self.record.closed_s.append(time_s)
        who = ", ".join(f"UE {m.ue} (version {m.version}, ticket {m.ticket})" for m in merges)
        self.log(f"round {self.round} closed at {time_s:.3f} s: merged {who}")

    def _hand_to_the_free(self, members: frozenset[int]) -> None:
        """The newest model goes to everybody who is there and has nothing to do; where turns are taken, longest out first."""
        devices = self.devices
        idle = [ue for ue in sorted(members) if devices[ue].free and devices[ue].version == IDLE]
        if self.protocol.waits:
            assert self.protocol.max_staleness is not None
            most = self.protocol.quorum * (self.protocol.max_staleness + 1)
            free = most - sum(device.version != IDLE for device in devices)
            idle = sorted(sorted(idle, key=lambda ue: devices[ue].merged_in)[: max(free, 0)])
        for ue in idle:
            device, time_s = devices[ue], self.time_s
            if self._dispatch(ue, "train"):
                if device.held not in (IDLE, self.round):
                    self.record.losses.append(Loss(ue, device.held, self.round - 1, device.held_arrived_s))
                device.version = device.held = self.round
                device.held_arrived_s, device.sent_s, device.wanted = np.inf, time_s, True

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
        members = self.look()
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
        members, record, quorum = self.here, self.record, self.protocol.quorum
        closed_s, merges = [0.0, *record.closed_s], record.merges_by_ue(self.ues)
        recent = [
            ClosedRound(
                round=k,
                time_s=closed_s[k + 1],
                took_s=closed_s[k + 1] - closed_s[k],
                ues=[merge.ue for merge in record.merges[k * quorum : (k + 1) * quorum]],
            )
            for k in range(max(self.round - RECENT, 0), self.round)
        ]
        devices = [
            DeviceStatus(
                ue=ue,
                state=device.state(ue in members),
                version=None if device.version == IDLE else device.version,
                staleness=None if device.version == IDLE else self.round - device.version,
                seen_s=device.seen_s,
                merges=merges[ue],
                refused=device.refused,
            )
            for ue, device in enumerate(self.devices)
        ]
        where = {"round": self.round, "rounds": self.rounds, "time_s": self.time_s}
        return Status(process=os.getpid(), phase=phase, devices=devices, recent=recent, **where)


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
