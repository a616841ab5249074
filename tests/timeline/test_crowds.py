"""A crowd's timeline equals the one that follows every UE, and UEs without hope cost neither memory nor time."""

import subprocess
import sys
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from needs import needs
from random_runs import assert_same, only

from perfeds2.network import blocks
from perfeds2.network.blocks import each_block
from perfeds2.network.cell import Cell
from perfeds2.network.radios import RADIOS
from perfeds2.timeline import simulate as clock
from perfeds2.timeline.fast import play as compiled
from perfeds2.timeline.fast.play import play_crowd, split_crowd
from perfeds2.timeline.jobs import LOST
from perfeds2.timeline.protocol import Protocol, _smallest
from perfeds2.timeline.record import Timeline
from perfeds2.timeline.simulate import play, simulate, start_clock
from perfeds2.timeline.state import Conditions


def setting(ues: int, quorum: int, bound: int, seed: int = 0, **of_cell) -> Conditions:
    drawn = Cell.draw(ues, seed, **of_cell)
    return Conditions(drawn, Protocol(quorum, bound), 44_352.0, drawn.compute_s(120), np.full(ues, 1 / ues))


def follow_everybody(given: Conditions, **limits) -> Timeline:
    with only("numpy"):
        return play(start_clock(given), **limits)


def follow(
    given: Conditions, hopeful: int, rounds: int | None = None, horizon_s: float | None = None
) -> Timeline | None:
    with only("compiled"):
        return play_crowd(given, split_crowd(given, hopeful), rounds, horizon_s, None)


@pytest.mark.slow
@given(st.integers(0, 2**32), st.integers(1, 6), st.integers(0, 4), st.integers(0, 40), st.floats(0.02, 1))
@settings(max_examples=25, deadline=None)
def test_a_safe_guess_gives_the_timeline_of_following_everybody(seed, quorum, bound, rounds, share):
    given = setting(400, quorum, bound, seed)
    hopeful = min(max(int(400 * share), quorum), 399)
    unequal = replace(given, payload_bits=given.payload_bits * np.random.default_rng(seed).choice([0.1, 1.0], 400))
    for one in (given, unequal):
        guessed = follow(one, hopeful, rounds)
        if guessed is not None:
            assert_same(guessed, follow_everybody(one, rounds=rounds))


@pytest.mark.parametrize("limits", [{"rounds": 30}, {"horizon_s": 5.0}, {"rounds": 1}])
def test_a_guess_as_large_as_usual_is_safe_in_a_large_cell(limits):
    given = setting(3_000, 5, 5)
    guessed = follow(given, 240, **limits)
    assert guessed is not None
    assert_same(guessed, follow_everybody(given, **limits))


def test_room_for_lost_jobs_grows_wherever_it_ends(monkeypatch):
    """It doubles from one row, and ends between UEs that are not followed and one that is, too."""
    given = setting(3_000, 5, 5)
    monkeypatch.setattr(compiled, "LOST_ROWS", 1)
    guessed = follow(given, 240, 12)
    assert guessed is not None
    monkeypatch.undo()
    assert_same(guessed, follow_everybody(given, rounds=12))


@pytest.mark.parametrize("name", ["umi", "rma"])
def test_where_modulation_sets_the_rate_the_fast_processors_are_followed(name):
    given = setting(3_000, 5, 5, radio=RADIOS[name], power_w=0.2)
    guessed = follow(given, 240, 30)
    assert guessed is not None
    assert_same(guessed, follow_everybody(given, rounds=30))


def test_a_round_that_closes_at_the_horizon_belongs_to_it_in_a_crowd_too():
    given = setting(3_000, 5, 5)
    closed_s = follow_everybody(given, rounds=4).time_s
    guessed = follow(given, 240, horizon_s=float(closed_s[3]))
    assert guessed is not None
    assert guessed.time_s.tolist() == closed_s.tolist()


def test_where_everybody_is_equally_far_no_guess_is_safe():
    given = setting(400, 4, 3, layout="equal")
    assert follow(given, 100, 10) is None


