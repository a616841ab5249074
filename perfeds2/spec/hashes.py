"""Choose which settings a hash covers, so that results stay valid when a setting is added.

Keys of trainings and fingerprints of suites cover every setting of their first version with its value, whatever its default
is. A later setting counts only where it differs from the default that it was introduced with.

Only append to these tables. A changed line would lose old results, even if the setting's default has changed since.
"""

from collections.abc import Mapping

from perfeds2.spec.names import Value, Values

LATER_SECTIONS = ("cells",)
LATER: dict[str, dict[str, Value]] = {}  # by section: later settings with their first default, as in JSON


def hashed(values: Values, later: Mapping[str, Mapping[str, Value]] = LATER) -> Values:
    """Return nested settings without later ones that have the default they were introduced with."""
    kept: Values = {}
    for section, inner in values.items():
        first = later.get(section, {})
        covered = {key: value for key, value in inner.items() if key not in first or value != first[key]}
        if covered or section not in LATER_SECTIONS:
            kept[section] = covered
    return kept
