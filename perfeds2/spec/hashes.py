"""Choose which settings a hash covers, so that results stay valid when a setting is added.

Keys of trainings and fingerprints of suites cover every setting of their first version with its value, whatever its default
is. A later setting counts only where it differs from the default that it was introduced with.

Only append to these tables. A changed line would lose old results, even if the setting's default has changed since.
"""

from collections.abc import Iterable, Mapping

from perfeds2.spec.names import Value, Values

LATER_SECTIONS = ("cells",)
LATER: dict[str, dict[str, Value]] = {  # by section: later settings with their first default, as in JSON
    "cell": {"cycles": "per-parameter"},
    "learning": {"local_epochs": None},
    "radio": {"link": "shannon"},
    "task": {"new_ues": None, "adapter": None, "init": None},
}

EARLIER: dict[str, dict[str, Value]] = {  # by section: defaults of requests that do not record the cycles
    "cell": {"cycles": "per-parameter"},
    "protocol": {"schedule": "first", "shares": "equal", "bandwidth": "equal_share"},
}


def hashed(values: Values, later: Mapping[str, Mapping[str, Value]] = LATER) -> Values:
    """Return nested settings without later ones that have the default they were introduced with."""
    kept: Values = {}
    for section, inner in values.items():
        first = later.get(section, {})
        covered = {key: value for key, value in inner.items() if key not in first or value != first[key]}
        if covered or section not in LATER_SECTIONS:
            kept[section] = covered
    return kept


def as_written(values: Values, always: Mapping[str, Iterable[str]]) -> Values:
    """Return the values of a spec file as the version that wrote it meant them.

    A file with all settings of a section, as every run writes it, has later settings at their first default. A file with
    only some of them is a user's, and has today's defaults. So has a section of which a run may write nothing, such as the
    radio. The request of a sweep or a search has only the given settings, and ``cycles``; one without ``cycles`` was
    written before that default changed.

    Args:
        values: Nested values.
        always: By section, the settings that a written file always has.
    """
    meant = dict(values)
    for section, first in LATER.items():
        given, whole = values.get(section), set(always.get(section, ())) - set(first)
        if isinstance(given, Mapping) and whole and whole <= set(given):
            meant[section] = {key: value for key, value in first.items() if value is not None} | dict(given)
    base = values.get("base")
    if isinstance(base, Mapping):  # the settings of a sweep or a search
        meant["base"] = as_written(dict(base), always)
        cell = base.get("cell", {})
        for section, first in EARLIER.items() if isinstance(cell, Mapping) and "cycles" not in cell else ():
            if isinstance(given := meant["base"].get(section, {}), Mapping):
                meant["base"][section] = first | dict(given)
    return meant
