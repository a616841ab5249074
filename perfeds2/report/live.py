"""Show a running command: its curves so far, its progress and the time left.

A terminal shows a picture that updates; a log gets a line now and then. The live page shows the same as a small HTML
file that is rewritten as results come and reloads itself. The report replaces it at the end; if there is no report, it
is deleted.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float
from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress_bar import ProgressBar
from rich.text import Text

from perfeds2.files import write_text
from perfeds2.learning.metrics import Score, score_of
from perfeds2.report.document import html_page, note, section
from perfeds2.report.tables import Column, Table, for_terminal, text_column
from perfeds2.report.terminal import LinePace, clock, open_console, progress_bar, say_line
from perfeds2.runs.progress import DONE, INTERRUPTED, Board, LiveTraining, News, Progress, Watch

if TYPE_CHECKING:  # the module imports JAX
    from perfeds2.runs.pool import Failure

MOST_CURVES = 12  # as many as a reader can tell apart; the best are kept
MOST_IN_A_LINE = 4
SHOWN_FAILURES = 60
BLOCKS = "▁▂▃▄▅▆▇█"
FIRST_S = 2.0  # shorter commands get no live page
EVERY_S = 2.0
SHARE = 0.005  # largest share of the time that writing the page may take
MARK = '<meta name="perfeds2" content="live">'


@dataclass(frozen=True)
class SoFar:
    """One curve: the mean over the seeds that have started."""

    name: str
    time_s: Float[np.ndarray, " t"]
    mean: Float[np.ndarray, " t"]
    seeds: int  # running or finished
    over: int

    @property
    def now(self) -> float:
        return float(self.mean[-1])

    @property
    def best(self) -> float:
        return float(self.mean.max())


def curves_of(board: Board) -> list[SoFar]:
    """Return every curve that has started, in order of appearance; sorted by name once the command is done."""
    alike: dict[str, list[LiveTraining]] = {}
    trainings = list(board.trainings.values())
    if board.end == DONE:  # the order in which trainings started no longer matters
        trainings.sort(key=lambda training: (training.curve, training.seed))
    for training in trainings:
        if training.time_s:
            alike.setdefault(training.curve, []).append(training)
    found = [(name, _mean_so_far(trainings), trainings) for name, trainings in alike.items()]
    return [
        SoFar(name, *curve, len(trainings), sum(training.is_over for training in trainings))
        for name, curve, trainings in found
        if curve[0].size
    ]


def _mean_so_far(trainings: Sequence[LiveTraining]) -> tuple[Float[np.ndarray, " t"], Float[np.ndarray, " t"]]:
    """Return the times and, at each, the mean over the trainings that got that far; times with a NaN are dropped."""
    times = np.unique(np.concatenate([training.time_s for training in trainings]))
    total, count = np.zeros(times.size), np.zeros(times.size)
    for training in trainings:
        there = times <= training.time_s[-1]
        index = np.searchsorted(training.time_s, times[there], side="right") - 1
        total[there] += np.where(index >= 0, np.asarray(training.score, float)[np.maximum(index, 0)], 0.0)
        count[there] += index >= 0
    fine = np.isfinite(total) & (count > 0)
    return times[fine], total[fine] / count[fine]


def shown_of(board: Board) -> tuple[list[SoFar], int]:
    """Return the curves to draw (the best if there are many), and the number left out."""
    found = curves_of(board)
    best = sorted(found, key=lambda each: -each.now)[:MOST_CURVES]
    return [each for each in found if each in best], max(len(found) - MOST_CURVES, 0)


def score_of_board(board: Board) -> Score:
    """Return the metric that is called accuracy, from the trainings on the board."""
    names = {training.metric for training in board.trainings.values()}
    return score_of(names.pop()) if len(names) == 1 else Score("metric") if names else score_of("accuracy")


def value(score: Score, number: float) -> str:
    return f"{number:.1%}" if score.is_share else f"{number:.4g}"


def heading(board: Board) -> str:
    """Summarise the progress in a line."""
    elapsed_s = board.heard_s - board.began_s
    over = sum(training.is_over for training in board.trainings.values())
    at = len(board.trainings) - over
    parts = [f"{board.command}: {board.share:.0%}", "" if board.end else board.what]
    parts += [f"{over} training{'s' * (over != 1)} over" + (f", {at} at work" if at and not board.end else "")]
    parts += [
        f"{board.failed} failed" if board.failed else "",
        "" if board.end == DONE else f"{clock(elapsed_s)} so far",
    ]
    parts += [f"about {clock(board.left_s)} left" if board.left_s is not None else ""]
    return ", ".join(part for part in parts if part)


def ending(board: Board, folder: str) -> str:
    """Describe how the command ended; empty while it runs."""
    again = (
        f"perfeds2 {board.command} --resume {folder}" if board.command != "reproduce" else "the same command once more"
    )
    if board.end == DONE:
        return f"{board.command} has finished: {folder}"
    if board.end == INTERRUPTED:
        return f"{board.command} was interrupted at {board.share:.0%}; continue with: {again}"
    if board.end:
        return f"{board.command} stopped at {board.share:.0%}: {board.end.removesuffix('.')}; continue with: {again}"
    if board.is_dead:
        return f"{board.command} was killed at {board.share:.0%}; finished work is kept; continue with: {again}"
    return ""


def so_far_table(shown: Sequence[SoFar], score: Score, columns: int = 40) -> Table:
    """Return a row per curve: its latest and best score, and a sparkline of ``columns`` block characters."""
    end_s = max(float(each.time_s[-1]) for each in shown) or 1.0
    low, high = min(float(each.mean.min()) for each in shown), max(each.best for each in shown)
    rows = []
    for each in shown:
        numbers = [value(score, each.now), value(score, each.best), f"{each.time_s[-1]:.4g} s"]
        course = sparkline(each, end_s, low, high, columns)
        rows.append([each.name, *numbers, f"{each.over} of {each.seeds}", course])
    heads = ("now", "best so far", "simulated", "seeds over")
    scale = f"from 0 to {end_s:.4g} s, {value(score, low)} to {value(score, high)}"
    return Table(
        [Column("curve", "left"), *map(Column, heads), Column(scale, "left", narrow=f"0 to {end_s:.4g} s")], rows
    )


def sparkline(curve: SoFar, end_s: float, low: float, high: float, columns: int) -> str:
    """Draw a curve in block characters, as far as it has come, on the scale shared by all curves."""
    last_s = float(curve.time_s[-1])
    at_s = np.linspace(0.0, last_s, 1 + round(last_s / end_s * (columns - 1)))
    index = np.searchsorted(curve.time_s, at_s, side="right") - 1
    levels = (curve.mean[np.maximum(index, 0)] - low) / max(high - low, 1e-9) * (len(BLOCKS) - 1)
    return "".join(BLOCKS[round(level)] for level in levels.tolist())


# ---- in a terminal


@dataclass(frozen=True)
class Picture:
    """The state of the command, as wide as the terminal."""

    board: Board

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        shown, more = shown_of(self.board)
        wide = min(options.max_width, 100)
        yield Text(heading(self.board), style="bold", no_wrap=True, overflow="ellipsis")
        yield ProgressBar(1.0, self.board.share, wide)
        if not shown:
            yield Text("nothing has been evaluated yet")
            return
        names = max(len(each.name) for each in shown)
        yield for_terminal(so_far_table(shown, score_of_board(self.board), max(10, wide - names - 46)))
        if more:
            yield Text(f"and {more:,} lower curves", "dim")


# ---- without a terminal


class BoardLines:
    """Yields log lines now and then: the progress and the best curves."""

    def __init__(self) -> None:
        self._pace, self._said = LinePace(), ""

    def __call__(self, board: Board) -> Iterator[str]:
        if self._pace.is_due() or board.end:
            line = ", ".join([heading(board), *self._best(board)])
            if line != self._said:
                self._said = line
                yield line

    def _best(self, board: Board) -> list[str]:
        score, best = score_of_board(board), sorted(curves_of(board), key=lambda each: -each.now)
        told = [f"{each.name} {value(score, each.now)} at {each.time_s[-1]:.4g} s" for each in best[:MOST_IN_A_LINE]]
        return told + ([f"and {len(best) - MOST_IN_A_LINE} more"] if len(best) > MOST_IN_A_LINE else [])


# ---- progress of a command


@contextmanager
def progress(quiet: bool, command: str) -> Iterator[Watch]:
    """Show a command's progress on stderr. Even if quiet, every update handles Ctrl-C."""
    first: list[float] = []  # when the first rounds were done, that is, after compiling
    with progress_bar(quiet, command) as tell:

        def watch(now: Progress) -> None:
            if now.error and not quiet:
                say_line(now.error)
            if now.rounds and not first:
                first.append(time.monotonic())
            speed = now.rounds / max(time.monotonic() - first[0], 1.0) if first else 0.0
            reached = f"simulated {now.time_s:.4g} s" if now.time_s else ""  # unknown when a training begins or ends
            parts = [now.what, counts_of(now), reached, f"{speed:,.0f} rounds/s"]
            tell(now.share, ", ".join(filter(None, parts)))

        yield watch


