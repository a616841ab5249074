"""Show cells, timelines and results as one line of text, a table or a drawing.

A terminal shows the line; a notebook adds the drawing and the first rows of the table. Pandas and Matplotlib are
imported on demand.
"""

import base64
import io
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from perfeds2.chart import Bars, Chart, ChartAxis, LineStyle, Series, draw

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

Interval = tuple[Literal["computing", "sending", "waiting", "idle"], float, float]  # state, from second, to second
STATE_COLOURS: dict[Literal["computing", "sending", "waiting", "idle"], str] = {
    "computing": "#33608C",
    "sending": "#E69F00",
    "waiting": "#BCC3CB",
    "idle": "#E4E7EB",
}
LOST_COLOUR = "#C8102E"  # discarded jobs
DASHES_PX = {"SYN": (14, 6), "ASY": (4, 4)}  # by the suffix of the algorithm's name; others are solid
ROWS = 6  # shown of a table in a notebook
Size = tuple[float, float]  # inches


def in_a_line(thing: object, *facts: str) -> str:
    """Return a one-line representation such as ``<Cell: 20 UEs, …>``."""
    return f"<{type(thing).__name__}: {', '.join(facts)}>"


def as_html(line: str, table: "pd.DataFrame", draw: "Callable[[Axes], Any] | None" = None, size: Size = (6, 3)) -> str:
    """Return the line, the drawing and the first rows of the table as HTML, with all text escaped."""
    picture = "" if draw is None else f'<img alt="{escape(line)}" src="data:image/png;base64,{_png(draw, size)}">'
    rest = f"<p>… {len(table) - ROWS:,} more rows: .frame()</p>" if len(table) > ROWS else ""
    return f"<p>{escape(line)}</p>{picture}{table.head(ROWS).to_html(index=False, float_format='%.4g')}{rest}"


def _png(draw: "Callable[[Axes], Any]", size: Size) -> str:
    """Render a drawing as base64 PNG. pyplot would keep the figure, and a notebook would show it twice."""
    from matplotlib.figure import Figure

    figure, file = Figure(figsize=size, layout="constrained"), io.BytesIO()
    draw(figure.subplots())
    figure.savefig(file, format="png", dpi=90)
    return base64.b64encode(file.getvalue()).decode()


def axes_for(axes: "Axes | None", size: Size) -> "Axes":
    """Return the given axes, or those of a new figure."""
    if axes is not None:
        return axes
    from matplotlib import pyplot

    return pyplot.subplots(figsize=size, layout="constrained")[1]


def draw_places(axes: "Axes", x_m: Any, y_m: Any, cpu_hz: Any) -> "Axes":
    """Draw UEs around their base station; larger points are faster processors."""
    axes.scatter(x_m, y_m, s=12 + 60 * cpu_hz / cpu_hz.max(), c=STATE_COLOURS["computing"], alpha=0.75, label="UE")
    axes.plot([0], [0], "^", color="black", markersize=9, label="base station")
    axes.set(xlabel="m", ylabel="m", aspect="equal")
    return axes


def activity_chart(
    rows: Sequence[Sequence[Interval]],
    merged: tuple[Any, Any],
    lost: tuple[Any, Any],
    window_s: float,
) -> Chart:
    """Describe what each UE does over time, one row per UE.

    Args:
        rows: Intervals of each UE, as (state, start, end) in simulated seconds.
        merged: UEs and times in seconds of merged updates, drawn as diamonds.
        lost: UEs and times in seconds of discarded jobs, drawn as crosses.
        window_s: Where the time axis ends.
    """
    items: list[Bars | Series] = []
    for state, colour in STATE_COLOURS.items():
        found = [
            (ue, start, min(end, window_s))
            for ue, row in enumerate(rows)
            for what, start, end in row
            if what == state and start < window_s
        ]
        if found:
            ues, starts, ends = (np.array(column) for column in zip(*found, strict=True))
            hover = f"UE %{{y}} {state}<br>%{{base:,.2f}} s to %{{x:,.2f}} s<extra></extra>"
            items.append(Bars(state, ues, starts, ends - starts, colour, hover=hover))
    for (ues, times), name, look in (
        (merged, "merged", LineStyle("", (), "D")),
        (lost, "discarded", LineStyle(LOST_COLOUR, (), "x")),
    ):
        if len(ues):
            hover = [f"UE {ue}: {name}, {time:,.2f} s" for ue, time in zip(ues, times, strict=True)]
            items.append(Series(name, times, ues, look, "marks", hover=hover, size_px=6))
    y = ChartAxis("UE", limits=(len(rows) - 0.5, -0.5))
    x = ChartAxis("simulated seconds", limits=(0.0, 1.01 * max(window_s, 1e-12)))
    return Chart("activity", "", items, x, y, height_px=110 + 20 * len(rows), legend=True)


def draw_activity(axes: "Axes", chart: Chart) -> "Axes":
    draw(axes, chart)
    if axes.has_data():
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=6, fontsize="small", frameon=False)
    return axes


def draw_curves(axes: "Axes", table: "pd.DataFrame", x: str, y: str) -> "Axes":
    """Draw the mean of column ``y`` over column ``x``, one line for each algorithm."""
    places = None if table[x].dtype.kind in "biuf" else {value: at for at, value in enumerate(table[x].unique())}
    items: list[Series] = []
    for number, (name, own) in enumerate(table.groupby("algorithm", sort=False)):
        means: Any = own.groupby(x, sort=places is None)[y].mean()
        dash_px = next((dash for end, dash in DASHES_PX.items() if str(name).endswith(end)), ())
        style = LineStyle(f"C{number % 10}", dash_px, "." * (len(means) < 8))
        at = means.index.to_numpy() if places is None else [places[value] for value in means.index]
        items.append(Series(str(name), at, means.to_numpy(), style, "line"))
    ticks = None if places is None else {at: str(value) for value, at in places.items()}
    draw(axes, Chart("curves", "", items, ChartAxis(x.replace("_", " "), ticks=ticks), ChartAxis(y.replace("_", " "))))
    axes.legend(fontsize="small", frameon=False)
    return axes


def means_of(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> "pd.DataFrame":
    """Return summary rows as a table, with each statistic replaced by its mean, or its median if it has no mean."""
    import pandas as pd

    def plain(value: Any) -> Any:
        return value.get("mean", value.get("median")) if isinstance(value, Mapping) else value

    return pd.DataFrame([{name: plain(row[name]) for name in columns if name in row} for row in rows])
