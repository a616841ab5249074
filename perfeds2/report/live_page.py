"""How does a page show a running command?

A small file in the place of the report, rewritten as results come, that reloads itself: curves so far, progress and time left.
The report replaces it at the end; without a report it is deleted.
"""

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from html import escape
from importlib.resources import files
from pathlib import Path

import numpy as np

from perfeds2.chart import LineStyle
from perfeds2.files import write_text
from perfeds2.learning.metrics import Score
from perfeds2.report.document import digest, table_box
from perfeds2.report.live import SoFar, heading, last_words, score_of_board, shown_of, so_far_table, value
from perfeds2.runs.progress import DONE, Board, News

FIRST_S = 2.0  # what is over sooner has no live page
EVERY_S = 2.0
SHARE = 0.005  # of the time, at most
MARK = '<meta name="perfeds2" content="live">'
WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 900, 340, 62, 40, 10, 14
MOST_POINTS = 400
STYLE = """
progress { width: 100%; max-width: 44rem; height: .8rem; accent-color: var(--accent); }
#pause { padding: .3rem .8rem; border: 1px solid var(--grid); border-radius: 6px; background: var(--card); color: inherit; font: inherit; font-size: .85rem; cursor: pointer; }
#pause:focus-visible { outline: 2px solid var(--accent); outline-offset: 1px; }
svg.plot { width: 100%; height: auto; margin: 1rem 0; }
svg.plot text { fill: var(--soft); font-size: 13px; }
svg.plot .grid { stroke: var(--grid); }
"""


def is_live(page: Path) -> bool:
    """Return whether a page is a live page, so that the report is still to be written."""
    try:
        with page.open("rb") as file:
            return MARK.encode() in file.read(400)
    except OSError:
        return False


class LivePage:
    """Follows a command and writes its page now and then."""

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
        """Write the page for the last time. If the command is done the page keeps reloading until the report is there."""
        if is_live(self._page):
            self._write(live_page(board, str(self._folder), reloads=board.end == DONE))

    def settle(self) -> None:
        """Delete the page if no report replaced it, so that a folder does not depend on how long the command took."""
        if is_live(self._page):
            with suppress(OSError):
                self._page.unlink()

    def _write(self, text: str) -> None:
        """Write the page; if the disk fails, the command itself reports it."""
        with suppress(OSError):
            write_text(self._page, text)


def live_page(board: Board, folder: str, *, reloads: bool) -> str:
    """Return the whole page."""
    own = files("perfeds2.report")
    script = own.joinpath("live_page.js").read_text(encoding="utf-8")
    scripts = f"; script-src {digest(script)}" if reloads else ""
    shown, more, styles = shown_of(board)
    score = score_of_board(board)
    table = replace(so_far_table(shown, score), styles=[styles[each.name] for each in shown])
    title = f"{board.command}: {board.share:.0%}" + ("" if board.end else " …")
    said = last_words(board, folder)
    left = f"{more:,} more curves are not as good as these." if more else ""
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en-GB">\n<head>\n<meta charset="utf-8">',
            MARK,
            '<noscript><meta http-equiv="refresh" content="5"></noscript>' if reloads else "",
            f"<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'{scripts}\">",
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title>",
            f"<style>\n{own.joinpath('page.css').read_text(encoding='utf-8')}{STYLE}</style>\n</head>",
            f'<body{_written(reloads)}>\n<header>\n<p class="facts">{escape(folder)}</p>\n<h1>{escape(title)}</h1>',
            f'<p id="far">{escape(heading(board))}</p>',
            f'<progress value="{board.share:.4f}" max="1" aria-labelledby="far"></progress>',
            f'<p class="note">{escape(said)}</p>' if said else "",
            '<p class="hint"><button id="pause" type="button" hidden></button> <span id="age" role="status"></span></p>'
            if reloads
            else "",
            "</header>\n<main>",
            f"<h2>Personalised {escape(score.word)} over simulated time, so far</h2>",
            _plot(shown, styles, score) if shown else "<p>Nothing has been evaluated yet.</p>",
            table_box(table, "Curves so far, in numbers") if shown else "",
            f'<p class="hint">{left} A curve is the mean over the seeds that have come so far.</p>' if shown else "",
            "</main>",
            f"<script>{script}</script>" if reloads else "",
            "</body>\n</html>\n",
        ]
    )


def _written(reloads: bool) -> str:
    """Return when a reloading page was written; the last page has no time, so that its bytes do not depend on it."""
    return f' data-written="{time.time():.0f}"' if reloads else ""


def _plot(shown: Sequence[SoFar], styles: Mapping[str, LineStyle], score: Score) -> str:
    """Draw the curves as SVG."""
    end_s = max(float(each.time_s[-1]) for each in shown) or 1.0
    low, high = min(float(each.mean.min()) for each in shown), max(each.best for each in shown)
    ticks = nice_ticks(low, high)
    low, high = min(low, ticks[0]), max(high, ticks[-1])

    def across(time_s: float) -> float:
        return LEFT + time_s / end_s * (WIDTH - LEFT - RIGHT)

    def down(level: float) -> float:
        return TOP + (high - level) / (high - low) * (HEIGHT - TOP - BOTTOM)

    parts = [f'<svg class="plot" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="Curves so far">']
    for tick in ticks:
        y = down(tick)
        parts.append(f'<line class="grid" x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{escape(value(score, tick))}</text>')
    for tick in nice_ticks(0.0, end_s):
        if tick <= end_s:
            parts.append(f'<text x="{across(tick):.1f}" y="{HEIGHT - 18}" text-anchor="middle">{tick:.6g}</text>')
    parts.append(f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 2}" text-anchor="end">simulated seconds</text>')
    for each in shown:
        some = np.unique(np.linspace(0, each.time_s.size - 1, min(each.time_s.size, MOST_POINTS)).round().astype(int))
        points = zip(each.time_s[some].tolist(), each.mean[some].tolist(), strict=True)
        steps = "".join(f"H{across(time_s):.1f}V{down(level):.1f}" for time_s, level in points)
        first = f"M{across(float(each.time_s[0])):.1f} {down(float(each.mean[0])):.1f}"
        style = styles[each.name]
        dashes = f' stroke-dasharray="{" ".join(map(str, style.dash_px))}"' if style.dash_px else ""
        parts.append(f'<path d="{first}{steps}" fill="none" stroke="{style.colour}" stroke-width="2"{dashes}/>')
    return "\n".join([*parts, "</svg>"])


def nice_ticks(low: float, high: float, about: int = 6) -> list[float]:
    """Return a few round numbers that cover a range."""
    if high - low <= 1e-9 * max(abs(low), abs(high), 1e-9):  # no range to speak of
        low, high = low - 0.5, high + 0.5
    rough = (high - low) / about
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough)
    return [number * step for number in range(math.floor(low / step), math.ceil(high / step) + 1)]
