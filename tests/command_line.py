"""The command line in this process: for inputs by the thousand."""

import contextlib
import io
import sys
import warnings

from jaxtyping import config

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # typer imports what click deprecates
    from perfeds2 import cli


def perfeds2(*arguments: object) -> tuple[int, str]:
    """Exit status, and what was said on stderr."""
    out, err = io.StringIO(), io.StringIO()
    before, sys.argv = sys.argv, ["perfeds2", *map(str, arguments)]
    try:
        config.update("jaxtyping_disable", True)  # typer hands over its own kind of context
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            cli.main()
    except SystemExit as stop:
        return int(stop.code or 0), err.getvalue()
    finally:
        config.update("jaxtyping_disable", False)
        sys.argv = before
    raise AssertionError("main() ends with an exit status")
