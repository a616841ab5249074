"""How does a plan show itself: as a table, the choices that say most first, and as maps of A and S?"""

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from perfeds2.chart import INK, NEUTRAL, Chart, ChartAxis, LineStyle, Series, draw
from perfeds2.studies.plan_data import Candidate, Choice, Plan

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

NUMBERS = {
    "seconds": "Seconds until the target is kept, median over seeds",
    "joules": "Joules of all UEs until the target is kept, median over seeds",
}  # what a map may say of a choice
LOOKS = {  # of each verdict
    "holds": LineStyle("#009E73", (), "o"),
    "slower": LineStyle(NEUTRAL, (), "o"),
    "fails": LineStyle("#C8102E", (), "x"),
    "on an edge": LineStyle("#E69F00", (), "P"),
    "wavers": LineStyle("#E69F00", (), "^"),
    "breaks a limit": LineStyle("#8A5CC2", (), "X"),
    "not possible": LineStyle("#BCC3CB", (), "_"),
}


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


def map_chart(
    group: Sequence[Candidate], best: Candidate | None, axis: str = "seconds", name: str = "map", title: str = ""
) -> Chart:
    """Describe A × S: green holds, crosses lose the target again, the star is the choice; hollow was looked at shortly."""
    quorums, bounds = axes_of(group)
    items: list[Series] = []

    def mark(label: str, found: Sequence[Candidate], style: LineStyle, **more: Any) -> None:
        x, y = [quorums.index(each.quorum) for each in found], [bounds.index(each.max_staleness) for each in found]
        hollow = style.marker == "o" and not found[0].trials
        items.append(Series(label, x, y, style, "marks", hollow=hollow, **more))

    if best is not None and best in group:
        mark("the choice", [best], LineStyle(f"{INK}44", (), "*"), hover=["the choice"], size_px=30)
    for verdict, tried in dict.fromkeys((each.verdict, bool(each.trials)) for each in group):
        own = [each for each in group if (each.verdict, bool(each.trials)) == (verdict, tried)]
        hover = [f"{each.choice}: {verdict}{f' ({each.why})' if each.why else ''}" for each in own]
        mark(verdict, own, LOOKS[verdict], hover=hover, texts=[label_of(each, axis) for each in own], size_px=11)
    x = ChartAxis("A", (-0.6, len(quorums) - 0.3), ticks={place: str(each) for place, each in enumerate(quorums)})
    texts = {place: "none" if bound is None else str(bound) for place, bound in enumerate(bounds)}
    y = ChartAxis("S", (-0.6, len(bounds) - 0.3), ticks=texts)
    return Chart(name, title, items, x, y, height_px=120 + 50 * len(bounds), group=name)


def draw_plan(axes: "Axes", plan: Plan) -> "Axes":
    """The map of the choice, or of what was asked where nothing is recommended."""
    of = (plan.best or plan.candidates[plan.asked]).choice.with_(quorum=0, max_staleness=0)
    group = [each for each in plan.candidates if each.choice.with_(quorum=0, max_staleness=0) == of]
    draw(axes, map_chart(group, plan.best))
    axes.set_title(f"seconds until {plan.target.words} is kept\n{_rest(of)}", loc="left", fontsize="small")
    unique = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    axes.legend(unique.values(), unique, loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize="small", frameon=False)
    return axes
