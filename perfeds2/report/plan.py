"""What does a plan look like, in the terminal and as a figure?"""

import math
from pathlib import Path

from matplotlib.figure import Figure

from perfeds2.errors import InputError
from perfeds2.files import write_text
from perfeds2.report import drawing
from perfeds2.report.tables import Cell, Column, Kind, Span, Table, as_latex, for_terminal, in_latex
from perfeds2.report.terminal import console as open_console
from perfeds2.studies.plan_data import BoundRounds, Candidate, Choice, Plan, Theory
from perfeds2.studies.plan_shown import NUMBERS, draw_map, maps_of, ranked_candidates, short_s

SHOWN = 14  # rows in the terminal
ACROSS = 2  # maps beside each other
KINDS: dict[str, Kind] = {"holds": "holds", "fails": "fails", "on an edge": "undecided", "wavers": "undecided"}


def write_plan(plan: Plan, folder: Path, axis: str = "seconds") -> list[Path]:
    """Write plan.json, the maps as plan.png and plan.pdf, and the page. Returns what was written."""
    from perfeds2.report.plan_page import page

    write_text(folder / "plan.json", plan.to_json() + "\n")
    written = drawing.write_figures(folder, lambda: {"plan": draw_maps(plan, axis)})
    write_text(folder / "report.html", page(plan, _spec_text(folder), axis))
    return [*written, folder / "report.html", folder / "plan.json"]


def redraw(folder: Path, axis: str = "seconds", paper: Path | None = None) -> list[Path]:
    """The figure and the page of a folder, from its plan.json; with ``paper``, figure and LaTeX table there as well."""
    if axis not in NUMBERS:
        raise InputError(f"--x {axis}: a plan knows seconds and joules to the target; its trainings keep no {axis}.")
    plan = load_plan(folder)
    written = write_plan(plan, folder, axis)
    if paper is not None:
        if paper.resolve() != folder.resolve():
            written += drawing.write_figures(paper, lambda: {"plan": draw_maps(plan, axis)})
        write_text(paper / "plan.tex", f"% {in_latex(plan.sentence)}\n{as_latex(candidates_table(plan))}\n")
        written.append(paper / "plan.tex")
    return written


def load_plan(folder: Path) -> Plan:
    return Plan.from_json((folder / "plan.json").read_text(encoding="utf-8"))


def _spec_text(folder: Path) -> str | None:
    adopted = folder / "planned.toml"
    return adopted.read_text(encoding="utf-8") if adopted.exists() else None


def print_plan(plan: Plan) -> None:
    """What was tried, what a careful reader should know, and last the sentence and the line that adopts it."""
    console = open_console()
    console.print(for_terminal(candidates_table(plan, SHOWN)))
    for line in theory_lines(plan.theory):
        console.print(line, markup=False)
    for note in plan.notes:
        console.print(f"Note: {note}", style="dim", markup=False)
    if plan.check is not None:
        console.print(plan.check, markup=False, soft_wrap=True)
    console.print(plan.sentence, style="bold", markup=False, soft_wrap=True)
    if plan.command is not None:
        console.print(plan.command, markup=False, soft_wrap=True)


# ---- the table


def candidates_table(plan: Plan, most: int | None = None) -> Table:
    """A row per choice: the best, what the spec says, then those that were watched, soonest first."""
    ranked = ranked_candidates(plan)
    shown = ranked if most is None else ranked[:most]
    heads = (
        "A",
        "S",
        "schedule",
        "band",
        "stale",
        "steps",
        "bits",
        "seconds",
        "span",
        "kept",
        "held",
        "joules",
        "least share",
    )
    columns = [Column(head, "left" if head in ("schedule", "band", "stale") else "right") for head in heads]
    rows: list[list[Cell]] = []
    for each in shown:
        who = "the choice" if each is plan.best else "as asked" if each is plan.candidates[plan.asked] else ""
        said = " ".join(
            filter(
                None,
                (f"{who}:" if who else "", each.verdict, f"({each.why})" if each.why and who != "the choice" else ""),
            )
        )
        rows.append([*place_cells(each.choice), *_numbers(each), Span(said, KINDS.get(each.verdict, "dim"))])
    left = len(ranked) - len(shown)
    caption = f"and {left} more on the page" if left else None
    return Table([*columns, Column("", "left", wraps=True)], rows, "Choices", caption)


