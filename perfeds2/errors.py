"""The error for unusable user input, and suggestions for misspelled names."""

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Raised when user input cannot be used; the message is one sentence that says how to fix it."""


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return a question with the closest of the names, or a list of all names if none is close."""
    names = list(names)
    near = difflib.get_close_matches(name, names, 1, cutoff=0.4)
    return f"did you mean {near[0]}?" if near else f"expected one of {', '.join(names)}"
