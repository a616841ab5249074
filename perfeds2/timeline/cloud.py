"""Record the cloud's rounds of a timeline with many cells, and join the timelines of its edges into one.

An edge is a cell with its own server. After a fixed number of its rounds it sends its model to the cloud and waits for
the cloud's. Rows of the joined timeline are the rounds of all edges in order of time, and row k makes model k + 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float, Int

from perfeds2.timeline.choices import Choices
from perfeds2.timeline.jobs import Jobs, check_whole, in_order, one_by_one
from perfeds2.timeline.protocol import IDLE

if TYPE_CHECKING:
    from perfeds2.timeline.record import Timeline


@dataclass(frozen=True)
class Cloud:
    """The edges and the cloud's rounds of a timeline with many cells."""

    cell: Int[np.ndarray, " K"]  # edge that closed row k
    sizes: Int[np.ndarray, " E"]  # UEs per edge: weights in the cloud's merge
    rows: Int[np.ndarray, " C"]  # rows closed before cloud round c takes place
    cells: Int[np.ndarray, "C A_c"]  # edges it merges, in order of arrival
    staleness: Int[np.ndarray, "C A_c"]  # in cloud rounds
    arrival_s: Float[np.ndarray, "C A_c"]  # when the edge's model was complete at the cloud
    time_s: Float[np.ndarray, " C"]  # when cloud round c closed
    handed: Bool[np.ndarray, "C E"]  # edges that get the new cloud model
    backhaul_bits: Float[np.ndarray, ""]  # of one transfer of a model
    followed_bits: Float[np.ndarray, " K"]  # of uploads in row k that their UEs sent to other cells, on the backhaul

    @property
    def edges(self) -> int:
        """E, the number of edges."""
        return self.sizes.size

    @property
    def most_handed(self) -> int:
        """The most edges that get the model of one cloud round."""
        return int(self.handed.sum(axis=1).max(initial=1))

    @property
    def total_bits(self) -> float:
        """Bits that the merged models, the handed models and the uploads to other cells took over the backhaul."""
        models = self.cells.size + np.count_nonzero(self.handed)
        return float(self.backhaul_bits * models + self.followed_bits.sum())

    def check(self, row_s: Float[np.ndarray, " K"]) -> None:
        """Raise ValueError unless this fits a timeline whose rows closed at these times."""
        k, e, c = row_s.size, self.sizes.size, self.rows.size
        merged = (c, self.cells.shape[-1] if self.cells.ndim == 2 else 0)
        if not (e and merged[1]):
            raise ValueError("timeline cloud must have edges and merge at least one of them per round.")
        shapes = [(k,), (e,), (c,), merged, merged, merged, (c,), (c, e), (), (k,)]
        for (name, values), shape in zip(vars(self).items(), shapes, strict=True):
            if values.shape != shape:
                raise ValueError(f"timeline cloud field {name} has shape {values.shape}; expected {shape}.")
        for name, high in {"cell": e - 1, "cells": e - 1, "staleness": max(c - 1, 0)}.items():
            check_whole(f"cloud field {name}", vars(self)[name], 0, high)
        check_whole("cloud field sizes", self.sizes, 1, np.iinfo(np.int32).max)
        check_whole("cloud field rows", self.rows, 1, k)
        for name in ("arrival_s", "time_s", "backhaul_bits", "followed_bits"):
            values = vars(self)[name]
            if not (np.issubdtype(values.dtype, np.floating) and np.isfinite(values).all() and (values >= 0).all()):
                raise ValueError(f"timeline cloud field {name} must be finite and at least 0.")
        if self.handed.dtype != bool:
            raise ValueError(f"timeline cloud field handed must hold true or false, got {self.handed.dtype}.")
        if (self.staleness > np.arange(c)[:, None]).any() or (np.diff(np.sort(self.cells)) == 0).any():
            raise ValueError("timeline cloud merges an edge twice in a round, or a model that did not exist.")
        after_s = np.append(row_s, np.inf)[self.rows]
        in_order = (row_s[self.rows - 1] <= self.time_s) & (self.time_s <= after_s)
        if not in_order.all() or (np.diff(self.rows) < 0).any() or (np.diff(self.time_s) < 0).any():
            raise ValueError("timeline cloud rounds must be in order of time, between the rows around them.")

    def prefix(self, rows: int) -> "Cloud":
        """Return the cloud of the first rows."""
        kept = self.rows <= rows
        columns = {name: vars(self)[name][kept] for name in ("rows", "cells", "staleness", "arrival_s", "time_s")}
        columns |= {"cell": self.cell[:rows], "followed_bits": self.followed_bits[:rows]}
        return replace(self, handed=self.handed[kept], **columns)


