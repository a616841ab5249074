"""How does a sweep become one page that opens anywhere, offline?"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from perfeds2 import __version__
from perfeds2.files import write_text
from perfeds2.learning.metrics import Score
from perfeds2.report.document import Part, choice, document, legend, note, scrolling, section, verbatim
from perfeds2.report.page import over_seeds
from perfeds2.report.results import time_to_target
from perfeds2.report.run import AXES, Axis, along
from perfeds2.report.series import CurvePanel, coincidence, coinciding, in_view, mean_curve, until_shortest
from perfeds2.report.style import ACCURACY, LineStyle, line_widths, ordered_styles
from perfeds2.report.sweep import COSTS, FRONT_COSTS, MOST_LINES, front_line, lines_of, score_in, styles_of, value_of
from perfeds2.report.tables import Cell, Column, Span, Table, as_html, as_latex, in_latex, listed
from perfeds2.report.traces import Chart, Plot, curve_chart, line_look, make_layout, rounded
from perfeds2.runs.statistics import INTERVAL_SEEDS, NO_INTERVAL

POINTS = 121  # of a curve
MOST_POINTS = 24  # of a grid whose curves are drawn together


@dataclass(frozen=True)
class SweepFound:
    """What a sweep's folder holds."""

    name: str
    axes: list[str]
    summary: Any  # data frames, whose types are too wide to be of use
    evaluations: Any
    front: Any
    failed: Any
    toml: str

    @property
    def score(self) -> Score:
        return score_in(self.summary)

    @property
    def seeds(self) -> int:
        return int(self.summary["seeds"].max())

    def label(self, row: Mapping[Any, Any]) -> str:
        """An algorithm at a point of the grid."""
        return ", ".join([str(row["algorithm"]), *(f"{axis}={value_of(row[axis])}" for axis in self.axes)])


def load_sweep_folder(folder: Path) -> SweepFound:
    """Read a sweep's folder: its columns before the algorithm's are the grid's."""

    def read(name: str) -> Any:
        return pd.read_csv(folder / name, converters={"algorithm": str}) if (folder / name).exists() else None

    summary, evaluations, toml = read("sweep_summary.csv"), read("sweep.csv"), folder / "sweep.toml"
    if summary is None or evaluations is None or summary.empty:
        raise ValueError(f"no run of this sweep is done; perfeds2 sweep --resume {folder} goes on.")
    axes = [str(name) for name in summary.columns[: summary.columns.get_loc("algorithm")]]
    text = toml.read_text(encoding="utf-8") if toml.exists() else ""
    return SweepFound(folder.resolve().name, axes, summary, evaluations, read("sweep_front.csv"), read("failed.csv"), text)  # fmt: skip


def write_sweep_page(folder: Path, cost: str = "seconds") -> Path:
    """Write a sweep's ``report.html``. ``cost`` is what targets and curves are drawn over."""
    path = folder / "report.html"
    write_text(path, page(load_sweep_folder(folder), cost))
    return path


def page(sweep: SweepFound, cost: str = "seconds") -> str:
    """The whole page. A section that has no data is left out."""
    grid = " × ".join(f"{sweep.summary[axis].nunique()} {axis}" for axis in sweep.axes) or "1 point"
    seeds = f"{sweep.seeds} seed{'s' * (sweep.seeds > 1)}"
    about = [f"<p>{escape(said)}</p>" for said in _said(sweep)]
    sections = [_over_settings(sweep, cost), _numbers(sweep, cost), _curves(sweep, AXES[cost]), _front(sweep), _failed(sweep), _again(sweep)]  # fmt: skip
    return document(["sweep", grid, seeds, f"perfeds2 {__version__}"], headline(sweep, cost), about, sections)


# ---- in words


def headline(sweep: SweepFound, cost: str = "seconds") -> str:
    """Which algorithm and point met the target with least; where none did, which ends best."""
    column, unit = f"{COSTS[cost][0]}_median", {"seconds": "s", "joules": "J", "bits": "bits"}.get(cost, cost)
    table, score = sweep.summary, sweep.score
    met = table[table[column].notna()]
    if len(met):
        first = met.sort_values(["censored", column], kind="stable").iloc[0].to_dict()
        some = "" if not first["censored"] else f", in {first['seeds'] - first['censored']} of {first['seeds']} seeds"
        how = "soonest" if cost == "seconds" else f"with fewest {cost}"
        target = score.level(first["target_accuracy"])
        return f"{sweep.label(first)} reached {target} {how}, after {first[column]:,.3g} {unit} in the median{some}."
    ended = table[table[f"{ACCURACY}_mean"].notna()]
    if ended.empty:
        return "Every run diverged."
    best = ended.sort_values(f"{ACCURACY}_mean", kind="stable").iloc[-1].to_dict()
    return f"{sweep.label(best)} ends best, with {score.show(best[f'{ACCURACY}_mean'])}; nothing met the target."


