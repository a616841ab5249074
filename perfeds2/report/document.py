"""How do texts, tables and charts become one HTML file that opens anywhere, offline?

Everything is inside the file: plotly.js once, the charts as data, style and script. The page's Content-Security-Policy lets it
load nothing and run only the two scripts written here, whatever a name contains.
"""

import base64
import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files

from perfeds2.chart import Chart, coinciding
from perfeds2.report.on_page import line_id, plot
from perfeds2.report.tables import Table, as_html, line_sample, listed

MOST_BANDS = 9  # intervals that are shown before a reader asks for them


@dataclass(frozen=True)
class Stack:
    """Charts below one another over one x axis."""

    name: str
    title: str
    charts: Sequence[Chart]


@dataclass(frozen=True)
class Alternatives:
    """Charts of which the reader chooses one by its title."""

    charts: Sequence[Chart]  # all of one name
    label: str
    chosen: int = 0  # the one shown first


Part = str | Table | Chart | Stack | Alternatives | list[Chart | Stack]  # a string is HTML; a list stands side by side


def document(facts: Iterable[str], headline: str, about: Iterable[str], sections: Iterable[list[Part]]) -> str:
    """Return the whole page. Facts and headline are text; what follows them is HTML."""
    from plotly.offline import get_plotlyjs  # late: the live page does not need it

    own = files("perfeds2.report")
    scripts = [get_plotlyjs(), own.joinpath("page.js").read_text(encoding="utf-8")]
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data: blob:; script-src {' '.join(map(digest, scripts))}"
    parts = [part for section in sections for part in section]
    plots = dict(each for part in parts for each in _plots(part))
    data = json.dumps(plots, separators=(",", ":"), allow_nan=False)
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


def digest(script: str) -> str:
    """Return the hash by which a Content-Security-Policy allows a script."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _plots(part: Part) -> list[tuple[str, list[dict]]]:
    """Return what the script draws, by the name of its place."""
    if isinstance(part, list):
        return [each for inner in part for each in _plots(inner)]
    if isinstance(part, Chart):
        return [(part.name, [plot([part])])]
    if isinstance(part, Stack):
        return [(part.name, [plot(part.charts)])]
    if isinstance(part, Alternatives):
        return [(part.charts[0].name, [plot([chart]) for chart in part.charts])]
    return []


def _in_html(part: Part) -> str:
    """Return a part as HTML; the script draws a chart where its name is."""
    if isinstance(part, str):
        return part
    if isinstance(part, list):
        figures = (f"<figure><h3>{escape(each.title)}</h3>{_in_html(each)}</figure>" for each in part)
        return f'<div class="charts">{"".join(figures)}</div>'
    if isinstance(part, Alternatives):
        first, titles = part.charts[0], [escape(chart.title) for chart in part.charts]
        marked = [" selected" * (number == part.chosen) for number in range(len(titles))]
        options = "".join(f"<option{mark}>{title}</option>" for mark, title in zip(marked, titles, strict=True))
        select = f'<select data-chart="{first.name}" aria-label="{escape(part.label)}">{options}</select>'
        return select * (len(titles) > 1) + _in_html(first)
    assert not isinstance(part, Table)  # sections box them
    height = part.height_px if isinstance(part, Chart) else 60 + sum(chart.height_px for chart in part.charts)
    label = escape(part.title or "")
    return f'<div class="chart" id="{part.name}" style="height:{height}px" role="figure" aria-label="{label}"></div>'


def section(title: str, *parts: Part, caption: str = "", hint: str = "", name: str = "") -> list[Part]:
    """Return a section of a page: title and caption are text, the hint below them is HTML.

    Empty parts are left out, and so is a section without any other.
    """
    shown = [table_box(part, title) if isinstance(part, Table) else part for part in parts if part]
    if not shown:
        return []
    opening = f'<section id="{escape(name)}">' if name else "<section>"
    said = [paragraph(caption)] * bool(caption) + [f'<p class="hint">{hint}</p>'] * bool(hint)
    return [opening, f"<h2>{escape(title)}</h2>", *said, *shown, "</section>"]


def table_box(table: Table, label: str) -> str:
    """Return a table in a box in which it scrolls if it is wider than the page."""
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(label)}">{as_html(table)}</div>'


def with_legend(charts: Sequence[Chart], label: str, said: Sequence[str] | None = None) -> list[Part]:
    """Return charts below one legend: a button for every line and one for all intervals. Nothing without charts.

    ``said`` comes below the legend; by default, which lines coincide.
    """
    if not charts:
        return []
    said = coincidences(charts) if said is None else said
    lines = {line_id(chart, line): line for chart in charts for line in chart.series if line.listed}
    buttons = "".join(
        f'<button type="button" aria-pressed="true" data-line="{escape(key)}">{line_sample(line.style)}{escape(line.name)}</button>'
        for key, line in lines.items()
    )
    if any(chart.has_intervals for chart in charts):
        few = "true" if len(lines) <= MOST_BANDS else "false"
        buttons += f'<button type="button" class="bands" aria-pressed="{few}" data-bands>95 % intervals</button>'
    notes = f'<div class="said">{"".join(map(note, said))}</div>' if said else ""
    return [f'<div class="legend" role="group" aria-label="{escape(label)}">{buttons}</div>{notes}', list(charts)]


def coincidences(charts: Sequence[Chart]) -> list[str]:
    """Say which lines coincide: once where they do in every chart, else with the chart's title."""
    found = {chart.title: coinciding(chart) for chart in charts}
    everywhere = [group for group in next(iter(found.values()), []) if all(group in each for each in found.values())]
    said = [_coincidence(group) for group in everywhere]
    for title, groups in found.items():
        said += [f"{title}: {_coincidence(group)}" for group in groups if group not in everywhere]
    return said


def _coincidence(group: Sequence[str]) -> str:
    first, *others = group
    return f"{listed(others)} coincide{'s' * (len(others) == 1)} with {first} to the last digit."


def paragraph(text: str, kind: str = "") -> str:
    """Return text as a paragraph of a CSS class."""
    return f'<p class="{kind}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>"


def note(text: str) -> str:
    """Return a remark."""
    return paragraph(text, "note")


def verbatim(text: str) -> str:
    """Return text in a fixed-width font, as it is."""
    return f'<pre tabindex="0">{escape(text)}</pre>'
