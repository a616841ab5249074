"""The interface between a federation and its network: send jobs, collect replies, track which devices are reachable.

``mqtt/`` implements it for real devices.
"""

import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

Arrays = Mapping[str, np.ndarray]
Kind = Literal["train", "evaluate", "mask", "seeds", "shares"]
STEPS = ("mask", "seeds", "shares")  # of secure aggregation, after "train"; they need no model


@dataclass(frozen=True)
class SignedKey:
    """A device's public key for the masks of one run, signed with the key of its certificate."""

    key: str  # in hexadecimal, as the signature
    signature: str
    certificate: str  # PEM


@dataclass(frozen=True)
class RoundMember:
    """A device whose update is in the sum of a round."""

    ue: int
    ticket: int  # of the job that computed the update
    signed: SignedKey | None = None  # None: sent before


@dataclass(frozen=True)
class Asked:
    """What the server asks a member for, to learn the sum of a round. Members are numbered in the order of the list."""

    members: tuple[RoundMember, ...] = ()  # to mask an update; in planned rounds they come with the model
    gone: tuple[int, ...] = ()  # members that did not upload
    shares: tuple[str, ...] = ()  # what every member sent to this one, in hexadecimal


@dataclass(frozen=True)
class Request:
    """A job for one device."""

    ticket: int  # unique within a run, even across restarts
    ue: int
    version: int  # of the model sent with it
    kind: Kind = "train"
    merged: int | None = None  # ticket of this UE's last merged job, for devices that keep state
    asked: Asked | None = None  # by secure aggregation

    @property
    def uploads_masked(self) -> bool:
        return self.asked is not None and bool(self.asked.members)


@dataclass(frozen=True)
class Reply:
    """A device's answer to a job. Only ``ue`` and ``received_s`` can be trusted."""

    ue: int  # the UE whose connection it came over
    ticket: int = -1  # the ticket it claims to answer
    version: int = -1
    update: Arrays | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    compute_s: float = 0.0
    received_s: float = 0.0  # on the transport's clock
    error: str | None = None  # why the job failed
    about: int | None = None  # the UE whose key for masks this one refuses


# By UE, or None for the whole network: what the problem is, or None once it is resolved.
Troubles = Mapping[int | None, str | None]


class Changes(typing.NamedTuple):
    """The UEs that left and joined since the last call. A UE in both has reconnected and lost its job."""

    went: set[int]
    came: set[int]


class Presence:
    """Tracks which UEs are reachable. ``changes`` costs only as much as has changed. Not thread-safe."""

    def __init__(self, here: Iterable[int] = ()) -> None:
        self.here = set(here)
        self._went, self._came = set[int](), set(self.here)

    def add(self, ue: int) -> None:
        """Mark a UE as reachable. Does nothing if it already is."""
        if ue not in self.here:
            self.here.add(ue)
            self._came.add(ue)

    def discard(self, ue: int) -> None:
        """Mark a UE as gone, with its unfinished job. For a UE that restarted, call ``discard``, then ``add``."""
        if ue in self.here:
            self.here.discard(ue)
            self._came.discard(ue)
            self._went.add(ue)

    def changes(self) -> Changes:
        """Return the changes since the last call. The first call reports every reachable UE as joined."""
        changes, self._went, self._came = Changes(self._went, self._came), set(), set()
        return changes


@typing.runtime_checkable
class Transport(typing.Protocol):
    """Reaches devices by their UE numbers."""

    def dispatch(self, request: Request, params: Arrays) -> None:
        """Send a request with its model as soon as possible."""
        ...

    def cancel(self, ue: int) -> None:
        """Ask a UE to abandon its job, if it has one. It answers at once, with an error or with the finished update."""
        ...

    def poll(self, wait_s: float) -> list[Reply]:
        """Return the replies since the last call, after waiting at most ``wait_s`` seconds for the first."""
        ...

    def changes(self) -> Changes:
        """Return which UEs, numbered below n, left and joined since the last call. ``Presence`` tracks this."""
        ...

    def troubles(self) -> Troubles:
        """Return the problems, of single UEs or of the whole network, that changed since the last call."""
        ...

    def key_of(self, ue: int) -> SignedKey | None:
        """Return the key for masks that a UE announced last, and that was checked; None without secure aggregation."""
        ...

    def now(self) -> float:
        """Return seconds on a monotonic clock; only differences matter."""
        ...
