"""Evaluate the paper's bounds and its planning rule for a choice, on the way to the target.

The bounds are about ε, the mean of ‖∇F‖² over the rounds. It is measured along a training of the choice until it kept
the target, and the constants are measured at a few of its models.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from perfeds2.learning.data import Data
from perfeds2.learning.evaluate import MOST_UES
from perfeds2.learning.models.model import Model, Params, mean_loss
from perfeds2.learning.replay import Learner
from perfeds2.learning.task import Task, stacked_samples
from perfeds2.learning.train import evaluation_points, train
from perfeds2.spec.build import Stage, make_algorithms, make_timelines
from perfeds2.spec.fields import Spec
from perfeds2.spec.tasks import make_task
from perfeds2.studies.plan_data import BoundRounds, Candidate, MeasuredConstant, Theory
from perfeds2.theory import bounds
from perfeds2.theory.constants import Constants
from perfeds2.theory.optimum import optimum
from perfeds2.theory.pilot import measure
from perfeds2.timeline.record import Timeline

LOOKS = 30  # evaluations on the way to the target
SYMBOLS = {
    "smoothness": "L",
    "gradient_bound": "C",
    "hessian_lipschitz": "ρ",
    "gradient_noise": "σ_G",
    "hessian_noise": "σ_H",
    "gradient_diversity": "γ_G",
    "hessian_diversity": "γ_H",
    "gap": "F(w_0) − F*",
}


@dataclass(frozen=True)
class Scene:
    """One choice with one seed, to which the bounds are applied."""

    task: Task
    learner: Learner
    timeline: Timeline
    shares: Float[np.ndarray, " n"]
    max_staleness: int | None
    seed: int

    @property
    def alpha(self) -> float:
        return self.learner.personal_step


def make_scene(spec: Spec) -> Scene:
    """Make the scene of the first seed of a spec with one algorithm."""
    seed = spec.run.seeds[0]
    stage = Stage.of(spec, seed)
    (algorithm,) = make_algorithms(spec, stage)
    (timeline,) = make_timelines(spec, stage, [algorithm])
    assert algorithm.shares is not None  # semi-synchronous algorithms have shares
    bound = algorithm.protocol.max_staleness
    return Scene(make_task(spec, seed), algorithm.learner, timeline, algorithm.shares, bound, seed)


def theory_of(spec: Spec, candidate: Candidate) -> Theory:
    """Evaluate the bounds for a choice that keeps its target."""
    scene, until_s = make_scene(spec), candidate.trials[0].time_s
    assert until_s is not None
    epsilon, models = _on_the_way(scene, until_s)
    measured = measured_constants(scene, models)
    known = Constants(**{each.name: each.value for each in measured})
    return bound_facts(scene, known, epsilon, measured)


def _on_the_way(scene: Scene, until_s: float) -> tuple[float, list[Any]]:
    """Return the mean of ‖∇F‖² over the rounds until ``until_s``, and a few models from the first to the last."""
    timeline = scene.timeline
    points = evaluation_points(timeline, horizon_s=until_s, every_s=until_s / LOOKS)
    trainings = train(scene.task, timeline, scene.learner, points, seed=scene.seed)
    models = [jax.tree.map(jnp.array, training.state.params) for training in trainings]
    squares = [squared_gradient(scene.task, params, scene.alpha) for params in models]
    rounds = [point.round for point in points]
    mean = float(np.trapezoid(squares, rounds) / rounds[-1]) if rounds[-1] else squares[0]
    some = np.unique(np.linspace(0, len(models) - 1, 4).round().astype(int))
    return mean, [models[at] for at in some]


def squared_gradient(task: Task, params: Params, alpha: float) -> float:
    """Return ‖∇F(w)‖², where F is the mean of F_i(w) = f_i(w − α∇f_i(w)).

    It is computed over the training data that an evaluation uses.
    """
    step = jnp.asarray(alpha, jnp.float32)
    return float(_squared_gradient(params, task.data, step, model=task.model, length=task.data.lengths()[0]))


@partial(jax.jit, static_argnames=("model", "length"))
def _squared_gradient(
    params: Params, data: Data, alpha: Float[Array, ""], *, model: Model, length: int
) -> Float[Array, ""]:
    def adapted(params: Params, ue: Array) -> Float[Array, ""]:
        part = data.train_part(ue, length)
        gradient = jax.grad(lambda w: mean_loss(model, w, *part))(params)
        return mean_loss(model, jax.tree.map(lambda w, g: w - alpha * g, params, gradient), *part)

    ues = min(data.ues, MOST_UES)

    def add(ue: Array, total: Params) -> Params:
        return jax.tree.map(jnp.add, total, jax.grad(adapted)(params, ue))

    total = jax.lax.fori_loop(0, ues, add, jax.tree.map(jnp.zeros_like, params))
    return sum((jnp.sum((g / ues) ** 2) for g in jax.tree.leaves(total)), start=jnp.zeros(()))


def measured_constants(scene: Scene, models: Sequence[Any]) -> tuple[MeasuredConstant, ...]:
    """Measure the paper's constants on the task at a few models, the first of which is the initial one."""
    x, y = stacked_samples(scene.task)

    def loss(params: Params, batch: tuple[Any, Any]) -> Any:
        return mean_loss(scene.task.model, params, *batch)

    seen = measure(loss, list(models), x, y, alpha=scene.alpha, seed=scene.seed)
    return tuple(MeasuredConstant(name, SYMBOLS[name], e.value, e.low, e.high) for name, e in seen.items())


