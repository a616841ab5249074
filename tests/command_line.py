"""The command line in this process: it starts at once."""

import contextlib
import io
import os
import sys
import warnings
from collections.abc import Iterator
from functools import cache
from typing import Any
from unittest.mock import patch

import jax
import pytest

from perfeds2.runs import pool

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # typer imports what click deprecates
    from typer.main import get_command

    from perfeds2 import cli


@cache
def commands() -> Any:
    """All commands with their flags. They are made once: a tenth of a second, which a process of its own pays anyway."""
    return get_command(cli.app)


def perfeds2(*arguments: object) -> tuple[int, str]:
    """Exit status, and what was said on stderr."""
    status, _, said = told(*arguments)
    return status, said


def told(*arguments: object) -> tuple[int, str, str]:
    """Exit status, and what was said on stdout and stderr."""
    out, err = io.StringIO(), io.StringIO()
    argv, environment = sys.argv, dict(os.environ)
    sys.argv = ["perfeds2", *map(str, arguments)]
    try:
        app = patch.object(cli, "app", commands())
        name = patch.object(sys.modules["__main__"], "__package__", None)  # the program is called argv[0], not pytest
        with app, name, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            cli.main()
    except SystemExit as stop:
        return int(stop.code or 0), out.getvalue(), err.getvalue()
    finally:
        sys.argv = argv
        os.environ.clear()
        os.environ.update(environment)  # commands that train set flags of the compiler
    raise AssertionError("main() ends with an exit status")


def train_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Train in this process, which has everything loaded, where a study would start workers (``tests/runs`` has them)."""
    monkeypatch.setattr(pool, "find_workers", lambda *_: pool.Engine())


@contextlib.contextmanager
def compiled_as_users_do() -> Iterator[None]:
    """Optimise in this process as a user's command does: worth it where much is trained (``conftest.py``)."""
    usual = jax.config.values["jax_disable_most_optimizations"]
    jax.config.update("jax_disable_most_optimizations", False)
    try:
        yield
    finally:
        jax.config.update("jax_disable_most_optimizations", usual)


def optimised() -> dict[str, str]:
    """The environment of a command that compiles as a user's does; tests compile with less optimisation (``conftest.py``)."""
    return {
        name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "JAX_DISABLE_MOST_OPTIMIZATIONS")
    }
