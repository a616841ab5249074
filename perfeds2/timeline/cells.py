"""Simulate many cells below a cloud: each edge runs its own rounds, and the cloud merges the edges' models.

After κ₂ of its rounds an edge sends its model to the cloud and opens its next round with the cloud's. Between these
exchanges edges are independent, so each is simulated alone for κ₂ rounds, unless UEs take their jobs to other cells or
uploads are noise there. The cloud runs the protocol of a server whose UEs are the edges. Its clock knows only when their
models arrive.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Bool, Float

from perfeds2.allocation.bandwidth import Policy, equal_share
from perfeds2.network.cells import Cells, PerCell
from perfeds2.timeline.clock import open_later, start_clock
from perfeds2.timeline.cloud import joined
from perfeds2.timeline.fast.play import Tell, knows, play_fast
from perfeds2.timeline.follow import Following
from perfeds2.timeline.protocol import IDLE, Protocol, close_round, end_jobs, hand_out, open_server
from perfeds2.timeline.record import Timeline
from perfeds2.timeline.recorder import FOREVER, Above, Recorder, Station, nothing_yet
from perfeds2.timeline.simulate import advance, before_rounds, check_length, conditions_of
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
    depend = cells.keeps or cells.co_channel is not None
    edges = Following(cells, conditions, edge_rounds) if depend else _Apart(conditions, above, tell, horizon_s or 0.0)
    closed_s = edges.closed_s
    while True:
        edges.play(horizon_s, lambda: close_round(above.server, closed_s + transfer_s, cloud).time_s)
        arrival_s, server = closed_s + transfer_s, above.server
        closing = close_round(server, arrival_s, cloud)
        time_s, merged = closing.time_s, closing.merged
        known = edge_rounds * (server.round * cloud.quorum + np.count_nonzero(closed_s <= time_s))
        if math.isinf(time_s) or time_s > end_s or known > most:
            break
        staleness = server.round - server.versions[merged]
        of_cloud.add_rounds([merged[None], staleness[None], arrival_s[None, merged], np.array([time_s])])
        above.server, handed = hand_out(end_jobs(server, closing, cloud)[0], cloud)
        edges.open(handed, time_s + transfer_s[handed])
        if tell is not None:
            tell(int(known), time_s)
    merges = above.timeline()
    timeline = joined(
        edges.timelines(),
        cells.ues,
        edge_rounds,
        cells=merges.ues,
        staleness=merges.staleness,
        arrival_s=merges.arrival_s,
        time_s=merges.time_s,
        handed=_handed(merges),
        backhaul_bits=model_bits,
        followed_bits=edges.followed_bits,
        sizes=cells.sizes,
    )
    return timeline if rounds is None else timeline.prefix(min(rounds, timeline.rounds))


class _Apart:
    """Edges that do not affect each other, each with a clock of its own."""

    followed_bits = ()

    def __init__(self, conditions: Sequence[Conditions], above: Above, tell: Tell | None, least_end_s: float) -> None:
        self._edges, self._above, self._tell = [_start(each, above.edge_rounds) for each in conditions], above, tell
        self._least_end_s = least_end_s
        self._fast, self.closed_s = all(map(knows, conditions)), np.empty(len(conditions))  # waiting for the cloud

    def play(self, horizon_s: float | None, _cloud_s: Callable[[], float]) -> None:
        """Play all rounds until the edges wait for the cloud. The compiled loops also play what comes after."""
        if self._fast:
            play_fast(self._edges, horizon_s, self._tell, above=self._above)
        for edge in self._edges:
            if edge.left > 0:
                _play(edge, horizon_s)
        self.closed_s[:] = [edge.clock.time_s if edge.left == 0 else math.inf for edge in self._edges]

    def open(self, handed: Ues, times_s: PerCell) -> None:
        for edge, time_s in zip(handed, times_s.tolist(), strict=True):
            self._edges[edge].left = self._above.edge_rounds
            _open(self._edges[edge], time_s)

    def timelines(self) -> list[Timeline]:
        last_s, merges = max(edge.clock.time_s for edge in self._edges), self._above.timeline()
        timelines, waits_s, handed = [], [], _handed(merges)
        for number, edge in enumerate(self._edges):
            opened_s = merges.time_s[handed[:, number]] + self._above.transfer_s[number]
            if edge.left == 0:  # it waits for the cloud when the timeline ends
                _open(edge, last_s)
                opened_s = np.append(opened_s, max(last_s, self._least_end_s))
            timelines.append(edge.timeline())
            waits_s.append(_waits_s(timelines[-1], opened_s, self._above.edge_rounds))
        if not any(each.any() for each in waits_s):
            return timelines
        return [_with_waits(*each) for each in zip(timelines, waits_s, strict=True)]


def _handed(merges: Timeline) -> Bool[np.ndarray, "C E"]:
    """Return which edges get the model of each round of the cloud: those that it merges, because none rests."""
    handed = np.zeros((merges.rounds, merges.compute_s.size), bool)
    np.put_along_axis(handed, merges.ues, True, axis=1)
    return handed


def _start(conditions: Conditions, edge_rounds: int) -> Station:
    clock = start_clock(conditions)
    return Station(conditions, clock, Recorder(before_rounds(conditions, clock)), edge_rounds)


def _play(edge: Station, horizon_s: float | None) -> None:
    """Play the rounds that an edge has left, with the NumPy clock."""
    last = edge.clock.server.round + edge.left
    if edge.conditions.cell.downlink is not None:  # ``_open`` sends the model of the last round once more
        advance(edge, last - 1, horizon_s, fast=False)
        edge.sent_s = edge.clock.sent_s
    advance(edge, last, horizon_s, fast=False)
    edge.left = 0 if edge.clock.server.round == last else -1


def _open(edge: Station, time_s: float) -> None:
    """Open the next round of an edge with the model that the cloud has sent."""
    edge.clock = open_later(edge.conditions, edge.clock, time_s, edge.sent_s)


def _waits_s(timeline: Timeline, opened_s: Float[np.ndarray, " o"], edge_rounds: int) -> Float[np.ndarray, " k"]:
    """Return how long UEs waited for each version of an edge, if its rounds after exchanges opened at these times."""
    waits_s, versions = np.zeros(timeline.rounds + 1), edge_rounds * np.arange(1, opened_s.size + 1)
    waits_s[versions] = opened_s - timeline.time_s[versions - 1]
    return waits_s


def _with_waits(timeline: Timeline, waits_s: Float[np.ndarray, " k"]) -> Timeline:
    """Record how long UEs waited for each version, unless the timeline has it."""
    if timeline.model_s is not None or timeline.log is not None:
        return timeline
    open_model_s = np.where(timeline.open_version == IDLE, 0.0, waits_s[timeline.open_version])
    of = {"model_s": waits_s[timeline.versions], "lost_model_s": waits_s[timeline.lost_version]}
    return replace(timeline, **of, open_model_s=open_model_s)
