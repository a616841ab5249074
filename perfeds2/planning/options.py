"""Which ways are there to run a cell, and what does the clock show of each?

A way is a quorum A, a staleness bound S, and what closes a round: its planned UEs (shares, the deficit schedule, and
Theorem 2's bandwidth), or the first A arrivals on equal shares of the band.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float, Int

from perfeds2.allocation.bandwidth import Policy, equal_finish, equal_share
from perfeds2.allocation.schedule import as_schedule, deficit, longest_gap, period
from perfeds2.allocation.shares import check_shares, equal_shares, nearest_feasible
from perfeds2.learning.replay import Learner
from perfeds2.learning.task import Task
from perfeds2.network.cell import Cell
from perfeds2.planning.data import Chosen, ClosesOn, Place, UeRow
from perfeds2.spec.build import make_cell, make_learner, make_shares, make_task, upload_bits
from perfeds2.spec.fields import Spec
from perfeds2.spec.methods import ALGORITHMS
from perfeds2.spec.names import Named
from perfeds2.timeline.rounds import Protocol
from perfeds2.timeline.simulate import RoundInfo, simulate
from perfeds2.timeline.timeline import Timeline

PERSONAL = "PerFedS2"  # what a plan is for
LEAST_SIMULATED = 300  # rounds behind "seconds a round"
BANDWIDTH: dict[ClosesOn, Policy] = {"planned": equal_finish, "first": equal_share}

Shares = Float[np.ndarray, " n"]


@dataclass(frozen=True)
class Scene:
    """What all candidates share."""

    spec: Spec
    seed: int
    task: Task
    cell: Cell
    learner: Learner
    payload_bits: float
    shares: Shares  # η, as asked for

    @property
    def max_staleness(self) -> int | None:
        bound = self.spec.protocol.max_staleness
        return None if bound == "unbounded" else int(bound)

    @property
    def quorum(self) -> int:
        assert self.spec.protocol.quorum is not None
        return self.spec.protocol.quorum

    @property
    def alpha(self) -> float:
        return self.learner.personal_step


def make_scene(spec: Spec) -> Scene:
    """The cell, data and learner of the spec's first seed."""
    seed, learner = spec.run.seeds[0], make_learner(spec, PERSONAL, ALGORITHMS[PERSONAL])
    task, cell, given = make_task(spec, seed), make_cell(spec, seed), spec.protocol.shares
    if isinstance(given, Named):
        shares = make_shares(spec, cell, seed, learner.samples, planned=False)
    else:
        shares = np.asarray(given, float)
    return Scene(spec, seed, task, cell, learner, upload_bits(spec), shares)


@dataclass(frozen=True)
class Option:
    """A candidate that can be done, with its simulated rounds."""

    quorum: int
    max_staleness: int | None
    closing: ClosesOn
    shares: Shares | None  # those planned
    note: str | None
    timeline: Timeline

    @property
    def place(self) -> Place:
        return self.quorum, self.max_staleness, self.closing

    @property
    def seconds_per_round(self) -> float:
        return self.timeline.end_s / self.timeline.rounds

    @property
    def staleness_square(self) -> float:
        return float((self.timeline.staleness.astype(float) ** 2).mean())

    @property
    def inequality(self) -> float:
        """n·Ση² − 1."""
        return max(self.timeline.population * float((self.timeline.shares**2).sum()) - 1, 0.0)

    @property
    def features(self) -> tuple[float, ...]:
        """What the law looks at, in the order of its coefficients."""
        return 1.0, 1 / self.quorum, self.staleness_square, self.staleness_square**2, self.inequality

    @property
    def who(self) -> bytes:
        """Who is merged and how stale: two options that agree in this learn the same, however long it takes."""
        order = np.argsort(self.timeline.ues, axis=1)
        columns = (self.timeline.ues, self.timeline.staleness)
        return b"".join(np.take_along_axis(column, order, axis=1).tobytes() for column in columns)


