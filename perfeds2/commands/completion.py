"""Complete names in the shell without importing JAX.

Names are keys of tables whose modules import JAX, so they are read from the source of those modules. The parser completes
flags and commands, and the shell completes files.
"""

import ast
import importlib.util
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from perfeds2.spec.fields import settings
from perfeds2.spec.names import MODES, Kind, algorithm_name
from perfeds2.spec.settings import Setting
from perfeds2.spec.values import ALGORITHM, METHOD, OBJECTIVE

Completer = Callable[[str], list[str]]


def names(kind: Kind) -> list[str]:
    """Return the names of a kind, or none if its table cannot be read: completion never raises."""
    if kind is ALGORITHM:
        return [algorithm_name(each, mode) for mode in MODES for each in names(OBJECTIVE)] + names(METHOD)
    module, _, table = kind.place.partition(":")
    found = importlib.util.find_spec(module) if module else None
    try:
        return list(_keys(ast.parse(Path(str(found and found.origin)).read_bytes()), table))
    except (OSError, SyntaxError):
        return []


def _keys(module: ast.Module, table: str) -> Iterator[str]:
    for node in module.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(each, ast.Name) and each.id == table for each in targets):
            written = getattr(node, "value", None)
            for key, value in zip(getattr(written, "keys", ()), getattr(written, "values", ()), strict=True):
                if isinstance(key, ast.Constant):
                    yield str(key.value)
                elif isinstance(value, ast.Name):  # **OTHER
                    yield from _keys(module, value.id)


def of_kind(kind: Kind) -> Completer:
    """Complete a name, or the last of a comma-separated list; ``between:THETA`` up to its number."""

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        every = [re.sub("(?<=:)[A-Z]+$", "", name) for name in names(kind)]
        return [f"{before}{comma}{each}" for each in every if each.startswith(last) and each not in before.split(",")]

    return complete


def among(*words: str) -> Completer:
    """Complete one of these words."""
    return lambda incomplete: [word for word in words if word.startswith(incomplete)]


def of_setting(each: Setting) -> Completer | None:
    """Complete the value of a setting: a name or one of its words; None if it is a number or a file."""
    if each.kind is not None:
        return of_kind(each.kind)
    return among(*each.words) if each.words else None


def setting_keys(incomplete: str) -> list[str]:
    """Complete ``section.key=`` after ``--set``."""
    return [key for each in settings() if (key := f"{each.section}.{each.key}=").startswith(incomplete)]
