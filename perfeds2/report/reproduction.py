"""How do the reproduced figures look, on paper and with the ledger on one page?

On paper as the paper lays them out: one row over both columns, training loss beside test accuracy, over simulated time.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path

import matplotlib.figure
import numpy as np
import pandas as pd

from perfeds2 import __version__
from perfeds2.errors import InputError
from perfeds2.files import write_text
from perfeds2.paper.figures import FIGURES, TARGET
from perfeds2.report.document import Part, document, legend, note, scrolling, section, verbatim
from perfeds2.report.drawing import PAGE_IN, draw_curves, labelled, legend_above, name_panel, new_figure, write_figures
from perfeds2.report.ledger import (
    Ledger,
    best_tables,
    changes_of,
    claims_table,
    counts,
    lead,
    meaning,
    not_run,
    open_ledgers,
    page_table,
    rule,
    strictly,
    summary,
)
from perfeds2.report.page import over_seeds
from perfeds2.report.run import AXES, Axis, along
from perfeds2.report.series import CurvePanel, has_bands, in_view, mean_curve, said_to_coincide, until_shortest
from perfeds2.report.style import METRICS, LineStyle, named_styles, ordered_styles
from perfeds2.report.tables import as_html, as_latex, in_latex, listed
from perfeds2.report.traces import curve_chart
from perfeds2.runs.statistics import INTERVAL_SEEDS
from perfeds2.studies.reproduce import Figure, Panel

HEIGHT_IN = 1.95
MOST_AXES = 4  # in one row
LETTERS_AN_AXES = 30  # of a legend above it
POINTS = 121  # of a curve: every evaluation of a run's sixty, and once between


@dataclass(frozen=True)
class DrawnPanel:
    """A panel with what its CSV says: curves of every line that has numbers, loss beside accuracy."""

    panel: Panel
    parts: tuple[CurvePanel, ...]  # one a metric
    styles: dict[str, LineStyle]  # by the line's label
    seeds: int


def load_panels(figure: Figure, csv: Path, axis: Axis | None = None) -> list[DrawnPanel]:
    """The panels that a figure's CSV has numbers for: loss and accuracy, or accuracy alone where a row has no room.

    Over simulated time, or over what the axis says.
    """
    both = ("train_loss_personal", "test_accuracy_personal")
    metrics = both if 2 * len(figure.panels) <= MOST_AXES else both[1:]
    try:
        table = pd.read_csv(csv, converters={"panel": str, "line": str})
        tables = [(panel, pd.DataFrame(table[table["panel"] == panel.title])) for panel in figure.panels]
        drawn = [_drawn(panel, along(rows, axis, csv.name), metrics, axis) for panel, rows in tables if len(rows)]
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{csv} holds no curves ({error}); run perfeds2 reproduce {figure.name} again.") from None
    if not drawn:
        raise InputError(f"{csv} has no panel of {figure.name}; run perfeds2 reproduce {figure.name} again.")
    return drawn


def _drawn(panel: Panel, table: pd.DataFrame, metrics: Sequence[str], axis: Axis | None) -> DrawnPanel:
    grid = np.linspace(0.0, table["time_s"].to_numpy(float).max(), POINTS)
    lines = {line.label: pd.DataFrame(table[table["line"] == line.label]) for line in panel.lines}
    styles, parts = line_styles(panel), []
    for metric in metrics:
        found = {
            label: mean_curve(rows, metric, grid if axis is None else until_shortest(rows, grid))
            for label, rows in lines.items()
            if len(rows)
        }
        target = TARGET.get(panel.task) if "accuracy" in metric else None
        part = CurvePanel(metric, in_view(found, metric), styles, target)
        parts.append(part if axis is None else replace(part, time_label=axis.label, unit=axis.unit))
    return DrawnPanel(panel, tuple(parts), styles, len(set(table["seed"])))


def line_styles(panel: Panel) -> dict[str, LineStyle]:
    """Algorithms look as they do everywhere; values of one setting follow an ordered scale."""
    labels, algorithms = [line.label for line in panel.lines], [line.algorithm for line in panel.lines]
    if len(set(algorithms)) < len(algorithms):
        return ordered_styles(labels)
    return dict(zip(labels, named_styles(algorithms).values(), strict=True))


def write_figure(figure: Figure, csv: Path, out: Path, axis: str = "seconds") -> list[Path]:
    """Draw a figure's numbers as PDF and PNG into a folder. Returns what was written."""
    panels = load_panels(figure, csv, AXES[axis])
    return write_figures(out, lambda: {figure.name: _drawing(panels)})


