"""Ask the schedule for the UEs of a round, and tell the bandwidth policy what it may know."""

import numpy as np

from perfeds2.allocation.bandwidth import Mask, Uplink
from perfeds2.allocation.schedulers import Moment
from perfeds2.timeline.protocol import IDLE
from perfeds2.timeline.state import ClockState, Station


def plan(state: ClockState, station: Station) -> None:
    """Ask the schedule for the UEs of the round that opens now, and check its answer."""
    conditions = station.conditions
    schedule, quorum, n = conditions.schedule, conditions.protocol.quorum, conditions.cell.ues
    if schedule is None:
        return
    round_ = station.server.round
    planned = np.asarray(schedule(_moment(state, station) if conditions.looks else round_))
    whole = planned.ndim in (1, 2) and planned.shape[-1] == quorum and planned.size
    whole = whole and np.issubdtype(planned.dtype, np.integer) and planned.min() >= 0 and planned.max() < n
    if not whole or np.unique(planned).size != planned.size:
        raise ValueError(
            f"the schedule plans {planned} for round {round_}; expected {quorum} different UEs from 0 to {n - 1}."
        )
    station.planned = planned


def _moment(state: ClockState, station: Station) -> Moment:
    conditions, server = station.conditions, station.server
    cell, rests = conditions.cell, server.versions == IDLE
    return Moment(
        server.round,
        state.time_s,
        conditions.protocol.quorum,
        cell.bandwidth_hz,
        station.signal_hz,
        np.where(rests, conditions.usual_s, state.compute_s),
        np.where(rests, conditions.payload_bits, state.bits),
        server.versions,
        server.merged_in,
        cell.cap_bits_per_s_hz,
        None if cell.fleet is None else cell.fleet.own_bps,
        station.present,
        None if conditions.feedback is None else conditions.feedback.copy(),
        link=cell.link,
    )


def uplink(state: ClockState, station: Station, present: Mask | None) -> Uplink:
    """Return what the policy sees: the present UEs that have no uplink of their own."""
    conditions, compute_s, bits, planned = station.conditions, state.compute_s, state.bits, None
    cell = conditions.cell
    if station.jobs is not None and cell.fleet is not None:
        served = cell.fleet.shares_band if present is None else present & cell.fleet.shares_band
        compute_s, bits = np.where(served, compute_s, 0.0), np.where(served, bits, 0.0)
    if station.planned is not None:
        planned = np.zeros(cell.ues, bool)
        planned[station.planned] = True
    rest = conditions.shares, planned, cell.cap_bits_per_s_hz, cell.link
    return Uplink(station.server.round, cell.bandwidth_hz, station.signal_hz, compute_s, bits, *rest)
