"""Compute what a UE uploads from the model it received.

An objective is a small immutable object. A job takes the received model, what was sent along, what the UE keeps, and
its batches. It returns an upload and what the UE keeps now. By default it takes steps along ``gradient``. What a UE
keeps is stored when the upload is merged, so a lost job leaves no trace. Objectives for all three modes are here;
``methods/`` has the others.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PyTree

from perfeds2.learning.gradients import Batches, BatchLoss, Gradient, Hessian
from perfeds2.learning.method import Method
from perfeds2.learning.models.model import Model, Params
from perfeds2.learning.settings import Length, Steps, StepSize, Versions, setting, traced
from perfeds2.learning.trees import Number, Scalar, pick, rows_of, stepped, zeros
from perfeds2.theory.constants import ALPHA

# Nests of arrays: an array, a dict or tuple of nests, or None. To a type checker they are ``Any``.
ClientState: TypeAlias = PyTree  # what a UE keeps between its jobs
Broadcast: TypeAlias = PyTree  # what a merge sends along with a model
OwnModel = Callable[[Params, ClientState], Params]  # (newest model, what a UE keeps) -> the UE's own model


@dataclass(frozen=True)
class Context:
    """What a job knows besides its model and batches."""

    loss: BatchLoss  # loss(params, batch) on one batch; also loss.gradient and loss.meta_gradient
    beta: Number  # step size of local steps
    ue: Int[Array, ""]
    version: Int[Array, ""]  # of the model that the job started from
    key: Key[Array, ""]  # for what the objective draws


class Objective(Method):
    """What a UE computes. Subclass it, as a frozen dataclass, and write ``gradient`` or ``job``.

    Attributes:
        batches: Number of independent batches per local step.
        alpha: A personal step size of its own, which evaluations use too; None is the run's.
        keeps_uploads: Whether what a UE keeps is computed from whole uploads, so that these must not be compressed.
        chooses_steps: Whether ``job`` chooses how many local steps it takes, so that it has no local epochs.
        is_alone: Whether UEs exchange nothing with the server.
        trains: Whether there are any rounds.
        personal: Makes a UE's own model from the newest model and what the UE keeps, without the objective's numbers.
            Evaluations use it instead of personal steps. None: UEs have no models of their own.
    """

    batches: int = 1
    alpha: Any = None
    keeps_uploads: ClassVar[bool] = False
    chooses_steps: ClassVar[bool] = False
    is_alone: ClassVar[bool] = False
    trains: ClassVar[bool] = True
    personal: ClassVar[Any] = None  # an ``OwnModel``

    @property
    def objective(self) -> "Objective":
        return self

    @property
    def passes(self) -> int:
        """Return how many batches of computing time one step costs."""
        return self.batches

    def passes_with(self, product: float) -> float:
        """Return the passes if a Hessian-vector product costs as much as ``product`` gradients."""
        return self.passes

    @property
    def work(self) -> float | Float[np.ndarray, " n"]:
        """Return the share of a whole job that each UE computes."""
        return 1.0

    def init(self, params: Params) -> ClientState:
        """Return what a UE keeps before its first job, as arrays; ``params`` is w_0."""
        return None

    def gradient(self, params: Params, start: Params, batches: Batches, context: Context) -> Params:
        """Return the gradient of one local step.

        Args:
            params: The weights w by name.
            start: The model that the job started from.
            batches: The step's batches, stacked along the first axis.
            context: The loss, and what the job knows.

        Returns:
            The gradient, by name, in the shapes of ``params``.
        """
        raise NotImplementedError(f"{type(self).__name__} has neither gradient nor job.")

    def job(
        self, start: Params, broadcast: Broadcast, client_state: ClientState, batches: Batches, context: Context
    ) -> tuple[Params, ClientState]:
        """Return the upload, which is the sum of the gradients of all steps, and what the UE keeps then.

        Args:
            start: The model that the UE received.
            broadcast: What the merge sent along; None without.
            client_state: What the UE client_state at the end of its last merged job.
            batches: One row per local step, with ``self.batches`` batches each.
            context: The loss, and what the job knows.
        """
        if rows_of(batches) == 1:
            return self.gradient(start, start, pick(batches, 0), context), client_state

        def gradient(w: Params, own: Batches) -> Params:
            return self.gradient(w, start, own, context)

        return descend(gradient, start, batches, context.beta)[1], client_state

    def replacing(self, model: Model, outputs_and_rank: Callable[[], tuple[int, int]]) -> Model:
        """Return the model that UEs have in place of the task's; the function counts its outputs and a sample's axes."""
        return model

    def withheld(self, params: Params) -> Params:
        """Return the arrays of the model that stay on the UE and are not uploaded."""
        return {}


class KeepsModel(Objective):
    """An objective whose UEs keep models of their own, w_0 at first."""

    def init(self, params: Params) -> Params:
        return params

    @staticmethod
    def personal(params: Params, client_state: Params) -> Params:
        return client_state


@traced
class FromGradient(Objective):
    """Steps along a function of the loss, the weights and the batches of a step."""

    function: Callable[[BatchLoss, Params, Batches], Params] = setting(default=None, static=True)
    batches: int = setting("Number of independent batches per step.", default=1, static=True)

    def gradient(self, params: Params, start: Params, batches: Batches, context: Context) -> Params:
        return self.function(context.loss, params, batches)


def from_gradient(function: Callable[[BatchLoss, Params, Batches], Params], batches: int = 1) -> FromGradient:
    """Return an objective that steps along ``function(loss, params, batches)``.

    Args:
        function: Returns a gradient in the shapes of ``params``. ``batches`` is stacked along the first axis.
        batches: Number of independent batches per step.

    Returns:
        The objective.

    Example:
        >>> import jax
        >>> from perfeds2 import Learner, from_gradient
        >>> def gradient(loss, params, batches):
        ...     return loss.gradient(params, jax.tree.map(lambda b: b[0], batches))
        >>> Learner(from_gradient(gradient), batch=40).samples
        40
    """
    return FromGradient(function, batches)


@traced
class FedAvg(Objective):
    """∇f on one batch."""

    paper = "McMahan et al., AISTATS 2017"

    def gradient(self, params: Params, start: Params, batches: Batches, context: Context) -> Params:
        """Return ∇f(w) on the first batch."""
        return context.loss.gradient(params, pick(batches, 0))


@traced
class FedProx(Objective):
    """∇f + μ(w − w_start): held near the model version it started from. With one local step the term is zero."""

    paper = "Li et al., MLSys 2020"

    proximal: StepSize = setting("μ: how strongly local steps are held near the model they started from.", default=0.1)

    def gradient(self, params: Params, start: Params, batches: Batches, context: Context) -> Params:
        """Return ∇f(w) + μ(w − w_start) on the first batch."""
        gradient = plain(context.loss)(params, batches)
        return jax.tree.map(lambda g, w, w0: g + self.proximal * (w - w0), gradient, params, start)


@traced
class PerFed(Objective):
    """The meta-gradient (I − α∇²f(w; D_h)) ∇f(w − α∇f(w; D_in); D_o) of eq. (7), on three independent batches.

    ``hessian``: "exact" computes the Hessian-vector product by jvp of grad; "hf" by a central difference of gradients;
    "fo" leaves it out (first order). ``hessian_batch`` "inner" takes it on D_in: then the update is the gradient
    of one sampled F, w ↦ f(w − α∇f(w; D_in); D_o). With ``inner_clip`` the inner gradient is shortened to that norm:
    (I − α∇²f·J), with J the derivative of the shortening. docs/how-to/gradients.md says which setting helps when.
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

    def gradient(self, params: Params, start: Params, batches: Batches, context: Context) -> Params:
        """Return the meta-gradient of eq. (7) on D_in, D_o and, if there are three batches, D_h."""
        is_early = None if self.anneal is None else jnp.asarray(context.version, jnp.float32) < self.anneal
        return context.loss.meta_gradient(
            params, batches, self.alpha, self.hessian, inner_clip=self.inner_clip, is_early=is_early
        )


