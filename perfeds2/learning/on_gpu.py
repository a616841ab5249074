"""What does a GPU want that a processor does not?"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Int

from perfeds2.learning.models.mlp import MLP
from perfeds2.learning.models.model import Model, bare

Options = tuple[tuple[str, Any], ...]  # of the compiler
BLOCK = 16  # rounds without a look at whether to go on
MANY = 64  # gradients of a round, from which on the compiler is told so


def is_there() -> bool:
    """Whether JAX computes on something else than a processor."""
    return jax.default_backend() != "cpu"


def block_of(looks: Iterable[Sequence[int]]) -> int:
    """How many rounds are played between two looks at whether to go on: a GPU waits at each of them.

    ``looks`` says after which rounds each training is evaluated. Rounds beyond an evaluation are played in vain, so
    there are many between two evaluations, or it is one.
    """
    if not is_there():
        return 1
    gaps = np.concatenate([np.diff(rounds) for rounds in looks])
    return BLOCK if np.median(gaps[gaps > 0] if gaps.any() else 0) >= 8 * BLOCK else 1


def in_blocks(block: int, most: Int[Array, ""], step: Callable[[Array, Any], Any], state: Any) -> Any:
    """Steps 0 to ``most`` − 1, and up to ``block`` − 1 after them, in which nothing may change."""
    if block == 1:
        return jax.lax.fori_loop(0, most, step, state)

    def several(number: Array, state: Any) -> Any:
        return jax.lax.fori_loop(0, block, lambda more, state: step(number * block + more, state), state)

    return jax.lax.fori_loop(0, (most + block - 1) // block, several, state)


def compiler_options(model: Model, gradients: int) -> Options:
    """What its compiler is told about rounds of so many gradients: whose matrix products it takes.

    cuBLAS' instead of Triton's give an MLP more with 320 gradients at once, and two thirds with five (docs/reports/performance.md).
    """
    many = is_there() and isinstance(bare(model), MLP) and gradients >= MANY
    return (("xla_gpu_enable_triton_gemm", False),) if many else ()
