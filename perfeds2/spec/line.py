"""Write a spec as a command line."""

import shlex
from collections.abc import Mapping
from typing import Any

from perfeds2.spec.fields import Spec, settings
from perfeds2.spec.resolve import EACH, put_flags, resolve

# Settings that others take their defaults from, and that a reader looks for first.
FIRST = ("task", "cell", "ues", "radio", "algorithms", "seeds", "horizon_s")


def command_line(command: str, spec: Spec, defaults: Mapping[str, Any]) -> str:
    """Return what to type: ``perfeds2 run --ues 50 --quorum 7``. ``defaults`` are the command's own, of its run."""
    said, words, flags = spec.values(), ["perfeds2", command], dict[str, Any]()
    usual = _read(flags, defaults)
    first = [each for name in FIRST for each in settings() if each.keyword == name]
    for each in [*first, *(each for each in settings() if each not in first)]:
        value = said.get(each.section, {}).get(each.key)
        if value is None or value == usual.get(each.section, {}).get(each.key):
            continue
        flags[each.keyword] = value
        if each in first:
            usual = _read(flags, defaults)
        if each.keyword == "seeds":
            value = len(value) if value == list(range(len(value))) else [f"{seed}..{seed}" for seed in value]
        words += [each.flag, _text(value)] if each.look else [each.flag]
    for name, own in said.get(EACH, {}).items():
        for key, value in own.items():
            words += ["--set", f"{name}.{key}={_text(value)}"]
    return shlex.join(words)


def _read(flags: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {"run": dict(defaults)}
    put_flags(values, flags)
    return resolve(values).values()


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(_text, value))
    return repr(value) if isinstance(value, float) else str(value)