@traced
class Moreau(Objective):
    """The gradient λ(w − θ̂) of the Moreau envelope min_θ f(θ) + (λ/2)‖θ − w‖², as pFedMe and PersA-FL have it.

    θ̂ comes from w by a few gradient steps on one batch. They have length α/(1 + αλ), short enough for the penalised
    f if steps of length α are for f.
    """

    paper = "Dinh et al., NeurIPS 2020"

    alpha: StepSize = ALPHA
    moreau: Length = setting("λ: how strongly the personal model is held near the global one.", default=15.0)
    moreau_steps: Steps = setting("K: gradient steps to the personal model.", default=5, static=True)

    @property
    def passes(self) -> int:
        return self.moreau_steps

    def gradient(self, params: Params, start: Params, batches: Batches, context: Context) -> Params:
        theta = self.personal_model(context.loss, params, pick(batches, 0))
        return jax.tree.map(lambda w, t: self.moreau * (w - t), params, theta)

    def personal_model(self, loss: BatchLoss, params: Params, batch: Batches) -> Params:
        """Return θ̂, which gradient steps on the penalised f reach from w on one batch."""
        size = self.alpha / (1 + self.alpha * self.moreau)

        def towards(_: Array, theta: Params) -> Params:
            gradient = jax.grad(loss)(theta, batch)
            return jax.tree.map(lambda t, g, w: t - size * (g + self.moreau * (t - w)), theta, gradient, params)

        return jax.lax.fori_loop(0, self.moreau_steps, towards, params)