def _said(sweep: SweepFound) -> list[str]:
    table, said = sweep.summary, list[str]()
    ended = table[table[f"{ACCURACY}_mean"].notna()]
    if len(ended):
        best = ended.sort_values(f"{ACCURACY}_mean", kind="stable").iloc[-1].to_dict()
        said.append(f"At the end {sweep.label(best)} has the best personalised {sweep.score.word}, {sweep.score.show(best[f'{ACCURACY}_mean'])}.")  # fmt: skip
    diverged = [sweep.label(row) for row in table[table["diverged"] > 0].to_dict("records")]
    if diverged:
        named = listed(diverged) if len(diverged) <= 6 else f"{listed(diverged[:5])} and {len(diverged) - 5} more"
        said.append(f"Diverged in a seed or more: {named}.")
    if sweep.front is not None and len(sweep.front) > 1:
        said.append(front_line(sweep.front, sweep.axes))
    if int(table["seeds"].min()) < INTERVAL_SEEDS:
        said.append(NO_INTERVAL)
    return said


# ---- charts over the settings


def _over_settings(sweep: SweepFound, cost: str) -> list[Part]:
    if not sweep.axes:
        return []
    lines = lines_of(sweep.summary, sweep.axes)
    if len(lines) > MOST_LINES:
        return section(f"Over {sweep.axes[0]}", note(f"{len(lines)} lines cannot be told apart; see the table below."))
    styles, (spent, words), score = styles_of(lines, sweep.axes), COSTS[cost], sweep.score
    _need(sweep, cost)
    ends = {name: _values(rows, ACCURACY, f"{ACCURACY}_mean", score.scale) for name, rows in lines.items()}
    charts = [_setting_chart(sweep, "ends", f"{score.named(ACCURACY)}, at the end", ends, lines, styles)]
    said = [f"At the end {coincidence(group)}" for group in coinciding(ends)]
    if sweep.summary[f"{spent}_median"].notna().any():
        costs = {name: _values(rows, spent, f"{spent}_median") for name, rows in lines.items()}
        charts.append(_setting_chart(sweep, "costs", f"{words} to the target, median", costs, lines, styles, zero=True))
        said += [f"{words} to the target: {coincidence(group)}" for group in coinciding(costs)]
    bands = sweep.seeds >= INTERVAL_SEEDS
    buttons = legend(styles, "Lines shown", bands=bands, said=said)
    hint = f"{'Upright lines are 95 % intervals over seeds. ' * bands}Click a name to hide it, double-click to see it alone."
    return section(f"Over {sweep.axes[0]}", buttons, charts, hint=hint)


def _need(sweep: SweepFound, cost: str) -> None:
    if f"{COSTS[cost][0]}_median" not in sweep.summary:
        raise ValueError(f"sweep_summary.csv has no {COSTS[cost][0]}; perfeds2 sweep --resume DIR writes it again.")


Values = tuple[np.ndarray, np.ndarray, np.ndarray]  # the middle, and the ends of the interval


def _values(rows: Any, name: str, middle: str, scale: int = 1) -> Values:
    enough = rows["seeds"] >= INTERVAL_SEEDS
    most = scale if scale > 1 else np.inf  # no share lies beyond 100 %, whatever an interval says
    low, high = (
        np.clip(scale * rows[f"{name}_{end}"].where(enough).to_numpy(float), 0 if scale > 1 else -np.inf, most)
        for end in ("low", "high")
    )
    return scale * rows[middle].to_numpy(float), low, high


