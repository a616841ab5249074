"""The clock where UEs have uplinks of their own, come and go: a process-per-UE model agrees, and nothing is done outside of hours."""

# pyright: reportOptionalMemberAccess=false

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jaxtyping import config
from random_runs import STALE, Run, assert_same, round_robin, runs
from test_agrees_with_processes import assert_agrees

from perfeds2.allocation.bandwidth import equal_share
from perfeds2.allocation.policies import POLICIES
from perfeds2.allocation.tiers import AllTiers, Tiers
from perfeds2.network.availability import Availability, Hours
from perfeds2.network.cell import Cell
from perfeds2.network.energy import EnergyModel
from perfeds2.network.fleet import Fleet
from perfeds2.network.traces import Trace, TraceEnd, Traces
from perfeds2.timeline.energy import energy_of
from perfeds2.timeline.jobs import LOST, MERGED, OPEN
from perfeds2.timeline.protocol import Protocol
from perfeds2.timeline.record import Timeline
from perfeds2.timeline.simulate import play, start_clock
from perfeds2.timeline.state import RoundInfo

PROPERTY = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def drawn_fleet(
    n: int, seed: int, *, own: bool, traced: bool, hours: bool, keeps: bool, end: TraceEnd = "repeat"
) -> Fleet:
    """Some of everything: UEs with their own uplinks, traces with gaps, hours with and without a period."""
    rng = np.random.default_rng([seed, 77])
    rate, kind = np.full(n, np.nan), rng.integers(0, 3, n)
    if own:
        rate[kind == 1] = rng.uniform(2e5, 5e6, (kind == 1).sum())
    ues = np.flatnonzero(kind == 2).tolist() if traced else []
    traces = []
    for _ in ues:
        times = np.cumsum(np.append(0.0, rng.uniform(0.01, 0.3, rng.integers(0, 6))))
        bps = rng.uniform(1e5, 5e6, times.size) * (rng.random(times.size) < 0.8)
        bps[-1] = bps[-1] or rng.uniform(1e5, 2e5)  # or two would end in a tie but for rounding
        traces.append(Trace(times, bps))
    presence = None
    if hours:
        presence = Availability([_hours(rng) for _ in range(n)], keeps)
    return Fleet(np.full(n, np.nan), rate, Traces(ues, traces, end) if ues else None, presence)


def _hours(rng: np.random.Generator) -> Hours:
    if rng.random() < 0.3:
        return Hours()
    borders = np.cumsum(rng.uniform(0.05, 0.6, 2 * rng.integers(1, 4))) - 0.05 * (rng.random() < 0.5)
    borders = np.maximum(borders, 0.0)
    if rng.random() < 0.5:
        borders[0] = 0.0
    intervals = tuple(zip(borders[::2].tolist(), borders[1::2].tolist(), strict=True))
    if rng.random() < 0.2:
        return Hours((*intervals[:-1], (intervals[-1][0], math.inf)))
    return Hours(intervals, float(borders[-1] + rng.uniform(0.05, 0.5)))


@dataclass(frozen=True)
class Drawn:
    """What a run on a fleet is made of. (Made outside of strategies: type checks of lists draw lots.)"""

    run: Run
    has: dict[str, bool]
    seed: int
    end: TraceEnd
    coherence_s: float | None

    def make(self) -> Run:
        fleet = drawn_fleet(self.run.cell.ues, self.seed, **self.has, end=self.end)
        return replace(
            self.run, cell=replace(self.run.cell, fleet=fleet, coherence_s=self.coherence_s), payload_bits=1e4
        )


@st.composite
def fleet_runs(draw: st.DrawFn, hours: bool | None = None) -> Drawn:
    run = draw(runs(max_ues=10, scheduled=False))
    has = {name: draw(st.booleans(), label=name) for name in ("own", "traced", "keeps")}
    has["hours"] = draw(st.booleans(), label="hours") if hours is None else hours
    coherence_s = draw(st.one_of(st.none(), st.floats(0.02, 0.5)), label="coherence")
    return Drawn(run, has, draw(st.integers(0, 2**32 - 1)), draw(st.sampled_from(["repeat", "hold"])), coherence_s)


def closes(run: Run, rounds: int) -> int:
    """How many of the rounds close within a while: who is never there long enough starves a round."""
    setting, limits = run.setting, {"rounds": rounds, "horizon_s": 60.0}
    try:
        return play(start_clock(setting), **limits).rounds
    except ValueError as error:
        if "never closes" not in str(error):
            raise
        return 0


