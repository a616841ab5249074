"""Compute what a UE reports with an upload, for schedules that ask for feedback."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from perfeds2.learning.gradients import Batches
from perfeds2.learning.models.model import Model, Params, loss_of, mean_loss
from perfeds2.learning.trees import Number, norm


class ReportedJob(NamedTuple):
    """What a UE received, its first batch, and what it uploads."""

    model: Model
    params: Params
    x: Array
    y: Array
    upload: Params


def loss(job: ReportedJob) -> Number:
    """Return the mean loss of the received model on the first batch."""
    return mean_loss(job.model, job.params, job.x, job.y)


def rms_loss(job: ReportedJob) -> Number:
    """Return the root of the mean squared loss of the samples of the first batch."""
    return jnp.sqrt(jnp.square(loss_of(job.model)(job.model(job.params, job.x), job.y)).mean())


def gradient_norm(job: ReportedJob) -> Number:
    """Return the norm of the gradient of the received model on the first batch."""
    return norm(jax.grad(lambda w: mean_loss(job.model, w, job.x, job.y))(job.params))


def update_norm(job: ReportedJob) -> Number:
    """Return the norm of the upload."""
    return norm(job.upload)


REPORTS: dict[str, Callable[[ReportedJob], Number]] = {
    "loss": loss,
    "rms_loss": rms_loss,
    "gradient_norm": gradient_norm,
    "update_norm": update_norm,
}


def report(kind: str, model: Model, params: Params, batches: Batches, upload: Params) -> Number:
    """Return what a UE reports about a job. Without the barrier, XLA would round the upload differently."""
    first = jax.tree.map(lambda rows: rows[0, 0], batches)
    params, (x, y), upload = jax.lax.optimization_barrier((params, first, upload))
    return REPORTS[kind](ReportedJob(model, params, x, y, upload))
