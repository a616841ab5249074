"""How do several folders become one page, and figures for a paper?"""

import shlex
from collections.abc import Sequence
from html import escape
from pathlib import Path

from perfeds2.files import write_text
from perfeds2.report.answer import answer, best_at_the_end, first_at_target
from perfeds2.report.document import Part, document, legend, note, scrolling, section, verbatim
from perfeds2.report.page import activity_part, shares_part, table_part, ues_part
from perfeds2.report.paper import write_run_figures
from perfeds2.report.results import energy_line
from perfeds2.report.run import Run, over
from perfeds2.report.series import curve_panels, groups, has_bands, said_to_coincide
from perfeds2.report.tables import Cell, Column, Span, Table, as_html, as_latex, capitalised, in_latex, listed
from perfeds2.report.together import (
    Difference,
    Member,
    cautions,
    differences,
    differing,
    have_one_clock,
    load_members,
    together,
)
from perfeds2.report.traces import curve_chart
from perfeds2.runs.statistics import INTERVAL_SEEDS

MOST_LINES = 40  # of a chart


def write_together(folders: Sequence[Path], out: Path, axis: str = "seconds", *, paper: bool = False) -> list[Path]:
    """Compare folders: ``report.html`` in another folder, and with ``paper`` figures and tables. Returns what was written."""
    members = load_members(folders)
    run, found = together(members), differences(members)
    out.mkdir(parents=True, exist_ok=True)
    command = shlex.join(["perfeds2", "report", *map(str, folders), "--out", str(out), *(["--x", axis] if axis != "seconds" else [])])  # fmt: skip
    write_text(out / "report.html", page(members, run, found, command, axis))
    written = [out / "report.html"]
    if paper:
        written += write_run_figures(run, out, axis)
        if found:
            about = in_latex(f"{_facts(members, run)[0]}. {meaning(members, run)}")
            write_text(out / "differences.tex", f"% {about}\n{as_latex(differences_table(run, found))}\n")
            written.append(out / "differences.tex")
    return written


def page(members: Sequence[Member], run: Run, found: Sequence[Difference], command: str, axis: str = "seconds") -> str:
    """The whole page."""
    headline, paragraphs = _answer(members, run)
    warned = [f'<p class="caution">{escape(said)}</p>' for said in cautions(members)]
    about = [*warned, *(f"<p>{escape(said)}</p>" for said in paragraphs)]
    timed, notes = groups(run), [*run.notes, *filter(None, [energy_line(run)])]
    sections = [
        _curves(over(run, axis)),
        table_part(run),
        _differences(members, run, found),
        _settings(members),
        activity_part(run, timed),
        shares_part(run, timed),
        ues_part(run),
        section("Good to know", *map(note, notes)) if notes else [],
        section("Draw it again", verbatim(command)),
    ]
    return document(_facts(members, run), headline, about, sections)


def _facts(members: Sequence[Member], run: Run) -> list[str]:
    folders = list(dict.fromkeys(member.folder for member in members))
    facts = [f"{listed(folders)} together", run.task or "several tasks", f"perfeds2 {run.version}"]
    return [*facts[:-1], *facts[-1:] * bool(run.version)]


def _answer(members: Sequence[Member], run: Run) -> tuple[str, list[str]]:
    """As of one run, as far as that is fair: no time where clocks differ, nobody the best where tasks or seeds do."""
    if not run.is_trained or not any(member.run.is_trained for member in members):
        return answer(run)
    if len({member.run.task for member in members}) > 1:
        return f"{len(members)} runs side by side, of different tasks.", []
    if len({member.run.seeds for member in members}) > 1:
        return f"{len(members)} runs side by side, with different seeds.", []
    said = [*(first_at_target(run) if have_one_clock(members) else []), *best_at_the_end(run)]
    return said[0], [" ".join(said[1:])] if said[1:] else []


