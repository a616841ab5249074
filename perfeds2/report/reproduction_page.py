"""How do the reproduced figures and the ledger become one page?"""

from collections.abc import Sequence
from html import escape
from pathlib import Path

import numpy as np

from perfeds2 import __version__
from perfeds2.files import write_text
from perfeds2.paper.claims import Entry, ledger
from perfeds2.paper.figures.figure import TARGET, Figure
from perfeds2.report.answer import listed
from perfeds2.report.charts import Chart
from perfeds2.report.charts import Figure as Plot
from perfeds2.report.document import document, drawing
from perfeds2.report.ledger import counts, judged, meaning, points, rule, seconds, versus
from perfeds2.report.reproduction import Drawn, Look, load_panels
from perfeds2.report.series import Curve, loss_ceiling
from perfeds2.report.style import METRICS, NEUTRAL
from perfeds2.spec.fields import read_toml

STYLE = """
.ledger th, .ledger td { text-align: left; } .ledger .number { text-align: right; }
.ledger th:first-child { max-width: 22rem; font-weight: 500; }
.ledger .verdict { font-weight: 650; }
.holds { color: #00734f; } .fails { color: #b3261e; } .undecided { color: #8a5a00; }
@media (prefers-color-scheme: dark) { .holds { color: #4fd1a1; } .fails { color: #ff8a80; } .undecided { color: #f2b84b; } }
@media (max-width: 40rem) { .ledger th:first-child { min-width: 9rem; max-width: 11rem; } }
"""


def write_page(figures: Sequence[Figure], out: Path, command: str = "perfeds2 reproduce all") -> Path:
    """Write ``reproduction.html`` of the figures whose numbers are in a folder. ``command`` is what made them."""
    path = out / "reproduction.html"
    write_text(path, page(figures, out, ledger(out), command))
    return path


def page(figures: Sequence[Figure], out: Path, entries: Sequence[Entry], command: str) -> str:
    """The whole page: the ledger, the figures, the rule, the commands."""
    found = [(figure, out / f"{figure.name}.csv") for figure in figures]
    drawn = [(figure, load_panels(figure, csv)) for figure, csv in found if csv.exists()]
    charts: list[Chart] = []
    sections = [_header(drawn, entries, _tried(out)), _ledger_section(entries)]
    first = 0  # every line of the page has its own number, so that a figure's legend speaks for that figure alone
    for figure, panels in drawn:
        mine, names = _figure_charts(figure, panels, first)
        sections.append(_figure_section(figure, panels, mine, names, first))
        charts += mine
        first += len(names)
    sections.append(_commands_section(command, out))
    return document(counts(entries), sections, charts, STYLE)


def _tried(out: Path) -> str:
    """What the figures in a folder were made with instead of the paper's settings; empty for nothing."""
    path = out / "reproduce.toml"
    changes = read_toml(path).get("changes", {}) if path.exists() else {}
    return ", ".join(
        f"{section}.{key} = {value}" for section, values in changes.items() for key, value in values.items()
    )


def _header(drawn: Sequence[tuple[Figure, list[Drawn]]], entries: Sequence[Entry], changes: str) -> str:
    seeds = sorted({panel.seeds for _, panels in drawn for panel in panels})
    over = f"{listed([str(number) for number in seeds])} seed{'' if seeds == [1] else 's'}"
    facts = [
        "Section VI again",
        f"{len(drawn)} figure{'s' if len(drawn) != 1 else ''}",
        over,
        *([f"instead of the paper's: {changes}"] if changes else []),
        f"perfeds2 {__version__}",
    ]
    return (
        f'<header>\n<p class="facts">{escape(" · ".join(facts))}</p>\n<h1>{escape(counts(entries))}</h1>\n'
        f"<p>{_emphasised(rule())}</p>\n</header>"
    )


def _emphasised(text: str) -> str:
    """Escaped, with what stands between asterisks in italics."""
    parts = escape(text).split("*")
    return "".join(f"<em>{part}</em>" if number % 2 else part for number, part in enumerate(parts))


def _ledger_section(entries: Sequence[Entry]) -> str:
    texts, numbers = ["Claim", "Verdict", "Figure", "Compared"], ["Difference (points)", "Seconds to target"]
    rows = []
    for entry in judged(entries):
        claim = entry.claim
        compared = "<br>".join(escape(versus(finding.comparison)) for finding in entry.findings)
        difference, times = ("<br>".join(map(say, entry.findings)) for say in (points, seconds))
        rows.append(
            f'<tr><th scope="row">{claim.number}. {escape(claim.sentence)}</th><td class="verdict {entry.verdict}">{entry.verdict}</td>'
            f"<td>{escape(claim.where)}</td><td>{compared}</td>"
            f'<td class="number">{difference}</td><td class="number">{times}</td></tr>'
        )
    head = "".join(f'<th scope="col">{text}</th>' for text in texts)
    head += "".join(f'<th scope="col" class="number">{text}</th>' for text in numbers)
    body = "\n".join(rows)
    return (
        f'<section>\n<h2>Does what Section VI says hold?</h2>\n<p class="hint">{escape(meaning())}</p>\n'
        f'<div class="scroll" tabindex="0" role="region" aria-label="Claims"><table class="ledger">\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table></div>\n</section>"
    )


