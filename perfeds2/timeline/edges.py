"""Join the timelines of edges below a cloud into one, and count its staleness.

An edge is a cell with its own server. After a fixed number of its rounds it sends its model to the cloud and waits for
the cloud's. Rows of the joined timeline are the rounds of all edges in order of time, and row k makes model k + 1.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from perfeds2.timeline.choices import Choices, Tries
from perfeds2.timeline.cloud import Cloud
from perfeds2.timeline.jobs import Jobs, in_order
from perfeds2.timeline.record import Timeline


def joined(
    edges: Sequence[Timeline],
    ues: Sequence[Int[np.ndarray, " n_e"]],
    edge_rounds: int,
    *,
    cells: Int[np.ndarray, "C A_c"],
    staleness: Int[np.ndarray, "C A_c"],
    arrival_s: Float[np.ndarray, "C A_c"],
    time_s: Float[np.ndarray, " C"],
    handed: Bool[np.ndarray, "C E"],
    backhaul_bits: float = 0.0,
    followed_bits: Sequence[Sequence[float]] = (),
    sizes: Int[np.ndarray, " E"] | None = None,
    chunks: Sequence[Sequence[int]] = (),
) -> Timeline:
    """Join the timelines of all edges, with UEs and rounds of their own, into one.

    Args:
        edges: One timeline per edge, of equal quorum.
        ues: The number in the joined timeline of each edge's UEs.
        edge_rounds: Rounds of an edge between two exchanges with the cloud, κ₂.
        cells: Edges that each cloud round merges, as the further arguments a column of ``Cloud``.
        staleness: How stale their models were, in cloud rounds.
        arrival_s: When their models arrived at the cloud.
        time_s: When each cloud round closed.
        handed: Edges that got its model.
        backhaul_bits: Bits of one transfer of a model.
        followed_bits: For each round of each edge, bits of the uploads that came over the backhaul; empty: none.
        sizes: UEs per edge; None: as many as have numbers.
        chunks: Rounds of each edge and of the cloud after each chunk. Rows of later chunks come after these.

    Returns:
        The timeline of all UEs.

    Raises:
        ValueError: If an edge goes on before the cloud has handed it a model.
    """
    turn = []  # a row of a segment that cloud round g opened comes after that round, even at the same time
    for edge, timeline in enumerate(edges):
        opened_by = np.append(-1, np.flatnonzero(handed[:, edge]))
        segment = np.arange(timeline.rounds) // edge_rounds
        if segment.max(initial=0) >= opened_by.size:
            raise ValueError(f"edge {edge} closed {timeline.rounds} rounds, but the cloud handed it too few models.")
        turn.append(2 * (opened_by[segment] + 1))
    local = [np.arange(timeline.rounds) for timeline in edges]
    cell = np.repeat(np.arange(len(edges)), [one.size for one in local])
    rounds, clouds = cell.size, np.arange(time_s.size)
    ends = np.reshape(chunks, (-1, len(edges) + 1)).T
    chunk = [np.searchsorted(end, one, side="right") for end, one in zip(ends, [*local, clouds], strict=True)]
    order = np.lexsort(
        (
            np.concatenate([*local, clouds]),
            np.append(cell, clouds * 0),
            np.concatenate([*turn, 2 * clouds + 1]),
            np.concatenate(chunk),
            np.concatenate([*(timeline.time_s for timeline in edges), time_s]),
        )
    )
    is_cloud = order >= rounds
    order = order[~is_cloud]
    number = np.argsort(order)  # row of each edge's rounds
    numbers = np.split(number, np.cumsum([one.size for one in local])[:-1])
    compute_s, logs, stale = np.zeros(1 + max(int(of_edge.max()) for of_edge in ues)), [], []
    for timeline, of_edge, row in zip(edges, ues, numbers, strict=True):
        compute_s[of_edge] = timeline.compute_s
        log, made = timeline.log, np.append(0, row + 1)  # its versions in the joined timeline
        if (np.diff(of_edge) != 1).any():  # consecutive UEs of the edge are not consecutive any more
            log = log.of_ues(range(of_edge.size), timeline.compute_s)
        stale.append(row[:, None] - made[timeline.versions])
        logs.append(
            replace(log, ue=of_edge[log.ue], version=made[log.version], round=np.append(row, rounds)[log.round])
        )
    given: dict[str, Any] = {}
    for name, kind in (("choices", Choices), ("tries", Tries)):
        rows_of = [(vars(edge)[name], of_edge) for edge, of_edge in zip(edges, ues, strict=True)]
        if rows_of[0][0] is not None:
            given[name] = kind.joined([replace(rows, ue=of_edge[rows.ue]) for rows, of_edge in rows_of])
    sizes = np.array([of_edge.size for of_edge in ues]) if sizes is None else sizes
    before = np.flatnonzero(is_cloud) - clouds
    bits = np.array(float(backhaul_bits)), np.concatenate([*followed_bits, np.zeros(rounds)])[order]
    return Timeline(
        np.concatenate([of_edge[timeline.ues] for timeline, of_edge in zip(edges, ues, strict=True)])[order],
        np.concatenate(stale)[order],
        np.concatenate([timeline.arrival_s for timeline in edges])[order],
        np.concatenate([timeline.time_s for timeline in edges])[order],
        compute_s,
        in_order(Jobs.joined(logs)),
        Cloud(cell[order], sizes, before, cells, staleness, arrival_s, time_s, handed, *bits),
        **given,
    )


def edge_versions(timeline: Timeline) -> tuple[Int[np.ndarray, " K"], Int[np.ndarray, "K A"]]:
    """Return each row's round and each merged update's version, counted by their own edge."""
    rounds, versions = np.arange(timeline.rounds), timeline.versions
    if timeline.cloud is not None:
        rounds, versions = rounds.copy(), versions.copy()
        for rows in _by_edge(timeline.cloud):
            rounds[rows] = np.arange(rows.size)
            versions[rows] = np.searchsorted(rows, versions[rows])
    return rounds, versions


def edge_staleness(timeline: Timeline) -> Int[np.ndarray, "K A"]:
    """Return how stale each merged update was, in rounds of the server that merged it."""
    rounds, versions = edge_versions(timeline)
    return rounds[:, None] - versions


def end_to_end_staleness(timeline: Timeline) -> Int[np.ndarray, "K A"]:
    """Return how stale each merged update was, in cloud rounds.

    It counts from the cloud model that the update descends from to the cloud round that merges it, and is -1 for
    updates that no cloud round has merged.
    """
    cloud, staleness = timeline.cloud, timeline.staleness.copy()
    if cloud is None:
        return staleness
    versions = edge_versions(timeline)[1]
    for edge, rows in enumerate(_by_edge(cloud)):
        handing, merging = np.flatnonzero(cloud.handed[:, edge]), np.flatnonzero((cloud.cells == edge).any(axis=1))
        first = rows[versions[rows]]  # the edge's next row after the version was made
        origin = np.append(0, handing + 1)[np.searchsorted(cloud.rows[handing], first, side="right")]
        merged_by = np.append(merging, -1)[np.searchsorted(cloud.rows[merging], rows, side="right")][:, None]
        staleness[rows] = np.where(merged_by < 0, -1, merged_by - origin)
    return staleness


def _by_edge(cloud: Cloud) -> list[Int[np.ndarray, " r"]]:
    """Return the rows of each edge."""
    ends = np.bincount(cloud.cell, minlength=cloud.edges).cumsum()
    return np.split(np.argsort(cloud.cell, kind="stable"), ends[:-1])