@pytest.mark.slow
@given(fleet_runs(), st.integers(1, 12))
@PROPERTY
def test_simulate_agrees_with_processes_on_fleets(drawn: Drawn, rounds: int):
    run = drawn.make()
    assert_agrees(run, closes(run, rounds))


@pytest.mark.slow
@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("stale", STALE)
def test_simulate_agrees_with_processes_on_a_mixed_fleet(stale, keeps):
    policy = {"restart": "equal_share", "wait": "proportional_fair", "ignore": "max_throughput"}[stale]
    cell = Cell.draw(12, seed=4, coherence_s=0.07)
    cell = replace(cell, fleet=drawn_fleet(12, 3, own=True, traced=True, hours=True, keeps=keeps))
    run = Run(cell, Protocol(3, 2, stale), 1e5, 100.0, POLICIES[policy], None)  # type: ignore[arg-type]  # none of the three is a family
    assert closes(run, 25) == 25
    assert_agrees(run, 25)


@pytest.mark.slow
@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("rests", [False, True])
def test_simulate_agrees_with_processes_on_a_plan_of_those_who_come_and_go(rests, keeps):
    cell = Cell.draw(9, seed=3)
    cell = replace(cell, fleet=drawn_fleet(9, 5, own=True, traced=True, hours=True, keeps=keeps))
    run = Run(cell, Protocol(3, rests=rests), 1e4, 100.0, equal_share, round_robin(9, 3, 0))
    rounds = closes(run, 20)
    assert rounds > 10
    assert_agrees(run, rounds)


def test_simulate_agrees_with_processes_where_tiers_fill_up_with_those_who_are_there():
    cell = Cell.draw(9, seed=3)
    cell = replace(cell, fleet=drawn_fleet(9, 5, own=True, traced=True, hours=True, keeps=False))
    schedule = AllTiers(Tiers((0, 1, 2) * 3), 2, 0)
    run = Run(cell, Protocol(2, rests=True), 1e4, 100.0, equal_share, schedule)
    rounds = closes(run, 25)
    assert rounds > 10
    assert_agrees(run, rounds)


def test_simulate_agrees_with_processes_where_the_schedule_knows_who_is_there():
    def nearest_of_those_here(moment):
        return np.sort(np.lexsort((-moment.signal_hz, ~moment.present))[: moment.quorum])

    cell = Cell.draw(9, seed=3)
    cell = replace(cell, fleet=drawn_fleet(9, 8, own=True, traced=True, hours=True, keeps=True))
    run = Run(cell, Protocol(2, rests=True), 1e4, 100.0, equal_share, nearest_of_those_here)
    assert_agrees(run, closes(run, 20))


@given(fleet_runs(), st.integers(0, 10), st.data())
@PROPERTY
def test_a_prefix_of_a_fleets_timeline_is_the_shorter_simulation(drawn: Drawn, rounds: int, data: st.DataObject):
    run = drawn.make()
    rounds = closes(run, rounds)
    shorter = data.draw(st.integers(0, rounds))
    assert_same(run.simulate(rounds).prefix(shorter), run.simulate(shorter))


@pytest.mark.slow
@given(fleet_runs(), st.lists(st.integers(0, 4), min_size=1, max_size=4))
@PROPERTY
def test_chunks_of_a_fleets_rounds_make_the_whole(drawn: Drawn, chunks: list[int]):
    run = drawn.make()
    total = closes(run, sum(chunks))
    setting = run.setting
    clock, past = start_clock(setting), None
    for rounds in chunks:
        past = play(clock, rounds=min(rounds, total - clock.server.round))
    assert past is not None
    assert_same(past, run.simulate(total))


@pytest.mark.slow
@given(fleet_runs(hours=True), st.integers(1, 12))
@PROPERTY
def test_no_ue_works_outside_of_its_hours(drawn: Drawn, rounds: int):
    run = drawn.make()
    line = run.simulate(closes(run, rounds))
    jobs, presence = line.jobs(), run.cell.fleet.presence
    assert isinstance(presence, Availability)
    for ue, start_s, over_s in zip(jobs.ue, jobs.start_s, jobs.arrival_s, strict=True):
        assert stays(presence.hours[ue], start_s, over_s), (ue, start_s, over_s)
    for ue in range(line.population):
        now = 0.0
        for state, since_s, until_s in line.activity(ue):
            assert since_s == pytest.approx(now)
            now = until_s
            if state in ("computing", "sending"):
                assert stays(presence.hours[ue], since_s, until_s)
        assert now == pytest.approx(line.end_s)
    seconds = line.seconds()
    assert sum(seconds.values()) == pytest.approx(line.population * line.end_s)


