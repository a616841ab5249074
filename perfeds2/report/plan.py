"""What does a plan look like, in the terminal and as a figure?"""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from perfeds2.files import write_text
from perfeds2.planning.data import BoundRounds, Candidate, Check, Chosen, ClosesOn, Plan
from perfeds2.report.drawing import INK, labelled, legend_above, new_figure, write_figures
from perfeds2.report.style import NEUTRAL
from perfeds2.report.tables import Cell, Span, Table, for_terminal, seconds, table_of
from perfeds2.report.terminal import console as open_console

SHOWN_UES = 30
SHOWN_ROUNDS = 12
CLOSES: dict[ClosesOn, str] = {"planned": "planned UEs", "first": "first arrivals"}
COLOURS: dict[ClosesOn, str] = {"planned": "#D55E00", "first": "#0072B2"}
DASHES = ("solid", (0, (4, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)))  # a curve per S


def print_plan(plan: Plan) -> None:
    """The answer, the grid it was chosen from, what it means for each UE, and what a careful reader should know."""
    shown: list[Table | str] = [*_answer(plan), "", _grid_table(plan)]
    impossible = [candidate for candidate in plan.candidates if candidate.obstacle is not None]
    if impossible:
        rows = [_place(each) | {"<why": each.obstacle or ""} for each in impossible]
        shown += ["", table_of(rows, "Not possible", wraps="<why")]
    shown += [_law_line(plan), ""]
    shown += [_constants_table(plan)] if plan.constants else []
    shown += [*_theory_lines(plan), "", *_details(plan.best, plan.chosen)]
    if plan.best_planned is not None and plan.planned is not None and plan.best.closing == "first":
        shown += _details(plan.best_planned, plan.planned)
    shown += [_check_table(plan)] if plan.checks else []
    shown += [f"[dim]Note: {note}[/dim]" for note in plan.notes]
    console = open_console()
    for each in shown:
        console.print(for_terminal(each) if isinstance(each, Table) else each)


def _answer(plan: Plan) -> list[str]:
    """What was asked, what to do, and against what: plain sentences."""
    best, target, theory = plan.best, plan.target, plan.theory
    source = "trained by a pilot" if best.rounds_from == "pilot" else "from the law through the pilots"
    said = [
        f"Target: personalised training loss {target.loss:.4g} ({target.loss_from}); for the bounds ε = "
        f"{target.epsilon:.3g} ({target.epsilon_from}).",
        f"[bold]Soonest: {_outcome(best)}[/bold] = {best.rounds:.0f} rounds "
        f"({source}) × {best.seconds_per_round:.4g} s a round (simulated).",
    ]
    spec = plan.find(plan.spec_quorum, plan.spec_max_staleness, "first")
    if spec is not None and spec is not best:
        said.append(f"The spec's {_outcome(spec)}.")
    if best.closing != "planned" and plan.best_planned is not None:
        kept = "Soonest with planned rounds, which keep the shares as far as A and S allow"
        said.append(f"{kept}: {_outcome(plan.best_planned)}.")
    if theory is not None and theory.corrected_quorum is not None:
        at_star = [c for c in plan.candidates if c.quorum == theory.corrected_quorum and c.seconds is not None]
        soonest = min(at_star, key=lambda c: c.seconds or math.inf, default=None)
        both = ""
        if soonest is not None and soonest.rule is not None:
            both = f" ({_seconds(soonest.rule.seconds)} by that rule, {_seconds(soonest.seconds)} by the pilots)"
        kept = "" if theory.meets_target else "; the second term of its bound exceeds ε even there"
        printed = "unbounded" if theory.printed_quorum is None else f"{theory.printed_quorum:.3g}"
        said.append(
            f"The paper's rule, corrected: A* = {theory.corrected_quorum}, K* = {theory.rounds:,}{both}{kept}. "
            f"A* as printed is {printed}."
        )
    return said


def _outcome(candidate: Candidate) -> str:
    """What it is, and what is to be expected of it."""
    name = f"A = {candidate.quorum}, S = {_bound(candidate.max_staleness)}, rounds close on {CLOSES[candidate.closing]}"
    if candidate.obstacle is not None:
        return f"{name}: not possible, {candidate.obstacle.rstrip('.')}"
    return f"{name}: {_seconds(candidate.seconds)} predicted"


