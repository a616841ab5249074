"""Where there are several devices, who computes which participants of a round?"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

from perfeds2.learning.models.model import Params


def shared_by(quorum: int) -> Mesh | None:
    """The devices that share a round's participants; None where there is one, or one participant."""
    devices = jax.local_devices()[:quorum]
    return Mesh(np.array(devices), ("participants",)) if len(devices) > 1 else None


def everywhere(tree: Any, mesh: Mesh | None) -> Any:
    """The same arrays on every device; nothing is copied that is there already."""
    return tree if mesh is None else jax.device_put(tree, NamedSharding(mesh, PartitionSpec()))


def on_one(arrays: Any) -> Any:
    """The first device's copy."""
    return jax.tree.map(lambda w: w if len(w.devices()) == 1 else w.addressable_data(0), arrays)


def over_devices(mesh: Mesh, together: Callable[..., Any], given: Any, jobs: list[Any]) -> Any:
    """What ``together`` makes of all jobs, each device computing its share. Jobs that only fill up the shares count nothing."""
    filling = -jobs[0].size % mesh.size
    counts = jnp.arange(jobs[0].size + filling) < jobs[0].size
    each, all_ = PartitionSpec(*mesh.axis_names), PartitionSpec()
    shared = jax.shard_map(
        partial(together, mesh.axis_names),
        mesh=mesh,
        in_specs=(all_, each, *(each for _ in jobs)),
        out_specs=all_,
        check_vma=False,
    )  # unchecked: a model may start a scan from zeros, which are the same on all devices
    fill = partial(jax.tree.map, lambda rows: jnp.pad(rows, ((0, filling), *((0, 0),) * (rows.ndim - 1))))
    return shared(given, counts, *map(fill, jobs))


def sum_of(upload: Callable[..., Params], axes: Any, given: Any, counts: Array, *jobs: Array) -> Params:
    """On one device: the sum over all devices."""

    def sum_up(g: Array) -> Array:
        return jnp.where(counts.reshape(-1, *(1,) * (g.ndim - 1)), g, 0.0).sum(axis=0)

    return jax.lax.psum(jax.tree.map(sum_up, jax.vmap(partial(upload, given))(*jobs)), axes)


def all_of(job: Callable[..., Any], count: int, axes: Any, given: Any, _: Array, *jobs: Any) -> Any:
    """On one device: the first so many rows of all devices'."""
    own = jax.vmap(partial(job, given))(*jobs)
    return jax.tree.map(lambda rows: jax.lax.all_gather(rows, axes, tiled=True)[:count], own)
