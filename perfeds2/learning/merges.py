"""How does the server make one model of a round's uploads?

A merge is a small immutable object that *is* the behaviour, as an objective is: called with the newest model, what has
arrived and its own state, it returns the next model and its state. Its numbers are traced, so another step size needs no
new compilation. The same object merges in a simulation and in a federation.
"""

import typing
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from perfeds2.learning.objectives import norm

Params = dict[str, Any]  # JAX's arrays in a replay, NumPy's in a federation
Discount = Literal["poly", "hinge", "constant"]


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["uploads", "handed", "told", "staleness", "ues", "beta"],
    meta_fields=["steps"],
)
@dataclass(frozen=True)
class Arrived:
    """A round's uploads, one in each row of every array."""

    uploads: Any  # the sum of a UE's gradients over its local steps
    handed: Any  # the model it began with
    told: Any  # what the merge had sent along with that model, if it sends anything
    staleness: Any  # τ, a whole number each
    ues: Any  # who sent it
    beta: Any  # the length of a UE's steps
    steps: int  # how many it takes

    @property
    def moves(self) -> Any:
        """Δ: how far each UE went from the model it began with, w_handed − w_end, as the literature counts it."""
        return jax.tree.map(lambda g: self.beta * g, self.uploads)


@typing.runtime_checkable
class Merge(typing.Protocol):
    """How uploads become a model. Implement these two and pass your own."""

    def init(self, params: Params, ues: int) -> Any:
        """What it has in mind before the first round: arrays, or nothing (None)."""
        ...

    def __call__(self, params: Params, arrived: Arrived, state: Any) -> tuple[Params, Any]:
        """The next model, and what it has in mind then."""
        ...


@typing.runtime_checkable
class OfMean(typing.Protocol):
    """A merge that asks for nothing but the mean of the uploads: then they are added up as they come, and none is kept."""

    def init(self, params: Params, ues: int) -> Any: ...

    def step(self, params: Params, mean: Params, beta: Any, state: Any) -> tuple[Params, Any]: ...


@typing.runtime_checkable
class Telling(Merge, typing.Protocol):
    """A merge that sends something along with every model it hands out."""

    def tell(self, state: Any) -> Any: ...


@typing.runtime_checkable
class Backward(typing.Protocol):
    """A merge that looks at the models its uploads began with; a federation keeps none of them."""

    looks_back: typing.Literal[True]


@typing.runtime_checkable
class Undrafted(typing.Protocol):
    """A merge of a draft that sees those, too, who came but were not drafted."""

    takes_undrafted: typing.Literal[True]


def weighted(weights: Any, rows: Params) -> Params:
    """Σ weight·row of every array. In full precision: a GPU would else round the factors of a product to ten bits."""
    return jax.tree.map(lambda each: jnp.tensordot(weights, each, 1, precision="highest"), rows)


def mean_of(rows: Params) -> Params:
    """As a product with 1/A: on a processor quicker than adding up columns."""
    count = jax.tree.leaves(rows)[0].shape[0]
    return weighted(jnp.full(count, 1 / count, jnp.float32), rows)


# ---- of the mean


@partial(jax.tree_util.register_dataclass, data_fields=[], meta_fields=[])
@dataclass(frozen=True)
class Mean:
    """w −= β·mean, eq. (8)."""

    def init(self, params: Params, ues: int) -> None:  # noqa: ARG002 (the interface)
        return None

    def step(self, params: Params, mean: Params, beta: Any, state: None) -> tuple[Params, None]:
        return jax.tree.map(lambda w, g: w - beta * g, params, mean), state


