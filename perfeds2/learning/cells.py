"""Merge the models of edges at the cloud, in a replay of a timeline with many cells."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from perfeds2.learning.merges import weighted
from perfeds2.learning.models.model import Params
from perfeds2.learning.settings import traced
from perfeds2.learning.shelf import power_of_two
from perfeds2.timeline.cloud import Cloud

NOWHERE = np.iinfo(np.int32).max  # an index that writes nothing


@traced
class CloudScript:
    """The cloud's rounds as the compiled loop reads them; their number is rounded up."""

    cell: Int[Array, "*lanes k"]  # edge of each row
    weights: Float[Array, "*lanes edges"]  # of an edge's move: its UEs relative to the mean, over A_c
    due: Int[Array, "*lanes c"]  # rows before a cloud round; -1 after the last one
    cells: Int[Array, "*lanes c A_c"]  # edges it merges
    handed: Int[Array, "*lanes c h"]  # edges that get its model, and NOWHERE
    write: Int[Array, "*lanes c h"]  # slot of their newest version, which that model replaces

    @classmethod
    def of(cls, cloud: Cloud, write: Int[np.ndarray, " K"]) -> "CloudScript":
        """Return the script of a cloud; ``write`` is the slot of the new model of each row."""
        rounds, length = cloud.rows.size, max(1024, power_of_two(cloud.rows.size + 1))
        cell = np.zeros(max(16384, power_of_two(cloud.cell.size)))
        cell[: cloud.cell.size] = cloud.cell
        handed = np.full((2, length, cloud.most_handed), NOWHERE)
        newest = np.full(cloud.edges, NOWHERE)
        for number, (first, last) in enumerate(zip(np.append(0, cloud.rows), cloud.rows, strict=False)):
            newest[cloud.cell[first:last]] = write[first:last]
            edges = np.flatnonzero(cloud.handed[number])
            handed[:, number, : edges.size] = edges, newest[edges]
        due, cells = np.full(length, -1), np.zeros((length, cloud.cells.shape[1]))
        due[:rounds], cells[:rounds] = cloud.rows, cloud.cells
        weights = np.float32(cloud.sizes / cloud.sizes.mean() / cloud.cells.shape[1])
        cell, *rest = (jnp.asarray(each, jnp.int32) for each in (cell, due, cells, *handed))
        return cls(cell, jnp.asarray(weights), *rest)


@traced
class Edges:
    """The models of all edges, stacked."""

    newest: PyTree
    handed: PyTree  # the cloud's model that each edge has got last
    cloud_round: Int[Array, "*lanes"]  # cloud rounds so far

    @classmethod
    def at_start(cls, params: Params, script: CloudScript) -> "Edges":
        stacked = jax.tree.map(lambda w: jnp.repeat(w[None], script.weights.size, axis=0), params)
        return cls(stacked, jax.tree.map(jnp.copy, stacked), jnp.int32(0))  # both are donated, so they differ


def merge_edges(
    script: CloudScript,
    cloud: Params,
    edges: Edges,
    made: Params,
    shelf: PyTree,
    k: Int[Array, ""],
    alive: Bool[Array, ""],
) -> tuple[Params, PyTree, Edges]:
    """Keep the model that row k has made, then play the cloud rounds before row k + 1. Do nothing unless ``alive``.

    Returns the cloud's model, the shelf and the edges.
    """
    at = jnp.where(alive, script.cell[k], NOWHERE)
    newest = jax.tree.map(lambda old, new: old.at[at].set(new, mode="drop"), edges.newest, made)
    edges = Edges(newest, edges.handed, edges.cloud_round)
    return merge_at_cloud(script, cloud, edges, shelf, jnp.where(alive, k + 1, NOWHERE))


def merge_at_cloud(
    script: CloudScript, cloud: Params, edges: Edges, shelf: PyTree, rows: Int[Array, ""]
) -> tuple[Params, PyTree, Edges]:
    """Play the cloud rounds that come directly after this many rows, unless they were played before.

    A cloud round moves the cloud's model by the weighted mean of what its edges have learned since they were handed
    a model.
    """

    def is_due(so_far: tuple[Params, PyTree, Edges]) -> Bool[Array, ""]:
        return script.due[so_far[2].cloud_round] == rows

    def play(so_far: tuple[Params, PyTree, Edges]) -> tuple[Params, PyTree, Edges]:
        cloud, shelf, edges = so_far
        number = edges.cloud_round
        merged, handed, write = script.cells[number], script.handed[number], script.write[number]
        moves = jax.tree.map(lambda old, new: old[merged] - new[merged], edges.handed, edges.newest)
        cloud = jax.tree.map(jnp.subtract, cloud, weighted(script.weights[merged], moves))

        def put(rows: PyTree, places: Array) -> PyTree:
            return jax.tree.map(lambda old, new: old.at[places].set(new, mode="drop"), rows, cloud)

        return cloud, put(shelf, write), Edges(put(edges.newest, handed), put(edges.handed, handed), number + 1)

    return jax.lax.while_loop(is_due, play, (cloud, shelf, edges))
