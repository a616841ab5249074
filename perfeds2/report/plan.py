"""What does a plan look like, in the terminal and as a figure?"""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from perfeds2.files import write_text
from perfeds2.planning.data import BoundRounds, Candidate, Chosen, ClosesOn, Plan
from perfeds2.report.drawing import INK, labelled, legend_above, new_figure, write_figures
from perfeds2.report.style import NEUTRAL
from perfeds2.report.tables import Column, Span, Table, for_terminal
from perfeds2.report.terminal import console as open_console

SHOWN_UES = 30
SHOWN_ROUNDS = 12
CLOSES: dict[ClosesOn, str] = {"planned": "planned UEs", "first": "first arrivals"}
COLOURS: dict[ClosesOn, str] = {"planned": "#D55E00", "first": "#0072B2"}


def print_plan(plan: Plan) -> None:
    """The answer, the grid it was chosen from, what it means for each UE, and what a careful reader should know."""
    tables: list[Table | str] = [*answer(plan), "", _grid_table(plan)]
    if any(not candidate.feasible for candidate in plan.candidates):
        tables += ["", _impossible_table(plan)]
    tables += [_law_line(plan), ""]
    tables += [_constants_table(plan)] if plan.constants else []
    tables += [*_theory_lines(plan), ""]
    for candidate, chosen in _details(plan):
        pace = f"{candidate.seconds_per_round:.4g} s a round, {_seconds(candidate.seconds)} predicted"
        waits = f"UEs wait {candidate.waiting_share:.0%} of their time."
        tables += [_ue_table(candidate, chosen), _schedule_line(candidate, chosen), f"{pace}; {waits}", ""]
    tables += [_check_table(plan)] if plan.checks else []
    tables += [f"[dim]Note: {note}[/dim]" for note in plan.notes]
    console = open_console()
    for shown in tables:
        console.print(for_terminal(shown) if isinstance(shown, Table) else shown)


def answer(plan: Plan) -> list[str]:
    """What was asked, what to do, and against what: plain sentences."""
    best, target, theory = plan.best, plan.target, plan.theory
    source = "trained by a pilot" if best.rounds_from == "pilot" else "from the law through the pilots"
    said = [
        f"Target: personalised training loss {target.loss:.4g} ({target.loss_from}); for the bounds ε = "
        f"{target.epsilon:.3g} ({target.epsilon_from}).",
        f"[bold]Soonest: {_name(best)}: {_seconds(best.seconds)} predicted[/bold] = {best.rounds:.0f} rounds "
        f"({source}) × {best.seconds_per_round:.4g} s a round (simulated).",
    ]
    spec = plan.find(plan.spec_quorum, plan.spec_max_staleness, "first")
    if spec is not None and spec is not best:
        said.append(f"The spec's {_name(spec)}: {_outcome(spec)}.")
    if best.closing != "planned" and plan.best_planned is not None:
        said.append(
            f"Soonest with planned rounds, which keep the shares as far as A and S allow: {_name(plan.best_planned)}: "
            f"{_outcome(plan.best_planned)}."
        )
    if theory is not None and theory.corrected_quorum is not None:
        at_star = [c for c in plan.candidates if c.quorum == theory.corrected_quorum and c.seconds is not None]
        soonest = min(at_star, key=lambda c: c.seconds or math.inf, default=None)
        both = "" if soonest is None or soonest.rule is None else (
            f" ({_seconds(soonest.rule.seconds)} by that rule, {_seconds(soonest.seconds)} by the pilots)"
        )  # fmt: skip
        kept = "" if theory.meets_target else "; the second term of its bound exceeds ε even there"
        printed = "unbounded" if theory.printed_quorum is None else f"{theory.printed_quorum:.3g}"
        said.append(
            f"The paper's rule, corrected: A* = {theory.corrected_quorum}, K* = {theory.rounds:,}{both}{kept}. "
            f"A* as printed is {printed}."
        )
    return said