@partial(jax.tree_util.register_dataclass, data_fields=[], meta_fields=["transformation"])
@dataclass(frozen=True)
class Optax:
    """Any transformation of optax on the mean; β is then only the length of local steps."""

    transformation: Any  # an optax.GradientTransformation; optax is not loaded for everybody else

    def init(self, params: Params, ues: int) -> Any:  # noqa: ARG002 (the interface)
        return self.transformation.init(params)

    def step(self, params: Params, mean: Params, beta: Any, state: Any) -> tuple[Params, Any]:  # noqa: ARG002
        updates, state = self.transformation.update(mean, state, params)
        return jax.tree.map(jnp.add, params, updates), state


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["server_step", "first_decay", "second_decay", "tau"],
    meta_fields=["kind"],
)
@dataclass(frozen=True)
class FedOpt:
    """Reddi et al. 2021, algorithm 2: m and v follow Δ = mean of the UEs' moves, and w −= η_g·m/(√v + τ).

    No correction of the beginning; instead v begins with τ². η_g is tuned in the paper, between 0.01 and 0.3 for most tasks.
    """

    kind: Literal["adam", "yogi", "adagrad"] = "adam"
    server_step: float | Array = 0.01  # η_g
    first_decay: float | Array = 0.9  # β₁
    second_decay: float | Array = 0.99  # β₂
    tau: float | Array = 1e-3  # τ, how adaptive it is

    def init(self, params: Params, ues: int) -> tuple[Params, Params]:  # noqa: ARG002 (the interface)
        return jax.tree.map(jnp.zeros_like, params), jax.tree.map(lambda w: jnp.full_like(w, self.tau**2), params)

    def step(self, params: Params, mean: Params, beta: Any, state: Any) -> tuple[Params, Any]:
        first, second = state
        move = jax.tree.map(lambda g: beta * g, mean)
        first = jax.tree.map(lambda m, d: self.first_decay * m + (1 - self.first_decay) * d, first, move)
        second = jax.tree.map(self._second, second, move)
        step = jax.tree.map(lambda m, v: self.server_step * m / (jnp.sqrt(v) + self.tau), first, second)
        return jax.tree.map(jnp.subtract, params, step), (first, second)

    def _second(self, v: Array, d: Array) -> Array:
        match self.kind:
            case "adam":
                return self.second_decay * v + (1 - self.second_decay) * d**2
            case "yogi":
                return v - (1 - self.second_decay) * d**2 * jnp.sign(v - d**2)
            case "adagrad":
                return v + d**2


@partial(jax.tree_util.register_dataclass, data_fields=["server_step", "momentum"], meta_fields=[])
@dataclass(frozen=True)
class Momentum:
    """FedAvgM, Hsu et al. 2019: v ← momentum·v + Δ with Δ = mean of the UEs' moves, and w −= η_g·v."""

    server_step: float | Array = 1.0  # η_g
    momentum: float | Array = 0.9

    def init(self, params: Params, ues: int) -> Params:  # noqa: ARG002 (the interface)
        return jax.tree.map(jnp.zeros_like, params)

    def step(self, params: Params, mean: Params, beta: Any, state: Params) -> tuple[Params, Params]:
        state = jax.tree.map(lambda v, g: self.momentum * v + beta * g, state, mean)
        return jax.tree.map(lambda w, v: w - self.server_step * v, params, state), state


MEAN = Mean()


# ---- by staleness


