"""How is an arena shown: in the terminal, on a page, in LaTeX?"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from perfeds2.files import write_text
from perfeds2.report.arena_read import ArenaFound, BoutFound, Contestant, best_by, headline, load_arena, soonest, words
from perfeds2.report.document import Part, document, legend, line_sample, scrolling, section, verbatim
from perfeds2.report.drawing import write_figures
from perfeds2.report.page import over_seeds
from perfeds2.report.paper import curve_figure
from perfeds2.report.run import AXES, Axis, along
from perfeds2.report.series import CurvePanel, has_bands, in_view, mean_curve, said_to_coincide, until_shortest
from perfeds2.report.style import named_styles
from perfeds2.report.tables import Cell, Column, Span, Table, as_html, as_latex, for_terminal, in_latex, listed, seconds
from perfeds2.report.terminal import console as open_console
from perfeds2.report.terminal import print_prose
from perfeds2.report.traces import Chart, curve_chart
from perfeds2.runs.statistics import NO_INTERVAL

POINTS = 121  # of a curve
MATRICES = {  # what methods are tested by, and what a sign means there
    "seconds_to_target": ("Who is sooner at the target?", "sooner", "later"),
    "accuracy": ("Who is better at the end?", "better", "worse"),
    "worst_decile": ("Whose worst tenth of UEs is better off?", "better", "worse"),
}


def write_arena(folder: Path, axis: str = "seconds", paper: Path | None = None) -> list[Path]:
    """Draw an arena's folder, its curves over seconds or something else: report.html and arena.tex. Returns what was written.

    ``paper`` is where figures for a paper go, one a bout: arena-1.pdf and so on.
    """
    arena = load_arena(folder)
    page, latex = folder / "report.html", folder / "arena.tex"
    write_text(page, _page(arena, folder, AXES[axis]))
    write_text(latex, _latex(arena))
    if paper is None:
        return [page, latex]
    figures = write_figures(paper, lambda: _figures(arena, AXES[axis]))
    write_text(paper / "arena.tex", _latex(arena))
    return [page, latex, *figures, paper / "arena.tex"]


def _figures(arena: ArenaFound, axis: Axis | None) -> dict[str, Figure]:
    panels = ((number, _panel(bout, axis)) for number, bout in enumerate(arena.bouts, 1))
    return {f"arena-{number}": curve_figure(panel) for number, panel in panels if panel is not None}


def print_arena(folder: Path) -> None:
    """A table a bout, and what it says in words."""
    arena, console = load_arena(folder), open_console()
    for bout in arena.bouts:
        console.print(f"\n{bout.title}: {_facts(arena, bout)}", style="bold", markup=False)
        console.print(for_terminal(results_table(bout, on_page=False)))
        print_prose(console, _meaning(arena, bout), "dim")
        for paragraph in words(arena, bout):
            print_prose(console, paragraph)
    if len(arena.bouts) > 1:
        console.print(for_terminal(overview(arena)))


def _facts(arena: ArenaFound, bout: BoutFound) -> str:
    tuned = f"tuned with {arena.tries} settings each" if bout.tuning else "not tuned"
    seeds = f"{len(arena.seeds)} seed{'s' if len(arena.seeds) > 1 else ''}"
    return f"{bout.ues} UEs, {seconds(bout.horizon_s)} simulated, {_methods(len(bout.methods))}, {seeds}, {tuned}"


def _methods(count: int) -> str:
    return "1 method" if count == 1 else f"{count} methods"


# ---- tables


def results_table(bout: BoutFound, *, on_page: bool) -> Table:
    """A row per method, who was first at the target on top. A page has the accuracy first, and the settings found."""
    ranked = bout.ranked
    has_joules = any(each.medians["joules_to_target"] is not None for each in ranked)
    target, score = bout.target, bout.score
    percent, form = " (%)" if score.is_share else "", f"{{:{score.form}}}"
    costs: list[tuple[Column, list[Cell]]] = [
        (Column(f"Seconds to {target}", narrow=f"seconds\nto {target}"), _to_target(ranked, "seconds_to_target", "{:,.1f}", spread=True)),
        (Column("Rounds to it", narrow="\nrounds"), _to_target(ranked, "rounds_to_target", "{:,.0f}")),
        (Column("Uploaded (Mbit)", narrow="\nMbit"), _to_target(ranked, "bits_to_target", "{:,.1f}", 1e-6)),
    ]  # fmt: skip
    if has_joules:
        costs.append((Column("Energy (J)", narrow="\njoules"), _to_target(ranked, "joules_to_target", "{:,.1f}")))
    ends: list[tuple[Column, list[Cell]]] = [
        (Column(f"{score.word[0].upper()}{score.word[1:]} at the end{percent}", narrow=f"{score.head}\nat the end"), _means(ranked, "accuracy", form, score.scale)),
        (Column(f"Worst tenth of UEs{percent}", narrow=f"worst tenth\nof UEs{percent}"), _means(ranked, "worst_decile", form, score.scale)),
    ]  # fmt: skip
    if score.is_share:
        ends.append((Column("Jain's index", narrow="Jain's\nindex"), _means(ranked, "jain", "{:.4f}")))
    names: tuple[Column, list[Cell]] = (Column("Method", "left", wraps=True, narrow="method"), [_name(each) for each in ranked])  # fmt: skip
    columns = [names, ends[0], *costs, *ends[1:]] if on_page else [names, *costs, *ends]
    if on_page and any(each.settings for each in ranked):
        columns.append((Column("Settings found", "left", wraps=True), [_settings(each) for each in ranked]))
    rows = zip(*(cells for _, cells in columns), strict=True)
    return Table([column for column, _ in columns], [list(row) for row in rows])


def _name(contestant: Contestant) -> Cell:
    diverged = f"diverged in {contestant.diverged} of {contestant.seeds} seeds" if contestant.diverged else ""
    return [Span(contestant.name), Span(diverged, "warn")]


def _settings(contestant: Contestant) -> str:
    marked = {key: "*" if key in contestant.edges else "" for key in contestant.settings}
    said = (
        f"{key} {value:g}{marked[key]}" if isinstance(value, int | float) else f"{key} {value}"
        for key, value in contestant.settings.items()
    )
    return ", ".join(said) or "as given"


def _to_target(
    methods: Sequence[Contestant], measure: str, form: str, scale: float = 1, *, spread: bool = False
) -> list[Cell]:
    """Medians over seeds, the best of those that all seeds got to in bold; with the smallest and the largest."""
    whole = [m for each in methods if each.reached == each.seeds and (m := each.medians[measure]) is not None]
    cells: list[Cell] = []
    for each in methods:
        median = each.medians[measure]
        text = "never" if not each.reached else "–" if median is None else form.format(median * scale)
        is_best = each.reached == each.seeds and len(methods) > 1 and median in whole and median == min(whole)
        some = f" ({each.reached} of {each.seeds})" if 0 < each.reached < each.seeds else ""
        found = [value * scale for value in each.estimates[measure].values if value is not None]
        if spread and not some and len(found) > 1:
            some = f" [{form.format(min(found))}, {form.format(max(found))}]"
        cells.append([Span(text, "best" if is_best else ""), Span(some, "half")])
    return cells


def _means(methods: Sequence[Contestant], measure: str, form: str, scale: float = 1) -> list[Cell]:
    """Means over seeds with half of their interval, the largest in bold."""
    best = max(each.estimates[measure].mean or 0.0 for each in methods)
    cells: list[Cell] = []
    for each in methods:
        estimate = each.estimates[measure]
        mean, half = estimate.mean, estimate.half_width
        kind = "best" if len(methods) > 1 and mean == best else ""
        text = "–" if mean is None else form.format(mean * scale)
        cells.append([Span(text, kind), Span("" if half is None else f" ± {form.format(half * scale)}", "half")])
    return cells


def _meaning(arena: ArenaFound, bout: BoutFound) -> str:
    evaluated = f"Looked at every {seconds(bout.eval_every_s)}."
    if len(arena.seeds) == 1:
        return evaluated
    over = "means ± half of the 95 % interval" if arena.has_tests else "means"
    none = "" if arena.has_tests else f" {NO_INTERVAL}"
    return f"To the target: medians over seeds, [smallest, largest]; at the end: {over}. {evaluated}{none}"


def overview(arena: ArenaFound) -> Table:
    """A row per bout: who is first by what."""
    rows: list[list[Cell]] = []
    for bout in arena.bouts:
        first = soonest(bout)
        who = [f"{each.name} ({seconds(each.seconds, '–')})" for each in first if each.reached == each.seeds]
        best = [best_by(bout, measure) for measure in ("accuracy", "worst_decile")]
        said = ["–" if found is None else f"{found[0]} ({bout.score.show(found[1].mean or 0.0)})" for found in best]
        rows.append([bout.title, bout.target, ", ".join(who) or "none in all seeds", *said])
    heads = ("Soonest at the target", "Best at the end", "Best for the worst tenth of UEs")
    return Table([Column("Bout", "left"), Column("Target"), *(Column(head, "left") for head in heads)], rows)


def matrix(bout: BoutFound, measure: str) -> Table | None:
    """Every method against every other: the adjusted p-value, with a sign where it is below 0.05. None without tests."""
    verdicts = {(v.better, v.worse): v for v in bout.compared.get(measure, ())}
    if not verdicts:
        return None
    _, sooner, later = MATRICES[measure]
    names = [each.name for each in bout.methods]

    def cell(mine: str, other: str) -> Cell:
        won, lost = verdicts.get((mine, other)), verdicts.get((other, mine))
        verdict = won or lost
        if verdict is None:
            return ""
        said = "< 0.001" if verdict.p < 0.001 else f"{verdict.p:.3f}"
        if not verdict.is_significant:
            return Span(said, "dim")
        return Span(f"{sooner if won else later}\n{said}", "holds" if won else "fails")

    columns = [Column("", "left"), *(Column(name, "left") for name in names)]
    return Table(columns, [[mine, *(cell(mine, other) for other in names)] for mine in names])


# ---- the page


def _page(arena: ArenaFound, folder: Path, axis: Axis | None) -> str:
    facts = [
        "arena",
        f"{len(arena.bouts)} bout{'s' if len(arena.bouts) > 1 else ''}",
        f"seeds {listed([str(seed) for seed in arena.seeds])}",
        f"{arena.tries} settings tried for each method" if arena.tries else "nothing tuned",
        f"perfeds2 {arena.version}",
    ]
    only = arena.bouts[0] if len(arena.bouts) == 1 else None
    first = headline(arena)
    about = [text.removeprefix(first).strip() for text in words(arena, only)] if only else []
    sections: list[list[Part]] = []
    lines = 0  # every line of the page has its own number, so that a bout's legend speaks for that bout alone
    if only is None:
        sections.append(section("Who is first where?", scrolling(as_html(overview(arena)), "Bouts")))
    for number, bout in enumerate(arena.bouts):
        sections += _bout_sections(arena, bout, number, lines, axis, said=only is None)
        lines += len(bout.methods)
    sections.append(_how(arena, folder))
    return document(facts, first, [f"<p>{escape(text)}</p>" for text in about if text], sections)


def _bout_sections(
    arena: ArenaFound, bout: BoutFound, number: int, first: int, axis: Axis | None, *, said: bool
) -> Iterator[list[Part]]:
    texts = [f"<p>{escape(text)}</p>" for text in words(arena, bout)] if said else []
    table, styles = results_table(bout, on_page=True), named_styles([each.name for each in bout.methods])
    samples = [line_sample(styles[each.name]) for each in bout.ranked]
    edge = " * the smallest or largest value that was searched." if any(each.edges for each in bout.methods) else ""
    shown = scrolling(as_html(table, samples), "Results")
    yield section(bout.title, *texts, shown, caption=_facts(arena, bout), hint=escape(_meaning(arena, bout)) + edge)
    panel = _panel(bout, axis)
    if panel is not None:
        chart = _chart(panel, number, first)
        hint = f"{over_seeds(len(arena.seeds), arena.has_tests)} Click a name to hide it, double-click to see it alone."
        yield section(
            f"{bout.title}: {bout.score.word} over {'simulated time' if axis is None else axis.words}",
            legend(styles, "Methods shown", first, bands=has_bands([panel]), said=said_to_coincide([panel])),
            [chart],
            hint=hint,
        )
    for measure, (title, _, _) in MATRICES.items():
        found = matrix(bout, measure)
        if found is not None:
            hint = (
                "The row against the column: Student's t-test on the differences of the same seeds, corrected by Holm's method for "
                f"all {len(bout.compared[measure])} pairs. A sign where p is below 0.05; a number alone is no difference shown."
            )
            if measure == "seconds_to_target":
                hint += " A seed that never met the target counts as if it had at the horizon."
            yield section(
                f"{bout.title}: {title}", scrolling(as_html(found, kind="ledger matrix"), title), hint=escape(hint)
            )


def _chart(panel: CurvePanel, number: int, first: int) -> Chart:
    numbers = {name: place for place, name in enumerate(panel.styles, first)}
    return curve_chart(panel, numbers, height_px=420, name=f"bout-{number}")


def _panel(bout: BoutFound, axis: Axis | None) -> CurvePanel | None:
    """A bout's accuracies over time, or over something else; None where there are none."""
    if bout.curves is None or bout.curves.empty:
        return None
    curves = along(bout.curves, axis, "arena_metrics.csv")
    grid = np.linspace(0.0, bout.horizon_s if axis is None else curves["time_s"].to_numpy(float).max(), POINTS)
    names = [each.name for each in bout.methods]
    metric = "test_accuracy_personal"
    rows = {name: own for name in names if len(own := pd.DataFrame(curves[curves["method"] == name]))}
    found = {
        name: mean_curve(own, metric, grid if axis is None else until_shortest(own, grid)) for name, own in rows.items()
    }
    panel = CurvePanel(metric, in_view(found, metric), named_styles(names), bout.target_accuracy, score=bout.score)
    panel = panel if axis is None else replace(panel, time_label=axis.label, unit=axis.unit)
    return panel if panel.curves else None


