"""The last layer of a model, which UEs of FedPer and FedRep keep for themselves."""

import jax.numpy as jnp

from perfeds2.learning.merges import Params

HEAD = "dense"  # our models' last layer is the last of this name


def head_of(params: Params) -> Params:
    """Return the arrays of the last layer."""
    layers = sorted({name.partition(".")[0] for name in params if name.startswith(HEAD)})
    if not layers:
        raise ValueError(
            f"the model has no layer {HEAD}…, so it has no head that a UE could keep; name its last one so."
        )
    return {name: w for name, w in params.items() if name.partition(".")[0] == layers[-1]}


def with_head(params: Params, kept: Params) -> Params:
    """Return the shared layers with a UE's own head."""
    return params | kept


def without_head(gradient: Params, head: Params) -> Params:
    """Return the gradient with zeros for the head, which is not uploaded."""
    return {name: jnp.zeros_like(g) if name in head else g for name, g in gradient.items()}
