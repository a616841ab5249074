"""Simulate rounds: validate the inputs and choose a clock (NumPy or the compiled loops)."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from perfeds2.allocation.bandwidth import Policy, chooses_more, equal_share
from perfeds2.network.cell import Cell
from perfeds2.network.link import PerUe
from perfeds2.timeline.clock import Clock
from perfeds2.timeline.fast.play import Tell, find_crowd, play_crowd, play_fast, supports
from perfeds2.timeline.protocol import Protocol
from perfeds2.timeline.record import Timeline
from perfeds2.timeline.sources import EventSource
from perfeds2.timeline.state import FOREVER, Budget, Conditions, Network, Reshare, RoundInfo, Schedule


def simulate(
    cell: Cell,
    protocol: Protocol,
    *,
    payload_bits: float | PerUe,
    samples: float | PerUe,
    rounds: int | None = None,
    horizon_s: float | None = None,
    bandwidth: Policy = equal_share,
    schedule: Schedule | None = None,
    shares: PerUe | None = None,
    budget: Budget | None = None,
    network: Network | None = None,
    reshare: Reshare = "round",
    events: Sequence[EventSource] = (),
    watch: Callable[[RoundInfo], None] | None = None,
    tell: Tell | None = None,
) -> Timeline:
    """Simulate the protocol on a cell for a number of rounds, until a time, or until the first of the two.

    Args:
        cell: The UEs and their radio.
        protocol: When a round closes and which UEs get the new model.
        payload_bits: Size of one upload in bits, or one number for each UE, shape (n,).
        samples: Samples that one job computes on, or one number for each UE, shape (n,).
        rounds: Stop after this many rounds.
        horizon_s: Stop at this simulated time, in seconds.
        bandwidth: Policy that shares the band.
        schedule: The UEs that each round closes on; None for the first arrivals.
        shares: Participation target of each UE, shape (n,); None for equal targets.
        network: The cells of a server that has several; None for one.
        reshare: When the policy shares the band: "round", when a round opens or a UE leaves or returns, or "events", also
            whenever a UE starts or stops sending or the fading is redrawn.
        events: Further sources of events, for example a processor that slows down. Uses the NumPy clock.
        budget: Energy of the UEs. The timeline ends early when fewer than A UEs have energy left.
        watch: Called with the full record of every round. Uses the NumPy clock.
        tell: Called with the number of closed rounds and the simulated time.

    Returns:
        The timeline. Both clocks give the same one, bit for bit.

    Raises:
        ValueError: If an argument is out of range, the arguments do not fit together, or a round can never close.

    Example:
        >>> from perfeds2 import Cell, Protocol, simulate
        >>> timeline = simulate(Cell.draw(4, seed=0), Protocol(2, 3), payload_bits=77_120, samples=120, rounds=5)
        >>> timeline.ues.shape
        (5, 2)
    """
    check_length(rounds, horizon_s)
    conditions = conditions_of(
        cell, protocol, payload_bits, samples, bandwidth, schedule, shares, budget, network, reshare, events
    )
    crowd = find_crowd(conditions) if watch is None and supports(conditions) else None
    timeline = None if crowd is None else play_crowd(conditions, crowd, rounds, horizon_s, tell)
    if timeline is not None:
        return timeline
    return play(start_clock(conditions), rounds=rounds, horizon_s=horizon_s, watch=watch, tell=tell)


def check_length(rounds: int | None, horizon_s: float | None) -> None:
    """Raise ValueError unless these say when a simulation ends."""
    if rounds is None and horizon_s is None:
        raise ValueError("simulate needs rounds or horizon_s, got neither.")
    if rounds is not None and rounds < 0:
        raise ValueError(f"rounds must be at least 0, got {rounds}.")
    if horizon_s is not None and not (horizon_s >= 0 and (math.isfinite(horizon_s) or rounds is not None)):
        raise ValueError(f"horizon_s must be a finite number of seconds from 0, got {horizon_s}.")


def conditions_of(
    cell: Cell,
    protocol: Protocol,
    payload_bits: float | PerUe,
    samples: float | PerUe,
    bandwidth: Policy = equal_share,
    schedule: Schedule | None = None,
    shares: PerUe | None = None,
    budget: Budget | None = None,
    network: Network | None = None,
    reshare: Reshare = "round",
    events: Sequence[EventSource] = (),
) -> Conditions:
    """Check the arguments of ``simulate`` that stay the same from round to round, and return them."""
    if not (np.isfinite(samples).all() and np.all(np.asarray(samples) >= 0)):
        raise ValueError(f"samples must be finite and at least 0, got {samples}.")
    bits = np.asarray(payload_bits, float)
    if not (np.isfinite(bits).all() and (bits > 0).all()):
        raise ValueError(f"payload_bits must be finite and above 0, got {payload_bits}.")
    if bits.shape not in ((), (cell.ues,)):
        raise ValueError(f"payload_bits must be one number, or one for each of {cell.ues} UEs, got {bits.shape}.")
    shares = np.full(cell.ues, 1 / cell.ues) if shares is None else np.asarray(shares, float)
    if shares.shape != (cell.ues,):
        raise ValueError(f"shares must hold one number for each of {cell.ues} UEs, got shape {shares.shape}.")
    if protocol.drafts and schedule is not None:
        raise ValueError("a protocol with drafts=True takes no schedule.")
    if protocol.rests and schedule is None:
        raise ValueError("a protocol with rests=True needs a schedule.")
    if protocol.rest_rounds > 1 and (schedule is not None or budget is not None):
        raise ValueError("rest_rounds above 1 takes no schedule and no energy budget; leave these out.")
    if budget is not None and schedule is not None:
        raise ValueError(
            "a schedule would wait for UEs that have spent their energy; give simulate a schedule or a budget, not both."
        )
    if budget is not None and chooses_more(bandwidth):
        raise ValueError("an energy budget takes no policy that chooses powers and frequencies; leave one of them out.")
    if cell.downlink is not None and cell.fleet is not None and not cell.fleet.shares_band.all():
        raise ValueError("the downlink of UEs with dedicated uplinks is unknown; leave the downlink out.")
    compute_s = cell.compute_s(samples)
    rest = {"network": network, "reshare": reshare, "events": events}
    each_bits = float(bits) if bits.ndim == 0 else bits
    return Conditions(cell, protocol, each_bits, compute_s, shares, bandwidth, schedule, budget, **rest)


def start_clock(conditions: Conditions) -> Clock:
    """Return the clock of a single cell at time 0, just after the first UEs have received w_0."""
    return Clock([conditions])


def play(
    clock: Clock,
    *,
    rounds: int | None = None,
    horizon_s: float | None = None,
    watch: Callable[[RoundInfo], None] | None = None,
    tell: Tell | None = None,
) -> Timeline:
    """Play more rounds of a clock; return the timeline of all rounds that it has played."""
    (server,), end_s = clock.servers, math.inf if horizon_s is None else horizon_s
    fast = watch is None and supports(server.conditions)
    server.left = FOREVER if rounds is None else rounds

    def on_round(info: RoundInfo) -> None:
        if watch is not None:
            watch(info)
        if tell is not None:
            tell(clock.server.round, info.closing.time_s)

    goes_on = True
    while goes_on:
        if fast and server.left > 0:
            play_fast([clock], clock.records, horizon_s, tell)
        goes_on = clock.play(end_s, on_round=on_round, once=fast)
    return clock.timelines()[0]
