"""What does a command show while it works, and where do its tables go?

The only place that makes a console. On a terminal progress is a bar that keeps up. Where nobody looks (a pipe, a log) it
is a plain line now and then, and a table is as wide as it needs to be.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from rich import progress as rich_progress
from rich.console import Console, RenderableType
from rich.live import Live
from rich.measure import Measurement

from perfeds2.console import heed

Told = TypeVar("Told")
TellShare = Callable[[float, str, str], None]  # how much is done (0 to 1), what is being done, how it goes
TellBytes = Callable[[str, int, int], None]  # which file, bytes that are there, bytes in all (0: not known)

PIPED_WIDTH = 150
PROSE_WIDTH = 120  # sentences are read, so they are narrower than tables
FIRST_LINE_S = 2.0  # what is over sooner leaves no line in a log
LINE_EVERY_S = 10.0
LINE_EVERY_SHARE = 0.05  # of the time so far: a long run's lines become rarer, and a day has some hundred
REFRESH_S = 0.05


def console(stderr: bool = False) -> Console:
    """A console on stdout or stderr."""
    made = Console(stderr=stderr, highlight=False)
    return made if made.is_terminal else Console(stderr=stderr, highlight=False, width=PIPED_WIDTH)


def fits(console: Console, shown: RenderableType) -> bool:
    """Whether something can be shown without anything of it cut off."""
    return Measurement.get(console, console.options.update(max_width=10_000), shown).minimum <= console.width


def print_prose(console: Console, text: str, style: str = "") -> None:
    """Sentences, in lines of a length one can read, on a terminal as in a pipe."""
    console.print(text, style=style, markup=False, width=min(console.width, PROSE_WIDTH))


def say_line(line: str) -> None:
    """A plain line on stderr, as it is."""
    console(stderr=True).print(line, markup=False, soft_wrap=True)


class LinePace:
    """When is the next line of a log due?"""

    def __init__(self) -> None:
        self._started_s = time.monotonic()
        self._due_s = self._started_s + FIRST_LINE_S
        self.lines = 0

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._started_s

    def is_due(self) -> bool:
        """Whether a line is to be said now; it then counts as said."""
        if time.monotonic() < self._due_s:
            return False
        self._due_s = time.monotonic() + max(LINE_EVERY_S, LINE_EVERY_SHARE * self.elapsed_s)
        self.lines += 1
        return True


@contextmanager
def progress(quiet: bool, title: str) -> Iterator[TellShare]:
    """How far a command is, on stderr; nothing where it is quiet. A Ctrl-C is heeded at every step, shown or not."""
    first: list[tuple[float, float]] = []  # what was done at first, and when: a resumed run does not start at none

    def line(elapsed_s: float, share: float, description: str, detail: str) -> list[str]:
        first[:] = first or [(share, elapsed_s)]
        done, spent_s = share - first[0][0], elapsed_s - first[0][1]
        left = f"about {clock(spent_s * (1 - share) / done)} left" if done > 0 else ""
        return [f"{title}: {share:.0%}", description, detail, f"{clock(elapsed_s)} so far", left]

    def bar(share: float, description: str, detail: str) -> dict[str, Any]:
        return {"completed": share, "total": 1.0, "description": description, "detail": detail}

    columns = (
        rich_progress.BarColumn(),
        rich_progress.TaskProgressColumn(),
        rich_progress.TextColumn("{task.fields[detail]}", markup=False),
    )
    with _told(quiet, title, columns, bar, line) as tell:
        yield tell


@contextmanager
def download(quiet: bool, title: str) -> Iterator[TellBytes]:
    """The same for files that are fetched: bytes, and how fast they come."""

    def line(elapsed_s: float, file: str, done: int, total: int) -> list[str]:
        of = f" of {total / 1e6:,.1f}" if total else ""
        return [f"{title}/{file}: {done / 1e6:,.1f}{of} MB", f"{clock(elapsed_s)} so far"]

    def bar(file: str, done: int, total: int) -> dict[str, Any]:
        return {"completed": done, "total": total or None, "description": f"{title}/{file}"}

    with _told(
        quiet,
        title,
        (rich_progress.BarColumn(), rich_progress.DownloadColumn(), rich_progress.TransferSpeedColumn()),
        bar,
        line,
    ) as tell:
        yield tell


@contextmanager
def _told(
    quiet: bool,
    title: str,
    columns: Iterable[rich_progress.ProgressColumn],
    bar: Callable[..., dict[str, Any]],  # what rich is to be told of some news
    line: Callable[..., list[str]],  # what a log is to be told of it, the seconds so far coming first
) -> Iterator[Callable[..., None]]:
    """A bar that goes when it is over, lines, or nothing, and the function that is told the news."""
    shown, pace, shown_s = console(stderr=True), LinePace(), 0.0
    if quiet:
        yield lambda *_: heed()
    elif shown.is_terminal:
        columns = (
            rich_progress.TextColumn("{task.description}", markup=False),
            *columns,
            rich_progress.TimeRemainingColumn(),
        )
        with rich_progress.Progress(*columns, console=shown, transient=True) as progress:
            task = progress.add_task(title, total=None, detail="starting …")

            def update(*news: Any) -> None:
                nonlocal shown_s
                heed()
                fields = bar(*news)
                if fields["completed"] == fields["total"] or time.monotonic() - shown_s >= REFRESH_S:
                    shown_s = time.monotonic()
                    progress.update(task, **fields)

            yield update
    else:

        def tell(*news: Any) -> None:
            heed()
            said = line(pace.elapsed_s, *news)
            if pace.is_due():
                say_line(", ".join(part for part in said if part))

        yield tell
        if pace.lines:
            say_line(f"{title}: done in {clock(pace.elapsed_s)}")


@contextmanager
def live(
    quiet: bool,
    draw: Callable[[Told, float], RenderableType],
    lines: Callable[[Told], Iterable[str]],
    stays: bool = False,
) -> Iterator[Callable[[Told], None] | None]:
    """A picture on stderr of what was last told, and how many seconds ago; where there is no terminal, lines about it.

    Whoever is quiet gets None: there is nothing to be told. ``stays`` leaves the last picture standing.
    """
    shown = console(stderr=True)
    if quiet:
        yield None
    elif shown.is_terminal:
        latest: list[tuple[Told, float]] = []

        def picture() -> RenderableType:
            return draw(latest[0][0], time.monotonic() - latest[0][1]) if latest else "starting …"

        def keep(told: Told) -> None:
            latest[:] = [(told, time.monotonic())]

        with Live(get_renderable=picture, console=shown, transient=not stays, refresh_per_second=4):
            yield keep
    else:

        def tell(told: Told) -> None:
            for line in lines(told):
                say_line(line)

        yield tell


def clock(seconds: float) -> str:
    """Hours, minutes and seconds."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
