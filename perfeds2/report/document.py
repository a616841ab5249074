"""How do sections and charts become one file that opens anywhere, offline?

Everything is inside the file: plotly.js once, the charts as data, style and script. The page's own rules (its
Content-Security-Policy) let it load nothing and run only the two scripts written here, whatever a name contains.
"""

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping
from html import escape
from importlib.resources import files

from plotly.offline import get_plotlyjs

from perfeds2.report.style import LineStyle
from perfeds2.report.traces import Chart


def document(title: str, sections: Iterable[str], charts: Iterable[Chart]) -> str:
    """The whole page: sections are HTML, the title is text."""
    own = files("perfeds2.report")
    scripts = [get_plotlyjs(), own.joinpath("page.js").read_text(encoding="utf-8")]
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data: blob:; script-src " + " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" for script in scripts
    )
    data = json.dumps({chart.name: chart.plots for chart in charts}, separators=(",", ":"), allow_nan=False)
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en-GB">\n<head>\n<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title>",
            f"<style>\n{own.joinpath('page.css').read_text(encoding='utf-8')}</style>\n</head>\n<body>",
            *(section for section in sections if section),
            # In a script element only "<" can end the data early, and JSON may write it as an escape.
            f'<script type="application/json" id="charts">{data.replace("<", chr(92) + "u003c")}</script>',
            *(f"<script>{script}</script>" for script in scripts),
            "</body>\n</html>\n",
        ]
    )


def header(facts: Iterable[str], headline: str, *rest: str) -> str:
    """What opens a page: facts and headline are text, the rest is HTML."""
    opening = f'<p class="facts">{escape(" · ".join(facts))}</p>\n<h1>{escape(headline)}</h1>'
    return "\n".join(["<header>", opening, *rest, "</header>"])


def section(title: str, *parts: str, caption: str = "", hint: str = "", name: str = "") -> str:
    """A part of a page: its title is text; the caption and hint below it and the rest are HTML."""
    opening = f'<section id="{escape(name)}">' if name else "<section>"
    said = f'<p class="hint">{hint}</p>' if hint else ""
    lines = (opening, f"<h2>{escape(title)}</h2>", caption, said, *parts, "</section>")
    return "\n".join(line for line in lines if line)


def placed(chart: Chart) -> str:
    """Where the script draws a chart."""
    return (
        f'<div class="chart" id="{chart.name}" style="height:{chart.height_px}px" role="img" '
        f'aria-label="{escape(chart.title)}"></div>'
    )


def side_by_side(charts: Iterable[Chart]) -> str:
    shown = "".join(f"<figure><h3>{escape(chart.title)}</h3>{placed(chart)}</figure>" for chart in charts)
    return f'<div class="charts">{shown}</div>'


def legend(styles: Mapping[str, LineStyle], label: str, first: int = 0) -> str:
    """A button for every line, numbered from ``first`` as its traces are."""
    buttons = "".join(
        f'<button type="button" aria-pressed="true" data-algorithm="{number}">{line_sample(style)}{escape(name)}</button>'
        for number, (name, style) in enumerate(styles.items(), first)
    )
    return f'<div class="legend" role="group" aria-label="{escape(label)}">{buttons}</div>'


def line_sample(style: LineStyle) -> str:
    """A line as a small drawing."""
    dashes = " ".join(map(str, style.dash_px))
    return (
        f'<svg class="line" width="22" height="8" aria-hidden="true"><line x1="0" y1="4" x2="22" y2="4" '
        f'stroke="{style.colour}" stroke-width="2.5" stroke-dasharray="{dashes}"/></svg>'
    )


def scrolling(table: str, label: str) -> str:
    """A table that is wider than a phone scrolls in its own box."""
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{label}">{table}</div>'


def verbatim(text: str) -> str:
    return f'<pre tabindex="0">{escape(text)}</pre>'
