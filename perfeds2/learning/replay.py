"""Train along a timeline, in one compiled loop over its rounds.

The timeline says which UE is merged when and from which model version, so a gradient is computed when it is merged,
from the version its UE had. Versions that are still needed stay in a buffer, the shelf. The timeline is known
beforehand, so the shelf is as short as possible.
"""

from dataclasses import dataclass, replace
from functools import partial, reduce

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from perfeds2.learning import on_gpu
from perfeds2.learning.cells import Edges, merge_at_cloud, merge_edges
from perfeds2.learning.exploded import sampled_loss, warn_if_exploded
from perfeds2.learning.job import Index, Known, Program, as_int32, as_numbers, reported_update
from perfeds2.learning.learner import Learner
from perfeds2.learning.merges import Arrived, Merge, MergeState, weighted
from perfeds2.learning.models.model import Model, Params
from perfeds2.learning.noise import noise_on
from perfeds2.learning.objectives import Broadcast, ClientState, Objective
from perfeds2.learning.returns import expect_like, expect_pair
from perfeds2.learning.script import Script
from perfeds2.learning.settings import as_tree, traced
from perfeds2.learning.task import Task
from perfeds2.learning.transforms import Chain
from perfeds2.learning.trees import without, zeros
from perfeds2.timeline.record import Timeline

Reported = Float[Array, " n"] | None
SAFE = "promise_in_bounds"  # indices into the shelf are valid; checking them costs a GPU kernel launches


@traced
class State:
    """What the loop carries from round to round."""

    params: Params  # w_k; with many cells, the cloud's model
    shelf: (
        PyTree  # older versions and what was sent with them, stacked; the last slot takes versions that are never read
    )
    merge: MergeState  # state of the merge
    client_state: ClientState = None  # what each UE keeps, one row per UE; None if the objective keeps nothing
    unsent: PyTree = None  # what each UE has not uploaded yet, one row per UE; None if everything is uploaded
    reported: Float[Array, "*lanes n"] | None = None  # what each UE last reported, NaN before; None without feedback
    edges: Edges | None = None  # the models of all edges; None for one cell


@dataclass(frozen=True)
class Prepared:
    """A training without its state."""

    program: Program
    script: Script
    known: Known

    @classmethod
    def of(cls, task: Task, script: Script, learner: Learner, seed: int, block: int = 1) -> "Prepared":
        one_by_one = jax.default_backend() == "cpu"  # a GPU computes a round's participants at once
        program = Program.of(task.model, learner, int(script.quorum), one_by_one=one_by_one, block=block)
        return cls(program, script, Known.of(task, learner, seed))


def start(task: Task, script: Script, learner: Learner, seed: int) -> State:
    """Return the initial state, with w_0 as the current model and on the shelf."""
    known = Known.of(task, learner, seed)
    parts = (known.objective, known.merge, known.chain)
    state = _start(first_weights(task.model, as_int32(seed)), *parts, slots=script.slots, ues=task.ues)
    if script.cloud is not None:
        if why := why_not_at_edges(task.model, learner):
            raise ValueError(f"{why}; merge at the cloud (--merge-at cloud).")
        state = replace(state, edges=Edges.at_start(state.params, script.cloud))
    return state if learner.feedback is None else replace(state, reported=jnp.full(task.ues, jnp.nan, jnp.float32))


def why_not_at_edges(model: Model, learner: Learner) -> str:
    """Return why a learner cannot merge at edges, each of which knows only its own UEs; empty if it can."""
    if learner.merge.drops_model:
        return (
            f"{type(learner.merge).__name__} makes a model of its UEs' last ones, so edges would drop that of the cloud"
        )
    if learner.merge_keeps(model):
        return f"the merge {type(learner.merge).__name__} keeps state at one server"
    return "noise that rounds share is drawn at one server" if learner.bands > 1 else ""


@partial(jax.jit, static_argnums=0)
def first_weights(model: Model, seed: Index) -> Params:
    """Draw w_0. It is compiled once per model, because drawing takes long to compile."""
    return model.init(jax.random.fold_in(jax.random.key(seed), 0))


