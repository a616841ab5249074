"""Declare the settings of objectives, merges and methods.

Each of them is a frozen dataclass that JAX can flatten, and its fields are its settings. Numbers are traced, so other
values need no new compilation. A ``static`` setting is compiled in.
"""

import dataclasses
import typing
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from pydantic import Field

# Settings are given as numbers and traced as arrays.
StepSize = Annotated[float, Field(ge=0, le=1e38, allow_inf_nan=False)] | jax.Array  # finite in single precision
Length = Annotated[float, Field(ge=1e-30, le=1e30)] | jax.Array
Share = Annotated[float, Field(ge=0, le=1)] | jax.Array
Decay = Annotated[float, Field(ge=0, lt=1)] | jax.Array
Steps = Annotated[int, Field(ge=1, le=100_000)]
Versions = Annotated[int, Field(ge=0, lt=2**24)] | jax.Array  # exact in single precision


Kind = TypeVar("Kind")


def setting(help_: str = "", *, default: Any, static: bool = False) -> Any:
    """Return a field with its help text for ``perfeds2 methods``."""
    return dataclasses.field(default=default, metadata={"help": help_, "static": static})


@typing.dataclass_transform(frozen_default=True, field_specifiers=(setting,))
def traced(cls: type[Kind]) -> type[Kind]:
    """Make a class a frozen dataclass whose fields JAX traces, except static ones.

    Example:
        @traced
        class Ditto:
            pull: StepSize = setting("λ: how strongly a UE's model is held near the global one.", default=1.0)
    """
    return jax.tree_util.register_dataclass(dataclass(frozen=True)(cls))


@dataclass(frozen=True)
class Structure:
    """What is left of an objective or merge when its numbers are taken out."""

    kind: type  # JAX considers the structures of two classes with the same fields equal
    fields: Any  # a PyTreeDef. None: JAX cannot flatten it, so all of it is part of the compiled program
    itself: Hashable = None

    def unflatten(self, numbers: list[jax.Array]) -> Any:
        return self.itself if self.fields is None else self.fields.unflatten(numbers)


def split(part: Any) -> tuple[list[jax.Array], Structure]:
    """Return the numbers of an objective or merge and its structure, so that one program serves all numbers."""
    numbers, fields = jax.tree.flatten(part)
    if all(isinstance(number, int | float | np.ndarray | jax.Array) for number in numbers):
        return [jnp.asarray(number, jnp.float32) for number in numbers], Structure(type(part), fields)
    return [], Structure(type(part), None, part)
