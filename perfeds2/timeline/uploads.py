"""Compute rates, and let UEs compute and send until a time."""

import math

import numpy as np
from jaxtyping import Float

from perfeds2.allocation.bandwidth import Mask
from perfeds2.network.blocks import each_block
from perfeds2.network.link import Limit, PerUe, rate_bps
from perfeds2.timeline.state import ClockState, Work

MIN_LEFT = np.finfo(float).eps  # fraction of the payload that a job keeps until it has arrived


def send(state: ClockState, band_hz: PerUe, signal_hz: PerUe, idle_s: PerUe, limit: Limit) -> None:
    """Compute all rates and when uploads are sent; ``idle_s`` holds the times of UEs without one."""
    state.rate_bps, state.sent_s = np.empty_like(state.bits), np.empty_like(state.bits)

    def fill(at: slice) -> None:
        """Fill in the rates and times of one block of UEs on the shared band."""
        state.rate_bps[at] = bits_per_s = rate_bps(band_hz[at], signal_hz[at], limit)
        bits, sent_s = state.bits[at], state.sent_s[at]
        with np.errstate(divide="ignore", invalid="ignore"):  # a rate of 0 gives infinity; 0/0 is overwritten below
            np.divide(bits, bits_per_s, out=sent_s)
        sent_s += state.time_s + state.compute_s[at]
        # An unfinished job arrives after the current time, even if rounding has left it almost no bits.
        np.maximum(sent_s, math.nextafter(state.time_s, math.inf), out=sent_s)
        np.copyto(sent_s, idle_s[at], where=bits == 0)

    each_block(state.bits.size, fill)
    if state.present is not None or _have_own_uplinks(state):
        _send_apart(state)


def _have_own_uplinks(state: ClockState) -> bool:
    fleet = state.cells[0].cell.fleet
    return fleet is not None and not fleet.all_share_band


def _send_apart(state: ClockState) -> None:
    """Compute rates and times of the UEs with uplinks of their own, and of absent UEs."""
    fleet, open_ = state.cells[0].cell.fleet, state.bits > 0
    assert fleet is not None
    if not fleet.all_share_band:
        assert state.rate_factor is not None
        apart = ~fleet.shares_band
        state.rate_bps[apart] = fleet.own_bps[apart] * state.rate_factor[apart]
        apart &= open_
        state.sent_s[apart] = state.time_s + state.compute_s[apart] + state.bits[apart] / state.rate_bps[apart]
        if fleet.traces is not None:
            traced = fleet.traces.ues
            state.rate_bps[traced] = fleet.traces.rate_bps(state.time_s)
            done_s = fleet.traces.done_s(state.time_s + state.compute_s[traced], state.bits[traced])
            state.sent_s[traced] = np.where(open_[traced], done_s, state.sent_s[traced])
        state.sent_s[apart] = np.maximum(state.sent_s[apart], math.nextafter(state.time_s, math.inf))
    if state.present is not None:
        state.sent_s[~state.present & open_] = np.inf


def rises(state: ClockState, signals_hz: Float[np.ndarray, "E n"], has_band: Mask) -> Float[np.ndarray, " E"]:
    """Return the interference at each base station relative to the noise: uploads in co-channel cells."""
    if state.network is None or state.network.co_channel is None:
        return np.zeros(len(state.cells))
    sends = has_band & (state.bits > 0) & (state.compute_s == 0)
    if state.present is not None:
        sends &= state.present
    if _have_own_uplinks(state):
        fleet = state.cells[0].cell.fleet
        assert fleet is not None
        sends &= fleet.shares_band
    band_hz = np.array([cell.cell.band_hz(state.time_s) for cell in state.cells])[state.serving]
    return (signals_hz / band_hz * (sends & state.network.co_channel[:, state.serving])).sum(axis=1)


def advance(state: ClockState, now_s: float) -> None:
    """Let UEs compute and send until a time."""
    before, server = state.bits, state.servers[0]
    least_bits = MIN_LEFT * server.conditions.full_bits
    compute_s = state.compute_s - (now_s - state.time_s)
    bits = np.minimum(compute_s, 0.0)
    bits *= state.rate_bps  # negative: the bits sent on the shared band
    bits += before
    np.maximum(bits, least_bits, out=bits)
    np.maximum(compute_s, 0.0, out=compute_s)
    if state.network is not None or server.conditions.reshare == "events":
        compute_s[state.time_s + state.compute_s <= now_s] = 0.0  # starts are events: drop what rounding leaves
    if state.present is not None or _have_own_uplinks(state):
        _keep_apart(state, now_s, compute_s, bits, least_bits)
    np.copyto(bits, 0.0, where=before == 0)
    (sent,) = (state.sent_s <= now_s).nonzero()
    compute_s[sent] = bits[sent] = 0.0
    if state.network is None:
        server.arrived_s = server.sent_s = server.arrived_s.copy()
        server.arrived_s[sent] = state.sent_s[sent]
    else:
        for server in state.servers:
            mine = sent[server.busy[sent]]
            server.arrived_s, server.sent_s = server.arrived_s.copy(), server.sent_s.copy()
            server.arrived_s[mine], server.sent_s[mine] = server.arrival_s[mine], state.sent_s[mine]
            server.sent_to = server.sent_to.copy()
            server.sent_to[mine] = state.serving[mine]
    if state.spent_j is not None:
        _spend(state, Work(state.time_s, state.compute_s, before), Work(now_s, compute_s, bits))
    state.time_s, state.compute_s, state.bits = now_s, compute_s, bits


def _keep_apart(state: ClockState, now_s: float, compute_s: PerUe, bits: PerUe, least_bits: PerUe) -> None:
    """Correct, in place, the work left to UEs with traces and to absent UEs."""
    fleet, open_ = state.cells[0].cell.fleet, state.bits > 0
    assert fleet is not None
    if fleet.traces is not None:
        traced = fleet.traces.ues
        ready_s = state.time_s + state.compute_s[traced]
        sent = fleet.traces.carried(ready_s, np.full(traced.size, now_s))
        left = np.maximum(state.bits[traced] - sent, least_bits[traced])
        bits[traced] = np.where(open_[traced], left, bits[traced])
    if state.present is not None:
        away = ~state.present & open_
        compute_s[away], bits[away] = state.compute_s[away], state.bits[away]


def _spend(state: ClockState, before: Work, after: Work) -> None:
    budget = state.servers[0].conditions.budget
    assert budget is not None
    assert state.spent_j is not None
    more_j = budget.spent(before, after, state.sent_s, state.job_s)
    state.spent_j = state.spent_j + (more_j if state.present is None else np.where(state.present, more_j, 0.0))
