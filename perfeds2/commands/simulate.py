"""perfeds2 simulate: run only the clock."""

import typer

from perfeds2.commands.compare import do_spec

LEAVES_OUT = ("data_dir", "alpha", "beta", "eval_every_s", "target_accuracy", "metric", "stop_when_diverged")  # unused

DEFAULTS = {"seeds": [0]}


def simulate(context: typer.Context) -> None:
    """Simulate rounds, merges and waiting times without training."""
    do_spec("simulate", context, DEFAULTS)
