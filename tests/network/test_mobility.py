"""Ways that UEs go, and signals that change on the way and inside rounds."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from perfeds2.allocation.bandwidth import equal_share
from perfeds2.errors import InputError
from perfeds2.network.cell import Cell
from perfeds2.network.mobility import MEMORY, GaussMarkov, Moves, Walk, Waypoints, coherence_seconds
from perfeds2.network.radios import RADIOS
from perfeds2.spec.cells import make_cell
from perfeds2.spec.resolve import spec_from
from perfeds2.timeline.protocol import Protocol
from perfeds2.timeline.simulate import simulate

WALKS = [Waypoints, GaussMarkov]


def walk_of(kind, ues: int = 40, speed_mps: float = 10.0, seed: int = 3) -> Walk:
    where = Cell.draw(ues, seed).where
    return kind(Moves(kind, speed_mps, 200.0), where.x_m, where.y_m, seed)


@pytest.mark.parametrize("kind", WALKS)
def test_a_way_is_a_function_of_seed_ue_and_time(kind):
    times_s = [0.0, 3.3, 120.0, 3.3, 47.25, 0.0]
    asked, fewer, fresh = walk_of(kind), walk_of(kind, ues=7), walk_of(kind)
    ways = [np.array(asked.at(time_s)) for time_s in times_s]
    np.testing.assert_array_equal(ways[0], ways[5])
    np.testing.assert_array_equal(ways[1], ways[3])
    np.testing.assert_array_equal(ways[2], fresh.at(120.0))
    np.testing.assert_array_equal(ways[4][:, :7], fewer.at(47.25))
    assert not np.array_equal(ways[2], walk_of(kind, seed=4).at(120.0))
    start = Cell.draw(40, 3).where
    np.testing.assert_allclose(ways[0], [start.x_m, start.y_m], atol=1e-9)


@pytest.mark.parametrize("kind", WALKS)
def test_no_ue_jumps_or_leaves_the_cell(kind):
    walk = walk_of(kind)
    places = np.array([walk.at(time_s) for time_s in np.arange(0, 200, 0.25)])
    steps_m = np.hypot(*np.moveaxis(np.diff(places, axis=0), 1, 0))
    assert steps_m.max() <= (10 * 0.25 * (1 + 1e-9) if kind is Waypoints else 60 * 0.25)
    assert np.hypot(places[:, 0], places[:, 1]).max() <= 200 * (1 + 1e-9)


def test_waypoints_are_reached_at_the_speed_asked_for_and_lie_all_over_the_disc():
    walk = walk_of(Waypoints, ues=500)
    walk.at(60.0)
    legs = np.array(walk._places)[:, 1:3].reshape(2, -1)  # type: ignore[attr-defined]
    assert stats.kstest(np.hypot(*legs) ** 2 / 200**2, "uniform").pvalue > 0.01
    one, two = np.array(walk.at(1.0)), np.array(walk.at(1.1))
    assert np.median(np.hypot(*(two - one))) == pytest.approx(1.0)


def test_the_rim_reflects_by_hand():
    """From 195 m at 10 m/s outwards and 2 m/s along the rim: 5 m beyond 200 m becomes 5 m within, and outwards inwards."""
    walk = GaussMarkov(Moves(GaussMarkov, 1e-9, 200.0), np.array([195.0]), np.array([0.0]), 3)  # hardly random
    _, place, velocity = walk._next(0, np.array([[195.0], [0.0]]), np.array([[10.0], [0.0]]))
    np.testing.assert_allclose(place, [[195.0], [0.0]], atol=1e-6)
    np.testing.assert_allclose(velocity, [[-10 * MEMORY], [0.0]], atol=1e-6)
    _, place, velocity = walk._next(
        0, np.array([[195.0], [-2.0]]), np.array([[10.0], [2.0]])
    )  # it meets the rim at y = 0
    np.testing.assert_allclose(place, [[195.0], [0.0]], atol=1e-6)
    np.testing.assert_allclose(velocity, [[-10 * MEMORY], [2 * MEMORY]], atol=1e-6)


def test_gauss_markov_has_its_speed_and_its_memory():
    start = np.zeros(4000)
    walk = GaussMarkov(Moves(GaussMarkov, 10.0, 1e9), start, start, 1)
    places = np.array([walk.at(float(k)) for k in range(12)])
    velocity = np.diff(places, axis=0)
    assert (velocity**2).sum(axis=1).mean() == pytest.approx(100, rel=0.05)
    for lag in (1, 4):
        alike = (velocity[lag:] * velocity[:-lag]).sum(axis=1).mean() / 100
        assert alike == pytest.approx(MEMORY**lag, abs=0.03)


def test_walkers_come_back_from_the_rim():
    start = np.full(50, 199.0)
    walk = GaussMarkov(Moves(GaussMarkov, 30.0, 200.0), start, np.zeros(50), 1)
    assert max(np.hypot(*walk.at(float(k))).max() for k in range(30)) <= 200 * (1 + 1e-9)


def test_signals_follow_the_way():
    cell = Cell.draw(30, 2, coherence_s=0.5, rician_k=np.inf, moves=Moves(Waypoints, 2.0, 200.0))
    distance_m = cell.at(50.0).distance_m
    assert not np.allclose(distance_m, cell.distance_m)
    np.testing.assert_allclose(
        cell.channel.signal_at(0, 50.1), 40 * np.sqrt(2) * replace(cell, distance_m=distance_m).mean_signal_hz
    )
    np.testing.assert_array_equal(cell.channel.signal_in(100), cell.channel.signal_at(7, 50.1))
    still = replace(cell, moves=None)
    np.testing.assert_array_equal(still.channel.signal_in(100), still.channel.signal_in(3))


def test_ues_that_pass_the_same_place_stand_in_the_same_shadow():
    """Below 18 m every UE is in sight."""
    cell = Cell(np.array([10.0, 16.0]), np.ones(2), radio=RADIOS["umi"], angle_rad=np.array([0.3, 1.1]), seed=5)
    swapped = replace(cell, distance_m=cell.distance_m[::-1], angle_rad=np.array([1.1, 0.3]))
    np.testing.assert_allclose(cell.mean_signal_hz, swapped.mean_signal_hz[::-1])
    turned = replace(cell, angle_rad=np.array([2.3, 3.1]))
    assert not np.allclose(cell.mean_signal_hz, turned.mean_signal_hz)


# ---- coherence time


def test_the_coherence_time_by_hand():
    assert coherence_seconds(1.0, 3.5e9) == pytest.approx(0.0363, abs=1e-4)  # 36 ms at 1 m/s and 3.5 GHz
    assert make_cell(spec_from(speed_mps=1), 0).coherence_s == pytest.approx(0.0363, abs=1e-4)
    assert make_cell(spec_from(radio="rma", speed_mps=1), 0).coherence_s == pytest.approx(0.1813, abs=1e-4)
    assert make_cell(spec_from(speed_mps=1, coherence_s=0.5), 0).coherence_s == 0.5
    assert make_cell(spec_from(), 0).coherence_s is None


@pytest.mark.parametrize("coherence_s", [0.1, 0.3, 1 / 3, 1e-3, 7.7])
def test_a_border_begins_the_next_block(coherence_s):
    cell, time_s = Cell.draw(2, coherence_s=coherence_s), 0.0
    for block in range(2000):
        np.testing.assert_equal(cell.channel.block_at(-1, time_s), block)
        time_s = cell.channel.changes_s(time_s)
    assert time_s == 2000 * coherence_s


def test_without_fading_borders_change_nothing():
    one = {"payload_bits": 1e5, "samples": 100.0, "rounds": 60, "bandwidth": equal_share}
    still = Cell.draw(12, 1, rician_k=np.inf, radio=RADIOS["umi"], bandwidth_hz=2e7)
    whole = simulate(still, Protocol(4, 2), **one)
    cut = simulate(replace(still, coherence_s=0.0123), Protocol(4, 2), **one)
    np.testing.assert_array_equal(whole.ues, cut.ues)
    np.testing.assert_allclose(whole.time_s, cut.time_s, rtol=1e-12)
    np.testing.assert_allclose(whole.arrival_s, cut.arrival_s, rtol=1e-12)


def test_quick_fading_averages_out():
    """One deep fade per round delays all UEs; many short ones do not."""
    cell = Cell.draw(20, 1, radio=RADIOS["umi"], bandwidth_hz=2e7, power_w=0.2)
    slow, quick = (
        simulate(replace(cell, coherence_s=each), Protocol(20), payload_bits=1e6, samples=10.0, rounds=10).end_s
        for each in (None, 0.02)
    )
    assert quick < 0.8 * slow


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"mobility": "waypoint"}, "--mobility waypoint needs a --speed-mps"),
        ({"mobility": "flying"}, "--mobility 'flying' is not known; did you mean waypoint"),
        ({"coherence_s": 0}, "--coherence-s"),
        ({"speed_mps": -1}, "--speed-mps must be at least 0"),
    ],
)
def test_what_cannot_be_is_said(settings, words):
    with pytest.raises(InputError, match=words):
        make_cell(spec_from(**settings), 0)


def test_a_moving_cell_needs_a_coherence_time():
    with pytest.raises(ValueError, match="moving UEs need a coherence_s"):
        Cell.draw(3, moves=Moves(Waypoints, 1.0, 200.0))
    with pytest.raises(ValueError, match="speed and radius must be finite and above 0"):
        Moves(Waypoints, 0.0, 200.0)


def test_a_spec_says_how_ues_move():
    cell = make_cell(spec_from(mobility="gauss-markov", speed_mps=3, radius_m=150), 0)
    assert cell.moves == Moves(GaussMarkov, 3.0, 150.0)
