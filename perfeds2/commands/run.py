"""perfeds2 run: one algorithm."""

from typing import Any

from perfeds2.commands.compare import do_spec


def run(**given: Any) -> None:
    """Train one algorithm (PerFedS2 unless --algorithms says otherwise), with one seed unless told more."""
    do_spec("run", given, {"algorithms": ["PerFedS2"], "seeds": [0]})
