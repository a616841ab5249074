"""What are the paper's constants on a real task?

Each constant is a supremum over all models; a pilot can only look at some. So it looks at a few probe points, takes the
largest, and says how much the points differed. Hessians are never formed: they act on vectors (a jvp of the gradient),
and a short Lanczos run finds the spectral norm of an action. Both make an estimate too small rather than too large.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from perfeds2.theory.constants import Constants

Loss = Callable[[Any, tuple[Any, Any]], Any]  # loss(params, (x, y)): the mean loss over a batch


@dataclass(frozen=True)
class ConstantEstimate:
    """A constant as seen at the probe points."""

    value: float  # the largest over the probe points: a lower estimate of the supremum
    low: float  # the smallest over the probe points
    high: float  # what the supremum may be: an 80 % upper confidence limit from the two largest


@dataclass(frozen=True)
class Pilot:
    """Every constant of Assumptions 2 to 5 with its uncertainty; units are those of the loss and the parameters."""

    smoothness: ConstantEstimate  # L
    gradient_bound: ConstantEstimate  # C
    hessian_lipschitz: ConstantEstimate  # ρ
    gradient_noise: ConstantEstimate  # σ_G
    hessian_noise: ConstantEstimate  # σ_H
    gradient_diversity: ConstantEstimate  # γ_G
    hessian_diversity: ConstantEstimate  # γ_H
    gap: ConstantEstimate  # F(w_0) − F*, w_0 being the first probe point; low: by descent, high: by the lower bound on the loss

    def constants(self, which: Literal["value", "low", "high"] = "value") -> Constants:
        """The numbers for the bounds: each constant's ``value``, ``low`` or ``high``."""
        return Constants(**{name: estimate[which] for name, estimate in asdict(self).items()})


def measure(
    loss: Loss,
    params_points: Sequence[Any],
    x: Any,
    y: Any,
    *,
    alpha: float,
    seed: int = 0,
    samples: int = 4,
    hessian_ues: int = 8,
    directions: int = 2,
    radius: float = 0.05,
    lanczos_steps: int = 12,
    descent_steps: int = 100,
    lower_bound: float | None = 0.0,
) -> Pilot:
    """Measure the constants of a task at a few models (at least two), the first of which is where training starts.

    ``loss(params, (x, y))`` is the mean loss over a batch; ``x[n, m, ...]`` and ``y[n, m, ...]`` hold m samples of each
    of n UEs, and those are the UE's distribution. ``samples`` a UE and ``hessian_ues`` UEs are drawn for σ_H and γ_H;
    ρ is the largest ‖∇²f_i(w) − ∇²f_i(u)‖ / ‖w − u‖ over ``directions`` random directions and the gradient's,
    ``radius`` away. The gap is F(w_0) − ``lower_bound`` (0 for a non-negative loss: safe), or, with None, the decrease
    that ``descent_steps`` of L-BFGS on F find (an underestimate).
    """
    if len(params_points) < 2:
        raise ValueError(f"a pilot needs at least 2 probe points to say how they differ, got {len(params_points)}.")
    x, y = jnp.asarray(x), jnp.asarray(y)
    if x.ndim < 2 or y.ndim < 2 or x.shape[:2] != y.shape[:2] or 0 in x.shape[:2]:
        raise ValueError(f"x and y must both start with (UEs, samples), got shapes {x.shape} and {y.shape}.")
    flat_points = [ravel_pytree(point)[0] for point in params_points]
    unravel = ravel_pytree(params_points[0])[1]

    def flat_loss(flat: jax.Array, batch: tuple[jax.Array, jax.Array]) -> jax.Array:
        return loss(unravel(flat), batch)

    gap = _gap(flat_loss, flat_points[0], (x, y), alpha, descent_steps, lower_bound)
    settings = _Settings(min(samples, x.shape[1]), min(hessian_ues, x.shape[0]), directions, radius, lanczos_steps)
    probe = jax.jit(lambda flat, data, key: _probe(flat_loss, flat, data, key, settings))
    keys = jax.random.split(jax.random.key(seed), len(flat_points))
    probes = [probe(flat, (x, y), key) for flat, key in zip(flat_points, keys, strict=True)]
    seen = {name: _summary([float(getattr(p, name)) for p in probes]) for name in _Probe._fields}
    return Pilot(**seen, gap=gap)