def _figure_charts(figure: Figure, panels: Sequence[Drawn], first: int) -> tuple[list[Chart], dict[str, Look]]:
    """A chart per panel and metric, and every line of the figure with its look; lines are numbered from ``first``."""
    names: dict[str, Look] = {}
    for drawn in panels:
        names |= drawn.looks
    numbers = {label: first + place for place, label in enumerate(names)}
    charts = [
        Chart(
            f"{figure.name}-{place}-{metric.replace('_', '-')}",
            f"{drawn.panel.title}: {METRICS[metric].lower()}",
            290,
            [_plot(drawn, metric, curves, numbers)],
        )
        for place, drawn in enumerate(panels)
        for metric, curves in drawn.curves.items()
        if curves
    ]
    return charts, names


def _plot(drawn: Drawn, metric: str, curves: dict[str, Curve], numbers: dict[str, int]) -> Plot:
    is_accuracy = "accuracy" in metric
    traces = [
        trace
        for label, curve in curves.items()
        for trace in _traces(label, curve, drawn.looks[label], numbers[label], is_accuracy)
    ]
    layout: Plot = {
        "xaxis": {
            "title": {"text": "Simulated time (s)"},
            "tickformat": ",",
            "unifiedhovertitle": {"text": "after %{x:,.1f} s"},
        },
        "yaxis": {} if is_accuracy else {"range": [0, loss_ceiling(curves)]},
        "margin": {"l": 48, "r": 12, "t": 12, "b": 44},
        "showlegend": False,
        "hovermode": "x unified",
    }
    target = TARGET.get(drawn.panel.task)
    if is_accuracy and target is not None:
        layout["shapes"] = [
            {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": 100 * target, "y1": 100 * target,
             "line": {"color": NEUTRAL, "width": 1, "dash": "2px,3px"}}
        ]  # fmt: skip
    return {"data": traces, "layout": layout}


def _traces(label: str, curve: Curve, look: Look, number: int, is_accuracy: bool) -> list[Plot]:
    """The edges of the band, then the mean. ``meta`` is the number that the legend's buttons know."""
    scale, top = (
        (100, 1.0) if is_accuracy else (1, np.inf)
    )  # no accuracy lies outside 0 to 1, whatever the interval says
    shared = {"type": "scatter", "mode": "lines", "x": _numbers(curve.time_s), "name": escape(label), "meta": number}
    traces = []
    if curve.low is not None and curve.high is not None:
        edge = {"line": {"width": 0, "shape": "hv"}, "hoverinfo": "skip"}
        low, high = (_numbers(scale * np.clip(values, 0.0, top)) for values in (curve.low, curve.high))
        traces += [shared | edge | {"y": low}]
        traces += [shared | edge | {"y": high, "fill": "tonexty", "fillcolor": f"{look.colour}22"}]
    dash = ",".join(f"{px}px" for px in look.dash_px) or "solid"
    value = "%{y:.1f} %" if is_accuracy else "%{y:.3f}"
    mean = {"y": _numbers(scale * curve.mean), "line": {"color": look.colour, "width": 2, "shape": "hv", "dash": dash}}
    return [*traces, shared | mean | {"hovertemplate": f"{value}<extra>%{{fullData.name}}</extra>"}]


def _numbers(values: np.ndarray) -> list[float]:
    """Five digits are more than a pixel."""
    return [float(f"{value:.5g}") for value in values]


def _figure_section(
    figure: Figure, panels: Sequence[Drawn], charts: Sequence[Chart], names: dict[str, Look], first: int
) -> str:
    buttons = "".join(
        f'<button type="button" aria-pressed="true" data-algorithm="{first + place}">{_sample(look)}{escape(label)}</button>'
        for place, (label, look) in enumerate(names.items())
    )
    seeds = max(drawn.seeds for drawn in panels)
    over = f"The mean over {seeds} seeds with its 95 % interval." if seeds > 1 else "One seed."
    dotted = " The dotted line is the target." if any(drawn.panel.task in TARGET for drawn in panels) else ""
    shown = "".join(f"<figure><h3>{escape(chart.title)}</h3>{drawing(chart)}</figure>" for chart in charts)
    missing = [panel.title for panel in figure.panels if panel.title not in {drawn.panel.title for drawn in panels}]
    note = f'<p class="note">Not run: {escape(listed(missing))}.</p>\n' if missing else ""
    return (
        f'<section id="{escape(figure.name)}">\n<h2>{escape(figure.name)}</h2>\n<p>{escape(figure.caption)}</p>\n'
        f'<p class="hint">{over}{dotted} Click a name to hide it.</p>\n{note}'
        f'<div class="legend" role="group" aria-label="Lines of {escape(figure.name)}">{buttons}</div>\n'
        f'<div class="charts">{shown}</div>\n</section>'
    )


def _sample(look: Look) -> str:
    """A line as a small drawing."""
    dashes = " ".join(map(str, look.dash_px))
    return (
        f'<svg class="line" width="22" height="8" aria-hidden="true"><line x1="0" y1="4" x2="22" y2="4" '
        f'stroke="{look.colour}" stroke-width="2.5" stroke-dasharray="{dashes}"/></svg>'
    )


def _commands_section(command: str, out: Path) -> str:
    lines = f"{command}\nperfeds2 reproduce --claims --out {out}"
    return (
        f'<section>\n<h2>Run it again</h2>\n<p class="hint">It gives the same numbers again. Interrupted, the same command goes '
        f"on; what is done is not done twice. The second line prints the ledger of what is there. Beside this page: every "
        f"figure as CSV, PDF and PNG, and the ledger as claims.csv and claims.json.</p>\n"
        f'<pre tabindex="0">{escape(lines)}</pre>\n</section>'
    )