def _how(arena: ArenaFound, folder: Path) -> list[Part]:
    has_tuning = any(bout.tuning for bout in arena.bouts)
    tuned = (
        f"Every method was tuned with {arena.tries} settings, by successive halving over simulated time, on seeds of their own and on "
        "data held out of the UEs' training part; what was found was then trained with the seeds above. "
        if has_tuning
        else "Nothing was tuned: every method has the settings that were given. "
    )
    hint = tuned + (
        "In one seed all methods have the same cell, fading, data and first weights; those whose rounds and jobs are the same also "
        "have the same timeline. Uploaded are the updates that were merged. The worst tenth is the mean over a tenth of the UEs, "
        "rounded up; Jain's index is (Σx)²/(nΣx²) over the UEs' accuracies."
    )
    return section("How it was done", verbatim(f"perfeds2 arena --resume {folder.name}"), hint=escape(hint))


# ---- for a paper


def _latex(arena: ArenaFound) -> str:
    """A table a bout, with the rules of booktabs."""
    parts = [f"% perfeds2 {arena.version} arena. Needs \\usepackage{{booktabs}}."]
    for bout in arena.bouts:
        about = f"{bout.title}: {_facts(arena, bout)}. {_meaning(arena, bout)}"
        parts += [f"% {in_latex(about)}", as_latex(results_table(bout, on_page=False), booktabs=True)]
    return "\n".join(parts) + "\n"
