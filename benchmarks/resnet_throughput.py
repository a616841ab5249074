"""Compare the gradients per second of ResNet-18 in a replay and in a bare JAX loop over the same gradients.

    python benchmarks/resnet_throughput.py --out resnet.json

Both compute the gradients of A = 5 UEs in every round, on batches drawn from the UE's own images, and step along their
mean; for eight seeds, both have an axis more. The loop has neither a clock, old models, nor staleness. The two take turns
in one run, and the ratio is the median of the ratios per turn.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from perfeds2.files import write_text
from perfeds2.learning import train
from perfeds2.learning.data import Shards
from perfeds2.learning.gradients import MeanLoss
from perfeds2.learning.lanes import Lane
from perfeds2.learning.learner import Learner
from perfeds2.learning.models.model import Params
from perfeds2.learning.models.resnet import ResNet, resnet18_gn
from perfeds2.learning.objectives import FedAvg
from perfeds2.learning.points import EvaluationPoint
from perfeds2.learning.task import Task
from perfeds2.learning.train import train_together
from perfeds2.network.cell import Cell
from perfeds2.timeline.protocol import Protocol
from perfeds2.timeline.simulate import simulate

UES, QUORUM, IMAGES, STEP = 20, 5, 100, 0.01
PIXELS, CLASSES = 3072, 10


def made_up(seed: int) -> Shards:
    """Return random images of all UEs."""
    draw = np.random.default_rng(seed)
    count = jnp.full(UES, IMAGES, jnp.int32)
    x = jnp.asarray(draw.integers(0, 255, (UES * IMAGES, PIXELS)), jnp.uint8)
    y = jnp.asarray(draw.integers(0, CLASSES, UES * IMAGES), jnp.int32)
    return Shards(x, y, IMAGES * jnp.arange(UES), count, count)


def of_replay(model: ResNet, seeds: int, rounds: int, turns: int, batch: int) -> Iterator[float]:
    """Yield when each turn of rounds ends, after one turn that compiles."""
    timeline = simulate(
        Cell.draw(UES, 0), Protocol(QUORUM), payload_bits=1e5, samples=batch, rounds=rounds * (turns + 1)
    )
    points = [EvaluationPoint(rounds * turn, turn) for turn in range(turns + 2)]
    learner = Learner(FedAvg(), STEP, batch=batch)
    tasks = [Task("images", model, made_up(seed)) for seed in range(seeds)]
    lanes = [Lane(task, timeline, learner, points, seed) for seed, task in enumerate(tasks)]
    for stand in train_together(lanes):
        jax.block_until_ready(stand.state.params)
        yield time.perf_counter()


def of_bare_loop(model: ResNet, seeds: int, rounds: int, batch: int) -> Callable[[], None]:
    """Return a function that plays some rounds of every seed."""
    data = [made_up(seed) for seed in range(seeds)]
    x, y = jnp.stack([each.x for each in data]), jnp.stack([each.y for each in data])
    loss = MeanLoss(model)

    def job(params: Params, x: jax.Array, y: jax.Array, key: jax.Array, ue: jax.Array) -> Params:
        at = ue * IMAGES + jax.random.randint(key, (batch,), 0, IMAGES)
        return jax.grad(loss)(params, (x[at], y[at]))

    def play(params: Params, key: jax.Array, x: jax.Array, y: jax.Array) -> Params:
        def round_(k: jax.Array, params: Params) -> Params:
            chosen, noise = jax.random.split(jax.random.fold_in(key, k))
            ues = jax.random.choice(chosen, UES, (QUORUM,), replace=False)
            jobs = jax.vmap(partial(job, params, x, y))(jax.random.split(noise, QUORUM), ues)
            return jax.tree.map(lambda w, g: w - STEP * g.mean(axis=0), params, jobs)

        return jax.lax.fori_loop(0, rounds, round_, params)

    keys = jax.random.split(jax.random.key(0), seeds)
    play_all = jax.jit(jax.vmap(play), donate_argnums=0)
    params = jax.vmap(model.init)(keys)

    def turn() -> None:
        nonlocal params
        params = jax.block_until_ready(play_all(params, keys, x, y))

    return turn


def measure(model: ResNet, seeds: int, rounds: int, turns: int, batch: int) -> dict[str, Any]:
    """Return the gradients per second of both, and the median of their ratios."""
    replay, loop = of_replay(model, seeds, rounds, turns, batch), of_bare_loop(model, seeds, rounds, batch)
    next(replay)  # the evaluation at the start
    next(replay)
    loop()
    seconds: dict[str, list[float]] = {"replay": [], "loop": []}
    for _ in range(turns):
        began_s = time.perf_counter()
        seconds["replay"].append(next(replay) - began_s)
        began_s = time.perf_counter()
        loop()
        seconds["loop"].append(time.perf_counter() - began_s)
    gradients = rounds * QUORUM * seeds
    ratios = np.asarray(seconds["loop"]) / np.asarray(seconds["replay"])
    found: dict[str, Any] = {"seeds": seeds, "A": QUORUM, "batch": batch, "device": jax.devices()[0].device_kind}
    found |= {f"{name}_gradients_per_s": gradients / float(np.median(each)) for name, each in seconds.items()}
    return found | {"ratio": float(np.median(ratios)), "ratios": ratios.tolist()}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="1,8", help="numbers of seeds trained together")
    parser.add_argument("--gradients", type=int, default=400, help="of a turn")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--batch", type=int, default=40)
    parser.add_argument("--width", type=int, default=64, help="of the network; smaller to try it")
    parser.add_argument("--out", type=Path, default=Path("resnet.json"))
    given = parser.parse_args(arguments)
    model = resnet18_gn(PIXELS, CLASSES, np.dtype(np.uint8), width=given.width)
    # Both only train. An evaluation would be timed as part of a turn.
    train._evaluate_together = lambda params, *_, **__: jnp.zeros((jax.tree.leaves(params)[0].shape[0], 1, 4))
    rows = []
    for seeds in map(int, given.seeds.split(",")):
        rounds = max(1, given.gradients // (QUORUM * seeds))
        rows.append(measure(model, seeds, rounds, given.turns, given.batch))
        write_text(given.out, json.dumps(rows, indent=1))
        replay, loop = (rows[-1][f"{name}_gradients_per_s"] for name in ("replay", "loop"))
        ratio = rows[-1]["ratio"]
        print(f"{seeds} seeds: replay {replay:,.1f}, loop {loop:,.1f} gradients/s, ratio {ratio:.3f}", flush=True)


if __name__ == "__main__":
    main()
