"""How does a plan become one page that opens anywhere, offline?"""

from collections.abc import Sequence
from html import escape

from perfeds2.report.document import Part, document, note, scrolling, section, verbatim
from perfeds2.report.plan import candidates_table, theory_lines
from perfeds2.report.style import NEUTRAL
from perfeds2.report.tables import Column, Table, as_html
from perfeds2.report.traces import Chart, Plot, level, make_layout, rounded
from perfeds2.studies.plan_data import Candidate, Plan
from perfeds2.studies.plan_shown import COLOURS, NUMBERS, axes_of, label_of, maps_of

SYMBOLS: dict[str, str] = {"holds": "circle", "slower": "circle", "fails": "x", "on an edge": "cross", "wavers": "triangle-up", "breaks a limit": "hexagram", "not possible": "line-ew-open"}  # fmt: skip


def page(plan: Plan, spec: str | None, axis: str = "seconds") -> str:
    """The whole page; ``spec`` is the text of the spec that adopts the choice."""
    seeds = f"{len(plan.seeds)} seed{'s' if len(plan.seeds) > 1 else ''}"
    facts = ["plan", plan.task, f"{plan.population} UEs", f"radio {plan.radio}", seeds, f"perfeds2 {plan.perfeds2}"]
    about = [f"<p>{escape(said)}</p>" for said in (plan.check, *theory_lines(plan.theory)) if said]
    sections = [_adopt(plan, spec), _maps(plan, axis), _curves(plan), _margins(plan), _table(plan)]
    return document(facts, plan.sentence, [*about, *map(note, plan.notes)], sections)


def _adopt(plan: Plan, spec: str | None) -> list[Part]:
    if plan.command is None:
        return []
    more = ['<p class="hint">planned.toml, the same as a spec:</p>', verbatim(spec)] if spec else []
    return section("Adopt it", verbatim(plan.command), *more, hint="Type this; or give planned.toml as --spec.")


def _maps(plan: Plan, axis: str) -> list[Part]:
    groups = enumerate(maps_of(plan))
    charts = [_map_chart(plan, f"map-{number}", name, group, axis) for number, (name, group) in groups]
    short = "" if axis == "joules" else "; with ~ what one seed took in a short look"
    hint = (
        f"{NUMBERS[axis]}{short}. Green holds; red "
        "crosses lose the target clearly in a seed or more; an amber plus holds but a neighbour fails; an amber triangle is held in too few looks of a seed; purple breaks a limit; a dash "
        "cannot be done. Hollow: only looked at shortly. The large star is the choice."
    )
    return section("Every A and S", charts, hint=hint) if charts else []


def _map_chart(plan: Plan, name: str, title: str, group: Sequence[Candidate], axis: str) -> Chart:
    quorums, bounds = axes_of(group)
    traces: list[Plot] = []
    if plan.best in group and plan.best is not None:
        at = [quorums.index(plan.best.quorum)], [bounds.index(plan.best.max_staleness)]
        traces.append(_marks(*at, [""], ["the choice"], {"symbol": "star", "size": 30, "color": "#1D273344"}))
    for verdict in dict.fromkeys(each.verdict for each in group):
        own = [each for each in group if each.verdict == verdict]
        symbols = [f"{SYMBOLS[verdict]}{'' if each.trials or verdict == 'not possible' else '-open'}" for each in own]
        hover = [escape(f"{each.choice}: {verdict}{f' ({each.why})' if each.why else ''}") for each in own]
        at = [quorums.index(each.quorum) for each in own], [bounds.index(each.max_staleness) for each in own]
        marker = {
            "symbol": symbols,
            "size": 11,
            "color": COLOURS[verdict],
            "line": {"width": 2, "color": COLOURS[verdict]},
        }
        traces.append(_marks(*at, [label_of(each, axis) for each in own], hover, marker))
    x = {"title": {"text": "A"}, "tickvals": list(range(len(quorums))), "ticktext": [str(each) for each in quorums]}
    texts = ["none" if bound is None else str(bound) for bound in bounds]
    y = {"title": {"text": "S"}, "tickvals": list(range(len(bounds))), "ticktext": texts}
    x |= {"range": [-0.6, len(quorums) - 0.3], "zeroline": False}
    y |= {"range": [-0.6, len(bounds) - 0.3], "zeroline": False}
    return Chart(
        name, title, 120 + 50 * len(bounds), [{"data": traces, "layout": make_layout(x, y, hovermode="closest")}]
    )


