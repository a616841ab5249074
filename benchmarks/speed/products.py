"""Compare rounds with the matrix products that they cannot avoid.

A round of a two-layer network is little more than a few matrix products. Here NumPy computes only these, on arrays
that are already in memory: no batch sampling, no nonlinearity, no merge. Our rounds, which include all of that, are
compared with them on the same number of threads. The products are those of the objective as written; our exact Hessian
needs a sixth fewer multiplications (``learning/factored.py``).
"""

import json
import os
import subprocess  # only runs this Python
import sys
import time
from collections.abc import Callable, Iterator

import numpy as np

from benchmarks.speed.timing import BATCH, BETA, QUORUM, Announce, Measurement, measured

REST_S = 0.2  # between rivals: NumPy's threads wait busily for a while, on cores that the next one needs
THREADS = {1: "of one core", 2: "on two threads"}
VARIABLES = ("NPROC", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
WORDS = {"plain": "plain gradients", "exact": "the exact Hessian's"}
Work = Callable[[], object]


def products_group(
    repeats: int, seed: int, announce: Announce, *, rounds: int = 100, sizes: str = "784-100-10"
) -> Iterator[Measurement]:
    """Measure the speed of rounds over that of their matrix products, in a fresh process per number of threads."""
    for threads, words in THREADS.items():
        if threads > (os.cpu_count() or 1):
            continue
        announce(f"products: {rounds} rounds and their matrix products, {words}, {repeats} turns …")
        code = f"from benchmarks.speed.products import main; main({rounds}, {repeats}, {seed}, {sizes!r})"
        environment = os.environ | dict.fromkeys(VARIABLES, str(threads))
        done = subprocess.run(  # noqa: S603
            [sys.executable, "-c", code], check=True, capture_output=True, text=True, env=environment
        )
        spent = {name: np.array(turns) for name, turns in json.loads(done.stdout.splitlines()[-1]).items()}
        clock = "cpu" if threads == 1 else "wall"  # CPU seconds would not count threads that wait
        for name, what in WORDS.items():
            ours, theirs = spent[f"{name}/{clock}"], spent[f"{name} products/{clock}"]
            yield measured(
                f"products/{name}-{threads}",
                f"their matrix products alone in NumPy, {words}",
                rounds / theirs,
                "rounds/s",
            )
            yield measured(
                f"products/share-{name}-{threads}",
                f"speed of rounds with {what}, over that of their matrix products alone",
                theirs / ours,
                "",
                at_least=0.75,
            )


def main(rounds: int, turns: int, seed: int, sizes: str) -> None:
    """Print each rival's wall and CPU seconds per turn as JSON; runs in the fresh process."""
    import jax

    from benchmarks.speed.replay import bench_timeline, random_tasks
    from perfeds2.learning.learner import Learner
    from perfeds2.learning.models.mlp import MLP
    from perfeds2.learning.objectives import FedAvg, PerFed
    from perfeds2.learning.replay import replay

    if os.environ["NPROC"] == "1":
        jax.config.update("jax_cpu_enable_async_dispatch", False)  # as in commands with several trainings
    model = MLP(tuple(map(int, sizes.split("-"))))
    (task,), line = random_tasks(model, 12_000, [20], seed), bench_timeline(model, 20, rounds, seed)

    def ours(objective: FedAvg | PerFed) -> Work:
        return lambda: jax.block_until_ready(replay(task, line, Learner(objective, BETA, BATCH), seed))

    rivals = {"plain": ours(FedAvg()), "exact": ours(PerFed(0.03))}
    rivals |= {f"{name} products": alone(name == "exact", model.sizes, rounds, seed) for name in WORDS}
    spent: dict[str, list[float]] = {f"{name}/{clock}": [] for name in rivals for clock in ("wall", "cpu")}
    for turn in range(-1, turns):
        for name, work in rivals.items():
            time.sleep(REST_S)
            began = time.perf_counter(), time.process_time()
            work()
            if turn >= 0:
                spent[f"{name}/wall"].append(time.perf_counter() - began[0])
                spent[f"{name}/cpu"].append(time.process_time() - began[1])
    print(json.dumps(spent))


def alone(exact: bool, sizes: tuple[int, ...], rounds: int, seed: int) -> Work:
    """Return the matrix products of ``rounds`` rounds in NumPy. Every upload has its own arrays."""
    inputs, hidden, outputs = sizes
    random = np.random.default_rng(seed)
    shapes = [(BATCH, inputs), (inputs, hidden), (BATCH, hidden), (hidden, outputs), (BATCH, outputs)]
    uploads = [[random.random(shape, np.float32) for shape in shapes] for _ in range(QUORUM)]

    def gradient(x: np.ndarray, w: np.ndarray, h: np.ndarray, v: np.ndarray, e: np.ndarray) -> None:
        _ = x @ w, h @ v  # forward
        _ = e @ v.T, h.T @ e, x.T @ h  # backward: to the hidden layer, and one for each weight

    def curvature(x: np.ndarray, w: np.ndarray, h: np.ndarray, v: np.ndarray, e: np.ndarray) -> None:
        _ = (
            x @ w,
            x @ w,
            h @ v,
            h @ v,
            h @ v,
        )  # forward and its derivative: the product rule applies twice in the second layer
        _ = e @ v.T, e @ v.T, h.T @ e, h.T @ e, x.T @ h  # backward: only the derivative

    steps = (gradient, gradient, curvature) if exact else (gradient,)

    def play() -> None:
        for _ in range(rounds):
            for arrays in uploads:
                for step in steps:
                    step(*arrays)

    return play