def discounted(
    kind: Discount, staleness: Any, a: float | Array | None = None, b: float | Array = 4.0
) -> Float[Array, " a"]:
    """s(τ) of FedAsync: 1, or (1 + τ)^−a, or 1 up to b and then 1/(a(τ − b) + 1)."""
    tau = jnp.asarray(staleness, jnp.float32)
    a = (10.0 if kind == "hinge" else 0.5) if a is None else a
    match kind:
        case "poly":
            return (1.0 + tau) ** -a
        case "hinge":
            return jnp.where(tau <= b, 1.0, 1.0 / (a * jnp.maximum(tau - b, 0.0) + 1.0))
        case "constant":
            return jnp.ones_like(tau)


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["server_step", "discount_a", "discount_b", "momentum"],
    meta_fields=["discount"],
)
@dataclass(frozen=True)
class Stale:
    """w −= η_g·mean of s(τ_i)·Δ_i: FedBuff (Nguyen et al. 2022, algorithm 1) with s = 1/√(1 + τ); with s = 1 it is the mean.

    With a momentum, what is subtracted is the running sum d ← momentum·d + mean.
    """

    discount: Discount = "poly"
    server_step: float | Array = 1.0  # η_g
    discount_a: float | Array | None = None  # None: as in FedAsync's experiments, 0.5, and 10 for the hinge
    discount_b: float | Array = 4.0
    momentum: float | Array | None = None

    def init(self, params: Params, ues: int) -> Any:  # noqa: ARG002 (the interface)
        return None if self.momentum is None else jax.tree.map(jnp.zeros_like, params)

    def __call__(self, params: Params, arrived: Arrived, state: Any) -> tuple[Params, Any]:
        weights = discounted(self.discount, arrived.staleness, self.discount_a, self.discount_b)
        step = weighted(weights / weights.size, arrived.moves)
        if self.momentum is not None:
            step = state = jax.tree.map(lambda d, new: self.momentum * d + new, state, step)
        return jax.tree.map(lambda w, d: w - self.server_step * d, params, step), state


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["mixing", "discount_a", "discount_b"],
    meta_fields=["discount"],
)
@dataclass(frozen=True)
class FedAsync:
    """w ← (1 − α_t)·w + α_t·w_i with α_t = α·s(τ), Xie et al. 2019, algorithm 1. Several uploads go one after the other."""

    discount: Discount = "poly"
    mixing: float | Array = 0.6  # α
    discount_a: float | Array | None = None  # None: as in FedAsync's experiments, 0.5, and 10 for the hinge
    discount_b: float | Array = 4.0
    looks_back: typing.ClassVar = True

    def init(self, params: Params, ues: int) -> None:  # noqa: ARG002 (the interface)
        return None

    def __call__(self, params: Params, arrived: Arrived, state: None) -> tuple[Params, None]:
        alphas = self.mixing * discounted(self.discount, arrived.staleness, self.discount_a, self.discount_b)
        theirs = jax.tree.map(jnp.subtract, arrived.handed, arrived.moves)

        def mix(w: Params, one: tuple[Params, Array]) -> tuple[Params, None]:
            model, alpha = one
            return jax.tree.map(lambda mine, new: (1 - alpha) * mine + alpha * new, w, model), None

        return jax.lax.scan(mix, params, (theirs, alphas))[0], state


@partial(jax.tree_util.register_dataclass, data_fields=["server_step", "epsilon"], meta_fields=[])
@dataclass(frozen=True)
class AsyncFedED:
    """w −= η·Δ_i with η = λ/(γ + ε), Wang et al. 2022, algorithm 1: the further the model has gone meanwhile, the shorter.

    Staleness is a distance here, γ = ‖w − w_handed‖/‖Δ_i‖. The paper's number of local steps follows it, K ← K + ⌊κ(γ̄ − γ)⌋; a
    timeline knows no weights, so this is κ = 0: K is what it was. Several uploads go one after the other.
    """

    server_step: float | Array = 1.0  # λ
    epsilon: float | Array = 1.0  # ε
    looks_back: typing.ClassVar = True

    def init(self, params: Params, ues: int) -> None:  # noqa: ARG002 (the interface)
        return None

    def __call__(self, params: Params, arrived: Arrived, state: None) -> tuple[Params, None]:
        def add(w: Params, one: tuple[Params, Params]) -> tuple[Params, None]:
            handed, move = one
            far, long = norm(jax.tree.map(jnp.subtract, w, handed)), norm(move)
            size = self.server_step * long / jnp.maximum(far + self.epsilon * long, 1e-30)  # also of a move of length 0
            return jax.tree.map(lambda a, d: a - size * d, w, move), None

        return jax.lax.scan(add, params, (arrived.handed, arrived.moves))[0], state


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["server_step", "first_decay", "second_decay", "epsilon", "late"],
    meta_fields=[],
)
@dataclass(frozen=True)
class FADAS:
    """AMSGrad on the mean move, with a shorter step in rounds that have a late upload: Wang et al. 2024, algorithm 1.

    η_t is η, or min(η, 1/τ_max) where the largest staleness τ_max of the round is beyond τ_c.
    """

    server_step: float | Array = 0.001  # η
    first_decay: float | Array = 0.9  # β₁
    second_decay: float | Array = 0.99  # β₂
    epsilon: float | Array = 1e-8
    late: float | Array = 1.0  # τ_c

    def init(self, params: Params, ues: int) -> tuple[Params, Params, Params]:  # noqa: ARG002 (the interface)
        first, second, largest = (jax.tree.map(jnp.zeros_like, params) for _ in range(3))
        return first, second, largest

    def __call__(self, params: Params, arrived: Arrived, state: Any) -> tuple[Params, Any]:
        first, second, largest = state
        move = mean_of(arrived.moves)
        first = jax.tree.map(lambda m, d: self.first_decay * m + (1 - self.first_decay) * d, first, move)
        second = jax.tree.map(lambda v, d: self.second_decay * v + (1 - self.second_decay) * d**2, second, move)
        largest = jax.tree.map(jnp.maximum, largest, second)
        latest = jnp.asarray(arrived.staleness.max(), jnp.float32)
        size = jnp.where(
            latest <= self.late, self.server_step, jnp.minimum(self.server_step, 1 / jnp.maximum(latest, 1.0))
        )
        step = jax.tree.map(lambda m, v: size * m / (jnp.sqrt(v) + self.epsilon), first, largest)
        return jax.tree.map(jnp.subtract, params, step), (first, second, largest)


