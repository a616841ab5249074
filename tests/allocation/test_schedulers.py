"""Each scheduler against its definition, written down a second time, or against all there is to choose from."""

from dataclasses import replace
from itertools import combinations
from math import ceil, exp, log2
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfeds2.allocation.bandwidth import Uplink, equal_share, planned_share
from perfeds2.allocation.schedule import achieved_shares, longest_gap
from perfeds2.allocation.schedulers import (
    Moment,
    age,
    best_channel,
    chen,
    fedcs,
    proportional_fair,
    random,
    round_robin,
)
from perfeds2.network.cell import Cell
from perfeds2.network.mobility import Moves, Waypoints
from perfeds2.timeline.protocol import Protocol
from perfeds2.timeline.simulate import simulate


def moment(quorum, signal_hz, *, compute_s=None, bits=None, merged_in=None, round_=7, bandwidth_hz=1e6):
    n = len(signal_hz)
    filled = [
        np.full(n, fill) if given is None else np.asarray(given)
        for given, fill in ((compute_s, 0.1), (bits, 1e5), (merged_in, -1))
    ]
    compute, left, merged = filled
    return Moment(
        round_, 1.0, quorum, bandwidth_hz, np.asarray(signal_hz, float), compute, left, np.zeros(n, int), merged
    )


@st.composite
def moments(draw: st.DrawFn, most: int = 7) -> Moment:
    n = draw(st.integers(1, most))
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    quorum, round_ = draw(st.integers(1, n)), 9
    return moment(
        quorum,
        10 ** rng.uniform(3, 8, n),
        compute_s=rng.uniform(0, 1, n),
        bits=rng.uniform(1e3, 1e6, n),
        merged_in=rng.integers(-1, round_, n),
        round_=round_,
    )


@given(moments(40))
def test_everybody_chooses_as_many_as_asked_and_no_ue_twice(now):
    cell = Cell.draw(now.signal_hz.size)
    for choose in (best_channel, proportional_fair(cell), age, fedcs, chen(0.3)):
        chosen = choose(now)
        assert chosen.dtype == np.int64
        assert (np.diff(chosen) > 0).all()
        assert chosen.shape == (now.quorum,)


# ---- in turn and by lot


@given(st.integers(1, 30), st.data())
def test_in_turn_no_ue_waits_longer_than_a_turn(n, data):
    quorum = data.draw(st.integers(1, n))
    plan = round_robin(Cell.draw(n), quorum)
    rows = np.array([plan(k) for k in range(3 * n)])
    assert longest_gap(rows, n).max() == ceil(n / quorum) - 1
    np.testing.assert_allclose(achieved_shares(rows, n), 1 / n)


def test_by_lot_every_set_comes_equally_often_and_the_seed_decides():
    cell = Cell.draw(5)
    plan, again, other = (random(cell, 2, seed) for seed in (0, 0, 1))
    sets = [frozenset(plan(k).tolist()) for k in range(5000)]
    counts = np.array([sets.count(frozenset(pair)) for pair in combinations(range(5), 2)])
    assert counts.sum() == 5000
    assert ((counts - 500) ** 2 / 500).sum() < 27.9  # χ² with 9 degrees of freedom, one in a thousand
    assert all((plan(k) == again(k)).all() for k in range(20))
    assert any((plan(k) != other(k)).any() for k in range(20))


# ---- by the channel


def test_best_channel_by_hand():
    assert best_channel(moment(2, [3.0, 9.0, 1.0, 9.0])).tolist() == [1, 3]
    assert best_channel(moment(1, [3.0, 9.0, 1.0, 9.0])).tolist() == [1]  # ties go to the smaller number
    assert best_channel(moment(3, [3.0, 9.0, 1.0, 9.0])).tolist() == [0, 1, 3]