def make_option(
    scene: Scene, quorum: int, max_staleness: int | None, closing: ClosesOn, known: Sequence[Option] = ()
) -> Option | str:
    """A candidate with its simulated rounds, or why it cannot be done. A plan that keeps S is the same for every S."""
    n = scene.cell.ues
    rounds = max(LEAST_SIMULATED, 4 * -(-n // quorum))
    shares, note = None, None
    try:
        if closing == "planned":
            shares, note = realisable_shares(scene.shares, quorum, max_staleness, rounds)
            for other in known:
                if other.quorum == quorum and other.shares is not None and np.array_equal(other.shares, shares):
                    return replace(other, max_staleness=max_staleness, note=note)
        timeline = _play(scene, quorum, max_staleness, shares, rounds)
    except ValueError as error:
        return str(error)
    if timeline.starved.size:
        some = ", ".join(map(str, timeline.starved[:4])) + (" …" if timeline.starved.size > 4 else "")
        return (
            f"{timeline.starved.size} of {n} UEs are never merged with stale={scene.spec.protocol.stale!r} "
            f"(UE {some} in {rounds} rounds); raise S or A, or plan the rounds."
        )
    return Option(quorum, max_staleness, closing, shares, note, timeline)


def realisable_shares(target: Shares, quorum: int, max_staleness: int | None, rounds: int) -> tuple[Shares, str | None]:
    """Shares near the target whose schedule merges nobody too stale, and a note if they had to move.

    First the paper's range, η ≥ 1/(A·S); where its schedule still leaves somebody out too long, a narrower one; last
    η ≥ 1/(A(S+1)), which is all that staleness ≤ S needs (docs/theory.md). Equal shares always do.
    """
    n = target.size
    if max_staleness is not None and n > quorum * (max_staleness + 1):
        raise ValueError(
            f"{n} UEs cannot all be merged within staleness {max_staleness} when a round merges {quorum}: n > A(S+1) = "
            f"{quorum * (max_staleness + 1)}; raise S to {-(-n // quorum) - 1} or A to {-(-n // (max_staleness + 1))}."
        )
    most = None if max_staleness is None else max(max_staleness, 1)
    tried = [None] if most is None else [*range(most, max(-(-n // quorum), 1) - 1, -1), most + 1]
    for bound in tried:
        shares, note = target, None
        try:
            check_shares(target, quorum, bound)
        except ValueError:
            try:
                shares = nearest_feasible(target, quorum, bound)
            except ValueError:
                continue  # no shares at all meet 1/(A·S); the last bound tried is looser
            note = f"shares moved to the nearest that can be met, by up to {np.abs(shares - target).max():.3g}"
        gap = longest_gap(deficit(shares, quorum, rounds), n)
        if max_staleness is None or gap.max() <= max_staleness:
            return shares, note
    return equal_shares(n), "shares made equal: with those nearer to the target somebody sits out longer than S rounds"


def longer(scene: Scene, option: Option, rounds: int, watch: Callable[[RoundInfo], None] | None = None) -> Timeline:
    """An option's clock for another number of rounds."""
    return _play(scene, option.quorum, option.max_staleness, option.shares, rounds, watch)


def _play(
    scene: Scene,
    quorum: int,
    max_staleness: int | None,
    shares: Shares | None,
    rounds: int,
    watch: Callable[[RoundInfo], None] | None = None,
) -> Timeline:
    """The clock: planned rounds with Theorem 2's bandwidth where there are planned shares, else the first arrivals."""
    return simulate(
        scene.cell,
        Protocol(quorum, max_staleness, scene.spec.protocol.stale),
        payload_bits=scene.payload_bits,
        samples=scene.learner.samples,
        rounds=rounds,
        bandwidth=BANDWIDTH["first" if shares is None else "planned"],
        schedule=None if shares is None else as_schedule(deficit(shares, quorum, rounds)),
        shares=scene.shares if shares is None else shares,
        watch=watch,
    )


def detail(scene: Scene, option: Option) -> Chosen:
    """The first period of an option: who is merged when, on which band."""
    n, quorum = scene.cell.ues, option.quorum
    repeats = None if option.shares is None else period(deficit(option.shares, quorum, max(2 * n, LEAST_SIMULATED)))
    first_merges = np.unique(option.timeline.ues, return_index=True)[1]
    everybody = int(first_merges.max()) // quorum + 1  # rounds until all had a turn
    infos: list[RoundInfo] = []
    rows: Int[np.ndarray, "K A"] = np.sort(longer(scene, option, repeats or everybody, infos.append).ues, axis=1)
    gaps = longest_gap(option.timeline.ues, n)

    def row(ue: int) -> UeRow:
        mine = np.flatnonzero((rows == ue).any(axis=1)).tolist()
        return UeRow(
            ue=ue,
            distance_m=float(scene.cell.distance_m[ue]),
            cpu_hz=float(scene.cell.cpu_hz[ue]),
            share_target=float(scene.shares[ue]),
            share_planned=None if option.shares is None else float(option.shares[ue]),
            share_achieved=float(option.timeline.shares[ue]),
            merges_per_period=len(mine),
            longest_gap=int(gaps[ue]),
            rounds=tuple(mine),
            bandwidth_hz=tuple(float(infos[k].bandwidth_hz[ue]) for k in mine),
        )

    return Chosen(repeats, tuple(map(tuple, rows.tolist())), tuple(map(row, range(n))))
