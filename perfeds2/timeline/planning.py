"""Ask the schedule for the UEs of a round, and tell the bandwidth policy what it may know."""

from dataclasses import replace

import numpy as np

from perfeds2.allocation.bandwidth import Uplink
from perfeds2.allocation.schedulers import Moment
from perfeds2.network.link import PerUe
from perfeds2.timeline.protocol import IDLE
from perfeds2.timeline.state import ClockState


def plan(state: ClockState, number: int) -> None:
    """Ask the schedule of a server for the UEs of the round that opens now, and check its answer."""
    server = state.servers[number]
    conditions = server.conditions
    schedule, quorum, n = conditions.schedule, conditions.protocol.quorum, conditions.cell.ues
    if schedule is None:
        return
    round_ = server.server.round
    planned = np.asarray(schedule(_moment(state, number) if conditions.needs_moment else round_))
    whole = planned.ndim in (1, 2) and planned.shape[-1] == quorum and planned.size
    whole = whole and np.issubdtype(planned.dtype, np.integer) and planned.min() >= 0 and planned.max() < n
    if not whole or np.unique(planned).size != planned.size:
        raise ValueError(
            f"the schedule plans {planned} for round {round_}; expected {quorum} different UEs from 0 to {n - 1}."
        )
    server.planned = planned


def _moment(state: ClockState, number: int) -> Moment:
    conditions, server, busy = (
        state.servers[number].conditions,
        state.servers[number].server,
        state.servers[number].busy,
    )
    cells, idle = [state.cells[place] for place in state.cells_of(number)], server.versions == IDLE
    cell, signals_hz = cells[0].cell, [_known_signal_hz(state, one) for one in state.cells_of(number)]
    signal_hz = signals_hz[0]
    if len(cells) > 1:
        signal_hz = np.stack(signals_hz)[state.serving, np.arange(idle.size)]
    bits = state.bits if state.luck is None else _of_one_transmission(state.bits, conditions.payload_bits)
    return Moment(
        server.round,
        state.time_s,
        conditions.protocol.quorum,
        sum(one.cell.band_hz(state.time_s) for one in cells),
        signal_hz,
        np.where(idle, conditions.usual_s, state.compute_s * busy),  # a sent UE may work for another edge
        np.where(idle, conditions.payload_bits, bits * busy),
        server.versions,
        server.merged_in,
        cell.cap_bits_per_s_hz,
        None if cell.fleet is None else cell.fleet.own_bps,
        state.in_reach(number),
        None if conditions.feedback is None else conditions.feedback.copy(),
        link=cell.link,
    )


def _known_signal_hz(state: ClockState, number: int) -> PerUe:
    """Return what the base station of a cell knows of the signals: those of an earlier block, times an error."""
    cell, signal_hz = state.cells[number].cell, state.cells[number].signal_hz
    round_ = state.server_of(number).server.round
    if cell.csi_delay:
        signal_hz = cell.channel.signal_in(max(cell.channel.block_at(round_, state.time_s) - cell.csi_delay, 0))
    if not cell.csi_error_db:
        return signal_hz
    return signal_hz * 10 ** (cell.csi_error_db / 10 * cell.channel.normal_at(round_, state.time_s))


def _of_one_transmission(bits: PerUe, payload_bits: PerUe | float) -> PerUe:
    """Return what is left of the current transmission: how many follow is not known yet."""
    return bits - payload_bits * np.maximum(np.ceil(bits / payload_bits) - 1, 0)


def uplink(state: ClockState, number: int) -> Uplink:
    """Return what the policy of a cell sees: the UEs that are present there and have no uplink of their own."""
    server, cell, present = state.server_of(number), state.cells[number].cell, state.in_cell(number)
    conditions, compute_s, bits, planned = server.conditions, state.compute_s, state.bits, None
    if server.planned is not None:
        planned = np.zeros(cell.ues, bool)
        planned[server.planned] = True
    if server.jobs is not None and cell.fleet is not None:
        served = cell.fleet.shares_band if present is None else present & cell.fleet.shares_band
        compute_s, bits = np.where(served, compute_s, 0.0), np.where(served, bits, 0.0)
    if conditions.reshare == "events":  # only those that send now; others, if no planned UE does
        bits = np.where(compute_s == 0, bits, 0.0)
        compute_s = np.zeros_like(compute_s)
        planned = None if planned is None or not (planned & (bits > 0)).any() else planned
    signal_hz = _known_signal_hz(state, number)
    if state.luck is not None:
        bits = _of_one_transmission(bits, conditions.payload_bits)
    known, rules = (signal_hz, compute_s, bits, conditions.shares, planned), (cell.cap_bits_per_s_hz, cell.link)
    asked = Uplink(server.server.round, cell.band_hz(state.time_s), *known, *rules)
    if state.chosen is None:
        return asked
    assert state.job_s is not None
    cycles = np.where(state.chosen.starts & (bits > 0), state.job_s * cell.cpu_hz, 0.0)
    elapsed_s = max(state.time_s - server.begun_s, 0.0)
    return replace(asked, cycles=cycles, cpu_hz=cell.cpu_hz, power_w=cell.sent_power_w, elapsed_s=elapsed_s)
