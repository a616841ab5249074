"""The command line in this process: it starts at once."""

import contextlib
import io
import sys
import warnings
from collections.abc import Iterator

from jaxtyping import config

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # typer imports what click deprecates
    from perfeds2 import cli


@contextlib.contextmanager
def unchecked() -> Iterator[None]:
    """Without beartype: typer hands over its own kind of context."""
    config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        config.update("jaxtyping_disable", False)


def perfeds2(*arguments: object) -> tuple[int, str]:
    """Exit status, and what was said on stderr."""
    out, err = io.StringIO(), io.StringIO()
    before, sys.argv = sys.argv, ["perfeds2", *map(str, arguments)]
    try:
        with unchecked(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            cli.main()
    except SystemExit as stop:
        return int(stop.code or 0), err.getvalue()
    finally:
        sys.argv = before
    raise AssertionError("main() ends with an exit status")
