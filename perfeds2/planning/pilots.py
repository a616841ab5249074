"""How many rounds does each way take to the target loss, by training along a few of them?

Who is merged, and how stale, decides what is learned; seconds do not matter here. So a pilot's rounds hold for every way
that merges alike, and a law through the pilots says what the others would need.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from scipy.optimize import nnls

from perfeds2.planning.data import Candidate, Law, Target
from perfeds2.planning.options import CLOSINGS, Option, Scene, longer, make_option
from perfeds2.planning.pilot_task import Look, Measured, crossing, follow, squared_gradient, train_to_loss
from perfeds2.errors import InputError

PILOT_ROUNDS = 1000  # the reference pilot gives up after so many
MOST_PILOTS = 9
ENOUGH_PILOTS = 6  # if the soonest is among them
PATIENCE = 5  # a pilot may take so many times the reference's rounds

Tell = Callable[..., None]  # what, share of all, rounds and simulated seconds of the training at work


def pick_reference(scene: Scene) -> Option:
    """The spec's A with planned rounds, or the next larger A that its S allows; A = n always does."""
    for quorum in range(scene.quorum, scene.cell.ues + 1):
        option = make_option(scene, quorum, scene.max_staleness, "planned")
        if isinstance(option, Option):
            return option
    raise InputError(f"no quorum from {scene.quorum} to {scene.cell.ues} can be planned: {option}")


