"""Show a run as an HTML page, for a paper and in the terminal."""

from collections.abc import Sequence
from pathlib import Path

from perfeds2.files import read_json
from perfeds2.report.answer import answer
from perfeds2.report.cells import cells_sections
from perfeds2.report.curves import over_seeds, run_charts
from perfeds2.report.document import Part, document, note, paragraph, section, verbatim, with_legend, write_html
from perfeds2.report.live import is_live
from perfeds2.report.read import RunResults, load_run, over, read_summary
from perfeds2.report.results import (
    LOSSES,
    PAIRED,
    Extra,
    accuracies,
    accuracy_measures,
    behind_best,
    clock_measures,
    energy_line,
    fairness_line,
    learned,
    meaning,
    new_ues,
    paper_measures,
    radio_line,
    results_table,
)
from perfeds2.report.style import OWN_DASHES_PX
from perfeds2.report.tables import capitalised, counted, for_terminal, listed, seconds, write_latex
from perfeds2.report.terminal import fits, open_console, print_prose
from perfeds2.report.timelines import (
    GROUPS_ON_PAPER,
    UES_ON_PAPER,
    activity_charts,
    groups,
    merge_charts,
    timeline_sections,
)

MOST_LINES = 40  # in one chart
NOTES_SHOWN = 2  # in the terminal; the page has all

# ---- the page


def write_report(folder: Path | str, axis: str = "seconds") -> Path:
    """Write the ``report.html`` of a run's folder. Return its path."""
    return write_html(Path(folder), page(over(load_run(folder), axis)))


def write_run(folder: Path, axis: str = "seconds", paper: Path | None = None, out: Path | None = None) -> list[Path]:
    """Write a run's ``report.html`` (to ``out``) and, with ``paper``, figures and a table there. Return the paths."""
    written = [write_html(out or folder, page(over(load_run(folder), axis)))]
    return written if paper is None else [*written, *write_paper_figures(folder, paper, axis)]


def finish_report(folder: Path) -> list[Path]:
    """Write the report of a finished run unless it is there; the page of the running command is replaced. Return its path."""
    path = folder / "report.html"
    if not path.exists() or is_live(path):
        write_report(folder)
    return [path]


def page(run: RunResults) -> str:
    """Return the whole page. Sections without data are left out."""
    headline, paragraphs = answer(run)
    simulated = "" if run.clock == "time" else " simulated"
    length = f"{seconds(run.horizon_s)}{simulated}" if run.horizon_s is not None else f"{run.rounds or 0:,} rounds"
    seeds = f"seed{'s' if len(run.seeds) > 1 else ''} {listed([str(seed) for seed in run.seeds])}"
    facts = [run.task or run.command, run.population, length, seeds, f"perfeds2 {run.version}"]
    radio = [] if run.radio is None else [radio_line(run.radio), run.radio["warning"]]
    notes = [said for said in (*run.notes, *radio, energy_line(run)) if said]
    own = ", dash-dotted another method" if any(each.dash_px in OWN_DASHES_PX for each in run.styles.values()) else ""
    hint = (
        f"{over_seeds(len(run.seeds), run.has_intervals)} Colour and mark are the objective; solid is semi-synchronous, dashed "
        f"synchronous, dotted asynchronous{own}. Click a name to hide it, double-click to see it alone. A line ends where a "
        f"seed diverges."
    )
    again, same = f"perfeds2 {run.command} --spec spec.toml --out again", "it gives the same numbers again"
    if run.command == "federate":
        again, same = "perfeds2 replay .", "the simulator reaches the same weights"
    spec = ['<p class="hint">spec.toml, all settings of this run:</p>', verbatim(run.spec)] if run.spec else []
    sections = [
        curves_section(run, hint),
        *numbers_sections(run, behind_best(run)),
        section("Notes", *map(note, notes)),
        *timeline_sections(run),
        *cells_sections(run, groups(run)),
        section("Run it again", verbatim(again), *spec, hint=f"In this run's folder; {same}."),
    ]
    return document(facts, headline, map(paragraph, paragraphs), sections)


def curves_section(run: RunResults, hint: str) -> list[Part]:
    """Return the section with a run's curves, or a note if there are too many to tell apart."""
    if len(run.algorithms) > MOST_LINES:
        return section("Curves", note(f"{len(run.algorithms)} lines cannot be told apart; see the table."))
    title = f"{capitalised(run.score.word)} and loss over {run.x_words}"
    return section(title, *with_legend(run_charts(run), "Lines shown"), hint=hint)


