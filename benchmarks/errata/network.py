"""Compute the numbers of the errata on radio, bandwidth, schedules and rounds."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from jaxtyping import Float
from scipy.special import lambertw

from perfeds2.allocation import schedule
from perfeds2.allocation.bandwidth import Policy, Uplink, between, equal_finish, weighted_rate
from perfeds2.allocation.schedule import Rows, achieved_shares, as_schedule, deficit, longest_gap, period
from perfeds2.allocation.shares import equal_shares, nearest_feasible, share_bounds
from perfeds2.learning.partition import Samples, partition_by_label
from perfeds2.network.cell import Cell
from perfeds2.network.link import LN2, PerUe, bandwidth_for_rate, rate_bps
from perfeds2.paper.errata import Numbers
from perfeds2.timeline.protocol import Protocol, Stale
from perfeds2.timeline.record import Timeline
from perfeds2.timeline.simulate import simulate


def theorem_4_closed_form() -> Numbers:
    cell = Cell(np.array([100.0]), np.array([1e9]))
    signal = float(_usual_signal(cell)[0])
    bits, compute_s, end_s = 2e6, 0.2, 1.1
    rate = bits / (end_s - compute_s)
    load = rate * LN2 / signal  # Γ
    principal = float(np.real(lambertw(-load * np.exp(-load))))
    band = float(bandwidth_for_rate(rate, signal))
    reached_s = compute_s + bits / float(rate_bps(band, signal))
    return [
        ("Γ of a UE at 100 m that must send 2 Mbit in 0.9 s", load),
        ("printed denominator |W(−Γe^−Γ) + Γ|", _below(abs(principal + load), 1e-15)),
        ("our bandwidth (Hz)", band),
        ("it misses the finish time by (relative)", _below(abs(reached_s / end_s - 1), 1e-14)),
        ("upper limit of the rate at any bandwidth, Γ = 1 (bit/s)", signal / LN2),
    ]


def sharing_against_turns() -> Numbers:
    numbers: Numbers = []
    for distance_m in (10.0, 50.0, 200.0):
        cell = Cell(np.full(4, distance_m), np.full(4, 1e9))
        first_two = np.array([True, True, False, False])
        turn = Uplink(
            0, cell.bandwidth_hz, _usual_signal(cell), np.zeros(4), np.full(4, 1e6), equal_shares(4), first_two
        )
        in_turns_s = 2 * _last_s(turn, equal_finish(turn))
        sharing_s = _last_s(replace(turn, planned=None), weighted_rate(turn))
        numbers.append(
            (f"4 UEs at {distance_m:g} m, A = 2: taking turns is slower by (%)", _percent(in_turns_s, sharing_s))
        )
    cell = Cell(np.full(4, 200.0), np.full(4, 1e9), cycles_per_sample=0.0)
    turns = np.array([[0, 1], [2, 3]])
    end_s = [
        _planned(cell, Protocol(2), turns, 1e6, 0.0, 100, policy).end_s
        for policy in (equal_finish, between(0.5), weighted_rate)
    ]
    numbers.append(("on the clock, with fading, 200 m, 100 rounds: turns slower by (%)", _percent(end_s[0], end_s[2])))
    numbers.append(("the same, halfway between the extremes: slower by (%)", _percent(end_s[1], end_s[2])))
    return numbers


def nats_for_bits() -> Numbers:
    cell = Cell.draw(20)
    band, signal = cell.bandwidth_hz / cell.ues, _usual_signal(cell)
    bits_a_second = rate_bps(band, signal)
    nats_a_second = band * np.log1p(signal / band)
    computing = [
        float(np.median(cell.compute_s(120.0) / (cell.compute_s(120.0) + 8e4 / rate)))
        for rate in (bits_a_second, nats_a_second)
    ]
    return [
        ("rate in bit/s over rate in nat/s, every UE", float(np.mean(bits_a_second / nats_a_second))),
        ("1/ln 2", 1 / LN2),
        ("share of computing in a median UE's job, with log2 (%)", 100 * computing[0]),
        ("the same with ln (%)", 100 * computing[1]),
    ]


def ties() -> Numbers:
    cell = Cell.draw(20, seed=7)
    uplink = Uplink(
        0, cell.bandwidth_hz, cell.signal_hz(0), cell.compute_s(40.0), np.full(20, 1e6), equal_shares(20), None
    )
    ends = _ends_s(uplink, equal_finish(uplink))
    rows = deficit(equal_shares(20), 5, 40)
    run = _planned(cell, Protocol(5), rows, 1e6, 40.0)
    kept = (np.sort(run.ues, axis=1) == rows).all(axis=1)
    return [
        (
            "20 UEs served by Theorem 2: first and last arrival differ by (relative)",
            _below(float(np.ptp(ends) / ends.max()), 1e-12),
        ),
        ("with a plan, rounds that close on the planned set (%)", float(100 * kept.mean())),
    ]


def theorem_2_against_4() -> Numbers:
    planned = np.array([True, True, False, False])
    uplink = Uplink(0, 1e6, np.full(4, 1e8), np.zeros(4), np.array([1e2, 1e6, 1e6, 1e6]), equal_shares(4), planned)
    least, fastest, kept = weighted_rate(uplink), equal_finish(uplink), between(1.0)(uplink)
    return [
        ("4 UEs, 2 planned, one of them with 100 bits left: its least band by Theorem 4 (Hz)", float(least[0])),
        ("its band if the planned UEs finish together, Theorem 2 (Hz)", float(fastest[0])),
        ("round with Theorem 2 (s)", _last_s(uplink, fastest)),
        ("round with the bound of Theorem 4 kept (s)", _last_s(uplink, kept)),
        ("keeping it is slower by (%)", _percent(_last_s(uplink, kept), _last_s(uplink, fastest))),
    ]


def _planned(
    cell: Cell,
    protocol: Protocol,
    rows: Rows,
    payload_bits: float,
    samples: float,
    rounds: int = 40,
    policy: Policy = equal_finish,
) -> Timeline:
    """Play rounds that close on planned sets."""
    work = {"payload_bits": payload_bits, "samples": samples, "rounds": rounds}
    return simulate(cell, protocol, **work, bandwidth=policy, schedule=as_schedule(rows))


def _usual_signal(cell: Cell) -> PerUe:
    """Return the signal at the mean of the Rayleigh fading."""
    return cell.mean_signal_hz * cell.fading_scale * math.sqrt(math.pi / 2)


def _ends_s(uplink: Uplink, bandwidth_hz: PerUe) -> Float[np.ndarray, " s"]:
    """Return when the UEs that the round waits for finish."""
    serve = np.ones(uplink.bits.size, bool) if uplink.planned is None else uplink.planned
    return uplink.compute_s[serve] + uplink.bits[serve] / rate_bps(bandwidth_hz[serve], uplink.signal_hz[serve])


def _last_s(uplink: Uplink, bandwidth_hz: PerUe) -> float:
    return float(_ends_s(uplink, bandwidth_hz).max())


def _percent(slow: float, fast: float) -> float:
    return 100 * (slow / fast - 1)


def _below(value: float, limit: float) -> str:
    """Return a bound on a rounding error, which differs between machines."""
    return f"below {limit:g}" if value < limit else f"{value:.1e}"


def least_share() -> Numbers:
    quorum, max_staleness, rounds, ues = 5, 4, 200, 20
    by_print = max_staleness / rounds
    rare = np.full(ues, (1 - by_print) / (ues - 1))
    rare[0] = by_print
    low, _ = share_bounds(quorum, max_staleness)
    return [
        ("A = 5, S = 4, K = 200, 20 UEs: printed least share S/K", by_print),
        ("longest wait of a UE at that share (rounds)", int(longest_gap(deficit(rare, quorum, rounds), ues)[0])),
        ("our least share 1/(A·S)", low),
        (
            "longest wait of a UE at that share (rounds)",
            int(longest_gap(deficit(equal_shares(ues), quorum, rounds), ues)[0]),
        ),
        ("printed least share at K = 20", max_staleness / 20),
        ("20 such shares sum to (must be 1)", ues * max_staleness / 20),
    ]


def algorithm_2() -> Numbers:
    equal = equal_shares(20)
    random = np.random.default_rng(0)
    uneven = [nearest_feasible(random.dirichlet(np.full(20, 3.0)), 5, 20) for _ in range(8)]
    literal = schedule.printed(equal, 5, 200)

    def off(plan: Callable[..., Rows], shares: PerUe) -> float:
        return float(100 * np.abs(achieved_shares(plan(shares, 5, 200), 20) / shares - 1).max())

    better = {"fill-up after the loop": schedule.printed_fixed, "largest deficit first": deficit}
    medians = {name: float(np.median([off(plan, shares) for shares in uneven])) for name, plan in better.items()}
    return [
        ("20 UEs, A = 5, 200 rounds, equal η, as printed: worst η is off by (%)", off(schedule.printed, equal)),
        ("UEs it never schedules", int((achieved_shares(literal, 20) == 0).sum())),
        *((f"{name}: off by (%)", off(plan, equal)) for name, plan in better.items()),
        *((f"8 uneven η, {name}: off by (%, median)", worst) for name, worst in medians.items()),
    ]


def one_round_late() -> Numbers:
    bound, rounds = 3, 400
    job_s = Cell.draw(20, seed=1).compute_s(200.0)
    by_print = _printed_refresh(job_s, 5, bound, rounds)
    # Sending one bit over a strong link takes almost no time, so a job takes job_s.
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


def _printed_refresh(job_s: PerUe, quorum: int, bound: int, rounds: int) -> list[int]:
    """Return the staleness of every merge if w_{k+1} goes to merged UEs and to those with τ_k > S, as printed."""
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
        parts = partition_by_label(Samples.of(labels), 20, labels_per_ue, seed=0)
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
            "shares 1/12, 2/12, 3/12, 4/12, 2/12, A = 3: period in rounds",
            period(deficit(np.array([1, 2, 3, 4, 2]) / 12, 3, 40)) or "none",
        ),
        *(
            (
                f"shares √2 − 1 and 2 − √2, A = 1: apparent period in {rounds:,} rounds",
                period(rows[:rounds]) or "none",
            )
            for rounds in (100, 500, 3000)
        ),
    ]


def enough_staleness() -> Numbers:
    cell = Cell.draw(20)
    rows = deficit(equal_shares(20), 5, 40)
    end_s = {bound: _planned(cell, Protocol(5, bound), rows, 1e5, 120.0).end_s for bound in (1, 2, 3, 4, 5)}
    return [
        ("20 equal UEs, A = 5, planned: stalest merge", int(longest_gap(rows, 20).max())),
        *((f"40 planned rounds at S = {bound} (s)", seconds) for bound, seconds in end_s.items()),
    ]


NUMBERS = {
    1: theorem_4_closed_form,
    2: sharing_against_turns,
    3: nats_for_bits,
    5: least_share,
    9: algorithm_2,
    10: one_round_late,
    11: starving,
    12: ties,
    13: labels,
    20: once_in_s_plus_1,
    23: theorem_2_against_4,
    24: no_period,
    25: enough_staleness,
}
