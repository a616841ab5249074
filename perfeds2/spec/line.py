"""Which flags say what a spec says? So that somebody can type it."""

import shlex
from typing import Any

from perfeds2.spec.fields import LearningSpec, Spec, settings
from perfeds2.spec.resolve import EACH, put, put_flags, resolve

# What gives others their defaults, and what one reads first.
FIRST = ("task", "cell", "ues", "radio", "algorithms", "seeds", "horizon_s")


def flags_of(spec: Spec, defaults: dict[str, Any]) -> dict[str, Any]:
    """The flags, by their keywords, that differ from what goes without saying. ``defaults`` are a command's own, of its run."""
    said = spec.values()
    first = [each for name in FIRST for each in settings() if each.keyword == name]
    known: dict[str, Any] = {}
    for each in first:
        known |= {each.keyword: said[each.section][each.key]} if each.key in said.get(each.section, {}) else {}
    usual = _read(known, defaults)
    flags: dict[str, Any] = {}
    for each in [*first, *(each for each in settings() if each not in first)]:
        value = said.get(each.section, {}).get(each.key)
        without = _without(each.keyword, usual, known, defaults).get(each.section, {}).get(each.key)
        own = {
            name: of[each.key]
            for name, of in said.get(EACH, {}).items()
            if each.section == "learning" and each.key in of
        }
        if value is not None and value != without:
            flags[each.keyword] = value
        if own:
            flags[each.keyword] = {"*": flags[each.keyword], **own} if each.keyword in flags else own
    assigned = [
        f"{name}.{key}={_number(value)}"
        for name, own in said.get(EACH, {}).items()
        for key, value in own.items()
        if key not in LearningSpec.model_fields
    ]
    return flags | ({"set": assigned} if assigned else {})


def _without(keyword: str, usual: dict[str, Any], known: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """What goes without saying if one of the first is not said either."""
    if keyword not in known:
        return usual
    return _read({name: value for name, value in known.items() if name != keyword}, defaults)


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
