"""Define what a method is: an objective, a merge, and the rounds they run in."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from perfeds2.allocation.tiers import Tiers, tiers_by_latency
from perfeds2.errors import InputError
from perfeds2.network.cell import Cell
from perfeds2.network.link import PerUe
from perfeds2.timeline.protocol import Protocol
from perfeds2.timeline.state import Schedule

TIERS = 5  # default number of tiers


class World(NamedTuple):
    """What a method that plans its own rounds knows."""

    cell: Cell
    payload_bits: float | PerUe  # size of an upload, or of each UE's
    samples: float  # that a whole job computes on
    local_steps: int
    quorum: int
    max_staleness: int | None
    tiers: int | None  # None: the method's default
    seed: int

    def tiers_of(self, count: int | None = None) -> Tiers:
        """Return tiers of UEs with similar speed: ``count``, or else as many as ``--tiers`` says, or five."""
        if count is None and (self.tiers or 0) > self.cell.ues:
            raise InputError(f"--tiers {self.tiers} is more than there are UEs ({self.cell.ues}); choose fewer.")
        number = count or self.tiers or TIERS
        return tiers_by_latency(self.cell, self.payload_bits, self.samples, number, self.quorum)


@dataclass(frozen=True)
class Rounds:
    """When rounds close, which UEs take part, and the parts of the method that know the rounds."""

    protocol: Protocol
    schedule: Schedule | None = None
    objective: Any = None  # an ``Objective``; None: the method's
    merge: Any = None  # a ``Merge``; None: the method's


class Method:
    """A frozen dataclass whose fields are the method's settings. Subclass it, or ``Objective`` or ``Merge``.

    Attributes:
        mode: The rounds: SYN, S2 or ASY. It is only shown if ``rounds`` plans them.
        has_own_rounds: Whether ``rounds`` plans them.
        has_tiers: Whether ``--tiers`` applies.
    """

    mode: ClassVar[str] = "S2"
    has_own_rounds: ClassVar[bool] = False
    has_tiers: ClassVar[bool] = False

    @property
    def objective(self) -> Any:
        """Return what UEs compute, an ``Objective``; None is the plain gradient."""
        return None

    @property
    def merge(self) -> Any:
        """Return how uploads are merged, a ``Merge``; None is the mean."""
        return None

    def rounds(self, world: World) -> Rounds:
        """Return the rounds of a method that plans them."""
        raise NotImplementedError
