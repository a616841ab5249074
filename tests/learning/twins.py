"""The field's methods as their papers write them down, in NumPy and plain Python: slow, and the place to start reading.

A model is one vector. All that is not the method's own comes from a ``World``: the first model, the samples of every job and
the gradient of the loss. A twin keeps every model there ever was, so a UE that was handed version v starts from models[v].
They share no function with ``perfeds2.learning.merges`` and ``perfeds2.learning.methods``.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from perfeds2.learning.models.model import mean_loss
from perfeds2.learning.task import Task
from perfeds2.timeline.record import Timeline


@partial(jax.jit, static_argnums=0)
def slope_at(model, w, x, y):
    """∇f of a model as one vector."""
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    back = ravel_pytree(jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), shapes))[1]
    return ravel_pytree(jax.grad(lambda params: mean_loss(model, params, x, y))(back(w)))[0]


@partial(jax.jit, static_argnums=0)
def curvature_at(model, w, v, x, y):
    """∇²f·v, as the slope of ⟨∇f, v⟩."""
    return jax.grad(lambda at: jnp.vdot(slope_at(model, at, x, y), v))(w)


@partial(jax.jit, static_argnums=4)
def drawn(data, seed, ue, version, shape):
    """The samples of one job."""
    key = jax.random.fold_in(jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), 1), ue), version)
    return data.batches(key, ue, shape)


@partial(jax.jit, static_argnums=0)
def start_of(model, seed):
    """w_0 as one vector."""
    return ravel_pytree(model.init(jax.random.fold_in(jax.random.key(seed), 0)))[0]


@dataclass(frozen=True)
class World:
    """What every method meets: data, a first model and rounds."""

    task: Task
    line: Timeline
    seed: int
    batch: int
    steps: int  # K, of one job
    step: float  # η_l

    @cached_property
    def first(self) -> np.ndarray:
        """w_0"""
        return np.asarray(start_of(self.task.model, self.seed), np.float64)

    def gradient(self, w, batch):
        return np.asarray(slope_at(self.task.model, jnp.asarray(w, jnp.float32), *batch), np.float64)

    def batches(self, ue, version, count=1):
        """Of one job: for each step, this many batches."""
        x, y = map(np.asarray, drawn(self.task.data, self.seed, ue, version, (self.steps, count, self.batch)))
        return [[(x[k, b], y[k, b]) for b in range(count)] for k in range(self.steps)]

    def rounds(self) -> Iterator[tuple[int, list[tuple[int, int]]]]:
        """Every round's number, and who is merged in it, from which version."""
        for t, (ues, versions) in enumerate(zip(self.line.ues.tolist(), self.line.versions.tolist(), strict=True)):
            yield t, list(zip(ues, versions, strict=True))

    def curvature(self, w, direction, batch):
        v = jnp.asarray(direction, jnp.float32)
        return np.asarray(curvature_at(self.task.model, jnp.asarray(w, jnp.float32), v, *batch), np.float64)

    @property
    def ues(self):
        return self.task.ues

    def sgd(self, w, ue, version):
        """FedAvg's client: K steps of SGD. Returns Δ, how far it went."""
        x = w.copy()
        for (batch,) in self.batches(ue, version):
            x = x - self.step * self.gradient(x, batch)
        return w - x


def fedavg(world: World):
    """McMahan et al. 2017, with stale clients."""
    models = [world.first]
    for _, jobs in world.rounds():
        deltas = [world.sgd(models[version], ue, version) for ue, version in jobs]
        models.append(models[-1] - sum(deltas) / len(deltas))
    return models[-1], None


def sparse_fedavg(world: World, share: float):
    """FedAvg whose clients upload the share of the largest numbers of (what they have not sent + Δ/η), Stich et al. 2018, algorithm 1."""
    models, m = [world.first], np.zeros((world.ues, world.first.size))
    for _, jobs in world.rounds():
        sent = []
        for ue, version in jobs:
            p = m[ue] + world.sgd(models[version], ue, version) / world.step
            order = sorted(range(p.size), key=lambda i, p=p: (-abs(p[i]), i))[: max(1, int(share * p.size + 0.5))]
            q = np.zeros_like(p)
            q[order] = p[order]
            m[ue] = p - q
            sent.append(q)
        models.append(models[-1] - world.step * sum(sent) / len(sent))
    return models[-1], m


