"""How does a run's folder become one page that opens anywhere, offline?"""

from collections.abc import Sequence
from html import escape
from pathlib import Path

from perfeds2.files import write_text
from perfeds2.report.answer import answer
from perfeds2.report.charts import SHOWN_UES, activity_chart, shares_chart, staleness_chart, ue_chart
from perfeds2.report.clocks import clocks_chart, clocks_hint, clocks_table
from perfeds2.report.document import Part, choice, document, legend, line_sample, note, scrolling, section, verbatim
from perfeds2.report.results import energy_line, meaning, results_table
from perfeds2.report.run import Run, load_run, over
from perfeds2.report.series import Group, curve_panels, groups, has_bands, said_to_coincide
from perfeds2.report.style import DASHES_PX
from perfeds2.report.tables import as_html, capitalised, listed, seconds
from perfeds2.report.traces import curve_chart
from perfeds2.runs.statistics import NO_INTERVAL


def write_report(folder: Path | str, axis: str = "seconds") -> Path:
    """Read a run's folder and write its ``report.html``. Returns the page's path."""
    path = Path(folder) / "report.html"
    write_text(path, page(load_run(folder), axis))
    return path


def page(run: Run, axis: str = "seconds") -> str:
    """The whole page, its curves over seconds, or over something else. A section that has no data is left out."""
    headline, paragraphs = answer(run)
    simulated = "" if run.clock == "time" else " simulated"
    length = f"{seconds(run.horizon_s)}{simulated}" if run.horizon_s is not None else f"{run.rounds or 0:,} rounds"
    seeds = f"seed{'s' if len(run.seeds) > 1 else ''} {listed([str(seed) for seed in run.seeds])}"
    facts = [run.task or run.command, f"{run.ues} UEs", length, seeds, f"perfeds2 {run.version}"]
    energy = energy_line(run)
    links = [] if run.links is None else [run.links.line, *filter(None, [run.links.warning])]
    notes = [*run.notes, *links, *filter(None, [energy])]
    timed = groups(run)
    sections = [
        curves_part(over(run, axis)),
        table_part(run),
        section("Good to know", *map(note, notes)) if notes else [],  # below what a phone should show first
        _clocks(run),
        activity_part(run, timed),
        shares_part(run, timed),
        ues_part(run),
        _spec(run),
    ]
    return document(facts, headline, [f"<p>{escape(paragraph)}</p>" for paragraph in paragraphs], sections)


def over_seeds(seeds: int, has_intervals: bool) -> str:
    """What a curve is."""
    if seeds == 1:
        return "One seed."
    return f"The mean over {seeds} seeds{' with its 95 % interval.' if has_intervals else f'. {NO_INTERVAL}'}"


def curves_part(run: Run) -> list[Part]:
    numbers = {algorithm.name: number for number, algorithm in enumerate(run.algorithms)}
    panels = curve_panels(run)
    charts = [curve_chart(panel, numbers) for panel in panels]
    own = ", dash-dotted your own" if any(each.mode not in DASHES_PX for each in run.algorithms) else ""
    hint = (
        f"{over_seeds(len(run.seeds), run.has_intervals)} Colour and mark are the objective; solid is semi-synchronous, dashed "
        f"synchronous, dotted asynchronous{own}. Click a name to hide it, double-click to see it alone. A line ends where a "
        f"seed diverges."
    )
    buttons = legend(run.styles, "Algorithms shown", bands=has_bands(panels), said=said_to_coincide(panels))
    shown = (buttons, charts)
    over_what = run.clock if run.axis is None else run.axis.words
    return section(f"{capitalised(run.score.word)} and loss over {over_what}", *shown, hint=hint) if charts else []


def table_part(run: Run) -> list[Part]:
    samples = [line_sample(style) for style in run.styles.values()]
    return section(
        "In numbers",
        scrolling(as_html(results_table(run, learned_first=True), samples), "Results"),
        hint=meaning(run),
    )


def _clocks(run: Run) -> list[Part]:
    if run.clocks is None:
        return []
    table, chart = scrolling(as_html(clocks_table(run)), "Real and simulated time"), clocks_chart(run)
    return section("Real and simulated time", table, chart or "", hint=escape(clocks_hint(run)))


def activity_part(run: Run, timed: Sequence[Group]) -> list[Part]:
    chart = activity_chart(run, timed)
    if chart is None:
        return []
    hint = f"UEs 0 to {SHOWN_UES - 1} of {run.ues}" if run.ues > SHOWN_UES else f"All {run.ues} UEs"
    hint += f" at the start of the run with seed {run.seeds[0]}."
    if len(chart.choices) < len(run.algorithms):
        hint += " Algorithms named together have one timeline: when an update arrives does not depend on what is learned from it."
    return section(chart.title, choice(chart, "Algorithm shown"), chart, hint=hint)


def shares_part(run: Run, timed: Sequence[Group]) -> list[Part]:
    charts = [chart for chart in (staleness_chart(run, timed), shares_chart(run, timed)) if chart]
    if not charts:
        return []
    hint = (
        f"Staleness is how many rounds old the model was that an update started from; over all seeds, each row on its own "
        f"scale. Shares are those of seed {run.seeds[0]}; the dashed line is an equal share, {100 / run.ues:.3g} %."
    )
    return section("Who is heard, and how late", charts, hint=hint)


def ues_part(run: Run) -> list[Part]:
    chart = ue_chart(run)
    over = " and seed" if len(run.seeds) > 1 else ""
    hint = f"At the end of training. A point is one UE{over}; a box holds the middle half of them and shows the median."
    return section(chart.title, chart, hint=hint) if chart else []


def _spec(run: Run) -> list[Part]:
    command = verbatim(f"perfeds2 {run.command} --spec spec.toml --out again")
    spec = ['<p class="hint">spec.toml, all settings of this run:</p>', verbatim(run.spec)] if run.spec else []
    return section("Run it again", command, *spec, hint="In this run's folder; it gives the same numbers again.")
