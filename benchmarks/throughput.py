"""Count client gradients per second with the exact Hessian, and show what bounds them.

    python benchmarks/throughput.py                # on whatever device JAX finds
    python benchmarks/throughput.py --most-seeds 1 # one training at a time
    python benchmarks/throughput.py --without-evaluations

Uses the paper's three models on random data of the right shape, with A participants per round, alone and with many
seeds trained together. For comparison it prints two upper bounds: the rates that the arithmetic and the memory traffic
of one gradient, as counted by the compiler, would allow on the given device. The compiler counts a loop's body once,
so the LSTM's bounds are too high by up to its 80 steps.
"""

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np

from perfeds2.learning import train
from perfeds2.learning.data import Shards
from perfeds2.learning.datasets import TASKS
from perfeds2.learning.datasets.shakespeare import Windows
from perfeds2.learning.job import Known, Program, local_update
from perfeds2.learning.lanes import Lane
from perfeds2.learning.learner import Learner
from perfeds2.learning.objectives import PerFed
from perfeds2.learning.points import EvaluationPoint
from perfeds2.learning.task import Task, parameters
from perfeds2.learning.train import train_together
from perfeds2.network.cell import Cell
from perfeds2.timeline.protocol import Protocol
from perfeds2.timeline.simulate import simulate

IMAGES = {"mnist": (784, 10), "cifar100": (3072, 100)}  # pixels, classes
# model, A, seeds, gradients to time on a GPU; a CPU runs only single seeds and a fiftieth of the gradients
CASES = (
    ("mnist", 5, 1, 20_000),
    ("mnist", 5, 64, 320_000),
    ("mnist", 100, 1, 60_000),
    ("cifar100", 5, 1, 8_000),
    ("cifar100", 5, 16, 16_000),
    ("cifar100", 20, 1, 8_000),
    ("shakespeare", 5, 1, 800),
    ("shakespeare", 50, 1, 3_000),
    ("shakespeare", 50, 5, 5_000),
)
TARGETS = {
    ("mnist", 5, 1): 60_000,
    ("mnist", 5, 64): 400_000,
    ("cifar100", 5, 16): 20_000,
    ("shakespeare", 50, 5): 4_000,
}  # gradients/s on an H200
TURNS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--teraflops", type=float, default=67.0, help="peak float32 of the device (default: an H200)")
    parser.add_argument("--gigabytes-per-s", type=float, default=4800.0, help="its memory's bandwidth")
    parser.add_argument("--most-seeds", type=int, default=64)
    parser.add_argument("--without-evaluations", action="store_true", help="rounds alone; compiles sooner, too")
    given = parser.parse_args()
    if given.without_evaluations:
        train._evaluate_together = lambda params, *_, **__: jnp.zeros((jax.tree.leaves(params)[0].shape[0], 1, 4))
    print(f"{jax.devices()[0].device_kind}, JAX {jax.__version__}")
    for name in (*IMAGES, "shakespeare"):
        flops, traffic = cost_of(name)
        print(
            f"{name}: {parameters(TASKS[name].model):,} parameters, {flops / 1e6:.1f} Mflop and {traffic / 1e6:.1f} MB a "
            f"gradient: at most {given.teraflops * 1e12 / flops:,.0f}/s by arithmetic, "
            f"{given.gigabytes_per_s * 1e9 / traffic:,.0f}/s by memory"
        )
    scale = 50 if jax.default_backend() == "cpu" else 1
    print("model         A  seeds  gradients/s (lowest to highest of five)  compile s  target on an H200")
    for name, quorum, seeds, gradients in CASES:
        if seeds <= given.most_seeds and (scale == 1 or seeds == 1):
            rates, compile_s = measure(name, quorum, seeds, gradients // scale)
            target = TARGETS.get((name, quorum, seeds))
            print(
                f"{name:<12}{quorum:>3}{seeds:>7}{np.median(rates):>13,.0f} ({min(rates):,.0f} to {max(rates):,.0f})"
                f"{compile_s:>11.1f}  {'' if target is None else f'{target:,}'}",
                flush=True,
            )


def cost_of(name: str) -> tuple[float, float]:
    """Return the floating-point operations and the bytes of memory traffic of one gradient."""
    task = made_up(name, 20, 0)

    def gradient(params, ue):
        learner = Learner(PerFed(0.01), 0.01)
        return local_update(Program.of(task.model, learner), Known.of(task, learner, 0), params, ue, ue)[0]

    compiled = jax.jit(gradient).lower(task.model.init(jax.random.key(0)), jnp.int32(3)).compile()
    cost = compiled.cost_analysis()
    assert cost is not None
    return cost["flops"], cost["bytes accessed"]


def measure(name: str, quorum: int, seeds: int, gradients: int) -> tuple[list[float], float]:
    """Return gradients per second in five turns, each with an evaluation, and the seconds before the first round."""
    began = time.perf_counter()
    ues = max(20, quorum)
    rounds = max(4, gradients // (quorum * seeds))
    points = [EvaluationPoint(0, 0.0), *(EvaluationPoint(rounds * turn, turn) for turn in range(1, TURNS + 2))]
    cell = Cell.draw(ues, 0, layout="equal")
    timeline = simulate(cell, Protocol(quorum), payload_bits=1e5, samples=120, rounds=rounds * (TURNS + 1))
    learner = Learner(PerFed(0.001), 1e-4, alpha=0.01)
    trials = [Lane(made_up(name, ues, seed), timeline, learner, points, seed) for seed in range(seeds)]
    marks = []
    for stand in train_together(trials):
        jax.block_until_ready(stand.state.params)
        marks.append(time.perf_counter())
    return (rounds * quorum * seeds / np.diff(marks[1:])).tolist(), marks[0] - began


def made_up(name: str, ues: int, seed: int) -> Task:
    """Return a task with random data of the right shape."""
    draw = np.random.default_rng(seed)

    def whole(values) -> jax.Array:
        return jnp.asarray(values, jnp.int32)

    if name == "shakespeare":
        length, windows = 400, np.full(ues, 300)
        text = jnp.asarray(draw.integers(0, 80, 2 * ues * length), jnp.uint8)
        begin = 2 * length * np.arange(ues)
        return Task(
            name, TASKS[name].model, Windows(text, whole(begin), whole(windows), whole(begin + length), whole(windows))
        )
    pixels, classes = IMAGES[name]
    x = jnp.asarray(draw.integers(0, 255, (120 * ues, pixels)), jnp.uint8)
    y = whole(draw.integers(0, classes, 120 * ues))
    shards = Shards(x, y, whole(120 * np.arange(ues)), whole(np.full(ues, 100)), whole(np.full(ues, 20)))
    return Task(name, TASKS[name].model, shards)


if __name__ == "__main__":
    main()
