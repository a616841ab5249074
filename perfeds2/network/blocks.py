"""Evaluate a formula for a million UEs in blocks, on all cores.

NumPy releases the GIL while it computes, so threads run in parallel. A block's result does not depend on which thread
computes it or when, so the whole result is the same bit for bit.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

BLOCK = 65_536  # UEs: milliseconds of work, and a multiple of 4, because Philox draws four numbers at once


def each_block(ues: int, work: Callable[[slice], None]) -> None:
    """Call ``work`` for every block of UEs. Blocks must not depend on each other."""
    if ues <= BLOCK:
        work(slice(0, ues))
        return
    blocks = [slice(start, min(start + BLOCK, ues)) for start in range(0, ues, BLOCK)]
    with ThreadPoolExecutor(min(os.cpu_count() or 1, len(blocks))) as pool:
        for _ in pool.map(work, blocks):
            pass  # re-raises an error from a block
