"""What may stand where Tab was pressed? Answered from the source as text: nobody waits for JAX between two keys.

Flags and commands the parser completes by itself. Names of things stand in tables beside the things, and importing those
brings JAX; so a table's keys are read out of its file. What is the user's own (``FILE.py:NAME``) the shell completes as a file.
"""

import ast
import importlib.util
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from perfeds2.spec.fields import Setting, settings
from perfeds2.spec.names import MODES, Kind, algorithm_name
from perfeds2.spec.values import ALGORITHM, METHOD, OBJECTIVE

Completer = Callable[[str], list[str]]


def names(kind: Kind) -> list[str]:
    """Every name of a kind, as its table has it. Nobody's Tab ends in a traceback: a table that cannot be read has none."""
    if kind is ALGORITHM:
        return [algorithm_name(each, mode) for mode in MODES for each in names(OBJECTIVE)] + names(METHOD)
    module, _, table = kind.place.partition(":")
    found = importlib.util.find_spec(module)
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
    """One name, or the last of several that commas part. Of a family (``between:THETA``) what stands before its number."""

    def complete(incomplete: str) -> list[str]:
        return _behind_commas(incomplete, (_typed(name) for name in names(kind)))

    return complete


def among(*words: str) -> Completer:
    """One of these words."""
    return lambda incomplete: [word for word in words if word.startswith(incomplete)]


def of_setting(each: Setting) -> Completer | None:
    """What a setting's flag may be given: names, or the words there are. Nothing, where it is a number or a file."""
    if each.kind is not None:
        return of_kind(each.kind)
    return among(*each.words) if each.words else None


def setting_keys(incomplete: str) -> list[str]:
    """Of ``--set``: section.key= of every setting."""
    return [key for each in settings() if (key := f"{each.section}.{each.key}=").startswith(incomplete)]


def _typed(name: str) -> str:
    head, colon, tail = name.partition(":")
    return f"{head}{colon}" if tail.isupper() else name


def _behind_commas(incomplete: str, every: Iterable[str]) -> list[str]:
    before, comma, last = incomplete.rpartition(",")
    taken = before.split(",") if comma else []
    return [f"{before}{comma}{name}" for name in every if name.startswith(last) and name not in taken]
