"""Outages, other traffic in the band and errors of what a policy knows, as SimPy processes play them."""

import math
from dataclasses import replace
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from twin import play_with_processes
from twin_inputs import Radio, RoundRules

from perfeds2.allocation.bandwidth import Uplink, equal_finish, equal_share
from perfeds2.allocation.schedule import round_robin
from perfeds2.errors import InputError
from perfeds2.network.cell import Cell
from perfeds2.network.cells import make_cells
from perfeds2.network.errors import Outage
from perfeds2.network.profile import DAY_S, Profile
from perfeds2.network.radios import RADIOS
from perfeds2.network.sites import Sites
from perfeds2.timeline.cells import simulate_cells
from perfeds2.timeline.protocol import Protocol
from perfeds2.timeline.simulate import simulate

BITS, SAMPLES, UES = 1e5, 100.0, 9
LOAD: dict[str, Any] = {"payload_bits": BITS, "samples": SAMPLES}


def cell_of(seed: int = 3, **settings) -> Cell:
    more = {"radio": RADIOS["umi"], "power_w": 0.2, "radius_m": 300.0, "bandwidth_hz": 5e6}
    return Cell.draw(UES, seed, **more | settings)  # type: ignore[arg-type]


def assert_same(cell: Cell, rounds: int, *, stale: Any = "restart", policy=equal_share, plan=None, **radio) -> None:
    """Compare ``simulate`` with processes."""
    cap, coherence_s = cell.cap_bits_per_s_hz or math.inf, cell.coherence_s or math.inf
    known = Radio(cell.channel.signal_hz, cell.bandwidth_hz, policy, cap, coherence_s, **radio)
    history = play_with_processes(known, RoundRules(3, 4, stale, plan), cell.compute_s(SAMPLES), BITS, rounds)
    timeline = simulate(cell, Protocol(3, 4, stale), bandwidth=policy, schedule=plan, rounds=rounds, **LOAD)
    assert [each.time_s for each in history] == pytest.approx(timeline.time_s.tolist(), rel=1e-9)
    for each, ues, staleness in zip(history, timeline.ues.tolist(), timeline.staleness.tolist(), strict=True):
        assert set(zip(each.ues, each.staleness, strict=True)) == set(zip(ues, staleness, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["wait", "lose"])
@pytest.mark.parametrize("stale", ["restart", "wait", "ignore"])
@pytest.mark.parametrize("rate_bps", [4e5, 1.5e6])
def test_simulate_agrees_with_processes_in_outages(rule, stale, rate_bps):
    cell = cell_of(coherence_s=0.05, outage=Outage(rule, rate_bps))
    assert_same(cell, 15, stale=stale, least_bps=rate_bps, loses=rule == "lose")
    ends_s = [
        simulate(one, Protocol(3, 4, stale), rounds=15, **LOAD).end_s for one in (cell, replace(cell, outage=None))
    ]
    assert ends_s[0] > ends_s[1] or rate_bps < 1e6  # which few links fall below


@pytest.mark.slow
@pytest.mark.parametrize("stale", ["restart", "wait", "ignore"])
@pytest.mark.parametrize("coherence_s", [None, 0.05])
def test_simulate_agrees_with_processes_where_others_use_the_band(stale, coherence_s):
    steps = [(0.0, 1.0), (0.07, 0.3), (0.21, 0.8), (0.4, 0.1)]
    cell = cell_of(coherence_s=coherence_s, profile=Profile(*zip(*steps, strict=True)))
    assert_same(cell, 20, stale=stale, band=steps)
    assert_same(cell, 20, stale=stale, band=steps, policy=equal_finish, plan=round_robin(cell, 3))


def test_a_policy_sees_signals_with_an_error_and_uploads_do_not():
    cell, seen = cell_of(csi_error_db=4.0, coherence_s=0.05), []

    def watching(uplink: Uplink):
        seen.append(uplink.signal_hz)
        return equal_share(uplink)

    one = simulate(cell, Protocol(3, 4), bandwidth=watching, rounds=12, **LOAD)
    other = simulate(replace(cell, csi_error_db=0.0), Protocol(3, 4), bandwidth=equal_share, rounds=12, **LOAD)
    assert np.array_equal(one.time_s, other.time_s)  # equal_share does not look at signals
    opened_s = [0.0, *one.time_s[:-1].tolist()]
    normals = []
    for signal_hz, at_s in zip(seen, opened_s, strict=True):
        block = int(at_s / 0.05)
        uniform = cell.channel._draws.uniform(block, 2).tolist()
        normals.append([NormalDist().inv_cdf(u) for u in uniform])
        truth = cell.channel.signal_hz(block)
        expected = [s * 10 ** (0.4 * z) for s, z in zip(truth.tolist(), normals[-1], strict=True)]
        assert signal_hz.tolist() == pytest.approx(expected, rel=1e-9)
    far = simulate(cell, Protocol(3, 4), bandwidth=equal_finish, schedule=round_robin(cell, 3), rounds=12, **LOAD)
    near = simulate(
        replace(cell, csi_error_db=0.0),
        Protocol(3, 4),
        bandwidth=equal_finish,
        schedule=round_robin(cell, 3),
        rounds=12,
        **LOAD,
    )
    assert far.end_s > near.end_s  # it finishes together only as far as it knows


@pytest.mark.parametrize("coherence_s", [None, 0.05])
def test_a_policy_sees_signals_of_an_earlier_block_and_uploads_do_not(coherence_s):
    cell, seen = cell_of(csi_delay=2, coherence_s=coherence_s), []

    def watching(uplink: Uplink):
        seen.append(uplink.signal_hz)
        return equal_share(uplink)

    one = simulate(cell, Protocol(3, 4), bandwidth=watching, rounds=12, **LOAD)
    other = simulate(replace(cell, csi_delay=0), Protocol(3, 4), bandwidth=equal_share, rounds=12, **LOAD)
    assert np.array_equal(one.time_s, other.time_s)  # equal_share does not look at signals
    for number, at_s in enumerate([0.0, *one.time_s[:-1].tolist()]):
        block = number if coherence_s is None else int(at_s / coherence_s)
        np.testing.assert_array_equal(seen[number], cell.channel.signal_hz(max(block - 2, 0)))
    late, now = (
        simulate(each, Protocol(3, 4), bandwidth=equal_finish, schedule=round_robin(each, 3), rounds=12, **LOAD)
        for each in (cell, replace(cell, csi_delay=0))
    )
    # Within a round of several blocks, an allocation is late in any case.
    assert late.end_s > now.end_s if coherence_s is None else late.end_s != now.end_s


def test_the_error_has_the_deviation_asked_for():
    cell = Cell.draw(20_000, 1, csi_error_db=3.0)
    normal = cell.channel.normal_at(0, 0.0)
    assert normal.std() == pytest.approx(1, abs=0.02)
    assert normal.mean() == pytest.approx(0, abs=0.02)


def test_a_profile_repeats_every_day():
    profile = Profile.of("0:1,28800:0.7,36000:0.9")
    assert [profile.share_at(hour * 3600.0) for hour in (0, 7.999, 8, 9, 10, 23.9, 24, 32, 34)] == [
        *(1, 1, 0.7, 0.7, 0.9, 0.9, 1, 0.7, 0.9)
    ]
    assert [profile.changes_s(hour * 3600.0) / 3600 for hour in (0, 8, 9, 10, 24, 100)] == [8, 10, 10, 24, 32, 104]
    for wrong in ("1:1", "0:0", "0:1.5", "0:1,5:1,5:0.5", f"0:1,{DAY_S}:1"):
        with pytest.raises(ValueError, match="must"):
            Profile.of(wrong)


def test_half_the_band_halves_the_rate_of_many_cells_too():
    drawn = Cell.draw(12, 1, radius_m=100.0, most_bits_per_s_hz=0.01)  # all links at the limit of the modulation
    times_s = []
    for share in (1.0, 0.5):
        cell = replace(drawn, profile=Profile((0.0,), (share,)), cpu_hz=np.full(12, 1e15))
        cells = make_cells(cell, Sites.grid(2, 100.0), 100.0)
        together = make_cells(cell, Sites.grid(2, 100.0), 100.0, one_server=True, interference="coupled")
        for each in (cells, together):
            timeline = simulate_cells(each, Protocol(2), Protocol(1), rounds=10, **LOAD)
            times_s.append(timeline.time_s)
    assert times_s[2] == pytest.approx(2 * times_s[0], rel=1e-6)
    assert times_s[3] == pytest.approx(2 * times_s[1], rel=1e-6)


def test_an_outage_without_an_end_is_explained():
    cell = cell_of(outage=Outage("wait", 1e12))
    with pytest.raises(InputError, match="is in outage"):
        simulate(cell, Protocol(UES), rounds=2, **LOAD)
