"""What does a UE compute that keeps something from one job to the next?

Such an objective does a whole job at once: from the model it was handed, what it kept of its last job and its batches it
makes the upload, and what it keeps now. That is written down when the upload is merged, so a job that was lost leaves no
trace. On the device it is one row per UE.
"""

import typing
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from perfeds2.learning.models.model import Params
from perfeds2.learning.objectives import MOREAU, Loss, Moreau

Gradient = Callable[[Params, Any], Params]  # at a model, on one step's batches


@typing.runtime_checkable
class Keeping(typing.Protocol):
    """What a UE with a memory computes. Implement these and pass your own."""

    @property
    def batches(self) -> int:
        """How many independent batches one step takes."""
        ...

    def first(self, params: Params) -> Any:
        """What a UE has before its first job, as arrays; ``params`` is w_0."""
        ...

    def job(
        self, loss: Loss, start: Params, told: Any, kept: Any, batches: Any, beta: Float[Array, ""]
    ) -> tuple[Params, Any]:
        """The upload (the sum of the steps' gradients), and what the UE keeps.

        ``batches`` has one row for each local step, of ``batches`` batches each; ``told`` is what the merge sent along.
        """
        ...


@typing.runtime_checkable
class Personal(Keeping, typing.Protocol):
    """One that keeps a model of its own: evaluations look at that, in the place of the model after one personal step."""

    @staticmethod
    def personal(params: Params, kept: Any) -> Params:
        """A UE's own model, from the newest one and what it keeps. It knows no numbers of the objective."""
        ...


@typing.runtime_checkable
class Withholding(Keeping, typing.Protocol):
    """One whose UEs keep a part of the model for themselves, so it is not uploaded."""

    @staticmethod
    def withheld(params: Params) -> Params:
        """The arrays of that part."""
        ...


def descend(gradient: Gradient, start: Params, batches: Any, beta: Float[Array, ""]) -> tuple[Params, Params]:
    """Local steps: where they end, and the sum of their gradients."""

    def step(carry: tuple[Params, Params], own: Any) -> tuple[tuple[Params, Params], None]:
        w, total = carry
        g = gradient(w, own)
        return (jax.tree.map(lambda a, b: a - beta * b, w, g), jax.tree.map(jnp.add, total, g)), None

    return jax.lax.scan(step, (start, jax.tree.map(jnp.zeros_like, start)), batches)[0]


def _batch(batches: Any, number: int) -> Any:
    return jax.tree.map(lambda b: b[number], batches)


@partial(jax.tree_util.register_dataclass, data_fields=[], meta_fields=[])
@dataclass(frozen=True)
class Scaffold:
    """SCAFFOLD, Karimireddy et al. 2020, algorithm 1: steps along g − c_i + c, then c_i ← c_i − c + Δ_i/(steps·β) (option II)."""

    @property
    def batches(self) -> int:
        return 1

    def first(self, params: Params) -> Params:
        return jax.tree.map(jnp.zeros_like, params)

    def job(
        self, loss: Loss, start: Params, told: Params, kept: Params, batches: Any, beta: Float[Array, ""]
    ) -> tuple[Params, Params]:
        def corrected(w: Params, own: Any) -> Params:
            return jax.tree.map(lambda g, mine, c: g - mine + c, jax.grad(loss)(w, _batch(own, 0)), kept, told)

        _, total = descend(corrected, start, batches, beta)
        steps = jax.tree.leaves(batches)[0].shape[0]
        return total, jax.tree.map(lambda mine, c, d: mine - c + d / steps, kept, told, total)