@pytest.mark.parametrize(("protocol", "chosen"), [(Protocol(5, 5), True), (Protocol(5, 5, "wait"), False)])
@pytest.mark.parametrize("layout", ["disc", "equal"])
def test_simulate_finds_out_by_itself_whom_it_must_follow(monkeypatch, protocol, chosen, layout):
    """Also where its guess is not safe, as in a cell of equal distances, the timeline is right."""
    guesses = []
    monkeypatch.setattr(compiled, "MIN_CROWD", 1_000)
    monkeypatch.setattr(clock, "play_crowd", lambda *a, **k: guesses.append(play_crowd(*a, **k)) or guesses[-1])
    given = replace(setting(1_200, 5, 5, layout=layout), protocol=protocol)
    told = []
    with only("compiled"):
        timeline = simulate(
            given.cell, protocol, payload_bits=44_352.0, samples=120, rounds=12, tell=lambda *at: told.append(at)
        )
    assert_same(timeline, follow_everybody(given, rounds=12))
    assert [guess is not None for guess in guesses] == ([layout == "disc"] if chosen else [])
    assert told[-1] == (12, timeline.end_s)


def test_a_row_of_lost_jobs_stands_for_successive_ues():
    timeline = follow_everybody(setting(400, 2, 1), rounds=10)
    assert timeline.rows(LOST).ue.size < timeline.lost / 20
    one_each = replace(timeline, log=timeline.jobs())
    assert one_each.lost == one_each.rows(LOST).ue.size == timeline.lost
    for field in fields(timeline.jobs()):
        np.testing.assert_array_equal(getattr(timeline.jobs(), field.name), getattr(one_each.jobs(), field.name))
    assert timeline.seconds() == pytest.approx(one_each.seconds(), rel=1e-12)
    assert timeline.wasted_share == pytest.approx(one_each.wasted_share, rel=1e-12)
    assert timeline.activity(7) == one_each.activity(7)


def test_few_lost_jobs_have_a_row_each():
    timeline = follow_everybody(setting(100, 2, 1), rounds=10)
    assert timeline.lost == timeline.rows(LOST).ue.size > 100


def test_blocks_on_several_threads_change_no_bit(monkeypatch):
    given = setting(1_003, 20, 3)
    whole, signal = follow_everybody(given, rounds=6), given.cell.signal_hz(3)
    monkeypatch.setattr(blocks, "BLOCK", 64)
    monkeypatch.setattr(blocks.os, "cpu_count", lambda: 3)
    in_blocks = setting(1_003, 20, 3)
    np.testing.assert_array_equal(in_blocks.cell.signal_hz(3), signal)
    some = np.array([3, 64, 700, 1_002])
    np.testing.assert_array_equal(in_blocks.cell.signal_hz(3, some), signal[some])
    assert_same(follow_everybody(in_blocks, rounds=6), whole)


def test_an_error_in_a_block_is_not_swallowed(monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK", 4)

    def fail(at: slice) -> None:
        if at.start == 8:
            raise ArithmeticError("in a block")

    with pytest.raises(ArithmeticError, match="in a block"):
        each_block(10, fail)


def test_no_fading_exceeds_its_bound():
    drawn = Cell.draw(1, 0)
    largest = 1 - 2.0**-53
    assert drawn.fading_scale * np.sqrt(-2 * np.log(1 - largest)) <= drawn.fading.max_ratio


@given(st.lists(st.sampled_from([0.0, 1.0, 1.5, 2.0, np.inf]), min_size=1, max_size=1_000), st.integers(1, 3))
@settings(max_examples=30, deadline=None)
def test_the_smallest_are_found_among_few(values, rank):
    rank = min(rank, len(values))
    assert _smallest(rank, np.array(values)) == sorted(values)[rank - 1]


LARGE = """
import pathlib, time
from perfeds2 import Cell, Protocol, simulate

def of(ues):
    begun = time.process_time()
    simulate(Cell.draw(ues, 0), Protocol(200, 5), payload_bits=44_352.0, samples=120, rounds=20)
    return time.process_time() - begun

of(2_000)
print(min(of(20_000) for _ in range(2)), min(of(200_000) for _ in range(2)))
status = pathlib.Path("/proc/self/status").read_text()  # getrusage would count what the tests had before they forked
print(int(status.partition("VmHWM:")[2].split()[0]) / 2**20)
"""


@needs("linux")
@pytest.mark.slow
def test_the_clock_is_no_worse_than_linear_in_the_ues_and_small_in_memory():
    """Processor seconds, which a busy machine changes little; a square law would be 100 times."""
    said = subprocess.run([sys.executable, "-c", LARGE], check=True, capture_output=True, text=True).stdout.split()
    few_s, many_s, gibibytes = map(float, said)
    assert many_s < 20 * few_s
    assert gibibytes < 0.75