def _grid_table(plan: Plan) -> Table:
    columns = _columns("A", "S", "<round closes on", "seconds\na round", "staleness\nmean  max", "shares\noff by")
    columns += _columns("UEs\nwait", "rounds", "<from", "predicted\nseconds", "<", "rule's\nseconds", "<bounds promise")
    slowest = max((c.seconds for c in plan.candidates if c.seconds is not None), default=1.0)
    star = plan.theory.corrected_quorum if plan.theory else None
    rows: list[list[Span]] = []
    for group in _alike(plan.candidates):
        candidate = group[0]
        chosen = plan.best in group
        bar = "" if candidate.seconds is None else "▇" * max(1, round(12 * candidate.seconds / slowest))
        cells = [
            f"{candidate.quorum}{'*' if candidate.quorum == star else ''}",
            ", ".join(_bound(c.max_staleness) for c in group),
            CLOSES[candidate.closing],
            f"{candidate.seconds_per_round:.4f}",
            f"{candidate.staleness_mean:.1f} {candidate.staleness_max:>4}",
            f"{candidate.share_error:.0%}",
            f"{candidate.waiting_share:.0%}",
            "never" if candidate.rounds is None else f"{candidate.rounds:,.0f}",
            candidate.rounds_from or "",
            _short(candidate.seconds),
            bar + (" soonest" if chosen else ""),
            _short(None if candidate.rule is None else candidate.rule.seconds),
            _promise(candidate),
        ]
        rows.append([Span(cell, "best" if chosen else "") for cell in cells])
    caption = "rounds: trained by a pilot, or read off the law through the pilots; rule: the paper's K* (its bound's first term at ε)"
    return Table(columns, rows, "Candidates", caption)


def _columns(*heads: str) -> list[Column]:
    """Numbers to the right; what begins with < is text."""
    return [Column(head.removeprefix("<"), "left" if head.startswith("<") else "right") for head in heads]


def _alike(candidates: Sequence[Candidate]) -> Iterable[list[Candidate]]:
    """Feasible candidates in groups that only S tells apart, because S never bites."""
    groups: dict[Any, list[Candidate]] = {}
    for c in candidates:
        if c.feasible:
            same = (c.quorum, c.closing, c.seconds_per_round, c.staleness_square, c.staleness_max, c.seconds)
            groups.setdefault(same, []).append(c)
    return groups.values()


def _impossible_table(plan: Plan) -> Table:
    rows = [
        [str(candidate.quorum), _bound(candidate.max_staleness), CLOSES[candidate.closing], candidate.obstacle]
        for candidate in plan.candidates
        if candidate.obstacle is not None
    ]
    columns = [*_columns("A", "S", "<round closes on"), Column("why", "left", wraps=True)]
    return Table(columns, rows, "Not possible")


def _law_line(plan: Plan) -> str:
    law, worst = plan.law, plan.law.left_out_factor
    weights = {"/A": law.noise, "·mean τ²": law.staleness, "·(mean τ²)²": law.late, "·(n·Ση² − 1)": law.inequality}
    terms = "".join(f" + {weight:.2g}{what}" for what, weight in weights.items() if weight > 0)
    missed = "" if worst is None else f"; fitted without one of them it misses it by a factor of {worst:.2g} at worst"
    return f"The law: rounds = {law.base:.0f}·(1{terms}), through {len(plan.pilots)} pilots{missed}."


def _constants_table(plan: Plan) -> Table:
    rows = [
        [each.name.replace("_", " "), each.symbol, *(f"{number:.3g}" for number in (each.low, each.value, each.high))]
        for each in plan.constants
    ]
    columns = _columns("<", "", "smallest\nseen", "largest\nseen", "80 % upper\nlimit")
    return Table(columns, rows, "Constants, measured by a pilot")


def _theory_lines(plan: Plan) -> list[str]:
    """What the bounds make of the constants, and why they promise nothing where they do not."""
    theory, best = plan.theory, plan.best
    if theory is None:
        return []
    said = [
        f"So L_F = {theory.smoothness:.3g}, σ_F² = {theory.noise:.3g}, γ_F² = {theory.diversity:.3g}. The step is β = {theory.beta:g}; the "
        f"largest admissible at the spec's S is {theory.largest_beta_printed:.2g} (printed), "
        f"{theory.largest_beta_sharpened:.2g} (sharpened), {theory.largest_beta_proved:.2g} (proved)."
    ]
    silent = [f"{name}: {bound.obstacle}" for name, bound in _bounds(best).items() if bound.obstacle is not None]
    if silent:
        said.append(f"Bounds that promise nothing at the choice: {'; '.join(silent)}.")
    return said


def _details(plan: Plan) -> list[tuple[Candidate, Chosen]]:
    """The choice and, where its rounds close on the first arrivals, the soonest plan."""
    shown = [(plan.best, plan.chosen)]
    if plan.best_planned is not None and plan.planned is not None and plan.best.closing == "first":
        shown.append((plan.best_planned, plan.planned))
    return shown


