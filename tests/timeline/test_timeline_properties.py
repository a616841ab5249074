"""What holds for every timeline, whatever the cell, the protocol, the schedule and the bandwidth policy."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_runs import STALE, Run, assert_same, finish_together, runs, uneven_share

from perfeds2.allocation.bandwidth import Uplink, equal_share
from perfeds2.network.cell import Cell
from perfeds2.timeline.jobs import LOST, MERGED
from perfeds2.timeline.protocol import Protocol
from perfeds2.timeline.simulate import play, simulate, start_clock
from perfeds2.timeline.state import RoundInfo

PROPERTY = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@given(runs(), st.integers(0, 30))
@PROPERTY
def test_no_merged_update_is_staler_than_the_bound(run: Run, rounds: int):
    timeline = run.simulate(rounds)
    assert timeline.staleness.shape == (rounds, run.protocol.quorum)
    assert (timeline.staleness >= 0).all()
    if run.protocol.max_staleness is not None:
        assert (timeline.staleness <= run.protocol.max_staleness).all()


@given(runs(), st.integers(1, 30))
@PROPERTY
def test_each_round_merges_a_different_ues_in_order_of_arrival(run: Run, rounds: int):
    timeline = run.simulate(rounds)
    assert all(len(set(ues)) == run.protocol.quorum for ues in timeline.ues.tolist())
    assert (np.diff(timeline.arrival_s, axis=1) >= 0).all()
    assert (timeline.arrival_s <= timeline.time_s[:, None]).all()
    assert (np.diff(timeline.time_s, prepend=0.0) >= 0).all()
    if run.schedule is None and run.protocol.stale != "wait":
        # A round closes with its last arrival, or at once where enough had arrived before it opened.
        latest_s = np.maximum(timeline.arrival_s[:, -1], timeline.start_s[:-1])
        np.testing.assert_array_equal(timeline.time_s, latest_s)
    if run.schedule is not None:
        for k, ues in enumerate(timeline.ues):
            assert set(ues.tolist()) == set(run.schedule(k).tolist())


@given(runs(), st.integers(1, 30))
@PROPERTY
def test_a_ue_has_at_most_one_job_at_a_time_and_its_activity_has_no_gaps(run: Run, rounds: int):
    timeline = run.simulate(rounds)
    jobs = timeline.jobs()
    assert (jobs.start_s <= jobs.sending_s).all()
    assert (jobs.sending_s <= jobs.arrival_s).all()
    assert (jobs.arrival_s <= jobs.end_s).all()
    totals = dict.fromkeys(timeline.seconds(), 0.0)
    for ue in range(timeline.population):
        mine = np.flatnonzero(jobs.ue == ue)
        mine = mine[np.argsort(jobs.version[mine])]
        assert np.unique(jobs.version[mine]).size == mine.size
        assert (jobs.start_s[mine][1:] >= jobs.end_s[mine][:-1]).all()
        if not run.protocol.waits:  # always at work: the next job starts when the last one ends
            np.testing.assert_array_equal(jobs.start_s[mine][1:], jobs.end_s[mine][:-1])
        now = 0.0
        for state, since, until in timeline.activity(ue):
            assert since == now < until
            totals[state] += until - since
            now = until
        assert now == timeline.end_s
    assert timeline.seconds() == pytest.approx(totals, rel=1e-9, abs=1e-9 * max(timeline.end_s, 1.0))
    assert sum(timeline.seconds().values()) == pytest.approx(timeline.population * timeline.end_s, rel=1e-12)
    assert 0 <= timeline.waiting_share <= 1


@given(runs(), st.integers(1, 30))
@PROPERTY
def test_the_bits_of_every_merged_job_add_up_to_the_payload(run: Run, rounds: int):
    infos: list[RoundInfo] = []
    timeline = run.simulate(rounds, watch=infos.append)
    sent: dict[tuple[int, int], float] = {}  # (UE, version) -> bits
    for info in infos:
        for ue in np.flatnonzero(info.versions >= 0).tolist():
            version = int(info.versions[ue])
            ready_s = timeline.start_s[version] + timeline.compute_s[ue]
            seconds = min(info.arrival_s[ue], info.closing.time_s) - max(info.start_s, ready_s)
            sent[ue, version] = sent.get((ue, version), 0.0) + info.rate_bps[ue] * max(seconds, 0.0)
    for ue, version in zip(timeline.ues.ravel().tolist(), timeline.versions.ravel().tolist(), strict=True):
        assert sent[ue, version] == pytest.approx(run.payload_bits, rel=1e-9)
    assert all(bits <= run.payload_bits * (1 + 1e-9) for bits in sent.values())


@given(runs(), st.integers(1, 30))
@PROPERTY
def test_restarted_and_refused_jobs_are_the_wasted_ones(run: Run, rounds: int):
    infos: list[RoundInfo] = []
    timeline = run.simulate(rounds, watch=infos.append)
    jobs = timeline.jobs()
    assert timeline.lost == sum(info.lost.size for info in infos)
    assert (jobs.outcome == MERGED).sum() == timeline.ues.size
    busy_s = jobs.arrival_s - jobs.start_s
    wasted_s = sum(b for b, outcome in zip(busy_s, jobs.outcome, strict=True) if outcome == LOST)
    assert timeline.wasted_share == pytest.approx(wasted_s / busy_s.sum())
    if run.protocol.max_staleness is None or (run.protocol.stale == "wait" and run.schedule is None):
        assert timeline.wasted_share == 0.0
    started = timeline.population if not run.protocol.waits else (infos[0].versions == 0).sum()
    started += sum(info.handed.size for info in infos)
    assert started == jobs.ue.size  # no job is forgotten


@given(runs(), st.integers(0, 25), st.data())
@PROPERTY
def test_a_prefix_is_the_shorter_simulation(run: Run, rounds: int, data: st.DataObject):
    shorter = data.draw(st.integers(0, rounds))
    assert_same(run.simulate(rounds).prefix(shorter), run.simulate(shorter))


def together_then_equal(uplink: Uplink) -> np.ndarray:
    """In every other round all end together but for rounding, so some have less than a bit left for the next."""
    return finish_together(uplink) if uplink.round % 2 == 0 else equal_share(uplink)


@pytest.mark.slow
@pytest.mark.parametrize("stale", STALE)
@pytest.mark.parametrize("policy", [finish_together, together_then_equal])
def test_a_prefix_is_the_shorter_simulation_where_all_arrive_together_but_for_rounding(stale, policy):
    run = Run(Cell.draw(12, 2), Protocol(3, 2, stale), 1e5, 50.0, policy, None)
    whole = run.simulate(6)
    for shorter in (1, 2, 5):
        assert_same(whole.prefix(shorter), run.simulate(shorter))


@given(runs(), st.lists(st.integers(0, 6), min_size=1, max_size=6))
@PROPERTY
def test_chunks_make_the_whole(run: Run, chunks: list[int]):
    setting = run.setting
    clock, past = start_clock(setting), None
    for rounds in chunks:
        past = play(clock, rounds=rounds)
    assert past is not None
    assert_same(past, run.simulate(sum(chunks)))
    assert clock.time_s == past.end_s


@given(runs(), st.floats(0.01, 20.0))
@PROPERTY
def test_the_horizon_cuts_a_longer_timeline(run: Run, horizon_s: float):
    timeline = simulate(
        run.cell,
        run.protocol,
        payload_bits=run.payload_bits,
        samples=run.samples,
        bandwidth=run.bandwidth,
        schedule=run.schedule,
        horizon_s=horizon_s,
        rounds=20,
    )
    longer = run.simulate(timeline.rounds + 1)
    assert timeline.end_s <= horizon_s
    assert timeline.rounds == 20 or longer.end_s > horizon_s
    assert_same(longer.prefix(timeline.rounds), timeline)


@given(runs(max_ues=12, scheduled=False))
@PROPERTY
def test_no_legal_protocol_deadlocks(run: Run):
    rounds = 3 * (run.cell.ues + 8)
    assert run.simulate(rounds).rounds == rounds


@given(runs(scheduled=False))
@PROPERTY
def test_waiting_starves_no_ue(run: Run):
    n, quorum, bound = run.cell.ues, run.protocol.quorum, run.protocol.max_staleness or 0
    waiting = Run(run.cell, Protocol(quorum, bound, "wait"), run.payload_bits, run.samples, run.bandwidth, None)
    rounds = max(-(-n // quorum), bound + 1)  # the first jobs are due by round S; then come those who had to wait
    assert waiting.simulate(rounds).starved.size == 0


@given(st.integers(1, 20), st.integers(0, 2**32), st.sampled_from(STALE), st.integers(0, 3))
@PROPERTY
def test_synchronous_rounds_have_no_staleness(n: int, seed: int, stale, bound: int):
    run = Run(Cell.draw(n, seed), Protocol(n, bound, stale), 1e5, 50.0, equal_share, None)
    timeline = run.simulate(10)
    assert (timeline.staleness == 0).all()
    assert (np.sort(timeline.ues, axis=1) == np.arange(n)).all()


@given(st.integers(1, 20), st.integers(0, 2**32), st.sampled_from(STALE))
@PROPERTY
def test_asynchronous_rounds_merge_one_each_and_no_ue_waits(n: int, seed: int, stale):
    run = Run(Cell.draw(n, seed), Protocol(1, None, stale), 1e5, 50.0, uneven_share(seed), None)
    timeline = run.simulate(30)
    assert timeline.quorum == 1
    assert timeline.waiting_share == pytest.approx(0, abs=1e-9)
    assert timeline.lost == 0


@given(runs(), st.integers(1, 15))
@settings(max_examples=5, deadline=None)
def test_the_same_seed_gives_the_same_bytes(tmp_path_factory, run: Run, rounds: int):
    folder = tmp_path_factory.mktemp("bytes")
    run.simulate(rounds).save(folder / "one.npz")
    run.simulate(rounds).save(folder / "two.npz")
    assert (folder / "one.npz").read_bytes() == (folder / "two.npz").read_bytes()


def test_another_seed_gives_another_timeline():
    one, two = (simulate(Cell.draw(20, seed), Protocol(5), payload_bits=1e5, samples=50.0, rounds=5) for seed in (0, 1))
    assert not np.array_equal(one.time_s, two.time_s)


@given(st.integers(1, 30), st.integers(0, 30), st.integers(0, 2**64 - 1), st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_a_fading_draw_belongs_to_seed_round_and_ue(n: int, more: int, seed: int, round_: int):
    small, large = Cell.draw(n, seed), Cell.draw(n + more, seed)
    large.signal_hz(round_ + 1)  # whatever was asked before
    np.testing.assert_array_equal(large.signal_hz(round_)[:n], small.signal_hz(round_))
    assert (small.signal_hz(round_) > 0).all()
