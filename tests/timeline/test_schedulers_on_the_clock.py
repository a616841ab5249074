"""Schedulers that look at the moment, and rounds in which the unplanned rest: on the clock and on its twin."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hand_made import hand_made_cell, one_hz_each
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_runs import Run, assert_same, uneven_share
from test_agrees_with_processes import assert_agrees

from perfeds2.allocation.bandwidth import equal_share
from perfeds2.allocation.schedulers import (
    Moment,
    age,
    best_channel,
    chen,
    fedcs,
    proportional_fair,
    random,
    replacing_absent,
    round_robin,
)
from perfeds2.network.availability import Availability, Hours
from perfeds2.network.cell import Cell
from perfeds2.network.fleet import Fleet
from perfeds2.network.link import Downlink
from perfeds2.network.mobility import Moves, Waypoints
from perfeds2.network.radios import RADIOS
from perfeds2.timeline.jobs import LOST, MERGED
from perfeds2.timeline.protocol import Protocol
from perfeds2.timeline.simulate import play, simulate, start_clock
from perfeds2.timeline.state import RoundInfo

MAKE: dict[Any, Any] = {
    "round_robin": lambda cell, quorum, _: round_robin(cell, quorum),
    "random": random,
    "best_channel": lambda *_: best_channel,
    "proportional_fair": lambda cell, *_: proportional_fair(cell),
    "age": lambda *_: age,
    "fedcs": lambda *_: fedcs,
    "chen": lambda *_: chen(0.5),
}


def two_groups(moment: Moment) -> np.ndarray:
    """Even and odd UEs: each kind goes on with those at work, or else takes its oldest."""
    groups = []
    for own in (np.arange(0, moment.versions.size, 2), np.arange(1, moment.versions.size, 2)):
        at_work = own[moment.versions[own] >= 0]
        groups.append(
            at_work if at_work.size else own[np.argsort(moment.merged_in[own], kind="stable")][: moment.quorum]
        )
    return np.array(groups)


@st.composite
def scheduled(draw: st.DrawFn) -> Run:
    n = draw(st.integers(2, 16))
    seed = draw(st.integers(0, 10**6))
    coherence_s = draw(st.sampled_from([None, 0.1, 0.3]), label="coherence time")
    downlink = draw(st.sampled_from([None, Downlink("multicast", 25.0, 1e6), Downlink("unicast", 1.0, 1e6)]))
    cell = Cell.draw(n, seed, coherence_s=coherence_s, downlink=downlink)
    if draw(st.booleans(), label="drafts"):
        protocol = Protocol(draw(st.integers(1, n)), draw(st.sampled_from([None, 0, 1, 4])), drafts=True)
        return Run(cell, protocol, 1e5, 100.0, draw(st.sampled_from([equal_share, uneven_share(seed)])), None)
    rests = draw(st.booleans(), label="rests")
    protocol = Protocol(
        draw(st.integers(1, n // 2)), None if rests else draw(st.sampled_from([None, 0, 3])), rests=rests
    )
    name = draw(st.sampled_from([*MAKE, *(["two_groups"] if rests else [])]), label="schedule")
    schedule = two_groups if name == "two_groups" else MAKE[name](cell, protocol.quorum, seed)
    policy = draw(st.sampled_from([equal_share, uneven_share(seed)]))
    return Run(cell, protocol, draw(st.sampled_from([1e4, 1e6])), draw(st.sampled_from([0.0, 100.0])), policy, schedule)


QUICK = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
FEW = settings(QUICK, max_examples=12)


@pytest.mark.slow
@given(scheduled(), st.integers(1, 20))
@QUICK
def test_simulate_agrees_with_processes(run: Run, rounds: int):
    assert_agrees(run, rounds)


@pytest.mark.slow
@given(scheduled(), st.integers(0, 15), st.data())
@FEW
def test_cut_into_pieces_the_timeline_is_the_same_and_a_prefix_is_the_shorter_one(run: Run, rounds: int, data):
    first = data.draw(st.integers(0, rounds))
    whole = run.simulate(rounds)
    clock = start_clock(run.setting)
    play(clock, rounds=first)
    assert_same(play(clock, rounds=rounds - first), whole)
    assert_same(whole.prefix(first), run.simulate(first))


@pytest.mark.slow
@given(scheduled(), st.integers(1, 15))
@FEW
def test_as_many_as_asked_no_ue_twice_and_no_job_forgotten(run: Run, rounds: int):
    infos: list[RoundInfo] = []
    timeline = run.simulate(rounds, watch=infos.append)
    assert timeline.ues.shape == (rounds, run.protocol.quorum)
    assert all(len(set(ues)) == run.protocol.quorum for ues in timeline.ues.tolist())
    jobs = timeline.jobs()
    assert (jobs.outcome == MERGED).sum() == timeline.ues.size
    started = (start_clock(run.setting).server.versions >= 0).sum()
    assert started + sum(info.handed.size for info in infos) == jobs.ue.size
    if run.protocol.rests and run.schedule is not two_groups:
        assert not timeline.staleness.any()  # the planned begin with the newest model
        assert timeline.lost == 0


def test_the_unplanned_rest_by_hand():
    """Computing 1, 2, 3 s, sending 8 bits at 4 bit/s. Planned: UE 0, then UE 2, then UE 0: rounds of 3, 5 and 3 seconds. The next begins then."""
    cell = hand_made_cell([1.0, 2.0, 3.0])
    line = simulate(
        cell,
        Protocol(1, rests=True),
        payload_bits=8,
        samples=1,
        rounds=3,
        bandwidth=one_hz_each,
        schedule=lambda round_: np.array([[0, 2, 0, 1][round_]]),
    )
    np.testing.assert_allclose(line.time_s, [3, 8, 11])
    assert line.staleness.ravel().tolist() == [0, 0, 0]
    assert line.activity(1) == [("idle", 0.0, pytest.approx(11))]
    assert [state for state, *_ in line.activity(0)] == ["computing", "sending", "idle", "computing", "sending"]
    assert line.wasted_share == 0


@pytest.mark.slow
@pytest.mark.parametrize("rests", [True, False])
@pytest.mark.parametrize("name", ["best_channel", "proportional_fair", "fedcs"])
def test_simulate_agrees_with_processes_where_a_schedule_looks_at_a_capped_radio_of_now(name, rests):
    cell = Cell.draw(12, seed=4, radio=RADIOS["umi"], bandwidth_hz=5e6, power_w=0.2, coherence_s=0.05)
    cell = replace(cell, moves=Moves(Waypoints, 30.0, 200.0), downlink=Downlink("unicast", 25.0, 1e6))
    protocol = Protocol(3, None if rests else 4, rests=rests)
    assert_agrees(Run(cell, protocol, 1e6, 100.0, equal_share, MAKE[name](cell, 3, 0)), rounds=10)


def test_who_is_invited_waits_for_the_model_by_hand():
    """As above, but every job's model comes first: 2 s to each, so rounds of 5, 7 and 5 seconds."""
    late = replace(hand_made_cell([1.0, 2.0, 3.0]), downlink_s=2.0)
    plan: dict[str, Any] = {"bandwidth": one_hz_each, "schedule": lambda round_: np.array([[0, 2, 0, 1][round_]])}
    line = simulate(late, Protocol(1, rests=True), payload_bits=8, samples=1, rounds=3, **plan)
    np.testing.assert_allclose(line.time_s, [5, 12, 17])


