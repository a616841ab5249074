"""Compute what a UE uploads from the model it received.

An objective is a small immutable object. Called with a loss, the parameters, the model the job started from and its
batches, it returns a gradient. An objective that keeps state on the UE does a whole job at once: from the received model, its
memory and the batches it makes the upload and the new memory. The memory is stored when the upload is merged, so a
lost job leaves no trace. Objectives for all three modes are here; ``methods/`` has the others.
"""

import typing
from collections.abc import Callable
from dataclasses import replace
from typing import Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PyTree

from perfeds2.learning.models.model import Params
from perfeds2.learning.settings import Length, Steps, StepSize, Versions, setting, traced
from perfeds2.theory.constants import ALPHA

# Nests of arrays: an array, a dict or tuple of nests, or None. To a type checker they are ``Any``.
Batches: TypeAlias = PyTree  # inputs and targets of one batch, or of several stacked along the first axes
Memory: TypeAlias = PyTree  # what a UE keeps between its jobs
Told: TypeAlias = PyTree  # what a merge sends along with a model
Scalar: TypeAlias = Array | np.floating | float
Number: TypeAlias = Float[Array, ""]
Loss = Callable[[Params, Batches], Number]
Hessian = Literal["exact", "fo", "hf"]
Gradient = Callable[[Params, Batches], Params]  # (model, one step's batches) -> gradient


@typing.runtime_checkable
class Objective(typing.Protocol):
    """What a UE computes. Implement these two members and pass your own."""

    @property
    def batches(self) -> int:
        """Return the number of independent batches per step.

        A step costs as much computing time as that many batches. An objective that uses a batch more than once says
        the cost in a property ``passes``.
        """
        ...

    def __call__(self, loss: Loss, params: Params, start: Params, batches: Batches) -> Params:
        """Return the gradient at ``params`` of a job that began at ``start``; ``batches`` is stacked along axis 0."""
        ...


@typing.runtime_checkable
class Adapting(Objective, typing.Protocol):
    """An objective with a personal step size of its own, which evaluations use too."""

    alpha: float | Array


@typing.runtime_checkable
class Annealed(Objective, typing.Protocol):
    """An objective that changes during training: each job asks for its form at the job's model version."""

    def at(self, version: Int[Array, ""]) -> Objective: ...


@typing.runtime_checkable
class Drawing(typing.Protocol):
    """An objective that draws random numbers: each job asks for its form with a key of its own."""

    def drawn(self, key: Key[Array, ""]) -> "Objective | Stateful": ...


@typing.runtime_checkable
class Individual(typing.Protocol):
    """An objective with settings of every UE: each job asks for the form of its UE."""

    def of_ue(self, ue: Int[Array, ""]) -> "Objective | Stateful": ...


@typing.runtime_checkable
class Stateful(typing.Protocol):
    """What a UE computes if it keeps state between jobs. Implement these members and pass your own."""

    @property
    def batches(self) -> int:
        """Return the number of independent batches per step."""
        ...

    def first(self, params: Params) -> Memory:
        """Return the memory before the first job, as arrays; ``params`` is w_0."""
        ...

    def job(
        self, loss: Loss, start: Params, told: Told, kept: Memory, batches: Batches, beta: Number
    ) -> tuple[Params, Memory]:
        """Return the upload (the sum of the steps' gradients) and the new memory.

        ``batches`` has one row per local step, with ``self.batches`` batches each; ``told`` is what the merge sent
        along.
        """
        ...


@typing.runtime_checkable
class Personal(Stateful, typing.Protocol):
    """An objective whose UEs keep models of their own; evaluations use those instead of a personal step."""

    @staticmethod
    def personal(params: Params, kept: Memory) -> Params:
        """Return a UE's own model from the newest one and its memory. It must not use the objective's numbers."""
        ...


@typing.runtime_checkable
class Withholding(typing.Protocol):
    """An objective whose UEs keep part of the model, which is not uploaded."""

    def withheld(self, params: Params) -> Params:
        """Return the arrays of that part."""
        ...


class KeepsModel:
    """A memory that holds the UE's own model, w_0 at first."""

    def first(self, params: Params) -> Params:
        return params

    @staticmethod
    def personal(params: Params, kept: Params) -> Params:
        return kept


def passes(objective: "Objective | Stateful") -> int:
    """Return how many batches of computing time one step costs."""
    return getattr(objective, "passes", objective.batches)


@traced
class FedAvg:
    """∇f on one batch."""

    paper = "McMahan et al., AISTATS 2017"

    batches = 1

    def __call__(self, loss: Loss, params: Params, start: Params, batches: Batches) -> Params:
        """Return ∇f(w) on the first batch.

        Args:
            loss: The loss of parameters on a batch.
            params: The weights w by name.
            start: The model the job started from; not used.
            batches: The step's batches, stacked along the first axis.

        Returns:
            The gradient, by name, in the shapes of ``params``.
        """
        return plain(loss)(params, batches)