def _marks(x: list[int], y: list[int], text: list[str], hover: list[str], marker: Plot) -> Plot:
    shared = {"type": "scatter", "mode": "markers+text", "x": x, "y": y, "text": text, "textposition": "top right"}
    return shared | {
        "marker": marker,
        "hovertext": hover,
        "hoverinfo": "text",
        "showlegend": False,
        "textfont": {"size": 10},
    }


def _curves(plan: Plan) -> list[Part]:
    """Every seed of the choice, and of what was asked, over simulated time."""
    asked, shown = plan.candidates[plan.asked], list[tuple[str, Candidate]]()
    if plan.best is not None:
        shown.append(("the choice", plan.best))
    if asked is not plan.best and asked.trials:
        shown.append(("as asked", asked))
    charts = [
        _curve_chart(plan, f"curves-{number}", f"{name}: {each.choice}", each)
        for number, (name, each) in enumerate(shown)
    ]
    hint = (
        f"A line is a seed: solid and green if it kept the target, dashed and red if it lost it clearly, dotted and grey if it was "
        f"late or never there. The level is the target, {escape(plan.target.words)}. Triangles: kept from there on."
    )
    return section("Reached, and kept", charts, hint=hint) if charts else []


def _curve_chart(plan: Plan, name: str, title: str, each: Candidate) -> Chart:
    trials, until_s = (
        (each.confirmed, plan.target.confirm_s) if each.confirmed else (each.trials, plan.target.horizon_s)
    )
    scale, traces = plan.target.score.scale, list[Plot]()
    for trial in trials:
        looks = len(trial.scores) - 1
        values = [float("nan") if score is None else scale * score for score in trial.scores]
        time_s = [until_s * number / max(looks, 1) for number in range(looks + 1)]
        colour, dash = ("#009E73", "solid") if trial.state == "kept" else ("#C8102E", "7px,3px") if trial.fails else (NEUTRAL, "2px,2px")  # fmt: skip
        traces.append(
            {"type": "scatter", "mode": "lines", "x": rounded(time_s), "y": rounded(values), "name": f"seed {trial.seed}, {trial.state}",
             "line": {"color": colour, "width": 1.5, "dash": dash}, "showlegend": False}
        )  # fmt: skip
        if trial.time_s is not None:
            marker = {"symbol": "triangle-down", "size": 9, "color": colour}
            at = [trial.time_s], [scale * plan.target.accuracy]
            traces.append({"type": "scatter", "mode": "markers", "x": at[0], "y": at[1], "marker": marker, "showlegend": False,
                           "hovertext": f"seed {trial.seed}: kept from {trial.time_s:.3g} s on", "hoverinfo": "text"})  # fmt: skip
    layout = make_layout({"title": {"text": "Simulated seconds"}}, {"title": {"text": plan.target.score.head}})
    layout["shapes"] = [level(scale * plan.target.accuracy, "y", {"color": NEUTRAL, "width": 1, "dash": "2px,3px"})]
    return Chart(name, title, 330, [{"data": traces, "layout": layout}])


def _margins(plan: Plan) -> list[Part]:
    """What stands beside the choice, and beside what was asked."""
    rows: list[list[str]] = []
    asked = plan.candidates[plan.asked]
    for whose, each in (("the choice", plan.best), ("as asked", asked if asked is not plan.best else None)):
        for one in each.neighbours if each is not None else ():
            rows.append([whose, str(one.choice), "fails" if one.fails else "stands", one.why])
    columns = [Column(head, "left") for head in ("beside", "choice", "", "how")]
    table = as_html(Table(columns, rows))
    hint = (
        "One step to each side in A, S and local steps, on up to three seeds. Nothing is recommended beside a failure."
    )
    return section("Margins", scrolling(table, "Margins"), hint=hint) if rows else []


def _table(plan: Plan) -> list[Part]:
    hint = (
        f"Seconds: median over seeds, and the first and last seed. Kept: in how many seeds. Held: in which share of later looks, mean over seeds. "
        f"Joules: of all UEs until the target is kept. {len(plan.candidates)} choices, {plan.trainings} trainings."
    )
    return section("In numbers", scrolling(as_html(candidates_table(plan), kind="slim"), "Choices"), hint=escape(hint))