def smoothness(
    loss: Loss, params_points: Sequence[Any], x: Any, y: Any, *, seed: int = 0, lanczos_steps: int = 12
) -> ConstantEstimate:
    """L alone, the largest ‖∇²f_i(w)‖ of any UE at the probe points: what ``measure`` finds, for a small part of its work."""
    unravel = ravel_pytree(params_points[0])[1]
    data = (jnp.asarray(x), jnp.asarray(y))

    @jax.jit
    def sharpest(flat: jax.Array, start: jax.Array) -> jax.Array:
        def sharpness(ue: tuple[jax.Array, jax.Array]) -> jax.Array:
            return _spectral_norm(_hessian(lambda w, batch: loss(unravel(w), batch), flat, ue), start, lanczos_steps)

        return jax.lax.map(sharpness, data).max()

    keys = jax.random.split(jax.random.key(seed), len(params_points))
    flat_points = [ravel_pytree(point)[0] for point in params_points]
    starts = [jax.random.normal(key, flat.shape, flat.dtype) for key, flat in zip(keys, flat_points, strict=True)]
    return _summary([float(sharpest(*each)) for each in zip(flat_points, starts, strict=True)])


class _Settings(NamedTuple):
    samples: int
    ues: int
    directions: int
    radius: float
    steps: int


class _Probe(NamedTuple):
    """The constants at one point."""

    smoothness: jax.Array
    gradient_bound: jax.Array
    hessian_lipschitz: jax.Array
    gradient_noise: jax.Array
    hessian_noise: jax.Array
    gradient_diversity: jax.Array
    hessian_diversity: jax.Array


def _probe(
    loss: Loss, flat: jax.Array, data: tuple[jax.Array, jax.Array], key: jax.Array, settings: _Settings
) -> _Probe:
    """Look at every UE from one model. UEs go one after another: what one needs (samples × parameters) fits in memory."""
    start_key, direction_key, sample_key, ue_key = jax.random.split(key, 4)
    start = jax.random.normal(start_key, flat.shape, flat.dtype)  # where every Lanczos run begins

    def norm(action: Callable[[jax.Array], jax.Array]) -> jax.Array:
        return _spectral_norm(action, start, settings.steps)

    gradients = jax.lax.map(lambda ue: jax.grad(loss)(flat, ue), data)
    mean_gradient = gradients.mean(0)
    random = jax.random.normal(direction_key, (settings.directions, flat.size), flat.dtype)

    def look(ue_and_gradient: tuple[tuple[jax.Array, jax.Array], jax.Array]) -> tuple[jax.Array, ...]:
        ue, gradient = ue_and_gradient
        here = _hessian(loss, flat, ue)
        towards = jnp.concatenate([random, gradient[None]])
        steps = settings.radius * towards / jnp.maximum(jnp.linalg.norm(towards, axis=1, keepdims=True), _TINY)

        def bend(step: jax.Array) -> jax.Array:
            there = _hessian(loss, flat + step, ue)
            distance = jnp.linalg.norm(step)  # 0 where the gradient vanishes and gives no direction
            return jnp.where(distance > 0, norm(lambda v: there(v) - here(v)) / jnp.maximum(distance, _TINY), 0.0)

        def gradient_deviation(sample: tuple[jax.Array, jax.Array]) -> jax.Array:
            return jnp.sum((jax.grad(loss)(flat, _batch_of_one(sample)) - gradient) ** 2)

        def hessian_deviation(sample: tuple[jax.Array, jax.Array]) -> jax.Array:
            alone = _hessian(loss, flat, _batch_of_one(sample))
            return norm(lambda v: alone(v) - here(v)) ** 2

        drawn = jax.random.choice(sample_key, ue[0].shape[0], (settings.samples,), replace=False)
        few = jax.tree.map(lambda values: values[drawn], ue)
        return (
            norm(here),
            jax.lax.map(bend, steps).max(),
            jax.lax.map(gradient_deviation, ue, batch_size=_SAMPLES_AT_ONCE).mean(),
            jax.lax.map(hessian_deviation, few).mean(),
        )

    sharpness, bends, gradient_noise, hessian_noise = jax.lax.map(look, (data, gradients))

    together = jax.tree.map(lambda values: values.reshape(-1, *values.shape[2:]), data)
    average = _hessian(loss, flat, together)  # every UE has as many samples as the next

    def apart(ue: tuple[jax.Array, jax.Array]) -> jax.Array:
        own = _hessian(loss, flat, ue)
        return norm(lambda v: own(v) - average(v)) ** 2

    chosen = jax.random.choice(ue_key, data[0].shape[0], (settings.ues,), replace=False)
    spread = jax.lax.map(apart, jax.tree.map(lambda values: values[chosen], data)).mean()
    return _Probe(
        smoothness=sharpness.max(),
        gradient_bound=jnp.linalg.norm(gradients, axis=1).max(),
        hessian_lipschitz=bends.max(),
        gradient_noise=jnp.sqrt(gradient_noise.max()),
        hessian_noise=jnp.sqrt(hessian_noise.max()),
        gradient_diversity=jnp.sqrt(jnp.sum((gradients - mean_gradient) ** 2, axis=1).mean()),
        hessian_diversity=jnp.sqrt(spread),
    )


