"""The error for unusable user input, and what it suggests: the nearest name, or the package to install."""

import difflib
import importlib.util
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path


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
    return f"did you mean {near[0]}?" if near else f"expected one of {', '.join(names)}."


def refuse_twice(where: str, names: Iterable[str]) -> None:
    """Refuse a name that is given twice, such as where "--algorithms has" it."""
    names = list(names)
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"{where} {twice} twice; give each its own name.")


def with_article(noun: str) -> str:
    """Return a noun after "a" or "an"."""
    return f"{'an' if noun[0] in 'aeioAEIO' else 'a'} {noun}"


def need_extra(what: str, extra: str, *modules: str) -> None:
    """Refuse something whose modules are missing, and say which extra has them."""
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    if missing:
        python = Path(sys.executable).name
        raise InputError(
            f"{what} needs {', '.join(missing)}, which must be installed: {python} -m pip install 'perfeds2[{extra}]'."
        )
