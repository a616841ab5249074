"""Time the closed forms for bandwidth and schedule against a convex solver."""

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import numpy as np

from benchmarks.speed.timing import Announce, Measurement, measured, not_installed, take_turns
from perfeds2.allocation.bandwidth import Uplink, equal_finish
from perfeds2.allocation.schedule import deficit
from perfeds2.allocation.shares import equal_shares, nearest_feasible
from perfeds2.network.cell import Cell
from perfeds2.network.link import rate_bps


def allocation_group(
    repeats: int,
    seed: int,
    announce: Announce,
    *,
    many: int = 1_000_000,
    few: int = 200,
    scheduled: int = 100_000,
    rounds: int = 1_000,
    quorum: int = 1_000,
) -> Iterator[Measurement]:
    """Measure Theorem 2's bandwidths and the schedule, for up to a million UEs."""
    announce(f"allocation: {many:,} UEs, then a solver for {few}, {repeats} turns …")
    million, couple, calls = opening(many, seed), opening(few, seed), 20
    rivals: dict[str, Callable[[], object]] = {
        "many": lambda: equal_finish(million),
        "few": lambda: [equal_finish(couple) for _ in range(calls)],
    }
    if with_solver := find_spec("cvxpy") is not None:
        rivals |= {"at once": lambda: solver_finish_s(couple), "each": lambda: solver_finish_s(couple, one_by_one=True)}
    seconds = take_turns(rivals, repeats)
    yield measured("allocation/many", f"equal_finish, {many:,} UEs", seconds["many"], "s", at_most=0.5)
    yield measured("allocation/few", f"equal_finish, {few} UEs", 1e3 * seconds["few"] / calls, "ms")
    for name, words in (("at once", "vectorised, its best form"), ("each", "one constraint per UE")):
        row = f"allocation/cvxpy-{name.replace(' ', '-')}"
        what = f"times as fast as cvxpy (Clarabel), {words}, {few} UEs"
        if with_solver:
            yield measured(row, what, seconds[name] / (seconds["few"] / calls), "×", at_least=1_000)
        else:
            yield not_installed(row, what, "cvxpy")
    if with_solver:
        ours_s = (couple.compute_s + couple.bits / rate_bps(equal_finish(couple), couple.signal_hz)).max()
        apart = abs(solver_finish_s(couple) / ours_s - 1)
        yield measured("allocation/same", "how far the solver's T is from ours", np.array([apart]), "", at_most=1e-6)
    announce(f"allocation: a schedule for {scheduled:,} UEs × {rounds:,} rounds, {repeats} turns …")
    wish = np.random.default_rng(seed).dirichlet(np.full(scheduled, 3.0))
    shares = nearest_feasible(wish, quorum, None)
    seconds = take_turns({"deficit": lambda: deficit(shares, quorum, rounds)}, repeats)
    what = f"deficit schedule, {scheduled:,} UEs × {rounds:,} rounds, A = {quorum:,}"
    yield measured("allocation/deficit", what, seconds["deficit"], "s", at_most=30)


def opening(ues: int, seed: int) -> Uplink:
    """Return the first round of a cell: every UE computes, then sends at most a million bits."""
    cell = Cell.draw(ues, seed)
    bits = 1e6 * np.random.default_rng(seed).random(ues)
    return Uplink(0, cell.bandwidth_hz, cell.signal_hz(0), cell.compute_s(40.0), bits, equal_shares(ues), None)


def solver_finish_s(uplink: Uplink, *, one_by_one: bool = False) -> float:
    """Return T of ``equal_finish`` from a general convex solver.

    It solves min T subject to bits_i·ln2/(T − compute_i) ≤ b_i·ln(1 + g_i/b_i) and Σb ≤ B. The rate is concave in b:
    with β = b/B and γ = g/B it is β·ln γ − rel_entr(β, β/γ + 1), since β·ln(1 + γ/β) = β·ln(γ·(β/γ + 1)/β).
    ``one_by_one`` uses one constraint per UE, as on paper, instead of one vector constraint.
    """
    import cvxpy as cp

    signal, nats = uplink.signal_hz / uplink.bandwidth_hz, uplink.bits * np.log(2) / uplink.bandwidth_hz
    unit_s = nats.sum() / 10 + uplink.compute_s.max()  # scales T to keep the solver's numbers near 1
    work, compute = nats / unit_s, uplink.compute_s / unit_s
    part, end = cp.Variable(signal.size, nonneg=True), cp.Variable()
    if one_by_one:
        arrive = [
            work[ue] * cp.inv_pos(end - compute[ue])
            <= part[ue] * np.log(signal[ue]) - cp.rel_entr(part[ue], part[ue] / signal[ue] + 1)
            for ue in range(signal.size)
        ]
    else:
        rate = cp.multiply(part, np.log(signal)) - cp.rel_entr(part, cp.multiply(part, 1 / signal) + 1)
        arrive = [cp.multiply(work, cp.inv_pos(end - compute)) <= rate]
    constraints: list[Any] = [*arrive, cp.sum(part) <= 1]
    cp.Problem(cp.Minimize(end), constraints).solve(solver=cp.CLARABEL)
    assert end.value is not None
    return float(end.value) * unit_s
