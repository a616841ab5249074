"""Measure the paper's constants on a real task.

Each constant is a supremum over all models, but a pilot can evaluate only some. It takes the largest value over a few
probe points, and reports how much the points differ. Hessians are never formed: they act on vectors (a jvp of the
gradient), and a short Lanczos run finds the spectral norm of an action. Both make an estimate too small rather than
too large.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import ArrayLike, PyTree

from perfeds2.theory.constants import Constants

Batch = tuple[jax.Array, jax.Array]
Loss = Callable[[PyTree, Batch], jax.Array]  # loss(params, (x, y)): the mean loss over a batch
Action = Callable[[jax.Array], jax.Array]  # v ↦ H·v
RADIUS = 0.05  # distance between two compared Hessians


@dataclass(frozen=True)
class ConstantEstimate:
    """The estimate of a constant from the probe points."""

    value: float  # the largest over the probe points: a lower estimate of the supremum
    low: float  # the smallest over the probe points
    high: float  # 80 % upper confidence limit of the supremum, from the two largest values


def measure(
    loss: Loss,
    params_points: Sequence[PyTree],
    x: ArrayLike,
    y: ArrayLike,
    *,
    alpha: float,
    seed: int = 0,
    lanczos_steps: int = 8,
    descent_steps: int = 30,
) -> dict[str, ConstantEstimate]:
    """Measure the constants of a task at a few models.

    ρ is the largest ‖∇²f_i(w) − ∇²f_i(u)‖ / ‖w − u‖ along the gradient and a random direction. The gap is F(w_0); its
    ``low`` is the decrease that a descent on F achieves. Every sample of every UE is used, so pass only a few.

    Args:
        loss: ``loss(params, (x, y))``, the mean loss over a batch; must not be negative.
        params_points: At least two models; the first is where training starts.
        x: Inputs, shape (n, m, ...): m samples of each of n UEs, taken as the UE's distribution.
        y: Targets, shape (n, m, ...).
        alpha: α, the inner step size.
        seed: Seed of the random directions.
        lanczos_steps: Hessian-vector products for a spectral norm.
        descent_steps: Steps of L-BFGS on F.

    Returns:
        An estimate of each field of ``Constants``, in the units of the loss and the parameters.

    Raises:
        ValueError: If there are fewer than two points, the shapes do not match, or a constant is not finite.
    """
    if len(params_points) < 2:
        raise ValueError(f"a pilot needs at least 2 probe points to say how they differ, got {len(params_points)}.")
    data = jnp.asarray(x), jnp.asarray(y)
    shapes = [part.shape for part in data]
    if min(map(len, shapes)) < 2 or shapes[0][:2] != shapes[1][:2] or 0 in shapes[0][:2]:
        raise ValueError(f"x and y must both start with (UEs, samples), got shapes {shapes[0]} and {shapes[1]}.")
    unravel = ravel_pytree(params_points[0])[1]
    flat_points = [ravel_pytree(point)[0] for point in params_points]

    def flat_loss(flat: jax.Array, batch: Batch) -> jax.Array:
        return loss(unravel(flat), batch)

    gap = _gap(flat_loss, flat_points[0], data, alpha, descent_steps)
    probe = jax.jit(lambda flat, data, key: _probe(flat_loss, flat, data, key, lanczos_steps))
    keys = jax.random.split(jax.random.key(seed), len(flat_points))
    probes = [probe(flat, data, key) for flat, key in zip(flat_points, keys, strict=True)]
    names = [field.name for field in fields(Constants) if field.name != "gap"]
    return {name: _summary([float(seen[name]) for seen in probes]) for name in names} | {"gap": gap}


def _probe(loss: Loss, flat: jax.Array, data: Batch, key: jax.Array, lanczos_steps: int) -> dict[str, jax.Array]:
    """Return the constants at one point. UEs are processed one by one, so that samples × parameters fits in memory."""
    start, random = jax.random.normal(key, (2, flat.size), flat.dtype)  # of every Lanczos run; a direction

    def norm(action: Action) -> jax.Array:
        return _spectral_norm(action, start, lanczos_steps)

    together = jax.tree.map(lambda values: values.reshape(-1, *values.shape[2:]), data)
    average = _hessian(loss, flat, together)  # a plain mean, because all UEs have equally many samples
    gradients = jax.lax.map(lambda ue: jax.grad(loss)(flat, ue), data)

    def look(ue_and_gradient: tuple[Batch, jax.Array]) -> tuple[jax.Array, ...]:
        ue, gradient = ue_and_gradient
        here = _hessian(loss, flat, ue)

        def bend(towards: jax.Array) -> jax.Array:
            step = RADIUS * towards / jnp.maximum(jnp.linalg.norm(towards), _TINY)
            there = _hessian(loss, flat + step, ue)
            distance = jnp.linalg.norm(step)  # 0 if the gradient vanishes and gives no direction
            return jnp.where(distance > 0, norm(lambda v: there(v) - here(v)) / jnp.maximum(distance, _TINY), 0.0)

        def deviations(sample: Batch) -> tuple[jax.Array, jax.Array]:
            alone = sample[0][None], sample[1][None]
            own = _hessian(loss, flat, alone)
            return jnp.sum((jax.grad(loss)(flat, alone) - gradient) ** 2), norm(lambda v: own(v) - here(v)) ** 2

        gradient_noise, hessian_noise = jax.lax.map(deviations, ue, batch_size=_SAMPLES_AT_ONCE)
        sharpest = jnp.maximum(bend(random), bend(gradient))
        apart = norm(lambda v: here(v) - average(v)) ** 2
        return norm(here), sharpest, gradient_noise.mean(), hessian_noise.mean(), apart

    sharpness, bends, gradient_noise, hessian_noise, apart = jax.lax.map(look, (data, gradients))
    return {
        "smoothness": sharpness.max(),
        "gradient_bound": jnp.linalg.norm(gradients, axis=1).max(),
        "hessian_lipschitz": bends.max(),
        "gradient_noise": jnp.sqrt(gradient_noise.max()),
        "hessian_noise": jnp.sqrt(hessian_noise.max()),
        "gradient_diversity": jnp.sqrt(jnp.sum((gradients - gradients.mean(0)) ** 2, axis=1).mean()),
        "hessian_diversity": jnp.sqrt(apart.mean()),
    }


def _hessian(loss: Loss, flat: jax.Array, batch: Batch) -> Action:
    """Return the action v ↦ ∇²f(w)·v."""
    return lambda v: jax.jvp(lambda w: jax.grad(loss)(w, batch), (flat,), (v,))[1]


def _spectral_norm(action: Action, start: jax.Array, steps: int) -> jax.Array:
    """Return the largest |eigenvalue| of a symmetric action, from below, by Lanczos with full reorthogonalization.

    When the Krylov space is exhausted, the next vector and its Ritz value are 0, so no branch is needed.
    """
    steps = min(steps, start.size)
    basis = jnp.zeros((steps + 1, start.size), start.dtype).at[0].set(start / jnp.linalg.norm(start))
    small = 16 * jnp.finfo(start.dtype).eps

    def extend(step: jax.Array, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        basis, tridiagonal = carry
        image = action(basis[step])
        rest = image
        for _ in range(2):  # one pass leaves rounding errors, two do not
            rest = rest - (basis @ rest) @ basis
        length = jnp.linalg.norm(rest)
        length = jnp.where(length > small * jnp.linalg.norm(image), length, 0.0)
        basis = basis.at[step + 1].set(jnp.where(length > 0, rest / jnp.maximum(length, _TINY), 0.0))
        tridiagonal = tridiagonal.at[step, step].set(basis[step] @ image)
        tridiagonal = tridiagonal.at[step, step + 1].set(length).at[step + 1, step].set(length)
        return basis, tridiagonal

    empty = jnp.zeros((steps + 1, steps + 1), start.dtype)
    tridiagonal = jax.lax.fori_loop(0, steps, extend, (basis, empty))[1]
    return jnp.abs(jnp.linalg.eigvalsh(tridiagonal[:steps, :steps])).max()


def _summary(at_points: list[float]) -> ConstantEstimate:
    """Return the largest and smallest value, and Robson and Whitlock's upper limit X₁ + (1 − p)/p·(X₁ − X₂)."""
    if not all(math.isfinite(value) for value in at_points):
        raise ValueError(
            "a probe point gave a constant that is not finite; choose probe points where the loss is smooth."
        )
    second, first = sorted(at_points)[-2:]
    return ConstantEstimate(first, min(at_points), first + (1 - _MISS) / _MISS * (first - second))


