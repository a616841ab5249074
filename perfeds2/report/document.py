"""How do texts and charts become one file that opens anywhere, offline?

Everything is inside the file: plotly.js once, the charts as data, style and script. The page's own rules (its
Content-Security-Policy) let it load nothing and run only the two scripts written here, whatever a name contains.
"""

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files

from plotly.offline import get_plotlyjs

from perfeds2.report.style import LineStyle
from perfeds2.report.traces import Chart

MARKS = {  # of a line's sample, by matplotlib's name
    "x": "M10 2l8 8M18 2l-8 8", "o": "M11 6a3 3 0 1 0 6 0a3 3 0 1 0 -6 0", "^": "M14 2.5l4 7h-8z", "v": "M14 9.5l4 -7h-8z",
    "s": "M11 3h6v6h-6z", "D": "M14 2l4 4l-4 4l-4 -4z",
}  # fmt: skip
MOST_BANDS = 9  # that are shown before a reader asks for them
Part = str | Chart | list[Chart]  # of a page: HTML, a chart, or charts side by side


def document(facts: Iterable[str], headline: str, about: Iterable[str], sections: Iterable[list[Part]]) -> str:
    """The whole page. Facts and headline are text; what is said about it below them is HTML."""
    own = files("perfeds2.report")
    scripts = [get_plotlyjs(), own.joinpath("page.js").read_text(encoding="utf-8")]
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data: blob:; script-src " + " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" for script in scripts
    )
    parts = [part for section in sections for part in section]
    charts = [
        chart for part in parts if not isinstance(part, str) for chart in (part if isinstance(part, list) else [part])
    ]
    data = json.dumps({chart.name: chart.plots for chart in charts}, separators=(",", ":"), allow_nan=False)
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en-GB">\n<head>\n<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(headline)}</title>",
            f"<style>\n{own.joinpath('page.css').read_text(encoding='utf-8')}</style>\n</head>\n<body>",
            f'<header>\n<p class="facts">{escape(" · ".join(facts))}</p>\n<h1>{escape(headline)}</h1>',
            *about,
            "</header>\n<main>",
            *map(_in_html, parts),
            "</main>",
            # In a script element only "<" can end the data early, and JSON may write it as an escape.
            f'<script type="application/json" id="charts">{data.replace("<", chr(92) + "u003c")}</script>',
            *(f"<script>{script}</script>" for script in scripts),
            "</body>\n</html>\n",
        ]
    )


def _in_html(part: Part) -> str:
    """The script draws a chart where its name is."""
    if isinstance(part, str):
        return part
    if isinstance(part, list):
        figures = (f"<figure><h3>{escape(chart.title)}</h3>{_in_html(chart)}</figure>" for chart in part)
        return f'<div class="charts">{"".join(figures)}</div>'
    return (
        f'<div class="chart" id="{part.name}" style="height:{part.height_px}px" role="figure" '
        f'aria-label="{escape(part.title)}"></div>'
    )


def section(title: str, *parts: Part, caption: str = "", hint: str = "", name: str = "") -> list[Part]:
    """A section of a page: title and caption are text, the hint below them is HTML."""
    opening = f'<section id="{escape(name)}">' if name else "<section>"
    said = [f"<p>{escape(caption)}</p>"] * bool(caption) + [f'<p class="hint">{hint}</p>'] * bool(hint)
    return [opening, f"<h2>{escape(title)}</h2>", *said, *(part for part in parts if part), "</section>"]


def legend(
    styles: Mapping[str, LineStyle], label: str, first: int = 0, *, bands: bool = False, said: Sequence[str] = ()
) -> str:
    """A button for every line, numbered from ``first`` as its traces are; one for all bands; and what is to be said of the lines."""
    buttons = "".join(
        f'<button type="button" aria-pressed="true" data-algorithm="{number}">{line_sample(style)}{escape(name)}</button>'
        for number, (name, style) in enumerate(styles.items(), first)
    )
    if bands:
        few = "true" if len(styles) <= MOST_BANDS else "false"
        buttons += f'<button type="button" class="bands" aria-pressed="{few}" data-bands>95 % intervals</button>'
    notes = f'<div class="said">{"".join(map(note, said))}</div>' if said else ""
    return f'<div class="legend" role="group" aria-label="{escape(label)}">{buttons}</div>{notes}'


def choice(chart: Chart, label: str) -> str:
    """Which of a chart's plots is shown; nothing where there is no choice."""
    if len(chart.choices) < 2:
        return ""
    options = "".join(
        f"<option{' selected' if number == chart.chosen else ''}>{escape(name)}</option>"
        for number, name in enumerate(chart.choices)
    )
    return f'<select data-chart="{chart.name}" aria-label="{escape(label)}">{options}</select>'


def line_sample(style: LineStyle) -> str:
    """A line as a small drawing."""
    dashes, colour = " ".join(map(str, style.dash_px)), style.colour
    line = f'<line x1="0" y1="6" x2="28" y2="6" stroke="{colour}" stroke-width="2.5" stroke-dasharray="{dashes}"/>'
    mark = (
        f'<path d="{MARKS[style.marker]}" fill="{colour}" stroke="{colour}" stroke-width="2"/>' if style.marker else ""
    )
    return f'<svg class="line" width="28" height="12" aria-hidden="true">{line}{mark}</svg>'


def scrolling(table: str, label: str) -> str:
    """A table that is wider than a phone scrolls in its own box."""
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(label)}">{table}</div>'


def verbatim(text: str) -> str:
    return f'<pre tabindex="0">{escape(text)}</pre>'


def note(text: str) -> str:
    return f'<p class="note">{escape(text)}</p>'
