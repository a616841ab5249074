"""Write a spec as a command line."""

import shlex
from typing import Any

from perfeds2.spec.fields import LearningSpec, Spec, settings
from perfeds2.spec.resolve import EACH, put, put_flags, resolve

# Settings that others take their defaults from, and that a reader looks for first.
FIRST = ("task", "cell", "ues", "radio", "algorithms", "seeds", "horizon_s")


def flags_of(spec: Spec, defaults: dict[str, Any]) -> dict[str, Any]:
    """Return the flags that are needed, by their keywords. ``defaults`` are a command's own, of its run."""
    said, flags = spec.values(), dict[str, Any]()
    usual = _read(flags, defaults)
    first = [each for name in FIRST for each in settings() if each.keyword == name]
    for each in [*first, *(each for each in settings() if each not in first)]:
        value = said.get(each.section, {}).get(each.key)
        if value is not None and value != usual.get(each.section, {}).get(each.key):
            flags[each.keyword] = value
            usual = _read(flags, defaults) if each in first else usual
    assigned: list[str] = []
    for name, own in said.get(EACH, {}).items():
        for key, value in own.items():
            if key in LearningSpec.model_fields:
                given = flags.get(key, {})
                flags[key] = (given if isinstance(given, dict) else {"*": given}) | {name: value}
            else:
                assigned.append(f"{name}.{key}={_number(value)}")
    return flags | ({"set": assigned} if assigned else {})


def _read(flags: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in defaults.items():
        put(values, "run", key, value)
    put_flags(values, flags)
    return resolve(values).values()


def as_words(flags: dict[str, Any]) -> list[str]:
    """Flags as one would type them."""
    switches = {each.keyword for each in settings() if not each.look}
    words: list[str] = []
    for keyword, value in flags.items():
        flag = f"--{keyword.replace('_', '-')}"
        if keyword == "set":
            words += [word for assignment in value for word in (flag, assignment)]
            continue
        words += [flag] if keyword in switches else [flag, _text(keyword, value)]
    return words


def _text(keyword: str, value: Any) -> str:
    if isinstance(value, dict):
        return ",".join(
            _text(keyword, own) if name == "*" else f"{name}={_text(keyword, own)}" for name, own in value.items()
        )
    if keyword == "seeds":
        return str(len(value)) if value == list(range(len(value))) else ",".join(map(str, value))
    if isinstance(value, list):
        return ",".join(map(_number, value))
    return _number(value)


def _number(value: Any) -> str:
    return repr(value) if isinstance(value, float) else str(value)


def command_line(command: str, spec: Spec, defaults: dict[str, Any]) -> str:
    """What to type: ``perfeds2 run --ues 50 --quorum 7``."""
    return shlex.join(["perfeds2", command, *as_words(flags_of(spec, defaults))])
