"""Declare the settings of objectives, merges and methods.

Each of them is a frozen dataclass that JAX can flatten, and its fields are its settings. Numbers are traced, so other
values need no new compilation. A ``static`` setting is compiled in.
"""

import dataclasses
import typing
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import jax
from jax.tree_util import GetAttrKey
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

    The class is part of the structure that JAX compares. ``jax.tree_util.register_dataclass`` considers the structures
    of two classes with the same fields equal.

    Example:
        @traced
        class Ditto(Objective):
            pull: StepSize = setting("λ: how strongly a UE's model is held near the global one.", default=1.0)
    """
    made: Any = dataclass(frozen=True)(cls)
    fields = dataclasses.fields(made)
    dynamic = [field.name for field in fields if not field.metadata.get("static")]
    static = [field.name for field in fields if field.metadata.get("static")]

    def flatten(one: Any) -> tuple[list[Any], tuple[Any, ...]]:
        return [getattr(one, name) for name in dynamic], (cls, *(getattr(one, name) for name in static))

    def with_keys(one: Any) -> tuple[list[tuple[Any, Any]], tuple[Any, ...]]:
        numbers, structure = flatten(one)
        return [(GetAttrKey(name), number) for name, number in zip(dynamic, numbers, strict=True)], structure

    def unflatten(structure: tuple[Any, ...], numbers: Any) -> Any:
        one = object.__new__(made)  # JAX also puts other things than numbers there, which ``__init__`` need not accept
        for name, value in (*zip(dynamic, numbers, strict=True), *zip(static, structure[1:], strict=True)):
            object.__setattr__(one, name, value)
        return one

    jax.tree_util.register_pytree_with_keys(made, with_keys, unflatten, flatten)
    return made


def as_tree(part: Any) -> Any:
    """Return an objective or merge as a tree, whose numbers JAX traces.

    A class that was not made by ``traced`` is compiled in as a whole.
    """
    if jax.tree_util.all_leaves([part]):
        jax.tree_util.register_static(type(part))
    return part