def _grid_table(plan: Plan) -> Table:
    slowest = max((c.seconds for c in plan.candidates if c.seconds is not None), default=1.0)
    star = plan.theory.corrected_quorum if plan.theory else None
    rows: list[dict[str, Cell]] = []
    for group in _alike(plan.candidates):
        candidate = group[0]
        chosen = plan.best in group
        bar = "" if candidate.seconds is None else "▇" * max(1, round(12 * candidate.seconds / slowest))
        row = {
            **_place(candidate, *(c.max_staleness for c in group[1:])),
            "seconds\na round": f"{candidate.seconds_per_round:.4f}",
            "staleness\nmean  max": f"{candidate.staleness_mean:.1f} {candidate.staleness_max:>4}",
            "shares\noff by": f"{candidate.share_error:.0%}",
            "UEs\nwait": f"{candidate.waiting_share:.0%}",
            "rounds": "never" if candidate.rounds is None else f"{candidate.rounds:,.0f}",
            "<from": candidate.rounds_from or "",
            "predicted\nseconds": _short(candidate.seconds),
            "<": bar + (" soonest" if chosen else ""),
            "rule's\nseconds": _short(None if candidate.rule is None else candidate.rule.seconds),
            "<bounds promise": _promise(candidate),
        }
        row["A"] += "*" if candidate.quorum == star else ""
        rows.append({head: Span(cell, "best" if chosen else "") for head, cell in row.items()})
    caption = "rounds: trained by a pilot, or read off the law through the pilots; rule: the paper's K* (its bound's first term at ε)"
    return table_of(rows, "Candidates", caption)


def _place(each: Candidate | Check, *also: int | None) -> dict[str, str]:
    """The cells that say which one it is; ``also`` are other S that make no difference."""
    bounds = ", ".join(map(_bound, (each.max_staleness, *also)))
    return {"A": str(each.quorum), "S": bounds, "<round closes on": CLOSES[each.closing]}


def _alike(candidates: Sequence[Candidate]) -> Iterable[list[Candidate]]:
    """Feasible candidates in groups that only S tells apart, because S never bites."""
    groups: dict[Any, list[Candidate]] = {}
    for c in candidates:
        if c.feasible:
            same = (c.quorum, c.closing, c.seconds_per_round, c.staleness_square, c.staleness_max, c.seconds)
            groups.setdefault(same, []).append(c)
    return groups.values()


def _promise(candidate: Candidate) -> str:
    """The bounds that promise something; or why even the most willing one does not."""
    given = _bounds(candidate)
    promises = [f"{name} {_seconds(bound.seconds)}" for name, bound in given.items() if bound.rounds is not None]
    return ", ".join(promises) or ("nothing" if "printed" in given else "–")


def _bounds(candidate: Candidate) -> dict[str, BoundRounds]:
    given = {"printed": candidate.printed, "sharpened": candidate.sharpened, "proved": candidate.proved}
    return {name: bound for name, bound in given.items() if bound is not None}


def _law_line(plan: Plan) -> str:
    law, worst = plan.law, plan.law.left_out_factor
    weights = {"/A": law.noise, "·mean τ²": law.staleness, "·(mean τ²)²": law.late, "·(n·Ση² − 1)": law.inequality}
    terms = "".join(f" + {weight:.2g}{what}" for what, weight in weights.items() if weight > 0)
    missed = "" if worst is None else f"; fitted without one of them it misses it by a factor of {worst:.2g} at worst"
    return f"The law: rounds = {law.base:.0f}·(1{terms}), through {len(plan.pilots)} pilots{missed}."


def _constants_table(plan: Plan) -> Table:
    heads = ("smallest\nseen", "largest\nseen", "80 % upper\nlimit")
    rows: list[dict[str, str]] = [
        {"<": each.name.replace("_", " "), "": each.symbol}
        | {head: f"{number:.3g}" for head, number in zip(heads, (each.low, each.value, each.high), strict=True)}
        for each in plan.constants
    ]
    return table_of(rows, "Constants, measured by a pilot")


def _theory_lines(plan: Plan) -> list[str]:
    """What the bounds make of the constants, and why they promise nothing where they do not."""
    theory = plan.theory
    if theory is None:
        return []
    said = [
        f"So L_F = {theory.smoothness:.3g}, σ_F² = {theory.noise:.3g}, γ_F² = {theory.diversity:.3g}. The step is β = {theory.beta:g}; the "
        f"largest admissible at the spec's S is {theory.largest_beta_printed:.2g} (printed), "
        f"{theory.largest_beta_sharpened:.2g} (sharpened), {theory.largest_beta_proved:.2g} (proved)."
    ]
    silent = [f"{name}: {bound.obstacle}" for name, bound in _bounds(plan.best).items() if bound.obstacle is not None]
    return [*said, f"Bounds that promise nothing at the choice: {'; '.join(silent)}."] if silent else said