def fedprox(world: World, mu=0.1):
    """Li et al. 2020, algorithm 2, its local problem by K gradient steps, with stale clients."""
    models = [world.first]
    for _, jobs in world.rounds():
        ends = []
        for ue, version in jobs:
            w = models[version].copy()
            for (batch,) in world.batches(ue, version):
                w = w - world.step * (world.gradient(w, batch) + mu * (w - models[version]))
            ends.append(w - models[version])
        models.append(models[-1] + sum(ends) / len(ends))
    return models[-1], None


def fedavgm(world: World, beta=0.9, eta=1.0):
    """Hsu et al. 2019, section 4: the server has a momentum."""
    models, v = [world.first], np.zeros_like(world.first)
    for _, jobs in world.rounds():
        v = beta * v + sum(world.sgd(models[version], ue, version) for ue, version in jobs) / len(jobs)
        models.append(models[-1] - eta * v)
    return models[-1], None


def asyncfeded(world: World, lam=1.0, epsilon=1.0):
    """Wang et al. 2022 (AsyncFedED), algorithm 1 with κ = 0: staleness is how far the model has gone meanwhile."""
    models = [world.first]
    for _, jobs in world.rounds():
        x = models[-1]
        for ue, version in jobs:
            delta = -world.sgd(models[version], ue, version)
            gamma = np.linalg.norm(x - models[version]) / np.linalg.norm(delta)
            x = x + lam / (gamma + epsilon) * delta
        models.append(x)
    return models[-1], None


def persa_fl(world: World, option: str, alpha=0.03, lam=15.0, theta_steps=5, server_step=1.0):
    """Toghani et al. 2022, algorithms 1 and 2: clients of option B (MAML) or C (Moreau envelope), merged as they come."""
    models = [world.first]
    for _, jobs in world.rounds():
        x = models[-1]
        for ue, version in jobs:
            w = models[version].copy()
            for batches in world.batches(ue, version, 3 if option == "MAML" else 1):
                if option == "MAML":
                    inner, outer, curved = batches
                    g = world.gradient(w - alpha * world.gradient(w, inner), outer)
                    w = w - world.step * (g - alpha * world.curvature(w, g, curved))
                else:
                    theta = w.copy()
                    for _ in range(theta_steps):
                        slope = world.gradient(theta, batches[0]) + lam * (theta - w)
                        theta = theta - alpha / (1 + alpha * lam) * slope
                    w = w - world.step * lam * (w - theta)
            x = x - server_step * (models[version] - w) / len(jobs)
        models.append(x)
    return models[-1], None


def fedbuff(world: World, s: Callable[[int], float] = lambda tau: 1 / np.sqrt(1 + tau), server_step=1.0):
    """Nguyen et al. 2022, algorithm 1: a buffer of K updates, each scaled by s(τ), closes a round."""
    models = [world.first]
    for t, jobs in world.rounds():
        buffer = np.zeros_like(world.first)
        for ue, version in jobs:
            buffer = buffer + s(t - version) * world.sgd(models[version], ue, version)
        models.append(models[-1] - server_step * buffer / len(jobs))
    return models[-1], None


def hinge(tau, a=10.0, b=4.0):
    """Xie et al. 2019."""
    return 1.0 if tau <= b else 1.0 / (a * (tau - b) + 1.0)


def fedasync(world: World, alpha=0.6, s=lambda tau: (1.0 + tau) ** -0.5, rho=0.1):
    """Xie et al. 2019, algorithm 1: clients minimise f + ρ/2‖x − x_t‖², the server mixes models."""
    models = [world.first]
    for t, jobs in world.rounds():
        x = models[-1]
        for ue, version in jobs:
            mine = models[version].copy()
            for (batch,) in world.batches(ue, version):
                mine = mine - world.step * (world.gradient(mine, batch) + rho * (mine - models[version]))
            alpha_t = alpha * s(t + 1 - version)  # merging makes model t + 1
            x = (1 - alpha_t) * x + alpha_t * mine
        models.append(x)
    return models[-1], None