def _setting_chart(
    sweep: SweepFound,
    name: str,
    title: str,
    values: Mapping[str, Values],
    lines: Mapping[str, pd.DataFrame],
    styles: Mapping[str, LineStyle],
    *,
    zero: bool = False,
) -> Chart:
    """A line each over the first setting, with the intervals as upright lines."""
    axis, widths = sweep.axes[0], line_widths(coinciding(values))
    every = list(dict.fromkeys(sweep.summary[axis]))
    numbers = all(isinstance(value, int | float) for value in every)
    traces: list[Plot] = []
    for number, (line, (middle, low, high)) in enumerate(values.items()):
        x = [value if numbers else str(value) for value in lines[line][axis]]
        look = line_look(styles[line], widths.get(line, 2.0))
        shared = {"type": "scatter", "x": x, "y": rounded(middle), "name": escape(line), "showlegend": False}
        ends = {"array": rounded(high - middle), "arrayminus": rounded(middle - low), "symmetric": False}
        bars = {"mode": "markers", "marker": {"size": 0.1, "color": styles[line].colour}, "hoverinfo": "skip"}
        bars |= {"error_y": ends | {"thickness": 1.2, "width": 3, "color": styles[line].colour}}
        if np.isfinite(low).any():
            traces.append(shared | bars | {"meta": {"line": number, "band": True}})
        hover = f"%{{y:,.4g}} at {escape(axis)}=%{{x}}<extra>{escape(line)}</extra>"
        marker = look.get("marker", {"size": 6, "color": styles[line].colour}) | {"maxdisplayed": 0}
        traces.append(shared | look | {"mode": "lines+markers", "marker": marker, "meta": {"line": number}, "hovertemplate": hover})  # fmt: skip
    x_axis: Plot = {"title": {"text": escape(axis)}}
    if not numbers:
        x_axis |= {"type": "category"}
    elif min(every) > 0 and max(every) >= 10 * min(every):
        x_axis |= {"type": "log"}
    if numbers and len(every) <= 8:
        x_axis |= {"tickvals": every, "ticktext": [value_of(value) for value in every]}
    layout = make_layout(x_axis, {"rangemode": "tozero"} if zero else {}, hovermode="closest")
    return Chart(name, title, 330, [{"data": traces, "layout": layout}])


# ---- the table


def numbers_table(sweep: SweepFound, cost: str = "seconds") -> Table:
    """A row per point and algorithm, the accuracies first."""
    score, (spent, words) = sweep.score, COSTS[cost]
    percent = " (%)" if score.is_share else ""
    best = sweep.summary[f"{ACCURACY}_mean"].max()
    heads = [f"Test {score.word}, personal{percent}", f"{words} to the target", f"Test {score.word}, global{percent}", "Train loss, personal", "Rounds", "Seeds"]  # fmt: skip
    rows: list[list[Cell]] = []
    for row in sweep.summary.to_dict("records"):
        seeds, median = int(row["seeds"]), row[f"{spent}_median"]
        form = "{:,.0f}" if cost in ("rounds", "bits") else "{:,.3g}" if cost == "joules" else "{:,.1f}"
        text, some = time_to_target(None if median != median else median, seeds - int(row["censored"]), seeds)
        text = text if median != median else form.format(median)
        name = [Span(sweep.label(row)), *([Span(f"diverged in {row['diverged']} of {seeds} seeds", "warn")] if row["diverged"] else [])]  # fmt: skip
        accuracy = _interval(row, ACCURACY, score.form, score.scale, best=best)
        others = [_interval(row, "test_accuracy", score.form, score.scale), _interval(row, "train_loss_personal", ".3f")]  # fmt: skip
        rows.append([name, accuracy, [Span(text), Span(some, "half")], *others, f"{row['rounds_mean']:,.0f}", str(seeds)])  # fmt: skip
    return Table([Column("Algorithm, point", "left", wraps=True), *map(Column, heads)], rows)


def _interval(row: Mapping[Any, Any], name: str, form: str, scale: int = 1, best: float | None = None) -> Cell:
    mean, low, high = (row[f"{name}_{part}"] for part in ("mean", "low", "high"))
    if mean != mean:  # a seed diverged
        return "–"
    half = "" if low != low or row["seeds"] < INTERVAL_SEEDS else f" ± {scale * (high - low) / 2:{form}}"
    return [Span(f"{scale * mean:{form}}", "best" if mean == best else ""), Span(half, "half")]


def _numbers(sweep: SweepFound, cost: str) -> list[Part]:
    _need(sweep, cost)
    hint = "At the end: means over seeds, ± half of the 95 % interval. To the target: medians; a seed that never met it is later than all."
    return section("In numbers", scrolling(as_html(numbers_table(sweep, cost)), "Results"), hint=hint)


def write_sweep_latex(folder: Path, out: Path, cost: str = "seconds") -> Path:
    """``sweep.tex``: the page's table, for a paper."""
    sweep = load_sweep_folder(folder)
    _need(sweep, cost)
    out.mkdir(parents=True, exist_ok=True)
    about = in_latex(
        f"perfeds2 {__version__} sweep over {', '.join(sweep.axes) or 'one point'}. {headline(sweep, cost)}"
    )
    write_text(out / "sweep.tex", f"% {about}\n{as_latex(numbers_table(sweep, cost))}\n")
    return out / "sweep.tex"


# ---- curves


