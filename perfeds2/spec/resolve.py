"""Turn flags, texts, keywords and nested values into a spec, and report invalid ones in one sentence."""

import inspect
import tomllib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import fields
from functools import cache, partial
from pathlib import Path
from typing import TypeVar, get_type_hints

import pydantic

from perfeds2.errors import InputError, did_you_mean, input_errors
from perfeds2.spec.complaints import complaint, sentence
from perfeds2.spec.fields import (
    SECTIONS,
    LearningSpec,
    Section,
    Spec,
    own_settings,
    sections_of,
    settings,
)
from perfeds2.spec.hashes import as_written
from perfeds2.spec.names import Named, Value, Values
from perfeds2.spec.rules import refuse_unless_possible, usual_algorithms, with_usual
from perfeds2.spec.values import CELL, MERGE, RADIO, TASK, read_list

SEEDS = ("run", "seeds")
ALWAYS = {  # what the spec of a run has, whatever was given
    section: [key for key, info in model.model_fields.items() if info.default is not None]
    for section, model in SECTIONS.items()
}
SPLITTING = ("labels_per_ue", "split")  # alternatives; only one may be given
EACH = "methods"  # section with the settings of single methods or algorithms: [methods.PerFed-ASY]
LEARNING = {key: get_type_hints(LearningSpec, include_extras=True)[key] for key in LearningSpec.model_fields}
# What validates a type; making it takes as long as the rest of a spec.
_reader = cache(partial(pydantic.TypeAdapter, config={"arbitrary_types_allowed": True}))


def place_of(name: str, what: str = "a setting") -> tuple[str, str]:
    """Return section and key of a setting, given as a flag, a keyword or section.key.

    Raises:
        InputError: If there is no such setting.
    """
    plain, places = name.replace("-", "_"), {each.keyword: (each.section, each.key) for each in settings()}
    if plain == "seed":
        return SEEDS
    if plain in places:
        return places[plain]
    section, _, key = name.partition(".")
    if section in SECTIONS and key in SECTIONS[section].model_fields:
        return section, key
    method, _, key = name.removeprefix(f"{EACH}.").rpartition(".")
    if method and method not in SECTIONS and key.isprintable():
        return EACH, f"{method}.{key.replace('-', '_')}"
    known = ["seed", *(each.name for each in settings()), *(f"{each.section}.{each.key}" for each in settings())]
    hint = did_you_mean(name, known)
    raise InputError(
        f"{name} is not {what}; {hint if hint.endswith('?') else 'expected the name of a flag, such as quorum, or section.key.'}"
    )


def name_of(place: tuple[str, str]) -> str:
    """Return a setting's name in tables and as a keyword; one method's own is named like Ditto.pull."""
    if place[0] == EACH:
        return place[1]
    return next(each.keyword for each in settings() if (each.section, each.key) == place)


def put(values: Values, section: str, key: str, value: Value) -> None:
    """Set one value in nested values."""
    inner = values.setdefault(section, {})
    if not isinstance(inner, dict):
        raise InputError(f"{section} must be a section, [{section}], got {inner!r}.")
    algorithm, dot, own = key.rpartition(".")
    if section == EACH and dot:
        put(inner, algorithm, own, value)
        return
    inner[key] = value
    if section == "task" and key in SPLITTING:
        inner.pop(SPLITTING[1 - SPLITTING.index(key)], None)  # the later one replaces the other


def take(values: Mapping[str, Value], section: str, key: str) -> Value:
    """Return one value of nested values."""
    algorithm, dot, own = key.rpartition(".")
    return values[section][algorithm][own] if section == EACH and dot else values[section][key]


def flattened(values: Mapping[str, Value], above: str = "") -> Values:
    """Return nested values by dotted name, such as methods.PerFed-ASY.beta."""
    flat: Values = {}
    for name, value in values.items():
        flat |= flattened(value, f"{above}{name}.") if isinstance(value, Mapping) else {f"{above}{name}": value}
    return flat


def put_flags(values: Values, flags: Mapping[str, Value]) -> None:
    """Set the values of flags or keywords. ``seed`` is a single seed and excludes ``seeds``."""
    if flags.get("seed") is not None and flags.get("seeds") is not None:
        raise InputError(f"--seed {flags['seed']} and --seeds {flags['seeds']} were both given; give one of them.")
    _refuse_both(flags)
    for name, value in flags.items():
        put(values, *place_of(name), [value] if name == "seed" else value)


