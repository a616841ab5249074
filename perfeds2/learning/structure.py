"""What of an objective or a merge is numbers, and what is the program that is compiled?"""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def split(part: Any) -> tuple[list[Any], Any]:
    """The numbers of an objective or a merge, and how to put them back: then the same program serves every number."""
    numbers, structure = jax.tree.flatten(part)
    if all(isinstance(number, int | float | np.ndarray | jax.Array) for number in numbers):
        return [jnp.asarray(number, jnp.float32) for number in numbers], Transparent(type(part), structure)
    return [], Opaque(part)


@dataclass(frozen=True)
class Opaque:
    """An objective or a merge JAX cannot look into: part of the compiled program."""

    itself: Hashable

    def unflatten(self, _: list[Any]) -> Any:
        return self.itself


@dataclass(frozen=True)
class Transparent:
    """One whose numbers have been taken out."""

    kind: type  # for JAX, the structures of two classes with fields alike are equal
    structure: Any

    def unflatten(self, numbers: list[Any]) -> Any:
        return self.structure.unflatten(numbers)