@partial(jax.jit, static_argnames=("slots", "ues"))
def _start(params: Params, objective: Objective, merge: Merge, chain: Chain, *, slots: int, ues: int) -> State:
    merging, first = merge.init(params, ues), objective.init(params)
    client_state = jax.tree.map(lambda w: jnp.broadcast_to(w, (ues, *jnp.shape(w))), first)
    unsent = chain.init(without(params, objective.withheld(params)))
    unsent = jax.tree.map(lambda w: jnp.zeros((ues, *w.shape), w.dtype), unsent)
    made = (params, merge.broadcast(merging))
    shelf = jax.tree.map(lambda w: jnp.zeros((slots, *w.shape), w.dtype).at[0].set(w), made)
    return State(params, shelf, merging, client_state, unsent)


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
    first_loss = sampled_loss(task.model, state.params, task.data)
    last = advance(prepared, state, 0, timeline.rounds).params
    warn_if_exploded(float(first_loss), float(sampled_loss(task.model, last, task.data)))
    return last


@partial(jax.jit, static_argnames="program", donate_argnames="state")
def _rounds(state: State, script: Script, known: Known, first: Index, stop: Index, *, program: Program) -> State:
    def round_(step: Array, state: State) -> State:
        k = first + step
        return play_round(program, known, script, state, k, None if program.block == 1 else k < stop)

    if program.feedback is not None and script.cloud is not None and state.edges is not None:
        # The cloud's rounds between two chunks of a timeline were not known before.
        params, models, edges = merge_at_cloud(script.cloud, state.params, state.edges, state.shelf[0], first)
        state = replace(state, params=params, shelf=(models, state.shelf[1]), edges=edges)
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
    newest, cloud = state.params, script.cloud
    if cloud is not None and state.edges is not None:
        newest = jax.tree.map(lambda w: w.at[cloud.cell[k]].get(mode=SAFE), state.edges.newest)
    noise = None
    if known.noise is not None:
        key = known.key if known.noise_key is None else known.noise_key
        noise = noise_on(known.objective, key, k, state.params, known.noise, program.bands)
    arrived, rows, kept, reported = (_each if program.looks else _summed)(program, known, script, state, k, noise)
    params, merging = merged(known.merge, newest, arrived, state.merge)
    place = script.write[k]
    if alive is not None:  # shelf and state are too long to copy: unwanted rows go to the spare slot, or are dropped
        now, before = (params, merging, reported), (newest, state.merge, state.reported)
        params, merging, reported = jax.tree.map(lambda new, old: jnp.where(alive, new, old), now, before)
        place = jnp.where(alive, place, script.slots - 1)
        rows = None if rows is None else jnp.where(alive, rows, jnp.iinfo(rows.dtype).max)
    memory = (state.client_state, state.unsent)
    if rows is not None:
        memory = jax.tree.map(lambda old, new: old.at[rows].set(new, mode="drop"), memory, kept)
    made = (params, known.merge.broadcast(merging))
    shelf = jax.tree.map(lambda old, new: old.at[place].set(new, mode=SAFE), state.shelf, made)
    edges = state.edges
    if cloud is not None and edges is not None:
        goes_on = jnp.asarray(True if alive is None else alive)
        params, models, edges = merge_edges(cloud, state.params, edges, params, shelf[0], k, goes_on)
        shelf = (models, shelf[1])
    return State(params, shelf, merging, *memory, reported=reported, edges=edges)


def merged(merge: Merge, params: Params, arrived: Arrived, state: MergeState) -> tuple[Params, MergeState]:
    """Return the next model and the next state of a merge, and check them."""
    who = f"the merge {type(merge).__name__}"
    made, now = expect_pair(who, merge.step(params, arrived, state), "the next model and the next state")
    expect_like(who, "the next model", made, params)
    expect_like(who, "the next state", now, state)
    return made, now


Played = tuple[Arrived, Int[Array, " A"] | None, PyTree, Reported]  # also which UEs keep what, and what all reported


def _summed(program: Program, known: Known, script: Script, state: State, k: Index, noise: Params | None) -> Played:
    """Add up the uploads of round k, or their weighted ones, as they are made. UEs keep nothing."""
    if program.together:
        arrived, _, reported = _uploads(program, known, script, state, k)
        weights, uploads = known.merge.weights(arrived.staleness), arrived.uploads
        total = jax.tree.map(lambda g: g.sum(axis=0), uploads) if weights is None else weighted(weights, uploads)
    else:
        total, reported = _total(program, known, script, state, k)
    total = total if noise is None else jax.tree.map(jnp.add, total, noise)
    mean = jax.tree.map(lambda g: g / script.quorum, total)
    return Arrived(known.beta, mean, steps=program.local_steps), None, None, reported


