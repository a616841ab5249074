"""How many rounds does each way take to the target loss, by training along a few of them?

Who is merged, and how stale, decides what is learned; seconds do not matter here. So a pilot's rounds hold for every way
that merges alike, and a law through the pilots says what the others would need.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.optimize import nnls

from perfeds2.errors import InputError
from perfeds2.learning.data import Data
from perfeds2.learning.evaluate import MOST_UES
from perfeds2.learning.metrics import score_of
from perfeds2.learning.models.model import Model, Params, mean_loss
from perfeds2.learning.task import Task
from perfeds2.learning.train import EvaluationPoint, train
from perfeds2.planning.data import Candidate, Law, PilotRun, Target
from perfeds2.planning.options import BANDWIDTH, Option, Scene, longer, make_option
from perfeds2.spec.build import metric_of
from perfeds2.spec.fields import Spec
from perfeds2.timeline.timeline import Timeline

PILOT_ROUNDS = 1000  # the reference pilot gives up after so many
MOST_PILOTS = 9
ENOUGH_PILOTS = 6  # if the soonest is among them
PATIENCE = 5  # a pilot may take so many times the reference's rounds

Announce = Callable[..., None]  # what, share of all, rounds and simulated seconds of the training at work


@dataclass(frozen=True)
class PlanRequest:
    """What is asked of a plan."""

    epsilon: float | None = None
    target_loss: float | None = None
    quorums: Sequence[int] | None = None
    stalenesses: Sequence[int | None] | None = None
    pilot_rounds: int = PILOT_ROUNDS

    def check(self, ues: int) -> None:
        """Refuse what cannot be planned, before any work."""
        for flag, value in (("--epsilon", self.epsilon), ("--target-loss", self.target_loss)):
            if value is not None and not (math.isfinite(value) and value > 0):
                raise InputError(f"{flag} must be a finite number above 0, got {value}.")
        for flag, values in (("--quorums", self.quorums), ("--stalenesses", self.stalenesses)):
            if values is not None and len(values) == 0:
                raise InputError(f"{flag} is empty; give at least one.")
        for quorum in self.quorums or ():
            if not 1 <= quorum <= ues:
                raise InputError(f"--quorums must be from 1 to the number of UEs, {ues} (--ues), got {quorum}.")
        for staleness in self.stalenesses or ():
            if staleness is not None and staleness < 0:
                raise InputError(f"--stalenesses must be at least 0, or 'unbounded', got {staleness}.")
        if self.pilot_rounds < 1:
            raise InputError(f"--pilot-rounds must be at least 1, got {self.pilot_rounds}.")


@dataclass(frozen=True)
class Stand:
    """Where a training stands at one of its evaluations."""

    round: int
    loss: float  # F(w)
    accuracy: float  # personalised, on test data
    params: Any  # good until the training goes on


def follow(scene: Scene, timeline: Timeline, *, every: int, seed: int) -> Iterator[Stand]:
    """Train along a timeline and evaluate every so many rounds. Stops where the loss is no number."""
    rounds = [*range(0, timeline.rounds, every), timeline.rounds]
    points = [EvaluationPoint(k, float(timeline.start_s[k])) for k in rounds]
    trainings = train(scene.task, timeline, scene.learner, points, seed=seed)
    for round_, training in zip(rounds, trainings, strict=False):
        now = training.values[-1]
        yield Stand(round_, now["train_loss_personal"], now["test_accuracy_personal"], training.state.params)
        if not math.isfinite(now["train_loss_personal"]):
            return


def pick_reference(scene: Scene) -> Option:
    """The spec's A with planned rounds, or the next larger A that its S allows; A = n always does."""
    for quorum in range(scene.quorum, scene.cell.ues + 1):
        option = make_option(scene, quorum, scene.max_staleness, "planned")
        if isinstance(option, Option):
            return option
    raise InputError(f"no quorum from {scene.quorum} to {scene.cell.ues} can be planned: {option}")