def counts_of(now: Progress) -> str:
    """Return how many trainings are done and failed; empty for a single training."""
    if now.total == 1:
        return ""
    failed = f", {now.failed:,} failed" if now.failed else ""
    retried = f", {now.retried:,} tried again" if now.retried else ""
    return f"{now.done:,} of {now.total:,} trainings done{failed}{retried}"


def print_failures(failures: "Sequence[Failure]") -> None:
    """Print on stderr which runs failed for good and why, even in quiet mode."""
    if not failures:
        return
    rows = [[failure.label, str(failure.attempts), failure.error] for failure in failures[:SHOWN_FAILURES]]
    if len(failures) > SHOWN_FAILURES:
        rows.append(["…", "", f"and {len(failures) - SHOWN_FAILURES:,} more, in failed.csv"])
    table = Table([text_column(head) for head in ("run", "attempts", "error")], rows, "Failed")
    open_console(stderr=True).print(for_terminal(table))


# ---- on a page


def is_live(page: Path) -> bool:
    """Return whether a page is still a live page, not a report."""
    try:
        with page.open("rb") as file:
            return MARK.encode() in file.read(400)
    except OSError:
        return False


class LivePage:
    """Follows a command and rewrites its page now and then."""

    def __init__(self, folder: Path, name: str = "report.html") -> None:
        self._page, self._folder = folder / name, folder
        self._due_s = time.monotonic() + FIRST_S

    def look(self, board: Board, news: Sequence[News]) -> None:  # noqa: ARG002 (drawn as a whole)
        began_s = time.monotonic()
        if began_s < self._due_s:
            return
        self._write(live_page(board, str(self._folder), reloads=True))
        ended_s = time.monotonic()
        self._due_s = ended_s + max(EVERY_S, (ended_s - began_s) / SHARE)

    def end(self, board: Board) -> None:
        """Write the page for the last time. After success it keeps reloading until the report replaces it."""
        if is_live(self._page):
            self._write(live_page(board, str(self._folder), reloads=board.end == DONE))

    def settle(self) -> None:
        """Delete the page if no report replaced it, so that the folder's files do not depend on timing."""
        if is_live(self._page):
            with suppress(OSError):
                self._page.unlink()

    def _write(self, text: str) -> None:
        """Write the page. Ignore disk errors, because the command itself will report them."""
        with suppress(OSError):
            write_text(self._page, text)


