"""How does a run's folder become one page that opens anywhere, offline?"""

from collections.abc import Sequence
from html import escape
from pathlib import Path

from perfeds2.files import write_text
from perfeds2.report.answer import answer, listed, seconds
from perfeds2.report.charts import SHOWN_UES, activity_chart, shares_chart, staleness_chart, ue_chart
from perfeds2.report.document import (
    document,
    header,
    legend,
    line_sample,
    placed,
    scrolling,
    section,
    side_by_side,
    verbatim,
)
from perfeds2.report.results import meaning, results_table
from perfeds2.report.run import Run, load_run
from perfeds2.report.series import curve_panels, groups, shares_rows, staleness_rows
from perfeds2.report.style import DASHES_PX
from perfeds2.report.tables import as_html
from perfeds2.report.traces import Chart, curve_chart
from perfeds2.runs.statistics import NO_INTERVAL


def write_report(folder: Path) -> Path:
    """Read a run's folder and write its ``report.html``. Returns the page's path."""
    path = folder / "report.html"
    write_text(path, page(load_run(folder)))
    return path


def page(run: Run) -> str:
    """The whole page. A panel that has no data is left out."""
    timed = groups(run)
    numbers = {algorithm.name: number for number, algorithm in enumerate(run.algorithms)}
    curves = [curve_chart(panel, numbers) for panel in curve_panels(run)]
    activity, ues = activity_chart(run, timed), ue_chart(run)
    stale, taken = staleness_rows(run, timed), shares_rows(run, timed)
    shared = [*([staleness_chart(stale)] if stale else []), *([shares_chart(taken)] if taken else [])]
    sections = [
        _header(run),
        _curves_section(run, curves) if curves else "",
        _table_section(run),
        _activity_section(run, activity) if activity else "",
        _shares_section(run, shared) if shared else "",
        _ue_section(run, ues) if ues else "",
        _spec_section(run),
    ]
    return document(answer(run)[0], sections, [chart for chart in (*curves, activity, *shared, ues) if chart])


def _header(run: Run) -> str:
    headline, paragraphs = answer(run)
    simulated = "" if run.clock == "time" else " simulated"
    length = f"{seconds(run.horizon_s)}{simulated}" if run.horizon_s is not None else f"{run.rounds or 0:,} rounds"
    seeds = f"seed{'s' if len(run.seeds) > 1 else ''} {listed([str(seed) for seed in run.seeds])}"
    facts = [run.task or run.command, f"{run.ues} UEs", length, seeds, f"perfeds2 {run.version}"]
    notes = (f'<p class="note">{escape(note)}</p>' for note in run.notes)
    return header(facts, headline, *(f"<p>{escape(paragraph)}</p>" for paragraph in paragraphs), *notes)


def over_seeds(seeds: int, has_intervals: bool) -> str:
    """What a curve is."""
    if seeds == 1:
        return "One seed."
    return f"The mean over {seeds} seeds{' with its 95 % interval.' if has_intervals else f'. {NO_INTERVAL}'}"


def _curves_section(run: Run, curves: Sequence[Chart]) -> str:
    own = ", dash-dotted your own" if any(each.mode not in DASHES_PX for each in run.algorithms) else ""
    hint = (
        f"{over_seeds(len(run.seeds), run.has_intervals)} Colour is the objective; solid is semi-synchronous, dashed "
        f"synchronous, dotted asynchronous{own}. Click a name to hide it, double-click to see it alone. A line ends where a "
        f"seed diverges."
    )
    shown = side_by_side(curves)
    return section(f"Loss and accuracy over {run.clock}", legend(run.styles, "Algorithms shown"), shown, hint=hint)


def _table_section(run: Run) -> str:
    samples = [line_sample(style) for style in run.styles.values()]
    return section("In numbers", scrolling(as_html(results_table(run), samples), "Results"), hint=meaning(run))


def _activity_section(run: Run, chart: Chart) -> str:
    hint = f"UEs 0 to {SHOWN_UES - 1} of {run.ues}" if run.ues > SHOWN_UES else f"All {run.ues} UEs"
    hint += f" at the start of the run with seed {run.seeds[0]}."
    if len(chart.choices) < len(run.algorithms):
        hint += " Algorithms named together have one timeline: when an update arrives does not depend on what is learned from it."
    choice = ""
    if len(chart.choices) > 1:
        options = "".join(
            f"<option{' selected' if number == chart.chosen else ''}>{escape(label)}</option>"
            for number, label in enumerate(chart.choices)
        )
        choice = f'<select data-chart="{chart.name}" aria-label="Algorithm shown">{options}</select>'
    return section(chart.title, choice, placed(chart), hint=hint)


def _shares_section(run: Run, charts: Sequence[Chart]) -> str:
    hint = (
        f"Staleness is how many rounds old the model was that an update started from; over all seeds, each row on its own "
        f"scale. Shares are those of seed {run.seeds[0]}; the dashed line is an equal share, {100 / run.ues:.3g} %."
    )
    return section("Who is heard, and how late", side_by_side(charts), hint=hint)


def _ue_section(run: Run, chart: Chart) -> str:
    over = " and seed" if len(run.seeds) > 1 else ""
    hint = f"At the end of training. A point is one UE{over}; a box holds the middle half of them and shows the median."
    return section(chart.title, placed(chart), hint=hint)


def _spec_section(run: Run) -> str:
    command = verbatim(f"perfeds2 {run.command} --spec spec.toml --out again")
    spec = ['<p class="hint">spec.toml, all settings of this run:</p>', verbatim(run.spec)] if run.spec else []
    return section("Run it again", command, *spec, hint="In this run's folder; it gives the same numbers again.")