def _gap(loss: Loss, flat: jax.Array, data: Batch, alpha: float, steps: int) -> ConstantEstimate:
    """Bound F(w_0) − F*: at least what a descent gains, at most F(w_0) if the loss is not negative."""

    def adapted(flat: jax.Array, ue: Batch) -> jax.Array:
        return loss(flat - alpha * jax.grad(loss)(flat, ue), ue)

    @jax.jit
    def value_and_gradient(flat: jax.Array, data: Batch) -> tuple[jax.Array, jax.Array]:
        values, gradients = jax.lax.map(lambda ue: jax.value_and_grad(adapted)(flat, ue), data)
        return values.mean(), gradients.mean(0)

    def for_scipy(point: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = value_and_gradient(jnp.asarray(point, flat.dtype), data)
        return float(value), np.asarray(gradient, np.float64)

    at_start = for_scipy(np.asarray(flat))[0]
    from scipy.optimize import minimize  # imported late because it is slow to load

    found = minimize(for_scipy, np.asarray(flat, np.float64), jac=True, method="L-BFGS-B", options={"maxiter": steps})
    gained = max(at_start - float(found.fun), 0.0)
    most = max(at_start, gained)
    return ConstantEstimate(most, gained, most)


_TINY = 1e-30  # avoids 0/0 in a branch that is not taken
_SAMPLES_AT_ONCE = 8  # Lanczos runs held in memory at a time
_MISS = 0.2  # probability that the upper limit is too low
