"""Show a study of the user's own, from its tables alone: its folder's function is never called."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from perfeds2.chart import Chart, ChartAxis, Series
from perfeds2.files import Json, read_json
from perfeds2.report.document import document, section, verbatim, with_legend, write_html
from perfeds2.report.on_paper import write_figures
from perfeds2.report.read import along, read_csv
from perfeds2.report.style import ACCURACY, ordered_styles
from perfeds2.report.tables import Column, Table, counted, for_terminal, text_column, write_latex
from perfeds2.report.terminal import open_console
from perfeds2.runs.costs import COSTS, Cost
from perfeds2.spec.settings import value_text

MOST_LINES = 12  # as many as a reader can tell apart
METRICS = "study_metrics.csv"


@dataclass(frozen=True)
class OwnFolder:
    """The contents of a study's folder."""

    folder: Path
    about: Json  # study.json
    evaluations: pd.DataFrame | None


def load_study(folder: Path) -> OwnFolder:
    evaluations = read_csv(folder / METRICS, "label", "algorithm")
    return OwnFolder(folder, read_json(folder / "study.json"), evaluations)


def write_study(folder: Path, axis: str = "seconds", paper: Path | None = None, out: Path | None = None) -> list[Path]:
    """Write a study's ``report.html`` (to ``out``); with ``paper``, also write its figure and table there. Return the paths."""
    study = load_study(folder)
    charts = curves(study, COSTS[axis])
    written = [write_html(out or folder, _page(study, charts))]
    if paper is not None:
        about = f"perfeds2 {study.about['perfeds2']} study. {study.about['question']}"
        written += [
            *write_figures(paper, {"study": charts}),
            write_latex(paper / "study.tex", about, rows_table(study)),
        ]
    return written


def print_study(folder: Path) -> None:
    """Print the rows of a study."""
    open_console().print(for_terminal(rows_table(load_study(folder))))


def rows_table(study: OwnFolder) -> Table:
    """Return the rows as the study made them."""
    rows: list[Mapping[str, object]] = study.about["rows"]
    heads = list(dict.fromkeys(key for row in rows for key in row))
    texts = {head for head in heads if any(isinstance(row.get(head), str) for row in rows)}
    columns = [text_column(head) if head in texts else Column(head) for head in heads]
    return Table(columns, [[_shown(row.get(head)) for head in heads] for row in rows])


def _shown(value: object) -> str:
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else value_text(value)


def curves(study: OwnFolder, cost: Cost) -> list[Chart]:
    """Draw the mean accuracy over the seeds of each label and algorithm; nothing if there are too many."""
    if study.evaluations is None or not len(study.evaluations):
        return []
    rows = along(study.evaluations, cost, METRICS)
    rows = rows.assign(line=rows["label"] + ", " + rows["algorithm"])
    names = list(dict.fromkeys(rows["line"]))
    if len(names) > MOST_LINES:
        return []
    styles, items = ordered_styles(names), list[Series]()
    for name in names:
        own = rows[rows["line"] == name]
        means = own.groupby(own.groupby("seed").cumcount())[["time_s", ACCURACY]].mean()
        x, y = np.asarray(means, float).T
        items.append(Series(name, x, y, styles[name]))
    return [Chart("study", "", items, ChartAxis(cost.label), ChartAxis("Personalised test accuracy"))]


def _page(study: OwnFolder, charts: list[Chart]) -> str:
    about = study.about
    seeds = counted(len(about["seeds"]), "seed")
    facts = ["study", about["study"], about["task"], f"{about['ues']:,} UEs", seeds, f"perfeds2 {about['perfeds2']}"]
    again = verbatim(f"perfeds2 study --resume {study.folder.resolve().name}")
    sections = [
        section("In numbers", rows_table(study), hint="The rows that the study made, also in study.csv."),
        section("Curves", *with_legend(charts, "Lines shown"), hint="Means over seeds.") if charts else [],
        section("Run it again", again, hint="It trains what is missing and redraws this page."),
    ]
    return document(facts, about["question"], [], sections)
