"""Train along a timeline, in one compiled loop over its rounds.

The timeline says which UE is merged when and from which model version, so a gradient is computed when it is merged,
from the version its UE had. Versions that are still needed stay in a buffer, the shelf. The timeline is known
beforehand, so the shelf is as short as possible.
"""

from dataclasses import dataclass, field, replace
from functools import partial, reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from perfeds2.learning import factored, on_gpu
from perfeds2.learning.attacks import Attack, Hostile
from perfeds2.learning.cells import Edges, merge_edges
from perfeds2.learning.exploded import warn_if_exploded
from perfeds2.learning.feedback import report
from perfeds2.learning.merges import MEAN, Arrived, Merge, MergeState, OfMean, Telling, Undrafted, Weighted, mean_of
from perfeds2.learning.models.mlp import MLP
from perfeds2.learning.models.model import MeanLoss, Model, Params, bare
from perfeds2.learning.noise import NoiseKey, NoiseSeed, noise_keys, noise_on
from perfeds2.learning.objectives import (
    Adapting,
    Annealed,
    Batches,
    Drawing,
    Individual,
    Memory,
    Objective,
    Stateful,
    Told,
    Withholding,
    clip,
    descend,
    passes,
)
from perfeds2.learning.payload import largest, numbers_sent, quantised
from perfeds2.learning.returns import expect_like, expect_pair
from perfeds2.learning.script import Script
from perfeds2.learning.settings import Structure, split, traced
from perfeds2.learning.task import Task, weight_shapes
from perfeds2.theory.constants import ALPHA
from perfeds2.timeline.record import Timeline

QUANTISING = 7  # folded into a job's key for stochastic rounding
DRAWING = 13  # and for what an objective draws
Numbers = tuple[list[Array], list[Array]]  # settings of an objective and of a merge
Structures = tuple[Structure, Structure]  # the rest of both
Index = Int[Array, ""]  # of a UE, a model version or a round
Reported = Float[Array, " n"] | None
FEW, WIDE = 8, 2**16  # unroll a round of at most FEW uploads if the first layer has at least WIDE weights
SAFE = "promise_in_bounds"  # indices into the shelf are valid; checking them costs a GPU kernel launches


@dataclass(frozen=True)
class Learner:
    """How a UE computes an update and how the server merges a round."""

    objective: Objective | Stateful
    beta: float = 0.07  # β: the server's step size, and the UE's if it takes several local steps
    batch: int = 40
    local_steps: int = 1
    merge: Merge | OfMean = MEAN
    alpha: float | None = None  # α of the personal step in evaluations; None: the objective's own, or the paper's
    clip: float | None = None  # largest norm of an upload; None: no clipping
    bits: int | None = None  # bits per number of an upload; None: no quantisation
    top_k: float | None = None  # share of the numbers that is uploaded; the rest waits for later uploads; None: all
    noise: float | None = None  # σ: noise on the sum of a round, divided by ``clip``; None: no noise
    bands: int = 1  # rounds that share noise; 1: independent noise
    noise_seed: NoiseSeed | None = field(default=None, repr=False)  # secret bits of the noise; None: the run's seed
    personal_steps: int = 1  # personal steps in an evaluation, unless UEs keep models of their own
    attack: Attack | None = None  # what hostile UEs upload; None: there are none
    feedback: str | None = None  # what UEs report to the schedule, a name in ``REPORTS``; None: nothing

    def __post_init__(self) -> None:
        if self.bits is not None and self.bits < 2:
            raise ValueError(f"bits must be at least 2, a sign and a step, got {self.bits}.")

    @property
    def personal_step(self) -> float:
        """Return the α that evaluations use."""
        if self.alpha is not None:
            return self.alpha
        return float(self.objective.alpha) if isinstance(self.objective, Adapting) else ALPHA

    @property
    def samples(self) -> int:
        """Return the number of samples one job computes on, d_i in the paper. It determines the computing time."""
        return self.local_steps * passes(self.objective) * self.batch

    @property
    def parts(self) -> tuple[Numbers, Structures]:
        """Return the numbers and the structures of the objective and the merge."""
        (numbers, objective), (merging, merge) = split(self.objective), split(self.merge)
        return (numbers, merging), (objective, merge)


