"""perfeds2 simulate: only the clock."""

from typing import Any

from perfeds2.commands.compare import do_spec

LEAVES_OUT = ("data_dir", "alpha", "beta", "eval_every_s", "target_accuracy", "metric", "stop_when_diverged")  # unused

DEFAULTS = {"seeds": [0]}


def simulate(**given: Any) -> None:
    """Play only the clock: which UE is merged when, how stale its update is, and who waits. Trains nothing."""
    do_spec("simulate", given, DEFAULTS)
