"""perfeds2 run: train one algorithm."""

from perfeds2.commands.compare import do_spec
from perfeds2.spec.names import Value

DEFAULTS = {"algorithms": ["PerFedS2"], "seeds": [0]}


def run(**given: Value) -> None:
    """Train one algorithm with one seed: by default PerFedS2, seed 0."""
    do_spec("run", given, DEFAULTS)