def _details(candidate: Candidate, chosen: Chosen) -> list[Table | str]:
    """What a candidate means for each UE and round, and how fast it goes."""
    pace = f"{candidate.seconds_per_round:.4g} s a round, {_seconds(candidate.seconds)} predicted"
    waits = f"UEs wait {candidate.waiting_share:.0%} of their time."
    return [_ue_table(candidate, chosen), _schedule_line(candidate, chosen), f"{pace}; {waits}", ""]


def _ue_table(candidate: Candidate, chosen: Chosen) -> Table:
    merges = "merges\na period" if chosen.period else f"merges in\n{len(chosen.rows)} rounds"
    rows: list[dict[str, Cell]] = []
    for ue in chosen.ues[:SHOWN_UES]:
        band = [f"{hz / 1e3:.1f} ({k})" for k, hz in zip(ue.rounds, ue.bandwidth_hz, strict=True)]
        rows.append(
            {
                "UE": str(ue.ue),
                "distance\nm": f"{ue.distance_m:.0f}",
                "CPU\nGHz": f"{ue.cpu_hz / 1e9:.2f}",
                "share\ntarget": f"{ue.share_target:.2%}",
                "share\nplanned": "–" if ue.share_planned is None else f"{ue.share_planned:.2%}",
                "share\nachieved": f"{ue.share_achieved:.2%}",
                merges: str(ue.merges_per_period),
                "longest\ngap": str(ue.longest_gap),
                "<bandwidth in kHz (round)": ", ".join(band[:6]) + (", …" if len(band) > 6 else ""),
            }
        )
    bound, hidden = _bound(candidate.max_staleness), len(chosen.ues) - SHOWN_UES
    title = f"Each UE: A = {candidate.quorum}, S = {bound}, {CLOSES[candidate.closing]}, {candidate.bandwidth}"
    more = f"and {hidden} more UEs in the JSON" if hidden > 0 else None
    return table_of(rows, title, more, wraps="<bandwidth in kHz (round)")


def _schedule_line(candidate: Candidate, chosen: Chosen) -> str:
    if candidate.closing == "first":
        head = f"No schedule. Simulated, the first {len(chosen.rows)} rounds merge UEs"
    elif chosen.period is None:
        head = f"The schedule is not seen to repeat; its first {len(chosen.rows)} rounds merge UEs"
    else:
        head = f"The schedule repeats after K_p = {chosen.period} rounds, which merge UEs"
    rows = "; ".join(" ".join(map(str, row)) for row in chosen.rows[:SHOWN_ROUNDS])
    moved = f" ({candidate.note})" if candidate.note else ""
    return f"{head}: {rows}{'; …' if len(chosen.rows) > SHOWN_ROUNDS else '.'}{moved}"


def _check_table(plan: Plan) -> Table:
    rows: list[dict[str, Cell]] = []
    for check in plan.checks:
        rounds, time_s, ratio = f"> {3 * check.predicted_rounds:,.0f}", "–", "> 3"  # as long as was waited for it
        if check.measured_rounds is not None and check.measured_s is not None:
            rounds, time_s = f"{check.measured_rounds:,.0f}", _short(check.measured_s)
            ratio = f"{check.measured_s / check.predicted_s:.2f}"
        rows.append(
            {
                **_place(check),
                "<predicted\nfrom": check.predicted_from,
                "rounds\npredicted": f"{check.predicted_rounds:,.0f}",
                "rounds\nmeasured": rounds,
                "seconds\npredicted": _short(check.predicted_s),
                "seconds\nmeasured": time_s,
                "measured /\npredicted": ratio,
            }
        )
    caption = f"trained from other weights, with other noise (seed {plan.check_seed})"
    return table_of(rows, "Check: predicted against measured", caption)


def _bound(max_staleness: int | None) -> str:
    return "none" if max_staleness is None else str(max_staleness)


def _seconds(value: float | None) -> str:
    return seconds(value, "never")


