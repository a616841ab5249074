"""Time replay, which is one compiled loop, against a bare NumPy loop and a bare JAX loop."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from benchmarks.speed.timing import BATCH, BETA, QUORUM, STALENESS, Announce, Measurement, measured, take_turns
from perfeds2.learning.data import Shards
from perfeds2.learning.learner import Learner
from perfeds2.learning.models.mlp import MLP
from perfeds2.learning.objectives import FedAvg, Objective, PerFed
from perfeds2.learning.partition import Partition
from perfeds2.learning.replay import replay
from perfeds2.learning.task import Task, payload_bits
from perfeds2.network.cell import Cell
from perfeds2.timeline.protocol import Protocol
from perfeds2.timeline.record import Timeline
from perfeds2.timeline.simulate import simulate

NETWORK = MLP((784, 100, 10))
Draw = Callable[..., Int[np.ndarray, " b"] | Int[jax.Array, " b"]]  # (UE, version) -> indices of the samples in its job
Weights = tuple[Any, ...]  # weight, bias, weight, bias of two layers


def replay_group(
    repeats: int,
    seed: int,
    announce: Announce,
    *,
    rounds: int = 200,
    samples: int = 60_000,
    populations: Sequence[int] = (20, 200, 2_000),
    model: MLP = NETWORK,
) -> Iterator[Measurement]:
    """Measure rounds per second at A = 5 and batch 40, without evaluations, on data with MNIST's shape."""
    announce(f"replay: {rounds} rounds for each of {6 + len(populations) - 1} loops, {repeats} turns …")
    tasks = random_tasks(model, samples, populations, seed)
    lines = [bench_timeline(model, ues, rounds, seed) for ues in populations]
    task, line = tasks[0], lines[0]

    def ours(objective: Objective, task: Task = task, line: Timeline = line) -> Callable[[], object]:
        return lambda: jax.block_until_ready(replay(task, line, Learner(objective, BETA, BATCH), seed))

    drawn = jax_draw(task.data, seed)
    seconds = take_turns(
        {
            "plain": ours(FedAvg()),
            "numpy": partial(numpy_replay, *_numpy_task(task, seed), line, _numpy_draw(task.data, seed)),
            "jax": lambda: jax.block_until_ready(jax_replay(task, line, drawn, seed)),
            "exact": ours(PerFed(0.03)),
            "fo": ours(PerFed(0.03, "fo")),
            "hf": ours(PerFed(0.03, "hf")),
        }
        | {f"n={t.ues}": ours(FedAvg(), t, line) for t, line in zip(tasks[1:], lines[1:], strict=True)},
        repeats,
    )
    plain = seconds["plain"]
    size = "-".join(map(str, model.sizes))
    yield measured("replay/plain", f"plain gradients, {size} network, {task.ues} UEs", rounds / plain, "rounds/s")
    yield measured("replay/numpy", "times as fast as a bare NumPy loop", seconds["numpy"] / plain, "×", at_least=1)
    yield measured(
        "replay/jax", "times the seconds of a bare compiled JAX loop", plain / seconds["jax"], "×", at_most=1.15
    )
    for name, words, most in (
        ("exact", "exact Hessian", 4.5),
        ("fo", "first order", None),
        ("hf", "Hessian-free", None),
    ):
        what = f"PerFed, {words}: times the seconds of plain rounds"
        yield measured(f"replay/{name}", what, seconds[name] / plain, "×", at_most=most)
    for task in tasks[1:]:
        what = f"plain rounds among {task.ues:,} UEs: times the seconds among {tasks[0].ues}"
        yield measured(f"replay/n={task.ues}", what, seconds[f"n={task.ues}"] / plain, "×", at_most=1.15)


