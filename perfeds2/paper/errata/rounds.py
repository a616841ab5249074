"""What do the errata of shares, schedules and rounds show, in numbers?"""

import math
from collections.abc import Callable

import numpy as np
from jaxtyping import Float

from perfeds2.allocation.bandwidth import equal_finish
from perfeds2.allocation.schedule import (
    Rows,
    achieved_shares,
    as_schedule,
    deficit,
    longest_gap,
    period,
    printed,
    printed_fixed,
)
from perfeds2.allocation.shares import equal_shares, nearest_feasible, share_bounds
from perfeds2.learning.partition import partition_by_label
from perfeds2.network.cell import Cell
from perfeds2.paper.errata.erratum import Numbers
from perfeds2.timeline.protocol import Protocol, Stale
from perfeds2.timeline.simulate import simulate


def least_share() -> Numbers:
    quorum, max_staleness, rounds, ues = 5, 4, 200, 20
    by_print = max_staleness / rounds
    rare = np.full(ues, (1 - by_print) / (ues - 1))
    rare[0] = by_print
    low, _ = share_bounds(quorum, max_staleness)
    return [
        ("A = 5, S = 4, K = 200, 20 UEs: printed least share S/K", by_print),
        ("a UE at that share sits out at most so many rounds", int(longest_gap(deficit(rare, quorum, rounds), ues)[0])),
        ("our least share 1/(A·S)", low),
        ("a UE at that share sits out at most", int(longest_gap(deficit(equal_shares(ues), quorum, rounds), ues)[0])),
        ("printed least share at K = 20", max_staleness / 20),
        ("20 such shares sum to (must be 1)", ues * max_staleness / 20),
    ]


def algorithm_2() -> Numbers:
    equal = equal_shares(20)
    random = np.random.default_rng(0)
    uneven = [nearest_feasible(random.dirichlet(np.full(20, 3.0)), 5, 20) for _ in range(8)]
    literal = printed(equal, 5, 200)

    def off(plan: Callable[..., Rows], shares: Float[np.ndarray, " n"]) -> float:
        return float(100 * np.abs(achieved_shares(plan(shares, 5, 200), 20) / shares - 1).max())

    numbers: Numbers = [
        ("20 UEs, A = 5, 200 rounds, equal η, as printed: worst η is off by (%)", off(printed, equal)),
        ("UEs it never schedules", int((achieved_shares(literal, 20) == 0).sum())),
        ("fill-up behind the loop: off by (%)", off(printed_fixed, equal)),
        ("largest deficit first: off by (%)", off(deficit, equal)),
    ]
    for name, plan in (("fill-up behind the loop", printed_fixed), ("largest deficit first", deficit)):
        worst = float(np.median([off(plan, shares) for shares in uneven]))
        numbers.append((f"8 uneven η, {name}: off by (%, median)", worst))
    return numbers


def one_round_late() -> Numbers:
    bound, rounds = 3, 400
    job_s = Cell.draw(20, seed=1).compute_s(200.0)
    by_print = _printed_refresh(job_s, 5, bound, rounds)
    # One bit on a loud link takes no time worth mentioning: jobs last job_s.
    cell = Cell(np.ones(20), 1e9 / job_s, cycles_per_sample=1e9)
    ours = simulate(cell, Protocol(5, bound), payload_bits=1.0, samples=1.0, rounds=rounds).staleness
    return [
        (
            "jobs of 1 s and 2.5 s, A = 1, S = 1, 3 rounds: stalest merge as printed",
            max(_printed_refresh(np.array([1.0, 2.5]), 1, 1, 3)),
        ),
        ("20 UEs, A = 5, S = 3, 400 rounds: stalest merge as printed", max(by_print)),
        ("merges staler than S", sum(stale > bound for stale in by_print)),
        ("stalest merge with our rule", int(ours.max())),
    ]