def _curves(sweep: SweepFound, axis: Axis | None) -> list[Part]:
    """Every point of the grid over time, an algorithm at a time."""
    table, names = along(sweep.evaluations, axis, "sweep.csv"), list(dict.fromkeys(sweep.evaluations["algorithm"]))
    points = list(dict.fromkeys(map(sweep.label, sweep.summary.assign(algorithm="").to_dict("records"))))
    labels = [point.removeprefix(", ") or "the only point" for point in points]
    if len(labels) > MOST_POINTS:
        return []
    table = table.assign(point=[sweep.label(row).removeprefix(", ") or "the only point" for row in table[sweep.axes].assign(algorithm="").to_dict("records")])  # fmt: skip
    grid, styles = np.linspace(0.0, table["time_s"].to_numpy(float).max(), POINTS), ordered_styles(labels)
    said, plots = list[str](), list[Plot]()
    bands = False
    for name in names:
        own = {label: pd.DataFrame(table[(table["algorithm"] == name) & (table["point"] == label)]) for label in labels}
        found = {label: mean_curve(rows, ACCURACY, until_shortest(rows, grid)) for label, rows in own.items() if len(rows)}  # fmt: skip
        panel = CurvePanel(ACCURACY, in_view(found, ACCURACY), styles, _target(sweep), score=sweep.score)
        panel = panel if axis is None else replace(panel, time_label=axis.label, unit=axis.unit)
        numbers = {label: FIRST_CURVE + place for place, label in enumerate(labels)}
        plots += curve_chart(panel, numbers).plots
        said += [f"{name}: {coincidence(group)}" for group in coinciding({n: (c.time_s, c.mean) for n, c in panel.curves.items()})]  # fmt: skip
        bands = bands or any(curve.low is not None for curve in panel.curves.values())
    chart = Chart("curves", sweep.score.named(ACCURACY), 400, plots, tuple(names))
    over = "simulated time" if axis is None else axis.words
    buttons = legend(styles, "Points shown", FIRST_CURVE, bands=bands, said=said)
    hint = f"{over_seeds(sweep.seeds, bands)} Click a point to hide it, double-click to see it alone."
    title = f"{sweep.score.word[0].upper()}{sweep.score.word[1:]} over {over}"
    return section(title, buttons, choice(chart, "Algorithm shown"), chart, hint=hint)


FIRST_CURVE = 1_000  # the numbers of points, so that their legend speaks for their chart alone


def _target(sweep: SweepFound) -> float | None:
    """Where all points have one target."""
    targets: set[float] = set(sweep.summary["target_accuracy"])
    return targets.pop() if len(targets) == 1 else None


# ---- the rest


def _front(sweep: SweepFound) -> list[Part]:
    """Seconds against joules to the target; what nothing beats is joined."""
    if sweep.front is None or len(sweep.front) < 2:
        return []
    best = pd.DataFrame(sweep.front[sweep.front["on_front"] == 1])
    traces: list[Plot] = []
    for rows, name, look in (
        (sweep.front, "met the target", {"mode": "markers", "marker": {"size": 7, "color": "#6B7785"}}),
        (best, "nothing is sooner with less energy", {"mode": "lines+markers", "line": {"color": "#D55E00", "shape": "hv", "dash": "7px,3px"}, "marker": {"size": 11, "symbol": "circle-open", "color": "#D55E00", "line": {"width": 2}}}),
    ):  # fmt: skip
        seconds, joules = (rounded(rows[cost]) for cost in FRONT_COSTS)
        text = [escape(sweep.label(row)) for row in rows.to_dict("records")]
        hover = "%{text}<br>%{x:,.3g} s, %{y:,.3g} J<extra></extra>"
        traces.append({"type": "scatter", "x": seconds, "y": joules, "text": text, "name": name, "hovertemplate": hover, **look})  # fmt: skip
    layout = make_layout({"title": {"text": "Seconds to the target, median"}}, {"title": {"text": "Joules"}}, hovermode="closest")  # fmt: skip
    layout |= {"showlegend": True, "legend": {"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom"}}
    layout["margin"] |= {"t": 30, "l": 60}
    chart = Chart("front", "Time and energy to the target", 360, [{"data": traces, "layout": layout}])
    return section(chart.title, chart, hint="A point is an algorithm at a point of the grid.")


def _failed(sweep: SweepFound) -> list[Part]:
    if sweep.failed is None or sweep.failed.empty:
        return []
    columns = [Column(str(name), "left", wraps=True) for name in sweep.failed.columns]
    rows = [list(map(str, row)) for row in sweep.failed.to_numpy().tolist()]
    return section("Failed", scrolling(as_html(Table(columns, rows)), "Failed"))


def _again(sweep: SweepFound) -> list[Part]:
    spec = ['<p class="hint">sweep.toml, the grid and what it goes over:</p>', verbatim(sweep.toml)] if sweep.toml else []  # fmt: skip
    hint = "It goes on with what is missing, and draws this page again. Every evaluation is in sweep.csv."
    return section("Run it again", verbatim(f"perfeds2 sweep --resume {sweep.name}"), *spec, hint=hint)