def _ue_table(candidate: Candidate, chosen: Chosen) -> Table:
    merges = "merges\na period" if chosen.period else f"merges in\n{len(chosen.rows)} rounds"
    columns = _columns("UE", "distance\nm", "CPU\nGHz", "share\ntarget", "share\nplanned", "share\nachieved", merges)
    columns += [*_columns("longest\ngap"), Column("bandwidth in kHz (round)", "left", wraps=True)]
    rows = []
    for ue in chosen.ues[:SHOWN_UES]:
        band = [f"{hz / 1e3:.1f} ({k})" for k, hz in zip(ue.rounds, ue.bandwidth_hz, strict=True)]
        rows.append(
            [
                str(ue.ue),
                f"{ue.distance_m:.0f}",
                f"{ue.cpu_hz / 1e9:.2f}",
                f"{ue.share_target:.2%}",
                "–" if ue.share_planned is None else f"{ue.share_planned:.2%}",
                f"{ue.share_achieved:.2%}",
                str(ue.merges_per_period),
                str(ue.longest_gap),
                ", ".join(band[:6]) + (", …" if len(band) > 6 else ""),
            ]
        )
    bound, hidden = _bound(candidate.max_staleness), len(chosen.ues) - SHOWN_UES
    title = f"Each UE: A = {candidate.quorum}, S = {bound}, {CLOSES[candidate.closing]}, {candidate.bandwidth}"
    return Table(columns, rows, title, f"and {hidden} more UEs in the JSON" if hidden > 0 else None)


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
    columns = _columns("A", "S", "<round closes on", "<predicted\nfrom", "rounds\npredicted", "rounds\nmeasured")
    columns += _columns("seconds\npredicted", "seconds\nmeasured", "measured /\npredicted")
    rows = []
    for check in plan.checks:
        longest = f"> {3 * check.predicted_rounds:,.0f}"  # as long as was waited for it
        rows.append(
            [
                str(check.quorum),
                _bound(check.max_staleness),
                CLOSES[check.closing],
                check.predicted_from,
                f"{check.predicted_rounds:,.0f}",
                longest if check.measured_rounds is None else f"{check.measured_rounds:,.0f}",
                _short(check.predicted_s),
                "–" if check.measured_s is None else _short(check.measured_s),
                "> 3" if check.measured_s is None else f"{check.measured_s / check.predicted_s:.2f}",
            ]
        )
    caption = f"trained from other weights, with other noise (seed {plan.check_seed})"
    return Table(columns, rows, "Check: predicted against measured", caption)


def _name(candidate: Candidate) -> str:
    return f"A = {candidate.quorum}, S = {_bound(candidate.max_staleness)}, rounds close on {CLOSES[candidate.closing]}"


def _bound(max_staleness: int | None) -> str:
    return "none" if max_staleness is None else str(max_staleness)


def _outcome(candidate: Candidate) -> str:
    if candidate.obstacle is not None:
        return f"not possible, {candidate.obstacle.rstrip('.')}"
    return f"{_seconds(candidate.seconds)} predicted"


def _seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:,.0f} s" if value >= 100 else f"{value:.3g} s"


def _short(value: float | None) -> str:
    return "never" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def _promise(candidate: Candidate) -> str:
    """The bounds that promise something; or why even the most willing one does not."""
    given = _bounds(candidate)
    promises = [f"{name} {_seconds(bound.seconds)}" for name, bound in given.items() if bound.rounds is not None]
    return ", ".join(promises) or ("nothing" if "printed" in given else "–")


def _bounds(candidate: Candidate) -> dict[str, BoundRounds]:
    given = {"printed": candidate.printed, "sharpened": candidate.sharpened, "proved": candidate.proved}
    return {name: bound for name, bound in given.items() if bound is not None}


def write_plan(plan: Plan, folder: Path) -> list[Path]:
    """Write plan.json and the curve as plan.png and plan.pdf. Returns what was written."""
    written = write_figures(folder, lambda: {"plan": _figure(plan)})
    write_text(folder / "plan.json", plan.to_json() + "\n")
    return [*written, folder / "plan.json"]


