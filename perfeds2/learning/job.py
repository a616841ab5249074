"""Compute one job of a UE: what it uploads, and what it keeps."""

from dataclasses import dataclass, replace
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PyTree

from perfeds2.learning.attacks import Hostile
from perfeds2.learning.factored import loss_for
from perfeds2.learning.feedback import report
from perfeds2.learning.gradients import Batches
from perfeds2.learning.learner import Learner
from perfeds2.learning.merges import Merge
from perfeds2.learning.models.adapter import narrowed
from perfeds2.learning.models.mlp import MLP
from perfeds2.learning.models.model import Model, Params, bare
from perfeds2.learning.noise import NoiseKey, noise_keys
from perfeds2.learning.objectives import Broadcast, ClientState, Context, Objective
from perfeds2.learning.returns import expect_like, expect_pair
from perfeds2.learning.settings import as_tree, traced
from perfeds2.learning.task import Task
from perfeds2.learning.transforms import Chain, Clip, Sending
from perfeds2.learning.trees import without

DRAWING = 13  # folded into a job's key for what an objective draws
Index: TypeAlias = Int[Array, ""]  # of a UE, a model version or a round
Kept: TypeAlias = tuple[ClientState, PyTree]  # what the objective keeps on a UE, and what the UE has not uploaded yet
FEW, WIDE = 8, 2**16  # unroll a round of at most FEW uploads if the first layer has at least WIDE weights


@dataclass(frozen=True)
class Program:
    """The static part of a training, for which the loop is compiled, besides the structure of its inputs."""

    model: Model
    batch: int
    local_steps: int
    quorum: int | None = None  # uploads per round; None: any number, since only their plain sum is needed
    looks: bool = False  # each upload is merged or kept individually
    together: bool = False  # a round's participants are computed side by side, not one after the other
    unrolled: bool = False  # the loop over a round's uploads is unrolled
    block: int = 1  # rounds between two checks whether to stop
    bands: int = 1  # rounds that share noise
    feedback: str | None = None  # what UEs report

    @classmethod
    def of(
        cls, model: Model, learner: Learner, quorum: int | None = None, *, one_by_one: bool = True, block: int = 1
    ) -> "Program":
        keeps, merge = learner.keeps(model), learner.merge
        if keeps and "undrafted" in merge.needs:
            raise ValueError("this merge repeats some jobs; use an objective without state, and no top_k or compress.")
        looks = keeps or "uploads" in merge.needs
        unrolled = one_by_one and not looks and _adding_up_counts(model, learner, quorum)
        return cls(
            model,
            learner.batch,
            learner.local_steps,
            quorum=quorum if looks or learner.merge_weighs or unrolled or not one_by_one else None,
            looks=looks,
            together=not one_by_one,
            unrolled=unrolled,
            block=block,
            bands=learner.bands,
            feedback=learner.feedback,
        )


def _adding_up_counts(model: Model, learner: Learner, quorum: int | None) -> bool:
    """Return whether a loop over a round's uploads would spend much of its time adding them up.

    This is so for few plain gradients of a wide network. Unrolled, they are added up and merged in one pass, but each
    quorum then needs its own program.
    """
    network, plain = bare(model), learner.samples == learner.batch
    wide = isinstance(network, MLP) and network.sizes[0] * network.sizes[1] >= WIDE
    return quorum is not None and 1 < quorum <= FEW and plain and wide