@traced
class FedProx:
    """∇f + μ(w − w_start): held near the model version it started from. With one local step the term is zero."""

    paper = "Li et al., MLSys 2020"

    proximal: StepSize = setting("μ: how strongly local steps are held near the model they started from.", default=0.1)

    batches = 1

    def __call__(self, loss: Loss, params: Params, start: Params, batches: Batches) -> Params:
        """Return ∇f(w) + μ(w − w_start) on the first batch.

        Args:
            loss: The loss of parameters on a batch.
            params: The weights w by name.
            start: The model w_start that the job started from.
            batches: The step's batches, stacked along the first axis.

        Returns:
            The gradient, by name, in the shapes of ``params``.
        """
        gradient = plain(loss)(params, batches)
        return jax.tree.map(lambda g, w, w0: g + self.proximal * (w - w0), gradient, params, start)


@traced
class PerFed:
    """The meta-gradient (I − α∇²f(w; D_h)) ∇f(w − α∇f(w; D_in); D_o) of eq. (7), on three independent batches.

    ``hessian``: "exact" computes the Hessian-vector product by jvp of grad; "hf" by a central difference of gradients;
    "fo" leaves it out (first order). ``hessian_batch`` "inner" takes it on D_in: then the update is the gradient
    of one sampled F, w ↦ f(w − α∇f(w; D_in); D_o). With ``inner_clip`` the inner gradient is shortened to that norm, and
    differentiated as such: (I − α∇²f·J) with J its derivative. docs/how-to/gradients.md says when which helps.
    """

    paper = "Fallah et al., NeurIPS 2020; You et al., 2022"

    alpha: StepSize = ALPHA
    hessian: Hessian = setting("The Hessian term: exact, fo (none) or hf (differences).", default="exact", static=True)
    hessian_batch: Literal["own", "inner"] = setting("The batch of the Hessian.", default="own", static=True)
    inner_clip: Length | None = setting("Largest norm of the inner gradient.", default=None)
    anneal: Versions | None = setting("Number of first model versions without the Hessian.", default=None)

    @property
    def batches(self) -> int:
        """Return 2, or 3 if the Hessian has a batch of its own."""
        return 2 if self.hessian == "fo" or self.hessian_batch == "inner" else 3

    @property
    def passes(self) -> int:
        """Return 2 or 3: the Hessian product costs a pass on any batch, even while annealing discards it."""
        return 2 if self.hessian == "fo" else 3

    def passes_with(self, product: float) -> float:
        """Return the passes if a Hessian-vector product costs as much as ``product`` gradients.

        The central difference is two gradients, and first order has no product.
        """
        return 2 + {"exact": product, "hf": 2.0, "fo": 0.0}[self.hessian]

    def at(self, version: Int[Array, ""]) -> "PerFed":
        """Return the objective at a model version, with the annealing that is left.

        Args:
            version: The version of the model that the job started from.

        Returns:
            The objective that the job uses.
        """
        return self if self.anneal is None else replace(self, anneal=self.anneal - jnp.asarray(version, jnp.float32))

    def __call__(self, loss: Loss, params: Params, start: Params, batches: Batches) -> Params:
        """Return the meta-gradient of eq. (7).

        Args:
            loss: The loss of parameters on a batch.
            params: The weights w by name.
            start: The model the job started from; not used.
            batches: The step's batches, stacked along the first axis: D_in, D_o and, if there are three, D_h.

        Returns:
            The gradient, by name, in the shapes of ``params``.
        """
        inner = plain(loss)(params, batches)
        most = self.inner_clip
        step = inner if most is None else clip(inner, most)
        adapted = stepped(params, self.alpha, step)
        outer = plain(loss, 1)(adapted, batches)
        if self.hessian == "fo":
            return outer
        product, on = _jvp if self.hessian == "exact" else _difference, 0 if self.hessian_batch == "inner" else 2
        direction = outer if most is None else _jvp(lambda g: clip(g, most), inner, outer)
        curvature = product(lambda w: plain(loss, on)(w, batches), params, direction)
        exact = stepped(outer, self.alpha, curvature)
        if self.anneal is None:
            return exact
        is_early = self.anneal > 0
        return jax.tree.map(lambda first_order, g: jnp.where(is_early, first_order, g), outer, exact)


