"""How does a plan show itself: as a table, the choices that say most first, and as maps of A and S?"""

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from perfeds2.studies.plan_data import Candidate, Choice, Plan

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

INK = "#1D2733"
NUMBERS = {
    "seconds": "Seconds until the target is kept, median over seeds",
    "joules": "Joules of all UEs until the target is kept, median over seeds",
}  # what a map may say of a choice
MARKERS: dict[str, str] = {"holds": "o", "slower": "o", "fails": "x", "on an edge": "P", "wavers": "^", "breaks a limit": "X", "not possible": "_"}  # fmt: skip
COLOURS: dict[str, str] = {"holds": "#009E73", "slower": "#6B7785", "fails": "#C8102E", "on an edge": "#E69F00", "wavers": "#E69F00", "breaks a limit": "#8A5CC2", "not possible": "#BCC3CB"}  # fmt: skip


def ranked_candidates(plan: Plan) -> list[Candidate]:
    """Those that say most first."""
    asked, order = plan.candidates[plan.asked], {"holds": 0, "on an edge": 1, "wavers": 2, "fails": 2, "slower": 3}

    def rank(each: Candidate) -> tuple[bool, bool, bool, int, float]:
        time_s = each.seconds or each.scouted_s or math.inf
        return each is not plan.best, each is not asked, not each.trials, order.get(each.verdict, 4), time_s

    return sorted(plan.candidates, key=rank)


def frame_of(plan: Plan) -> "pd.DataFrame":
    """A row per choice, in that order. ``max_staleness`` has no value where S is unbounded, ``seconds`` where nothing was kept."""
    import pandas as pd

    rows = [
        asdict(each.choice)
        | {"verdict": each.verdict, "why": each.why, "seconds": each.seconds, "scouted_s": each.scouted_s}
        | {"seeds": len(each.trials), "kept": each.kept, "held": each.held}
        | {"joules": each.joules, "least_share": each.least_share}
        for each in ranked_candidates(plan)
    ]
    numbers = dict.fromkeys(("seconds", "scouted_s", "held", "joules", "least_share"), "float64")
    return pd.DataFrame(rows).astype({"max_staleness": "Int64"} | numbers)


def short_s(value: float | None) -> str:
    return "never" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def maps_of(plan: Plan) -> list[tuple[str, list[Candidate]]]:
    """Candidates in groups that only A and S tell apart, named by the rest; the choice's first, then the larger ones."""
    groups: dict[Choice, list[Candidate]] = {}
    for each in plan.candidates:
        groups.setdefault(each.choice.with_(quorum=0, max_staleness=0), []).append(each)
    best = plan.best

    def rank(item: tuple[Choice, list[Candidate]]) -> tuple[bool, int]:
        return best is None or best not in item[1], -len(item[1])

    ranked = [(_rest(choice), each) for choice, each in sorted(groups.items(), key=rank)]
    return [(name, each) for name, each in ranked if len(each) > 2 or best in each][:6] or ranked[:1]


def _rest(choice: Choice) -> str:
    closes = "first arrivals" if choice.schedule == "first" else choice.schedule
    return ", ".join([closes, *choice.details])


def axes_of(candidates: Sequence[Candidate]) -> tuple[list[int], list[int | None]]:
    """The A and the S of a map, rising."""
    bounds = {each.max_staleness for each in candidates}
    return sorted({each.quorum for each in candidates}), sorted(bounds, key=lambda s: math.inf if s is None else s)


def label_of(each: Candidate, axis: str = "seconds") -> str:
    """What stands beside a mark: seconds or joules, if there are any."""
    if axis == "joules":
        return "" if each.joules is None else f"{each.joules:.3g}"
    if each.trials and each.seconds is not None:
        return short_s(each.seconds)
    return f"~{short_s(each.scouted_s)}" if each.scouted_s is not None else ""


def draw_map(
    axes: "Axes",
    group: Sequence[Candidate],
    best: Candidate | None,
    *,
    axis: str = "seconds",
    size: float = 5,
    font: float = 5.5,
) -> "Axes":
    """A × S: green holds, crosses lose the target again, the star is the choice; hollow was looked at shortly."""
    quorums, bounds = axes_of(group)
    for each in group:
        at = quorums.index(each.quorum), bounds.index(each.max_staleness)
        colour = COLOURS[each.verdict]
        fill = colour if each.trials else "white"
        look: dict[str, Any] = {"color": colour, "markersize": size, "linestyle": "none", "label": each.verdict}
        filled: dict[str, Any] = {"markerfacecolor": fill} if MARKERS[each.verdict] == "o" else {}
        axes.plot(*at, MARKERS[each.verdict], **look, **filled)
        if each is best:
            axes.plot(*at, "*", markersize=2.2 * size, color=INK, zorder=1, linestyle="none", label="the choice")
        axes.annotate(label_of(each, axis), at, xytext=(4, 3), textcoords="offset points", fontsize=font)
    axes.set_xticks(range(len(quorums)), [str(quorum) for quorum in quorums])
    axes.set_yticks(range(len(bounds)), ["none" if bound is None else str(bound) for bound in bounds])
    axes.margins(0.12, 0.25)
    axes.set_xlabel("A")
    axes.set_ylabel("S")
    return axes


def draw_plan(axes: "Axes", plan: Plan) -> "Axes":
    """The map of the choice, or of what was asked where nothing is recommended."""
    of = (plan.best or plan.candidates[plan.asked]).choice.with_(quorum=0, max_staleness=0)
    group = [each for each in plan.candidates if each.choice.with_(quorum=0, max_staleness=0) == of]
    draw_map(axes, group, plan.best, size=7, font=8)
    axes.set_title(f"seconds until {plan.target.words} is kept\n{_rest(of)}", loc="left", fontsize="small")
    unique = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    axes.legend(unique.values(), unique, loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize="small", frameon=False)
    return axes