def _batch_of_one(sample: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
    return sample[0][None], sample[1][None]


def _hessian(loss: Loss, flat: jax.Array, batch: tuple[jax.Array, jax.Array]) -> Callable[[jax.Array], jax.Array]:
    """v ↦ ∇²f(w)·v."""
    return lambda v: jax.jvp(lambda w: jax.grad(loss)(w, batch), (flat,), (v,))[1]


def _spectral_norm(action: Callable[[jax.Array], jax.Array], start: jax.Array, steps: int) -> jax.Array:
    """The largest |eigenvalue| of a symmetric action, from below, by Lanczos with full reorthogonalisation.

    When the Krylov space is exhausted the next vector is 0, and so is its Ritz value: no branch is needed.
    """
    steps = min(steps, start.size)
    basis = jnp.zeros((steps + 1, start.size), start.dtype).at[0].set(start / jnp.linalg.norm(start))
    small = 16 * jnp.finfo(start.dtype).eps

    def extend(step: jax.Array, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        basis, tridiagonal = carry
        image = action(basis[step])
        rest = image
        for _ in range(2):  # once leaves rounding behind, twice does not
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
    """The largest, the smallest, and Robson and Whitlock's upper limit for an endpoint: X₁ + (1 − p)/p·(X₁ − X₂)."""
    if not all(math.isfinite(value) for value in at_points):
        raise ValueError(
            "a probe point gave a constant that is not finite; choose probe points where the loss is smooth."
        )
    second, first = sorted(at_points)[-2:]
    return ConstantEstimate(first, min(at_points), first + (1 - _MISS) / _MISS * (first - second))


def _gap(
    loss: Loss,
    flat: jax.Array,
    data: tuple[jax.Array, jax.Array],
    alpha: float,
    steps: int,
    lower_bound: float | None,
) -> ConstantEstimate:
    """F(w_0) − F*: at least what a descent gains, at most what the lower bound leaves."""

    def adapted(flat: jax.Array, ue: tuple[jax.Array, jax.Array]) -> jax.Array:
        return loss(flat - alpha * jax.grad(loss)(flat, ue), ue)

    @jax.jit
    def value_and_gradient(flat: jax.Array, data: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        values, gradients = jax.lax.map(lambda ue: jax.value_and_grad(adapted)(flat, ue), data)
        return values.mean(), gradients.mean(0)

    def for_scipy(point: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = value_and_gradient(jnp.asarray(point, flat.dtype), data)
        return float(value), np.asarray(gradient, np.float64)

    at_start = for_scipy(np.asarray(flat))[0]
    from scipy.optimize import minimize  # late: it takes a while to load

    found = minimize(for_scipy, np.asarray(flat, np.float64), jac=True, method="L-BFGS-B", options={"maxiter": steps})
    gained = max(at_start - float(found.fun), 0.0)
    if lower_bound is None:
        return ConstantEstimate(gained, gained, gained)
    left = at_start - lower_bound
    if left < gained:
        raise ValueError(f"F reaches {found.fun:.6g}, below the lower bound {lower_bound:.6g}; give lower_bound=None.")
    return ConstantEstimate(left, gained, left)


_TINY = 1e-30  # keeps 0/0 out of a branch that is not taken
_SAMPLES_AT_ONCE = 64  # per-sample gradients held at a time
_MISS = 0.2  # how often the upper limit may fall short
