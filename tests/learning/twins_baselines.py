"""Ten more of the field's methods, written as in ``twins.py``: one vector for a model, plain loops, every model kept."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from twins import World, head_in, where

from perfeds2.learning.models.model import mean_loss


def as_params(model, w):
    """The named arrays of a vector."""
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    back = ravel_pytree(jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), shapes))[1]
    return back(jnp.asarray(w, jnp.float32))


@partial(jax.jit, static_argnums=0)
def value_at(model, w, x, y):
    return mean_loss(model, as_params(model, w), x, y)


@jax.jit
def share_of_steps(seed, ue, version, fewest):
    key = jax.random.key(seed)
    for number in (1, ue, version, 13):
        key = jax.random.fold_in(key, number)
    return jax.random.uniform(key, minval=fewest, maxval=1.0)


def fednova(world: World, fewest=0.4):
    """Wang et al. 2020, eq. (6), with τ_eff = K: directions are divided by the number of steps that made them."""
    models = [world.first]
    for _, jobs in world.rounds():
        directions = []
        for ue, version in jobs:
            tau = max(1, round(float(share_of_steps(world.seed, ue, version, fewest)) * world.steps))
            w = models[version].copy()
            for (batch,) in world.batches(ue, version)[:tau]:
                w = w - world.step * world.gradient(w, batch)
            directions.append((models[version] - w) / tau)
        models.append(models[-1] - world.steps * sum(directions) / len(directions))
    return models[-1], None


def feddyn(world: World, alpha=0.1):
    """Acar et al. 2021, algorithm 1; its local problem by K gradient steps."""
    models, h = [world.first], np.zeros_like(world.first)
    grads = {ue: np.zeros_like(world.first) for ue in range(world.ues)}
    for _, jobs in world.rounds():
        ends, moved = [], np.zeros_like(h)
        for ue, version in jobs:
            theta = models[version].copy()
            for (batch,) in world.batches(ue, version):
                pulled = alpha * (theta - models[version])
                theta = theta - world.step * (world.gradient(theta, batch) - grads[ue] + pulled)
            grads[ue] = grads[ue] - alpha * (theta - models[version])
            ends.append(theta)
            moved = moved + theta - models[version]
        h = h - alpha / world.ues * moved
        models.append(sum(ends) / len(ends) - h / alpha)
    return models[-1], grads


@partial(jax.jit, static_argnums=0)
def contrasted(model, w, handed, last, x, y, mu, temperature):
    """The slope of MOON's loss for a network with one hidden layer of ReLUs."""

    def features(v):
        layers = as_params(model, v)
        return jnp.maximum(x @ layers["dense1.weight"] + layers["dense1.bias"], 0.0)

    def whole(v):
        z, near, far = features(v), features(handed), features(last)

        def cosine(a, b):
            return (a * b).sum(1) / jnp.sqrt((a * a).sum(1) * (b * b).sum(1))

        a, b = jnp.exp(cosine(z, near) / temperature), jnp.exp(cosine(z, far) / temperature)
        return mean_loss(model, as_params(model, v), x, y) - mu * jnp.log(a / (a + b)).mean()

    return jax.grad(whole)(w)


def moon(world: World, mu=1.0, temperature=0.5):
    """Li et al. 2021, algorithm 1, without a projection head."""
    models, last = [world.first], dict.fromkeys(range(world.ues), world.first)
    for _, jobs in world.rounds():
        deltas = []
        for ue, version in jobs:
            w = models[version].copy()
            for (batch,) in world.batches(ue, version):
                vectors = (jnp.asarray(v, jnp.float32) for v in (w, models[version], last[ue]))
                w = w - world.step * np.asarray(contrasted(world.task.model, *vectors, *batch, mu, temperature), float)
            last[ue] = w
            deltas.append(models[version] - w)
        models.append(models[-1] - sum(deltas) / len(deltas))
    return models[-1], last


def local_layers(world: World, stays):
    """Liang et al. 2020 and Li et al. 2021 (FedBN): SGD on all layers; those where ``stays`` is true are the UE's own."""
    models, own = [world.first], dict.fromkeys(range(world.ues), world.first[stays])
    for _, jobs in world.rounds():
        deltas = []
        for ue, version in jobs:
            w = models[version].copy()
            w[stays] = own[ue]
            for (batch,) in world.batches(ue, version):
                w = w - world.step * world.gradient(w, batch)
            own[ue] = w[stays]
            deltas.append(np.where(stays, 0.0, models[version] - w))
        models.append(models[-1] - sum(deltas) / len(deltas))
    return models[-1], own


def norms_in(world: World):
    """Where in the vector the normalisation layer stands."""
    return where(world, lambda name: "norm" in name)


def fedbabu(world: World):
    """Oh et al. 2022, algorithm 1: clients update the body only."""
    is_head, models = head_in(world), [world.first]
    for _, jobs in world.rounds():
        deltas = []
        for ue, version in jobs:
            w = models[version].copy()
            for (batch,) in world.batches(ue, version):
                w = w - world.step * np.where(is_head, 0.0, world.gradient(w, batch))
            deltas.append(models[version] - w)
        models.append(models[-1] - sum(deltas) / len(deltas))
    return models[-1], None


