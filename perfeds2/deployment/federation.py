"""Run a server's rounds while devices are slow, fail, leave and come back.

The rules of a round are in ``timeline/protocol.py`` and are driven here by real arrivals. This module adds what a
simulation does not have: devices that cannot take a job now, and replies that must be validated. The protocol sees
only the devices that hold a job. A device that is away, set aside, or busy with a job that is no longer wanted holds
none; when it is free again, it is handed the newest model.

What happens to single jobs is in ``dispatcher.py``.

The cost of a step depends on what has happened, not on the number of devices: a step visits only devices that arrived,
became free, joined, left, or are about to exceed the staleness bound (``crew.py``).
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import PyTree

from perfeds2.deployment.accuracy import AccuracyWatch
from perfeds2.deployment.crew import Crew, Device, asks, should_log
from perfeds2.deployment.dispatcher import Dispatcher
from perfeds2.deployment.fields import DEFAULTS, DeploymentSpec
from perfeds2.deployment.merging import Handed, Shelf, handed_out, merged, needs_past, noise_on, uploaded
from perfeds2.deployment.record import Evaluation, Lap, Loss, MergedUpdate, Record
from perfeds2.deployment.suspects import Suspects
from perfeds2.deployment.transport import STEPS, Asked, Kind, Reply, Request, Transport
from perfeds2.deployment.validate import Form, Norms, form_of, in_words, norm_of, refusal, shortened
from perfeds2.errors import InputError
from perfeds2.learning.metrics import METRICS
from perfeds2.learning.objectives import Stateful
from perfeds2.learning.replay import Learner
from perfeds2.timeline.protocol import (
    IDLE,
    Closing,
    Planned,
    Protocol,
    Server,
    close_round,
    end_jobs,
    hand_out,
    rested_since,
)
from perfeds2.timeline.record import Timeline
from perfeds2.timeline.state import Schedule

if TYPE_CHECKING:  # it needs the package cryptography
    from perfeds2.deployment.summing import Summing

ROUNDING = 1e-6  # of the norm of an update that its device has clipped


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
    norms: Norms = field(init=False)
    form: Form = field(init=False)  # names, shapes and dtypes of an update
    outgoing: Handed = field(init=False)  # w_k and what the merge sends along
    losses: np.ndarray | None = None  # largest ε of a device after 0, 1, 2, … merges; None without noise
    ended: str | None = None  # why the run ended before its last round
    schedule: Schedule | None = None  # devices of each round, by its number or by losses; None: the first arrivals
    planned: Planned | None = None  # devices of the open round, with a schedule
    secure: bool = False  # whether the server learns only the sum of a round's updates
    summing: "Summing | None" = None  # while the server computes the sum of a round with its members
    suspects: Suspects = field(default_factory=Suspects)  # of spoiling sums
    shelf: Shelf = field(default_factory=Shelf)  # which devices work from which version
    length: float = field(init=False)  # ‖w_k‖
    _closing: tuple[list[Device], Server, Closing] | None = None  # how the round closes once the sum is known
    _over_share: set[int] = field(default_factory=set)  # UEs for which an alarm was raised
    _short_since_s: float = math.inf  # since when there are fewer devices than the quorum

    def __post_init__(self) -> None:
        self.protocol.check(self.ues)
        self.form, self.length = form_of(uploaded(self.params, self.learner)), norm_of(self.params)
        self.crew, self.norms = Crew(self.ues, self.losses, self.own.epsilon_budget), Norms(self.ues)
        later = {"clock": lambda: self.time_s, "log": lambda said: self.log(said), "save": lambda: self.save(self)}
        self.dispatcher = Dispatcher(self.transport, self.crew, self.own, **later)  # the caller sets these later
        if self.merging is None:
            self.merging = self.learner.merge.init(self.params, self.ues)
        self.outgoing = handed_out(self.params, self.learner, self.merging)

    @property
    def max_share(self) -> float:
        """Largest share of merges of one device: at most twice its even share if devices report their losses."""
        return min(self.own.max_share, 2 / self.ues) if asks(self.schedule) else self.own.max_share

    @property
    def devices(self) -> list[Device]:
        return self.crew.devices

    @property
    def time_s(self) -> float:
        return self.transport.now() - self.origin_s

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
            if self.secure and self.summing is None:  # it may have lost the update that it has announced
                device.version, device.reply = IDLE, None
                self.crew.file(device)

    # ---- replies

    def take(self, reply: Reply) -> None:
        """Validate a reply, and accept or refuse it."""
        if not 0 <= reply.ue < self.ues:
            return
        device, time_s = self.crew[reply.ue], reply.received_s - self.origin_s
        device.seen_s = time_s
        job = device.job
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
            if self.summing is not None and job.uploads_masked and self.summing.complain(reply.ue, reply.about):
                self.dispatcher.drop(device)  # it is not at fault, unless its complaint is why the sum fails
                device.keys.clear()
                self.crew.file(device)
            else:
                self.dispatcher.fail(device, time_s)
        elif (why := self._why_refused(reply, device, job, time_s)) is not None:
            self.dispatcher.refuse(device, f"ticket {job.ticket} {why}")
            self.dispatcher.fail(device, time_s)
        else:
            self._accept(reply, device, job, time_s)

    def _why_refused(self, reply: Reply, device: Device, job: Request, time_s: float) -> str | None:
        if job.kind in STEPS and (self.summing is None or reply.metrics):
            return "reports more than a step of secure aggregation asks for"
        why = None
        if job.kind not in STEPS:
            options = {"hidden": self.secure, "asked": asks(self.schedule)}
            why = refusal(reply, job, self.form, time_s - device.sent_s, **options)
        if why is None and job.asked is not None and self.summing is not None:
            why = self.summing.refusal(reply.ue, reply.update)
        return why

    def _clip(self, reply: Reply, device: Device) -> tuple[Reply, float]:
        """Clip the update of a reply to the norm bound; return the factor, too. Its norm becomes the device's vote."""
        assert reply.update is not None
        norm, bound = norm_of(reply.update), self.norm_bound
        self.norms.add(reply.ue, norm)
        if norm <= bound:
            return reply, 1.0
        device.clipped += 1
        if should_log(device.clipped):
            self.log(f"clipped: UE {reply.ue} ticket {reply.ticket} from norm {norm:.4g} to {bound:.4g}")
        return replace(reply, update=shortened(reply.update, bound / norm)), bound / norm

    @property
    def norm_bound(self) -> float:
        """Norm that longer updates are clipped to now. With noise, it must not depend on what other devices sent."""
        if self.learner.noise is not None and self.learner.clip is not None:
            return min(self.learner.clip * (1 + ROUNDING), self.own.norm_bound or math.inf)
        usual = self.norms.bound(self.own.norm_factor, self.length, self.learner.beta)
        return min(usual, self.own.norm_bound or math.inf)

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
            reply, scale = (reply, 1.0) if self.secure else self._clip(reply, device)
            device.took_s = time_s - device.sent_s
            self.record.laps.append(Lap(reply.ue, device.took_s, float(reply.compute_s), job.version, scale))
            device.reply, device.held_arrived_s = reply, time_s
        elif job.kind == "train":
            self.log(f"late: UE {reply.ue} ticket {job.ticket} on version {job.version}, which has been given up")
        self.crew.file(device)

    # ---- rounds

    def _close(self) -> bool:
        """Close the open round if enough updates have arrived, and return whether it closed."""
        if self.secure and self.schedule is not None and not self._learn_sum():
            return False
        found = self._closing or self._find_closing()
        if found is None:
            return False
        devices, ours, closing = found
        if self.secure and self.schedule is None:
            self._closing = found
            if self.summing is None:
                self._open_sum([devices[place] for place in closing.merged])
            if not self._learn_sum():
                return False
        if self.secure:
            self._closing, closing = None, replace(closing, time_s=self.time_s)
        theirs, lost = end_jobs(ours, closing, self.protocol)
        self._merge([devices[place] for place in closing.merged], closing.time_s)
        for place in np.union1d(closing.merged, lost).tolist():
            device = devices[place]
            device.version, device.reply = IDLE, None  # until the next model is dispatched
            device.wanted = device.job is None
            if not device.wanted:
                self.transport.cancel(device.ue)
            self.crew.file(device)
        self.shelf.clear(lambda ue: self.crew[ue].version)
        self.round, self.opened_s, self.planned = theirs.round, theirs.opened_s, None
        self.save(self)
        self.log(self.record.sentence(self.round - 1, self.protocol.quorum))  # once it can no longer be lost
        if (said := self.watch.check(self.own.alarm_fall)) is not None:
            self.log(f"alarm: {said}")
        return True

    def _find_closing(self) -> tuple[list[Device], Server, Closing] | None:
        """Return how the open round closes on the updates that have arrived; None if it cannot."""
        if self.planned is None and self.crew.count("arrived") < self.protocol.quorum:
            return None
        devices = [self.crew[ue] for ue in sorted(self._relevant_ues())]
        ours, planned = self._server(devices), None if self.planned is None else np.arange(len(devices))
        closing = close_round(ours, np.array([device.arrived_s for device in devices]), self.protocol, planned)
        return (devices, ours, closing) if np.isfinite(closing.time_s) else None

    def _server(self, devices: list[Device]) -> Server:
        """Return what the protocol needs to know about these devices, in their order."""
        versions, merged_in = np.array([(device.version, device.merged_in) for device in devices], np.int64).T
        return Server(self.round, versions, merged_in, self.opened_s)

    def _open_sum(self, members: list[Device]) -> None:
        """Send the list of members to all members of a round: with the model in planned rounds, otherwise later."""
        from perfeds2.deployment.masks import fewest_left
        from perfeds2.deployment.summing import Summing

        assert self.learner.clip is not None
        asking = (self.dispatch, self.transport.key_of, self.dispatcher.next_ticket)
        most = len(members) - fewest_left(len(members))
        left_out = self.suspects.left_out([device.ue for device in members], most)
        self.summing = Summing(members, self.learner.clip, self.form, *asking, left_out=left_out)
        if self.schedule is not None:
            self.dispatcher.next_ticket += len(left_out)
        self.summing.begin()

    def _learn_sum(self) -> bool:
        """Compute the sum of a round with its members, step by step, and return whether it is known."""
        if self.summing is None or not self.summing.advance():
            return False
        summing, self.summing = self.summing, None
        if (said := summing.settle(self.record, self.time_s)) is not None:
            self.log(said)
        for device in summing.devices:
            self.crew.file(device)
        for device in summing.at_fault:
            self.dispatcher.fail(device, self.time_s)
        found = {summing.devices[member].ue: "for bad shares of its mask" for member in summing.forgers}
        if summing.failure is None:
            self.suspects.good(summing.uploaded)
        elif summing.spoilt and (ue := self.suspects.spoilt(summing.uploaded)) is not None:
            found[ue] = "for an update that is not clipped: it was in every spoilt sum"
        for ue, why in found.items():
            self.dispatcher.set_aside(self.crew[ue], self.time_s, why)
        if summing.failure is not None:
            self._closing = self.planned = None
        return summing.failure is None

    def _relevant_ues(self) -> Iterable[int]:
        """Return the UEs whose version or arrival can affect how the open round closes."""
        if self.planned is not None:
            return self.planned.tolist()
        arrived = self.crew.states["arrived"].keys()
        if self.protocol.waits:
            return arrived | self.crew.states["working"].keys()  # none may become too stale; at most A·(S+1) of them
        if self.protocol.stale != "restart" or self.protocol.max_staleness is None:
            return arrived
        oldest = self.round - self.protocol.max_staleness  # too stale once the open round has closed
        return arrived | {ue for ue in self.shelf.holders(oldest) if self.crew[ue].version == oldest}

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
        handed = [self.shelf[m.version] for m in merges] if needs_past(self.learner) else []
        noise = noise_on(self.params, self.learner, self.round)
        self.become(*merged(self.params, updates, self.learner, self.merging, senders, handed, noise))
        self.record.merges += merges
        self.record.closed_s.append(time_s)
        self.record.accuracies.append(self.watch.mean)

    # ---- jobs

    def _send_to_idle(self) -> None:
        """Send the newest model to the idle devices that may have it."""
        if self.schedule is not None:
            idle = self._start_planned(self.schedule)
        else:
            most = (self.protocol.most_at_work if self.protocol.waits else None) or self.ues
            candidates = self.crew.take_longest_idle(most)
            idle = self._hand_out(candidates)
            self.crew.queue(set(candidates) - set(idle))
        if self.schedule is None:
            idle = self.crew.within_share(idle, self.own.max_share * len(self.record.merges), self.protocol.quorum)
        devices = [self.crew[ue] for ue in idle]
        for device in devices:
            self.shelf.lend(self.round, device.ue, self.outgoing if needs_past(self.learner) else None)
            if device.held not in (IDLE, self.round):
                self.record.losses.append(Loss(device.ue, device.held, self.round - 1, device.held_arrived_s))
            device.version = device.held = self.round
            device.held_arrived_s, device.wanted = np.inf, True
        if devices and self.secure and self.schedule is not None:
            self._open_sum(devices)
            return
        for device in devices:
            self.dispatch(device, "train")

    def _hand_out(self, candidates: list[int], planned: Planned | None = None) -> list[int]:
        """Return which of these devices the protocol hands the newest model; the others at work count too."""
        if not candidates:
            return []
        devices = [self.crew[ue] for ue in candidates]
        if self.protocol.waits:  # at most A·(S+1) may work
            devices += [self.crew[ue] for state in ("working", "arrived") for ue in self.crew.states[state]]
        server = self._server(devices)
        return sorted(
            devices[place].ue for place in hand_out(server, self.protocol, server.versions == IDLE, planned)[1]
        )

    def _start_planned(self, schedule: Schedule) -> list[int]:
        """Return the planned devices that need a job. Devices that cannot be used are replaced."""
        if self.planned is None:
            moment = self.crew.moment(self.round, self.time_s, self.protocol.quorum) if asks(schedule) else self.round
            self.planned = schedule(moment)
        most = self.max_share * len(self.record.merges) + 1
        for device in (self.crew[ue] for ue in self.planned.tolist()):
            if device.merges > most and device.ue not in self._over_share:
                self._over_share.add(device.ue)
                what = "the losses it reports may be false" if asks(schedule) else "others take its place"
                self.log(
                    f"alarm: UE {device.ue} has more than {self.max_share:.0%} of all merges; {what} (--max-share)"
                )
        self.planned = self.crew.planned(self.planned, most)
        idle = [ue for ue in self.planned.tolist() if self.crew[ue].state == "idle"]
        if self.secure and not (self.summing is None and len(idle) == self.planned.size):
            return []  # all members start at once, since they get the list of all of them
        return self._hand_out(idle, np.arange(len(idle)))

    def dispatch(self, device: Device, kind: Kind, asked: Asked | None = None) -> None:
        """Send a device the newest model with a job, or a question about the update that it has computed."""
        known = device.merged_ticket if isinstance(self.learner.objective, Stateful) and kind not in STEPS else None
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
        self.params, self.merging, self.length = params, merging, norm_of(params)
        self.outgoing = handed_out(params, self.learner, merging)
