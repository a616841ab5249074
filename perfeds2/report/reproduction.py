"""How do the reproduced figures look, on paper and with the ledger on one page?

On paper as the paper lays them out: one row over both columns, training loss beside test accuracy, over simulated time.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path

import matplotlib.figure
import pandas as pd

from perfeds2 import __version__
from perfeds2.chart import Chart, LineStyle
from perfeds2.errors import InputError
from perfeds2.files import write_text
from perfeds2.learning.metrics import ACCURACY as ACCURACY_SCORE
from perfeds2.paper.figures import FIGURES, TARGET, command_of
from perfeds2.report.curves import curve_chart, over_seeds
from perfeds2.report.document import Part, coincidences, document, note, paragraph, section, verbatim, with_legend
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
from perfeds2.report.on_paper import PAGE_IN, draw_grid, write_figures
from perfeds2.report.read import AXES, SECONDS, Cost, along
from perfeds2.report.style import ACCURACY, named_styles, ordered_styles
from perfeds2.report.tables import counted, listed, write_latex
from perfeds2.runs.statistics import INTERVAL_SEEDS
from perfeds2.studies.figure import Figure, Panel

HEIGHT_IN = 1.95
MOST_AXES = 4  # in one row
LOSS = "train_loss_personal"


@dataclass(frozen=True)
class DrawnPanel:
    """A panel with what its CSV says."""

    panel: Panel
    charts: tuple[Chart, ...]  # one per metric
    seeds: int


def load_panels(figure: Figure, csv: Path, cost: Cost = SECONDS, name: str = "") -> list[DrawnPanel]:
    """Read the panels that a figure's CSV has numbers for: loss and accuracy, or accuracy alone if a row has no room.

    ``name`` sets the charts apart from those of another folder.
    """
    metrics = (LOSS, ACCURACY) if 2 * len(figure.panels) <= MOST_AXES else (ACCURACY,)
    name = name or figure.name
    try:
        table = pd.read_csv(csv, converters={"panel": str, "line": str})
        drawn = []
        for place, panel in enumerate(figure.panels):
            rows = pd.DataFrame(table[table["panel"] == panel.title])
            if len(rows):
                rows = along(rows, cost, csv.name)
                charts = tuple(_chart(panel, rows, metric, cost, f"{name}-{place}", name) for metric in metrics)
                drawn.append(DrawnPanel(panel, charts, len(set(rows["seed"]))))
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{csv} holds no curves ({error}); run perfeds2 reproduce {figure.name} again.") from None
    if not drawn:
        raise InputError(f"{csv} has no panel of {figure.name}; run perfeds2 reproduce {figure.name} again.")
    return drawn


def _chart(panel: Panel, rows: pd.DataFrame, metric: str, cost: Cost, name: str, group: str) -> Chart:
    target = TARGET.get(panel.task) if metric == ACCURACY else None
    until = float(rows["time_s"].to_numpy().max()) if cost is SECONDS else None
    made = curve_chart(
        rows, metric, line_styles(panel), ACCURACY_SCORE, by="line", target=target, until=until, cost=cost
    )
    y = replace(made.y, label=made.title)
    return replace(made, name=f"{name}-{made.name}", title=panel.title, y=y, group=group, height_px=290)


def line_styles(panel: Panel) -> dict[str, LineStyle]:
    """Return the styles of a panel's lines: algorithms look as everywhere, values of one setting follow an ordered scale."""
    labels, algorithms = [line.label for line in panel.lines], [line.algorithm for line in panel.lines]
    if len(set(algorithms)) < len(algorithms):
        return ordered_styles(labels)
    return dict(zip(labels, named_styles(algorithms).values(), strict=True))


# ---- on paper


def write_figure(figure: Figure, csv: Path, out: Path, axis: str = "seconds") -> list[Path]:
    """Draw a figure's numbers as PDF and PNG into a folder. Returns what was written."""
    panels = load_panels(figure, csv, AXES[axis])
    return write_figures(out, lambda: {figure.name: _drawing(panels)})


def _drawing(panels: Sequence[DrawnPanel]) -> matplotlib.figure.Figure:
    """Draw panels in a row. Those with the same lines share a legend, others have their own."""
    letters = iter("abcdefgh")
    rows = [
        [
            replace(
                chart,
                title=f"({next(letters)}) {chart.title}",
                y=replace(chart.y, label=chart.y.label.replace(" ", "\n", 1)),
            )
            for chart in drawn.charts
        ]
        for drawn in panels
    ]
    if len({tuple(line.label for line in drawn.panel.lines) for drawn in panels}) == 1:
        rows = [[chart for row in rows for chart in row]]
    columns = sum(map(len, rows))
    width_in = PAGE_IN * max(columns, 2) / MOST_AXES
    made = matplotlib.figure.Figure(figsize=(width_in, HEIGHT_IN), layout="constrained")
    for place, charts in zip(made.subfigures(1, len(rows), squeeze=False)[0], rows, strict=True):
        draw_grid(place, charts, max(len(charts), 2), width_in * len(charts) / columns)
    return made


