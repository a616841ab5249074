"""How does a user hear what cannot be used, and what was perhaps meant?"""

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Something the user gave cannot be used; the message is one sentence that says what to do."""


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """The nearest of the names as a question, or all of them where none is near."""
    names = list(names)
    near = difflib.get_close_matches(name, names, 1, cutoff=0.4)
    return f"did you mean {near[0]}?" if near else f"expected one of {', '.join(names)}"
