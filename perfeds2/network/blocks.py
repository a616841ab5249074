"""Evaluate a formula for a million UEs in blocks, on all cores.

NumPy releases the GIL while it computes, so threads run in parallel. A block's result does not depend on which thread
computes it or when, so the whole result is the same bit for bit.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Lock

import numpy as np
from jaxtyping import Float

BLOCK = 65_536  # UEs: milliseconds of work, and a multiple of 4, because Philox draws four numbers at once
LOCKS = [Lock() for _ in range(64)]  # one for each block, shared by all cells: a lock could not be copied or pickled


def steps_by(time_s: float, step_s: float) -> int:
    """Return how many steps are over at or before a time, despite rounding."""
    number = int(time_s / step_s)
    while (number + 1) * step_s <= time_s:
        number += 1
    while number * step_s > time_s:
        number -= 1
    return number


def each_block(ues: int, work: Callable[[slice], None]) -> None:
    """Call ``work`` for every block of UEs. Blocks must not depend on each other."""
    if ues <= BLOCK:
        work(slice(0, ues))
        return
    blocks = [slice(start, min(start + BLOCK, ues)) for start in range(0, ues, BLOCK)]
    with ThreadPoolExecutor(min(os.cpu_count() or 1, len(blocks))) as pool:
        for _ in pool.map(work, blocks):
            pass  # re-raises an error from a block


class Draws:
    """Random numbers by (seed, round, UE). They depend neither on the other UEs nor on the number of threads.

    There is a generator for each block of UEs, because setting a new key is ten times cheaper than creating a generator.
    """

    def __init__(self, seed: int, ues: int) -> None:
        self.ues = ues
        self._blocks: list[tuple[np.random.Generator, dict]] = []
        for start in range(0, ues, BLOCK):
            counter = np.array([start // 4, 0, 0, 0], np.uint64)  # Philox draws four numbers per count
            philox = np.random.Philox(key=np.array([seed, 0], np.uint64), counter=counter)
            self._blocks.append((np.random.Generator(philox), dict(philox.state)))

    def uniform(self, round_: int, stream: int = 0) -> Float[np.ndarray, " n"]:
        """Return U in [0, 1): UE i gets the i-th number of a stream with key (seed, round)."""
        uniform = np.empty(self.ues)

        def draw(at: slice) -> None:
            block = at.start // BLOCK
            generator, start = self._blocks[block]
            with LOCKS[block % len(LOCKS)]:  # not the generator's own lock, which deadlocks before NumPy 2.4
                start["state"]["key"][1] = round_
                start["state"]["counter"][1] = stream
                generator.bit_generator.state = start
                generator.random(out=uniform[at])

        each_block(self.ues, draw)
        return uniform