def bound_facts(
    scene: Scene, constants: Constants, epsilon: float, measured: tuple[MeasuredConstant, ...] = ()
) -> Theory:
    """Return the numbers of the bounds for a choice, with A* and K*, or why there are none.

    S is that of the choice or, if it is unbounded, the largest staleness of a merged update.
    """
    bound = scene.max_staleness
    try:
        known = _carried_over(scene, constants, int(scene.timeline.staleness.max()) if bound is None else bound)
    except ValueError as error:
        return Theory(epsilon, measured, str(error))
    smooth, stale = known.smoothness, known.staleness
    said = Theory(
        epsilon=epsilon,
        constants=measured,
        obstacle=None,
        smoothness=smooth,
        noise=known.noise,
        diversity=known.diversity,
        gap=known.gap,
        beta=known.beta,
        largest_beta_printed=bounds.largest_printed_beta(smooth, stale),
        largest_beta_sharpened=bounds.largest_corrected_beta(smooth, stale),
        largest_beta_proved=bounds.largest_proved_beta(smooth, stale),
        promises=tuple(promises(scene, constants, epsilon).items()),
    )
    try:
        if bound is None:
            raise ValueError("A* needs a staleness bound, and there is none.")
        best = optimum(known, epsilon, scene.shares)
    except ValueError as error:
        return replace(said, obstacle=str(error))
    return replace(
        said,
        printed_quorum=None if math.isinf(best.printed_quorum) else best.printed_quorum,
        corrected_quorum=best.quorum,
        rounds=best.rounds,
        meets_target=best.meets_target,
    )


def promises(scene: Scene, constants: Constants, epsilon: float) -> dict[str, BoundRounds]:
    """Return the rounds to ε by the paper's rule, and by the printed, the sharpened and the proved bound.

    S is the largest staleness of a merged update; θ is n/A, which holds for any schedule.
    """
    timeline = scene.timeline
    quorum, pace = timeline.quorum, timeline.end_s / timeline.rounds
    known = _carried_over(scene, constants, int(timeline.staleness.max()))
    error = bounds.merge_error(known, bounds.spread_of_any_schedule(timeline.population, quorum))
    smooth, stale = known.smoothness, known.staleness

    def promise(bound: bounds.Bound, largest_beta: float) -> BoundRounds:
        rounds = bound.rounds_needed(epsilon)
        if rounds is not None:
            return BoundRounds(rounds, rounds * pace, None)
        if not bound.admissible:
            return BoundRounds(None, None, f"β = {known.beta:.3g} is above the largest admissible, {largest_beta:.3g}")
        return BoundRounds(None, None, f"its noise floor {bound.floor:.3g} is not below ε = {epsilon:.3g}")

    least = 1 / (quorum * max(float(scene.shares.min()), 1e-12))  # rounds until every UE has been merged once
    rule = math.ceil(max(2 * known.gap / (known.beta * epsilon), least, 1))
    return {
        "the rule": BoundRounds(rule, rule * pace, None),
        "the printed bound": promise(bounds.printed(known, quorum), bounds.largest_printed_beta(smooth, stale)),
        "the sharpened bound": promise(bounds.sharpened(known, error), bounds.largest_corrected_beta(smooth, stale)),
        "the proved bound": promise(bounds.proved(known, error), bounds.largest_proved_beta(smooth, stale)),
    }


def _carried_over(scene: Scene, constants: Constants, staleness: int) -> bounds.Premises:
    """Return the constants of the meta-objective, by Lemmas 1 to 3."""
    batch = scene.learner.batch
    batches = {"batch_in": batch, "batch_out": batch, "batch_hessian": batch}
    return bounds.Premises.of(constants, alpha=scene.alpha, beta=scene.learner.beta, staleness=staleness, **batches)
