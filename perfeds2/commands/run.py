"""perfeds2 run: one algorithm."""

from typing import Any

from perfeds2.commands.compare import do_spec

DEFAULTS = {"algorithms": ["PerFedS2"], "seeds": [0]}


def run(**given: Any) -> None:
    """Train one algorithm with one seed: by default PerFedS2, seed 0."""
    do_spec("run", given, DEFAULTS)