def test_proportional_fair_is_its_definition_in_whatever_order_it_is_asked():
    cell, quorum = Cell.draw(12, seed=4), 3
    choose = proportional_fair(cell)
    for k in (0, 1, 2, 9, 3, 3, 30, 4):
        signal = cell.signal_hz(k)
        ratio = []
        for ue in range(12):
            past = [float(cell.signal_hz(r)[ue]) for r in range(k + 1)]
            ratio.append(signal[ue] / (sum(past) / len(past)))
        expected = sorted(sorted(range(12), key=lambda ue: (-round(ratio[ue], 12), ue))[:quorum])
        assert choose(moment(quorum, signal, round_=k)).tolist() == expected


def test_proportional_fair_means_over_blocks_of_time_where_fading_has_a_coherence_time():
    cell = replace(Cell.draw(12, seed=4, coherence_s=0.3), moves=Moves(Waypoints, 20.0, 200.0))
    choose = proportional_fair(cell)
    for k, time_s, block in ((0, 0.0, 0), (1, 2.0, 6), (2, 2.05, 6), (3, 8.95, 29), (1, 0.7, 2)):
        signal, past = cell.channel.signal_at(k, time_s), [cell.channel.signal_in(each) for each in range(block + 1)]
        expected = np.sort(np.argsort(-signal / np.mean(past, axis=0))[:3])
        now = replace(moment(3, signal, round_=k), time_s=time_s)
        assert choose(now).tolist() == expected.tolist()


def test_fedcs_knows_what_modulation_carries():
    """Alone on 1 MHz, UE 0 is heard at 10 bit/s/Hz and would be first; at most 4 let UE 1 be, which computes a little less."""
    now = moment(1, [1e6 * (2**10 - 1), 1e6 * (2**4 - 1)], compute_s=[0.0101, 0.01])
    assert fedcs(now).tolist() == [0]
    assert fedcs(replace(now, most_bits_per_s_hz=4.0)).tolist() == [1]


def test_proportional_fair_chooses_everybody_alike_and_best_channel_does_not():
    cell = Cell.draw(20, seed=1)
    run: dict[str, Any] = {"payload_bits": 1e5, "samples": 40, "rounds": 300}
    fair = simulate(cell, Protocol(5, rests=True), schedule=proportional_fair(cell), **run)
    best = simulate(cell, Protocol(5, rests=True), schedule=best_channel, **run)
    assert fair.shares.max() < 1.4 / 20
    assert fair.shares.min() > 0.6 / 20
    assert best.starved.size > 5


# ---- by age


@given(moments())
def test_age_leaves_the_smallest_sum_of_ages_and_of_those_the_best_heard(now):
    def left(chosen):
        """Ages after the round, and how well the chosen are heard, the better the smaller."""
        ages = [0 if ue in chosen else int(now.age[ue]) + 1 for ue in range(now.age.size)]
        return sum(ages), -sum(np.log(now.signal_hz[list(chosen)]))

    best = min(combinations(range(now.age.size), now.quorum), key=left)
    assert left(age(now).tolist()) == pytest.approx(left(best))


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 20), st.booleans(), st.data())
def test_by_age_no_ue_starves(n, rests, data):
    quorum = data.draw(st.integers(1, n))
    protocol = Protocol(quorum, rests=rests)
    line = simulate(Cell.draw(n, n), protocol, payload_bits=1e5, samples=40, rounds=3 * n, schedule=age)
    assert longest_gap(line.ues, n).max() == ceil(n / quorum) - 1


# ---- FedCS


def literal_fedcs(update_s, upload_s, deadline_s):
    """Nishio and Yonetani 2019, algorithm 3; the download is part of the update, selecting and aggregating take no time."""
    candidates, selected, theta = set(range(len(update_s))), [], 0.0
    while candidates:
        x = max(sorted(candidates), key=lambda k: 1 / (upload_s[k] + max(0.0, update_s[k] - theta)))
        candidates.remove(x)
        theta_next = theta + upload_s[x] + max(0.0, update_s[x] - theta)
        if theta_next < deadline_s:
            theta = theta_next
            selected.append(x)
    return selected


