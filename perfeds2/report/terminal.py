"""Print tables and show progress.

This is the only module that creates a console. Progress is a bar in a terminal. In a pipe or log it is a plain line
now and then, and tables are as wide as they need to be.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.measure import Measurement
from rich.progress_bar import ProgressBar
from rich.text import Text

from perfeds2.console import raise_if_interrupted

Told = TypeVar("Told")
ShareTold = tuple[float, str]  # share done (0 to 1), current activity
TellShare = Callable[[float, str], None]
TellBytes = Callable[[str, int, int], None]  # file, bytes done, total bytes (0 if unknown)

PIPED_WIDTH = 150
PROSE_WIDTH = 120  # prose reads better in lines shorter than a table's
FIRST_LINE_S = 2.0  # shorter commands leave no line in a log
LINE_EVERY_S = 10.0
LINE_EVERY_SHARE = 0.05  # of the elapsed time: lines become rarer in long runs, about a hundred per day


def open_console(stderr: bool = False) -> Console:
    """Open a console on stdout or stderr."""
    made = Console(stderr=stderr, highlight=False)
    return made if made.is_terminal else Console(stderr=stderr, highlight=False, width=PIPED_WIDTH)


def fits(console: Console, shown: RenderableType) -> bool:
    """Return whether something fits the console without truncation."""
    return Measurement.get(console, console.options.update(max_width=10_000), shown).minimum <= console.width


def print_prose(console: Console, text: str, style: str = "") -> None:
    """Print prose in lines of readable length."""
    console.print(text, style=style, markup=False, width=min(console.width, PROSE_WIDTH))


def say_line(line: str) -> None:
    """Print a plain line on stderr."""
    open_console(stderr=True).print(line, markup=False, soft_wrap=True)


class LinePace:
    """Decides when the next log line is due."""

    def __init__(self) -> None:
        self._started_s = time.monotonic()
        self._due_s = self._started_s + FIRST_LINE_S
        self.lines = 0

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._started_s

    def is_due(self) -> bool:
        """Return whether to print a line now. True counts as printed."""
        if time.monotonic() < self._due_s:
            return False
        self._due_s = time.monotonic() + max(LINE_EVERY_S, LINE_EVERY_SHARE * self.elapsed_s)
        self.lines += 1
        return True


@contextmanager
def redrawn(
    quiet: bool,
    draw: Callable[[Told], RenderableType],
    lines: Callable[[Told], Iterable[str]],
    stays: bool = False,
) -> Iterator[Callable[[Told], None] | None]:
    """Show progress on stderr: ``draw`` in a terminal, otherwise ``lines``.

    Yields a function to call with each update, or None if quiet. ``draw`` gets the latest update a few times a second.
    ``stays`` keeps the last picture on the screen.
    """
    shown = open_console(stderr=True)
    if quiet:
        yield None
    elif shown.is_terminal:
        latest: list[Told] = []

        def picture() -> RenderableType:
            return draw(latest[0]) if latest else "starting …"

        def keep(told: Told) -> None:
            latest[:] = [told]

        with Live(get_renderable=picture, console=shown, transient=not stays, refresh_per_second=4):
            yield keep
    else:

        def tell(told: Told) -> None:
            for line in lines(told):
                say_line(line)

        yield tell


class ShareLines:
    """Yields lines about the share that is done: now and then for a log, always the latest in a terminal."""

    def __init__(self, title: str) -> None:
        self.pace, self._title = LinePace(), title
        self._first: tuple[float, float] | None = None  # first share and when: a resumed run does not start at 0

    def line(self, told: ShareTold) -> str:
        (share, what), elapsed_s = told, self.pace.elapsed_s
        self._first = self._first or (share, elapsed_s)
        done, spent_s = share - self._first[0], elapsed_s - self._first[1]
        left = f", about {clock(spent_s * (1 - share) / done)} left" if done > 0 else ""
        return f"{self._title}: {share:.0%}, {what}, {clock(elapsed_s)} so far{left}"

    def __call__(self, told: ShareTold) -> Iterator[str]:
        line = self.line(told)
        if self.pace.is_due():
            yield line


@contextmanager
def progress_bar(quiet: bool, title: str) -> Iterator[TellShare]:
    """Show a share on stderr: a bar in a terminal, otherwise lines. Every update also handles Ctrl-C."""
    lines = ShareLines(title)
    with redrawn(quiet, lambda told: Group(Text(lines.line(told)), ProgressBar(1.0, told[0], 60)), lines) as show:

        def tell(share: float, what: str) -> None:
            raise_if_interrupted()
            if show is not None:
                show((share, what))

        yield tell
    if lines.pace.lines:
        say_line(f"{title}: done in {clock(lines.pace.elapsed_s)}")


@contextmanager
def download(quiet: bool, title: str) -> Iterator[TellBytes]:
    """Show the progress of downloads."""
    with progress_bar(quiet, title) as tell:

        def tell_bytes(file: str, done: int, total: int) -> None:
            of = f" of {total / 1e6:,.1f}" if total else ""
            tell(done / total if total else 0.0, f"{file}, {done / 1e6:,.1f}{of} MB")

        yield tell_bytes


def clock(seconds: float) -> str:
    """Format seconds as h:mm:ss."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