def random_tasks(model: MLP, samples: int, populations: Sequence[int], seed: int) -> list[Task]:
    """Return a task per population size, with the same random samples split equally over its UEs."""
    random = np.random.default_rng(seed)
    x, y = random.random((samples, model.sizes[0]), np.float32), random.integers(0, model.sizes[-1], samples)
    no_test = np.zeros(1, int)
    data = Shards.of(x, y, Partition(np.arange(samples), no_test, no_test, no_test))
    tasks = []
    for ues in populations:
        each = samples // ues
        start, train, test = np.arange(ues) * each, np.full(ues, each - each // 6), np.full(ues, each // 6)
        parts = [jnp.asarray(column, jnp.int32) for column in (start, train, test)]
        tasks.append(Task("random", model, replace(data, start=parts[0], train_count=parts[1], test_count=parts[2])))
    return tasks


def bench_timeline(model: MLP, ues: int, rounds: int, seed: int) -> Timeline:
    protocol = Protocol(min(QUORUM, ues), STALENESS)
    return simulate(Cell.draw(ues, seed), protocol, payload_bits=payload_bits(model), samples=BATCH, rounds=rounds)


def numpy_replay(weights: Weights, x: np.ndarray, y: np.ndarray, line: Timeline, draw: Draw) -> Weights:
    """Replay as one would write it in NumPy: loops over rounds and UEs, with a ring of the models still needed."""
    depth = _depth(line)
    ring = [weights] * depth
    for k, (ues, versions) in enumerate(zip(line.ues.tolist(), line.versions.tolist(), strict=True)):
        total: list[np.ndarray] = []
        for ue, version in zip(ues, versions, strict=True):
            at = draw(ue, version)
            gradient = _numpy_gradient(ring[version % depth], x[at], y[at])
            if total:
                for so_far, more in zip(total, gradient, strict=True):
                    so_far += more
            else:
                total = gradient
        step = np.float32(BETA / line.quorum)
        ring[(k + 1) % depth] = tuple(w - step * g for w, g in zip(ring[k % depth], total, strict=True))
    return ring[line.rounds % depth]


def _depth(line: Timeline) -> int:
    """Return how many recent models a merged update can refer to."""
    return int(line.staleness.max()) + 1


def _numpy_gradient(weights: Weights, x: np.ndarray, y: np.ndarray) -> list[np.ndarray]:
    weight1, bias1, weight2, bias2 = weights
    before = x @ weight1 + bias1
    hidden = np.maximum(before, 0)
    logits = hidden @ weight2 + bias2
    logits -= logits.max(axis=1, keepdims=True)
    error = np.exp(logits)
    error /= error.sum(axis=1, keepdims=True)
    error[np.arange(y.size), y] -= 1
    error /= y.size
    behind = (error @ weight2.T) * (before > 0)
    return [x.T @ behind, behind.sum(axis=0), hidden.T @ error, error.sum(axis=0)]


def _numpy_task(task: Task, seed: int) -> tuple[Weights, np.ndarray, np.ndarray]:
    assert isinstance(task.data, Shards)
    weights = tuple(np.asarray(w) for w in initial_weights(task, seed))
    return weights, np.asarray(task.data.x), np.asarray(task.data.y)


def _numpy_draw(data: object, seed: int) -> Draw:
    assert isinstance(data, Shards)
    start, train, random = np.asarray(data.start), np.asarray(data.train_count), np.random.default_rng(seed)
    return lambda ue, _: start[ue] + random.integers(0, train[ue], BATCH)


def jax_replay(task: Task, line: Timeline, draw: Draw, seed: int) -> Weights:
    """Replay as one would write it in JAX: a scan over rounds, in it a scan over UEs, with the same ring."""
    assert isinstance(task.data, Shards)
    jobs = jnp.arange(line.rounds), jnp.asarray(line.ues, jnp.int32), jnp.asarray(line.versions, jnp.int32)
    return _jax_rounds(initial_weights(task, seed), *jobs, task.data.x, task.data.y, draw=draw, depth=_depth(line))


@partial(jax.jit, static_argnames=("draw", "depth"))
def _jax_rounds(
    weights: Weights,
    rounds: Int[jax.Array, " K"],
    ues: Int[jax.Array, "K A"],
    versions: Int[jax.Array, "K A"],
    x: jax.Array,
    y: jax.Array,
    *,
    draw: Draw,
    depth: int,
) -> Weights:
    def one_round(carry: tuple[Weights, Weights], job: tuple) -> tuple[tuple[Weights, Weights], None]:
        weights, ring = carry
        k, ues, versions = job

        def one_ue(total: Weights, job: tuple) -> tuple[Weights, None]:
            ue, version = job
            at = draw(ue, version)
            gradient = _jax_gradient(tuple(w[version % depth] for w in ring), x[at], y[at])
            return tuple(t + g for t, g in zip(total, gradient, strict=True)), None

        total, _ = jax.lax.scan(one_ue, tuple(jnp.zeros_like(w) for w in weights), (ues, versions))
        weights = tuple(w - BETA / ues.size * g for w, g in zip(weights, total, strict=True))
        ring = tuple(r.at[(k + 1) % depth].set(w) for r, w in zip(ring, weights, strict=True))
        return (weights, ring), None

    ring = tuple(jnp.zeros((depth, *w.shape), w.dtype).at[0].set(w) for w in weights)
    return jax.lax.scan(one_round, (weights, ring), (rounds, ues, versions))[0][0]


def _jax_gradient(weights: Weights, x: jax.Array, y: jax.Array) -> Weights:
    weight1, bias1, weight2, bias2 = weights
    before = x @ weight1 + bias1
    hidden = jnp.maximum(before, 0)
    error = (jax.nn.softmax(hidden @ weight2 + bias2) - jax.nn.one_hot(y, bias2.size)) / y.size
    behind = (error @ weight2.T) * (before > 0)
    return x.T @ behind, behind.sum(axis=0), hidden.T @ error, error.sum(axis=0)


def jax_draw(data: object, seed: int) -> Draw:
    """Return a sampler for use inside the loop, with a key of (UE, version), as in replay."""
    assert isinstance(data, Shards)
    start, train = data.start, data.train_count

    def draw(ue: jax.Array, version: jax.Array) -> Int[jax.Array, " b"]:
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), ue), version)
        return start[ue] + jax.random.randint(key, (BATCH,), 0, train[ue])

    return draw


def initial_weights(task: Task, seed: int) -> Weights:
    """Return replay's w_0, layer by layer."""
    params = task.model.init(jax.random.fold_in(jax.random.key(seed), 0))
    return tuple(params[name] for name in ("dense1.weight", "dense1.bias", "dense2.weight", "dense2.bias"))