# ---- with something kept of every UE


@partial(jax.tree_util.register_dataclass, data_fields=["server_step"], meta_fields=[])
@dataclass(frozen=True)
class CA2FL:
    """Cached update calibration, Wang et al. 2024, algorithm 2: w −= η_g·(mean of all h + mean of the round's Δ_i − h_i).

    h_i is the last move of UE i that was merged, none at first; the server keeps them, n models in all.
    """

    server_step: float | Array = 1.0  # η_g

    def init(self, params: Params, ues: int) -> tuple[Params, Params]:
        """h of everybody, and its mean."""
        return jax.tree.map(lambda w: jnp.zeros((ues, *w.shape), w.dtype), params), jax.tree.map(jnp.zeros_like, params)

    def __call__(self, params: Params, arrived: Arrived, state: Any) -> tuple[Params, Any]:
        cached, mean = state
        moves, ues = arrived.moves, jax.tree.leaves(cached)[0].shape[0]
        news = jax.tree.map(lambda h, d: d - h[arrived.ues], cached, moves)
        new, share = mean_of(news), arrived.ues.shape[0] / ues
        step = jax.tree.map(jnp.add, mean, new)
        mean = jax.tree.map(lambda m, d: m + share * d, mean, new)
        cached = jax.tree.map(lambda h, d: h.at[arrived.ues].set(d), cached, moves)
        return jax.tree.map(lambda w, v: w - self.server_step * v, params, step), (cached, mean)


@partial(jax.tree_util.register_dataclass, data_fields=["server_step"], meta_fields=[])
@dataclass(frozen=True)
class WithControl:
    """SCAFFOLD's server (Karimireddy et al. 2020, algorithm 1): w −= η_g·mean(Δ), and c += (A/n)·mean(c_i⁺ − c_i).

    c goes out with every model. By its option II a UE's c_i⁺ − c_i is Δ_i/(steps·β) − c, with the c it was told, so the server
    knows it from Δ_i and nothing more is uploaded.
    """

    server_step: float | Array = 1.0  # η_g

    def init(self, params: Params, ues: int) -> tuple[Params, Float[Array, ""]]:
        return jax.tree.map(jnp.zeros_like, params), jnp.asarray(ues, jnp.float32)

    def tell(self, state: Any) -> Params:
        return state[0]

    def __call__(self, params: Params, arrived: Arrived, state: Any) -> tuple[Params, Any]:
        control, ues = state
        upload, told, share = mean_of(arrived.uploads), mean_of(arrived.told), arrived.ues.shape[0] / ues
        params = jax.tree.map(lambda w, g: w - self.server_step * arrived.beta * g, params, upload)
        change = jax.tree.map(lambda g, c: g / arrived.steps - c, upload, told)
        return params, (jax.tree.map(lambda c, new: c + share * new, control, change), ues)


MERGES: dict[str, Callable[..., Merge | OfMean]] = {
    "mean": Mean,
    "staleness:poly": partial(Stale, "poly"),
    "staleness:hinge": partial(Stale, "hinge"),
    "staleness:constant": partial(Stale, "constant"),
    "fedbuff": Stale,
    "fedasync": FedAsync,
    "asyncfeded": AsyncFedED,
    "momentum": Momentum,
    "fedadam": partial(FedOpt, "adam"),
    "fedyogi": partial(FedOpt, "yogi"),
    "fedadagrad": partial(FedOpt, "adagrad", first_decay=0.0),
    "fadas": FADAS,
    "ca2fl": CA2FL,
}  # each is called with the learning settings its parameters name
