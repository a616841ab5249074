"""Share work among several devices: the participants of a round, or trainings."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def shared_by(quorum: int) -> Mesh | None:
    """Return a mesh of the devices that share a round's participants; None for one device or one participant."""
    devices = jax.local_devices()[:quorum]
    return Mesh(np.array(devices), ("participants",)) if len(devices) > 1 else None


def everywhere(tree: Any, mesh: Mesh | None) -> Any:
    """Replicate arrays on every device. Arrays that are already there are not copied."""
    return tree if mesh is None else jax.device_put(tree, NamedSharding(mesh, PartitionSpec()))


def on_one(arrays: Any) -> Any:
    """Return the first device's copy of some arrays."""
    return jax.tree.map(lambda w: w if len(w.devices()) == 1 else w.addressable_data(0), arrays)


def side_by_side(mesh: Mesh | None, job: Callable[..., Any], given: Any, rows: Any) -> Any:
    """Return ``job(given, *row)`` for every row, stacked. Several devices each compute a share of the rows."""
    jobs = jax.vmap(job, in_axes=(None, *(0 for _ in rows)))
    if mesh is None:
        return jobs(given, *rows)
    count = jax.tree.leaves(rows)[0].shape[0]
    filling = -count % mesh.size
    if filling:
        rows = jax.tree.map(lambda each: _padded(each, count + filling), rows)
    all_, share = PartitionSpec(), PartitionSpec(*mesh.axis_names)
    specs = (all_, *(share for _ in rows))
    # Unchecked: a model may start a scan from zeros, which are the same on all devices.
    shared = jax.shard_map(jobs, mesh=mesh, in_specs=specs, out_specs=share, check_vma=False)
    return jax.tree.map(lambda each: each[:count], shared(given, *rows))


def stack(trees: Sequence[Any]) -> Any:
    """Stack the arrays of several trees along a new first axis. Shorter arrays are padded with zeros at their end."""

    def stacked(*arrays: Array) -> Array:
        if arrays[0].ndim == 0:
            return jnp.stack(arrays)
        longest = max(len(array) for array in arrays)
        return jnp.stack([_padded(array, longest) for array in arrays])

    return jax.tree.map(stacked, *trees)


def _padded(array: Array, length: int) -> Array:
    return jnp.pad(array, ((0, length - len(array)), *((0, 0),) * (array.ndim - 1)))
