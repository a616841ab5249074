"""What do the weights become along a timeline?

The timeline says who is merged when and from which model version, so training is one compiled loop over it: a gradient
is computed when it is merged, from the version its UE had. Versions that will still be asked for stand on a shelf; the
timeline tells beforehand which, so the shelf is as short as it can be.
"""

import heapq
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Float, Int, Key

from perfeds2.learning.models.model import Model, Params, cross_entropy
from perfeds2.learning.objectives import Adapting, Annealed, Objective, clip, passes
from perfeds2.learning.task import Task
from perfeds2.timeline.timeline import Timeline

ALPHA = 0.03  # Table I


@dataclass(frozen=True)
class Learner:
    """How a job is computed and a round merged."""

    objective: Objective
    beta: float = 0.07  # β, the server's step size, and the UE's where it takes several local steps
    batch: int = 40
    local_steps: int = 1
    optimiser: optax.GradientTransformation | None = None  # stands in for w −= β·mean where given
    alpha: float | None = None  # α of the personal step at an evaluation; None: the objective's own, or the paper's
    clip: float | None = None  # the largest norm of an upload

    @property
    def personal_step(self) -> float:
        """The α that evaluations use."""
        if self.alpha is not None:
            return self.alpha
        return float(self.objective.alpha) if isinstance(self.objective, Adapting) else ALPHA

    @property
    def samples(self) -> int:
        """How many samples one job looks at (d_i in the paper): what its computing time is made of."""
        return self.local_steps * passes(self.objective) * self.batch


@partial(jax.tree_util.register_dataclass, data_fields=["params", "shelf", "optimiser"], meta_fields=[])
@dataclass(frozen=True)
class State:
    """What is carried from round to round."""

    params: Params  # w_k
    shelf: Params  # older versions, stacked; the last place is for what nobody will ask for
    optimiser: Any


@partial(
    jax.tree_util.register_dataclass, data_fields=["quorum", "ues", "versions", "read", "write"], meta_fields=["slots"]
)
@dataclass(frozen=True)
class Script:
    """A timeline as the compiled loop reads it: one merge after the other, ``quorum`` of them a round.

    Lengths are rounded up and the quorum is a number like any other, so that one compiled loop serves the synchronous,
    the semi-synchronous and the asynchronous timelines of a comparison.
    """

    quorum: Int[Array, "*trials"]  # several trainings' scripts can be stacked
    ues: Int[Array, "*trials m"]
    versions: Int[Array, "*trials m"]
    read: Int[Array, "*trials m"]  # where on the shelf the version stands
    write: Int[Array, "*trials k"]  # where a round's new model goes
    slots: int

    @classmethod
    def of(cls, timeline: Timeline) -> "Script":
        slots, read, write = shelve(timeline)
        length = max(16384, _power_of_two(timeline.ues.size))
        merges = [
            np.pad(column.ravel(), (0, length - column.size)) for column in (timeline.ues, timeline.versions, read)
        ]
        ues, versions, places = (jnp.asarray(column, jnp.int32) for column in merges)
        writes = jnp.asarray(np.pad(write, (0, length - write.size)), jnp.int32)
        return cls(jnp.asarray(timeline.quorum, jnp.int32), ues, versions, places, writes, slots)


@dataclass(frozen=True)
class Program:
    """What a loop is compiled for: all of a training that is no number."""

    model: Model
    structure: Any  # of the objective
    batch: int
    local_steps: int
    optimiser: optax.GradientTransformation | None
    side_by_side: int | None = None  # so many participants of a round at once; None: one after the other
    mesh: Mesh | None = None  # the devices that share the participants of a round

    @classmethod
    def of(cls, model: Model, learner: Learner, side_by_side: int | None = None, mesh: Mesh | None = None) -> "Program":
        _, structure = split(learner.objective)
        return cls(model, structure, learner.batch, learner.local_steps, learner.optimiser, side_by_side, mesh)