@traced
class Known:
    """The traced inputs of a training beside its script. Those of several trainings can be stacked."""

    data: PyTree  # the task's ``Data``; in stacked trainings, each one's own part
    objective: Objective
    merge: Merge
    chain: Chain  # that an upload passes
    beta: Float[Array, "*lanes"]
    alpha: Float[Array, "*lanes"]
    key: Key[Array, "*lanes"]  # source of the batches of all jobs
    noise: Float[Array, "*lanes"] | None = None  # deviation of the noise on a round's sum; None: noise is not compiled
    noise_key: NoiseKey | None = None  # source of the noise; None: the same as of the batches
    hostile: Hostile | None = None  # None: attacks are not compiled

    @classmethod
    def of(cls, task: Task, learner: Learner, seed: int, ues: int | None = None) -> "Known":
        """Return the inputs of a training. ``ues`` is the number of UEs, if the task has the data of only one."""
        objective, merge, beta, alpha, most = as_numbers(
            (as_tree(learner.objective), as_tree(learner.merge), learner.beta, learner.personal_step, learner.clip)
        )
        key = run_key(seed)
        if learner.noise is not None and most is None:
            raise ValueError("noise is relative to clip, which is None; set clip, such as clip=1.0.")
        noise = None if most is None or learner.noise is None else learner.noise * most
        noise_key = None if learner.noise_seed is None else noise_keys(learner.noise_seed)
        hostile = None if learner.attack is None else Hostile.of(learner.attack, ues or task.ues, seed, most)
        clip = None if most is None else Clip(most, noise is not None)
        first = tuple(step for step in (hostile, clip) if step is not None)
        chain = replace(learner.chain, first=first)
        return cls(task.data, objective, merge, chain, beta, alpha, key, noise, noise_key, hostile)


def as_numbers(tree: PyTree) -> PyTree:
    """Return a tree with its numbers as arrays of single precision."""
    return jax.tree.map(lambda number: jnp.asarray(number, jnp.float32), tree)


def as_int32(seed: int) -> np.int32:
    """Return the low 32 bits of a seed, so that seeds from 2³¹ on are accepted too."""
    return np.int64(seed).astype(np.int32)


def run_key(seed: int) -> Key[Array, ""]:
    """Return the source of what the jobs of a run draw."""
    return jax.random.fold_in(jax.random.key(as_int32(seed)), 1)


def job_key(key: Key[Array, ""], ue: Index | int, version: Index | int) -> Key[Array, ""]:
    """Return the key of one job, from that of its run."""
    return jax.random.fold_in(jax.random.fold_in(key, ue), version)


def local_update(
    program: Program,
    known: Known,
    params: Params,
    ue: Index,
    version: Index,
    broadcast: Broadcast = None,
    kept: Kept = (None, None),
) -> tuple[Params, Kept]:
    """Compute one job: what UE ``ue`` uploads after receiving model ``version``, and what it keeps.

    The upload is the sum of the gradients of the local steps, clipped and compressed if so set, and zeros for arrays
    that stay on the UE. ``broadcast`` was sent along with the model. Randomness depends only on (UE, model version), so
    it is the same whichever round merges the job.
    """
    return reported_update(program, known, params, ue, version, broadcast, kept)[:2]


def reported_update(
    program: Program, known: Known, params: Params, ue: Index, version: Index, broadcast: Broadcast, kept: Kept
) -> tuple[Params, Kept, Float[Array, ""] | None]:
    """Compute one job as ``local_update`` does, and what the UE reports about it, if anything."""
    (state, unsent), objective = kept, known.objective
    key, batches = _batches(program, known, ue, version)
    params, broadcast, state = narrowed(program.model, (params, broadcast, state), ue)
    loss = loss_for(program.model, program.batch, one_step=program.local_steps == 1)
    context = Context(loss, known.beta, ue, version, jax.random.fold_in(key, DRAWING))
    who = f"the objective {type(objective).__name__}"
    found = objective.job(params, broadcast, state, batches, context)
    total, now_kept = expect_pair(who, found, "the upload and what the UE keeps")
    expect_like(who, "what the UE keeps", now_kept, state)
    expect_like(who, "the upload", total, params)
    total, now_kept = narrowed(program.model, (total, now_kept), ue)
    stays = objective.withheld(params)
    sent, unsent = known.chain(without(total, stays), unsent, Sending(ue, without(params, stays), key))
    sent |= {name: jnp.zeros_like(w) for name, w in stays.items()}
    asked = program.feedback
    heard = None if asked is None else report(asked, program.model, params, batches, sent)
    return sent, (now_kept, unsent), heard


def _batches(program: Program, known: Known, ue: Index, version: Index) -> tuple[Key[Array, ""], Batches]:
    """Return the key and the batches of one job."""
    key = job_key(known.key, ue, version)
    batches = known.data.batches(key, ue, (program.local_steps, known.objective.batches, program.batch))
    return key, batches if known.hostile is None else known.hostile.batches(ue, batches)
