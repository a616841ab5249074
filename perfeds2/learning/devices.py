"""Share trainings among several devices."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import PyTree


def on_one(arrays: PyTree) -> PyTree:
    """Return the first device's copy of some arrays."""
    return jax.tree.map(lambda w: w if len(w.devices()) == 1 else w.addressable_data(0), arrays)


def side_by_side(mesh: Mesh | None, job: Callable[..., PyTree], given: PyTree, rows: tuple[PyTree, ...]) -> PyTree:
    """Return ``job(given, *row)`` for every row, stacked. Several devices each compute a share of the rows."""
    jobs = jax.vmap(job, in_axes=(None, *(0 for _ in rows)))
    if mesh is None:
        return jobs(given, *rows)
    share = PartitionSpec(*mesh.axis_names)
    specs = (PartitionSpec(), *(share for _ in rows))
    # Unchecked: a model may start a scan from zeros, which are the same on all devices.
    return jax.shard_map(jobs, mesh=mesh, in_specs=specs, out_specs=share, check_vma=False)(given, *rows)


@jax.jit  # one program, not one for each shape
def stack(trees: Sequence[PyTree]) -> PyTree:
    """Stack the arrays of several trees along a new first axis. Shorter arrays are padded with zeros at their end."""

    def stacked(*arrays: Array) -> Array:
        if arrays[0].ndim == 0:
            return jnp.stack(arrays)
        longest, others = max(len(array) for array in arrays), ((0, 0),) * (arrays[0].ndim - 1)
        return jnp.stack([jnp.pad(array, ((0, longest - len(array)), *others)) for array in arrays])

    return jax.tree.map(stacked, *trees)
