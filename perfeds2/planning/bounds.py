"""What do the paper's bounds and its planning rule say of each way to run the cell?"""

import math
from dataclasses import fields
from typing import Any

from perfeds2.planning.data import BoundRounds, MeasuredConstant, Theory
from perfeds2.planning.options import Option, Scene
from perfeds2.planning.pilot_task import measure_constants
from perfeds2.theory import bounds
from perfeds2.theory.constants import Constants
from perfeds2.theory.optimum import optimum

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


def measured_constants(scene: Scene, probes: list[Any]) -> tuple[MeasuredConstant, ...]:
    pilot = measure_constants(scene.task, probes, alpha=scene.alpha, seed=scene.seed)
    seen = {field.name: getattr(pilot, field.name) for field in fields(pilot)}
    return tuple(MeasuredConstant(name, SYMBOLS[name], e.value, e.low, e.high) for name, e in seen.items())


def _setting(scene: Scene, constants: Constants, staleness: int) -> bounds.Premises:
    batch = scene.learner.batch
    return bounds.Premises.of(
        constants,
        alpha=scene.alpha,
        beta=scene.learner.beta,
        staleness=staleness,
        batch_in=batch,
        batch_out=batch,
        batch_hessian=batch,
    )


def bound_facts(
    scene: Scene, constants: Constants, epsilon: float, stalest: int = 0
) -> tuple[Theory | None, str | None]:
    """The bounds' numbers at the spec's S (``stalest`` where it has none), with A* and K*; or why there are none."""
    bound = scene.max_staleness
    try:
        setting = _setting(scene, constants, stalest if bound is None else bound)
    except ValueError as error:
        return None, str(error)
    best, obstacle = None, None
    try:
        if bound is None:
            raise ValueError("A* needs a staleness bound, and there is none.")
        best = optimum(setting, epsilon, scene.shares)
    except ValueError as error:
        obstacle = str(error)
    smooth, stale = setting.smoothness, setting.staleness
    return Theory(
        smoothness=smooth,
        noise=setting.noise,
        diversity=setting.diversity,
        gap=setting.gap,
        beta=setting.beta,
        largest_beta_printed=bounds.largest_printed_beta(smooth, stale),
        largest_beta_sharpened=bounds.largest_corrected_beta(smooth, stale),
        largest_beta_proved=bounds.largest_proved_beta(smooth, stale),
        printed_quorum=None if best is None or math.isinf(best.printed_quorum) else best.printed_quorum,
        corrected_quorum=None if best is None else best.quorum,
        rounds=None if best is None else best.rounds,
        meets_target=None if best is None else best.meets_target,
        obstacle=obstacle,
    ), obstacle


def _bound_rounds(
    bound: bounds.Bound, largest_beta: float, beta: float, epsilon: float, seconds_per_round: float
) -> BoundRounds:
    rounds = bound.rounds_needed(epsilon)
    if rounds is not None:
        return BoundRounds(rounds, rounds * seconds_per_round, None)
    if not bound.admissible:
        return BoundRounds(None, None, f"β = {beta:.3g} is above the largest admissible, {largest_beta:.3g}")
    return BoundRounds(None, None, f"its noise floor {bound.floor:.3g} is not below ε = {epsilon:.3g}")


def promises(scene: Scene, option: Option, constants: Constants, epsilon: float) -> dict[str, BoundRounds]:
    """Rounds to ε by the paper's rule, and by the printed, the sharpened and the proved bound. S is the stalest merged.

    θ is n/A, true of any schedule.
    """
    pace = option.seconds_per_round
    setting = _setting(scene, constants, int(option.timeline.staleness.max()))
    error = bounds.merge_error(setting, bounds.spread_of_any_schedule(scene.cell.ues, option.quorum))
    smooth, stale, beta = setting.smoothness, setting.staleness, setting.beta
    least = 1 / (option.quorum * max(float(scene.shares.min()), 1e-12))  # every UE is merged once
    rule = math.ceil(max(2 * setting.gap / (beta * epsilon), least, 1))
    found = {
        "printed": (bounds.printed(setting, option.quorum), bounds.largest_printed_beta(smooth, stale)),
        "sharpened": (bounds.sharpened(setting, error), bounds.largest_corrected_beta(smooth, stale)),
        "proved": (bounds.proved(setting, error), bounds.largest_proved_beta(smooth, stale)),
    }
    return {"rule": BoundRounds(rule, rule * pace, None)} | {
        name: _bound_rounds(bound, largest, beta, epsilon, pace) for name, (bound, largest) in found.items()
    }