def _printed_refresh(job_s: Float[np.ndarray, " n"], quorum: int, bound: int, rounds: int) -> list[int]:
    """The staleness of every merge where w_{k+1} goes to the merged and to those with τ_k > S, as printed."""
    version, end_s, merges = np.zeros(job_s.size, int), job_s.copy(), []
    for k in range(rounds):
        first = np.lexsort((np.arange(job_s.size), end_s))[:quorum]
        merges += (k - version[first]).tolist()
        refresh = k - version > bound
        refresh[first] = True
        end_s[refresh] = end_s[first].max() + job_s[refresh]
        version[refresh] = k + 1
    return merges


def starving() -> Numbers:
    cell = Cell.draw(20, seed=1)
    numbers: Numbers = []
    rules: tuple[Stale, ...] = ("restart", "wait", "ignore")
    for stale in rules:
        run = simulate(cell, Protocol(5, 3, stale), payload_bits=1e5, samples=200.0, rounds=400)
        numbers.append((f"20 UEs, A = 5, S = 3, 400 rounds, {stale}: UEs never merged", int(run.starved.size)))
        numbers.append((f"{stale}: simulated seconds for the 400 rounds", run.end_s))
    return numbers


def labels() -> Numbers:
    labels = np.repeat(np.arange(10), 400)
    numbers: Numbers = []
    for labels_per_ue in (1, 2, 4, 6, 8, 10):
        parts = partition_by_label(labels, 20, labels_per_ue, seed=0)
        mix = np.zeros((20, 10))
        for ue, (start, size) in enumerate(zip(parts.start, parts.train_count + parts.test_count, strict=True)):
            mix[ue] = np.bincount(labels[parts.order[start : start + size]], minlength=10) / size
        apart = np.abs(mix[:, None] - mix[None]).sum(axis=2)[np.triu_indices(20, 1)] / 2
        numbers.append(
            (f"l = {labels_per_ue}: two UEs' label mixes differ by (%, mean over pairs)", float(100 * apart.mean()))
        )
    return numbers


def once_in_s_plus_1() -> Numbers:
    turns = deficit(equal_shares(2), 1, 100)
    wide = deficit(equal_shares(20), 5, 100)
    return [
        ("2 UEs, A = 1, taking turns: stalest merge", int(longest_gap(turns, 2).max())),
        ("each UE's share", float(achieved_shares(turns, 2)[0])),
        ("least share by C4.2 at S = 1", share_bounds(1, 1)[0]),
        ("20 UEs, A = 5, taking turns: stalest merge", int(longest_gap(wide, 20).max())),
        ("least S by C4.2, 1/(A·η)", 1 / (5 * float(achieved_shares(wide, 20)[0]))),
    ]


def no_period() -> Numbers:
    root = math.sqrt(2)
    rows = deficit(np.array([root - 1, 2 - root]), 1, 3000)
    return [
        (
            "shares 1/12, 2/12, 3/12, 4/12, 2/12, A = 3: rounds after which they recur",
            period(deficit(np.array([1, 2, 3, 4, 2]) / 12, 3, 40)) or "none",
        ),
        *(
            (
                f"shares √2 − 1 and 2 − √2, A = 1: seen to recur in {rounds:,} rounds after",
                period(rows[:rounds]) or "none",
            )
            for rounds in (100, 500, 3000)
        ),
    ]


def enough_staleness() -> Numbers:
    cell = Cell.draw(20)
    rows = deficit(equal_shares(20), 5, 40)
    end_s = {
        bound: simulate(
            cell,
            Protocol(5, bound),
            payload_bits=1e5,
            samples=120.0,
            rounds=40,
            bandwidth=equal_finish,
            schedule=as_schedule(rows),
        ).end_s
        for bound in (1, 2, 3, 4, 5)
    }
    return [
        ("20 equal UEs, A = 5, planned: stalest merge", int(longest_gap(rows, 20).max())),
        *((f"40 planned rounds at S = {bound} (s)", seconds) for bound, seconds in end_s.items()),
    ]


NUMBERS = {
    5: least_share,
    9: algorithm_2,
    10: one_round_late,
    11: starving,
    13: labels,
    20: once_in_s_plus_1,
    24: no_period,
    25: enough_staleness,
}
