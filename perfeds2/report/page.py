"""How does a run's folder become one page that opens anywhere, offline?"""

from collections.abc import Sequence
from html import escape
from pathlib import Path

from perfeds2.files import write_text
from perfeds2.report.answer import answer, listed, seconds
from perfeds2.report.charts import (
    SHOWN_UES,
    Chart,
    activity_chart,
    curve_charts,
    shares_chart,
    staleness_chart,
    ue_chart,
)
from perfeds2.report.document import document, drawing
from perfeds2.report.series import Run, groups, load_run
from perfeds2.report.table import line_sample, results_table


def write_report(folder: Path) -> Path:
    """Read a run's folder and write its ``report.html``. Returns the page's path."""
    path = folder / "report.html"
    write_text(path, page(load_run(folder)))
    return path


def page(run: Run) -> str:
    """The whole page. A panel that has no data is left out."""
    timed = groups(run)
    curves, activity = curve_charts(run), activity_chart(run, timed)
    shared = [chart for chart in (staleness_chart(run, timed), shares_chart(run, timed)) if chart]
    ues = ue_chart(run)
    drawn = [chart for chart in (*curves, activity, *shared, ues) if chart]
    sections = [
        _header(run),
        _curves_section(run, curves) if curves else "",
        _table_section(run),
        _activity_section(run, activity) if activity else "",
        _shares_section(run, shared) if shared else "",
        _ue_section(run, ues) if ues else "",
        _spec_section(run),
    ]
    return document(answer(run)[0], sections, drawn)


def _header(run: Run) -> str:
    headline, paragraphs = answer(run)
    simulated = "" if run.clock == "time" else " simulated"
    length = f"{seconds(run.horizon_s)}{simulated}" if run.horizon_s is not None else f"{run.rounds or 0:,} rounds"
    seeds = f"seed{'s' if len(run.seeds) > 1 else ''} {listed([str(seed) for seed in run.seeds])}"
    facts = [run.task or run.command, f"{run.ues} UEs", length, seeds, f"perfeds2 {run.version}"]
    rest = "\n".join(f"<p>{escape(paragraph)}</p>" for paragraph in paragraphs)
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in run.notes)
    return (
        f'<header>\n<p class="facts">{escape(" · ".join(facts))}</p>\n<h1>{escape(headline)}</h1>\n'
        f"{rest}\n{notes}\n</header>"
    )


def _curves_section(run: Run, curves: Sequence[Chart]) -> str:
    buttons = "".join(
        f'<button type="button" aria-pressed="true" data-algorithm="{number}">{line_sample(run, algorithm)}{escape(algorithm.name)}</button>'
        for number, algorithm in enumerate(run.algorithms)
    )
    band = " with its 95 % interval" if len(run.seeds) > 1 else ""
    over = f"The mean over {len(run.seeds)} seeds{band}." if len(run.seeds) > 1 else "One seed."
    figures = "".join(f"<figure><h3>{escape(chart.title)}</h3>{drawing(chart)}</figure>" for chart in curves)
    return (
        f"<section>\n<h2>Loss and accuracy over {run.clock}</h2>\n"
        f'<p class="hint">{over} Colour is the objective; solid is semi-synchronous, dashed synchronous, dotted asynchronous. '
        f"Click a name to hide it, double-click to see it alone. A line ends where a seed diverges.</p>\n"
        f'<div class="legend" role="group" aria-label="Algorithms shown">{buttons}</div>\n'
        f'<div class="charts">{figures}</div>\n</section>'
    )


def _table_section(run: Run) -> str:
    hints = []
    if len(run.seeds) > 1:
        hints.append("Means over seeds, ± half of the 95 % interval.")
    if run.target_accuracy is not None:
        hints.append("The time to the target is a median.")
    if run.metrics is not None and len(run.algorithms) > 1:
        hints.append("Bold is the best of a column.")
    hint = f'<p class="hint">{" ".join(hints)}</p>\n' if hints else ""
    return (
        f"<section>\n<h2>In numbers</h2>\n{hint}"
        f'<div class="scroll" tabindex="0" role="region" aria-label="Results">{results_table(run)}</div>\n</section>'
    )


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
        choice = f'<select data-chart="{chart.name}" aria-label="Algorithm shown">{options}</select>\n'
    return (
        f'<section>\n<h2>{escape(chart.title)}</h2>\n<p class="hint">{hint}</p>\n{choice}{drawing(chart)}\n</section>'
    )


def _shares_section(run: Run, charts: Sequence[Chart]) -> str:
    figures = "".join(f"<figure><h3>{escape(chart.title)}</h3>{drawing(chart)}</figure>" for chart in charts)
    return (
        f'<section>\n<h2>Who is heard, and how late</h2>\n<p class="hint">Staleness is how many rounds old the model was that an '
        f"update started from; over all seeds, each row on its own scale. Shares are those of seed {run.seeds[0]}; the dashed line "
        f'is an equal share, {100 / run.ues:.3g} %.</p>\n<div class="charts">{figures}</div>\n</section>'
    )


def _ue_section(run: Run, chart: Chart) -> str:
    over = " and seed" if len(run.seeds) > 1 else ""
    return (
        f'<section>\n<h2>{escape(chart.title)}</h2>\n<p class="hint">At the end of training. A point is one UE{over}; '
        f"a box holds the middle half of them and shows the median.</p>\n{drawing(chart)}\n</section>"
    )


def _spec_section(run: Run) -> str:
    command = f"perfeds2 {run.command} --spec spec.toml --out again"
    spec = (
        f'<p class="hint">spec.toml, all settings of this run:</p>\n<pre tabindex="0">{escape(run.spec)}</pre>'
        if run.spec
        else ""
    )
    return (
        f'<section>\n<h2>Run it again</h2>\n<p class="hint">In this run\'s folder; it gives the same numbers again.</p>\n'
        f'<pre tabindex="0">{escape(command)}</pre>\n{spec}\n</section>'
    )
