"""perfeds2 run: one algorithm."""

from typing import Any

from perfeds2.commands.common import JOBS, TRACK
from perfeds2.commands.compare import do_spec

DEFAULTS = {"algorithms": ["PerFedS2"], "seeds": [0]}


def run(jobs: int | None = JOBS, track: list[str] | None = TRACK, **given: Any) -> None:
    """Train one algorithm (PerFedS2 unless --algorithms says otherwise), with one seed unless told more."""
    do_spec("run", given, DEFAULTS, jobs, track)
