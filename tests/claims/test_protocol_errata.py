"""Errata 1, 2, 10 and 11 by number: what the paper prints does not compute, or does not keep its own promise."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import lambertw

from perfeds2.network.cell import Cell
from perfeds2.network.link import bandwidth_for_rate, rate_bps
from perfeds2.timeline.protocol import Protocol
from perfeds2.timeline.simulate import simulate


@pytest.mark.parametrize("load", [1e-6, 0.01, 0.3, 0.9])
def test_erratum_1_the_printed_branch_gives_an_infinite_band(load):
    # Theorem 4 divides by W(−Γe^−Γ) + Γ. On the principal branch W is the inverse of x·e^x for x ≥ −1, so W = −Γ.
    principal = lambertw(-load * np.exp(-load)).real
    assert principal + load == pytest.approx(0, abs=1e-15)
    # The other branch has the band, with a minus sign: b = −R / (W₋₁(−Γe^−Γ) + Γ). Here g = 1 MHz.
    nats = load * 1e6
    band = -nats / (lambertw(-load * np.exp(-load), -1).real + load)
    assert band * np.log(1 + 1e6 / band) == pytest.approx(nats, rel=1e-9)
    assert bandwidth_for_rate(np.array([nats / np.log(2)]), 1e6)[0] == pytest.approx(band, rel=1e-9)


@pytest.mark.parametrize(("distance_m", "gain"), [(10.0, 0.028), (200.0, 0.053)])
def test_erratum_2_sharing_the_band_beats_taking_turns(distance_m, gain):
    # Four equal UEs and Z bits each: Z/r(B/4) sharing, 2Z/r(B/2) in turns. The paper says these are equal.
    cell = Cell(np.array([distance_m]), np.array([1e9]))
    signal = cell.mean_signal_hz * cell.fading_scale * np.sqrt(np.pi / 2)  # at the mean of the fading
    sharing_s = 1e6 / rate_bps(np.array([cell.bandwidth_hz / 4]), signal)[0]
    in_turns_s = 2e6 / rate_bps(np.array([cell.bandwidth_hz / 2]), signal)[0]
    assert in_turns_s / sharing_s - 1 == pytest.approx(gain, abs=0.0005)


def printed_rule(job_s: list[float], quorum: int, bound: int, rounds: int) -> list[int]:
    """The staleness of every merge under Algorithm 1 as printed: hand out w_{k+1} if merged or τ_k > S.

    A loop of its own over UEs whose jobs take the same time always.
    """
    version, ends_s, merges = [0] * len(job_s), list(job_s), []
    for k in range(rounds):
        first = sorted(range(len(job_s)), key=lambda ue: (ends_s[ue], ue))[:quorum]
        now_s = max(ends_s[ue] for ue in first)
        merges += [k - version[ue] for ue in first]
        for ue in range(len(job_s)):
            if ue in first or k - version[ue] > bound:
                version[ue], ends_s[ue] = k + 1, now_s + job_s[ue]
    return merges


def our_staleness(job_s: list[float], protocol: Protocol, rounds: int) -> np.ndarray:
    # One bit on a loud link takes no time worth mentioning.
    cell = Cell(np.ones(len(job_s)), 1e9 / np.array(job_s), cycles_per_sample=1e9)
    return simulate(cell, protocol, payload_bits=1.0, samples=1.0, rounds=rounds).staleness


def test_erratum_10_by_hand():
    # Jobs of 1 s and 2.5 s, A = 1, S = 1. Rounds 0 and 1 close at 1 s and 2 s on UE 0. After round 1 UE 1's τ is 1, not
    # above S, so the printed rule lets it go on: it arrives at 2.5 s in round 2 and is merged with a staleness of 2.
    assert printed_rule([1.0, 2.5], 1, 1, 3) == [0, 0, 2]
    assert our_staleness([1.0, 2.5], Protocol(1, 1, "restart"), 3).ravel().tolist() == [0, 0, 0]


@pytest.mark.slow
@given(st.lists(st.floats(0.5, 10.0), min_size=2, max_size=12), st.integers(1, 4), st.integers(0, 4))
@settings(max_examples=15, deadline=None)
def test_erratum_10_the_printed_rule_is_one_round_late_and_ours_is_not(job_s, quorum, bound):
    quorum = min(quorum, len(job_s))
    assert max(printed_rule(job_s, quorum, bound, 25)) <= bound + 1
    for stale in ("restart", "wait", "ignore"):
        assert our_staleness(job_s, Protocol(quorum, bound, stale), 25).max() <= bound


@pytest.mark.slow
def test_erratum_11_restart_starves_slow_ues_and_wait_starves_none():
    cell = Cell.draw(20, seed=1)
    run = {"payload_bits": 1e5, "samples": 200.0, "rounds": 400}
    assert simulate(cell, Protocol(5, 3, "restart"), **run).starved.size >= 1
    assert simulate(cell, Protocol(5, 3, "wait"), **run).starved.size == 0
    # The slow ones are those whose job outlasts the bound: an unbounded run merges every UE.
    assert simulate(cell, Protocol(5, None), **run).starved.size == 0
