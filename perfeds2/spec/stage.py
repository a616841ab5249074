"""Define what a comparison makes of a spec and a seed: its algorithms, and the stage that they share."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import cache, partial

from perfeds2.allocation.bandwidth import Bandwidth, Policy, Uplink
from perfeds2.learning.learner import Learner
from perfeds2.network.cell import Cell
from perfeds2.network.cells import Cells
from perfeds2.network.link import PerUe
from perfeds2.spec.cells import make_cell, make_network
from perfeds2.spec.fields import Spec
from perfeds2.spec.rounds import plan_rounds
from perfeds2.timeline.protocol import Protocol
from perfeds2.timeline.record import Timeline
from perfeds2.timeline.state import Schedule

FROM_SETTINGS = Protocol(1)  # stands for the protocol that the settings describe


def settings_bandwidth(uplink: Uplink) -> Bandwidth:
    """Stand for the bandwidth policy that the settings name."""
    raise NotImplementedError


@dataclass(frozen=True)
class Algorithm:
    """What a UE computes, when a round closes, and how the bandwidth is shared.

    In a comparison, everything left at its default follows the settings: ``--batch``, ``--quorum``, ``--bandwidth`` and so
    on. A note lists what the algorithm fixes.

    Attributes:
        name: Its name in tables and charts.
        learner: The objective, step sizes and merge.
        protocol: The quorum and the staleness bound; by default those of the settings, with their schedule.
        bandwidth: The policy that divides the uplink bandwidth among uploading UEs; by default that of the settings.
        schedule: The UEs planned for each round; None closes a round on the first arrivals.
        shares: Participation target of each UE (η), shape (n,); None is equal shares.
        mode: SYN, S2, ASY or custom; only shown.

    Example:
        >>> from perfeds2 import Algorithm, FedBuff, Learner, PerFed, compare
        >>> mine = Algorithm("Discounted", Learner(PerFed(0.03), merge=FedBuff()))
        >>> result = compare(task="synthetic", ues=4, algorithms=["PerFedS2", mine], seeds=[0], rounds=4)
        >>> [row["algorithm"] for row in result.summary["algorithms"]]
        ['PerFedS2', 'Discounted']
    """

    name: str
    learner: Learner
    protocol: Protocol = FROM_SETTINGS
    bandwidth: Policy = settings_bandwidth
    schedule: Schedule | None = None
    shares: PerUe | None = None
    mode: str = "custom"

    @property
    def objective(self) -> str:
        """The class name of the objective, such as ``PerFed``."""
        return type(self.learner.objective).__name__


@dataclass(frozen=True)
class Stage:
    """What the algorithms of a seed share: the cell, its schedules, and a cache of timelines.

    Nothing in it depends on what is learned, so specs with equal ``clock_key`` share a stage.
    """

    seed: int
    cell: Cell
    plan: Callable[[float], tuple[PerUe, Schedule | None]]  # shares and schedule, by samples per job; cached
    timelines: dict[Hashable, Timeline] = field(default_factory=dict)
    cells: Cells | None = None  # if there are several

    @classmethod
    def of(cls, spec: Spec, seed: int) -> "Stage":
        cells = make_network(spec, seed)
        cell = make_cell(spec, seed) if cells is None else cells.whole
        planned = cell if cells is None or spec.edges == 1 else cells.alone(0)  # an edge plans its own rounds
        return cls(seed, cell, cache(partial(plan_rounds, spec, planned, seed)), cells=cells)
