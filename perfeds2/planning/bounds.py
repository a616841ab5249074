"""What do the paper's bounds and its planning rule say of each way to run the cell?"""

import math
from dataclasses import fields
from typing import Any

from perfeds2.learning.models.model import Params, mean_loss
from perfeds2.learning.task import stacked_samples
from perfeds2.planning.data import BoundRounds, MeasuredConstant, Theory
from perfeds2.planning.options import Option, Scene
from perfeds2.theory import bounds
from perfeds2.theory.constants import Constants
from perfeds2.theory.optimum import optimum
from perfeds2.theory.pilot import measure

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


def measured_constants(scene: Scene, models: list[Any]) -> tuple[MeasuredConstant, ...]:
    """The paper's constants on the task, seen from a few models. The first of them is where training starts."""
    x, y = stacked_samples(scene.task)

    def loss(params: Params, batch: tuple[Any, Any]) -> Any:
        return mean_loss(scene.task.model, params, *batch)

    effort = {"samples": 2, "directions": 1, "lanczos_steps": 8, "descent_steps": 30}
    pilot = measure(loss, models, x, y, alpha=scene.alpha, seed=scene.seed, **effort)
    seen = {field.name: getattr(pilot, field.name) for field in fields(pilot)}
    return tuple(MeasuredConstant(name, SYMBOLS[name], e.value, e.low, e.high) for name, e in seen.items())


def bound_facts(scene: Scene, constants: Constants, epsilon: float, stalest: int = 0) -> Theory | str:
    """The bounds' numbers at the spec's S (``stalest`` where it has none), with A* and K*; or why there are none."""
    bound = scene.max_staleness
    try:
        known = _carried_over(scene, constants, stalest if bound is None else bound)
    except ValueError as error:
        return str(error)
    best, obstacle = None, None
    try:
        if bound is None:
            raise ValueError("A* needs a staleness bound, and there is none.")
        best = optimum(known, epsilon, scene.shares)
    except ValueError as error:
        obstacle = str(error)
    smooth, stale = known.smoothness, known.staleness
    return Theory(
        smoothness=smooth,
        noise=known.noise,
        diversity=known.diversity,
        gap=known.gap,
        beta=known.beta,
        largest_beta_printed=bounds.largest_printed_beta(smooth, stale),
        largest_beta_sharpened=bounds.largest_corrected_beta(smooth, stale),
        largest_beta_proved=bounds.largest_proved_beta(smooth, stale),
        printed_quorum=None if best is None or math.isinf(best.printed_quorum) else best.printed_quorum,
        corrected_quorum=None if best is None else best.quorum,
        rounds=None if best is None else best.rounds,
        meets_target=None if best is None else best.meets_target,
        obstacle=obstacle,
    )


def promises(scene: Scene, option: Option, constants: Constants, epsilon: float) -> dict[str, BoundRounds]:
    """Rounds to ε by the paper's rule, and by the printed, the sharpened and the proved bound. S is the stalest merged.

    θ is n/A, true of any schedule.
    """
    pace = option.seconds_per_round
    known = _carried_over(scene, constants, int(option.timeline.staleness.max()))
    error = bounds.merge_error(known, bounds.spread_of_any_schedule(scene.cell.ues, option.quorum))
    smooth, stale = known.smoothness, known.staleness

    def promise(bound: bounds.Bound, largest_beta: float) -> BoundRounds:
        rounds = bound.rounds_needed(epsilon)
        if rounds is not None:
            return BoundRounds(rounds, rounds * pace, None)
        if not bound.admissible:
            return BoundRounds(None, None, f"β = {known.beta:.3g} is above the largest admissible, {largest_beta:.3g}")
        return BoundRounds(None, None, f"its noise floor {bound.floor:.3g} is not below ε = {epsilon:.3g}")

    least = 1 / (option.quorum * max(float(scene.shares.min()), 1e-12))  # every UE is merged once
    rule = math.ceil(max(2 * known.gap / (known.beta * epsilon), least, 1))
    return {
        "rule": BoundRounds(rule, rule * pace, None),
        "printed": promise(bounds.printed(known, option.quorum), bounds.largest_printed_beta(smooth, stale)),
        "sharpened": promise(bounds.sharpened(known, error), bounds.largest_corrected_beta(smooth, stale)),
        "proved": promise(bounds.proved(known, error), bounds.largest_proved_beta(smooth, stale)),
    }


def _carried_over(scene: Scene, constants: Constants, staleness: int) -> bounds.Premises:
    """The constants of the meta-objective, by Lemmas 1 to 3."""
    batch = scene.learner.batch
    batches = {"batch_in": batch, "batch_out": batch, "batch_hessian": batch}
    return bounds.Premises.of(constants, alpha=scene.alpha, beta=scene.learner.beta, staleness=staleness, **batches)
