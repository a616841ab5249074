"""What does a plan look like, in the terminal and as a figure?"""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator
from rich.console import Console
from rich.table import Table

from perfeds2.files import write_atomically, write_text
from perfeds2.planning.data import BoundRounds, Candidate, Chosen, ClosesOn, Plan
from perfeds2.report.paper import STYLE, WIDTH_IN

SHOWN_UES = 30
SHOWN_ROUNDS = 12
CLOSES: dict[ClosesOn, str] = {"planned": "planned UEs", "first": "first arrivals"}
COLOURS: dict[ClosesOn, str] = {"planned": "#D55E00", "first": "#0072B2"}
RULE_COLOUR = "#6B7785"


def print_plan(plan: Plan) -> None:
    """The answer, the grid it was chosen from, what it means for each UE, and what a careful reader should know."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=150)
    for line in answer(plan):
        console.print(line)
    console.print()
    console.print(_grid_table(plan))
    if any(not candidate.feasible for candidate in plan.candidates):
        console.print()
        console.print(_impossible_table(plan))
    console.print(_law_line(plan))
    console.print()
    if plan.constants:
        console.print(_constants_table(plan))
    for line in _theory_lines(plan):
        console.print(line)
    console.print()
    for candidate, chosen in _details(plan):
        console.print(_ue_table(candidate, chosen))
        console.print(_schedule_line(candidate, chosen))
        console.print(
            f"{candidate.seconds_per_round:.4g} s a round, {_seconds(candidate.seconds)} predicted; UEs wait "
            f"{candidate.waiting_share:.0%} of their time."
        )
        console.print()
    if plan.checks:
        console.print(_check_table(plan))
    for note in plan.notes:
        console.print(f"[dim]Note: {note}[/dim]")


def answer(plan: Plan) -> list[str]:
    """What was asked, what to do, and against what: plain sentences."""
    best, target, theory = plan.best, plan.target, plan.theory
    said = [
        f"Target: personalised training loss {target.loss:.4g} ({target.loss_from}); for the bounds ε = "
        f"{target.epsilon:.3g} ({target.epsilon_from}).",
        f"[bold]Soonest: {_name(best)}: {_seconds(best.seconds)} predicted[/bold] = {best.rounds:.0f} rounds "
        f"({_source(best)}) × {best.seconds_per_round:.4g} s a round (simulated).",
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
    table = _table(
        "Candidates",
        "rounds: trained by a pilot, or read off the law through the pilots; rule: the paper's K* (its bound's first term at ε)",
    )
    heads = ["A", "S", "round closes on", "seconds\na round", "staleness\nmean  max", "shares\noff by", "UEs\nwait"]
    heads += ["rounds", "from", "predicted\nseconds", "", "rule's\nseconds", "bounds promise"]
    for head in heads:
        left = head in ("round closes on", "from", "", "bounds promise")
        table.add_column(head, justify="left" if left else "right", no_wrap=True)
    groups = list(_alike(plan.candidates))
    slowest = max((c.seconds for c in plan.candidates if c.seconds is not None), default=1.0)
    star = plan.theory.corrected_quorum if plan.theory else None
    for group in groups:
        candidate = group[0]
        chosen = plan.best in group
        bar = "" if candidate.seconds is None else "▇" * max(1, round(12 * candidate.seconds / slowest))
        table.add_row(
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
            style="bold" if chosen else "",
        )
    return table


def _alike(candidates: Sequence[Candidate]) -> Iterable[list[Candidate]]:
    """Feasible candidates in groups that only S tells apart, because S never bites."""
    groups: dict[Any, list[Candidate]] = {}
    for c in candidates:
        if c.feasible:
            same = (c.quorum, c.closing, c.seconds_per_round, c.staleness_square, c.staleness_max, c.seconds)
            groups.setdefault(same, []).append(c)
    return groups.values()


def _impossible_table(plan: Plan) -> Table:
    table = _table("Not possible", None)
    for head in ("A", "S", "round closes on", "why"):
        table.add_column(head, justify="right" if len(head) == 1 else "left", no_wrap=head != "why")
    for candidate in plan.candidates:
        if candidate.obstacle is not None:
            table.add_row(
                str(candidate.quorum),
                _bound(candidate.max_staleness),
                CLOSES[candidate.closing],
                candidate.obstacle,
            )
    return table


def _law_line(plan: Plan) -> str:
    law, terms = plan.law, []
    for weight, what in (
        (law.noise, "/A"),
        (law.staleness, "·mean τ²"),
        (law.late, "·(mean τ²)²"),
        (law.inequality, "·(n·Ση² − 1)"),
    ):
        if weight > 0:
            terms.append(f" + {weight:.2g}{what}")
    missed = (
        ""
        if law.left_out_factor is None
        else f"; fitted without one of them it misses it by a factor of {law.left_out_factor:.2g} at worst"
    )
    return f"The law: rounds = {law.base:.0f}·(1{''.join(terms)}), through {len(plan.pilots)} pilots{missed}."


def _constants_table(plan: Plan) -> Table:
    table = _table("Constants, measured by a pilot", None)
    table.add_column("", no_wrap=True)
    for head in ("", "smallest\nseen", "largest\nseen", "80 % upper\nlimit"):
        table.add_column(head, justify="right", no_wrap=True)
    for constant in plan.constants:
        numbers = (f"{number:.3g}" for number in (constant.low, constant.value, constant.high))
        table.add_row(constant.name.replace("_", " "), constant.symbol, *numbers)
    return table


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
    given = {"printed": best.printed, "sharpened": best.sharpened, "proved": best.proved}
    silent = [f"{name}: {b.obstacle}" for name, b in given.items() if b is not None and b.obstacle is not None]
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
    hidden = len(chosen.ues) - SHOWN_UES
    table = _table(
        f"Each UE: A = {candidate.quorum}, S = {_bound(candidate.max_staleness)}, {CLOSES[candidate.closing]}, "
        f"{candidate.bandwidth}",
        f"and {hidden} more UEs in the JSON" if hidden > 0 else None,
    )
    heads = ["UE", "distance\nm", "CPU\nGHz", "share\ntarget", "share\nplanned", "share\nachieved"]
    heads += ["merges\na period" if chosen.period else f"merges in\n{len(chosen.rows)} rounds", "longest\ngap"]
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("bandwidth in kHz (round)")
    for ue in chosen.ues[:SHOWN_UES]:
        band = [f"{hz / 1e3:.1f} ({k})" for k, hz in zip(ue.rounds, ue.bandwidth_hz, strict=True)]
        table.add_row(
            str(ue.ue),
            f"{ue.distance_m:.0f}",
            f"{ue.cpu_hz / 1e9:.2f}",
            f"{ue.share_target:.2%}",
            "–" if ue.share_planned is None else f"{ue.share_planned:.2%}",
            f"{ue.share_achieved:.2%}",
            str(ue.merges_per_period),
            str(ue.longest_gap),
            ", ".join(band[:6]) + (", …" if len(band) > 6 else ""),
        )
    return table


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
    table = _table(
        "Check: predicted against measured", f"trained from other weights, with other noise (seed {plan.check_seed})"
    )
    heads = ["A", "S", "round closes on", "predicted\nfrom", "rounds\npredicted", "rounds\nmeasured"]
    heads += ["seconds\npredicted", "seconds\nmeasured", "measured /\npredicted"]
    for head in heads:
        table.add_column(head, justify="left" if "on" in head.split() or "from" in head else "right", no_wrap=True)
    for check in plan.checks:
        ratio = None if check.measured_s is None else check.measured_s / check.predicted_s
        table.add_row(
            str(check.quorum),
            _bound(check.max_staleness),
            CLOSES[check.closing],
            check.predicted_from,
            f"{check.predicted_rounds:,.0f}",
            f"> {3 * check.predicted_rounds:,.0f}"
            if check.measured_rounds is None
            else f"{check.measured_rounds:,.0f}",
            _short(check.predicted_s),
            "–" if check.measured_s is None else _short(check.measured_s),
            "> 3" if ratio is None else f"{ratio:.2f}",
        )
    return table


def _table(title: str, caption: str | None) -> Table:
    return Table(
        title=title,
        caption=caption,
        title_style="bold",
        title_justify="left",
        caption_justify="left",
        box=None,
        header_style="bold",
        pad_edge=False,
    )


def _name(candidate: Candidate) -> str:
    return f"A = {candidate.quorum}, S = {_bound(candidate.max_staleness)}, rounds close on {CLOSES[candidate.closing]}"


def _bound(max_staleness: int | None) -> str:
    return "none" if max_staleness is None else str(max_staleness)


def _source(candidate: Candidate) -> str:
    return "trained by a pilot" if candidate.rounds_from == "pilot" else "from the law through the pilots"


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
    given: dict[str, BoundRounds | None] = {
        "printed": candidate.printed,
        "sharpened": candidate.sharpened,
        "proved": candidate.proved,
    }
    promises = [f"{name} {_seconds(b.seconds)}" for name, b in given.items() if b is not None and b.rounds is not None]
    if promises:
        return ", ".join(promises)
    return "–" if candidate.printed is None else "nothing"


def write_plan(plan: Plan, folder: Path) -> list[Path]:
    """Write plan.json and the curve as plan.png and plan.pdf. Returns what was written."""
    folder.mkdir(parents=True, exist_ok=True)
    written = [folder / "plan.png", folder / "plan.pdf", folder / "plan.json"]
    with mpl.rc_context():
        mpl.rcdefaults()  # whatever the reader has in a matplotlibrc
        mpl.rcParams.update(STYLE)
        figure = _figure(plan)
        for path, metadata in zip(written, ({"Software": None}, {"CreationDate": None}), strict=False):
            with write_atomically(path) as file:
                figure.savefig(file, format=path.suffix[1:], metadata=metadata)  # no clock in the bytes
    write_text(folder / "plan.json", plan.to_json() + "\n")
    return written


def _figure(plan: Plan) -> Figure:
    """Predicted seconds over A, and the rounds behind them."""
    figure = Figure(figsize=(WIDTH_IN, 3.6), layout="constrained")
    seconds, rounds = figure.subplots(2, sharex=True, height_ratios=(3, 2))
    for closing in ("planned", "first"):
        curves = _curves(plan, closing)
        for number, (label, points) in enumerate(curves.items()):
            dash = ("solid", (0, (4, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)))[number % 4]
            look: dict[str, Any] = {"color": COLOURS[closing], "linestyle": dash}
            seconds.plot([c.quorum for c in points], [c.seconds for c in points], label=label, **look)
            rounds.plot([c.quorum for c in points], [c.rounds for c in points], **look)
            _dots(seconds, points, [c.seconds for c in points], COLOURS[closing])
            _dots(rounds, points, [c.rounds for c in points], COLOURS[closing])
    ruled = {c.quorum: c.rule for c in plan.candidates if c.closing == "planned" and c.rule is not None}
    if ruled:
        look = {"color": RULE_COLOUR, "linestyle": (0, (1, 2)), "linewidth": 0.9}
        seconds.plot(list(ruled), [rule.seconds for rule in ruled.values()], label="paper's K*, planned", **look)
        rounds.plot(list(ruled), [rule.rounds for rule in ruled.values()], **look)
    best = plan.best
    seconds.plot(
        best.quorum, best.seconds, "*", markersize=9, color="#1D2733", linestyle="none", label="soonest", zorder=4
    )
    measured = [check for check in plan.checks if check.measured_s is not None]
    if measured:
        at = [check.quorum for check in measured]
        cross: dict[str, Any] = {"color": "#009E73", "markersize": 5, "linestyle": "none", "zorder": 4}
        seconds.plot(at, [check.measured_s for check in measured], "x", label="measured by --check", **cross)
        rounds.plot(at, [check.measured_rounds for check in measured], "x", **cross)
    theory = plan.theory
    if theory is not None and theory.corrected_quorum is not None:
        for axes in (seconds, rounds):
            axes.axvline(theory.corrected_quorum, color=RULE_COLOUR, linewidth=0.8)
        printed = theory.printed_quorum
        small = f" (as printed: {printed:.2g})" if printed is not None else ""
        seconds.annotate(
            f"A*{small}", (theory.corrected_quorum, 1), xycoords=("data", "axes fraction"),
            xytext=(2, -2), textcoords="offset points", va="top", fontsize=6, color=RULE_COLOUR,
        )  # fmt: skip
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
    figure.legend(
        loc="outside upper center", ncols=2, handlelength=2.4, columnspacing=1.0, borderpad=0.1, labelspacing=0.3
    )
    return figure


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
    return {f"{name}, S = {', '.join(map(_bound, sorted(same, key=_rank)))}": points for same, points in shared}


def _rank(max_staleness: int | None) -> float:
    return math.inf if max_staleness is None else max_staleness


def _dots(axes: Axes, points: Sequence[Candidate], values: Sequence[float | None], colour: str) -> None:
    """Full where a pilot was trained, hollow where the law speaks."""
    for source, fill in (("pilot", colour), ("law", "white")):
        at = [(c.quorum, value) for c, value in zip(points, values, strict=True) if c.rounds_from == source]
        if at:
            axes.plot(
                *zip(*at, strict=True),
                "o",
                markersize=3,
                color=colour,
                markerfacecolor=fill,
                linestyle="none",
                zorder=3,
            )