def numbers_sections(run: RunResults, behind: Sequence[Extra] = ()) -> list[list[Part]]:
    """Return the sections with what was learned and with the rounds: one table would be wider than a screen."""
    if not run.is_trained:
        return [section("In numbers", results_table(run, clock_measures(run)), hint=meaning(run))]
    hint = f"{meaning(run)} {PAIRED if behind else ''}"
    rounds = results_table(run, clock_measures(run), warnings=False)
    return [
        section("In numbers", results_table(run, accuracy_measures(run), behind), hint=hint),
        section("Rounds and waiting", rounds),
    ]


# ---- for a paper


def write_paper_figures(folder: Path | str, out: Path | str | None = None, axis: str = "seconds") -> list[Path]:
    """Draw a run's folder as PDF and PNG for a paper, and write ``table.tex``.

    Args:
        folder: The folder of a finished run.
        out: Where to write; None is ``figures`` in the folder.
        axis: What curves are drawn over: seconds, rounds, joules, bits or, with noise, epsilon.

    Returns:
        The files that were written.

    Example:
        >>> import tempfile
        >>> from perfeds2 import compare, write_paper_figures
        >>> run = tempfile.mkdtemp() + "/run"
        >>> found = compare(out=run, task="synthetic", ues=4, algorithms=["PerFedS2"], seeds=[0], rounds=4)
        >>> "table.tex" in [path.name for path in write_paper_figures(run)]
        True
    """
    return write_run_figures(over(load_run(folder), axis), Path(folder) / "figures" if out is None else Path(out))


def write_run_figures(run: RunResults, out: Path) -> list[Path]:
    """Draw a run for a paper and write ``table.tex``. Return the paths."""
    from perfeds2.report.on_paper import (
        write_figures,
    )  # Matplotlib: commands that draw nothing for paper do not wait for it

    figures = {chart.name: [chart] for chart in run_charts(run)}
    shown = groups(run)
    if shown:
        figures["activity"] = activity_charts(run, shown[:GROUPS_ON_PAPER], UES_ON_PAPER, jobs_each=3)
        figures |= {chart.name: [chart] for chart in merge_charts(run, shown)}
    written = write_figures(out, figures)
    behind = behind_best(run)
    table = results_table(run, paper_measures(run), behind)
    seeds = ", ".join(map(str, run.seeds))
    about = f"perfeds2 {run.version} {run.command}, {run.task}, {run.population}, seeds {seeds}. {meaning(run)}"
    about += f" {PAIRED}" if behind else ""
    return [*written, write_latex(out / "table.tex", about, table)]


# ---- in the terminal


def print_summary(folder: Path) -> None:
    """Print a run's table (two if it would be too wide), the answer, where its report is, and the first notes."""
    summary = read_json(folder / "summary.json")
    run, console = read_summary(summary), open_console()
    limit = f"{run.rounds:,} rounds" if run.horizon_s is None else f"{run.horizon_s:g} simulated seconds"
    console.print(f"\n[bold]{run.task}: {run.population}, {limit}, {counted(len(run.seeds), 'seed')}[/bold]")
    measured = learned(run, [*LOSSES, *accuracies(run.score)])
    *timed, waiting = clock_measures(run)
    tables = [results_table(run, [*timed, *measured, waiting])]
    if measured and not fits(console, for_terminal(tables[0])):
        tables = [results_table(run, measures) for measures in ([*timed, waiting], measured)]
    if new_ues(run):
        tables.append(results_table(run, new_ues(run)))
    for table in tables:
        console.print(for_terminal(table))
    if meaning(run):
        print_prose(console, meaning(run), "dim")
    if fairness_line(run):
        print_prose(console, fairness_line(run), "dim")
    print_prose(console, answer(run)[0], "bold")
    if run.radio and not run.radio["warning"]:
        print_prose(console, radio_line(run.radio), "dim")
    notes = [*run.notes, *([run.radio["warning"]] if run.radio and run.radio["warning"] else [])]
    for said in notes[:NOTES_SHOWN]:
        print_prose(console, f"Note: {said}", "dim")
    more = len(notes) - NOTES_SHOWN
    others = f" (with {counted(more, 'more note')})" if more > 0 else ""
    console.print(f"Report: {folder / 'report.html'}{others}", markup=False, highlight=False, soft_wrap=True)
