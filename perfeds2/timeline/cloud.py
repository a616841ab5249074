"""Record the cloud's rounds of a timeline with many cells."""

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float, Int

from perfeds2.timeline.checks import check_whole


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
        """The most edges that get the model of one cloud round; as many as it merges if there was none yet."""
        return int(self.handed.sum(axis=1).max(initial=self.cells.shape[1]))

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