def place_cells(choice: Choice) -> list[str]:
    names = [choice.schedule, choice.bandwidth, choice.stale]
    return [str(choice.quorum), choice.bound, *names, str(choice.local_steps), str(choice.bits)]


def _numbers(each: Candidate) -> list[str]:
    span = each.span_s
    return [
        short_s(each.seconds) if each.trials else f"~{short_s(each.scouted_s)}" if each.scouted_s is not None else "–",
        f"{short_s(span[0])} … {short_s(span[1])}" if span is not None else "–",
        f"{each.kept}/{len(each.trials)}" if each.trials else "–",
        f"{each.held:.0%}" if each.held is not None else "–",
        "–" if each.joules is None else f"{each.joules:.3g}",
        "–" if each.least_share is None else f"{each.least_share:.2%}",
    ]


# ---- the bounds


def theory_lines(theory: Theory | None) -> list[str]:
    """What the bounds make of the measured constants, and why they promise nothing where they do not."""
    if theory is None:
        return []
    said = [f"Until the target the mean of ‖∇F‖² is ε = {theory.epsilon:.3g}. Constants, largest seen: " + ", ".join(
        f"{each.symbol} = {each.value:.3g}" for each in theory.constants) + "."]  # fmt: skip
    if theory.smoothness is not None:
        said.append(
            f"So L_F = {theory.smoothness:.3g}, σ_F² = {theory.noise:.3g}, γ_F² = {theory.diversity:.3g}. The step is β = {theory.beta:g}; "
            f"the largest admissible is {theory.largest_beta_printed:.2g} (printed), {theory.largest_beta_sharpened:.2g} "
            f"(sharpened), {theory.largest_beta_proved:.2g} (proved)."
        )
    if theory.corrected_quorum is not None:
        kept = "" if theory.meets_target else "; the second term of its bound exceeds ε even there"
        printed = "unbounded" if theory.printed_quorum is None else f"{theory.printed_quorum:.3g}"
        rounds = theory.rounds or 0
        said.append(
            f"The paper's rule, corrected: A* = {theory.corrected_quorum}, K* = {rounds:,}{kept}. As printed A* is {printed}."
        )
    if theory.promises:
        said.append(
            "For the choice: " + "; ".join(f"{name} {_promise(bound)}" for name, bound in theory.promises) + "."
        )
    return [*said, f"No A* from the paper's rule: {theory.obstacle}"] if theory.obstacle else said


def _promise(bound: BoundRounds) -> str:
    if bound.rounds is None:
        return f"promises nothing ({bound.obstacle})"
    return f"asks for {bound.rounds:,} rounds, {short_s(bound.seconds)} s"


# ---- the maps


def draw_maps(plan: Plan, axis: str = "seconds") -> Figure:
    """A × S, a panel for each of the rest: green holds, crosses lose the target again, the star is the choice."""
    groups = maps_of(plan)
    rows = math.ceil(len(groups) / ACROSS)
    figure = drawing.new_figure(1.7 * rows + 0.5, drawing.PAGE_IN)
    panels = figure.subplots(rows, min(ACROSS, len(groups)), squeeze=False)
    for place, axes in enumerate(panels.flat):
        if place >= len(groups):
            axes.axis("off")
            continue
        name, group = groups[place]
        draw_map(axes, group, plan.best, axis=axis)
        drawing.name_panel(axes, name)
    drawing.legend_above(figure, 6, drawing.labelled(list(panels.flat)), title=NUMBERS[axis])
    return figure
