"""How is a running command shown: its curves so far, its progress and the time left?

On a terminal as a picture that keeps up, else as a line now and then. The live page shows the same.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float
from rich.console import Console, ConsoleOptions, Group
from rich.text import Text

from perfeds2.chart import LineStyle
from perfeds2.learning.metrics import Score, score_of
from perfeds2.report.style import named_styles, ordered_styles
from perfeds2.report.tables import Column, Span, Table, for_terminal
from perfeds2.report.terminal import LinePace, clock
from perfeds2.runs.progress import DONE, INTERRUPTED, Board, LiveTraining

MOST_CURVES = 12  # that a reader can tell apart; of more, the best
MOST_IN_A_LINE = 4
PLOT_ROWS = 14
LETTERS = "abcdefghijklmnopqrstuvwxyz"
DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))  # of a braille letter: by column, then row


@dataclass(frozen=True)
class SoFar:
    """One curve: the mean over the seeds that have come so far."""

    name: str
    time_s: Float[np.ndarray, " t"]
    mean: Float[np.ndarray, " t"]
    seeds: int  # that are at work or over
    over: int

    @property
    def now(self) -> float:
        return float(self.mean[-1])

    @property
    def best(self) -> float:
        return float(self.mean.max())


def curves_of(board: Board) -> list[SoFar]:
    """Return every curve that has begun, in that order; sorted by name once the command is done."""
    alike: dict[str, list[LiveTraining]] = {}
    trainings = list(board.trainings.values())
    if board.end == DONE:  # then it no longer matters who came first
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
    """Return the mean at each time over the trainings that got there; nothing where one is NaN."""
    times = np.unique(np.concatenate([training.time_s for training in trainings]))
    total, count = np.zeros(times.size), np.zeros(times.size)
    for training in trainings:
        there = times <= training.time_s[-1]
        index = np.searchsorted(training.time_s, times[there], side="right") - 1
        total[there] += np.where(index >= 0, np.asarray(training.score, float)[np.maximum(index, 0)], 0.0)
        count[there] += index >= 0
    fine = np.isfinite(total) & (count > 0)
    return times[fine], total[fine] / count[fine]


def shown_of(board: Board) -> tuple[list[SoFar], int, dict[str, LineStyle]]:
    """Return the curves that are drawn, how many are not, and their styles."""
    found = curves_of(board)
    best = sorted(found, key=lambda each: -each.now)[:MOST_CURVES]
    shown = [each for each in found if each in best] if len(found) > MOST_CURVES else found
    labelled = any(training.label for training in board.trainings.values())
    styles = (ordered_styles if labelled else named_styles)([each.name for each in shown])
    return shown, len(found) - len(shown), styles


def score_of_board(board: Board) -> Score:
    """Return what is called accuracy."""
    names = {training.metric for training in board.trainings.values()}
    return score_of(names.pop()) if len(names) == 1 else Score("metric") if names else score_of("accuracy")


def value(score: Score, number: float) -> str:
    return f"{number:.1%}" if score.is_share else f"{number:.4g}"


def heading(board: Board) -> str:
    """Sum up the progress in a line."""
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


def last_words(board: Board, folder: str) -> str:
    """Say how the command ended; empty while it runs."""
    again = (
        f"perfeds2 {board.command} --resume {folder}" if board.command != "reproduce" else "the same command once more"
    )
    if board.end == DONE:
        return f"{board.command} has come to its end: {folder}"
    if board.end == INTERRUPTED:
        return f"{board.command} was interrupted at {board.share:.0%}; go on with: {again}"
    if board.end:
        return f"{board.command} stopped at {board.share:.0%}: {board.end.removesuffix('.')}; go on with: {again}"
    if board.is_dead:
        return f"{board.command} was killed at {board.share:.0%}; what is done is safe, go on with: {again}"
    return ""


def so_far_table(shown: Sequence[SoFar], score: Score) -> Table:
    """Return a row per curve: how good it is by now."""
    heads = ("now", "best so far", "simulated", "seeds over")
    rows = [
        [
            each.name,
            value(score, each.now),
            value(score, each.best),
            f"{each.time_s[-1]:.4g} s",
            f"{each.over} of {each.seeds}",
        ]
        for each in shown
    ]
    return Table([Column("curve", "left"), *map(Column, heads)], rows)


# ---- on a terminal


@dataclass(frozen=True)
class Picture:
    """The state of the command, as wide as the terminal."""

    board: Board

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Any]:
        shown, more, styles = shown_of(self.board)
        score = score_of_board(self.board)
        yield Text(heading(self.board), style="bold", no_wrap=True, overflow="ellipsis")
        wide = min(options.max_width, 100)
        done = round(wide * self.board.share)
        yield Text.assemble(("━" * done, "green"), ("━" * (wide - done), "dim"))
        if not shown:
            yield Text("nothing has been evaluated yet")
            return
        rows = min(PLOT_ROWS, max(4, console.size.height - len(shown) - 7))
        yield Group(*plot(shown, styles, wide, rows, score))
        table = so_far_table(shown, score)
        letters = [
            [Span(f"{letter} ", "dim"), Span(str(row[0]))] for letter, row in zip(LETTERS, table.rows, strict=False)
        ]
        rows = [[letter, *row[1:]] for letter, row in zip(letters, table.rows, strict=False)]
        yield for_terminal(replace(table, rows=rows))
        if more:
            yield Text(f"and {more:,} more that are not as good", "dim")


def plot(shown: Sequence[SoFar], styles: dict[str, LineStyle], width: int, rows: int, score: Score) -> Iterator[Text]:
    """Draw curves in braille dots, each with its letter at its end."""
    low, high = min(float(each.mean.min()) for each in shown), max(each.best for each in shown)
    low, high = (low, high) if high > low else (low - 0.5, high + 0.5)
    end_s = max(float(each.time_s[-1]) for each in shown) or 1.0
    margin = max(len(value(score, each)) for each in (low, high)) + 1
    columns = max(10, width - margin - 2)
    dots = np.zeros((rows, columns), int)
    tints: dict[tuple[int, int], str] = {}
    letters: dict[tuple[int, int], str] = {}
    for letter, each in zip(LETTERS, shown, strict=False):
        x = np.arange(round(float(each.time_s[-1]) / end_s * (2 * columns - 1)) + 1)
        index = (
            np.searchsorted(each.time_s, (x + 0.51) / (2 * columns - 1) * end_s, side="right") - 1
        )  # what a dot covers
        y = np.rint((high - each.mean[np.maximum(index, 0)]) / (high - low) * (4 * rows - 1)).astype(int)
        before = y[0]
        for across, down in zip(x.tolist(), y.tolist(), strict=True):
            for dot in range(min(before, down), max(before, down) + 1):  # a step is a line, too
                cell = dot // 4, across // 2
                dots[cell] |= DOTS[across % 2][dot % 4]
                tints[cell] = styles[each.name].colour
            before = down
        place = int(y[-1]) // 4, min(int(x[-1]) // 2 + 1, columns - 1)
        while place in letters and place[0] + 1 < rows:
            place = place[0] + 1, place[1]
        letters[place], tints[place] = letter, styles[each.name].colour
    for row in range(rows):
        named = value(score, high) if row == 0 else value(score, low) if row == rows - 1 else ""
        line = Text(f"{named:>{margin}}┤", "dim")
        for column in range(columns):
            cell = row, column
            line.append(letters.get(cell) or (chr(0x2800 + int(dots[cell])) if dots[cell] else " "), tints.get(cell))
        yield line
    yield Text(f"{'':>{margin}}└0 s{f'{end_s:.4g} s simulated':─>{columns - 3}}", "dim")


# ---- where there is no terminal


class BoardLines:
    """Lines for a log now and then: the progress and the best curves."""

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