def _refuse_both(task: Value) -> None:
    given = [task.get(name) for name in SPLITTING] if isinstance(task, Mapping) else []
    if given and None not in given:
        raise InputError(f"--labels-per-ue {given[0]} and --split {given[1]} were both given; give one of them.")


def put_text(values: Values, assignment: str) -> None:
    """Set one value from ``section.key=value`` or ``Method.key=value``; the value may be TOML or plain text."""
    path, equals, text = assignment.partition("=")
    section, dot, key = path.strip().partition(".")
    if not (equals and dot and section and key):
        raise InputError(f"--set takes section.key=value or Method.key=value, got {assignment!r}.")
    if section not in Spec.model_fields:
        section, key = EACH, path.strip()
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (ValueError, KeyError, RecursionError):
        value = text.strip()
    put(values, section, key, value)


def nested(settings: Mapping[str, Value]) -> Values:
    """Return Python keywords as nested values: settings by flag or section.key, whole sections as dictionaries."""
    sections = {name for name, value in settings.items() if isinstance(value, Mapping) and name in Spec.model_fields}
    values: Values = {name: deepcopy(dict(settings[name])) for name in sections}
    put_flags(values, {name: as_list(value) for name, value in settings.items() if name not in sections})
    _name_methods(values)
    return values


def _name_methods(values: Values) -> None:
    """Replace built-in methods such as ``Ditto(pull=0.1)`` or ``Ditto`` by name and settings, which can be saved."""
    run = values.get("run", {})
    algorithms = run.get("algorithms")
    if not isinstance(algorithms, list | tuple) or all(isinstance(each, str) for each in algorithms):
        return
    from perfeds2.learning.methods import METHODS  # imports JAX

    run["algorithms"] = named = list(algorithms)
    for place, given in enumerate(named):
        name = next((name for name, make in METHODS.items() if make in (given, type(given))), None)
        if name is None:
            continue
        named[place] = name
        own = {} if isinstance(given, type) else vars(given)
        for field in fields(given):
            if own.get(field.name, field.default) != field.default:
                put(values, EACH, f"{name}.{field.name}", own[field.name])


def as_list(value: Value) -> Value:
    """Convert ranges, arrays and generators to lists, and NumPy numbers to Python's."""
    if hasattr(value, "tolist"):
        return value.tolist()
    many = isinstance(value, Iterable) and not isinstance(value, str | Mapping) and not callable(value)
    return [as_list(each) for each in value] if many else value


def spec_from(**settings: Value) -> Spec:
    """Return the spec of a run: all settings, checked, with defaults filled in.

    Args:
        **settings: Settings as ``compare`` takes them: flags as keywords, or whole sections as dictionaries.

    Returns:
        The spec. ``to_toml()`` gives the text of a spec file.

    Raises:
        InputError: If a setting is invalid.

    Example:
        >>> from perfeds2 import spec_from
        >>> spec = spec_from(ues=20, cell={"layout": "equal"})
        >>> spec.protocol.quorum
        5
    """
    return resolve(nested(settings))


def read_toml(path: Path) -> Values:
    """Read the nested values of a spec file.

    Raises:
        InputError: If it does not exist or is not TOML.
    """
    try:
        return as_written(tomllib.loads(path.read_text(encoding="utf-8")), ALWAYS)
    except FileNotFoundError:
        raise InputError(f"--spec {path} does not exist.") from None
    except IsADirectoryError:
        raise InputError(f"--spec {path} is a folder; expected a TOML file such as {path / 'spec.toml'}.") from None
    except (ValueError, OSError, RecursionError) as error:  # TOML and Unicode errors are ValueErrors
        raise InputError(f"--spec {path} is not readable TOML: {' '.join(str(error).split())[:200]}.") from None


# ---- from values to a spec

Sections = TypeVar("Sections", bound=Section)


def validated(model: type[Sections], values: Mapping[str, Value]) -> Sections:
    """Validate nested values as a model made of sections; errors are one sentence that names the flag."""
    try:
        return model.model_validate(values)
    except pydantic.ValidationError as error:
        raise InputError(sentence(error.errors(), sections_of(model))) from None


def resolve(values: Mapping[str, Value]) -> Spec:
    """Validate nested values and fill in defaults that depend on others.

    Raises:
        InputError: If a value is invalid; the message is one sentence that names the flag.
    """
    _refuse_both(values.get("task"))
    spec = with_usual(validated(Spec, _with_defaults(values)))
    refuse_unless_possible(spec)
    spec = spec.with_(methods=_method_settings(spec))
    algorithms = spec.run.algorithms or usual_algorithms(spec)
    return spec.with_(run=spec.run.with_(algorithms=algorithms), own=_own_files(spec))