def aim(
    scene: Scene, reference: Option, request: PlanRequest, announce: Announce
) -> tuple[Target, PilotRun, list[Any]]:
    """Train the reference until the target. Returns the target in both languages, what it took, and models on the way."""
    epsilon, target_loss, most = request.epsilon, request.target_loss, request.pilot_rounds
    timeline = longer(scene, reference, most)
    stands: list[Stand] = []
    squares: list[float] = []
    models: list[Any] = []
    met, mean, peak = (
        False,
        0.0,
        0.0,
    )  # of the mean of ‖∇F‖²: it starts small, rises, and falls; ε is met on the way down
    for number, now in enumerate(follow(scene, timeline, every=max(1, min(most // 100, 10)), seed=scene.seed)):
        time_s = float(timeline.start_s[now.round])
        announce(f"reference pilot A = {reference.quorum}", 0.3 * now.round / most, now.round, time_s)
        stands.append(replace(now, params=None))
        squares.append(squared_gradient(scene.task, now.params, scene.alpha))
        mean = _mean_so_far(stands, squares)
        peak = max(peak, mean)
        if target_loss is not None:
            met = now.loss <= target_loss
        elif epsilon is not None:
            met = mean <= epsilon < peak
        else:
            met = now.accuracy >= scene.spec.run.target_accuracy
        if target_loss is not None and stands[0].loss <= target_loss:
            raise InputError(f"--target-loss {target_loss:g} is met before training (at {now.loss:.4g}); lower it.")
        if met or number & (number - 1) == 0 or now.round == most:  # 0, 1, 2, 4, 8, …, the last
            models.append(jax.tree.map(np.asarray, now.params))
        met = met and number > 0
        if met:
            break
    last = stands[-1]
    if not math.isfinite(last.loss):
        raise InputError(f"training diverges with --beta {scene.learner.beta:g}; lower it before planning.")
    if not met and (target_loss is not None or epsilon is not None):
        raise InputError(
            _not_reached(request, f"after {last.round} rounds at A = {reference.quorum}", last, mean, peak)
        )
    loss = last.loss if target_loss is None else target_loss
    rounds = float(last.round) if target_loss is None else crossing(stands[-2], last, loss)
    target = Target(
        loss=loss,
        epsilon=mean if epsilon is None else epsilon,
        accuracy=last.accuracy,
        loss_from=_loss_from(request, last.round, f"{scene.spec.run.target_accuracy:.4g} {in_words(scene.spec)}", met),
        epsilon_from="given" if epsilon is not None else "the reference pilot's mean ‖∇F‖² on its way to that loss",
    )
    at = np.unique(np.linspace(0, len(models) - 1, min(4, len(models))).round().astype(int))
    return target, PilotRun(*reference.place, max(rounds, 1.0), last.round, last.loss), [models[i] for i in at]


def _mean_so_far(stands: Sequence[Stand], squares: Sequence[float]) -> float:
    """The mean of ‖∇F(w_k)‖² over the rounds so far, between evaluations on a straight line."""
    if len(stands) == 1:
        return squares[0]
    return float(np.trapezoid(squares, [stand.round for stand in stands]) / stands[-1].round)


def _not_reached(request: PlanRequest, when: str, last: Stand, mean: float, peak: float) -> str:
    if request.target_loss is not None:
        flag, at = f"--target-loss {request.target_loss:g}", last.loss
    else:
        flag, at = f"--epsilon {request.epsilon:g}", mean
        assert request.epsilon is not None
        if peak <= request.epsilon:
            return f"{flag} is no target: the reference pilot's mean ‖∇F‖² never exceeds {peak:.4g}; lower it."
    return f"{flag} is not reached by the reference pilot ({when} it is at {at:.4g}); raise it, or --pilot-rounds."


def in_words(spec: Spec) -> str:
    """What the target is of."""
    return f"personalised test {score_of(metric_of(spec)).word}"


def _loss_from(request: PlanRequest, rounds: int, wanted: str, met: bool) -> str:
    if request.target_loss is not None:
        return "given"
    if request.epsilon is not None:
        return f"the reference pilot's loss when its mean ‖∇F‖² met ε, after {rounds} rounds"
    if met:
        return f"the reference pilot's loss when it met {wanted}, after {rounds} rounds"
    return f"the reference pilot's loss after {rounds} rounds ({wanted} was not met)"


def squared_gradient(task: Task, params: Params, alpha: float) -> float:
    """‖∇F(w)‖² over the training data that an evaluation looks at, F being the mean of F_i(w) = f_i(w − α∇f_i(w))."""
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


def train_to_loss(
    scene: Scene,
    option: Option,
    timeline: Timeline,
    target: float,
    *,
    every: int,
    seed: int,
    tell: Callable[[int], None],
) -> PilotRun:
    """Train until the personalised loss is at the target, or the timeline ends."""
    before = now = None
    for now in follow(scene, timeline, every=every, seed=seed):
        tell(now.round)
        if now.loss <= target:
            return PilotRun(*option.place, crossing(before, now, target), now.round, now.loss)
        before = now
    assert now is not None
    return PilotRun(*option.place, None, now.round, now.loss if math.isfinite(now.loss) else None)


def crossing(before: Stand | None, after: Stand, target: float) -> float:
    """Where between two evaluations the loss met the target, the loss falling exponentially in between."""
    if before is None or after.loss <= 0:
        return float(after.round)
    part = math.log(before.loss / target) / math.log(before.loss / after.loss)
    return before.round + part * (after.round - before.round)


Trained = dict[bytes, tuple[Option, PilotRun]]  # by who is merged and how stale


def train_pilots(
    scene: Scene, options: Sequence[Option], reference: Option, first: PilotRun, loss: float, announce: Announce
) -> Trained:
    """Train where it tells most: at the extremes of staleness, then wherever the law sees the soonest, until that is trained."""
    trained: Trained = {reference.who: (reference, first)}
    assert first.rounds is not None
    limit, every = math.ceil(PATIENCE * first.rounds), max(1, round(first.rounds / 20))

    def send(option: Option) -> None:
        number = len(trained)

        def tell(round_: int) -> None:
            share = 0.6 + 0.35 * (number + round_ / limit) / MOST_PILOTS
            announce(f"pilot A = {option.quorum}", share, round_, round_ * option.seconds_per_round)

        timeline = longer(scene, option, limit)
        run = train_to_loss(scene, option, timeline, loss, every=every, seed=scene.seed, tell=tell)
        trained[option.who] = option, run

    for closing in BANDWIDTH:
        kind = [option for option in options if option.closing == closing]
        for extreme in (max, min):
            if kind:
                option = extreme(kind, key=lambda o: (o.staleness_square, -o.quorum))
                if option.who not in trained:
                    send(option)
    while options and len(trained) < MOST_PILOTS:
        law = fit_law(points(trained))

        def soonest(among: Sequence[Option], law: Law = law) -> Option:
            return min(among, key=lambda o: soonest_first(predicted_s(o, law, trained), o))

        best = soonest(options)
        if best.who in trained:  # the answer is found; its nearest rivals deserve a pilot, too
            rivals = [option for option in options if option.who not in trained]
            if len(trained) >= ENOUGH_PILOTS or not rivals:
                break
            best = soonest(rivals)
        send(best)
    return trained


def points(trained: Trained) -> list[tuple[Option, float]]:
    """What the law must go through: options and their rounds. One that did not get there counts with the rounds it had."""
    return [(o, float(run.trained_rounds) if run.rounds is None else run.rounds) for o, run in trained.values()]


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


def predicted_s(option: Option, law: Law, trained: Trained) -> float | None:
    """Predicted seconds; None where a pilot did not get there."""
    if option.who in trained:
        rounds = trained[option.who][1].rounds
    else:
        slopes = (law.noise, law.staleness, law.late, law.inequality)
        rounds = max(law.base * (1 + float(np.dot(slopes, option.features[1:]))), 1.0)
    return None if rounds is None else rounds * option.seconds_per_round


def soonest_first(seconds: float | None, what: Option | Candidate) -> tuple[float, float, bool, int]:
    """Soonest first; among equals the tighter staleness bound, then planned rounds."""
    rounded = math.inf if seconds is None else float(f"{seconds:.9g}")
    bound = math.inf if what.max_staleness is None else what.max_staleness
    return rounded, bound, what.closing != "planned", what.quorum
