"""The error for unusable user input, and suggestions for misspelled names."""

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class InputError(ValueError):
    """Raised when user input cannot be used; the message is one sentence that says how to fix it."""


@contextmanager
def input_errors(what: str) -> Iterator[None]:
    """Turn a ValueError into an InputError that begins with what it is about."""
    try:
        yield
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"{what}: {error}") from None


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return a question with the closest of the names, or a list of all names if none is close."""
    names = list(names)
    near = difflib.get_close_matches(name, names, 1, cutoff=0.4)
    return f"did you mean {near[0]}?" if near else f"expected one of {', '.join(names)}"
