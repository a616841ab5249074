"""Measure what the noise of differential privacy adds to a round of the compiled loop, on a CPU or a GPU.

``python -m benchmarks.privacy_cost [ROUNDS] [REPEATS]`` plays the same rounds with clipping alone and with noise, in turns,
and prints the median seconds of a round and their ratio, for FedAvg and PerFed on digits with 20 UEs and A = 5. On a CPU
these are processor seconds of one core.
"""

import statistics
import sys
import time

import jax

from perfeds2 import Cell, FedAvg, Learner, PerFed, Protocol, simulate
from perfeds2.learning import on_gpu
from perfeds2.learning.compiled import one_core_each
from perfeds2.learning.datasets import digits
from perfeds2.learning.replay import Prepared, advance, start
from perfeds2.learning.script import Script

UES, QUORUM = 20, 5


def main(rounds: int = 500, repeats: int = 9) -> None:
    one_core_each()
    clock = time.perf_counter if on_gpu.is_there() else time.process_time
    task = digits(UES, labels_per_ue=4, seed=0)
    for objective in (FedAvg(), PerFed(0.03)):
        plain, noisy = (Learner(objective, clip=1.0, noise=noise) for noise in (None, 4.0))
        load = {"payload_bits": task.payload_bits, "samples": plain.samples}
        timeline = simulate(Cell.draw(UES, seed=0), Protocol(QUORUM, 5), **load, rounds=rounds)
        script = Script.of(timeline, plain.merge)
        prepared = [Prepared.of(task, script, learner, 0) for learner in (plain, noisy)]
        taken_s: list[list[float]] = [[], []]
        for repeat in range(repeats + 1):
            for one, times in zip(prepared, taken_s, strict=True):
                state = jax.block_until_ready(start(task, script, plain, 0))
                since = clock()
                jax.block_until_ready(advance(one, state, 0, rounds))
                if repeat:  # the first compiles
                    times.append((clock() - since) / rounds)
        without, with_noise = map(statistics.median, taken_s)
        added = statistics.median(b / a for a, b in zip(*taken_s, strict=True)) - 1
        name = type(objective).__name__
        print(
            f"{jax.default_backend()} {name}: {without * 1e6:.0f} µs a round, {with_noise * 1e6:.0f} µs with noise: {added:+.1%}"
        )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