def fedopt(world: World, kind: str, eta=0.01, beta1=0.9, beta2=0.99, tau=1e-3):
    """Reddi et al. 2021, algorithm 2."""
    models = [world.first]
    m, v = np.zeros_like(world.first), np.full_like(world.first, tau**2)
    for _, jobs in world.rounds():
        delta = -sum(world.sgd(models[version], ue, version) for ue, version in jobs) / len(jobs)
        m = beta1 * m + (1 - beta1) * delta
        if kind == "adagrad":
            v = v + delta**2
        elif kind == "yogi":
            v = v - (1 - beta2) * delta**2 * np.sign(v - delta**2)
        else:
            v = beta2 * v + (1 - beta2) * delta**2
        models.append(models[-1] + eta * m / (np.sqrt(v) + tau))
    return models[-1], None


def fadas(world: World, eta=0.001, beta1=0.9, beta2=0.99, epsilon=1e-8, tau_c=1):
    """Wang et al. 2024 (FADAS), algorithm 1 with the delay-adaptive step of its authors' code."""
    models = [world.first]
    m = v = largest = np.zeros_like(world.first)
    for t, jobs in world.rounds():
        delta = -sum(world.sgd(models[version], ue, version) for ue, version in jobs) / len(jobs)
        m = beta1 * m + (1 - beta1) * delta
        v = beta2 * v + (1 - beta2) * delta**2
        largest = np.maximum(largest, v)
        tau_max = max(t - version for _, version in jobs)
        eta_t = eta if tau_max <= tau_c else eta / tau_max
        models.append(models[-1] + eta_t * m / (np.sqrt(largest) + epsilon))
    return models[-1], None


def ca2fl(world: World, eta=1.0):
    """Wang et al. 2024 (CA²FL), algorithm 2: every client's last update is cached and calibrates the round's."""
    models, h = [world.first], {ue: np.zeros_like(world.first) for ue in range(world.ues)}
    for _, jobs in world.rounds():
        mean_h = sum(h.values()) / world.ues
        deltas = {ue: world.sgd(models[version], ue, version) for ue, version in jobs}
        v = mean_h + sum(deltas[ue] - h[ue] for ue in deltas) / len(deltas)
        models.append(models[-1] - eta * v)
        h |= deltas
    return models[-1], None


def scaffold(world: World, eta=1.0):
    """Karimireddy et al. 2020, algorithm 1, option II. A client has the x and the c it was handed together."""
    models, controls = [world.first], [np.zeros_like(world.first)]
    c_i = {ue: np.zeros_like(world.first) for ue in range(world.ues)}
    for _, jobs in world.rounds():
        dx, dc = [], []
        for ue, version in jobs:
            x, c = models[version], controls[version]
            y = x.copy()
            for (batch,) in world.batches(ue, version):
                y = y - world.step * (world.gradient(y, batch) - c_i[ue] + c)
            c_plus = c_i[ue] - c + (x - y) / (world.steps * world.step)
            dx.append(y - x)
            dc.append(c_plus - c_i[ue])
            c_i[ue] = c_plus
        models.append(models[-1] + eta * sum(dx) / len(dx))
        controls.append(controls[-1] + len(dc) / world.ues * sum(dc) / len(dc))
    return models[-1], c_i


def pfedme(world: World, lam=15.0, personal_step=0.03, personal_steps=5):
    """Dinh et al. 2020, algorithm 1 with β = 1; θ by gradient descent on the step's batch."""
    models, theta = [world.first], dict.fromkeys(range(world.ues), world.first)
    size = personal_step / (1 + personal_step * lam)
    for _, jobs in world.rounds():
        moved = []
        for ue, version in jobs:
            w = models[version].copy()
            for (batch,) in world.batches(ue, version):
                t = w.copy()
                for _ in range(personal_steps):
                    t = t - size * (world.gradient(t, batch) + lam * (t - w))
                w, theta[ue] = w - world.step * lam * (w - t), t
            moved.append(models[version] - w)
        models.append(models[-1] - sum(moved) / len(moved))
    return models[-1], theta


def ditto(world: World, lam=1.0):
    """Li et al. 2021, algorithm 1, with FedAvg as the method beside it."""
    models, v = [world.first], dict.fromkeys(range(world.ues), world.first)
    for _, jobs in world.rounds():
        deltas = []
        for ue, version in jobs:
            start, w = models[version], models[version].copy()
            for for_w, for_v in world.batches(ue, version, 2):
                w = w - world.step * world.gradient(w, for_w)
                v[ue] = v[ue] - world.step * (world.gradient(v[ue], for_v) + lam * (v[ue] - start))
            deltas.append(start - w)
        models.append(models[-1] - sum(deltas) / len(deltas))
    return models[-1], v


