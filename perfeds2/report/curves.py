"""Draw metrics over time: means over seeds with their 95 % intervals."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from jaxtyping import Float

from perfeds2.chart import Chart, ChartAxis, LineStyle, Series
from perfeds2.learning.metrics import Score
from perfeds2.report.read import RunResults
from perfeds2.report.style import ACCURACY, METRICS
from perfeds2.runs.costs import SECONDS, Cost
from perfeds2.runs.statistics import NO_INTERVAL, mean_and_interval

POINTS = 240  # points per curve


def run_charts(run: RunResults, metrics: Iterable[str] = METRICS, group: str = "") -> list[Chart]:
    """Draw the metrics that a run recorded, one chart each."""
    if run.metrics is None:
        return []
    until = run.horizon_s if run.rounds is None and run.cost is SECONDS else None
    charts = []
    for metric in (each for each in metrics if each in run.metrics):
        target = run.target_accuracy if metric == ACCURACY else None
        made = curve_chart(run.metrics, metric, run.styles, run.score, target=target, until=until, cost=run.cost)
        if made.items:
            name = metric.replace("_", "-")
            x = replace(made.x, label=run.time_label) if run.cost is SECONDS else made.x
            charts.append(replace(made, name=f"{group}-{name}" if group else name, x=x, group=group))
    return charts


def curve_chart(
    rows: pd.DataFrame,
    metric: str,
    styles: Mapping[str, LineStyle],
    score: Score,
    *,
    target: float | None = None,
    until: float | None = None,
    cost: Cost = SECONDS,
    points: int = POINTS,
) -> Chart:
    """Draw a metric over time or another cost, with a curve for every name in ``styles`` that has rows.

    The last value holds until the next evaluation. A curve ends where its shortest seed ends, or at ``until`` if that
    is when the run was stopped.
    """
    is_score = "accuracy" in metric
    scale = score.scale if is_score else 1
    times = rows["time_s"].to_numpy(float)
    grid = np.linspace(0.0, max(times.max(), until or 0.0), points)
    lines: list[Series] = []
    for name, style in styles.items():
        own = pd.DataFrame(rows[rows["algorithm"] == name])
        if len(own):
            line = mean_line(name, style, own, metric, grid if until is not None else until_shortest(own, grid), scale)
            lines += [line] if len(line.x) else []
    limits = (0.0, 100.0) if score.is_share else (-math.inf, math.inf)
    y = ChartAxis(within=limits, form=score.form, unit=score.unit)
    if not is_score:
        limits = (0.0, loss_ceiling(lines)) if lines else (0.0, 1.0)
        y = ChartAxis(limits=limits, form=".3f")
    lines = [bounded(line, *limits) for line in lines]
    x = ChartAxis(cost.label, limits=(0.0, max((line.x[-1] for line in lines), default=1.0)))
    level = None if target is None else (score.scale * target, f"target {score.level(target)}")
    return Chart(metric.replace("_", "-"), score.named(metric), lines, x, y, level)


def mean_line(
    name: str, style: LineStyle, rows: pd.DataFrame, metric: str, time_s: Float[np.ndarray, " t"], scale: int
) -> Series:
    """Return the mean over seeds, cut where a seed is first non-finite: a diverged run has no mean."""
    seeds = [seed for _, seed in rows.groupby("seed", sort=True)]
    values = np.stack(
        [carry_forward(each["time_s"].to_numpy(float), each[metric].to_numpy(float), time_s) for each in seeds]
    )
    finite = np.isfinite(values).all(axis=0)
    length = time_s.size if finite.all() else int(finite.argmin())
    mean, low, high = mean_and_interval(scale * values[:, :length])
    return Series(name, time_s[:length], mean, style, low=low, high=high)


def carry_forward(
    time_s: Float[np.ndarray, " e"], values: Float[np.ndarray, " e"], grid_s: Float[np.ndarray, " t"]
) -> Float[np.ndarray, " t"]:
    """Return the latest value at each time of the grid; NaN before the first value."""
    index = np.searchsorted(time_s, grid_s, side="right") - 1
    return np.where(index >= 0, values[index], np.nan)


def until_shortest(rows: pd.DataFrame, grid: Float[np.ndarray, " g"]) -> Float[np.ndarray, " t"]:
    """Cut the grid where the shortest seed ends: there is no mean over all seeds beyond that."""
    end = min(float(times.iloc[-1]) for _, times in rows.groupby("seed")["time_s"])
    inside = grid[grid <= end]
    return inside if inside[-1] == end else np.append(inside, end)


def bounded(line: Series, lowest: float, highest: float) -> Series:
    """Clip the interval to the metric's range and the drawn area; drop it where the mean is above the area.

    No accuracy exceeds 100 % and no loss is below 0. The interval of a diverging run would cover all the others.
    """
    if line.low is None or line.high is None:
        return line
    low, high = (np.where(line.y > highest, line.y, np.clip(end, lowest, highest)) for end in (line.low, line.high))
    return replace(line, low=low, high=high)


def loss_ceiling(lines: Sequence[Series]) -> float:
    """Return the upper limit of a loss axis, chosen so that a diverging run does not flatten the others."""
    highest = max(float((line.y if line.high is None else line.high).max()) for line in lines)
    start = max(float(line.y[0]) for line in lines)
    return min(highest * 1.05, start * 1.5)


def over_seeds(seeds: int, has_intervals: bool) -> str:
    """Describe what a curve averages over."""
    if seeds == 1:
        return "One seed."
    return f"The mean over {seeds} seeds{' with its 95 % interval.' if has_intervals else f'. {NO_INTERVAL}'}"
