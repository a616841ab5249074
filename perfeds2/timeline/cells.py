"""Simulate many cells below a cloud: each edge runs its own rounds, and the cloud merges the edges' models.

After κ₂ of its rounds an edge sends its model to the cloud and opens its next round with the cloud's. Between these
exchanges edges are independent, so each has a clock of its own, unless UEs take their jobs to other cells or uploads are
noise there; then one clock plays all. The cloud runs the protocol of a server whose UEs are the edges.
"""

import copy
import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from perfeds2.allocation.bandwidth import Policy, equal_share
from perfeds2.allocation.schedulers import among
from perfeds2.network.cells import Cells
from perfeds2.network.link import PerUe
from perfeds2.network.sites import PerCell
from perfeds2.timeline.clock import Clock
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
from perfeds2.timeline.state import FOREVER, Budget, Conditions, Network, Reshare, Schedule


@dataclass(frozen=True)
class EdgeConditions:
    """What stays the same in the edges of a network and in the cloud above them."""

    cells: Cells
    edges: Sequence[Conditions]
    cloud: Protocol
    payload_bits: float
    model_bits: float
    edge_rounds: int


def conditions_of_edges(
    cells: Cells,
    protocol: Protocol,
    cloud: Protocol,
    *,
    payload_bits: float,
    samples: float | PerUe,
    model_bits: float = 0.0,
    edge_rounds: int = 1,
    bandwidth: Policy = equal_share,
    schedules: Sequence[Schedule | None] | None = None,
    shares: Sequence[PerUe | None] | None = None,
    budgets: Sequence[Budget | None] | None = None,
    reshare: Reshare = "round",
) -> EdgeConditions:
    """Check the arguments of ``simulate_cells`` that stay the same from round to round, and return them.

    Every edge gets a copy of its schedule, so edges and runs share no state.
    """
    count = len(cells.cells)
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
    schedules = [None] * count if schedules is None else [copy.deepcopy(schedule) for schedule in schedules]
    refuse_schedules_of_movers(cells, schedules)
    if cells.joint and not cells.moving:
        schedules = [plan and among(members, plan) for plan, members in zip(schedules, cells.members, strict=True)]
    edges = []
    for number, cell in enumerate(cells.cells):
        of_cell = samples if np.ndim(samples) == 0 else np.asarray(samples)[cells.ues[number]]
        shares_of_cell = None if shares is None else shares[number]
        budget = None if budgets is None else budgets[number]
        load = payload_bits, of_cell, bandwidth, schedules[number], shares_of_cell, budget
        edges.append(conditions_of(cell, protocol, *load, reshare=reshare))
    return EdgeConditions(cells, edges, cloud, payload_bits, model_bits, edge_rounds)


def simulate_cells(
    cells: Cells,
    protocol: Protocol,
    cloud: Protocol,
    *,
    rounds: int | None = None,
    horizon_s: float | None = None,
    tell: Tell | None = None,
    **settings: Any,
) -> Timeline:
    """Simulate edges and cloud for a number of rounds of all edges together, until a time, or the first of the two.

    Args:
        cells: The cells and their backhaul.
        protocol: When an edge closes a round; every edge has the same quorum.
        cloud: When the cloud closes a round on models of edges, with ``stale="wait"``.
        rounds: Stop after this many rounds of all edges together.
        horizon_s: Stop at this simulated time, in seconds.
        tell: Called with the number of closed rounds and the simulated time.
        settings: Further arguments of ``conditions_of_edges``.

    Returns:
        The timeline of all UEs, with the cloud's rounds.

    Raises:
        ValueError: If an argument is out of range, or a round can never close.
    """
    check_length(rounds, horizon_s)
    clock = EdgeClocks(conditions_of_edges(cells, protocol, cloud, **settings))
    clock.play(math.inf if horizon_s is None else horizon_s, FOREVER if rounds is None else rounds, tell)
    timeline = clock.timeline()
    return timeline if rounds is None else timeline.prefix(min(rounds, timeline.rounds))