def stays(hours: Hours, since_s: float, until_s: float, slack: float = 1e-9) -> bool:
    """Whether a UE is there all the time between two seconds, by going through its intervals one after the other."""
    if until_s <= since_s + slack:
        return True
    period = 0.0
    while period <= until_s:
        merged: list[list[float]] = []
        for start_s, end_s in hours.intervals:
            if merged and merged[-1][1] == start_s:
                merged[-1][1] = end_s
            else:
                merged.append([start_s, end_s])
        if any(period + a - slack <= since_s and until_s <= period + b + slack for a, b in merged):
            return True
        period += hours.period_s
    return False


@given(fleet_runs(), st.integers(1, 12))
@PROPERTY
def test_the_jobs_of_a_fleet_are_computed_whole_and_each_ends_once(drawn: Drawn, rounds: int):
    run = drawn.make()
    rounds = closes(run, rounds)
    infos: list[RoundInfo] = []
    line = run.simulate(rounds, watch=infos.append)
    jobs, keeps = line.jobs(), run.cell.fleet.presence is not None and run.cell.fleet.presence.keeps
    computed: dict[tuple[int, int], float] = {}
    for ue, version, start_s, sending_s in zip(jobs.ue, jobs.version, jobs.start_s, jobs.sending_s, strict=True):
        computed[ue, version] = computed.get((ue, version), 0.0) + sending_s - start_s
    for ue, version in zip(line.ues.ravel(), line.versions.ravel(), strict=True):
        if keeps or run.cell.fleet.presence is None:
            assert computed[ue, version] == pytest.approx(line.compute_s[ue], abs=1e-9)
    last = jobs.outcome[jobs.round >= 0]
    assert (last == MERGED).sum() == line.ues.size
    assert (last == LOST).sum() == line.lost
    assert (last == OPEN).sum() == (line.open_version >= 0).sum()


@given(fleet_runs(hours=False), st.integers(1, 12))
@PROPERTY
def test_the_bits_of_every_merged_job_of_a_fleet_add_up_to_the_payload(drawn: Drawn, rounds: int):
    run = drawn.make()
    run = replace(run, cell=replace(run.cell, coherence_s=None))
    infos: list[RoundInfo] = []
    line = run.simulate(rounds, watch=infos.append)
    fleet, sent = run.cell.fleet, dict[tuple[int, int], float]()
    traced = [] if fleet.traces is None else fleet.traces.ues.tolist()
    for info in infos:
        for ue in np.flatnonzero(info.versions >= 0).tolist():
            version = int(info.versions[ue])
            ready_s = line.start_s[version] + line.compute_s[ue]
            since_s, until_s = max(info.start_s, ready_s), min(info.arrival_s[ue], info.closing.time_s)
            if ue in traced:
                bits = carried(fleet.traces.traces[traced.index(ue)], fleet.traces.end, since_s, until_s)
            else:
                bits = info.rate_bps[ue] * max(until_s - since_s, 0.0)
            sent[ue, version] = sent.get((ue, version), 0.0) + bits
    for ue, version in zip(line.ues.ravel().tolist(), line.versions.ravel().tolist(), strict=True):
        assert sent[ue, version] == pytest.approx(run.payload_bits, rel=1e-9)
    assert all(bits <= run.payload_bits * (1 + 1e-9) for bits in sent.values())


def carried(trace: Trace, end: str, since_s: float, until_s: float) -> float:
    """A trace's bits between two seconds, step by step."""
    bits, start_s = 0.0, 0.0
    while start_s < until_s:
        ends = [*trace.time_s[1:], trace.lasts_s if end == "repeat" else math.inf]
        for at_s, to_s, bps in zip(trace.time_s, ends, trace.bps, strict=True):
            bits += bps * max(min(start_s + to_s, until_s) - max(start_s + at_s, since_s), 0.0)
        start_s += trace.lasts_s if end == "repeat" else math.inf
    return bits


