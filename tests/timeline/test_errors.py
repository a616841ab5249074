"""Uploads with errors are discarded or sent again, as SimPy processes do it, and the report adds up."""

import math
from typing import Any

import numpy as np
import pytest
from twin import play_with_processes
from twin_inputs import Radio, RoundRules

from perfeds2.allocation.bandwidth import equal_finish, equal_share
from perfeds2.allocation.schedule import round_robin
from perfeds2.network.cell import Cell
from perfeds2.network.cells import make_cells
from perfeds2.network.energy import ENERGY
from perfeds2.network.errors import MAX_SENT, STREAM, Errors
from perfeds2.network.radios import RADIOS
from perfeds2.network.sites import Sites
from perfeds2.timeline.cells import simulate_cells
from perfeds2.timeline.energy import energy_of, failures_of
from perfeds2.timeline.jobs import LOST, MERGED
from perfeds2.timeline.protocol import Protocol
from perfeds2.timeline.record import Timeline
from perfeds2.timeline.simulate import conditions_of, play, simulate, start_clock

BITS, SAMPLES, UES = 1e5, 100.0, 9
LOAD: dict[str, Any] = {"payload_bits": BITS, "samples": SAMPLES}


def tries_by_hand(errors: Errors, snr: float, luck: float) -> tuple[int, bool]:
    """Count transmissions one by one, from the definition of q."""
    margin, sent, all_failed = 10 ** (errors.margin_db / 10), 0, 1.0
    while True:
        sent += 1
        ratio = snr * sent if errors.rule == "harq" else snr
        all_failed *= 1 - math.exp(-margin / ratio)
        if luck >= all_failed or sent == MAX_SENT:
            return sent, False
        if errors.rule == "discard":
            return sent, True


@pytest.mark.parametrize("rule", ["discard", "repeat", "harq"])
def test_transmissions_are_those_counted_one_by_one(rule):
    rng = np.random.default_rng(0)
    errors = Errors(rule, 3.0)
    snr, luck = 10 ** rng.uniform(-1.5, 3, 300), rng.random(300)
    sent, fails = errors.draw(snr, luck)
    expected = [tries_by_hand(errors, *each) for each in zip(snr, luck, strict=True)]
    assert list(zip(sent.tolist(), fails.tolist(), strict=True)) == expected
    assert (sent > 1).any() or rule == "discard"


@pytest.mark.parametrize("snr", [0.3, 3.0, 30.0])
def test_the_mean_number_of_transmissions_is_the_expected_one(snr):
    many, luck = np.full(200_000, snr), np.random.default_rng(1).random(200_000)
    failed = 1 - math.exp(-1 / snr)
    assert Errors("repeat", 0.0).draw(many, luck)[0].mean() == pytest.approx(
        (1 - failed**MAX_SENT) / (1 - failed), rel=1e-2
    )
    combined = np.cumprod([1 - math.exp(-1 / (j * snr)) for j in range(1, 60)])
    assert Errors("harq", 0.0).draw(many, luck)[0].mean() == pytest.approx(1 + combined.sum(), rel=2e-2)
    assert Errors("discard", 0.0).draw(many, luck)[1].mean() == pytest.approx(failed, rel=2e-2)


def cell_of(rule: str, seed: int = 3, coherence_s: float | None = None) -> Cell:
    more = {"radio": RADIOS["umi"], "power_w": 0.2, "radius_m": 300.0, "bandwidth_hz": 5e6}
    return Cell.draw(UES, seed, coherence_s=coherence_s, errors=Errors(rule, 5.0), **more)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["discard", "repeat", "harq"])
@pytest.mark.parametrize("stale", ["restart", "wait", "ignore"])
@pytest.mark.parametrize(("coherence_s", "planned"), [(None, False), (0.05, True)])
def test_simulate_agrees_with_processes_that_send_again(rule, stale, coherence_s, planned):
    cell, quorum, rounds = cell_of(rule, coherence_s=coherence_s), 3, 15
    policy, plan = (equal_finish, round_robin(cell, quorum)) if planned else (equal_share, None)

    def tries(phone: int, version: int, attempt: int, gains: np.ndarray) -> tuple[int, bool]:
        luck = np.random.default_rng([cell.seed, STREAM, version, attempt]).random(UES)[phone]
        assert cell.errors is not None
        return tries_by_hand(cell.errors, float(gains[phone]) * UES / cell.bandwidth_hz, float(luck))

    cap = cell.cap_bits_per_s_hz or math.inf
    radio = Radio(cell.channel.signal_hz, cell.bandwidth_hz, policy, cap, coherence_s or math.inf, tries=tries)
    rules = RoundRules(quorum, 4, stale, plan)
    history = play_with_processes(radio, rules, cell.compute_s(SAMPLES), BITS, rounds)
    timeline = simulate(cell, Protocol(quorum, 4, stale), bandwidth=policy, schedule=plan, rounds=rounds, **LOAD)
    assert [each.time_s for each in history] == pytest.approx(timeline.time_s.tolist(), rel=1e-9)
    for each, ues, staleness in zip(history, timeline.ues.tolist(), timeline.staleness.tolist(), strict=True):
        assert set(zip(each.ues, each.staleness, strict=True)) == set(zip(ues, staleness, strict=True))
    failures = failures_of(timeline, cell, ENERGY["yang"], BITS)
    assert failures is not None
    assert failures.failed > 0


