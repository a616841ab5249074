"""Run a server's rounds while devices are slow, fail, leave and come back.

The rules of a round are in ``timeline/protocol.py`` and are driven here by real arrivals. This module adds what a
simulation does not have: devices that cannot take a job now, and replies that must be validated. The protocol sees
only the devices that hold a job. A device that is away, set aside, or busy with a job that is no longer wanted holds
none; when it is free again, it is handed the newest model.

What happens to single jobs is in ``dispatcher.py``, who works on a round in ``selection.py``, and how its updates come
in ``uploads.py``.

The cost of a step depends on what has happened, not on the number of devices: a step visits only devices that arrived,
became free, joined, left, or are about to exceed the staleness bound (``crew.py``).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from jaxtyping import PyTree

from perfeds2.deployment.accuracy import AccuracyWatch
from perfeds2.deployment.crew import Crew, Device, asks, should_log
from perfeds2.deployment.dispatcher import Dispatcher
from perfeds2.deployment.encoding import Encoding
from perfeds2.deployment.fields import DEFAULTS, DeploymentSpec
from perfeds2.deployment.merging import Shelf, StartModel, merged, needs_past, noise_on, start_model, uploaded
from perfeds2.deployment.record import Evaluation, Lap, Loss, MergedUpdate, Record
from perfeds2.deployment.selection import FirstArrivals, OpenRound, Scheduled
from perfeds2.deployment.transport import STEPS, Asked, Kind, Reply, Request, Transport
from perfeds2.deployment.uploads import MaskedUploads, SingleUploads
from perfeds2.deployment.validate import Norms, form_of, in_words, norm_of
from perfeds2.errors import InputError
from perfeds2.learning.learner import Learner
from perfeds2.learning.metrics import METRICS
from perfeds2.learning.objectives import keeps_state
from perfeds2.timeline.protocol import IDLE, Protocol, end_jobs, rested_since
from perfeds2.timeline.record import Timeline
from perfeds2.timeline.state import Schedule


@dataclass
class Federation:
    """The state of a server between two events."""

    protocol: Protocol
    learner: Learner
    params: dict[str, np.ndarray]  # w_k
    transport: Transport
    ues: int
    rounds: int  # number of rounds to close
    own: DeploymentSpec = DEFAULTS
    log: Callable[[str], None] = lambda _: None
    save: Callable[["Federation"], None] = lambda _: None  # called after a round or set-aside, before anything is sent
    origin_s: float = 0.0  # when round 0 opened, on the transport's clock
    merging: PyTree | None = None  # state of the merge
    adopted: dict[str, np.ndarray] | None = None  # in an edge: the cloud's model that it works from
    round: int = 0  # the open round; also the number of closed ones
    opened_s: float = 0.0
    record: Record = field(default_factory=Record)
    warning: str | None = None  # what an operator should look at now
    watch: AccuracyWatch = field(default_factory=AccuracyWatch)
    crew: Crew = field(init=False)
    dispatcher: Dispatcher = field(init=False)
    selection: FirstArrivals = field(init=False)
    uploads: SingleUploads = field(init=False)
    outgoing: StartModel = field(init=False)  # w_k and what the merge sends along
    losses: np.ndarray | None = None  # largest ε of a device after 0, 1, 2, … merges; None without noise
    ended: str | None = None  # why the run ended before its last round
    schedule: Schedule | None = None  # devices of each round, by its number or by losses; None: the first arrivals
    secure: bool = False  # whether the server learns only the sum of a round's updates
    encoding: Encoding | None = None  # of uploads; None: they are sent as they are
    shelf: Shelf = field(default_factory=Shelf)  # which devices work from which version
    _short_since_s: float = math.inf  # since when there are fewer devices than the quorum

    def __post_init__(self) -> None:
        self.protocol.check(self.ues)
        self.crew = Crew(self.ues, self.losses, self.own.epsilon_budget)
        later = {"clock": lambda: self.time_s, "log": lambda said: self.log(said), "save": lambda: self.save(self)}
        self.dispatcher = Dispatcher(self.transport, self.crew, self.own, **later)  # the caller sets these later
        working = (self.protocol, self.crew, self.own, self.shelf, self.dispatcher.log)
        self.selection = FirstArrivals(*working)
        if self.schedule is not None:
            self.selection = Scheduled(*working, schedule=self.schedule, together=self.secure)
        form, norms = form_of(uploaded(self.params, self.learner)), Norms(self.ues)
        coming = (self.learner, form, norms, self.dispatcher, self.dispatch)
        self.uploads = SingleUploads(*coming)
        if self.secure:
            self.uploads = MaskedUploads(*coming, record=self.record, planned=self.schedule is not None)
        if self.merging is None:
            self.merging = self.learner.merge.init(self.params, self.ues)
        self.become(self.params, self.merging)

    @cached_property
    def _keeps_state(self) -> bool:
        return self.learner.chain.has_feedback or keeps_state(self.learner.objective, dict(self.params))

    @property
    def devices(self) -> list[Device]:
        return self.crew.devices

    @property
    def time_s(self) -> float:
        return self.transport.now() - self.origin_s

    @property
    def _open_round(self) -> OpenRound:
        return OpenRound(self.round, self.opened_s, self.time_s, len(self.record.merges))

    def step(self, wait_s: float = 0.5) -> None:
        """Hand out jobs, wait at most ``wait_s`` seconds for replies, and close every round that can close."""
        self._advance()
        for reply in sorted(self.transport.poll(wait_s), key=lambda reply: (reply.received_s, reply.ue)):
            self.take(reply)
        self._advance()

    def _advance(self) -> None:
        self.look()
        self.dispatcher.give_up()
        while self.round < self.rounds and self._close():
            pass
        if self.round < self.rounds:
            self.dispatcher.readmit()
            self._send_to_idle()
            self._check_quorum()

    def look(self) -> None:
        """Update which devices are reachable. A device that leaves with an unanswered job loses it."""
        for device in self.dispatcher.look():
            self.uploads.forget(device)

    # ---- replies

    def take(self, reply: Reply) -> None:
        """Validate a reply, and accept or refuse it."""
        if not 0 <= reply.ue < self.ues:
            return
        device, time_s = self.crew[reply.ue], reply.received_s - self.origin_s
        device.seen_s = time_s
        job = device.job
        if job is not None and reply.ticket == job.ticket and job.kind == "train":
            reply = self._decoded(reply, job)
        if job is None or reply.ticket != job.ticket:
            if reply.ticket == device.overdue:
                self.log(f"late: UE {reply.ue} ticket {reply.ticket}, which has been given up")
                device.overdue = -1
            elif reply.error is None and not 0 <= reply.ticket < self.dispatcher.first_ticket:  # a job given up by now
                self.dispatcher.refuse(device, f"answers ticket {in_words(reply.ticket)}, which is not outstanding")
        elif reply.error is not None and job.kind == "train" and not device.wanted:  # cancelled
            self.dispatcher.drop(device)
            self.crew.file(device)
        elif reply.error is not None:
            device.failed += 1
            if should_log(device.failed):
                self.log(f"failed: UE {reply.ue} ticket {job.ticket}: {in_words(reply.error)} ({device.failed} so far)")
            if self.uploads.excuses(reply, job):
                self.dispatcher.drop(device)
                device.keys.clear()
                self.crew.file(device)
            else:
                self.dispatcher.fail(device, time_s)
        elif (why := self.uploads.refusal(reply, job, time_s - device.sent_s, asked=asks(self.schedule))) is not None:
            self.dispatcher.refuse(device, f"ticket {job.ticket} {why}")
            self.dispatcher.fail(device, time_s)
        else:
            self._accept(reply, device, job, time_s)

    def _decoded(self, reply: Reply, job: Request) -> Reply:
        """Return a reply with its upload as it was before it was encoded, or with why it cannot be read."""
        if self.encoding is None or reply.update is None:
            return reply
        try:
            return replace(reply, update=self.encoding.decode(reply.update, job))
        except ValueError as error:
            return replace(reply, update=None, error=f"unreadable update: {error}")

    def _accept(self, reply: Reply, device: Device, job: Request, time_s: float) -> None:
        device.job = None
        if not self.secure:  # otherwise its failures are forgiven when its upload is in a sum
            device.failures = 0
        for member in () if job.asked is None else job.asked.members:
            if member.signed is not None:
                device.keys[member.ue] = member.signed.key
        if set(reply.metrics) == set(METRICS) and reply.version > device.evaluated:
            seen = Evaluation(reply.ue, reply.version, [float(reply.metrics[name]) for name in METRICS])
            self.record.evaluations.append(seen)
            self.watch.update(self.crew[seen.ue], seen)
        if device.wanted and job.kind == "train":
            reply, scale = self.uploads.accept(reply, device)
            device.took_s = time_s - device.sent_s
            self.record.laps.append(Lap(reply.ue, device.took_s, float(reply.compute_s), job.version, scale))
            device.reply, device.held_arrived_s = reply, time_s
        elif job.kind == "train":
            self.log(f"late: UE {reply.ue} ticket {job.ticket} on version {job.version}, which has been given up")
        self.crew.file(device)

    # ---- rounds

    def _close(self) -> bool:
        """Close the open round if enough updates have arrived, and return whether it closed."""
        found = self.uploads.close(self.selection, self._open_round)
        if found is None:
            return False
        devices, ours, closing = found
        theirs, lost = end_jobs(ours, closing, self.protocol)
        self._merge(found.merged, closing.time_s)
        for place in np.union1d(closing.merged, lost).tolist():
            device = devices[place]
            device.version, device.reply = IDLE, None  # until the next model is dispatched
            device.wanted = device.job is None
            if not device.wanted:
                self.transport.cancel(device.ue)
            self.crew.file(device)
        self.shelf.clear(lambda ue: self.crew[ue].version)
        self.round, self.opened_s, self.selection.plan = theirs.round, theirs.opened_s, None
        self.save(self)
        self.log(self.record.sentence(self.round - 1, self.protocol.quorum))  # once it can no longer be lost
        if (said := self.watch.check(self.own.alarm_fall)) is not None:
            self.log(f"alarm: {said}")
        return True

    def _merge(self, devices: list[Device], time_s: float) -> None:
        """Compute w_{k+1} from the updates, in the simulator's order, and record the round."""
        updates, merges = [], list[MergedUpdate]()
        for device in devices:
            assert device.reply is not None
            assert device.reply.update is not None
            updates.append(device.reply.update)
            merges.append(MergedUpdate(self.round, device.ue, device.version, device.reply.ticket, device.arrived_s))
            device.held, device.held_arrived_s = IDLE, np.inf
            device.merged_in, device.merges = self.round, device.merges + 1
            if device.reply.error is None:  # otherwise it is gone, and may not have the state after this job
                device.merged_ticket = merges[-1].ticket
        senders = [(m.ue, self.round - m.version) for m in merges]
        start_models = [self.shelf[m.version] for m in merges] if needs_past(self.learner) else []
        noise = noise_on(self.params, self.learner, self.round)
        self.become(*merged(self.params, updates, self.learner, self.merging, senders, start_models, noise))
        self.record.merges += merges
        self.record.closed_s.append(time_s)
        self.record.accuracies.append(self.watch.mean)

    # ---- jobs

    def _send_to_idle(self) -> None:
        """Send the newest model to the idle devices that may have it."""
        if self.uploads.is_busy:
            return
        devices = [self.crew[ue] for ue in self.selection.start(self._open_round)]
        for device in devices:
            self.shelf.lend(self.round, device.ue, self.outgoing if needs_past(self.learner) else None)
            if device.held not in (IDLE, self.round):
                self.record.losses.append(Loss(device.ue, device.held, self.round - 1, device.held_arrived_s))
            device.version = device.held = self.round
            device.held_arrived_s, device.wanted = np.inf, True
        self.uploads.hand_out(devices)

    def dispatch(self, device: Device, kind: Kind, asked: Asked | None = None) -> None:
        """Send a device the newest model with a job, or a question about the update that it has computed."""
        known = device.merged_ticket if self._keeps_state and kind not in STEPS else None
        version = device.version if kind in STEPS else self.round
        self.dispatcher.send(device, self.outgoing.packed(), version, kind, known, asked)

    def _check_quorum(self) -> None:
        """Warn if there are fewer usable devices than the quorum, and give up after ``wait_s``.

        If fewer will ever have privacy budget for another round, end the run.
        """
        crew, quorum, latest = self.crew, self.protocol.quorum, rested_since(self.round, self.protocol)
        resting = crew.resting(latest) if self.protocol.rest_rounds > 1 else 0
        usable = crew.usable - resting
        if usable >= quorum:
            if self.warning is not None:
                self.log(f"enough devices again: {usable} of {self.ues}")
            self.warning, self._short_since_s = None, math.inf
            return
        if (left := crew.left(latest)) < quorum:
            self.ended = (
                f"The run ended after {self.round} of {self.rounds} rounds: {left} of {self.ues} devices have privacy budget "
                f"for another round (--epsilon-budget), and it needs {quorum}."
            )
            self.log(f"ended: {self.ended}")
            self.rounds = self.round
            return
        said = f"{usable} of {self.ues} devices can be used and a round needs {quorum}: {crew.shortage(resting)}"
        if self.warning is None:
            self._short_since_s = self.time_s
            self.log(f"warning: {said}")
        self.warning = said
        if self.own.wait_s and self.time_s - self._short_since_s > self.own.wait_s:
            raise InputError(
                f"after {self.own.wait_s:g} s (--wait-s) still only {said}; see events.log, and resume when they are back."
            )

    def timeline(self) -> Timeline:
        """Return the timeline of the rounds so far."""
        held = np.array([device.held for device in self.devices], np.int64)
        arrived_s = np.array([device.held_arrived_s for device in self.devices])
        return self.record.timeline(self.ues, self.protocol.quorum, held, arrived_s)

    def become(self, params: dict[str, np.ndarray], merging: PyTree | None) -> None:
        """Replace the model, the state of the merge, and what is derived from them."""
        self.params, self.merging, self.uploads.length = params, merging, norm_of(params)
        self.outgoing = start_model(params, self.learner, merging)
