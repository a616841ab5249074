"""Learn the sum of a round's updates on the server, which sees none of them (secure aggregation).

    1. ``mask``: the members get the list of all members, and upload their masked updates, with shares of their masks.
       In planned rounds this list comes with the model (``train``). If all upload, their uploads are enough.
    2. ``seeds``, only if members did not upload: the others reveal the masks they share with them. A member that
       does not answer is gone as well, and the rest are asked again.
    3. ``shares``, then or if a token was forged: the members that uploaded reveal the shares of each other's own masks.
       Any t of them suffice.

If too few members are left, the server learns nothing and the updates are discarded, because no update is masked twice.
A member that is gone counts as an update of zeros.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from perfeds2.deployment.crew import Device
from perfeds2.deployment.masks import (
    KEY_BYTES,
    Upload,
    digest_of,
    fewest_left,
    from_words,
    threshold_of,
    unlocked,
    unmasked,
)
from perfeds2.deployment.record import Lap, Record
from perfeds2.deployment.transport import Arrays, Asked, Kind, Reply, RoundMember, SignedKey
from perfeds2.deployment.validate import Form, arrays_of, norm_of
from perfeds2.privacy.sharing import SEALED_BYTES, join
from perfeds2.timeline.protocol import IDLE

ROUNDING = 1.001  # by which rounding may lengthen a sum
Ask = Callable[[Device, Kind, Asked], None]


@dataclass
class Summing:
    """The members of one round, and what they have answered so far."""

    devices: Sequence[Device]  # in the order of the list of members
    clip: float
    form: Form
    ask: Ask
    key_of: Callable[[int], SignedKey | None]  # by UE
    next_ticket: int
    left_out: frozenset[int] = frozenset()  # UEs that are not asked, and count as gone
    step: Kind = field(init=False)  # first "train" in planned rounds, otherwise "mask"
    tickets: Sequence[int] = field(init=False)  # of the jobs that compute their updates
    left: list[int] = field(default_factory=list)  # members that have uploaded and are not gone
    uploads: dict[int, Upload] = field(default_factory=dict)
    revealed: dict[tuple[int, int], bytes] = field(default_factory=dict)  # seeds of masks with members that are gone
    answers: dict[int, Arrays] = field(default_factory=dict)  # of this step, by member
    total: dict[str, np.ndarray] | None = None  # the sum of the updates, once it is known
    failure: str | None = None  # why it will not be known
    spoilt: bool = False  # whether a member sent something else than a clipped update
    forgers: list[int] = field(default_factory=list)  # members that sent others bad shares
    complained: set[int] = field(default_factory=set)  # members that refuse the key of another

    def __post_init__(self) -> None:
        self.left = list(range(len(self.devices)))
        self.tickets = [device.reply.ticket for device in self.devices if device.reply is not None]
        self.step = "mask" if self.tickets else "train"
        if not self.tickets:  # those that are left out come first, since they take a ticket without a job
            order = sorted(range(self.members), key=lambda member: self.devices[member].ue not in self.left_out)
            self.tickets = [self.next_ticket + order.index(member) for member in range(self.members)]

    @property
    def members(self) -> int:
        return len(self.devices)

    @property
    def gone(self) -> tuple[int, ...]:
        return tuple(each for each in range(self.members) if each not in self.left)

    def begin(self) -> None:
        """Send every member the list of members, and ask for its masked update."""
        self._ask(self.step, self._list_for)

    def _list_for(self, member: int) -> Asked:
        """Return the list of members, with the keys that this one has not got before."""
        device, listed = self.devices[member], []
        for other, ticket in zip(self.devices, self.tickets, strict=True):
            signed = self.key_of(other.ue)
            assert signed is not None
            is_new = other is not device and device.keys.get(other.ue) != signed.key
            listed.append(RoundMember(other.ue, ticket, signed if is_new else None))
        return Asked(members=tuple(listed))

    def _ask(self, step: Kind, asked: Callable[[int], Asked]) -> None:
        self.step, self.answers = step, {}
        for member in self.left:
            device = self.devices[member]
            if device.here and not device.set_aside and device.ue not in self.left_out:
                self.ask(device, step, asked(member))

    def refusal(self, ue: int, answer: Arrays | None) -> str | None:
        """Store a member's answer, or return why it is refused."""
        member = next((number for number, each in enumerate(self.devices) if each.ue == ue), None)
        size = sum(int(np.prod(shape)) for shape, _ in self.form.values())
        row = (self.members, KEY_BYTES)
        upload = {"words": (size,), "shares": (self.members, SEALED_BYTES), "digests": row, "tokens": row}
        rows = {"seeds": {"seeds": (len(self.gone), KEY_BYTES)}, "shares": {"shares": row}}
        expected = rows.get(self.step, upload)
        if member not in self.left or answer is None or answer.keys() != expected.keys():
            return "has another answer than secure aggregation expects"
        for name, shape in expected.items():
            kind = np.uint32 if name == "words" else np.uint8
            if answer[name].shape != shape or answer[name].dtype != kind:
                return f"has {name} of another shape than secure aggregation expects"
        self.answers[member] = answer
        return None

    def complain(self, ue: int, about: int | None) -> bool:
        """Note that member ``ue`` refuses the key of member ``about``; False if this is not a complaint about a member."""
        numbers = {device.ue: number for number, device in enumerate(self.devices)}
        if ue not in numbers or about not in numbers or about == ue:
            return False
        self.complained.add(numbers[ue])
        return True

    @property
    def uploaded(self) -> list[int]:
        """UEs whose updates are in the sum."""
        return [self.devices[member].ue for member in self.left]

    @property
    def at_fault(self) -> list[Device]:
        """Devices whose complaints about checked keys may have prevented the sum."""
        return [self.devices[member] for member in sorted(self.complained)] if self.failure is not None else []

    def advance(self) -> bool:
        """Take the next step once no answer is outstanding, and return whether the last one is done."""
        while self.total is None and self.failure is None:
            asked = (self.devices[member].job for member in self.left)
            if any(job is not None and job.kind == self.step for job in asked):
                return False
            answered = sorted(self.answers)
            if self.step == "shares":
                self._sum(answered)
                break
            everyone, self.left = answered == self.left, answered
            if len(answered) < fewest_left(self.members):
                needed = fewest_left(self.members)
                self.failure = f"{len(answered)} of {self.members} members are left, and {needed} are needed"
                break
            if self.step != "seeds":
                self.uploads = {member: Upload(**self.answers[member]) for member in answered}
                if everyone and (seeds := unlocked(self.uploads)) is not None:
                    self._add_up(seeds)
                    break
            elif everyone:
                self._take_seeds()
            if everyone:
                self._ask("shares", self._shares_for)
            else:
                self._ask("seeds", lambda _: Asked(gone=self.gone))
        return True

    def settle(self, record: Record, time_s: float) -> str | None:
        """Assign the sum to one member and zeros to the others; without a sum, discard all updates.

        Returns:
            What to log.
        """
        zeros = {name: np.zeros_like(values) for name, values in (self.total or {}).items()}
        for member, device in enumerate(self.devices):
            if self.total is None:
                device.version, device.reply = IDLE, None
                continue
            if device.reply is None:  # gone before its update was there
                device.version, device.held_arrived_s = self.devices[self.left[0]].version, time_s
                device.reply = Reply(device.ue, self.tickets[member], device.version)
            error = None if member in self.left else "gone"
            if member in self.left:
                device.failures = 0
            device.reply = replace(device.reply, update=self.total if member == self.left[0] else zeros, error=error)
        if self.failure is not None:
            return f"not summed: {self.failure}; the members compute again"
        gone = [self.devices[member] for member in self.gone]
        record.laps += [Lap(device.ue, 0.0, 0.0, device.version, scale=0.0) for device in gone]  # for a replay
        names = ", ".join(str(ue) for ue in sorted(device.ue for device in gone))
        return f"gone: UE {names}, whose updates count as zeros" if gone else None

    def _take_seeds(self) -> None:
        for member, answer in self.answers.items():
            for gone, seed in zip(self.gone, answer["seeds"], strict=True):
                self.revealed[member, gone] = seed.tobytes()

    def _shares_for(self, holder: int) -> Asked:
        empty = bytes(SEALED_BYTES).hex()
        sealed = (self.uploads[member].shares[holder].tobytes().hex() for member in self.left)
        sent = dict(zip(self.left, sealed, strict=True))
        return Asked(gone=self.gone, shares=tuple(sent.get(member, empty) for member in range(self.members)))

    def _sum(self, holders: Sequence[int]) -> None:
        """Join the seeds of the members' own masks. Shares that their owner did not make are left out."""
        good, threshold = dict[int, dict[int, bytes]](), threshold_of(self.members)
        for member in self.left:
            shares = {holder: self.answers[holder]["shares"][member].tobytes() for holder in holders}
            digests = self.uploads[member].digests
            good[member] = {
                each: share for each, share in shares.items() if digest_of(share) == digests[each].tobytes()
            }
        short = [member for member in self.left if len(good[member]) < threshold]
        if not short:
            self._add_up({member: join(shares, threshold) for member, shares in good.items()})
            return
        ue = self.devices[short[0]].ue
        self.failure = f"{len(good[short[0]])} of the {threshold} shares needed came for UE {ue}"
        # A holder whose shares of most others are bad has spoilt them; any other bad share is its owner's.
        bad = {each for each in holders if 2 * sum(each not in good[member] for member in self.left) > len(self.left)}
        self.forgers = sorted(bad) or short

    def _add_up(self, seeds: Mapping[int, bytes]) -> None:
        words = unmasked({member: self.uploads[member].words for member in self.left}, seeds, self.revealed)
        total = arrays_of(from_words(words, self.clip, self.members), self.form)
        if norm_of(total) > ROUNDING * self.clip * len(self.left):
            self.failure = "the sum is longer than clipped updates can be, so a member sent something else"
            self.spoilt = True
            return
        self.total = total
