"""Get the updates of a round: one by one as they arrive, or only their sum (secure aggregation).

A strategy validates replies, and hands out jobs and closes rounds in its own way.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from perfeds2.deployment.crew import Device, should_log
from perfeds2.deployment.dispatcher import Dispatcher
from perfeds2.deployment.record import Record
from perfeds2.deployment.selection import Closed, FirstArrivals, OpenRound
from perfeds2.deployment.suspects import Suspects
from perfeds2.deployment.transport import STEPS, Asked, Kind, Reply, Request
from perfeds2.deployment.validate import Form, Norms, norm_of, refusal, shortened
from perfeds2.learning.learner import Learner
from perfeds2.timeline.protocol import IDLE

if TYPE_CHECKING:  # it needs the package cryptography
    from perfeds2.deployment.summing import Summing

ROUNDING = 1e-6  # of the norm of an update that its device has clipped
Dispatch = Callable[[Device, Kind, Asked | None], None]  # sends a device a job


@dataclass
class SingleUploads:
    """The server sees, clips and merges each update by itself."""

    learner: Learner
    form: Form  # names, shapes and dtypes of an update
    norms: Norms
    dispatcher: Dispatcher
    dispatch: Dispatch
    length: float = 0.0  # ‖w_k‖

    @property
    def norm_bound(self) -> float:
        """Norm that longer updates are clipped to now. With noise, it must not depend on what other devices sent."""
        learner, own = self.learner, self.dispatcher.own
        if learner.noise is not None and learner.clip is not None:
            return min(learner.clip * (1 + ROUNDING), own.norm_bound or math.inf)
        return min(self.norms.bound(own.norm_factor, self.length, learner.beta), own.norm_bound or math.inf)

    @property
    def is_busy(self) -> bool:
        """Whether no further device may get the newest model now."""
        return False

    def refusal(self, reply: Reply, job: Request, elapsed_s: float, *, asked: bool) -> str | None:
        """Return why a reply is refused, or None if it is valid."""
        return refusal(reply, job, self.form, elapsed_s, asked=asked)

    def excuses(self, reply: Reply, job: Request) -> bool:  # noqa: ARG002 (the interface)
        """Return whether a failed job is not its device's fault."""
        return False

    def accept(self, reply: Reply, device: Device) -> tuple[Reply, float]:
        """Clip the update of a reply to the norm bound; return the factor, too. Its norm becomes the device's vote."""
        assert reply.update is not None
        norm, bound = norm_of(reply.update), self.norm_bound
        self.norms.add(reply.ue, norm)
        if norm <= bound:
            return reply, 1.0
        device.clipped += 1
        if should_log(device.clipped):
            self.dispatcher.log(f"clipped: UE {reply.ue} ticket {reply.ticket} from norm {norm:.4g} to {bound:.4g}")
        return replace(reply, update=shortened(reply.update, bound / norm)), bound / norm

    def forget(self, device: Device) -> None:
        """Drop what a device that left can no longer give."""

    def hand_out(self, devices: list[Device]) -> None:
        for device in devices:
            self.dispatch(device, "train", None)

    def close(self, selection: FirstArrivals, now: OpenRound) -> Closed | None:
        """Return how the open round closes, with the updates in the replies of its devices; None if it cannot yet."""
        return selection.close(now)


@dataclass
class MaskedUploads(SingleUploads):
    """The server learns the sum of a round's updates only. In planned rounds, members get their list with the model."""

    record: Record = field(kw_only=True)
    planned: bool = field(kw_only=True)
    summing: "Summing | None" = None  # while the server computes the sum of a round with its members
    suspects: Suspects = field(default_factory=Suspects)  # of spoiling sums
    _closed: Closed | None = None  # how the round closes once the sum is known

    @property
    def is_busy(self) -> bool:
        return self.planned and self.summing is not None  # its members are the devices of the round

    def refusal(self, reply: Reply, job: Request, elapsed_s: float, *, asked: bool) -> str | None:
        why = None
        if job.kind not in STEPS:
            why = refusal(reply, job, self.form, elapsed_s, hidden=True, asked=asked)
        elif self.summing is None or reply.metrics:
            why = "reports more than a step of secure aggregation asks for"
        if why is None and job.asked is not None and self.summing is not None:
            why = self.summing.refusal(reply.ue, reply.update)
        return why

    def excuses(self, reply: Reply, job: Request) -> bool:
        """Return whether a device complains about another's key: not its fault, unless the sum fails because of it."""
        return self.summing is not None and job.uploads_masked and self.summing.complain(reply.ue, reply.about)

    def accept(self, reply: Reply, device: Device) -> tuple[Reply, float]:  # noqa: ARG002 (the interface)
        return reply, 1.0

    def forget(self, device: Device) -> None:
        """Drop an update that a device announced before it left, because the device may have lost it."""
        if self.summing is None:
            device.version, device.reply = IDLE, None
            self.dispatcher.crew.file(device)

    def hand_out(self, devices: list[Device]) -> None:
        if self.planned and devices:
            self._open(devices)
        elif not self.planned:
            super().hand_out(devices)

    def close(self, selection: FirstArrivals, now: OpenRound) -> Closed | None:
        if self.summing is None and not self.planned and (found := selection.close(now)) is not None:
            self._closed = found
            self._open(found.merged)
        if self.summing is None or not self.summing.advance():
            return None
        if not self._settle(self.summing, now.time_s):
            self._closed = selection.plan = None
            return None
        found, self._closed = self._closed or selection.close(now), None
        return found and found._replace(closing=replace(found.closing, time_s=now.time_s))

    def _open(self, members: list[Device]) -> None:
        """Send the list of members to all members of a round."""
        from perfeds2.deployment.masks import fewest_left
        from perfeds2.deployment.summing import Summing

        assert self.learner.clip is not None
        asking = (self.dispatch, self.dispatcher.transport.key_of, self.dispatcher.next_ticket)
        most = len(members) - fewest_left(len(members))
        left_out = self.suspects.left_out([device.ue for device in members], most)
        self.summing = Summing(members, self.learner.clip, self.form, *asking, left_out=left_out)
        if self.planned:
            self.dispatcher.next_ticket += len(left_out)
        self.summing.begin()

    def _settle(self, summing: "Summing", time_s: float) -> bool:
        """Give the members the sum, or blame those who prevented it; return whether there is one."""
        self.summing, dispatcher = None, self.dispatcher
        if (said := summing.settle(self.record, time_s)) is not None:
            dispatcher.log(said)
        for device in summing.devices:
            dispatcher.crew.file(device)
        for device in summing.at_fault:
            dispatcher.fail(device, time_s)
        found = {summing.devices[member].ue: "for bad shares of its mask" for member in summing.forgers}
        if summing.failure is None:
            self.suspects.good(summing.uploaded)
        elif summing.spoilt and (ue := self.suspects.spoilt(summing.uploaded)) is not None:
            found[ue] = "for an update that is not clipped: it was in every spoilt sum"
        for ue, why in found.items():
            dispatcher.set_aside(dispatcher.crew[ue], time_s, why)
        return summing.failure is None