@partial(jax.tree_util.register_dataclass, data_fields=["alpha", "moreau"], meta_fields=["moreau_steps"])
@dataclass(frozen=True)
class PFedMe:
    """pFedMe, Dinh et al. 2020, algorithm 1: in each local step θ ≈ argmin f_i(θ) + λ/2‖θ − w‖², then w −= β·λ(w − θ).

    θ comes from w as Moreau's does, on the step's batch. The UE keeps its last θ: its own model.
    """

    alpha: float | Array = 0.03
    moreau: float | Array = MOREAU  # λ
    moreau_steps: int = 5  # K

    @property
    def batches(self) -> int:
        return 1

    @property
    def passes(self) -> int:
        return self.moreau_steps

    def first(self, params: Params) -> Params:
        return params

    def job(
        self,
        loss: Loss,
        start: Params,
        told: None,  # noqa: ARG002 (the interface)
        kept: Params,
        batches: Any,
        beta: Float[Array, ""],
    ) -> tuple[Params, Params]:
        envelope = Moreau(self.alpha, self.moreau, self.moreau_steps)

        def step(carry: tuple[Params, Params, Params], own: Any) -> tuple[tuple[Params, Params, Params], None]:
            w, total, _ = carry
            theta = envelope.personal_model(loss, w, _batch(own, 0))
            g = jax.tree.map(lambda v, t: self.moreau * (v - t), w, theta)
            return (jax.tree.map(lambda a, b: a - beta * b, w, g), jax.tree.map(jnp.add, total, g), theta), None

        nothing = jax.tree.map(jnp.zeros_like, start)
        (_, total, theta), _ = jax.lax.scan(step, (start, nothing, kept), batches)
        return total, theta

    @staticmethod
    def personal(params: Params, kept: Params) -> Params:  # noqa: ARG004 (the interface)
        return kept


@partial(jax.tree_util.register_dataclass, data_fields=["pull"], meta_fields=[])
@dataclass(frozen=True)
class Ditto:
    """Ditto, Li et al. 2021, algorithm 1: beside FedAvg's steps, as many of v_i −= β(∇f_i(v_i) + λ(v_i − w)) on own batches.

    w is the model the UE was handed, v_i is what it keeps: its own model.
    """

    pull: float | Array = 1.0  # λ

    @property
    def batches(self) -> int:
        return 2

    def first(self, params: Params) -> Params:
        return params

    def job(
        self,
        loss: Loss,
        start: Params,
        told: None,  # noqa: ARG002 (the interface)
        kept: Params,
        batches: Any,
        beta: Float[Array, ""],
    ) -> tuple[Params, Params]:
        def held(v: Params, own: Any) -> Params:
            gradient = jax.grad(loss)(v, _batch(own, 1))
            return jax.tree.map(lambda g, a, w: g + self.pull * (a - w), gradient, v, start)

        _, total = descend(lambda w, own: jax.grad(loss)(w, _batch(own, 0)), start, batches, beta)
        own_model, _ = descend(held, kept, batches, beta)
        return total, own_model

    @staticmethod
    def personal(params: Params, kept: Params) -> Params:  # noqa: ARG004 (the interface)
        return kept


@partial(jax.tree_util.register_dataclass, data_fields=["own_share"], meta_fields=["adapts"])
@dataclass(frozen=True)
class APFL:
    """APFL, Deng et al. 2020, algorithm 1: a UE's own model is v̄ = α_i·v_i + (1 − α_i)·w, and v_i −= β·∇_v f_i(v̄), beside FedAvg.

    w takes its steps on the same batches, and ∇_v f_i(v̄) = α_i·∇f_i(v̄). Once a job, with its first batch, α_i follows its
    own slope: α_i −= β·⟨v_i − w, ∇f_i(v̄)⟩, within 0 and 1. The UE keeps v_i and α_i.
    """

    own_share: float | Array = 0.5  # α_i at first
    adapts: bool = True  # else α_i stays what it is

    @property
    def batches(self) -> int:
        return 1

    @property
    def passes(self) -> int:
        """Two gradients on every batch: at w and at v̄."""
        return 2

    def first(self, params: Params) -> tuple[Params, Float[Array, ""]]:
        return params, jnp.asarray(self.own_share, jnp.float32)

    def job(
        self,
        loss: Loss,
        start: Params,
        told: None,  # noqa: ARG002 (the interface)
        kept: tuple[Params, Float[Array, ""]],
        batches: Any,
        beta: Float[Array, ""],
    ) -> tuple[Params, tuple[Params, Float[Array, ""]]]:
        def step(carry: tuple[Params, Params, Array, Params], now: tuple[Any, Array]) -> tuple[Any, None]:
            (w, v, share, total), (own, begins) = carry, now
            g, mine = (jax.grad(loss)(at, _batch(own, 0)) for at in (w, mixed(w, (v, share))))
            slope = sum(jnp.vdot(a - b, c) for a, b, c in zip(*map(jax.tree.leaves, (v, w, mine)), strict=True))
            moved = jnp.clip(share - beta * slope, 0.0, 1.0) if self.adapts else share
            v = jax.tree.map(lambda a, b: a - beta * share * b, v, mine)
            w, total = jax.tree.map(lambda a, b: a - beta * b, w, g), jax.tree.map(jnp.add, total, g)
            return (w, v, jnp.where(begins, moved, share), total), None

        begins = jnp.arange(jax.tree.leaves(batches)[0].shape[0]) == 0
        nothing = jax.tree.map(jnp.zeros_like, start)
        (_, v, share, total), _ = jax.lax.scan(step, (start, *kept, nothing), (batches, begins))
        return total, (v, share)

    @staticmethod
    def personal(params: Params, kept: tuple[Params, Float[Array, ""]]) -> Params:
        return mixed(params, kept)


