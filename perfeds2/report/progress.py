"""How far are the workers of a sweep, a tuning or an arena, and which runs failed?"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING

from rich.console import Group as RichGroup
from rich.text import Text

from perfeds2.report.tables import Column, Table, for_terminal, text_column
from perfeds2.report.terminal import LinePace, clock, live, open_console

if TYPE_CHECKING:  # these import JAX
    from perfeds2.runs.pool import Failure
    from perfeds2.runs.progress import Progress

SHOWN_WORKERS = 16
SHOWN_FAILURES = 60


def progress(quiet: bool) -> "AbstractContextManager[Callable[[Progress], None] | None]":
    """Show a table on stderr that keeps up; plain lines without a terminal."""
    return live(quiet, board, ProgressLines())


class ProgressLines:
    """Lines for a log: every failure, the progress now and then, and the end."""

    def __init__(self) -> None:
        self._pace, self._said = LinePace(), 0

    def __call__(self, now: "Progress") -> Iterator[str]:
        if now.error:
            yield now.error
        over = now.done + now.failed
        if over != self._said and (over == now.total or self._pace.is_due()):
            self._said = over
            yield _heading(now)


def board(latest: "Progress", age_s: float) -> RichGroup:
    """Return the latest standing. Its clock runs on while nothing happens."""
    now = replace(latest, elapsed_s=latest.elapsed_s + age_s)
    rows = [[str(worker), label, f"{share:.0%}"] for worker, (label, share) in sorted(now.workers.items())]
    if (more := len(rows) - SHOWN_WORKERS) > 0:
        rows = [*rows[:SHOWN_WORKERS], ["…", f"and {more} more"]]
    workers = Table([Column("worker"), Column("at", "left"), Column("done")], rows)
    return RichGroup(Text(_heading(now), style="bold"), for_terminal(workers))


def _heading(now: "Progress") -> str:
    failed = f", {now.failed:,} failed" if now.failed else ""
    retried = f", {now.retried:,} tried again" if now.retried else ""
    left = f", about {clock(now.left_s)} left" if now.left_s else ""
    running = f"{now.done:,} of {now.total:,} trainings done, {len(now.workers)} running"
    return f"{running}{failed}{retried}, {clock(now.elapsed_s)} so far{left}"


def print_failures(failures: "Sequence[Failure]") -> None:
    """Print on stderr which runs were given up and why, also where everything else is quiet."""
    if not failures:
        return
    rows = [[failure.label, str(failure.attempts), failure.error] for failure in failures[:SHOWN_FAILURES]]
    if len(failures) > SHOWN_FAILURES:
        rows.append(["…", "", f"and {len(failures) - SHOWN_FAILURES:,} more, in failed.csv"])
    table = Table([text_column(head) for head in ("run", "attempts", "error")], rows, "Failed")
    open_console(stderr=True).print(for_terminal(table))