@partial(
    jax.tree_util.register_dataclass, data_fields=["data", "numbers", "beta", "alpha", "key", "clip"], meta_fields=[]
)
@dataclass(frozen=True)
class Known:
    """What a training knows from beginning to end, beside its script. Several trainings' can be stacked."""

    data: Any  # the task's ``Data``; of stacked trainings, what each has of its own
    numbers: list[Any]  # the objective's
    beta: Float[Array, "*trials"]
    alpha: Float[Array, "*trials"]
    key: Key[Array, "*trials"]  # where the data noise of all its jobs comes from
    clip: Float[Array, "*trials"] | None = None  # None: nothing of it is compiled

    @classmethod
    def of(cls, task: Task, learner: Learner, seed: int) -> "Known":
        numbers, _ = split(learner.objective)
        beta, alpha = (jnp.asarray(number, jnp.float32) for number in (learner.beta, learner.personal_step))
        most = None if learner.clip is None else jnp.asarray(learner.clip, jnp.float32)
        return cls(task.data, numbers, beta, alpha, jax.random.fold_in(jax.random.key(as_int32(seed)), 1), most)


@dataclass(frozen=True)
class Prepared:
    """A training that can be played: all of it but its state, on the devices that share its participants."""

    program: Program
    script: Script
    known: Known

    @classmethod
    def of(cls, task: Task, script: Script, learner: Learner, seed: int) -> "Prepared":
        quorum = int(script.quorum)
        mesh = shared_by(quorum)
        one_by_one = jax.default_backend() == "cpu" and mesh is None  # a GPU wants all participants of a round at once
        program = Program.of(task.model, learner, None if one_by_one else quorum, mesh)
        return cls(program, *everywhere((script, Known.of(task, learner, seed)), mesh))


def shelve(timeline: Timeline) -> tuple[int, Int[np.ndarray, "K A"], Int[np.ndarray, " K"]]:
    """Give every version that will be asked for a place until its last reader has come.

    Returns the length of the shelf (its last place takes the versions nobody asks for), where each merge reads, and
    where each round writes. w_0 stands at place 0.
    """
    rounds, versions = timeline.rounds, timeline.versions
    last_read = np.full(rounds + 1, -1)
    np.maximum.at(last_read, versions, np.arange(rounds)[:, None])
    place = np.full(rounds + 1, -1)
    taken: list[tuple[int, int]] = []  # (last round that reads it, place)
    length = 1
    place[0] = 0
    heapq.heappush(taken, (int(last_read[0]), 0))
    for version in range(1, rounds + 1):
        if last_read[version] < 0:
            continue
        if taken[0][0] < version:  # round version − 1 has read, and now writes
            _, free = heapq.heappop(taken)
        else:
            free, length = length, length + 1
        place[version] = free
        heapq.heappush(taken, (int(last_read[version]), free))
    slots = max(32, _power_of_two(length + 1))
    place[place < 0] = slots - 1
    return slots, place[versions], place[1:]


def start(task: Task, script: Script, learner: Learner, seed: int) -> State:
    """w_0, on the shelf and in hand."""
    return _start(as_int32(seed), model=task.model, slots=script.slots, optimiser=learner.optimiser)


@partial(jax.jit, static_argnames=("model", "slots", "optimiser"))
def _start(seed: Int[Array, ""], *, model: Model, slots: int, optimiser: optax.GradientTransformation | None) -> State:
    params = model.init(jax.random.fold_in(jax.random.key(seed), 0))
    shelf = jax.tree.map(lambda w: jnp.zeros((slots, *w.shape), w.dtype).at[0].set(w), params)
    return State(params, shelf, None if optimiser is None else optimiser.init(params))


def advance(prepared: Prepared, state: State, first: int, stop: int) -> State:
    """Play rounds ``first`` to ``stop`` − 1. The state given is used up."""
    state = everywhere(state, prepared.program.mesh)
    return _rounds(state, prepared.script, prepared.known, first, stop, program=prepared.program)


