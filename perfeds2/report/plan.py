"""Show a plan in the terminal, as an HTML page and for a paper."""

from collections.abc import Sequence
from dataclasses import replace
from html import escape
from pathlib import Path

from perfeds2.chart import Chart, ChartAxis, Series
from perfeds2.errors import InputError
from perfeds2.report.document import document, note, paragraph, quoted, section, verbatim, write_html
from perfeds2.report.on_paper import PAGE_IN, figure_of, write_figures
from perfeds2.report.tables import (
    Column,
    Kind,
    Rows,
    Span,
    Table,
    as_html,
    counted,
    for_terminal,
    text_column,
    write_latex,
)
from perfeds2.report.terminal import open_console
from perfeds2.studies.plan_data import (
    LOOKS,
    NUMBERS,
    OF_CELLS,
    Candidate,
    Choice,
    Plan,
    map_chart,
    ranked_candidates,
    short_s,
)

SHOWN = 14  # rows in the terminal
HEADS = [
    "A",
    "S",
    "schedule",
    "band",
    "stale",
    "steps",
    "bits",
    "rest",
    *OF_CELLS,
    "σ",
    "ε",
    "seconds",
    "span",
    "kept",
    "held",
    "joules",
    "least share",
]
ACROSS = 2  # maps per row on paper
KINDS: dict[str, Kind] = {"holds": "holds", "fails": "fails", "on an edge": "undecided", "wavers": "undecided"}
DASHES_PX = {"holds": (), "fails": (7, 3), "slower": (2, 2)}  # a seed that kept the target, lost it, or was too late


MAPS = (
    "Green keeps the target. A red cross loses it clearly in at least one seed. An amber plus keeps it, but a neighbour does "
    "not. An amber triangle falls below it too often. Purple breaks a limit. A dash is impossible. Hollow marks and times "
    "with ~ come from one short training. The large star is the choice."
)
CURVES = (
    "One line per seed: solid green kept the target, dashed red clearly lost it, dotted grey reached it late or never. A "
    "triangle marks the time from which it was kept."
)
CANDIDATES = (
    "Seconds: median over the given seeds. Span: the first and the last seed. Kept: how many seeds kept the target. Held: "
    "share of later evaluations at the target, mean over seeds. Joules: of all UEs until the target is kept. σ and ε: noise and "
    "privacy loss of the worst UE over the whole horizon, if there is noise."
)
MARGINS = "One step to each side in A, S and local steps, on up to three seeds. A choice is recommended only if no neighbour fails."


def write_plan(
    plan: Plan, folder: Path, axis: str = "seconds", paper: Path | None = None, out: Path | None = None
) -> list[Path]:
    """Write the maps and the page (to ``out``); with ``paper``, also write maps and a table there. Return the paths."""
    if axis not in NUMBERS:
        raise InputError(f"--x {axis}: a plan records only seconds and joules to the target.")
    maps = map_charts(plan, axis)
    written, page_folder = [], out or folder
    for place in dict.fromkeys((page_folder, paper or page_folder)):
        written += write_figures(
            place, {"plan": maps}, lambda charts: figure_of(charts, ACROSS, PAGE_IN, NUMBERS[axis])
        )
    written.append(write_html(page_folder, _page(plan, folder / "planned.toml", axis, maps)))
    return (
        written if paper is None else [*written, write_latex(paper / "plan.tex", plan.sentence, candidates_table(plan))]
    )


def draw_plan(folder: Path, axis: str = "seconds", paper: Path | None = None, out: Path | None = None) -> list[Path]:
    """Draw the plan in a folder as ``write_plan`` does."""
    return write_plan(load_plan(folder), folder, axis, paper, out)


def load_plan(folder: Path) -> Plan:
    return Plan.from_json((folder / "plan.json").read_text(encoding="utf-8"))


def show_plan(folder: Path) -> None:
    """Print the plan in a folder, and where its report is."""
    print_plan(load_plan(folder))
    place = f"Results: {folder}    Report: {folder / 'report.html'}"
    open_console().print(place, markup=False, highlight=False, soft_wrap=True)