def _each(program: Program, known: Known, script: Script, state: State, k: Index, noise: Params | None) -> Played:
    """Make the uploads of round k one by one, for a merge that looks at each or for UEs that keep something."""
    arrived, kept, reported = _uploads(program, known, script, state, k)
    rows, merge = arrived.ues, known.merge
    if noise is not None:
        weights = merge.weights(arrived.staleness)
        whole = rows.size if weights is None else weights.sum()
        arrived = replace(arrived, uploads=jax.tree.map(lambda u, z: u + z / whole, arrived.uploads, noise))
    return arrived.needed_by(merge), rows, kept, reported


def merge_now(merge: Merge, params: PyTree, arrived: Arrived, state: MergeState) -> tuple[Params, MergeState]:
    """Merge one round outside a replay, compiled. Federations use this."""
    return _merge_now(as_numbers(as_tree(merge)), params, arrived, state)


@jax.jit
def _merge_now(merge: Merge, params: Params, arrived: Arrived, state: MergeState) -> tuple[Params, MergeState]:
    return merge.step(params, arrived, state)


def _total(program: Program, known: Known, script: Script, state: State, k: Index) -> tuple[Params, Reported]:
    """Return the sum of the uploads of round k, and what all UEs have last reported."""
    first_merge, memory = k * script.quorum, (state.client_state, state.unsent)
    weights = None if program.quorum is None else known.merge.weights(_of_round(program, script, k)[2])

    def made(number: Array, reported: Reported) -> tuple[Params, Reported]:
        params, broadcast = _on_shelf(state, script.read[number])
        ue, version = script.ues[number], script.versions[number]
        upload, _, heard = reported_update(program, known, params, ue, version, broadcast, memory)
        if weights is not None:
            weight = weights[number - first_merge]
            upload = jax.tree.map(lambda g: weight * g, upload)
        return upload, _with_reports(reported, ue, heard)

    def add(number: Array, so_far: tuple[Params, Reported]) -> tuple[Params, Reported]:
        upload, reported = made(number, so_far[1])
        return jax.tree.map(jnp.add, so_far[0], upload), reported

    if program.unrolled and program.quorum is not None:
        so_far = made(first_merge, state.reported)
        return reduce(lambda so_far, i: add(first_merge + i, so_far), range(1, program.quorum), so_far)
    return jax.lax.fori_loop(first_merge, first_merge + script.quorum, add, (zeros(state.params), state.reported))


def _of_round(program: Program, script: Script, k: Index) -> list[Int[Array, " A"]]:
    """Return UE, version, staleness and slot on the shelf of every upload of round k."""
    assert program.quorum is not None
    columns = (script.ues, script.versions, script.staleness, script.read)
    return [jax.lax.dynamic_slice_in_dim(each, k * script.quorum, program.quorum) for each in columns]


def _with_reports(reported: Reported, ues: Int[Array, "..."], reports: Float[Array, "..."] | None) -> Reported:
    return None if reported is None else reported.at[ues].set(reports, mode=SAFE)


def _uploads(
    program: Program, known: Known, script: Script, state: State, k: Index
) -> tuple[Arrived, PyTree, Reported]:
    """Return the stacked uploads of round k, what their UEs keep, and what all UEs have last reported."""
    ues, versions, staleness, places = _of_round(program, script, k)

    def job(one: tuple[Array, Array, Array, PyTree]) -> tuple[Params, PyTree, Array | None]:
        ue, version, place, kept = one
        params, broadcast = _on_shelf(state, place)
        return reported_update(program, known, params, ue, version, broadcast, kept)

    # Gather rows before the jobs: a loop that captures the whole state would copy it.
    kept = jax.tree.map(lambda w: w[ues], (state.client_state, state.unsent))
    jobs = (ues, versions, places, kept)
    uploads, kept, reports = jax.vmap(job)(jobs) if program.together else jax.lax.map(job, jobs)
    models, broadcast = _on_shelf(state, places)
    arrived = Arrived(known.beta, None, uploads, models, broadcast, staleness, ues, program.local_steps)
    return arrived, kept, _with_reports(state.reported, ues, reports)


def _on_shelf(state: State, place: Int[Array, "..."]) -> tuple[Params, Broadcast]:
    """Return the models in some slots of the shelf, and what was sent with them."""
    return jax.tree.map(lambda w: w.at[place].get(mode=SAFE), state.shelf)