def test_two_groups_by_hand():
    """UE 0 takes 3 s a job, UE 1 5 s; each is a group of its own. So they close rounds at 3, 5, 6, 9, 10 and 12 s."""
    cell = hand_made_cell([1.0, 3.0])
    line = simulate(
        cell, Protocol(1, rests=True), payload_bits=8, samples=1, rounds=6, bandwidth=one_hz_each, schedule=two_groups
    )
    np.testing.assert_allclose(line.time_s, [3, 5, 6, 9, 10, 12])
    assert line.ues.ravel().tolist() == [0, 1, 0, 0, 1, 0]
    assert line.staleness.ravel().tolist() == [0, 1, 1, 0, 2, 1]


def test_the_draft_by_hand():
    """UEs take 3, 4, 5 and 12 s a job, two close a round. UE 0 and 1 do at 4 s. At 5 s UE 2 is there, but UE 0, back at 7 s, was
    merged just before: it waits in vain until UE 3 comes at 12 s, and so does UE 1. All four then begin anew."""
    cell = hand_made_cell([1.0, 2.0, 3.0, 10.0])
    run: dict[str, Any] = {"payload_bits": 8, "samples": 1, "bandwidth": one_hz_each}
    line = simulate(cell, Protocol(2, drafts=True), rounds=3, **run)
    np.testing.assert_allclose(line.time_s, [4, 12, 16])
    assert line.ues.tolist() == [[0, 1], [2, 3], [0, 1]]
    assert line.staleness.tolist() == [[0, 0], [1, 1], [0, 0]]
    lost = line.rows(LOST)
    assert (lost.ue.tolist(), lost.round.tolist(), lost.version.tolist()) == ([0, 1], [1, 1], [1, 1])
    assert lost.arrived.all()
    np.testing.assert_allclose(lost.arrival_s, [7, 8])
    # Three of four: after UE 0, 1 and 2 only UE 3 was not merged. All four are waited for, then the first of the others fill up.
    line = simulate(cell, Protocol(3, drafts=True), rounds=2, **run)
    np.testing.assert_allclose(line.time_s, [5, 12])
    assert line.ues.tolist() == [[0, 1, 2], [0, 1, 3]]
    assert line.rows(LOST).ue.tolist() == [2]


