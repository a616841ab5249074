"""Combine texts, tables and charts into one HTML file that works offline.

The file contains everything: plotly.js once, the charts as data (both compressed), the style and the script. Its
Content-Security-Policy lets it load nothing and run only these two scripts, so names from users cannot inject code.
"""

import base64
import functools
import hashlib
import json
import string
import zlib
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path

import numpy as np

from perfeds2.chart import Chart, coinciding
from perfeds2.files import write_text
from perfeds2.report.on_page import line_id, plot
from perfeds2.report.tables import Table, as_html, line_sample, listed

# The letters of base 85, with a quotation mark for "<". ``base64.b85encode`` would be a loop in Python.
LETTERS = np.frombuffer(
    f'{string.digits}{string.ascii_uppercase}{string.ascii_lowercase}!#$%&()*+-;"=>?@^_`{{|}}~'.encode(), np.uint8
)
PLACES = 85 ** np.arange(4, -1, -1)
MOST_BANDS = 9  # with more lines than this, intervals are hidden until the reader asks for them


Part = str | Table | Chart | list[Chart]  # a string is HTML; the charts of a list are placed side by side


def document(facts: Iterable[str], headline: str, about: Iterable[str], sections: Iterable[list[Part]]) -> str:
    """Return the whole page. ``facts`` and ``headline`` are plain text; ``about`` and ``sections`` are HTML."""
    parts = [part for section in sections for part in section]
    charts = [chart for part in parts for chart in (part if isinstance(part, list) else [part])]
    plots = {chart.name: plot(chart) for chart in charts if isinstance(chart, Chart)}
    body = [
        f'<header>\n<p class="facts">{escape(" · ".join(facts))}</p>\n<h1>{escape(headline)}</h1>',
        *about,
        "</header>\n<main>",
        *map(_in_html, parts),
        "</main>",
        packed_element("charts", json.dumps(plots, separators=(",", ":"), allow_nan=False)),
    ]
    script, (library, packed) = files("perfeds2.report").joinpath("page.js").read_text(encoding="utf-8"), plotting()
    return html_page(headline, [*body, packed], [script], packed=[library])


@functools.cache
def plotting() -> tuple[str, str]:
    """Return plotly.js, and the element that holds it."""
    from plotly.offline import get_plotlyjs  # imported late: the live page does not need it

    library = get_plotlyjs()
    return library, packed_element("library", library)


def write_html(folder: Path, page: str) -> Path:
    """Write the page of a folder, ``report.html``. Return its path."""
    path = folder / "report.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, page)
    return path


def data_element(name: str, data: object) -> str:
    """Return an element with JSON data for the page's script, which finds it by ``name``."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    # Only "<" can end a script element early, and JSON allows it as an escape.
    return f'<script type="application/json" id="{name}">{text.replace("<", chr(92) + "u003c")}</script>'


def packed_element(name: str, text: str) -> str:
    """Return an element with a compressed text, in base 85 with a quotation mark for "<", which could end the element."""
    packed = zlib.compress(text.encode())
    words = np.frombuffer(packed + bytes(-len(packed) % 4), ">u4")
    letters = LETTERS[words[:, None] // PLACES % 85].tobytes().decode()
    return f'<script type="text/plain" id="{name}" data-bytes="{len(packed)}">{letters}</script>'


def html_page(
    title: str,
    body: Iterable[str],
    scripts: Sequence[str],
    head: str = "",
    policy: str = "",
    style: str = "",
    packed: Sequence[str] = (),
) -> str:
    """Return an HTML file with our style that loads nothing and runs only ``scripts``.

    ``head`` directly follows the charset; ``policy`` and ``style`` are added to our Content-Security-Policy and CSS.
    ``packed`` are scripts that the others unpack and run.
    """
    hashes = [
        f"'sha256-{base64.b64encode(hashlib.sha256(each.encode()).digest()).decode()}'" for each in (*packed, *scripts)
    ]
    rules = ["default-src 'none'", "style-src 'unsafe-inline'", "img-src data: blob:", policy]
    rules += [f"script-src {' '.join(hashes)}"] if scripts else []
    style = files("perfeds2.report").joinpath("page.css").read_text(encoding="utf-8") + style
    return "\n".join(
        [
            f'<!doctype html>\n<html lang="en-GB">\n<head>\n<meta charset="utf-8">{head}',
            f'<meta http-equiv="Content-Security-Policy" content="{"; ".join(filter(None, rules))}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>",
            *body,
            *(f"<script>{script}</script>" for script in scripts),
            "</body>\n</html>\n",
        ]
    )


def _in_html(part: Part) -> str:
    """Return a part as HTML. A chart becomes an empty element that the script fills."""
    if isinstance(part, list):
        figures = (f"<figure><h3>{escape(each.title)}</h3>{_in_html(each)}</figure>" for each in part)
        return f'<div class="charts">{"".join(figures)}</div>'
    if isinstance(part, Chart):
        place = f'id="{part.name}" style="height:{part.height_px}px" role="figure" aria-label="{escape(part.title)}"'
        return f'<div class="chart" {place}></div>'
    return str(part)


def section(title: str, *parts: Part, caption: str = "", hint: str = "", name: str = "") -> list[Part]:
    """Return a section of a page: title and caption are plain text, the hint below them is HTML.

    Empty parts are dropped. A section with no other parts is dropped too.
    """
    box = f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(title)}">'  # lets wide tables scroll
    shown = [f"{box}{as_html(part)}</div>" if isinstance(part, Table) else part for part in parts if part]
    if not shown:
        return []
    opening = f'<section id="{escape(name)}">' if name else "<section>"
    said = [paragraph(caption)] * bool(caption) + [f'<p class="hint">{hint}</p>'] * bool(hint)
    return [opening, f"<h2>{escape(title)}</h2>", *said, *shown, "</section>"]


def with_legend(charts: Sequence[Chart], label: str, said: Sequence[str] | None = None) -> list[Part]:
    """Return charts below one legend: a button per line and one for all intervals. Return nothing without charts.

    ``said`` goes below the legend; by default it lists the lines that coincide.
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
    """List the lines that coincide: once if they do in every chart, otherwise with the chart's title."""
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
    """Return escaped text as a paragraph, optionally with a CSS class."""
    return f'<p class="{kind}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>"


def note(text: str) -> str:
    return paragraph(text, "note")


def verbatim(text: str) -> str:
    """Return text in a fixed-width font, unchanged."""
    return f'<pre tabindex="0">{escape(text)}</pre>'


def quoted(path: Path, about: str) -> list[Part]:
    """Return a file's text below its name; nothing if the file does not exist."""
    if not path.is_file():
        return []
    return [f'<p class="hint">{escape(path.name)}, {escape(about)}:</p>', verbatim(path.read_text(encoding="utf-8"))]