def _figure(plan: Plan) -> Figure:
    """Predicted seconds over A, and the rounds behind them."""
    figure = new_figure(3.6)
    seconds, rounds = figure.subplots(2, sharex=True, height_ratios=(3, 2))
    for closing in ("planned", "first"):
        for number, (label, points) in enumerate(_curves(plan, closing).items()):
            dash = ("solid", (0, (4, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)))[number % 4]
            for axes, values in ((seconds, [c.seconds for c in points]), (rounds, [c.rounds for c in points])):
                axes.plot([c.quorum for c in points], values, color=COLOURS[closing], linestyle=dash, label=label)
                _dots(axes, points, values, COLOURS[closing])
    ruled = {c.quorum: c.rule for c in plan.candidates if c.closing == "planned" and c.rule is not None}
    if ruled:
        dotted: dict[str, Any] = {"color": NEUTRAL, "linestyle": (0, (1, 2)), "linewidth": 0.9}
        seconds.plot(list(ruled), [rule.seconds for rule in ruled.values()], label="paper's K*, planned", **dotted)
        rounds.plot(list(ruled), [rule.rounds for rule in ruled.values()], **dotted)
    best = plan.best
    seconds.plot(best.quorum, best.seconds, "*", markersize=9, color=INK, linestyle="none", label="soonest", zorder=4)
    measured = [check for check in plan.checks if check.measured_s is not None]
    if measured:
        at = [check.quorum for check in measured]
        cross: dict[str, Any] = {"color": "#009E73", "markersize": 5, "linestyle": "none", "zorder": 4}
        seconds.plot(at, [check.measured_s for check in measured], "x", label="measured by --check", **cross)
        rounds.plot(at, [check.measured_rounds for check in measured], "x", **cross)
    _mark_the_rule(plan, seconds, rounds)
    for axes in (seconds, rounds):
        axes.set_xscale("log")
        axes.set_yscale("log")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:,.10g}")
    ticks = sorted({candidate.quorum for candidate in plan.candidates})
    rounds.set_xticks(ticks, [str(tick) for tick in ticks])
    rounds.set_xlabel("Updates a round closes on, A")
    seconds.set_ylabel("Predicted seconds")
    rounds.set_ylabel("Rounds")
    legend_above(figure, 2, labelled([seconds]))
    return figure


def _mark_the_rule(plan: Plan, seconds: Axes, rounds: Axes) -> None:
    """Where the paper's A* lies."""
    theory = plan.theory
    if theory is None or theory.corrected_quorum is None:
        return
    for axes in (seconds, rounds):
        axes.axvline(theory.corrected_quorum, color=NEUTRAL, linewidth=0.8)
    small = "" if theory.printed_quorum is None else f" (as printed: {theory.printed_quorum:.2g})"
    seconds.annotate(
        f"A*{small}", (theory.corrected_quorum, 1), xycoords=("data", "axes fraction"),
        xytext=(2, -2), textcoords="offset points", va="top", fontsize=6, color=NEUTRAL,
    )  # fmt: skip


def _curves(plan: Plan, closing: ClosesOn) -> dict[str, list[Candidate]]:
    """A curve per S, over A; an S whose curve is a piece of another's shares it."""
    by_bound: dict[int | None, list[Candidate]] = {}
    for candidate in sorted(plan.candidates, key=lambda c: c.quorum):
        if candidate.closing == closing and candidate.seconds is not None:
            by_bound.setdefault(candidate.max_staleness, []).append(candidate)
    shared: list[tuple[list[int | None], list[Candidate]]] = []
    for bound, points in sorted(by_bound.items(), key=lambda item: -len(item[1])):
        values = {(c.quorum, c.seconds) for c in points}
        for same, longer in shared:
            if values <= {(c.quorum, c.seconds) for c in longer}:
                same.append(bound)
                break
        else:
            shared.append(([bound], points))
    name = "planned" if closing == "planned" else "first A"
    return {
        f"{name}, S = {', '.join(map(_bound, sorted(same, key=lambda bound: math.inf if bound is None else bound)))}": points
        for same, points in shared
    }


def _dots(axes: Axes, points: Sequence[Candidate], values: Sequence[float | None], colour: str) -> None:
    """Full where a pilot was trained, hollow where the law speaks."""
    for source, fill in (("pilot", colour), ("law", "white")):
        at = [(c.quorum, value) for c, value in zip(points, values, strict=True) if c.rounds_from == source]
        if at:
            dot: dict[str, Any] = {"markersize": 3, "color": colour, "markerfacecolor": fill, "linestyle": "none"}
            axes.plot(*zip(*at, strict=True), "o", zorder=3, **dot)
