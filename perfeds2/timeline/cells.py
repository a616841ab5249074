"""Simulate many cells below a cloud: each edge plays its own rounds, and the cloud merges the edges' models.

After κ₂ of its rounds an edge sends its model to the cloud and opens its next round with the cloud's. Between these
exchanges edges are independent, so each plays its κ₂ rounds at once, unless UEs take their jobs to other cells. The
cloud runs the protocol of a server whose UEs are the edges. Its clock knows only when their models arrive.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from perfeds2.allocation.bandwidth import Policy, equal_share
from perfeds2.network.cells import Cells, PerCell
from perfeds2.timeline.clock import open_later, start_clock
from perfeds2.timeline.cloud import joined
from perfeds2.timeline.fast.play import Tell, knows
from perfeds2.timeline.follow import Following
from perfeds2.timeline.protocol import IDLE, Protocol, close_round, hand_out, open_server
from perfeds2.timeline.record import Timeline
from perfeds2.timeline.recorder import Recorder
from perfeds2.timeline.simulate import advance, before_rounds, check_length, conditions_of, recorded
from perfeds2.timeline.state import Conditions, Ues


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
    """Play edges and cloud for a number of edge rounds of all cells together, until a time, or the first of the two.

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
    server, end_s = open_server(count, cloud), math.inf if horizon_s is None else horizon_s
    conditions = [conditions_of(cell, protocol, payload_bits, samples, bandwidth) for cell in cells.cells]
    edges = Following(cells, conditions, edge_rounds) if cells.keeps else _Apart(conditions, edge_rounds)
    transfer_s, closed_s = cells.transfer_s(model_bits), edges.closed_s
    merged, staleness, arrivals_s, times_s, handings = [], [], [], [], []  # of the cloud's rounds
    handed = np.arange(count)
    while True:
        edges.play(handed, horizon_s, lambda server=server: close_round(server, closed_s + transfer_s, cloud).time_s)
        arrival_s = closed_s + transfer_s
        closing = close_round(server, arrival_s, cloud)
        time_s = closing.time_s
        known = edge_rounds * (server.round * cloud.quorum + np.count_nonzero(closed_s <= time_s))
        if math.isinf(time_s) or time_s > end_s or (rounds is not None and known > rounds):
            break
        merged.append(closing.merged)
        staleness.append(server.round - server.versions[closing.merged])
        arrivals_s.append(arrival_s[closing.merged])
        times_s.append(time_s)
        server, hand = hand_out(server, closing, cloud)
        handed = hand.handed
        handings.append(np.isin(np.arange(count), handed))
        edges.open(handed, time_s + transfer_s[handed])
        if tell is not None:
            tell(int(known), time_s)
    timeline = joined(
        edges.timelines(),
        cells.ues,
        edge_rounds,
        cells=np.array(merged, int).reshape(-1, cloud.quorum),
        staleness=np.array(staleness, int).reshape(-1, cloud.quorum),
        arrival_s=np.array(arrivals_s, float).reshape(-1, cloud.quorum),
        time_s=np.array(times_s, float),
        handed=np.array(handings, bool).reshape(-1, count),
        backhaul_bits=model_bits,
        followed_bits=edges.followed_bits,
    )
    return timeline if rounds is None else timeline.prefix(min(rounds, timeline.rounds))


class _Apart:
    """Edges that do not affect each other, each with a clock of its own."""

    followed_bits = ()

    def __init__(self, conditions: Sequence[Conditions], edge_rounds: int) -> None:
        self._edges, self._rounds = [_Edge(each) for each in conditions], edge_rounds
        self.closed_s = np.full(len(conditions), np.inf)  # when each began to wait for the cloud

    def play(self, handed: Ues, horizon_s: float | None, _cloud_s: Callable[[], float]) -> None:
        for edge in handed:
            self.closed_s[edge] = self._edges[edge].play(self._rounds, horizon_s)

    def open(self, handed: Ues, times_s: PerCell) -> None:
        for edge, time_s in zip(handed, times_s, strict=True):
            self._edges[edge].open(time_s)

    def timelines(self) -> list[Timeline]:
        last_s = max(edge.clock.time_s for edge in self._edges)
        for edge in np.flatnonzero(np.isfinite(self.closed_s)):  # they wait for the cloud when the timeline ends
            self._edges[edge].open(last_s)
        waits = any(edge.has_waited for edge in self._edges)
        return [edge.timeline(waits) for edge in self._edges]


class _Edge:
    """A cell with the clock and the record of its own rounds."""

    def __init__(self, conditions: Conditions) -> None:
        self.conditions, self.clock, self._fast = conditions, start_clock(conditions), knows(conditions)
        self._record, self._sent_s = Recorder(before_rounds(conditions, self.clock)), 0.0
        self._waits_s = {0: 0.0}  # of UEs for a model from the cloud, by version

    def play(self, rounds: int, horizon_s: float | None) -> float:
        """Play some rounds; return when the last one closed, infinite if that is after the horizon."""
        last = self.clock.server.round + rounds
        if self.conditions.cell.downlink is not None:  # ``open`` sends the model of the last round once more
            self.clock = advance(self.conditions, self.clock, self._record, last - 1, horizon_s, fast=self._fast)
            self._sent_s = self.clock.sent_s
        self.clock = advance(self.conditions, self.clock, self._record, last, horizon_s, fast=self._fast)
        return self.clock.time_s if self.clock.server.round == last else math.inf

    def open(self, time_s: float) -> None:
        """Open the next round with the model that the cloud has sent."""
        self._waits_s[self.clock.server.round] = time_s - self.clock.time_s
        self.clock = open_later(self.conditions, self.clock, time_s, self._sent_s)

    @property
    def has_waited(self) -> bool:
        return any(self._waits_s.values())

    def timeline(self, waits: bool) -> Timeline:
        """Return its own rounds; ``waits`` says whether to record how long UEs waited for models."""
        timeline = recorded(self.conditions, self.clock, self._record)
        if not waits or timeline.model_s is not None or timeline.log is not None:  # they have these waits
            return timeline
        waits_s = np.zeros(timeline.rounds + 1)
        waits_s[list(self._waits_s)] = list(self._waits_s.values())
        open_model_s = np.where(timeline.open_version == IDLE, 0.0, waits_s[timeline.open_version])
        of = {"model_s": waits_s[timeline.versions], "lost_model_s": waits_s[timeline.lost_version]}
        return replace(timeline, **of, open_model_s=open_model_s)