def test_a_trace_by_hand():
    # 1 kbit/s for 10 s, nothing for 10 s, again and again: 15 kbit from second 0 are there at 25 s.
    cell = Cell(np.ones(1), np.ones(1), cycles_per_sample=0.0)
    trace = Trace(np.array([0.0, 10.0]), np.array([1000.0, 0.0]))
    cell = replace(cell, fleet=Fleet(np.full(1, np.nan), np.full(1, np.nan), Traces([0], [trace])))
    line = Run(cell, Protocol(1), 15_000.0, 1.0, equal_share, None).simulate(3)
    assert line.time_s.tolist() == pytest.approx([25.0, 50.0, 85.0])


@pytest.mark.parametrize("keeps", [True, False])
def test_leaving_by_hand(keeps):
    # Jobs of 6 s: 2 s of computing, 4 s of sending. There from 0 to 5 s, then from 12 s on.
    cell = Cell(np.ones(1), np.ones(1), cycles_per_sample=1.0)
    fleet = Fleet(
        np.full(1, np.nan), np.full(1, 250.0), None, Availability([Hours(((0.0, 5.0), (12.0, math.inf)))], keeps)
    )
    run = Run(replace(cell, fleet=fleet), Protocol(1), 1000.0, 2.0, equal_share, None)
    line = run.simulate(1)
    if keeps:  # a second of sending is left
        assert line.time_s.tolist() == [13.0]
        assert [state for state, *_ in line.activity(0)] == ["computing", "sending", "idle", "sending"]
        assert {each.name: list(each.x) for each in line.activity_chart(13.0, 1).series} == {"merged": [13.0]}
    else:  # it starts over with the newest model, which is still w_0
        assert line.time_s.tolist() == [18.0]
        assert (line.lost, line.rows(LOST).version.tolist()) == (1, [0])
        assert line.activity(0) == [
            ("computing", 0.0, 2.0),
            ("sending", 2.0, 5.0),
            ("idle", 5.0, 12.0),
            ("computing", 12.0, 14.0),
            ("sending", 14.0, 18.0),
        ]


def test_who_is_away_is_handed_the_newest_model_when_it_comes():
    cell = Cell(np.ones(2), np.ones(2), cycles_per_sample=1.0)
    hours = Availability([Hours(), Hours(((7.0, math.inf),))])
    cell = replace(cell, fleet=Fleet(np.full(2, np.nan), np.full(2, 1000.0), None, hours))
    line = Run(cell, Protocol(1), 1000.0, 2.0, equal_share, None).simulate(4)
    # UE 0 every 3 s; UE 1 comes at 7 s, in round 2, which UE 0 closes at 9 s; UE 1's update is there at 10 s.
    assert line.time_s.tolist() == [3.0, 6.0, 9.0, 10.0]
    assert line.ues.ravel().tolist() == [0, 0, 0, 1]
    assert line.staleness.ravel().tolist() == [0, 0, 0, 1]


def test_a_round_that_waits_for_a_ue_that_has_left_for_good_says_so():
    cell = Cell(np.ones(2), np.ones(2), cycles_per_sample=1.0)
    hours = Availability([Hours(), Hours(((0.0, 1.0),))])
    cell = replace(cell, fleet=Fleet(np.full(2, np.nan), np.full(2, 1000.0), None, hours))
    with pytest.raises(ValueError, match="round 0 never closes: UE 1 has left for good"):
        Run(cell, Protocol(2), 1000.0, 2.0, equal_share, None).simulate(1)


def test_a_round_may_see_more_fades_than_times_that_ues_come_or_go(monkeypatch):
    monkeypatch.setattr("perfeds2.timeline.clock.MAX_CHANGES", 10)
    cell = Cell(np.ones(2), np.ones(2), cycles_per_sample=1.0, coherence_s=0.1)
    hours = Availability([Hours(), Hours(((0.0, 1.0), (5.0, math.inf)))], keeps=True)
    fleet = Fleet(np.full(2, np.nan), np.full(2, np.nan), None, hours)
    line = Run(replace(cell, fleet=fleet), Protocol(2), 1000.0, 8.0, equal_share, None).simulate(1)
    assert line.time_s[0] == pytest.approx(12.0, abs=0.01)  # 8 s of computing and 4 s away: 120 fades, two changes
    never = replace(fleet, presence=Availability([Hours(), Hours(((0.0, 1.0),))]))
    with pytest.raises(ValueError, match="round 0 never closes: UE 1 has left for good"):
        Run(replace(cell, fleet=never), Protocol(2), 1000.0, 8.0, equal_share, None).simulate(1)
    often = replace(fleet, presence=Availability([Hours(), Hours(((0.0, 1.0),), 2.0)]))
    with pytest.raises(ValueError, match="has not closed after 10 times that UEs came or went"):
        Run(replace(cell, fleet=often), Protocol(2), 1000.0, 8.0, equal_share, None).simulate(1)


