"""How is one formula worked out for a million UEs as fast as the machine can?

In blocks, on all its cores: NumPy lets other threads run while it calculates. What a block's numbers are does not
depend on which thread works them out or when, so the result is the same to the last bit.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

BLOCK = (
    65_536  # UEs: milliseconds of work, and a multiple of the four numbers that the fading's generator makes at once
)


def each_block(ues: int, work: Callable[[slice], None]) -> None:
    """Do the work for every block of UEs. Blocks must not depend on each other."""
    if ues <= BLOCK:
        work(slice(0, ues))
        return
    blocks = [slice(start, min(start + BLOCK, ues)) for start in range(0, ues, BLOCK)]
    with ThreadPoolExecutor(min(os.cpu_count() or 1, len(blocks))) as pool:
        for _ in pool.map(work, blocks):
            pass  # an error in a block is raised here