def test_a_draft_has_no_plan():
    cell, protocol = Cell.draw(4), Protocol(2, drafts=True)
    with pytest.raises(ValueError, match="takes no schedule"):
        simulate(cell, protocol, payload_bits=1e5, samples=1, rounds=1, schedule=age)
    with pytest.raises(ValueError, match="drafts needs rests=False and stale='restart'"):
        Protocol(2, 5, "wait", drafts=True)


def test_who_rests_needs_a_plan_and_no_bound():
    cell = Cell.draw(4)
    with pytest.raises(ValueError, match="rests=True needs a schedule"):
        simulate(cell, Protocol(2, rests=True), payload_bits=1e5, samples=1, rounds=1)
    with pytest.raises(ValueError, match="max_staleness must be None, got 5"):
        Protocol(2, 5, rests=True)


@pytest.mark.slow
@pytest.mark.parametrize(("rests", "keeps"), [(False, True), (True, False)])
@pytest.mark.parametrize("name", MAKE)
def test_rounds_are_not_planned_for_who_is_away_and_the_processes_agree(name, rests, keeps):
    cell = Cell.draw(8, seed=3)
    hours = [Hours(((0.1 * ue, 0.1 * ue + 0.3),), 0.8 + 0.05 * ue) for ue in range(5)] + [Hours()] * 3
    cell = replace(cell, fleet=Fleet(np.full(8, np.nan), np.full(8, np.nan), None, Availability(hours, keeps)))
    schedule = MAKE[name](cell, 3, 0)
    schedule = schedule if name not in ("round_robin", "random") else replacing_absent(schedule)
    seen: list[tuple[np.ndarray, np.ndarray]] = []

    def asked(moment: Moment) -> np.ndarray:
        chosen = schedule(moment)
        assert moment.present is not None
        seen.append((moment.present, chosen))
        return chosen

    run = Run(cell, Protocol(3, rests=rests), 1e5, 100.0, equal_share, asked)
    assert_agrees(run, 15)
    assert any(not here.all() for here, _ in seen)
    assert all(here[chosen].all() for here, chosen in seen if here.sum() >= 3)


def test_who_is_away_is_replaced_by_who_was_merged_longest_ago():
    zeros = np.zeros(6)
    merged_in, present = np.array([5, 1, 4, 2, 3, -1]), np.array([True, True, True, True, False, False])
    moment = Moment(6, 1.0, 3, 1.0, zeros, zeros, zeros, zeros.astype(int), merged_in, present=present)
    choose = replacing_absent(lambda _: np.array([0, 4, 5]))
    assert choose(moment).tolist() == [0, 1, 3]  # for 4 and 5; 1 and 3 have waited longer than 2
    assert choose(replace(moment, present=np.ones(6, bool))).tolist() == [0, 4, 5]
    assert choose(replace(moment, present=np.array([True, *[False] * 5]))).tolist() == [0, 4, 5]  # too few are there


def test_a_full_job_of_a_ue_that_rests_includes_the_wait_for_the_model():
    cell = replace(Cell.draw(4, seed=0), downlink=Downlink("unicast", 1.0, 1e6))
    seen = []

    def plan(moment: Moment) -> np.ndarray:
        seen.append(moment)
        return np.array([0, 1])

    simulate(cell, Protocol(2, rests=True), payload_bits=1e5, samples=60, rounds=2, schedule=plan)
    first, second = seen[:2]
    wait_s = cell.model_s(2) - cell.downlink_s
    assert np.all(wait_s > 0.0)
    np.testing.assert_allclose(first.compute_s - wait_s, cell.downlink_s + 60 * cell.cycles_per_sample / cell.cpu_hz)
    np.testing.assert_allclose(second.compute_s, first.compute_s)