def replay(task: Task, timeline: Timeline, learner: Learner, seed: int = 0) -> Params:
    """Train along a timeline from beginning to end. Returns the weights.

    Where JAX sees several devices, each computes its share of a round's participants. That pays where a participant's
    gradient takes longer than the devices need to add up the weights, some 0.1 ms a round: a large model, many
    participants. For small models, train several seeds together instead (``train_together``).
    """
    script = Script.of(timeline)
    prepared, state = Prepared.of(task, script, learner, seed), start(task, script, learner, seed)
    return on_one(advance(prepared, state, 0, timeline.rounds).params)


def shared_by(quorum: int) -> Mesh | None:
    """The devices that share a round's participants; None where there is one, or one participant."""
    devices = jax.local_devices()[:quorum]
    return Mesh(np.array(devices), ("participants",)) if len(devices) > 1 else None


def everywhere(tree: Any, mesh: Mesh | None) -> Any:
    """The same arrays on every device; nothing is copied that is there already."""
    return tree if mesh is None else jax.device_put(tree, NamedSharding(mesh, PartitionSpec()))


def on_one(params: Params) -> Params:
    """The first device's copy."""
    return {name: w if len(w.devices()) == 1 else w.addressable_data(0) for name, w in params.items()}


def as_int32(seed: int) -> np.int32:
    """The same 32 bits, also of a seed from 2³¹ on, which is no int32."""
    return np.int64(seed).astype(np.int32)


def local_update(program: Program, known: Known, params: Params, ue: Int[Array, ""], version: Int[Array, ""]) -> Params:
    """One job: what UE ``ue`` uploads when handed model ``version``. The sum of its local steps' gradients, clipped if so told.

    Its data noise belongs to (UE, model version), so it is the same in whichever round the job is merged.
    """
    total = _summed_gradients(program, known, params, ue, version)
    return total if known.clip is None else clip(total, known.clip)


def _summed_gradients(
    program: Program, known: Known, params: Params, ue: Int[Array, ""], version: Int[Array, ""]
) -> Params:
    objective: Objective = program.structure.unflatten(known.numbers)
    objective = objective.at(version) if isinstance(objective, Annealed) else objective
    key = jax.random.fold_in(jax.random.fold_in(known.key, ue), version)
    batches = known.data.batches(key, ue, (program.local_steps, objective.batches, program.batch))

    def loss(w: Params, xy: Any) -> Float[Array, ""]:
        return cross_entropy(program.model, w, *xy)

    if program.local_steps == 1:
        return objective(loss, params, params, jax.tree.map(lambda b: b[0], batches))

    def step(carry: tuple[Params, Params], step_batches: Any) -> tuple[tuple[Params, Params], None]:
        w, total = carry
        gradient = objective(loss, w, params, step_batches)
        return (_step(w, gradient, known.beta), jax.tree.map(jnp.add, total, gradient)), None

    (_, total), _ = jax.lax.scan(step, (params, jax.tree.map(jnp.zeros_like, params)), batches)
    return total


@partial(jax.jit, static_argnames="program", donate_argnames="state")
def _rounds(
    state: State, script: Script, known: Known, first: Int[Array, ""], stop: Int[Array, ""], *, program: Program
) -> State:
    def round_(k: Array, state: State) -> State:
        return play_round(program, known, script, state, k)

    return jax.lax.fori_loop(first, stop, round_, state)