@traced
class State:
    """What the loop carries from round to round."""

    params: Params  # w_k; with many cells, the cloud's model
    shelf: (
        PyTree  # older versions and what was sent with them, stacked; the last slot takes versions that are never read
    )
    merge: MergeState  # state of the merge
    memory: Memory = None  # what each UE keeps, one row per UE; None if the objective keeps nothing
    unsent: PyTree = None  # what each UE has not uploaded yet, one row per UE; None if everything is uploaded
    reported: Float[Array, "*lanes n"] | None = None  # what each UE last reported, NaN before; None without feedback
    edges: Edges | None = None  # the models of all edges; None for one cell


@dataclass(frozen=True)
class Program:
    """The static part of a training, for which the loop is compiled."""

    model: Model
    structures: Structures
    batch: int
    local_steps: int
    each: int | None = None  # uploads per round that are merged individually; None: only their sum is needed
    at_once: int | None = None  # participants of a round computed side by side; None: one after the other
    bits: int | None = None  # bits per number of an upload
    top_k: float | None = None  # share of the numbers that is uploaded
    block: int = 1  # rounds between two checks whether to stop
    bands: int = 1  # rounds that share noise
    written_out: int | None = None  # uploads per round in an unrolled loop; None: a loop for any number
    feedback: str | None = None  # what UEs report

    @classmethod
    def of(
        cls,
        model: Model,
        learner: Learner,
        quorum: int | None = None,
        *,
        one_by_one: bool = True,
    ) -> "Program":
        keeps = isinstance(learner.objective, Stateful) or learner.top_k is not None
        if keeps and isinstance(learner.merge, Undrafted):
            raise ValueError("this merge repeats some jobs; use an objective without state, and no top_k.")
        looks = keeps or not isinstance(learner.merge, OfMean)
        return cls(
            model,
            learner.parts[1],
            learner.batch,
            learner.local_steps,
            each=quorum if looks else None,
            at_once=None if one_by_one else quorum,
            bits=learner.bits,
            top_k=learner.top_k,
            bands=learner.bands,
            written_out=quorum if one_by_one and not looks and _adding_up_counts(model, learner, quorum) else None,
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
    numbers: Numbers  # settings of the objective and of the merge
    beta: Float[Array, "*lanes"]
    alpha: Float[Array, "*lanes"]
    key: Key[Array, "*lanes"]  # source of the batches of all jobs
    clip: Float[Array, "*lanes"] | None = None  # None: clipping is not compiled
    noise: Float[Array, "*lanes"] | None = None  # deviation of the noise on a round's sum; None: noise is not compiled
    noise_key: NoiseKey | None = None  # source of the noise; None: the same as of the batches
    hostile: Hostile | None = None  # None: attacks are not compiled

    @classmethod
    def of(cls, task: Task, learner: Learner, seed: int, ues: int | None = None) -> "Known":
        """Return the inputs of a training. ``ues`` is the number of UEs, if the task has the data of only one."""
        beta, alpha = (jnp.asarray(number, jnp.float32) for number in (learner.beta, learner.personal_step))
        most = None if learner.clip is None else jnp.asarray(learner.clip, jnp.float32)
        key = jax.random.fold_in(jax.random.key(as_int32(seed)), 1)
        if learner.noise is not None and most is None:
            raise ValueError("noise is relative to clip, which is None; set clip, such as clip=1.0.")
        noise = None if most is None or learner.noise is None else learner.noise * most
        noise_key = None if learner.noise_seed is None else noise_keys(learner.noise_seed)
        hostile = Hostile.of(learner.attack, ues or task.ues, seed)
        return cls(task.data, learner.parts[0], beta, alpha, key, most, noise, noise_key, hostile)


@dataclass(frozen=True)
class Prepared:
    """A training without its state."""

    program: Program
    script: Script
    known: Known

    @classmethod
    def of(cls, task: Task, script: Script, learner: Learner, seed: int, block: int = 1) -> "Prepared":
        one_by_one = jax.default_backend() == "cpu"  # a GPU computes a round's participants at once
        program = Program.of(task.model, learner, int(script.quorum), one_by_one=one_by_one)
        return cls(replace(program, block=block), script, Known.of(task, learner, seed))


def start(task: Task, script: Script, learner: Learner, seed: int) -> State:
    """Return the initial state, with w_0 as the current model and on the shelf."""
    numbers, structures = learner.parts
    sizes = {"slots": script.slots, "ues": task.ues, "all_sent": learner.top_k is None}
    state = _start(first_weights(task.model, as_int32(seed)), numbers, structures=structures, **sizes)
    if script.cloud is not None:
        if why := why_not_at_edges(task.model, learner):
            raise ValueError(f"{why}; merge at the cloud (--merge-at cloud).")
        return replace(state, edges=Edges.at_start(state.params, script.cloud))
    return state if learner.feedback is None else replace(state, reported=jnp.full(task.ues, jnp.nan, jnp.float32))


def why_not_at_edges(model: Model, learner: Learner) -> str:
    """Return why a learner cannot merge at edges, each of which knows only its own UEs; empty if it can."""
    kept = jax.eval_shape(lambda params: learner.merge.init(params, 1), weight_shapes(model))
    if jax.tree.leaves(kept) or isinstance(learner.merge, Undrafted):
        return f"the merge {type(learner.merge).__name__} keeps state at one server"
    if learner.bands > 1:
        return "noise that rounds share is drawn at one server"
    return "" if learner.feedback is None else "a schedule with feedback needs one server"


@partial(jax.jit, static_argnums=0)
def first_weights(model: Model, seed: Index) -> Params:
    """Draw w_0. It is compiled once per model, because drawing takes long to compile."""
    return model.init(jax.random.fold_in(jax.random.key(seed), 0))


@partial(jax.jit, static_argnames=("structures", "slots", "ues", "all_sent"))
def _start(params: Params, numbers: Numbers, *, structures: Structures, slots: int, ues: int, all_sent: bool) -> State:
    objective, merge = structures[0].unflatten(numbers[0]), structures[1].unflatten(numbers[1])
    merging, first = merge.init(params, ues), objective.first(params) if isinstance(objective, Stateful) else None
    memory = jax.tree.map(lambda w: jnp.broadcast_to(w, (ues, *jnp.shape(w))), first)
    unsent = None if all_sent else jax.tree.map(lambda w: jnp.zeros((ues, *w.shape), w.dtype), params)
    shelf = jax.tree.map(lambda w: jnp.zeros((slots, *w.shape), w.dtype).at[0].set(w), (params, _told(merge, merging)))
    return State(params, shelf, merging, memory, unsent)


def _told(merge: Merge | OfMean, state: MergeState) -> Told:
    """Return what is sent along with the model that a merge has just made."""
    return merge.tell(state) if isinstance(merge, Telling) else None


def advance(prepared: Prepared, state: State, first: int, stop: int) -> State:
    """Play rounds ``first`` to ``stop`` − 1. The given state is donated and must not be used again."""
    return _rounds(state, prepared.script, prepared.known, first, stop, program=prepared.program)


def replay(task: Task, timeline: Timeline, learner: Learner, seed: int = 0) -> Params:
    """Train along a timeline from beginning to end.

    One device does all the work. Several devices can train several seeds together (``train_together``).

    Args:
        task: The data of the UEs and the model.
        timeline: Which UE is merged in each round, and from which model version.
        learner: How updates are computed and merged.
        seed: Seed of the initial weights and of the batches.

    Returns:
        The weights after the last round, by name.

    Warns:
        RuntimeWarning: The loss is not finite at the end, or over ten times its initial value.

    Example:
        >>> from perfeds2 import Cell, Learner, PerFed, Protocol, replay, simulate, synthetic
        >>> task, learner = synthetic(4, labels_per_ue=2, seed=0), Learner(PerFed(0.03), batch=8)
        >>> load = {"payload_bits": task.payload_bits, "samples": learner.samples}
        >>> timeline = simulate(Cell.draw(4, seed=0), Protocol(2, 3), **load, rounds=3)
        >>> weights = replay(task, timeline, learner)
        >>> isinstance(weights, dict)
        True
    """
    script, block = Script.of(timeline, learner.merge), on_gpu.block_of([(0, timeline.rounds)])
    prepared, state = Prepared.of(task, script, learner, seed, block), start(task, script, learner, seed)
    last = advance(prepared, state, 0, timeline.rounds).params
    warn_if_exploded(task.model, task.data, first_weights(task.model, as_int32(seed)), last)
    return last


def as_int32(seed: int) -> np.int32:
    """Return the low 32 bits of a seed, so that seeds from 2³¹ on are accepted too."""
    return np.int64(seed).astype(np.int32)


def local_update(
    program: Program,
    known: Known,
    params: Params,
    ue: Index,
    version: Index,
    told: Told = None,
    kept: tuple[Memory, PyTree] = (None, None),
) -> tuple[Params, tuple[Memory, PyTree]]:
    """Compute one job: what UE ``ue`` uploads after receiving model ``version``, and what it keeps.

    The upload is the sum of the gradients of the local steps, clipped and compressed if so set. ``told`` was sent
    along with the model; ``kept`` is the objective's memory and what the UE has not uploaded yet. Randomness depends
    only on (UE, model version), so it is the same whichever round merges the job.
    """
    return _job(program, known, params, ue, version, told, kept)[:2]


def _job(
    program: Program, known: Known, params: Params, ue: Index, version: Index, told: Told, kept: tuple[Memory, PyTree]
) -> tuple[Params, tuple[Memory, PyTree], Float[Array, ""] | None]:
    """Compute one job as ``local_update`` does, and what the UE reports about it, if anything."""
    (memory, unsent), objective = kept, program.structures[0].unflatten(known.numbers[0])
    objective = objective.at(version) if isinstance(objective, Annealed) else objective
    key, batches = _batches(program, known, ue, version)
    if isinstance(objective, Drawing):
        objective = objective.drawn(jax.random.fold_in(key, DRAWING))
    if isinstance(objective, Individual):
        objective = objective.of_ue(ue)
    loss = MeanLoss(program.model)
    who = f"the objective {type(objective).__name__}"
    if isinstance(objective, Stateful):
        found = objective.job(loss, params, told, memory, batches, known.beta)
        total, now_kept = expect_pair(who, found, "the upload and what the UE keeps")
        expect_like(who, "what the UE keeps", now_kept, memory)
        memory = now_kept
    elif program.local_steps == 1:
        total = factored.one_step(program.model, objective, loss, params, jax.tree.map(lambda b: b[0], batches))
    else:
        _, total = descend(lambda w, own: objective(loss, w, params, own), params, batches, known.beta)
    expect_like(who, "the upload", total, params)
    stays = objective.withheld(params) if isinstance(objective, Withholding) else {}
    if known.hostile is not None:
        total = known.hostile.sent(ue, total, params, key, known.clip) | {name: total[name] for name in stays}
    if known.clip is not None:  # noise hides an upload of this norm, but no NaN
        total = clip(total, known.clip, must_be_finite=known.noise is not None)
    sent = owed = total if program.top_k is None else jax.tree.map(jnp.add, total, unsent)
    if program.top_k is not None:
        numbers = sum(w.size for w in jax.tree.leaves(params)) - sum(w.size for w in jax.tree.leaves(stays))
        sent = largest(owed, numbers_sent(program.top_k, numbers))
    if program.bits is not None:
        sent = quantised(jax.random.fold_in(key, QUANTISING), sent, program.bits)
    unsent = None if program.top_k is None else jax.tree.map(jnp.subtract, owed, sent)
    asked = program.feedback
    return sent, (memory, unsent), None if asked is None else report(asked, program.model, params, batches, sent)


def _batches(program: Program, known: Known, ue: Index, version: Index) -> tuple[Key[Array, ""], Batches]:
    """Return the key and the batches of one job."""
    objective: Any = program.structures[0].unflatten(known.numbers[0])
    key = jax.random.fold_in(jax.random.fold_in(known.key, ue), version)
    batches = known.data.batches(key, ue, (program.local_steps, objective.batches, program.batch))
    return key, batches if known.hostile is None else known.hostile.batches(ue, batches)


@partial(jax.jit, static_argnames="program", donate_argnames="state")
def _rounds(state: State, script: Script, known: Known, first: Index, stop: Index, *, program: Program) -> State:
    def round_(step: Array, state: State) -> State:
        k = first + step
        return play_round(program, known, script, state, k, None if program.block == 1 else k < stop)

    return on_gpu.in_blocks(program.block, stop - first, round_, state)


def play_round(
    program: Program,
    known: Known,
    script: Script,
    state: State,
    k: Index,
    alive: Bool[Array, ""] | None = None,
) -> State:
    """Play round k: merge its participants' uploads and put the model on the shelf. Do nothing unless ``alive``."""
    merge: Any = program.structures[1].unflatten(known.numbers[1])
    rows, kept, memory = None, None, (state.memory, state.unsent)
    newest, cloud = state.params, script.cloud
    if cloud is not None and state.edges is not None:
        newest = jax.tree.map(lambda w: w.at[cloud.cell[k]].get(mode=SAFE), state.edges.newest)
    key = known.key if known.noise_key is None else known.noise_key
    objective: Any = program.structures[0].unflatten(known.numbers[0])
    noise = None if known.noise is None else noise_on(objective, key, k, state.params, known.noise, program.bands)
    if program.each is None:
        total, reported = _total_upload(program, known, script, state, k)
        total = total if noise is None else jax.tree.map(jnp.add, total, noise)
        mean = jax.tree.map(lambda g: g / script.quorum, total)
        found = merge.step(newest, mean, known.beta, state.merge)
    else:
        arrived, kept, reported = _arrived(program, known, script, state, k)
        rows = arrived.ues
        if noise is not None:
            whole = merge.weights(arrived.staleness).sum() if isinstance(merge, Weighted) else rows.size
            arrived = replace(arrived, uploads=jax.tree.map(lambda u, z: u + z / whole, arrived.uploads, noise))
        if isinstance(merge, OfMean):
            found = merge.step(newest, mean_of(arrived.uploads), known.beta, state.merge)
        else:
            found = merge(newest, arrived, state.merge)
    who = f"the merge {type(merge).__name__}"
    params, merging = expect_pair(who, found, "the next model and the next state")
    expect_like(who, "the next model", params, newest)
    expect_like(who, "the next state", merging, state.merge)
    place = script.write[k]
    if alive is not None:  # shelf and memory are too long to copy: unwanted rows go to the spare slot, or are dropped
        now, before = (params, merging, reported), (newest, state.merge, state.reported)
        params, merging, reported = jax.tree.map(lambda new, old: jnp.where(alive, new, old), now, before)
        place = jnp.where(alive, place, script.slots - 1)
        rows = None if rows is None else jnp.where(alive, rows, jnp.iinfo(rows.dtype).max)
    if rows is not None:
        memory = jax.tree.map(lambda old, new: old.at[rows].set(new, mode="drop"), memory, kept)
    made = (params, _told(merge, merging))
    shelf = jax.tree.map(lambda old, new: old.at[place].set(new, mode=SAFE), state.shelf, made)
    edges = state.edges
    if cloud is not None and edges is not None:
        goes_on = jnp.asarray(True if alive is None else alive)
        params, models, edges = merge_edges(cloud, state.params, edges, params, shelf[0], k, goes_on)
        shelf = (models, shelf[1])
    return State(params, shelf, merging, *memory, reported=reported, edges=edges)


def merge_now(merge: Merge, params: PyTree, arrived: Arrived, state: MergeState) -> tuple[Params, MergeState]:
    """Merge one round outside a replay, compiled. Federations use this."""
    numbers, structure = split(merge)
    return _merge_now(numbers, params, arrived, state, structure=structure)


@partial(jax.jit, static_argnames="structure")
def _merge_now(
    numbers: list[Array], params: Params, arrived: Arrived, state: MergeState, *, structure: Structure
) -> tuple[Params, MergeState]:
    return structure.unflatten(numbers)(params, arrived, state)


def _total_upload(program: Program, known: Known, script: Script, state: State, k: Index) -> tuple[Params, Reported]:
    """Return the sum of the uploads of round k, and what all UEs have last reported."""

    if program.at_once is not None:
        arrived, _, reported = _arrived(program, known, script, state, k)
        return jax.tree.map(lambda g: g.sum(axis=0), arrived.uploads), reported
    first_merge = k * script.quorum

    def merged(number: Array, reported: Reported) -> tuple[Params, Reported]:
        params, told = _on_shelf(state, script.read[number])
        ue, version = script.ues[number], script.versions[number]
        upload, _, heard = _job(program, known, params, ue, version, told, (None, None))
        return upload, _with_reports(reported, ue, heard)

    def add(number: Array, so_far: tuple[Params, Reported]) -> tuple[Params, Reported]:
        upload, reported = merged(number, so_far[1])
        return jax.tree.map(jnp.add, so_far[0], upload), reported

    if program.written_out is not None:
        so_far = merged(first_merge, state.reported)
        return reduce(lambda so_far, i: add(first_merge + i, so_far), range(1, program.written_out), so_far)
    nothing = jax.tree.map(jnp.zeros_like, state.params)
    return jax.lax.fori_loop(first_merge, first_merge + script.quorum, add, (nothing, state.reported))


def _with_reports(reported: Reported, ues: Int[Array, "..."], reports: Float[Array, "..."] | None) -> Reported:
    return None if reported is None else reported.at[ues].set(reports, mode=SAFE)


def _arrived(
    program: Program, known: Known, script: Script, state: State, k: Index
) -> tuple[Arrived, PyTree, Reported]:
    """Return the stacked uploads of round k, what their UEs keep, and what all UEs have last reported."""
    count = program.each or program.at_once
    assert count is not None
    columns = (script.ues, script.versions, script.staleness, script.read)
    ues, versions, staleness, places = (
        jax.lax.dynamic_slice_in_dim(each, k * script.quorum, count) for each in columns
    )

    def job(one: tuple[Array, Array, Array, PyTree]) -> tuple[Params, PyTree, Array | None]:
        ue, version, place, kept = one
        params, told = _on_shelf(state, place)
        return _job(program, known, params, ue, version, told, kept)

    # Gather rows before the jobs: a loop that captures the whole memory would copy it.
    kept = jax.tree.map(lambda w: w[ues], (state.memory, state.unsent))
    jobs = (ues, versions, places, kept)
    uploads, kept, reports = jax.lax.map(job, jobs) if program.at_once is None else jax.vmap(job)(jobs)
    models, told = _on_shelf(state, places)
    arrived = Arrived(uploads, models, told, staleness, ues, known.beta, program.local_steps)
    return arrived, kept, _with_reports(state.reported, ues, reports)


def _on_shelf(state: State, place: Int[Array, "..."]) -> tuple[Params, Told]:
    """Return the models in some slots of the shelf, and what was sent with them."""
    return jax.tree.map(lambda w: w.at[place].get(mode=SAFE), state.shelf)
