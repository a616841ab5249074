"""Simulate many cells below a cloud: each edge runs its own rounds, and the cloud merges the edges' models.

After κ₂ of its rounds an edge sends its model to the cloud and opens its next round with the cloud's. Between these
exchanges edges are independent, so each has a clock of its own, unless UEs take their jobs to other cells or uploads are
noise there; then one clock plays all. The cloud runs the protocol of a server whose UEs are the edges.
"""

import math

import numpy as np
from jaxtyping import Bool

from perfeds2.allocation.bandwidth import Policy, equal_share
from perfeds2.network.cells import Cells, PerCell
from perfeds2.timeline.clock import Clock, forever
from perfeds2.timeline.cloud import joined
from perfeds2.timeline.fast.play import Tell, knows, play_fast
from perfeds2.timeline.protocol import Protocol, close_round, end_jobs, hand_out, open_server
from perfeds2.timeline.record import Timeline
from perfeds2.timeline.recorder import Above, Recorder, nothing_yet
from perfeds2.timeline.simulate import check_length, conditions_of
from perfeds2.timeline.state import FOREVER, Network


def simulate_cells(
    cells: Cells,
    protocol: Protocol,
    cloud: Protocol,
    *,
    payload_bits: float,
    samples: float,
    model_bits: float = 0.0,
    edge_rounds: int = 1,
    rounds: int | None = None,
    horizon_s: float | None = None,
    bandwidth: Policy = equal_share,
    tell: Tell | None = None,
) -> Timeline:
    """Simulate edges and cloud for a number of rounds of all edges together, until a time, or the first of the two.

    Args:
        cells: The cells and their backhaul.
        protocol: When an edge closes a round; every edge has the same quorum.
        cloud: When the cloud closes a round on models of edges, with ``stale="wait"``.
        payload_bits: Size of one upload in bits.
        samples: Samples that one job computes on.
        model_bits: Size of a model on the backhaul, in bits.
        edge_rounds: Rounds of an edge between two exchanges with the cloud (κ₂).
        rounds: Stop after this many rounds of all edges together.
        horizon_s: Stop at this simulated time, in seconds.
        bandwidth: Policy that shares the band of each cell.
        tell: Called with the number of closed rounds and the simulated time.

    Returns:
        The timeline of all UEs, with the cloud's rounds.

    Raises:
        ValueError: If an argument is out of range, or a round can never close.
    """
    count = len(cells.cells)
    check_length(rounds, horizon_s)
    if edge_rounds < 1:
        raise ValueError(f"edge_rounds must be at least 1, got {edge_rounds}.")
    if protocol.rests or protocol.drafts or cloud.rests or cloud.drafts or cloud.rest_rounds > 1:
        raise ValueError("edges and cloud close rounds on the first arrivals, without rests, drafts and rest_rounds.")
    if cloud.max_staleness is not None and (cloud.stale != "wait" or cloud.quorum * (cloud.max_staleness + 1) < count):
        raise ValueError(
            f"with a bound, the cloud needs stale='wait' and a quorum times (max_staleness + 1) of at least {count}, "
            f"the number of cells; got {cloud}."
        )
    end_s, most = math.inf if horizon_s is None else horizon_s, FOREVER if rounds is None else rounds
    conditions = [conditions_of(cell, protocol, payload_bits, samples, bandwidth) for cell in cells.cells]
    transfer_s = cells.transfer_s(model_bits)
    of_cloud = Recorder(nothing_yet(transfer_s, cloud.quorum))
    above = Above(cloud, open_server(count, cloud), of_cloud, transfer_s, edge_rounds, most)
    clocks = [Clock([own], edge_rounds=edge_rounds) for own in conditions]
    if cells.keeps or cells.co_channel is not None:
        trip_s = cells.transfer_s(payload_bits)  # of an upload between edges
        network = Network(cells.cells, np.where(np.eye(count), 0.0, trip_s[:, None] + trip_s), cells.co_channel)
        clocks = [Clock(conditions, network, edge_rounds)]
    edges = [(clock, number) for clock in clocks for number in range(len(clock.servers))]

    def arrivals_s() -> PerCell:
        """Return when the models of the edges that wait for the cloud arrive there."""
        servers = [clock.servers[number] for clock, number in edges]
        return transfer_s + [server.closed_s if server.left == 0 else math.inf for server in servers]

    while True:
        if len(clocks) == count and all(map(knows, conditions)):
            play_fast(clocks, [clock.records[0] for clock in clocks], horizon_s, tell, above=above)
        for clock in clocks:
            alone = clock.network is None
            clock.play(end_s, forever if alone else lambda: close_round(above.server, arrivals_s(), cloud).time_s)
        arrival_s, server = arrivals_s(), above.server
        closing = close_round(server, arrival_s, cloud)
        time_s, merged = closing.time_s, closing.merged
        ready = np.count_nonzero(arrival_s - transfer_s <= time_s)
        closed = edge_rounds * (server.round * cloud.quorum + ready)
        if math.isinf(time_s) or time_s > end_s or closed > most:
            break
        staleness = server.round - server.versions[merged]
        of_cloud.add_rounds([merged[None], staleness[None], arrival_s[None, merged], np.array([time_s])])
        above.server, handed = hand_out(end_jobs(server, closing, cloud)[0], cloud)
        for edge in handed.tolist():
            clock, number = edges[edge]
            clock.open(number, time_s + float(transfer_s[edge]))
        if tell is not None:
            tell(int(closed), time_s)
    timelines = [timeline for clock in clocks for timeline in clock.timelines()]
    followed_bits = [bits for clock in clocks for bits in clock.followed_bits]
    merges = above.timeline()
    timeline = joined(
        timelines,
        cells.ues,
        edge_rounds,
        cells=merges.ues,
        staleness=merges.staleness,
        arrival_s=merges.arrival_s,
        time_s=merges.time_s,
        handed=_handed(merges),
        backhaul_bits=model_bits,
        followed_bits=followed_bits,
        sizes=cells.sizes,
    )
    return timeline if rounds is None else timeline.prefix(min(rounds, timeline.rounds))


def _handed(merges: Timeline) -> Bool[np.ndarray, "C E"]:
    """Return which edges get the model of each round of the cloud: those that it merges, because none rests."""
    handed = np.zeros((merges.rounds, merges.compute_s.size), bool)
    np.put_along_axis(handed, merges.ues, True, axis=1)
    return handed
