"""perfeds2 compile: compile the loops of the clock ahead."""

from perfeds2.commands.common import QUIET
from perfeds2.console import say


def compile_clock(quiet: bool = QUIET) -> None:
    """Compile the clock once, so that later commands simulate faster."""
    from perfeds2.errors import InputError
    from perfeds2.timeline.fast.loading import compile_ahead

    folder = compile_ahead()
    if folder is None:
        raise InputError(
            "the clock cannot be compiled: that needs Numba, and a cache folder that only you can write to. "
            "Set PERFEDS2_COMPILE_CACHE to such a folder."
        )
    say(quiet, f"The compiled clock is in {folder}.")