def aim(
    scene: Scene,
    reference: Option,
    epsilon: float | None,
    target_loss: float | None,
    pilot_rounds: int,
    tell: Tell,
) -> tuple[Target, Measured, list[Any]]:
    """Train the reference until the target. Returns the target in both languages, what it took, and probe points."""
    timeline = longer(scene, reference, pilot_rounds)
    every = max(1, min(pilot_rounds // 100, 10))
    looks: list[Look] = []
    squares: list[float] = []
    probes: list[Any] = []
    peak = 0.0  # of the mean of ‖∇F‖²: it starts small, rises, and falls; ε is met on the way down
    for look in follow(scene.task, timeline, scene.learner, seed=scene.seed, every=every):
        share, time_s = 0.3 * look.round / pilot_rounds, float(timeline.start_s[look.round])
        tell(f"reference pilot A = {reference.quorum}", share, look.round, time_s)
        looks.append(replace(look, params=None))
        squares.append(squared_gradient(scene.task, look.params, scene.alpha))
        mean = _mean_so_far(looks, squares)
        peak = max(peak, mean)
        met = (
            look.loss <= target_loss
            if target_loss is not None
            else mean <= epsilon < peak
            if epsilon is not None
            else look.accuracy >= scene.spec.run.target_accuracy
        )
        if target_loss is not None and looks[0].loss <= target_loss:
            raise InputError(f"--target-loss {target_loss:g} is met before training (at {look.loss:.4g}); lower it.")
        number = len(looks) - 1
        if met or number & (number - 1) == 0 or look.round == pilot_rounds:  # 0, 1, 2, 4, 8, …, the last
            probes.append(jax.tree.map(np.asarray, look.params))
        if met and number > 0:
            break
    else:
        met = False
    last = looks[-1]
    if not math.isfinite(last.loss):
        raise InputError(f"training diverges with --beta {scene.spec.learning.beta:g}; lower it before planning.")
    reached = f"after {last.round} rounds at A = {reference.quorum} it is at"
    if not met and target_loss is not None:
        raise InputError(
            f"--target-loss {target_loss:g} is not reached by the reference pilot ({reached} {last.loss:.4g}); "
            f"raise it, or --pilot-rounds."
        )
    if not met and epsilon is not None and peak <= epsilon:
        raise InputError(
            f"--epsilon {epsilon:g} is no target: the reference pilot's mean ‖∇F‖² never exceeds {peak:.4g}; lower it."
        )
    if not met and epsilon is not None:
        raise InputError(
            f"--epsilon {epsilon:g} is not reached by the reference pilot ({reached} {_mean_so_far(looks, squares):.4g}); "
            f"raise it, or --pilot-rounds."
        )
    wanted = f"{scene.spec.run.target_accuracy:.4g} personalised test accuracy"
    loss_from = (
        "given"
        if target_loss is not None
        else f"the reference pilot's loss when its mean ‖∇F‖² met ε, after {last.round} rounds"
        if epsilon is not None
        else f"the reference pilot's loss when it met {wanted}, after {last.round} rounds"
        if met
        else f"the reference pilot's loss after {last.round} rounds ({wanted} was not met)"
    )
    loss = last.loss if target_loss is None else target_loss
    rounds = float(last.round) if target_loss is None else crossing(looks[-2], last, loss)
    target = Target(
        loss=loss,
        epsilon=_mean_so_far(looks, squares) if epsilon is None else epsilon,
        accuracy=last.accuracy,
        loss_from=loss_from,
        epsilon_from="given" if epsilon is not None else "the reference pilot's mean ‖∇F‖² on its way to that loss",
    )
    return target, Measured(max(rounds, 1.0), last.round, last.loss), _spread(probes)


def _mean_so_far(looks: Sequence[Look], squares: Sequence[float]) -> float:
    """The mean of ‖∇F(w_k)‖² over the rounds so far, between looks on a straight line."""
    if len(looks) == 1:
        return squares[0]
    return float(np.trapezoid(squares, [look.round for look in looks]) / looks[-1].round)


def _spread(probes: list[Any], most: int = 4) -> list[Any]:
    """A few of the probe points, the first and the last among them."""
    at = np.unique(np.linspace(0, len(probes) - 1, min(most, len(probes))).round().astype(int))
    return [probes[i] for i in at]


Trained = dict[bytes, tuple[Option, Measured]]  # by who is merged and how stale


def train_pilots(
    scene: Scene, options: Sequence[Option], reference: Option, first: Measured, loss: float, tell: Tell
) -> Trained:
    """Train where it tells most: at the extremes of staleness, then wherever the law sees the soonest, until that is trained."""
    trained: Trained = {reference.who: (reference, first)}
    assert first.rounds is not None
    limit = math.ceil(PATIENCE * first.rounds)
    every = max(1, round(first.rounds / 20))

    def measure(option: Option) -> None:
        number = len(trained)

        def watch(round_: int) -> None:
            share = 0.6 + 0.35 * (number + round_ / limit) / MOST_PILOTS
            tell(f"pilot A = {option.quorum}", share, round_, round_ * option.seconds_per_round)

        timeline = longer(scene, option, limit)
        outcome = train_to_loss(scene.task, timeline, scene.learner, loss, seed=scene.seed, every=every, tell=watch)
        trained[option.who] = option, outcome

    for closing in CLOSINGS:
        kind = [option for option in options if option.closing == closing]
        for extreme in (max, min):
            if kind:
                option = extreme(kind, key=lambda o: (o.staleness_square, -o.quorum))
                if option.who not in trained:
                    measure(option)
    while len(trained) < MOST_PILOTS:
        law = fit_law(points(trained))
        best = min(options, key=lambda o: soonest_first(predicted_s(o, law, trained), o), default=None)
        if best is None:
            break
        if best.who in trained:  # the answer is found; its nearest rivals deserve a look, too
            rivals = [option for option in options if option.who not in trained]
            if len(trained) >= ENOUGH_PILOTS or not rivals:
                break
            best = min(rivals, key=lambda o: soonest_first(predicted_s(o, law, trained), o))
        measure(best)
    return trained


def points(trained: Trained) -> list[tuple[Option, float]]:
    """What the law must go through: options and their rounds. One that did not get there counts with the rounds it had."""
    return [(o, float(m.trained_rounds) if m.rounds is None else m.rounds) for o, m in trained.values()]


def fit_law(points: Sequence[tuple[Option, float]]) -> Law:
    """Non-negative least squares on the relative error: more noise, staleness or inequality never helps."""
    base, *slopes = _coefficients(points)
    factors = []
    for number, (option, rounds) in enumerate(points):
        others = [point for at, point in enumerate(points) if at != number]
        if len(others) >= 2:
            guess = max(float(np.dot(_coefficients(others), option.features)), 1.0)
            factors.append(max(guess / rounds, rounds / guess))
    noise, staleness, late, inequality = (slope / base for slope in slopes)
    return Law(base, noise, staleness, late, inequality, max(factors, default=None))


def _coefficients(points: Sequence[tuple[Option, float]]) -> list[float]:
    rounds = np.array([rounds for _, rounds in points])
    features = np.array([option.features for option, _ in points])
    # A faint wish for a base of as many rounds as the best pilot, or few pilots may be explained by noise alone.
    wish = np.eye(1, features.shape[1]) * 1e-2 / rounds.min()
    solution, _ = nnls(np.concatenate([features / rounds[:, None], wish]), np.append(np.ones(rounds.size), 1e-2))
    return [max(float(solution[0]), 1e-3), *map(float, solution[1:])]


def _law_rounds(option: Option, law: Law) -> float:
    slopes = (law.noise, law.staleness, law.late, law.inequality)
    return max(law.base * (1 + float(np.dot(slopes, option.features[1:]))), 1.0)


def predicted_s(option: Option, law: Law, trained: Trained) -> float | None:
    """Predicted seconds; None where a pilot did not get there."""
    rounds = trained[option.who][1].rounds if option.who in trained else _law_rounds(option, law)
    return None if rounds is None else rounds * option.seconds_per_round


def soonest_first(seconds: float | None, what: Option | Candidate) -> tuple[float, float, bool, int]:
    """Soonest first; among equals the tighter staleness bound, then planned rounds."""
    rounded = math.inf if seconds is None else float(f"{seconds:.9g}")
    return (
        rounded,
        math.inf if what.max_staleness is None else what.max_staleness,
        what.closing != "planned",
        what.quorum,
    )
