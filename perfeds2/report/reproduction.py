"""Draw the reproduced figures for a paper, and with the ledger on one HTML page.

For a paper the layout follows the original: one row over both columns, training loss beside test accuracy, over
simulated time.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path

import matplotlib.figure
import pandas as pd

from perfeds2 import __version__
from perfeds2.chart import Chart, LineStyle
from perfeds2.errors import InputError
from perfeds2.files import read_table, write_text
from perfeds2.learning.metrics import ACCURACY as ACCURACY_SCORE
from perfeds2.paper.figures import FIGURES, TARGET, command_of
from perfeds2.report.curves import curve_chart, over_seeds
from perfeds2.report.document import Part, coincidences, document, note, paragraph, section, verbatim, with_legend
from perfeds2.report.ledger import (
    MEANING,
    Ledger,
    best_table,
    changes_of,
    lead,
    ledger_table,
    open_ledgers,
    rule,
    strictly,
    summary,
)
from perfeds2.report.on_paper import PAGE_IN, figure_of, write_figures
from perfeds2.report.read import along
from perfeds2.report.style import ACCURACY, named_styles, ordered_styles
from perfeds2.report.tables import counted, listed, write_latex
from perfeds2.runs.costs import COSTS, SECONDS, Cost
from perfeds2.runs.statistics import INTERVAL_SEEDS
from perfeds2.studies.figure import Figure, Panel

MOST_AXES = 4  # in one row
LOSS = "train_loss_personal"


@dataclass(frozen=True)
class DrawnPanel:
    """A panel and the charts of its numbers."""

    panel: Panel
    charts: tuple[Chart, ...]  # one per metric
    seeds: int


def load_panels(figure: Figure, csv: Path, cost: Cost = SECONDS) -> list[DrawnPanel]:
    """Read the panels that have numbers in a figure's CSV: loss and accuracy, or only accuracy if a row lacks space."""
    metrics = (LOSS, ACCURACY) if 2 * len(figure.panels) <= MOST_AXES else (ACCURACY,)
    try:
        table = read_table(csv, converters={"panel": str, "line": str})
        drawn = []
        for place, panel in enumerate(figure.panels):
            rows = pd.DataFrame(table[table["panel"] == panel.title])
            if len(rows):
                rows = along(rows, cost, csv.name)
                charts = tuple(_chart(panel, rows, metric, cost, figure.name, place) for metric in metrics)
                drawn.append(DrawnPanel(panel, charts, len(set(rows["seed"]))))
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{csv} holds no curves ({error}); run perfeds2 reproduce {figure.name} again.") from None
    if not drawn:
        raise InputError(f"{csv} has no panel of {figure.name}; run perfeds2 reproduce {figure.name} again.")
    return drawn


def _chart(panel: Panel, rows: pd.DataFrame, metric: str, cost: Cost, name: str, place: int) -> Chart:
    target = TARGET.get(panel.task) if metric == ACCURACY else None
    until = float(rows["time_s"].to_numpy().max()) if cost is SECONDS else None
    made = curve_chart(
        rows.assign(algorithm=rows["line"]),
        metric,
        line_styles(panel),
        ACCURACY_SCORE,
        target=target,
        until=until,
        cost=cost,
    )
    y = replace(made.y, label=made.title)
    return replace(made, name=f"{name}-{place}-{made.name}", title=panel.title, y=y, group=name, height_px=290)


def line_styles(panel: Panel) -> dict[str, LineStyle]:
    """Return a panel's line styles: the usual ones for algorithms, an ordered scale for values of one setting."""
    labels, algorithms = [line.label for line in panel.lines], [line.algorithm for line in panel.lines]
    if len(set(algorithms)) < len(algorithms):
        return ordered_styles(labels)
    return dict(zip(labels, named_styles(algorithms).values(), strict=True))


# ---- for a paper


def write_figure(figure: Figure, csv: Path, out: Path, axis: str = "seconds") -> list[Path]:
    """Draw a figure's numbers as PDF and PNG. Return the paths."""
    panels = load_panels(figure, csv, COSTS[axis])
    return write_figures(out, {figure.name: [chart for drawn in panels for chart in drawn.charts]}, _drawing)


def _drawing(charts: Sequence[Chart]) -> matplotlib.figure.Figure:
    """Draw charts in a row below one legend."""
    shown = [
        replace(chart, title=f"({letter}) {chart.title}", y=replace(chart.y, label=chart.y.label.replace(" ", "\n", 1)))
        for letter, chart in zip("abcdefgh", charts, strict=False)
    ]
    return figure_of(shown, len(shown), PAGE_IN * max(len(shown), 2) / MOST_AXES)


