"""With ``reshare="events"`` a band is shared whenever a UE starts or stops sending, as a loop of a few lines does it."""

import math
from dataclasses import replace

import numpy as np
import pytest

from perfeds2.allocation.bandwidth import equal_finish, equal_share
from perfeds2.network.cell import Cell
from perfeds2.timeline.fast.play import supports
from perfeds2.timeline.protocol import Protocol
from perfeds2.timeline.record import Timeline
from perfeds2.timeline.simulate import conditions_of, simulate

BITS, SAMPLES = 77_120.0, 120.0


def play_by_hand(cell: Cell, quorum: int, rounds: int) -> tuple[list[float], list[list[int]]]:
    """Play rounds without a staleness bound: who sends has an equal part of the band, from event to event."""
    n, now_s = cell.ues, 0.0
    compute_s, bits = cell.compute_s(SAMPLES).tolist(), [BITS] * n
    arrived_s = [math.inf] * n
    ends_s: list[float] = []
    merges: list[list[int]] = []
    while len(ends_s) < rounds:
        signal_hz = cell.signal_hz(len(ends_s)).tolist()
        sending = [ue for ue in range(n) if compute_s[ue] <= 1e-12 and bits[ue] > 0]
        part_hz = cell.bandwidth_hz / max(len(sending), 1)
        rates = {ue: part_hz * math.log2(1 + signal_hz[ue] / part_hz) for ue in sending}
        waits = [compute_s[ue] for ue in range(n) if compute_s[ue] > 1e-12]
        step_s = min([bits[ue] / rates[ue] for ue in sending] + waits)
        now_s += step_s
        for ue in range(n):
            if ue in rates:
                bits[ue] -= rates[ue] * step_s
                if bits[ue] < 1e-6:
                    bits[ue], arrived_s[ue] = 0.0, now_s
            compute_s[ue] = max(compute_s[ue] - step_s, 0.0)
        here = sorted((ue for ue in range(n) if arrived_s[ue] < math.inf), key=lambda ue: (arrived_s[ue], ue))
        if len(here) >= quorum:
            merged = here[:quorum]
            ends_s.append(now_s)
            merges.append(merged)
            for ue in merged:
                compute_s[ue], bits[ue], arrived_s[ue] = float(cell.compute_s(SAMPLES)[ue]), BITS, math.inf
    return ends_s, merges


def played(cell: Cell, quorum: int, rounds: int, **more) -> Timeline:
    return simulate(cell, Protocol(quorum), payload_bits=BITS, samples=SAMPLES, rounds=rounds, **more)


@pytest.mark.parametrize("quorum", [1, 3, 8])
@pytest.mark.parametrize("seed", range(3))
def test_the_band_is_shared_at_every_event(quorum: int, seed: int):
    cell = Cell.draw(8, seed=seed)
    ends_s, merges = play_by_hand(cell, quorum, 25)
    timeline = played(cell, quorum, 25, reshare="events")
    np.testing.assert_allclose(timeline.time_s, ends_s, rtol=0, atol=1e-9)
    np.testing.assert_array_equal(timeline.ues, merges)


@pytest.mark.parametrize("policy", [equal_share, equal_finish])
def test_no_synchronous_round_is_longer_if_the_band_is_shared_at_events(policy):
    cell = replace(Cell.draw(10, seed=4), rician_k=np.inf)
    fixed, work_conserving = (played(cell, 10, 5, bandwidth=policy, reshare=how) for how in ("round", "events"))
    assert (np.diff(work_conserving.time_s) <= np.diff(fixed.time_s) + 1e-9).all()
    assert work_conserving.end_s < fixed.end_s


def test_without_a_planned_ue_that_sends_the_band_serves_the_others():
    seen = []

    def policy(uplink):
        seen.append((uplink.planned is None, (uplink.bits > 0).sum()))
        return equal_finish(uplink)

    cell = Cell.draw(6, seed=1)
    played(cell, 2, 6, bandwidth=policy, schedule=lambda round_: (np.arange(2) + 2 * round_) % 6, reshare="events")
    assert {alone for alone, _ in seen} == {True, False}


def test_the_compiled_loops_leave_events_to_the_engine():
    terms = Cell.draw(4), Protocol(2), BITS, SAMPLES
    assert not supports(conditions_of(*terms, reshare="events"))