def _method_settings(spec: Spec) -> dict[str, Values]:
    """Return the validated settings of every method: shared ones and its own."""
    if not spec.methods:
        return {}
    from perfeds2.spec.methods import makers  # imports JAX

    merges = [spec.learning.merge] if spec.learning.merge is not None else []
    for own in spec.methods.values():
        with suppress(ValueError):  # reported by the validation
            merges += [MERGE.find(own["merge"])] if own.get("merge") is not None else []
    known = makers(spec.run.algorithms or (), merges)
    checked: dict[str, Values] = {}
    for name, given in spec.methods.items():
        if name not in known:
            hint = did_you_mean(name, [*known, *SECTIONS])
            raise InputError(f"settings for {name} were given, but it is not a method; {hint}")
        types = {key: _type_of(each) for key, each in own_settings(known[name]).items()} | LEARNING
        if given:
            checked[name] = {key: _read_setting(types, name, key, value) for key, value in given.items()}
    return checked


def _type_of(parameter: inspect.Parameter) -> Value:
    if parameter.annotation is not parameter.empty:
        return parameter.annotation
    return Value if parameter.default is parameter.empty or parameter.default is None else type(parameter.default)


def _read_setting(types: Mapping[str, Value], name: str, key: str, value: Value) -> Value:
    """Validate the value of a method's setting by its type."""
    if key not in types:
        raise InputError(f"{name} has no setting {key}; {did_you_mean(key, types)}")
    if value is None:  # cannot be written to a file
        raise InputError(f"{name}.{key} is None; give a value, or leave it out.")
    try:
        return _reader(types[key]).validate_python(value)
    except pydantic.ValidationError as error:
        raise InputError(complaint(error.errors(), f"{name}.{key}")) from None


def _own_files(spec: Spec) -> dict[str, str]:
    """Return the sha256 of every file that defines one of the user's objects; refuse files that have changed."""
    files = {one.source: one.digest for one in spec.given}
    for source, digest in files.items():
        if spec.own.get(source, digest) != digest:
            raise InputError(
                f"{source} has changed since this spec was written (its sha256 differs); restore it, or start a new run."
            )
    return files


def _with_defaults(values: Mapping[str, Value]) -> Values:
    """Fill in the defaults and the number of UEs of the named task, cell and radio."""
    filled = dict(values)
    for section, key, kind in (("task", "name", TASK), ("cell", "kind", CELL), ("radio", "name", RADIO)):
        said = values.get(section)
        said = said if isinstance(said, Mapping) else {}
        name = said.get(key) or SECTIONS[section].model_fields[key].default
        if name is None:
            continue
        try:
            value = kind.find(name).value
        except ValueError:  # reported by the validation, with its flag
            continue
        if not callable(value) and hasattr(value, "ues"):  # a Task or a Cell has a fixed number of UEs
            _fill(filled, {"cell": {"ues": value.ues}})
        _fill(filled, _defaults_of(value, name, said))
    return filled


def _defaults_of(value: Value, name: Value, said: Mapping[str, Value]) -> Mapping[str, Mapping[str, Value]]:
    """Return the defaults of a task, cell or radio; those of a data file depend on the settings given for it."""
    own: Value = getattr(value, "defaults", {})
    if isinstance(own, Mapping):
        return own
    target = read_list(said.get("target") or ())
    target = target if isinstance(target, list | tuple) else [target]
    named = {key: str(each) if isinstance(each, Named) else each for key, each in said.items()}
    if not all(isinstance(each, str) for each in (*target, named.get("ue_column") or "")):
        return {}  # reported by the validation
    with input_errors(f"--task {name}"):
        return own(tuple(target), named.get("ue_column") or None, named)


def _fill(values: Values, defaults: Mapping[str, Mapping[str, Value]]) -> None:
    for section, own in defaults.items():
        given = values.get(section, {})
        if isinstance(given, Mapping):
            said = {k: v for k, v in given.items() if v is not None or k not in own}
            taken: set[str] = set()
            if section == "run" and given.get("rounds") is not None:
                taken.add("horizon_s")
            if section == "task" and any(given.get(key) is not None for key in SPLITTING):
                taken.update(SPLITTING)
            values[section] = {k: v for k, v in own.items() if k not in taken} | said