class EdgeClocks:
    """The clocks of all edges, and the cloud above them."""

    def __init__(self, conditions: EdgeConditions) -> None:
        """Start at time 0."""
        self.conditions = conditions
        cells, cloud, edge_rounds = conditions.cells, conditions.cloud, conditions.edge_rounds
        transfer_s, count = cells.transfer_s(conditions.model_bits), len(conditions.edges)
        record = Recorder(transfer_s, cloud.quorum)
        self._cloud = CloudState(cloud, open_server(count, cloud), record, transfer_s, edge_rounds)
        if cells.joint:
            self._clocks = [Clock(conditions.edges, network_of(cells, conditions.payload_bits), edge_rounds)]
        else:
            self._clocks = [Clock([of_edge], edge_rounds=edge_rounds) for of_edge in conditions.edges]
        self._edges = [(clock, number) for clock in self._clocks for number in range(len(clock.servers))]
        self._stopped_s = 0.0  # when an edge last stopped, as far as the cloud knows
        self._chunks: list[list[int]] = []  # rounds of each edge and of the cloud at the end of each chunk

    def play(self, end_s: float, rounds: int, tell: Tell | None = None) -> None:
        """Play until a time, or until the cloud needs no more edges for this many rounds of all edges together."""
        above, clocks = self._cloud, self._clocks
        above.rounds = rounds
        fast = len(clocks) == len(self._edges) and all(map(supports, self.conditions.edges))
        while True:
            if fast:
                horizon_s = None if end_s == math.inf else end_s
                play_fast(clocks, [clock.records[0] for clock in clocks], horizon_s, tell, above=above)
            for clock in clocks:
                clock.play(end_s, self._until_s)
            closing, arrival_s = self._cloud_round()
            ready = np.count_nonzero(arrival_s - above.transfer_s <= closing.time_s)
            closed = above.edge_rounds * (above.server.round * above.protocol.quorum + ready)
            if math.isinf(closing.time_s) or closing.time_s > end_s or closed > rounds:
                return
            self._close(closing, arrival_s)
            if tell is not None:
                tell(int(closed), closing.time_s)

    def play_chunk(self, end_s: float, rounds: int) -> None:
        """Play until a time, or this many more rounds of all edges together. No edge then plans its next round."""
        wanted = self.rounds + rounds
        while self.rounds < wanted:
            next_s = min(clock.next_s for clock in self._clocks)
            closing, arrival_s = self._cloud_round()
            now_s = min(next_s, closing.time_s)
            if now_s > end_s or math.isinf(now_s):
                break
            if next_s > closing.time_s:
                self._close(closing, arrival_s)
            for clock in self._clocks:
                if clock.next_s <= now_s:
                    clock.play(now_s, self._until_s, once=True)
        rows = [clock.servers[number].server.round for clock, number in self._edges]
        self._chunks.append([*rows, self._cloud.server.round])

    @property
    def rounds(self) -> int:
        """Rounds of all edges so far."""
        return sum(clock.servers[number].server.round for clock, number in self._edges)

    def timeline(self) -> Timeline:
        """Return all that was played."""
        closed_s = max(server.closed_s for clock in self._clocks for server in clock.servers)
        merges, cells = self._cloud.record.rounds, self.conditions.cells
        return joined(
            [timeline for clock in self._clocks for timeline in clock.timelines(closed_s)],
            cells.ues,
            self.conditions.edge_rounds,
            cells=merges.ues,
            staleness=merges.staleness,
            arrival_s=merges.arrival_s,
            time_s=merges.time_s,
            handed=_handed(merges.ues, len(self._edges)),
            backhaul_bits=self.conditions.model_bits,
            followed_bits=[bits for clock in self._clocks for bits in clock.followed_bits],
            sizes=cells.sizes,
            chunks=self._chunks,
        )

    def _until_s(self) -> float:
        """Return when the cloud affects a clock of all edges; a clock of one edge waits for it in any case."""
        return self._cloud_round()[0].time_s if self.conditions.cells.joint else math.inf

    def _cloud_round(self) -> tuple[Closing, PerCell]:
        """Return when the cloud closes its round if no other edge becomes ready, and when models of edges arrive."""
        above, servers = self._cloud, [clock.servers[number] for clock, number in self._edges]
        arrival_s = above.transfer_s + [server.closed_s if server.left == 0 else math.inf for server in servers]
        closing = close_round(above.server, arrival_s, above.protocol, now_s=self._stopped_s)
        stops = [(clock.time_s, edge) for edge, (clock, _) in enumerate(self._edges) if servers[edge].left < 0]
        for stop_s, edge in sorted(stops):
            has_budget = self.conditions.edges[edge].budget is not None
            if stop_s <= closing.time_s and has_budget and above.server.versions[edge] != IDLE:
                self._stopped_s, above.server = max(self._stopped_s, stop_s), leave(above.server, np.array([edge]))
                closing = close_round(above.server, arrival_s, above.protocol, now_s=self._stopped_s)
        return closing, arrival_s

    def _close(self, closing: Closing, arrival_s: PerCell) -> None:
        """Close the cloud's round, and send its model to the edges that it merges."""
        above, merged, time_s = self._cloud, closing.merged, closing.time_s
        before = above.server
        staleness = before.round - before.versions[merged]
        above.record.add_rounds(
            [merged[None], staleness[None], arrival_s[None, merged], np.array([time_s]), np.zeros((1, merged.size))]
        )
        after, _ = end_jobs(before, closing, above.protocol)
        above.server, handed = assign_model(after, above.protocol, before.versions != IDLE)
        for edge in handed.tolist():
            clock, number = self._edges[edge]
            clock.open(number, time_s + float(above.transfer_s[edge]))


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
    """Return which edges get the model of each round of the cloud: those whose models it merges."""
    handed = np.zeros((merged.shape[0], edges), bool)
    np.put_along_axis(handed, merged, True, axis=1)
    return handed