def write_claims(ledgers: Sequence[Ledger], out: Path) -> Path:
    """Write ``claims.tex``: one or two ledgers as a LaTeX table."""
    return write_latex(
        out / "claims.tex", " ".join([*summary(ledgers), MEANING.replace("*", "")]), ledger_table(ledgers)
    )


# ---- the page


def write_page(
    figures: Sequence[Figure],
    out: Path,
    command: str = "perfeds2 reproduce all",
    ledgers: Sequence[Ledger] | None = None,
    axis: str = "seconds",
    to: Path | None = None,
) -> Path:
    """Write ``reproduction.html`` (to ``to``) with the figures whose numbers are in ``out``. ``command`` made them.

    ``ledgers`` defaults to the folder's own; pass two to show another folder's beside it.
    """
    path = (to or out) / "reproduction.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    again = f"{command}\nperfeds2 reproduce --claims --out {out}"
    write_text(path, _page(figures, out, again, ledgers or open_ledgers(out), COSTS[axis]))
    return path


def write_reproduction(
    folder: Path, axis: str = "seconds", paper: Path | None = None, out: Path | None = None
) -> list[Path]:
    """Draw a reproduction again (to ``out``); with ``paper``, also write figures and claims there. Return the paths."""
    figures, ledgers = list(FIGURES.values()), open_ledgers(folder)
    written = [write_page(figures, folder, command_of(folder), ledgers, axis, out)]
    if paper is None:
        return written
    for figure in figures:
        if (csv := folder / f"{figure.name}.csv").exists():
            written += write_figure(figure, csv, paper, axis)
    return [*written, write_claims(ledgers, paper)]


def _page(figures: Sequence[Figure], folder: Path, command: str, ledgers: Sequence[Ledger], cost: Cost) -> str:
    """Return the whole page: the ledger, the figures of the folder, the rule and the command."""
    drawn = [each for each in figures if (folder / f"{each.name}.csv").exists()]
    shown = [_figure_section(figure, folder / f"{figure.name}.csv", cost) for figure in drawn]
    names = [figure.name for figure in drawn]
    changes = changes_of(folder)
    facts = ["Section VI again", counted(len(names), "figure"), f"perfeds2 {__version__}"]
    facts += [f"instead of the paper's: {changes}"] if changes else []
    best = best_table(ledgers)
    judgement = [
        section("Do the claims of Section VI hold?", ledger_table(ledgers), hint=_emphasised(MEANING)),
        section(best.title or "", replace(best, title=None)) if best.rows else [],
    ]
    first = ledgers[0].entries
    hint = "The same command resumes after an interruption. The ledger is also in claims.csv and claims.json."
    last = section("Run it again", verbatim(command), hint=hint)
    texts = [paragraph(line) for line in ([strictly(first)] if len(ledgers) == 1 else summary(ledgers)) if line]
    missing = sum(entry.verdict == "not run" for entry in first)
    said = note(f"{missing} of {len(first)} claims need figures that were not run.") if missing else ""
    how = section("How claims are judged", *(f"<p>{_emphasised(text)}</p>" for text in rule().split("\n\n")), said)
    sections = [*shown, *judgement] if missing else [*judgement, *shown]  # put the figures first if only some were run
    return document(facts, lead(first, names), texts, [*sections, how, last])


def _emphasised(text: str) -> str:
    """Escape text and turn *asterisks* into italics."""
    parts = escape(text).split("*")
    return "".join(f"<em>{part}</em>" if number % 2 else part for number, part in enumerate(parts))


def _figure_section(figure: Figure, csv: Path, cost: Cost) -> list[Part]:
    """Return a chart per panel and metric below a legend."""
    panels = load_panels(figure, csv, cost)
    charts = [chart for drawn in panels for chart in drawn.charts[::-1] if chart.items]
    missing = [panel.title for panel in figure.panels if panel not in [drawn.panel for drawn in panels]]
    left_out = note(f"Not run: {listed(missing)}.") if missing else ""
    said = [
        f"{drawn.panel.title}: {line}"
        for drawn in panels
        for line in coincidences([replace(chart, title=chart.y.label) for chart in drawn.charts])
    ]
    seeds = max(drawn.seeds for drawn in panels)
    hint = f"{over_seeds(seeds, seeds >= INTERVAL_SEEDS)} Click a name to hide it."
    buttons = with_legend(charts, f"Lines of {figure.name}", said)
    return section(figure.name, left_out, *buttons, name=figure.name, hint=hint, caption=figure.caption)