def test_a_round_closes_no_earlier_than_the_leaving_that_lets_it():
    cell = Cell(np.ones(3), np.array([1.0, 1.0, 0.1]), cycles_per_sample=1.0)
    hours = Availability([Hours(), Hours(), Hours(((0.0, 9.0), (100.0, math.inf)))])
    cell = replace(cell, fleet=Fleet(np.full(3, np.nan), np.full(3, 1000.0), None, hours))
    run = Run(cell, Protocol(1, 2, "wait"), 1000.0, 2.0, equal_share, None)
    line = run.simulate(4)
    # UEs 0 and 1 are there after 3 s, and again after 6 s; UE 2 would take 21 s and is due in round 2, which waits for it
    # until it leaves at 9 s.
    assert line.time_s.tolist() == [3.0, 3.0, 9.0, 9.0]
    assert_agrees(run, 4)


def test_a_prefix_where_two_rounds_close_at_once():
    cell = Cell(np.ones(3), np.array([1.0, 1.0, 0.1]), cycles_per_sample=1.0)
    hours = Availability([Hours(), Hours(), Hours(((0.0, 9.0), (100.0, math.inf)))])
    cell = replace(cell, fleet=Fleet(np.full(3, np.nan), np.full(3, 1000.0), None, hours))
    run = Run(cell, Protocol(1, 2, "wait"), 1000.0, 2.0, equal_share, None)
    whole = run.simulate(5)
    assert (np.diff(whole.time_s) == 0).any()
    for rounds in range(6):
        assert_same(whole.prefix(rounds), run.simulate(rounds))


@pytest.mark.parametrize("keeps", [False, True])
def test_the_joules_of_a_fleet_are_those_of_the_seconds_it_worked(keeps):
    cell = replace(Cell.draw(8, seed=2), fleet=drawn_fleet(8, 3, own=True, traced=True, hours=True, keeps=keeps))
    line = Run(cell, Protocol(2, 3), 1e4, 100.0, equal_share, None).simulate(20)
    spent = energy_of(line, cell, EnergyModel(1e-28), 1e4, np.array([0.0, line.end_s]))
    for ue in range(8):
        seconds = {"computing": 0.0, "sending": 0.0}
        for state, since_s, until_s in line.activity(ue):
            if state in seconds:
                seconds[state] += until_s - since_s
        assert spent.computing_j[ue] == pytest.approx(1e-28 * cell.cpu_hz[ue] ** 3 * seconds["computing"])
        assert spent.sending_j[ue] == pytest.approx(0.01 * seconds["sending"])
    np.testing.assert_allclose(spent.by_time_j, [0.0, spent.total_j], atol=1e-12)


def test_a_fleets_timeline_is_read_back_and_a_broken_one_refused(tmp_path):
    cell = replace(Cell.draw(8, seed=2), fleet=drawn_fleet(8, 3, own=True, traced=True, hours=True, keeps=True))
    line = Run(cell, Protocol(2, 3), 1e4, 100.0, equal_share, None).simulate(20)
    line.save(tmp_path / "line.npz")
    assert_same(Timeline.load(tmp_path / "line.npz"), line)
    good: dict[str, Any] = line.columns
    for name, wrong, told in [
        ("log_ue", good["log_ue"] + 8, "whole numbers from 0 to 7"),
        ("log_outcome", good["log_outcome"] + 4, "whole numbers from 0 to 3"),
        ("log_end_s", good["log_end_s"] - 1e3, "do not run backwards"),
        ("log_start_s", good["log_start_s"] * np.nan, "finite seconds"),
        ("log_round", good["log_round"][1:], "columns of one length"),
    ]:
        np.savez(tmp_path / "bad.npz", **(good | {name: wrong}))
        config.update("jaxtyping_disable", True)
        try:
            with pytest.raises(ValueError, match=told):
                Timeline.load(tmp_path / "bad.npz")
        finally:
            config.update("jaxtyping_disable", False)
    del good["log_round"]
    np.savez(tmp_path / "bad.npz", **good)
    with pytest.raises(ValueError, match="it lacks"):
        Timeline.load(tmp_path / "bad.npz")
