"""What do several plans, or several tunings, say beside each other?"""

import tomllib
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from perfeds2.files import write_text
from perfeds2.report.document import Part, document, scrolling, section, verbatim
from perfeds2.report.plan import load_plan
from perfeds2.report.tables import Cell, Column, Table, as_html, as_latex, in_latex, listed
from perfeds2.report.together import flat, labels_of
from perfeds2.report.tuning import best_table, facts
from perfeds2.studies.plan_data import Plan

if TYPE_CHECKING:  # it trains, so it needs JAX
    from perfeds2.studies.tune import Tuning


def write_plans(folders: Sequence[Path], out: Path, *, paper: bool = False) -> list[Path]:
    """A row per plan, and the settings they differ in. Returns what was written."""
    labels, plans = labels_of(folders), [load_plan(folder) for folder in folders]
    soonest = [(best.seconds, label) for label, plan in zip(labels, plans, strict=True) if (best := plan.best) and best.seconds is not None]  # fmt: skip
    known = len({(plan.task, plan.population, plan.radio, plan.target) for plan in plans}) == 1
    headline = f"{len(plans)} plans beside each other."
    if known and soonest:
        headline = f"The choice of {min(soonest)[1]} is the soonest, after {min(soonest)[0]:.3g} s in the median."
    careful = [] if known else ["Their tasks, cells, radios or targets differ, so their seconds are not comparable."]
    said = [f"{label}: {plan.sentence}" for label, plan in zip(labels, plans, strict=True)]
    about = [
        *(f'<p class="caution">{escape(each)}</p>' for each in careful),
        *(f"<p>{escape(each)}</p>" for each in said),
    ]
    commands = [section(f"Adopt {label}", verbatim(plan.command)) for label, plan in zip(labels, plans, strict=True) if plan.command]  # fmt: skip
    sections = [_table("The choices", _plans_table(labels, plans)), _settings(labels, folders, "spec.toml"), *commands]
    return _written(out, "plans", listed(labels), headline, about, sections, _plans_table(labels, plans), paper=paper)


def _plans_table(labels: Sequence[str], plans: Sequence[Plan]) -> Table:
    heads = ("Task", "UEs", "Target", "Seconds", "Kept", "Joules", "A", "S", "The rest")
    columns = [Column("Plan", "left", wraps=True), *(Column(head, "left" if head in ("Task", "The rest") else "right", wraps=head == "The rest") for head in heads)]  # fmt: skip
    rows: list[list[Cell]] = []
    for label, plan in zip(labels, plans, strict=True):
        best, target = plan.best, plan.target
        row: list[Cell] = [label, plan.task, str(plan.population), target.score.level(target.accuracy)]
        if best is None:
            rows.append([*row, "–", "–", "–", "–", "–", "nothing can be recommended"])
            continue
        numbers = ["–" if best.seconds is None else f"{best.seconds:.3g}", f"{best.kept} of {len(best.trials)}"]
        joules, rest = "–" if best.joules is None else f"{best.joules:.3g}", ", ".join(best.choice.details)
        rows.append([*row, *numbers, joules, str(best.quorum), best.choice.bound, rest])
    return Table(columns, rows)


def write_tunings(tunings: "Sequence[Tuning]", out: Path, *, paper: bool = False) -> list[Path]:
    """The settings that were found in each, and what was searched. Returns what was written."""
    labels, folders = labels_of([each.path for each in tunings]), [each.path for each in tunings]
    parts = [best_table(each, score_first=True) for each in tunings]
    heads = list(dict.fromkeys(column.head for part in parts for column in part.columns))
    rows: list[list[Cell]] = []
    for label, part in zip(labels, parts, strict=True):
        for row in part.rows:
            cells = dict(zip((column.head for column in part.columns), row, strict=True))
            rows.append([f"{cells[heads[0]]} ({label})", *(cells.get(head, "–") for head in heads[1:])])
    rows.sort(key=lambda row: str(row[0]).partition(" (")[0])
    table = Table([Column(heads[0], "left", wraps=True), *map(Column, heads[1:])], rows)
    tasks = {each.search.spec.task.name.label for each in tunings}
    alike = len(tasks) == 1 and len({(each.search.seeds, each.search.spec.run.horizon_s) for each in tunings}) == 1
    careful = [] if alike else ["Their tasks, seeds or horizons differ, so their accuracies are not of the same thing."]
    about = [f'<p class="caution">{escape(each)}</p>' for each in careful]
    about += [
        f"<p>{escape(label)}: {escape(', '.join(facts(each)))}.</p>"
        for label, each in zip(labels, tunings, strict=True)
    ]
    sections = [_table("Settings found", table), _settings(labels, folders, "tune.toml")]
    headline = f"{len(tunings)} tunings beside each other."
    return _written(out, "tunings", listed(labels), headline, about, sections, table, paper=paper)


# ---- shared


def _table(title: str, table: Table) -> list[Part]:
    return section(title, scrolling(as_html(table, kind="plain"), title))


def _settings(labels: Sequence[str], folders: Sequence[Path], file: str) -> list[Part]:
    """Where the folders' settings differ."""
    read = [flat(tomllib.loads((folder / file).read_text(encoding="utf-8"))) for folder in folders]
    keys = list(dict.fromkeys(key for each in read for key in each))
    values = {key: [each.get(key, "–") for each in read] for key in keys}
    rows = [[key, *each] for key, each in values.items() if len(set(each)) > 1]
    columns = [Column("Setting", "left", wraps=True), *(Column(label, "left", wraps=True) for label in labels)]
    return _table("Settings that differ", Table(columns, rows)) if rows else []


def _written(
    out: Path,
    kind: str,
    names: str,
    headline: str,
    about: Sequence[str],
    sections: Sequence[list[Part]],
    table: Table,
    *,
    paper: bool,
) -> list[Path]:
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / "report.html", document([kind, names], headline, about, sections))
    if not paper:
        return [out / "report.html"]
    write_text(out / "table.tex", f"% {in_latex(names)}\n{as_latex(table)}\n")
    return [out / "report.html", out / "table.tex"]