def print_plan(plan: Plan) -> None:
    """Print the candidates, the notes, and finally the recommendation and the command that adopts it."""
    console = open_console()
    console.print(for_terminal(candidates_table(plan, SHOWN)))
    for line in plan.notes:
        console.print(f"Note: {line}", style="dim", markup=False)
    for line in (plan.check, plan.sentence):
        console.print(line, markup=False, soft_wrap=True)
    console.print(plan.headline, style="bold", markup=False, soft_wrap=True)
    if plan.command is not None:
        console.print(plan.command, markup=False, soft_wrap=True)


def _page(plan: Plan, adopted: Path, axis: str, maps: Sequence[Chart]) -> str:
    seeds = counted(len(plan.seeds), "seed")
    facts = ["plan", plan.task, f"{plan.population} UEs", f"radio {plan.radio}", seeds, f"perfeds2 {plan.perfeds2}"]
    reasons = [paragraph(said) for said in (plan.check, plan.sentence) if said]
    curves = [_curve_chart(plan, name, each) for name, each in _chosen(plan)]
    margins = [
        [name, str(one.choice), "fails" if one.fails else "stands", one.why]
        for name, each in _chosen(plan)
        for one in each.neighbours
    ]
    beside = Table([Column(head, "left") for head in ("beside", "choice", "", "how")], margins)
    adopt = [verbatim(plan.command or ""), *quoted(adopted, "the same settings as a spec")]
    tried = f"{len(plan.candidates)} choices, {plan.trainings} trainings."
    sections = [
        section("Adopt it", *adopt, hint="Run this command, or pass planned.toml as --spec.") if plan.command else [],
        section("Every A and S", list(maps), hint=f"{NUMBERS[axis]}. {MAPS}"),
        section("Reached and kept", curves, hint=f"The level is the target, {escape(plan.target.words)}. {CURVES}"),
        section("Margins", beside, hint=MARGINS) if margins else [],
        section("In numbers", candidates_table(plan), hint=f"{tried} {CANDIDATES}"),
    ]
    about = [*([as_html(settings_table(plan))] if plan.best else []), *reasons, *map(note, plan.notes)]
    unbroken = plan.headline.replace(" = ", "\u00a0=\u00a0")
    return document(facts, unbroken, about, sections)


def settings_table(plan: Plan) -> Table:
    """Return the settings of the choice beside the spec's own, with those that differ in bold."""
    asked = plan.candidates[plan.asked]
    both = [plan.best or asked, asked]
    new, old = (each.choice.settings for each in both)
    cells = any(each.choice.has_cells for each in both)
    rows: Rows = [
        [name, Span(value, "best" if value != old[name] else ""), old[name]]
        for name, value in new.items()
        if cells or name not in OF_CELLS
    ]
    rows.append(["seconds, given seeds", *(short_s(each.seconds) if each.trials else "–" for each in both)])
    if plan.is_private:
        rows.append(["noise σ", *(_or_dash(each.noise) for each in both)])
        rows.append(["ε, worst UE", *(_or_dash(each.epsilon_worst) for each in both)])
    rows.append(["verdict", *(Span(each.verdict, KINDS.get(each.verdict, "dim")) for each in both)])
    return Table([Column(head, "left") for head in ("", "the choice", "your spec")], rows, kind="plain few")


def _chosen(plan: Plan) -> list[tuple[str, Candidate]]:
    """Return the recommended candidate, and the requested one if it differs and was tried."""
    asked = plan.candidates[plan.asked]
    found = [] if plan.best is None else [("the choice", plan.best)]
    return [*found, ("as asked", asked)] if asked is not plan.best and asked.trials else found


# ---- the table