def apfl(world: World, alpha=0.5, adapts=True):
    """Deng et al. 2020, algorithm 1, with its step of α_i at every communication."""
    models = [world.first]
    v: dict[int, Any] = dict.fromkeys(range(world.ues), world.first)
    alphas: dict[int, Any] = dict.fromkeys(range(world.ues), alpha)
    for _, jobs in world.rounds():
        deltas = []
        for ue, version in jobs:
            w, new_alpha = models[version].copy(), alphas[ue]
            for number, (batch,) in enumerate(world.batches(ue, version)):
                v_bar = alphas[ue] * v[ue] + (1 - alphas[ue]) * w
                g, g_bar = world.gradient(w, batch), world.gradient(v_bar, batch)
                if number == 0 and adapts:
                    new_alpha = min(max(alphas[ue] - world.step * (v[ue] - w) @ g_bar, 0.0), 1.0)
                w, v[ue] = w - world.step * g, v[ue] - world.step * alphas[ue] * g_bar
                alphas[ue] = new_alpha
            deltas.append(models[version] - w)
        models.append(models[-1] - sum(deltas) / len(deltas))
    return models[-1], {ue: np.append(v[ue], alphas[ue]) for ue in range(world.ues)}


def head_in(world: World):
    """Where in the vector the last layer's weights stand; digits' network has two layers."""
    return where(world, lambda name: name.startswith("dense2"))


def where(world: World, is_there: Callable[[str], bool]):
    """Where in the vector the layers with these names stand."""
    shapes = jax.eval_shape(world.task.model.init, jax.random.key(0))
    return np.concatenate([np.full(shape.size, is_there(name)) for name, shape in sorted(shapes.items())])


def fedper(world: World):
    """Arivazhagan et al. 2019: SGD on base and personal layers together, the base is averaged, the rest stays."""
    is_head = head_in(world)
    models, heads = [world.first], dict.fromkeys(range(world.ues), world.first[is_head])
    for _, jobs in world.rounds():
        deltas = []
        for ue, version in jobs:
            w = models[version].copy()
            w[is_head] = heads[ue]
            for (batch,) in world.batches(ue, version):
                w = w - world.step * world.gradient(w, batch)
            heads[ue] = w[is_head]
            deltas.append(np.where(is_head, 0.0, models[version] - w))
        models.append(models[-1] - sum(deltas) / len(deltas))
    return models[-1], heads


def fedrep(world: World, head_steps=10):
    """Collins et al. 2021, algorithm 1: the head first, below it the representation as it came; then the representation."""
    is_head = head_in(world)
    models, heads = [world.first], dict.fromkeys(range(world.ues), world.first[is_head])
    for _, jobs in world.rounds():
        deltas = []
        for ue, version in jobs:
            batches = world.batches(ue, version, 1 + head_steps)
            w = models[version].copy()
            w[is_head] = heads[ue]
            for own in batches:
                for batch in own[1:]:
                    w = w - world.step * np.where(is_head, world.gradient(w, batch), 0.0)
            heads[ue] = w[is_head]
            for own in batches:
                w = w - world.step * np.where(is_head, 0.0, world.gradient(w, own[0]))
            deltas.append(np.where(is_head, 0.0, models[version] - w))
        models.append(models[-1] - sum(deltas) / len(deltas))
    return models[-1], heads


TWINS: dict[str, Callable[[World], Any]] = {
    "FedBuff": fedbuff,
    "FedAsync": fedasync,
    "AsyncFedED": asyncfeded,
    "FedAvgM": fedavgm,
    "PersA-FL": lambda world: persa_fl(world, "MAML"),
    "PersA-FL-ME": lambda world: persa_fl(world, "ME"),
    "APFL": apfl,
    "FedAdam": lambda world: fedopt(world, "adam"),
    "FedYogi": lambda world: fedopt(world, "yogi"),
    "FedAdagrad": lambda world: fedopt(world, "adagrad", beta1=0.0),
    "FADAS": fadas,
    "CA2FL": ca2fl,
    "SCAFFOLD": scaffold,
    "pFedMe": pfedme,
    "Ditto": ditto,
    "FedRep": fedrep,
    "FedPer": fedper,
}
