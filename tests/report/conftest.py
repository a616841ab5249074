"""What the tests of reports share."""

from made_up_runs import compared, make_run, on_a_terminal

__all__ = ["compared", "make_run", "on_a_terminal"]
