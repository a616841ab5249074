"""Report invalid values in one sentence that names the flag."""

from collections.abc import Mapping, Sequence

from pydantic_core import ErrorDetails

from perfeds2.errors import did_you_mean
from perfeds2.spec.names import Value
from perfeds2.spec.settings import settings_of
from perfeds2.spec.values import Section


def sentence(errors: Sequence[ErrorDetails], sections: Mapping[str, type[Section]]) -> str:
    """Return pydantic's first error as a sentence: the flag, what was given, what was expected."""
    location = errors[0]["loc"]
    if errors[0]["type"] == "extra_forbidden":
        section, *rest = map(str, location)
        fields = sections[section].model_fields if rest and section in sections else sections
        path = ".".join(part if part.isprintable() else repr(part) for part in map(str, location))
        return f"{path} is not a setting; {did_you_mean(rest[0] if rest else section, fields)}"
    section, *rest = (str(part) for part in location if not isinstance(part, int))
    found = next((each for each in settings_of(sections) if [each.section, each.key] == [section, *rest[:1]]), None)
    return complaint(errors, found.flag if found is not None else f"section [{section}]")


def complaint(errors: Sequence[Value], flag: str) -> str:
    """Describe what is wrong with the value of a flag, from pydantic's first error."""
    came, limits = errors[0].get("input"), errors[0].get("ctx", {})
    match errors[0]["type"]:
        case "value_error":
            return f"{flag} {_as_given(came)} {limits['error']}."
        case "too_short" | "missing":
            return f"{flag} is empty or too short; give at least {limits.get('min_length', 1) if limits else 'two'}."
        case kind:
            expected = EXPECTED.get(kind, "something else (see --help)").format(**limits)
            place = errors[0]["loc"][:-1]  # the other members of a union, such as a number or a word
            words = [
                each["ctx"]["expected"]
                for each in errors[1:]
                if each["type"] == "literal_error" and each["loc"][:-1] == place
            ]
            return f"{flag} must be {' or '.join([expected, *words])}, got {came!r}."


def _as_given(came: object) -> str:
    return repr(came) if isinstance(came, str | int | float) else str(getattr(came, "__name__", type(came).__name__))


EXPECTED = {  # by pydantic's error type
    **dict.fromkeys(("finite_number", "float_parsing", "float_type"), "a finite number"),
    **dict.fromkeys(("int_parsing", "int_type", "int_from_float", "int_parsing_size"), "a whole number"),
    **dict.fromkeys(("string_type", "string_unicode"), "a text"),
    **dict.fromkeys(("bool_parsing", "bool_type"), "true or false"),
    **dict.fromkeys(("model_type", "model_attributes_type", "dict_type"), "a table of settings"),
    "greater_than": "greater than {gt:.10g}",
    "greater_than_equal": "at least {ge:.10g}",
    "less_than": "less than {lt:.10g}",
    "less_than_equal": "at most {le:.10g}",
    "literal_error": "{expected}",
    "tuple_type": "a list",
    "too_long": "a list of {max_length}",
}