def play_round(
    program: Program,
    known: Known,
    script: Script,
    state: State,
    k: Int[Array, ""],
    alive: Bool[Array, ""] | None = None,
) -> State:
    """Round k: the new model from its participants' uploads, and onto the shelf. Where not ``alive``, nothing happens."""
    total = _total_upload(program, known, script, state, k)
    mean = jax.tree.map(lambda g: g / script.quorum, total)
    if program.optimiser is None:
        params, optimiser = _step(state.params, mean, known.beta), None
    else:
        updates, optimiser = program.optimiser.update(mean, state.optimiser, state.params)
        params = jax.tree.map(jnp.add, state.params, updates)
    place = script.write[k]
    if alive is not None:  # the shelf is long, so it is not copied: what is not to be kept goes to its last place
        params, optimiser = jax.tree.map(
            lambda new, old: jnp.where(alive, new, old), (params, optimiser), (state.params, state.optimiser)
        )
        place = jnp.where(alive, place, script.slots - 1)
    shelf = jax.tree.map(lambda old, new: old.at[place].set(new), state.shelf, params)
    return State(params, shelf, optimiser)


def _total_upload(program: Program, known: Known, script: Script, state: State, k: Int[Array, ""]) -> Params:
    """The sum of what the participants of round k upload."""

    def upload(given: tuple[Known, Params], ue: Array, version: Array, place: Array) -> Params:
        known, shelf = given
        return local_update(program, known, jax.tree.map(lambda w: w[place], shelf), ue, version)

    given, first_merge = (known, state.shelf), k * script.quorum
    columns = (script.ues, script.versions, script.read)
    if program.side_by_side is not None:
        jobs = [jax.lax.dynamic_slice_in_dim(column, first_merge, program.side_by_side) for column in columns]
        if program.mesh is not None:
            return _over_devices(program.mesh, upload, given, jobs)
        return jax.tree.map(lambda g: g.sum(axis=0), jax.vmap(partial(upload, given))(*jobs))

    def add(merge: Array, total: Params) -> Params:
        return jax.tree.map(jnp.add, total, upload(given, *(column[merge] for column in columns)))

    nothing = jax.tree.map(jnp.zeros_like, state.params)
    return jax.lax.fori_loop(first_merge, first_merge + script.quorum, add, nothing)


def _over_devices(mesh: Mesh, upload: Callable[..., Params], given: Any, jobs: list[Array]) -> Params:
    """The sum of all jobs' uploads, each device computing its share. Jobs that only fill up the shares count nothing."""
    filling = -jobs[0].size % mesh.size
    counts = jnp.arange(jobs[0].size + filling) < jobs[0].size

    def share(given: Any, counts: Array, *jobs: Array) -> Params:
        def sum_up(g: Array) -> Array:
            return jnp.where(counts.reshape(-1, *(1,) * (g.ndim - 1)), g, 0.0).sum(axis=0)

        own = jax.tree.map(sum_up, jax.vmap(partial(upload, given))(*jobs))
        return jax.lax.psum(own, mesh.axis_names)

    each, all_ = PartitionSpec(*mesh.axis_names), PartitionSpec()
    shared = jax.shard_map(
        share, mesh=mesh, in_specs=(all_, each, each, each, each), out_specs=all_, check_vma=False
    )  # unchecked: a model may start a scan from zeros, which are the same on all devices
    return shared(given, counts, *(jnp.pad(column, (0, filling)) for column in jobs))


def _step(params: Params, gradient: Params, size: Float[Array, ""]) -> Params:
    return jax.tree.map(lambda w, g: w - size * g, params, gradient)


@dataclass(frozen=True)
class OpaqueObjective:
    """An objective JAX cannot look into: part of the compiled program."""

    objective: Hashable

    def unflatten(self, _: list[Any]) -> Any:
        return self.objective


def split(objective: Objective) -> tuple[list[Any], Any]:
    """An objective's numbers, and how to put them back: then the same program serves every number."""
    numbers, structure = jax.tree.flatten(objective)
    if all(isinstance(number, int | float | np.ndarray | jax.Array) for number in numbers):
        return [jnp.asarray(number, jnp.float32) for number in numbers], structure
    return [], OpaqueObjective(objective)


def _power_of_two(size: int) -> int:
    return 1 << max(size - 1, 1).bit_length()