OBJECTIVES: dict[str, type[Objective]] = {
    "FedAvg": FedAvg,
    "FedProx": FedProx,
    "PerFed": PerFed,
    "Moreau": Moreau,
}  # each in all three modes


def keeps_state(objective: Objective, params: PyTree) -> bool:
    """Return whether UEs keep anything between their jobs; ``params`` has the shapes of a model."""
    return bool(jax.tree.leaves(jax.eval_shape(objective.init, params)))


def descend(
    gradient: Gradient, start: Params, batches: Batches, beta: Scalar, taken: Scalar | None = None
) -> tuple[Params, Params]:
    """Take local steps, and return where they end and the sum of their gradients.

    Args:
        gradient: Returns the gradient of a step, from the weights and the batches of the step.
        start: The model to start from, by name.
        batches: One row per step.
        beta: Step size of the steps.
        taken: Number of steps to take, the first ones; None takes all.

    Returns:
        The last model and the sum of the gradients, by name.

    Example:
        >>> import jax.numpy as jnp
        >>> from perfeds2 import descend
        >>> end, total = descend(lambda w, batch: {"w": batch}, {"w": jnp.zeros(())}, jnp.ones(3), 0.5)
        >>> float(end["w"]), float(total["w"])
        (-1.5, 3.0)
    """

    def step(carry: tuple[Params, Params], now: tuple[Batches, Array]) -> tuple[tuple[Params, Params], None]:
        (w, total), (own, number) = carry, now
        g = gradient(w, own)
        if taken is not None:
            goes_on = number < taken
            g = jax.tree.map(lambda each: jnp.where(goes_on, each, 0.0), g)
        return (stepped(w, beta, g), jax.tree.map(jnp.add, total, g)), None

    return jax.lax.scan(step, (start, zeros(start)), (batches, jnp.arange(rows_of(batches))))[0]


def plain(loss: BatchLoss, number: int = 0) -> Gradient:
    """Return ∇f on one of the batches of a step."""
    return lambda w, batches: jax.grad(loss)(w, pick(batches, number))