def _drawing(panels: Sequence[DrawnPanel]) -> matplotlib.figure.Figure:
    """Panels with the same lines share a legend; others have their own."""
    alike = len({tuple(drawn.styles) for drawn in panels}) == 1
    groups = [list(panels)] if alike else [[drawn] for drawn in panels]
    columns = sum(len(drawn.parts) for drawn in panels)
    drawing = new_figure(HEIGHT_IN, PAGE_IN * max(columns, 2) / MOST_AXES)
    letters = iter("abcdefgh")
    for place, group in zip(drawing.subfigures(1, len(groups), squeeze=False)[0], groups, strict=True):
        parts = [(drawn.panel.title, part) for drawn in group for part in drawn.parts]
        row = list(place.subplots(1, len(parts), squeeze=False)[0])
        for axes, (title, part) in zip(row, parts, strict=True):
            draw_curves(axes, part)
            axes.set_ylabel(METRICS[part.metric].replace(" ", "\n", 1), linespacing=1.05)
            name_panel(axes, f"({next(letters)}) {title}", x=-0.2, pad=5)
        shown = labelled(row[-1:])
        room = LETTERS_AN_AXES * len(parts) // (max(map(len, shown)) + 7)  # 7: the line, and what is around it
        legend_above(place, max(1, min(len(shown), room)), shown, columnspacing=1.2, handletextpad=0.5)
    return drawing


def write_claims_latex(folder: Path, out: Path, beside: Path | None = None) -> Path:
    """``claims.tex``: the ledger as a table for a paper; or two."""
    ledgers = open_ledgers(folder, beside)
    out.mkdir(parents=True, exist_ok=True)
    about = in_latex(" ".join([*summary(ledgers), meaning(ledgers).replace("*", "")]))
    write_text(out / "claims.tex", f"% {about}\n{as_latex(claims_table(ledgers))}\n")
    return out / "claims.tex"


def write_page(
    figures: Sequence[Figure],
    out: Path,
    command: str = "perfeds2 reproduce all",
    ledgers: Sequence[Ledger] | None = None,
    axis: str = "seconds",
) -> Path:
    """Write ``reproduction.html`` of the figures whose numbers are in a folder. ``command`` is what made them.

    ``ledgers`` is the folder's own unless it is to stand beside another.
    """
    path = out / "reproduction.html"
    write_text(path, _page(figures, out, command, ledgers or open_ledgers(out), AXES[axis]))
    return path


def write_beside(folder: Path, beside: Path, out: Path, axis: str = "seconds", *, paper: bool = False) -> list[Path]:
    """Two reproductions on one page: both ledgers side by side, every figure of the one above the other's. Returns what was written."""
    ledgers, figures = open_ledgers(folder, beside), list(FIGURES.values())
    out.mkdir(parents=True, exist_ok=True)
    command = shlex.join(["perfeds2", "report", str(folder), str(beside), "--out", str(out)])
    write_text(out / "report.html", _page(figures, folder, command, ledgers, AXES[axis], beside))
    return [out / "report.html", *([write_claims_latex(folder, out, beside)] if paper else [])]


