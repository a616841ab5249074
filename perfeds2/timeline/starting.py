"""Start jobs: how long each computes, how often its upload is sent, and what the policy chooses for it."""

from dataclasses import replace

import numpy as np

from perfeds2.allocation.bandwidth import Allocation
from perfeds2.timeline.choices import Choices, Tries
from perfeds2.timeline.state import ClockState, Ues


def begin_jobs(state: ClockState, number: int, handed: Ues) -> Tries | None:
    """Start the jobs of UEs that have just received a model, and return how their uploads will go, if they have errors."""
    server = state.servers[number]
    conditions, fleet, cell = server.conditions, state.cells[0].cell.fleet, server.conditions.cell
    state.compute_s[handed] = conditions.compute_s[handed]
    state.bits[handed] = conditions.full_bits[handed]
    server.arrived_s[handed] = server.sent_s[handed] = np.inf
    tries = _draw_errors(state, number, handed) if state.luck is not None and handed.size else None
    if state.chosen is not None:
        state.chosen.starts[handed] = True
    if state.job_s is not None and state.rate_factor is not None:
        state.job_s, state.rate_factor = state.job_s.copy(), state.rate_factor.copy()
        state.job_s[handed] = conditions.compute_s[handed] - cell.downlink_s
        if fleet is not None and fleet.spread is not None:
            slower, faster = fleet.spread.factors(state.cells[0].cell.seed, server.server.round)
            state.job_s[handed] *= slower[handed]
            state.compute_s[handed] = state.job_s[handed] + cell.downlink_s
            state.rate_factor[handed] = faster[handed]
    if server.model_s is not None:
        server.model_s = server.model_s.copy()
        for place in state.cells_of(number):
            ues = handed if state.network is None else handed[state.serving[handed] == place]
            at, opened_s = state.cells[place], server.server.opened_s
            wait_s, at.free_s = at.cell.send_models(ues, state.time_s, max(at.free_s, opened_s))
            state.compute_s[ues] += wait_s
            server.model_s[ues] = state.time_s - server.closed_s + wait_s
    if server.jobs is not None:
        assert state.job_s is not None
        server.jobs = server.jobs.begin(handed, state.time_s, state.compute_s, state.job_s)
    return tries


def _draw_errors(state: ClockState, number: int, handed: Ues) -> Tries:
    """Draw how often uploads are sent, at the signals of now and equal parts of the bands, and return it."""
    luck, version, snr = state.luck, state.servers[number].server.round, np.full(handed.size, np.inf)
    errors, seed = state.cells[0].cell.errors, state.cells[0].cell.seed
    assert luck is not None
    assert errors is not None
    for place in state.cells_of(number):
        at, cell = state.cells[place], state.cells[place].cell
        inside = np.ones(state.bits.size, bool) if state.network is None else state.serving == place
        if cell.fleet is not None:
            inside = inside & cell.fleet.shares_band
        part_hz = cell.bandwidth_hz / max(np.count_nonzero(inside), 1)
        snr = np.where(inside[handed], at.signal_hz[handed] / part_hz, snr)
    luck.attempt[handed] = np.where(luck.version[handed] == version, luck.attempt[handed] + 1, 0)
    luck.version[handed] = version
    sent, fails = errors.draw(snr, errors.luck(seed, handed, version, luck.attempt[handed]))
    luck.fails[handed] = fails
    state.bits[handed] *= sent
    return Tries(handed, np.full(handed.size, state.time_s), sent, fails)


def choose(state: ClockState, number: int, allocation: Allocation) -> Choices:
    """Give jobs that begin now their frequency, and uploads their power; return what has changed."""
    cell, server = state.cells[number], state.server_of(number)
    shared, choice, job_s = cell.uplink, state.chosen, state.job_s
    assert shared is not None
    assert shared.cycles is not None
    assert choice is not None
    assert job_s is not None
    assert server.jobs is not None
    (begin,) = shared.cycles.nonzero()
    speed, served, power = choice.speed.copy(), state.in_cell(number), choice.power
    speed[begin] = np.minimum(allocation.cpu_hz / cell.cell.cpu_hz, 1.0)[begin]
    given = np.where(allocation.bandwidth_hz > 0, np.minimum(allocation.power_w / cell.cell.sent_power_w, 1.0), 0.0)
    if cell.cell.fleet is not None:
        given[~cell.cell.fleet.shares_band] = 1.0
    power = given if served is None else np.where(served, given, power)
    longer_s = job_s[begin] * (1 / speed[begin] - 1)
    state.job_s, state.compute_s = job_s.copy(), state.compute_s.copy()
    state.job_s[begin] += longer_s
    state.compute_s[begin] += longer_s
    server.jobs = server.jobs.begin(begin, state.time_s, state.compute_s, state.job_s)
    changed = np.union1d(begin, np.flatnonzero(power != choice.power))
    state.chosen = replace(choice, speed=speed, power=power)
    return Choices(changed, np.full(changed.size, state.time_s), speed[changed], power[changed])