def test_the_report_counts_what_was_sent_in_vain():
    for rule in ("discard", "repeat"):
        cell = cell_of(rule)
        timeline = simulate(cell, Protocol(3, 4), rounds=40, **LOAD)
        jobs, failures = timeline.jobs(), failures_of(timeline, cell, ENERGY["yang"], BITS)
        assert failures is not None
        assert timeline.tries is not None
        total_j = energy_of(timeline, cell, ENERGY["yang"], BITS, np.zeros(0)).total_j
        assert 0 < failures.joules < total_j
        failed, joules = 0, 0.0
        for ue, start_s, sending_s, arrival_s, end_s, outcome in zip(
            jobs.ue, jobs.start_s, jobs.sending_s, jobs.arrival_s, jobs.end_s, jobs.outcome, strict=True
        ):
            rows = np.flatnonzero((timeline.tries.ue == ue) & (timeline.tries.from_s == start_s))
            if not rows.size:  # it began when the timeline ended
                continue
            (row,) = rows
            sending_j = float(cell.power_w) * (arrival_s - sending_s)  # type: ignore[arg-type]
            if outcome == MERGED:
                failed += timeline.tries.sent[row] - 1
                joules += sending_j * (1 - 1 / timeline.tries.sent[row])
            if outcome == LOST and timeline.tries.fails[row] and end_s not in timeline.time_s:
                failed += 1
                joules += sending_j + 1e-28 * cell.cpu_hz[ue] ** 3 * (sending_s - start_s)
        assert failures.failed == failed
        assert failures.joules == pytest.approx(joules, rel=1e-9)


def test_discarding_keeps_weak_ues_from_being_merged():
    weakest = {}
    for rule in ("discard", "harq"):
        found = []
        for seed in range(4):
            cell = cell_of(rule, seed)
            failures = failures_of(simulate(cell, Protocol(3), rounds=100, **LOAD), cell, ENERGY["yang"], BITS)
            assert failures is not None
            found.append(failures.weakest_merges)
        weakest[rule] = np.mean(found)
    assert weakest["discard"] < weakest["harq"]


def test_errors_survive_files_cuts_chunks_and_edges(tmp_path):
    cell, protocol = cell_of("discard", coherence_s=0.05), Protocol(3, 4)
    whole, shorter = (simulate(cell, protocol, rounds=rounds, **LOAD) for rounds in (12, 5))
    whole.save(tmp_path / "timeline.npz")
    clock = start_clock(conditions_of(cell, protocol, BITS, SAMPLES))
    play(clock, rounds=5)
    both = play(clock, rounds=7)
    for one, other in ((whole, Timeline.load(tmp_path / "timeline.npz")), (whole.prefix(5), shorter), (whole, both)):
        assert one.columns.keys() == other.columns.keys()
        assert all(np.array_equal(column, other.columns[name]) for name, column in one.columns.items())
    drawn = Cell.draw(12, 1, radius_m=400.0, radio=RADIOS["umi"], errors=Errors("discard", 3.0))
    cells = make_cells(drawn, Sites.grid(2, 400.0), 400.0, backhaul_s=0.1)
    timeline = simulate_cells(cells, Protocol(2, 4), Protocol(1), rounds=20, **LOAD)
    assert timeline.tries is not None
    failures = failures_of(timeline, cells.whole, ENERGY["yang"], BITS)
    assert failures is not None
    assert failures.failed > 0


def test_perfect_links_change_nothing():
    plain = Cell.draw(UES, 1)
    with_errors = Cell.draw(UES, 1, errors=Errors("harq"))
    one, other = (simulate(cell, Protocol(3, 4), rounds=20, **LOAD) for cell in (plain, with_errors))
    assert np.array_equal(one.time_s, other.time_s)
    assert np.array_equal(one.ues, other.ues)