def mixed(params: Params, kept: tuple[Params, Float[Array, ""]]) -> Params:
    """v̄: so much of a UE's own model, the rest of the one everybody has."""
    own, share = kept
    return jax.tree.map(lambda w, v: share * v + (1 - share) * w, params, own)


HEAD = "dense"  # our models' last layer is the last of this name


def head_of(params: Params) -> Params:
    """The arrays of the last layer: what a UE has for itself where the other layers are everybody's."""
    layers = sorted({name.partition(".")[0] for name in params if name.startswith(HEAD)})
    if not layers:
        raise ValueError(
            f"the model has no layer {HEAD}…, so it has no head that a UE could keep; name its last one so."
        )
    return {name: w for name, w in params.items() if name.partition(".")[0] == layers[-1]}


def with_head(params: Params, kept: Params) -> Params:
    """Everybody's layers below a UE's own head."""
    return params | kept


@partial(jax.tree_util.register_dataclass, data_fields=[], meta_fields=[])
@dataclass(frozen=True)
class FedPer:
    """FedPer, Arivazhagan et al. 2019, algorithms 1 and 2: steps on all layers together; the last stays at the UE."""

    @property
    def batches(self) -> int:
        return 1

    def first(self, params: Params) -> Params:
        return head_of(params)

    def job(
        self,
        loss: Loss,
        start: Params,
        told: None,  # noqa: ARG002 (the interface)
        kept: Params,
        batches: Any,
        beta: Float[Array, ""],
    ) -> tuple[Params, Params]:
        end, total = descend(lambda w, own: jax.grad(loss)(w, _batch(own, 0)), with_head(start, kept), batches, beta)
        return _without(total, kept), {name: end[name] for name in kept}

    personal = staticmethod(with_head)
    withheld = staticmethod(head_of)


@partial(jax.tree_util.register_dataclass, data_fields=[], meta_fields=["head_steps"])
@dataclass(frozen=True)
class FedRep:
    """FedRep, Collins et al. 2021, algorithm 1: first the UE's own head, then the layers below it.

    The head takes τ steps for every local step of the others: as in the experiments, ten epochs to one.
    """

    head_steps: int = 10  # τ

    @property
    def batches(self) -> int:
        """One for a step of the layers below, and the head's."""
        return 1 + self.head_steps

    def first(self, params: Params) -> Params:
        return head_of(params)

    def job(
        self,
        loss: Loss,
        start: Params,
        told: None,  # noqa: ARG002 (the interface)
        kept: Params,
        batches: Any,
        beta: Float[Array, ""],
    ) -> tuple[Params, Params]:
        def of_head(head: Params, batch: Any) -> Params:
            return jax.grad(lambda own: loss(with_head(start, own), batch))(head)

        def of_body(w: Params, own: Any) -> Params:
            return _without(jax.grad(loss)(w, _batch(own, 0)), kept)

        for_head = jax.tree.map(lambda b: b[:, 1:].reshape(-1, *b.shape[2:]), batches)
        head, _ = descend(of_head, kept, for_head, beta)
        _, total = descend(of_body, with_head(start, head), batches, beta)
        return total, head

    personal = staticmethod(with_head)
    withheld = staticmethod(head_of)


def _without(gradient: Params, head: Params) -> Params:
    """Nothing of the head is uploaded."""
    return {name: jnp.zeros_like(g) if name in head else g for name, g in gradient.items()}