def candidates_table(plan: Plan, most: int | None = None) -> Table:
    """Return a row per candidate: the best, the requested one, then those that were trained, best verdict first."""
    ranked = ranked_candidates(plan)
    resting = {"rest"} if any(each.choice.rest_rounds > 1 for each in ranked) else set()
    cells = set(OF_CELLS) if any(each.choice.has_cells for each in ranked) else set()
    unused = {"rest", *OF_CELLS, "σ", "ε"} - resting - cells - ({"σ", "ε"} if plan.is_private else set())
    shown = [head for head in HEADS if head not in unused]
    columns = [Column(head, "left" if head in ("schedule", "band", "stale") else "right") for head in shown]
    rows: Rows = []
    for each in ranked[:most]:
        who = "the choice" if each is plan.best else "as asked" if each is plan.candidates[plan.asked] else ""
        why = f"({each.why})" if each.why and who != "the choice" else ""
        said = " ".join(filter(None, (f"{who}:" if who else "", each.verdict, why)))
        span = each.span_s
        scouted = "–" if each.scouted_s is None else f"~{short_s(each.scouted_s)}"
        numbers = [
            _or_dash(each.noise),
            _or_dash(each.epsilon_worst),
            short_s(each.seconds) if each.trials else scouted,
            "–" if span is None else f"{short_s(span[0])} … {short_s(span[1])}",
            f"{each.kept}/{len(each.trials)}" if each.trials else "–",
            "–" if each.held is None else f"{each.held:.0%}",
            _or_dash(each.joules),
            "–" if each.least_share is None else f"{each.least_share:.2%}",
        ]
        values = zip(HEADS, [*each.choice.settings.values(), *numbers], strict=True)
        values = [value for head, value in values if head not in unused]
        rows.append([*values, Span(said, KINDS.get(each.verdict, "dim"))])
    left = len(ranked) - len(rows)
    caption = f"and {left} more on the page" if left else None
    return Table([*columns, text_column("")], rows, "Choices", caption, kind="slim")


def _or_dash(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


# ---- charts


def maps_of(plan: Plan) -> list[tuple[str, list[Candidate]]]:
    """Return up to six groups of candidates that differ only in A and S, named by everything else.

    The group of the choice comes first, then larger ones.
    """
    groups: dict[Choice, list[Candidate]] = {}
    for each in plan.candidates:
        groups.setdefault(each.choice.without_a_and_s, []).append(each)
    best = plan.best

    def rank(item: tuple[Choice, list[Candidate]]) -> tuple[bool, int]:
        return best is None or best not in item[1], -len(item[1])

    ranked = [(choice.rest, each) for choice, each in sorted(groups.items(), key=rank)]
    return [(name, each) for name, each in ranked if len(each) > 2 or best in each][:6] or ranked[:1]


def map_charts(plan: Plan, axis: str = "seconds") -> list[Chart]:
    """Draw a map over A × S for each combination of the other settings."""
    groups = enumerate(maps_of(plan))
    return [map_chart(group, plan.best, axis, f"map-{place}", title) for place, (title, group) in groups]


def _curve_chart(plan: Plan, name: str, each: Candidate) -> Chart:
    """Draw every seed of a candidate over simulated time."""
    trials, until_s = (
        (each.confirmed, plan.target.confirm_s) if each.confirmed else (each.trials, plan.target.horizon_s)
    )
    score, items = plan.target.score, list[Series]()
    target = score.scale * plan.target.accuracy
    for trial in trials:
        looks = max(len(trial.scores) - 1, 1)
        values = [float("nan") if found is None else score.scale * found for found in trial.scores]
        time_s = [until_s * number / looks for number in range(len(values))]
        verdict = "holds" if trial.state == "kept" else "fails" if trial.fails else "slower"
        style = replace(LOOKS[verdict], dash_px=DASHES_PX[verdict], marker="")
        items.append(Series(f"seed {trial.seed}, {trial.state}", time_s, values, style, "line"))
        if trial.time_s is not None:
            hover = [f"seed {trial.seed}: kept from {trial.time_s:.3g} s on"]
            items.append(
                Series("", [trial.time_s], [target], replace(style, marker="v"), "marks", hover=hover, size_px=9)
            )
    y = ChartAxis(score.head, form=score.form, unit=score.unit)
    x, identity = ChartAxis("Simulated seconds"), name.replace(" ", "-")
    return Chart(identity, f"{name}: {each.choice}", items, x, y, (target, ""), group=identity)