@given(moments(12), st.floats(0.01, 30))
def test_fedcs_is_the_papers_greedy_choice_for_every_deadline(now, deadline_s):
    upload_s = [
        bits / (now.bandwidth_hz * log2(1 + g / now.bandwidth_hz))
        for bits, g in zip(now.bits.tolist(), now.signal_hz.tolist(), strict=True)
    ]
    fitting = literal_fedcs(now.compute_s.tolist(), upload_s, deadline_s)
    if fitting:
        asked = moment(len(fitting), now.signal_hz, compute_s=now.compute_s, bits=now.bits)
        assert fedcs(asked).tolist() == sorted(fitting)


def test_fedcs_by_hand():
    """Whole-band uploads of 1, 1 and 3 s; computing 0, 5 and 0 s. First UE 0 (1 s); then UE 2 adds 3 s, UE 1 would add 1 + 4."""
    now = moment(2, [1.0, 1.0, 1.0], compute_s=[0.0, 5.0, 0.0], bits=[1.0, 1.0, 3.0], bandwidth_hz=1.0)
    assert fedcs(now).tolist() == [0, 2]
    later = moment(2, [1.0, 1.0, 1.0], compute_s=[0.0, 5.0, 0.0], bits=[4.0, 1.0, 3.0], bandwidth_hz=1.0)
    assert fedcs(later).tolist() == [
        1,
        2,
    ]  # after UE 2's 3 s, UE 0 adds 4 s, and UE 1 what is left of its computing, 2 s, and 1 s


# ---- Chen et al.


@settings(deadline=None)
@given(moments(6), st.floats(0.05, 3))
def test_chen_is_the_best_of_all_assignments_that_meet_the_deadline(now, deadline_s):
    block_hz, m = now.bandwidth_hz / now.quorum, 10 ** (0.023 / 10)
    success, in_time = [], []
    for g, bits, compute_s in zip(now.signal_hz.tolist(), now.bits.tolist(), now.compute_s.tolist(), strict=True):
        q = 1 - exp(-m * block_hz / g)  # eq. (7) of the paper for a channel that is known
        success.append(1 - q)
        in_time.append(compute_s + bits / (block_hz * log2(1 + g / block_hz)) <= deadline_s)

    def total(chosen):
        return sum(success[ue] for ue in chosen if in_time[ue])

    best = max(total(chosen) for chosen in combinations(range(len(success)), now.quorum))
    chosen = chen(deadline_s)(now).tolist()
    assert total(chosen) == pytest.approx(best)
    assert sum(in_time[ue] for ue in chosen) == min(sum(in_time), now.quorum)


def test_who_is_not_heard_at_all_is_chosen_last_and_who_has_arrived_first():
    now = moment(2, [0.0, 5e5, 0.0, 1e6], bits=[1e5, 1e5, 0.0, 1e5])
    assert fedcs(now).tolist() == [2, 3]
    assert chen(10.0)(now).tolist() == [1, 3]
    assert fedcs(moment(3, [0.0, 0.0, 0.0, 1e6])).tolist() == [0, 1, 3]
    assert chen(0.01)(moment(3, [0.0, 0.0, 5e5, 1e6])).tolist() == [0, 2, 3]


def test_a_deadline_is_a_number_of_seconds():
    for wrong in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="the deadline must be a number of seconds above 0"):
            chen(wrong)


# ---- the band of the planned


def test_the_planned_share_the_band_and_others_get_none():
    bits, planned = np.array([1.0, 0.0, 1.0, 1.0]), np.array([True, True, True, False])
    uplink = Uplink(0, 12.0, np.ones(4), np.zeros(4), bits, np.full(4, 0.25), planned)
    assert planned_share(uplink).tolist() == [6.0, 0.0, 6.0, 0.0]
    unplanned = Uplink(0, 12.0, np.ones(4), np.zeros(4), bits, np.full(4, 0.25), None)
    assert (planned_share(unplanned) == equal_share(unplanned)).all()