def _page(
    figures: Sequence[Figure],
    out: Path,
    command: str,
    ledgers: Sequence[Ledger],
    axis: Axis | None = None,
    beside: Path | None = None,
) -> str:
    """The whole page: the rule, the ledger, the figures, the commands. ``beside``: another folder whose figures are shown, too."""
    found = [(figure, out / f"{figure.name}.csv") for figure in figures]
    drawn = [(figure, load_panels(figure, csv, axis)) for figure, csv in found if csv.exists()]
    others = {
        figure.name: load_panels(figure, csv, axis)
        for figure in figures
        if beside is not None and (csv := beside / f"{figure.name}.csv").exists()
    }
    seeds = sorted({panel.seeds for _, panels in drawn for panel in panels})
    changes = changes_of(out)
    facts = [
        "Section VI again",
        f"{len(drawn)} figure{'s' if len(drawn) != 1 else ''}",
        f"{listed([str(number) for number in seeds])} seed{'' if seeds == [1] else 's'}",
        *([f"instead of the paper's: {changes}"] if changes else []),
        f"perfeds2 {__version__}",
    ]
    claims = scrolling(as_html(page_table(ledgers), kind="ledger"), "Claims")
    judgement = [section("Does what Section VI says hold?", claims, hint=_emphasised(meaning(ledgers)))]
    for table in best_tables(ledgers):
        judgement.append(section(table.title or "", scrolling(as_html(table), "Best FedAvg")))
    shown, lines = (
        [],
        0,
    )  # every line of the page has its own number, so that a figure's legend speaks for that figure alone
    for figure, own in drawn:
        for place, panels in enumerate(filter(None, (own, others.get(figure.name)))):
            shown.append(_figure_section(figure, panels, lines, ledgers[place].label if others else "", place))
            lines += len({label for panel in panels for label in panel.styles})
    missing = not_run(ledgers[0].entries)
    sections = [*shown, *judgement] if missing else [*judgement, *shown]  # of a few figures, these first
    hint = (
        ""
        if others
        else (
            "It gives the same numbers again. Interrupted, the same command goes on; what is done is not done twice. The second "
            "line prints the ledger of what is there. Beside this page: every figure as CSV, PDF and PNG, and the ledger as "
            "claims.csv and claims.json."
        )
    )
    commands = verbatim(command if others else f"{command}\nperfeds2 reproduce --claims --out {out}")
    sections.append(section("Run it again", commands, hint=hint))
    first = ledgers[0].entries
    more = [strictly(first)] if len(ledgers) == 1 else summary(ledgers)
    texts = [f"<p>{escape(line)}</p>" for line in more if line]
    rules = [f"<p>{_emphasised(paragraph)}</p>" for paragraph in rule().split("\n\n")]
    if not missing:
        return document(facts, counts(first), texts + rules, sections)
    how = section("How claims are judged", *rules, note(missing))
    names = [figure.name for figure, _ in drawn]
    return document(facts, lead(first, names), texts, [*sections[:-1], how, sections[-1]])


def _emphasised(text: str) -> str:
    """Escaped, with what stands between asterisks in italics."""
    parts = escape(text).split("*")
    return "".join(f"<em>{part}</em>" if number % 2 else part for number, part in enumerate(parts))


def _figure_section(
    figure: Figure, panels: Sequence[DrawnPanel], first: int, label: str = "", folder: int = 0
) -> list[Part]:
    """A chart per panel and metric below a legend; its lines are numbered from ``first``. ``label``: which folder's it is."""
    name = f"{figure.name}-{folder}" if folder else figure.name
    styles = {label: style for panel in panels for label, style in panel.styles.items()}
    numbers = {label: number for number, label in enumerate(styles, first)}
    charts = [
        curve_chart(
            part,
            numbers,
            height_px=290,
            name=f"{name}-{place}-{part.metric.replace('_', '-')}",
            title=f"{drawn.panel.title}: {METRICS[part.metric].lower()}",
        )
        for place, drawn in enumerate(panels)
        for part in sorted(drawn.parts, key=lambda part: not part.is_accuracy)
        if part.curves
    ]
    there, seeds = {drawn.panel.title for drawn in panels}, max(drawn.seeds for drawn in panels)
    missing = [panel.title for panel in figure.panels if panel.title not in there]
    left_out = note(f"Not run: {listed(missing)}.") if missing else ""
    parts = [part for drawn in panels for part in drawn.parts]
    said = [f"{drawn.panel.title}: {line}" for drawn in panels for line in said_to_coincide(drawn.parts)]
    buttons = legend(styles, f"Lines of {figure.name}", first, bands=has_bands(parts), said=said)
    hint = f"{over_seeds(seeds, seeds >= INTERVAL_SEEDS)} Click a name to hide it."
    title = f"{figure.name} ({label})" if label else figure.name
    return section(title, left_out, buttons, charts, name=name, hint=hint, caption=figure.caption)
