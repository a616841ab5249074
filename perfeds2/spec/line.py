"""Write a spec as a command line."""

import shlex
from collections.abc import Mapping

from perfeds2.spec.fields import Spec, settings
from perfeds2.spec.names import Value, Values
from perfeds2.spec.resolve import EACH, flattened, put_flags, resolve

# Settings that determine the defaults of others, and that a reader looks for first.
FIRST = ("task", "cell", "ues", "cells", "merge_at", "radio", "algorithms", "seeds", "horizon_s")


def command_line(command: str, spec: Spec, defaults: Mapping[str, Value]) -> str:
    """Return the command line of a spec, such as ``perfeds2 run --ues 50 --quorum 7``.

    Args:
        command: The name of the command.
        spec: The settings.
        defaults: The command's own defaults of the section ``run``, which are left out.
    """
    said, flags = spec.values(), Values()
    usual = _read(flags, defaults)
    first = [each for name in FIRST for each in settings() if each.keyword == name]
    for each in [*first, *(each for each in settings() if each not in first)]:
        value = said.get(each.section, {}).get(each.key)
        if value is not None and value != usual.get(each.section, {}).get(each.key):
            flags[each.keyword] = value
            usual = _read(flags, defaults) if each in first or each.section in ("energy", "protocol") else usual
    if (seeds := flags.get("seeds")) is not None:
        counted = list(seeds) == list(range(len(seeds)))
        flags["seeds"] = len(seeds) if counted else [f"{seed}..{seed}" for seed in seeds]
    words = ["perfeds2", command, *flag_words(flags)]
    for name, value in flattened(said.get(EACH, {})).items():
        words += ["--set", f"{name}={_text(value)}"]
    return shlex.join(words)


def flag_words(keywords: Mapping[str, Value]) -> list[str]:
    """Return settings as words of a command line."""
    words: list[str] = []
    for keyword, value in keywords.items():
        flag = f"--{keyword.replace('_', '-')}"
        words += [flag] if value is True else [flag, _text(value)]  # a switch has no value
    return words


def _read(flags: Mapping[str, Value], defaults: Mapping[str, Value]) -> Values:
    values: Values = {"run": dict(defaults)}
    put_flags(values, flags)
    return resolve(values).values()


def _text(value: Value) -> str:
    if isinstance(value, list | tuple):
        return ",".join(map(_text, value))
    return repr(value) if isinstance(value, float) else str(value)