def live_page(board: Board, folder: str, *, reloads: bool) -> str:
    """Return the whole page. Without ``reloads`` it contains no timestamp, so its bytes are reproducible."""
    shown, more = shown_of(board)
    score, said = score_of_board(board), ending(board, folder)
    title = f"{board.command}: {board.share:.0%}" + ("" if board.end else " …")
    body = [
        f'<header>\n<p class="facts">{escape(folder)}</p>\n<h1>{escape(title)}</h1>',
        f'<p id="far">{escape(heading(board))}</p>',
        f'<progress value="{board.share:.4f}" max="1" aria-labelledby="far"></progress>',
        note(said) if said else "",
    ]
    if reloads:
        age = f'<span id="age" role="status" data-written="{time.time():.0f}"></span>'
        body.append(f'<p class="hint"><button id="pause" type="button" hidden></button> {age}</p>')
    hint = f"{more:,} lower curves are not shown. " * bool(more)
    hint += "A curve is the mean over the seeds so far."
    table = so_far_table(shown, score) if shown else note("Nothing has been evaluated yet.")
    curves = section(f"Personalised {score.word} over simulated time, so far", table, hint=hint)
    body += ["</header>\n<main>", *map(str, curves), "</main>"]
    if not reloads:
        return html_page(title, body, [], MARK)
    script = files("perfeds2.report").joinpath("live_page.js").read_text(encoding="utf-8")
    return html_page(title, body, [script], f'{MARK}<noscript><meta http-equiv="refresh" content="5"></noscript>')