@traced
class Moreau:
    """The gradient λ(w − θ̂) of the Moreau envelope min_θ f(θ) + (λ/2)‖θ − w‖², as pFedMe and PersA-FL have it.

    θ̂ comes from w by a few gradient steps on one batch. They have length α/(1 + αλ): if f is smooth enough for steps of
    length α, the penalised f is for these.
    """

    paper = "Dinh et al., NeurIPS 2020"

    alpha: StepSize = ALPHA
    moreau: Length = setting("λ: how strongly the personal model is held near the global one.", default=15.0)
    moreau_steps: Steps = setting("K: gradient steps to the personal model.", default=5, static=True)

    batches = 1

    @property
    def passes(self) -> int:
        return self.moreau_steps

    def __call__(self, loss: Loss, params: Params, start: Params, batches: Batches) -> Params:
        theta = self.personal_model(loss, params, pick(batches, 0))
        return jax.tree.map(lambda w, t: self.moreau * (w - t), params, theta)

    def personal_model(self, loss: Loss, params: Params, batch: Batches) -> Params:
        """Return θ̂, which gradient steps on the penalised f reach from w on one batch."""
        size = self.alpha / (1 + self.alpha * self.moreau)

        def towards(_: Array, theta: Params) -> Params:
            gradient = jax.grad(loss)(theta, batch)
            return jax.tree.map(lambda t, g, w: t - size * (g + self.moreau * (t - w)), theta, gradient, params)

        return jax.lax.fori_loop(0, self.moreau_steps, towards, params)


OBJECTIVES: dict[str, Callable[..., Objective]] = {
    "FedAvg": FedAvg,
    "FedProx": FedProx,
    "PerFed": PerFed,
    "Moreau": Moreau,
}  # each in all three modes


def zeros(tree: PyTree) -> PyTree:
    """Return zeros in the shapes of a tree's arrays."""
    return jax.tree.map(jnp.zeros_like, tree)


def rows_of(tree: PyTree) -> int:
    """Return the length of the first axis of a tree's arrays."""
    return jax.tree.leaves(tree)[0].shape[0]


def stepped(params: PyTree, size: Scalar, direction: PyTree) -> PyTree:
    """Return params − size·direction."""
    return jax.tree.map(lambda w, g: w - size * g, params, direction)


def descend(gradient: Gradient, start: Params, batches: Batches, beta: Number) -> tuple[Params, Params]:
    """Take local steps, and return where they end and the sum of their gradients."""

    def step(carry: tuple[Params, Params], own: Batches) -> tuple[tuple[Params, Params], None]:
        w, total = carry
        g = gradient(w, own)
        return (stepped(w, beta, g), jax.tree.map(jnp.add, total, g)), None

    return jax.lax.scan(step, (start, zeros(start)), batches)[0]


def plain(loss: Loss, number: int = 0) -> Gradient:
    """Return ∇f on one of the batches of a step."""
    return lambda w, batches: jax.grad(loss)(w, pick(batches, number))


def pick(batches: Batches, number: int) -> Batches:
    """Return one of the batches of a step."""
    return jax.tree.map(lambda b: b[number], batches)


def dot(one: Params, other: Params) -> Number:
    """Return the scalar product of all arrays together."""
    return sum(jax.tree.leaves(jax.tree.map(jnp.vdot, one, other)), jnp.zeros(()))


def norm(tree: Params) -> Number:
    """Return the Euclidean norm of all arrays together."""
    return jnp.sqrt(dot(tree, tree))


def clip(gradient: Params, most: float | Array, *, must_be_finite: bool = False) -> Params:
    """Return g·min(1, C/‖g‖), the gradient shortened to norm ``most``. A shorter one is unchanged.

    With ``must_be_finite``, a gradient whose norm is not finite becomes 0.
    """
    length = norm(gradient)
    scale = jnp.where(length > most, most / length, 1.0)
    if must_be_finite:
        return jax.tree.map(lambda g: jnp.where(jnp.isfinite(length), scale * g, 0.0), gradient)
    return jax.tree.map(lambda g: scale * g, gradient)


def _jvp(function: Callable[[Params], Params], params: Params, direction: Params) -> Params:
    """Return the derivative of a function along a direction; for a gradient this is ∇²f · v."""
    return jax.jvp(function, (params,), (direction,))[1]


def _difference(gradient: Callable[[Params], Params], params: Params, direction: Params) -> Params:
    """Return ∇²f · v ≈ (∇f(w + δv) − ∇f(w − δv)) / 2δ, with δ such that the step has length 10⁻²."""
    delta = 1e-2 / jnp.maximum(norm(direction), 1e-12)
    ahead, behind = gradient(stepped(params, -delta, direction)), gradient(stepped(params, delta, direction))
    return jax.tree.map(lambda a, b: (a - b) / (2 * delta), ahead, behind)