def _short(value: float | None) -> str:
    return "never" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def write_plan(plan: Plan, folder: Path) -> list[Path]:
    """Write plan.json and the curve as plan.png and plan.pdf. Returns what was written."""
    written = write_figures(folder, lambda: {"plan": _figure(plan)})
    write_text(folder / "plan.json", plan.to_json() + "\n")
    return [*written, folder / "plan.json"]


def _figure(plan: Plan) -> Figure:
    """Predicted seconds over A, and the rounds behind them."""
    figure = new_figure(3.6)
    upper, lower = figure.subplots(2, sharex=True, height_ratios=(3, 2))

    def plot(points: Sequence[tuple[int, float | None, float | None]], *marker: str, **look: Any) -> None:
        """Points are A, seconds and rounds; where there are none, nothing is drawn."""
        if points:
            at, *columns = zip(*points, strict=True)
            for axes, values in zip((upper, lower), columns, strict=True):
                axes.plot(at, values, *marker, **look)

    for closing, colour in COLOURS.items():
        for number, (label, points) in enumerate(_curves(plan, closing).items()):
            found = [(c.quorum, c.seconds, c.rounds) for c in points]
            plot(found, color=colour, linestyle=DASHES[number % len(DASHES)], label=label)
            for source, fill in (("pilot", colour), ("law", "white")):  # full where a pilot was trained
                at = [place for place, c in zip(found, points, strict=True) if c.rounds_from == source]
                plot(at, "o", markersize=3, color=colour, markerfacecolor=fill, linestyle="none", zorder=3)
    ruled = [(c.quorum, c.rule) for c in plan.candidates if c.closing == "planned" and c.rule is not None]
    rule = [(quorum, asked.seconds, asked.rounds) for quorum, asked in dict(ruled).items()]
    plot(rule, color=NEUTRAL, linestyle=(0, (1, 2)), linewidth=0.9, label="paper's K*, planned")
    star = {"markersize": 9, "color": INK, "linestyle": "none", "label": "soonest", "zorder": 4}
    upper.plot(plan.best.quorum, plan.best.seconds, "*", **star)
    cross = {"markersize": 5, "color": "#009E73", "linestyle": "none", "label": "measured by --check", "zorder": 4}
    plot([(c.quorum, c.measured_s, c.measured_rounds) for c in plan.checks if c.measured_s is not None], "x", **cross)
    if plan.theory is not None and plan.theory.corrected_quorum is not None:
        place, printed = plan.theory.corrected_quorum, plan.theory.printed_quorum
        for axes in (upper, lower):
            axes.axvline(place, color=NEUTRAL, linewidth=0.8)
        small = "" if printed is None else f" (as printed: {printed:.2g})"
        beside: dict[str, Any] = {"xytext": (2, -2), "textcoords": "offset points", "va": "top"}
        upper.annotate(
            f"A*{small}", (place, 1), xycoords=("data", "axes fraction"), fontsize=6, color=NEUTRAL, **beside
        )
    for axes in (upper, lower):
        axes.set_xscale("log")
        axes.set_yscale("log")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:,.10g}")
    ticks = sorted({candidate.quorum for candidate in plan.candidates})
    lower.set_xticks(ticks, [str(tick) for tick in ticks])
    lower.set_xlabel("Updates a round closes on, A")
    upper.set_ylabel("Predicted seconds")
    lower.set_ylabel("Rounds")
    legend_above(figure, 2, labelled([upper]))
    return figure


def _curves(plan: Plan, closing: ClosesOn) -> dict[str, list[Candidate]]:
    """A curve per S, over A; an S whose curve is a piece of another's shares it."""
    by_bound: dict[int | None, list[Candidate]] = {}
    for candidate in sorted(plan.candidates, key=lambda c: c.quorum):
        if candidate.closing == closing and candidate.seconds is not None:
            by_bound.setdefault(candidate.max_staleness, []).append(candidate)
    shared: dict[frozenset[Any], tuple[list[int | None], list[Candidate]]] = {}
    for bound, points in sorted(by_bound.items(), key=lambda item: -len(item[1])):
        places = frozenset((c.quorum, c.seconds) for c in points)
        whole = next((longer for longer in shared if places <= longer), places)
        shared.setdefault(whole, ([], points))[0].append(bound)
    name = "planned" if closing == "planned" else "first A"
    return {
        f"{name}, S = {', '.join(map(_bound, sorted(bounds, key=lambda s: math.inf if s is None else s)))}": points
        for bounds, points in shared.values()
    }
