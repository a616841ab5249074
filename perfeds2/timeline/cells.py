"""Simulate many cells below a cloud: each edge runs its own rounds, and the cloud merges the edges' models.

After κ₂ of its rounds an edge sends its model to the cloud and opens its next round with the cloud's. Between these
exchanges edges are independent, so each has a clock of its own, unless UEs take their jobs to other cells or uploads are
noise there; then one clock plays all. The cloud runs the protocol of a server whose UEs are the edges.
"""

import inspect
import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Int

from perfeds2.allocation.bandwidth import Policy, equal_share
from perfeds2.allocation.schedulers import among
from perfeds2.network.cells import Cells
from perfeds2.network.link import PerUe
from perfeds2.network.sites import PerCell
from perfeds2.timeline.clock import Clock, forever
from perfeds2.timeline.edges import joined
from perfeds2.timeline.fast.play import Tell, play_fast, supports
from perfeds2.timeline.protocol import (
    IDLE,
    Closing,
    Protocol,
    assign_model,
    close_round,
    end_jobs,
    leave,
    open_server,
)
from perfeds2.timeline.record import Timeline
from perfeds2.timeline.recorder import CloudState, Recorder
from perfeds2.timeline.simulate import check_length, conditions_of
from perfeds2.timeline.state import FOREVER, Budget, Network, Reshare, Schedule


