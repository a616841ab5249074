"""What does a short training of a task tell: its constants, its gradients, and the rounds it takes to a loss?"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from perfeds2.learning.data import Data
from perfeds2.learning.evaluate import MOST_UES
from perfeds2.learning.models.model import Model, Params, cross_entropy
from perfeds2.learning.replay import Learner
from perfeds2.learning.task import Task
from perfeds2.learning.train import EvaluationPoint, train
from perfeds2.theory.pilot import Pilot, measure
from perfeds2.timeline.timeline import Timeline

SAMPLES_PER_UE = 32  # a UE's distribution, as the pilot sees it
PILOT_UES = 32  # of a larger population so many, evenly spaced, stand for all


def measure_constants(task: Task, points: list[Any], *, alpha: float, seed: int = 0) -> Pilot:
    """The paper's constants on a task, seen from a few models. The first of them is where training starts."""
    x, y = stacked_samples(task)

    def loss(params: Params, batch: tuple[Any, Any]) -> Any:
        return cross_entropy(task.model, params, *batch)

    return measure(
        loss, points, x, y, alpha=alpha, seed=seed, samples=2, directions=1, lanczos_steps=8, descent_steps=30
    )


def stacked_samples(task: Task, samples: int = SAMPLES_PER_UE, ues: int = PILOT_UES) -> tuple[np.ndarray, np.ndarray]:
    """x[n, m, …] and y[n, m, …]: evenly spaced training samples of each UE; one with fewer gives some more than once."""
    chosen = np.unique(np.linspace(0, task.ues - 1, min(ues, task.ues)).round().astype(int))
    xs, ys = [], []
    for ue in chosen:
        x, y, mask = (np.asarray(part) for part in task.data.train_part(jnp.asarray(ue), task.data.lengths()[0]))
        size = int(mask.sum())
        at = np.arange(samples) * size // samples if size >= samples else np.arange(samples) % size
        xs.append(x[at])
        ys.append(y[at])
    return np.stack(xs), np.stack(ys)


def squared_gradient(task: Task, params: Params, alpha: float) -> float:
    """‖∇F(w)‖² over all training data, F being the mean of F_i(w) = f_i(w − α∇f_i(w))."""
    step = jnp.asarray(alpha, jnp.float32)
    return float(_squared_gradient(params, task.data, step, model=task.model, length=task.data.lengths()[0]))


@partial(jax.jit, static_argnames=("model", "length"))
def _squared_gradient(
    params: Params, data: Data, alpha: Float[Array, ""], *, model: Model, length: int
) -> Float[Array, ""]:
    def adapted(params: Params, ue: Array) -> Float[Array, ""]:
        part = data.train_part(ue, length)
        gradient = jax.grad(lambda w: cross_entropy(model, w, *part))(params)
        return cross_entropy(model, jax.tree.map(lambda w, g: w - alpha * g, params, gradient), *part)

    ues = min(data.ues, MOST_UES)

    def add(ue: Array, total: Params) -> Params:
        return jax.tree.map(jnp.add, total, jax.grad(adapted)(params, ue))

    total = jax.lax.fori_loop(0, ues, add, jax.tree.map(jnp.zeros_like, params))
    return sum((jnp.sum((g / ues) ** 2) for g in jax.tree.leaves(total)), start=jnp.zeros(()))


@dataclass(frozen=True)
class Look:
    """A training at one of its evaluations."""

    round: int
    loss: float  # F(w)
    accuracy: float  # personalised, on test data
    params: Any  # good until the training goes on


def follow(task: Task, timeline: Timeline, learner: Learner, *, seed: int, every: int) -> Iterator[Look]:
    """Train along a timeline and look every so many rounds. Stops where the loss is no number."""
    rounds = [*range(0, timeline.rounds, every), timeline.rounds]
    points = [EvaluationPoint(k, float(timeline.start_s[k])) for k in rounds]
    for number, training in enumerate(train(task, timeline, learner, points, seed=seed)):
        now = training.values[-1]
        yield Look(
            points[number].round, now["train_loss_personal"], now["test_accuracy_personal"], training.state.params
        )
        if not math.isfinite(now["train_loss_personal"]):
            return


@dataclass(frozen=True)
class Measured:
    """How long a training took to a loss."""

    rounds: float | None  # None: it did not get there
    trained_rounds: int
    final_loss: float


def train_to_loss(
    task: Task,
    timeline: Timeline,
    learner: Learner,
    target: float,
    *,
    seed: int,
    every: int,
    tell: Callable[[int], None] | None = None,
) -> Measured:
    """Train until the personalised loss is at the target, or the timeline ends."""
    before: Look | None = None
    for look in follow(task, timeline, learner, seed=seed, every=every):
        if tell is not None:
            tell(look.round)
        if look.loss <= target:
            return Measured(crossing(before, look, target), look.round, look.loss)
        before = look
    assert before is not None
    return Measured(None, before.round, before.loss)


def crossing(before: Look | None, after: Look, target: float) -> float:
    """Where between two looks the loss met the target, the loss falling exponentially in between."""
    if before is None or after.loss <= 0:
        return float(after.round)
    part = math.log(before.loss / target) / math.log(before.loss / after.loss)
    return before.round + part * (after.round - before.round)