def write_claims_latex(folder: Path, out: Path, beside: Path | None = None) -> Path:
    """Write ``claims.tex``: one ledger or two as a table for a paper."""
    ledgers = open_ledgers(folder, beside)
    about = " ".join([*summary(ledgers), meaning(ledgers).replace("*", "")])
    return write_latex(out / "claims.tex", about, claims_table(ledgers))


# ---- the page


def write_page(
    figures: Sequence[Figure],
    out: Path,
    command: str = "perfeds2 reproduce all",
    ledgers: Sequence[Ledger] | None = None,
    axis: str = "seconds",
) -> Path:
    """Write ``reproduction.html`` with the figures whose numbers are in a folder. ``command`` is what made them.

    ``ledgers`` are the folder's own unless it stands beside another.
    """
    path = out / "reproduction.html"
    write_text(path, _page(figures, out, command, ledgers or open_ledgers(out), AXES[axis]))
    return path


def write_reproduction(folder: Path, axis: str = "seconds", paper: Path | None = None) -> list[Path]:
    """Draw a reproduction's folder again; with ``paper``, every figure and the claims there. Returns what was written."""
    figures = list(FIGURES.values())
    written = [write_page(figures, folder, command_of(folder), axis=axis)]
    if paper is None:
        return written
    for figure in figures:
        if (csv := folder / f"{figure.name}.csv").exists():
            written += write_figure(figure, csv, paper, axis)
    return [*written, write_claims_latex(folder, paper)]


def write_beside(folder: Path, beside: Path, out: Path, axis: str = "seconds", *, paper: bool = False) -> list[Path]:
    """Show two reproductions on one page: both ledgers side by side and the figures of both. Returns what was written."""
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
    cost: Cost,
    beside: Path | None = None,
) -> str:
    """Return the whole page: the rule, the ledger, the figures, the commands. ``beside``: another folder to show, too."""
    shown: list[list[Part]] = []
    names, seeds = list[str](), set[int]()
    for figure in (each for each in figures if (out / f"{each.name}.csv").exists()):
        names.append(figure.name)
        for place, folder in enumerate(filter(None, (out, beside))):
            csv = folder / f"{figure.name}.csv"
            if csv.exists():
                name = f"{figure.name}-{place}" if place else figure.name
                panels = load_panels(figure, csv, cost, name)
                seeds |= set() if place else {drawn.seeds for drawn in panels}
                shown.append(_figure_section(figure, panels, name, ledgers[place].label if beside else ""))
    changes = changes_of(out)
    facts = [
        "Section VI again",
        counted(len(names), "figure"),
        f"{listed([str(number) for number in sorted(seeds)] or ['no'])} seed{'' if seeds == {1} else 's'}",
        *([f"instead of the paper's: {changes}"] if changes else []),
        f"perfeds2 {__version__}",
    ]
    judgement = [section("Does what Section VI says hold?", page_table(ledgers), hint=_emphasised(meaning(ledgers)))]
    judgement += [section(table.title or "", replace(table, title=None)) for table in best_tables(ledgers)]
    first, again, hint = ledgers[0].entries, command, ""
    if beside is None:
        again = f"{command}\nperfeds2 reproduce --claims --out {out}"
        hint = (
            "It gives the same numbers again. Interrupted, the same command goes on; what is done is not done twice. The second "
            "line prints the ledger of what is there. Beside this page: every figure as CSV, PDF and PNG, and the ledger as "
            "claims.csv and claims.json."
        )
    last = section("Run it again", verbatim(again), hint=hint)
    texts = [paragraph(line) for line in ([strictly(first)] if len(ledgers) == 1 else summary(ledgers)) if line]
    rules = [f"<p>{_emphasised(text)}</p>" for text in rule().split("\n\n")]
    missing = not_run(first)
    if not missing:
        return document(facts, counts(first), texts + rules, [*judgement, *shown, last])
    how = section("How claims are judged", *rules, note(missing))
    return document(facts, lead(first, names), texts, [*shown, *judgement, how, last])  # a few figures come first


def _emphasised(text: str) -> str:
    """Escape text, with what stands between asterisks in italics."""
    parts = escape(text).split("*")
    return "".join(f"<em>{part}</em>" if number % 2 else part for number, part in enumerate(parts))


def _figure_section(figure: Figure, panels: Sequence[DrawnPanel], name: str, label: str) -> list[Part]:
    """Return a chart per panel and metric below a legend. ``label``: which folder's it is."""
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
    title = f"{figure.name} ({label})" if label else figure.name
    buttons = with_legend(charts, f"Lines of {figure.name}", said)
    return section(title, left_out, *buttons, name=name, hint=hint, caption=figure.caption)