def _curves(run: Run) -> list[Part]:
    numbers = {algorithm.name: number for number, algorithm in enumerate(run.algorithms)}
    panels = curve_panels(run)
    if not panels:
        return []
    if len(numbers) > MOST_LINES:
        return section(
            "Curves", note(f"{len(numbers)} lines cannot be told apart; give fewer folders, or see the table.")
        )
    charts = [curve_chart(panel, numbers) for panel in panels]
    buttons = legend(run.styles, "Lines shown", bands=has_bands(panels), said=said_to_coincide(panels))
    hint = (
        "Means over each one's seeds, with the 95 % interval where there are three or more. Colour is the algorithm, dash and "
        "mark are the folder. Click a name to hide it, double-click to see it alone."
    )
    over_what = run.clock if run.axis is None else run.axis.words
    return section(f"{capitalised(run.score.word)} and loss over {over_what}", buttons, charts, hint=hint)


# ---- seed by seed


def _differences(members: Sequence[Member], run: Run, found: Sequence[Difference]) -> list[Part]:
    if not run.is_trained:
        return []
    title = "Seed by seed"
    if not found:
        return section(
            title, note("No algorithm is in the first folder and in another, so nothing is compared seed by seed.")
        )
    table = scrolling(as_html(differences_table(run, found), kind="plain"), "Differences")
    return section(title, table, hint=escape(meaning(members, run)))


def differences_table(run: Run, found: Sequence[Difference]) -> Table:
    """A row for every two lines: the later minus the earlier."""
    score = run.score
    points = " (points)" if score.is_share else ""
    has_seconds = any(each.seconds is not None for each in found)
    heads = [f"Test {score.word}, personal{points}", "p", f"Test {score.word}, global{points}"]
    heads += (
        [f"Seconds to {score.level(run.target_accuracy)}"] if has_seconds and run.target_accuracy is not None else []
    )
    rows: list[list[Cell]] = []
    for each in found:
        p = "–" if each.p is None else "< 0.001" if each.p < 0.001 else f"{each.p:.3f}"
        cells: list[Cell] = [_signed(each.accuracy, score.scale, score.form), p, _signed(each.as_it_is, score.scale, score.form)]  # fmt: skip
        if len(heads) == 4:
            met = 0 if each.seconds is None else len(each.seconds["values"])
            some = [Span(f" (in {met})", "half")] if met < each.seeds else []
            cells.append([*_signed(each.seconds, 1, ".1f"), *some])
        rows.append([each.name, *cells, str(each.seeds)])
    return Table([Column("Difference", "left", wraps=True), *map(Column, heads), Column("Seeds of both")], rows)


def _signed(found: object, scale: int, form: str) -> list[Span]:
    """A mean difference with its sign, ± half its interval; in bold if that leaves out 0."""
    if not isinstance(found, dict) or found["mean"] is None:
        return [Span("–")]
    mean, low, high = (None if found[key] is None else scale * found[key] for key in ("mean", "low", "high"))
    assert mean is not None
    text = f"{'−' if mean < 0 else '+'}{abs(mean):{form}}"
    if low is None or high is None:
        return [Span(text)]
    return [Span(text, "best" if low > 0 or high < 0 else ""), Span(f" ± {(high - low) / 2:{form}}", "half")]


def meaning(members: Sequence[Member], run: Run) -> str:
    """What the differences are."""
    same = have_one_clock(members)
    why = "In one seed both have the same cell, fading, data and first weights." if same else "Seeds pair the runs, though their cells or tasks differ."  # fmt: skip
    few = any(each.run.seeds and len(each.run.seeds) < INTERVAL_SEEDS for each in members)
    none = " Fewer than three common seeds give no interval." if few else ""
    times = " Seconds: over the seeds in which both met the target." if same and run.target_accuracy is not None else ""
    return (
        f"At the end, the later folder minus the first, over the seeds that both have: mean ± half of the 95 % interval. {why} "
        f"Bold: the interval leaves out 0. p: Student's paired test, adjusted by Holm's method for the table.{times}{none}"
    )


# ---- settings


def _settings(members: Sequence[Member]) -> list[Part]:
    unlike = differing(members)
    known = len({key for member in members for key in member.settings})
    if not unlike:
        return section("Settings that differ", note("None: every setting is the same.")) if known else []
    columns = [Column("Setting", "left", wraps=True), *(Column(member.label, "left", wraps=True) for member in members)]
    table = as_html(Table(columns, [[key, *values] for key, values in unlike.items()]), kind="plain")
    hint = f"{len(unlike)} of {known}; the others are the same in all."
    return section("Settings that differ", scrolling(table, "Settings that differ"), hint=hint)