def joined(
    edges: "Sequence[Timeline]",
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
) -> "Timeline":
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
    cell = np.repeat(np.arange(len(edges)), [each.size for each in local])
    rounds, clouds = cell.size, np.arange(time_s.size)
    order = np.lexsort(
        (
            np.concatenate([*local, clouds]),
            np.append(cell, clouds * 0),
            np.concatenate([*turn, 2 * clouds + 1]),
            np.concatenate([*(timeline.time_s for timeline in edges), time_s]),
        )
    )
    is_cloud = order >= rounds
    order = order[~is_cloud]
    number = np.argsort(order)  # row of each edge's rounds
    numbers = np.split(number, np.cumsum([each.size for each in local])[:-1])
    parts = [_renumbered(*each) for each in zip(edges, ues, numbers, strict=True)]
    rows = {name: np.concatenate([part[name] for part in parts]) for name in parts[0] if not name.startswith("open_")}
    by_round = np.argsort(rows["lost_round"], kind="stable")
    for name, values in rows.items():
        rows[name] = values[by_round if name.startswith("lost_") else order]
    population = 1 + max(int(each.max()) for each in ues)
    open_ = {name: np.zeros(population, parts[0][name].dtype) for name in parts[0] if name.startswith("open_")}
    open_ |= {"open_version": np.full(population, IDLE), "open_arrival_s": np.full(population, np.inf)}
    compute_s = np.zeros(population)
    for timeline, own, part in zip(edges, ues, parts, strict=True):
        compute_s[own] = timeline.compute_s
        busy = part["open_version"] != IDLE
        for name, values in open_.items():
            values[own[busy]] = part[name][busy]
    sizes = np.array([each.size for each in ues]) if sizes is None else sizes
    before = np.flatnonzero(is_cloud) - clouds
    bits = np.array(float(backhaul_bits)), np.concatenate([*followed_bits, np.zeros(rounds)])[order]
    cloud = Cloud(cell[order], sizes, before, cells, staleness, arrival_s, time_s, handed, *bits)
    logs = []
    for timeline, own, row in zip(edges, ues, numbers, strict=True):
        if (log := timeline.log) is not None:
            version, ended = np.append(0, row + 1)[log.version], np.append(row, rounds)[log.round]
            logs.append(replace(log, ue=own[log.ue], version=version, round=ended))
    log = in_order(Jobs.joined(logs)) if logs else None
    chosen = [
        replace(edge.choices, ue=own[edge.choices.ue]) for edge, own in zip(edges, ues, strict=True) if edge.choices
    ]
    choices = Choices.joined(chosen) if chosen else None
    return replace(edges[0], **rows, **open_, compute_s=compute_s, log=log, cloud=cloud, choices=choices)


def _renumbered(edge: "Timeline", ues: Int[np.ndarray, " n_e"], number: Int[np.ndarray, " r"]) -> dict[str, np.ndarray]:
    """Return an edge's columns with the UEs, versions and rounds of the joined timeline."""
    made = np.append(0, number + 1)  # its version in the joined timeline
    columns = {name: column for name, column in edge.columns.items() if not name.startswith(("log_", "choices_"))}
    del columns["compute_s"]
    columns.pop("downlink_s", None)
    columns["staleness"] = number[:, None] - made[edge.versions]
    columns["ues"] = ues[edge.ues]
    if (np.diff(ues) != 1).any():  # consecutive UEs of the edge are not consecutive any more
        row, lost_ue = one_by_one(edge.lost_ue, edge.lost_count)
        columns |= {name: column[row] for name, column in columns.items() if name.startswith("lost_")}
        columns |= {"lost_ue": lost_ue, "lost_count": np.ones_like(lost_ue)}
    columns["lost_ue"] = ues[columns["lost_ue"]]
    columns["lost_version"] = made[columns["lost_version"]]
    columns["lost_round"] = number[columns["lost_round"]]
    columns["open_version"] = np.where(edge.open_version == IDLE, IDLE, made[edge.open_version])
    return columns


def edge_versions(timeline: "Timeline") -> tuple[Int[np.ndarray, " K"], Int[np.ndarray, "K A"]]:
    """Return each row's round and each merged update's version, counted by their own edge."""
    rounds, versions = np.arange(timeline.rounds), timeline.versions
    if timeline.cloud is not None:
        rounds, versions = rounds.copy(), versions.copy()
        for rows in _by_edge(timeline.cloud):
            rounds[rows] = np.arange(rows.size)
            versions[rows] = np.searchsorted(rows, versions[rows])
    return rounds, versions


def edge_staleness(timeline: "Timeline") -> Int[np.ndarray, "K A"]:
    """Return how stale each merged update was, in rounds of the server that merged it."""
    rounds, versions = edge_versions(timeline)
    return rounds[:, None] - versions


def end_to_end_staleness(timeline: "Timeline") -> Int[np.ndarray, "K A"]:
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
