"""perfeds2 run: train one algorithm."""

import typer

from perfeds2.commands.compare import do_spec

DEFAULTS = {"algorithms": ["PerFedS2"], "seeds": [0]}


def run(context: typer.Context) -> None:
    """Train one algorithm with one seed: by default PerFedS2, seed 0."""
    do_spec("run", context, DEFAULTS)
