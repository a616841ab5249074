"""Choose how often a loop checks for its end, which a GPU waits for."""

from collections.abc import Callable, Iterable, Sequence

import jax
import numpy as np
from jaxtyping import Array, Int, PyTree

BLOCK = 16  # rounds between two checks whether to stop


def is_there() -> bool:
    """Return whether JAX computes on something other than a CPU."""
    return jax.default_backend() != "cpu"


def block_of(looks: Iterable[Sequence[int]]) -> int:
    """Return the number of rounds between two checks whether to stop, at each of which a GPU waits.

    ``looks`` has the rounds after which each training is evaluated. Rounds beyond an evaluation are wasted, so blocks
    are used only if evaluations are far apart.
    """
    if not is_there():
        return 1
    gaps = np.concatenate([np.diff(rounds) for rounds in looks])
    return BLOCK if np.median(gaps[gaps > 0] if gaps.any() else 0) >= 8 * BLOCK else 1


def in_blocks(block: int, most: Int[Array, ""], step: Callable[[Array, PyTree], PyTree], state: PyTree) -> PyTree:
    """Run steps 0 to ``most`` − 1, and up to ``block`` − 1 more, which must change nothing."""
    if block == 1:
        return jax.lax.fori_loop(0, most, step, state)

    def several(number: Array, state: PyTree) -> PyTree:
        return jax.lax.fori_loop(0, block, lambda more, state: step(number * block + more, state), state)

    return jax.lax.fori_loop(0, (most + block - 1) // block, several, state)