def fedala(world: World, eta=1.0):
    """Zhang et al. 2023, algorithm 1 with p = 1 layer: W on K batches, then SGD from the mixture."""
    is_head = head_in(world)
    models = [world.first]
    local: dict[int, Any] = dict.fromkeys(range(world.ues), world.first[is_head])
    shares: dict[int, Any] = dict.fromkeys(range(world.ues), np.ones(is_head.sum()))
    for _, jobs in world.rounds():
        deltas = []
        for ue, version in jobs:
            batches, w = world.batches(ue, version, 2), models[version].copy()
            gap = models[version][is_head] - local[ue]
            for _, for_shares in batches:
                w[is_head] = local[ue] + gap * shares[ue]
                slope = world.gradient(w, for_shares)[is_head] * gap
                shares[ue] = np.clip(shares[ue] - eta * slope, 0.0, 1.0)
            w[is_head] = local[ue] + gap * shares[ue]
            mixed = w.copy()
            for batch, _ in batches:
                w = w - world.step * world.gradient(w, batch)
            local[ue] = w[is_head]
            deltas.append(mixed - w)
        models.append(models[-1] - sum(deltas) / len(deltas))
    return models[-1], {ue: np.append(local[ue], shares[ue]) for ue in range(world.ues)}


def qffl(world: World, q=1.0):
    """Li et al. 2020 (q-FFL), eq. (2), by local SGD."""
    models = [world.first]
    for _, jobs in world.rounds():
        deltas = []
        for ue, version in jobs:
            w = models[version].copy()
            for (batch,) in world.batches(ue, version):
                value = float(value_at(world.task.model, jnp.asarray(w, jnp.float32), *batch))
                w = w - world.step * value**q * world.gradient(w, batch)
            deltas.append(models[version] - w)
        models.append(models[-1] - sum(deltas) / len(deltas))
    return models[-1], None


def seafl(world: World, alpha=3.0, beta=10.0, mu=1.0, theta=0.8):
    """Islam et al. 2025, algorithm 1: weights by staleness and by the cosine with the global model."""
    models = [world.first]
    for t, jobs in world.rounds():
        w, weights, ends = models[-1], [], []
        for ue, version in jobs:
            delta = -world.sgd(models[version], ue, version)
            cosine = delta @ w / (np.linalg.norm(delta) * np.linalg.norm(w))
            weights.append(alpha * beta / (t - version + beta) + mu * (cosine + 1) / 2)
            ends.append(models[version] + delta)
        new = sum(p / sum(weights) * end for p, end in zip(weights, ends, strict=True))
        models.append((1 - theta) * w + theta * new)
    return models[-1], None


def refl(world: World, beta=0.35):
    """Abdelmoniem et al. 2023, staleness-aware aggregation: Λ is how far a stale update moves the mean of the fresh ones."""
    models = [world.first]
    for t, jobs in world.rounds():
        moves = [(world.sgd(models[version], ue, version), t - version) for ue, version in jobs]
        fresh = [move for move, late in moves if late == 0]
        mean = sum(fresh) / len(fresh) if fresh else np.zeros_like(world.first)
        moved = [np.sum((mean - (move + len(fresh) * mean) / (len(fresh) + 1)) ** 2) for move, late in moves if late]
        weights, total = 0.0, np.zeros_like(world.first)
        for move, late in moves:
            weight = 1.0
            if late:
                away = np.sum((mean - (move + len(fresh) * mean) / (len(fresh) + 1)) ** 2)
                weight = (1 - beta) / (late + 1) + beta * (1 - np.exp(-away / max(moved)))
            weights, total = weights + weight, total + weight * move
        models.append(models[-1] - total / weights)
    return models[-1], None


def fedasmu(world: World, mu=1.0, controls=(1.0, 1.0, 0.0), step=0.01):
    """Liu et al. 2024, algorithm 1, its server: the controls follow the slope of the loss, by the chain rule."""
    models = [world.first]
    own = {ue: np.array(controls) for ue in range(world.ues)}
    for number, jobs in world.rounds():
        t, w = number + 1, models[-1]
        for ue, version in jobs:
            delta = -world.sgd(models[version], ue, version)
            lam, sigma, iota = own[ue]
            late = float(number - version + 1)
            xi = lam / (np.sqrt(t) * late ** (sigma / 2)) + iota
            share = mu * xi / (1 + mu * xi)
            of_xi = mu / (1 + mu * xi) ** 2
            of_lam = 1 / (np.sqrt(t) * late ** (sigma / 2))
            slopes = of_xi * np.array([of_lam, -lam * of_lam * np.log(late) / 2, 1.0])
            gradient = -delta / (world.steps * world.step)
            gap = models[version] + delta - w
            own[ue] = np.maximum(own[ue] - step * (gradient @ gap) * slopes, 0.0)
            w = w + share * gap
        models.append(w)
    return models[-1], None


TWINS_OF_BASELINES: dict[str, Callable[[World], Any]] = {
    "FedNova": fednova,
    "FedDyn": feddyn,
    "MOON": moon,
    "LG-FedAvg": lambda world: local_layers(world, ~head_in(world)),
    "FedBN": lambda world: local_layers(world, norms_in(world)),
    "FedBABU": fedbabu,
    "FedALA": fedala,
    "q-FFL": qffl,
    "SEAFL": seafl,
    "FedASMU": fedasmu,
    "REFL": refl,
}