def simulate_cells(
    cells: Cells,
    protocol: Protocol,
    cloud: Protocol,
    *,
    payload_bits: float,
    samples: float | PerUe,
    model_bits: float = 0.0,
    edge_rounds: int = 1,
    rounds: int | None = None,
    horizon_s: float | None = None,
    bandwidth: Policy = equal_share,
    schedules: Sequence[Schedule | None] | None = None,
    shares: Sequence[PerUe | None] | None = None,
    budgets: Sequence[Budget | None] | None = None,
    reshare: Reshare = "round",
    tell: Tell | None = None,
) -> Timeline:
    """Simulate edges and cloud for a number of rounds of all edges together, until a time, or the first of the two.

    Args:
        cells: The cells and their backhaul.
        protocol: When an edge closes a round; every edge has the same quorum.
        cloud: When the cloud closes a round on models of edges, with ``stale="wait"``.
        payload_bits: Size of one upload in bits.
        samples: Samples that one job computes on, or one number for each UE of the network.
        model_bits: Size of a model on the backhaul, in bits.
        edge_rounds: Rounds of an edge between two exchanges with the cloud (κ₂).
        rounds: Stop after this many rounds of all edges together.
        horizon_s: Stop at this simulated time, in seconds.
        bandwidth: Policy that shares the band of each cell.
        schedules: For each cell, which of its UEs, numbered from 0, each round closes on; None for the first arrivals.
        shares: For each cell, the participation targets of its UEs; None for equal targets.
        budgets: For each cell, the energy of its UEs. An edge stops when fewer than A of them have energy left.
        reshare: When the policy shares a band again, as for ``simulate``.
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
    if cloud.rests or cloud.drafts or cloud.rest_rounds > 1:
        raise ValueError(
            "the cloud closes rounds on the first arrivals; leave rests, drafts and rest_rounds at their defaults."
        )
    if cloud.max_staleness is not None and (cloud.stale != "wait" or cloud.quorum * (cloud.max_staleness + 1) < count):
        raise ValueError(
            f"with a bound, the cloud needs stale='wait' and a quorum times (max_staleness + 1) of at least {count}, "
            f"the number of cells; got {cloud}."
        )
    end_s, most = math.inf if horizon_s is None else horizon_s, FOREVER if rounds is None else rounds
    schedules = [None] * count if schedules is None else schedules
    budgets = [None] * count if budgets is None else budgets
    refuse_schedules_of_movers(cells, schedules)
    if cells.joint and not cells.moving:
        schedules = [plan and among(members, plan) for plan, members in zip(schedules, cells.members, strict=True)]
    conditions = []
    for number, cell in enumerate(cells.cells):
        of_cell = samples if np.ndim(samples) == 0 else np.asarray(samples)[cells.ues[number]]
        shares_of_cell = None if shares is None else shares[number]
        load = payload_bits, of_cell, bandwidth, schedules[number], shares_of_cell, budgets[number]
        conditions.append(conditions_of(cell, protocol, *load, reshare=reshare))
    transfer_s = cells.transfer_s(model_bits)
    of_cloud = Recorder(transfer_s, cloud.quorum)
    above = CloudState(cloud, open_server(count, cloud), of_cloud, transfer_s, edge_rounds, most)
    clocks = [Clock([of_edge], edge_rounds=edge_rounds) for of_edge in conditions] if not cells.joint else []
    if cells.joint:
        clocks = [Clock(conditions, network_of(cells, payload_bits), edge_rounds)]
    edges = [(clock, number) for clock in clocks for number in range(len(clock.servers))]

    stopped_s = 0.0  # when an edge last stopped, as far as the cloud knows

    def cloud_round() -> tuple[Closing, PerCell]:
        """Return when the cloud closes its round if no other edge becomes ready, and when models of edges arrive."""
        nonlocal stopped_s
        servers = [clock.servers[number] for clock, number in edges]
        arrival_s = transfer_s + [server.closed_s if server.left == 0 else math.inf for server in servers]
        closing = close_round(above.server, arrival_s, cloud, now_s=stopped_s)
        stops = [(clock.time_s, edge) for edge, (clock, _) in enumerate(edges) if servers[edge].left < 0]
        for stop_s, edge in sorted(stops):
            if stop_s <= closing.time_s and budgets[edge] is not None and above.server.versions[edge] != IDLE:
                stopped_s, above.server = max(stopped_s, stop_s), leave(above.server, np.array([edge]))
                closing = close_round(above.server, arrival_s, cloud, now_s=stopped_s)
        return closing, arrival_s

    while True:
        if len(clocks) == count and all(map(supports, conditions)):
            play_fast(clocks, [clock.records[0] for clock in clocks], horizon_s, tell, above=above)
        for clock in clocks:
            clock.play(end_s, (lambda: cloud_round()[0].time_s) if cells.joint else forever)
        closing, arrival_s = cloud_round()
        server = above.server
        time_s, merged = closing.time_s, closing.merged
        ready = np.count_nonzero(arrival_s - transfer_s <= time_s)
        closed = edge_rounds * (server.round * cloud.quorum + ready)
        if math.isinf(time_s) or time_s > end_s or closed > most:
            break
        staleness = server.round - server.versions[merged]
        of_cloud.add_rounds(
            [merged[None], staleness[None], arrival_s[None, merged], np.array([time_s]), np.zeros((1, merged.size))]
        )
        above.server, handed = assign_model(end_jobs(server, closing, cloud)[0], cloud, server.versions != IDLE)
        for edge in handed.tolist():
            clock, number = edges[edge]
            clock.open(number, time_s + float(transfer_s[edge]))
        if tell is not None:
            tell(int(closed), time_s)
    closed_s = max(server.closed_s for clock in clocks for server in clock.servers)
    timelines = [timeline for clock in clocks for timeline in clock.timelines(closed_s)]
    followed_bits = [bits for clock in clocks for bits in clock.followed_bits]
    merges = of_cloud.rounds
    timeline = joined(
        timelines,
        cells.ues,
        edge_rounds,
        cells=merges.ues,
        staleness=merges.staleness,
        arrival_s=merges.arrival_s,
        time_s=merges.time_s,
        handed=_handed(merges.ues, count),
        backhaul_bits=model_bits,
        followed_bits=followed_bits,
        sizes=cells.sizes,
    )
    return timeline if rounds is None else timeline.prefix(min(rounds, timeline.rounds))


def network_of(cells: Cells, payload_bits: float, *, one_server: bool = False) -> Network:
    """Return how cells affect each other, with a server in each cell or one server at the cloud."""
    trip_s, count = cells.transfer_s(payload_bits), len(cells.cells)  # of an upload between edges
    trips_s = np.zeros((1, count)) if one_server else np.where(np.eye(count), 0.0, trip_s[:, None] + trip_s)
    return Network(cells.cells, trips_s, cells.co_channel, cells.hours, cells.keeps or not cells.moving)


def refuse_schedules_of_movers(cells: Cells, schedules: Sequence[Schedule | None]) -> None:
    given = [schedule for schedule in schedules if schedule is not None]
    if given and cells.moving and not cells.keeps:
        raise ValueError(
            "a round would wait for a planned UE that has lost its job in another cell. Let UEs keep their jobs (--on-leave "
            "keep), or use no schedule."
        )
    if cells.moving and any("moment" not in inspect.signature(schedule).parameters for schedule in given):
        raise ValueError(
            "a schedule by round number plans the UEs of a cell, which move to others. Use a schedule that looks at the "
            "moment, such as best_channel, or merge at the cloud."
        )


def _handed(merged: Int[np.ndarray, "C A_c"], edges: int) -> Bool[np.ndarray, "C E"]:
    """Return which edges get the model of each round of the cloud: those that it merges, because none rests."""
    handed = np.zeros((merged.shape[0], edges), bool)
    np.put_along_axis(handed, merged, True, axis=1)
    return handed
