"""Show many cells on a page: their map, the load of each, end-to-end staleness and the traffic to the cloud."""

from collections.abc import Sequence

import numpy as np

from perfeds2.chart import Chart, ChartAxis, LineStyle, Series
from perfeds2.files import Json
from perfeds2.report.document import Part, section, with_legend
from perfeds2.report.read import RunResults
from perfeds2.report.tables import Column, Table, counted
from perfeds2.report.timelines import Group, at_most, styled
from perfeds2.shown import STATE_COLOURS
from perfeds2.timeline.cloud import Cloud
from perfeds2.timeline.edges import edge_staleness, end_to_end_staleness
from perfeds2.timeline.record import Timeline

MOST_ROWS = 20  # cells in the table


def cells_sections(run: RunResults, shown: Sequence[Group]) -> list[list[Part]]:
    """Return the page sections on cells and cloud; none for a run with one cell."""
    clouds = [group for group in shown if group.timelines[0].cloud is not None]
    sections = [] if run.cells is None else [section("Cells", [map_chart(run.cells)], hint=_map_hint(run, run.cells))]
    if not clouds:
        return sections
    timeline = clouds[0].timelines[0]
    assert timeline.cloud is not None
    hint = f"{clouds[0].label} with seed {run.seeds[0]}. {traffic(timeline, timeline.cloud)}"
    spent = [each.finite("joules") for each in clouds[0].algorithms]
    hint += f" The UEs spent {spent[0][0]:,.3g} J." if any(spent) else ""
    sections.append(section("Load of each cell", load_table(timeline, timeline.cloud), hint=hint))
    hint = (
        "How many cloud rounds passed between the cloud's model that an update descends from and the cloud round that "
        "merged it, over all seeds."
    )
    charts = with_legend([staleness_chart(clouds)], "Algorithms shown")
    return [*sections, section("End-to-end staleness", *charts, hint=hint)]


def map_chart(cells: Json) -> Chart:
    """Draw base stations and the UEs attached to them at the start."""
    ues = [f"UE {ue}, cell {cell}" for ue, cell in zip(cells["ue"], cells["ue_cell"], strict=True)]
    stations = [f"Base station {number}" for number in range(len(cells["x_m"]))]
    dot, station = LineStyle(STATE_COLOURS["computing"], (), "o"), LineStyle("", (), "^")
    items = [
        Series("UE", cells["ue_x_m"], cells["ue_y_m"], dot, "marks", hover=ues, size_px=5),
        Series("base station", cells["x_m"], cells["y_m"], station, "marks", hover=stations, size_px=11),
    ]
    title, metres = "Base stations and UEs at the start", ChartAxis("m")
    return Chart("cells", title, items, metres, metres, height_px=460, legend=True, is_map=True)


def _map_hint(run: RunResults, cells: Json) -> str:
    said = f"{counted(len(cells['x_m']), 'cell')} of seed {run.seeds[0]}."
    if len(cells["ue"]) < run.ues:
        said += f" {len(cells['ue']):,} of {run.ues:,} UEs are drawn."
    handovers = cells["handovers"]
    return said if handovers is None else f"{said} UEs changed their cell {handovers:,} times."


def load_table(timeline: Timeline, cloud: Cloud) -> Table:
    """Return a table of each cell's UEs, rounds and merged updates; with many cells, of those with most rounds.

    If UEs move, the number of UEs of a cell changes and is not shown.
    """
    rounds = np.bincount(cloud.cell, minlength=cloud.edges)
    in_cloud = np.bincount(cloud.cells.ravel(), minlength=cloud.edges)
    in_edge = edge_staleness(timeline).mean(axis=1)
    stale = np.bincount(cloud.cell, in_edge, cloud.edges) / np.maximum(rounds, 1)
    order = np.argsort(-rounds, kind="stable")[:MOST_ROWS] if cloud.edges > MOST_ROWS else np.arange(cloud.edges)
    rows = [
        [
            str(cell),
            f"{cloud.sizes[cell]:,}" if cloud.sizes.sum() == timeline.population else "–",
            f"{rounds[cell]:,}",
            f"{timeline.end_s / rounds[cell]:,.3g}" if rounds[cell] else "–",
            f"{rounds[cell] * timeline.quorum:,}",
            f"{stale[cell]:.2f}",
            f"{in_cloud[cell]:,}",
        ]
        for cell in order
    ]
    heads = ("Cell", "UEs", "Rounds", "Seconds per round", "Merged updates", "Mean staleness", "Merged by the cloud")
    caption = f"The {MOST_ROWS} busiest of {cloud.edges:,} cells." if cloud.edges > MOST_ROWS else None
    return Table([Column(head) for head in heads], rows, caption=caption)


def traffic(timeline: Timeline, cloud: Cloud) -> str:
    """Return a sentence on the cloud's rounds and what they sent over the backhaul."""
    closed = counted(cloud.time_s.size, "round")
    said = f"The cloud closed {closed} in {timeline.end_s:,.4g} s; the backhaul carried {cloud.total_bits:,.4g} bit"
    followed = cloud.followed_bits.sum()
    return said + (f", {followed:,.4g} of them for uploads of UEs that had changed their cell." if followed else ".")


def staleness_chart(shown: Sequence[Group]) -> Chart:
    """Draw the distribution of end-to-end staleness of the updates that a cloud round merged."""
    lines = list[Series]()
    for group, label, style in styled(shown):
        ages = np.concatenate([end_to_end_staleness(timeline).ravel() for timeline in group.timelines])
        ages = ages[ages >= 0]
        lines += [at_most(label, style, ages)] if ages.size else []
    title = "Updates at most this stale at the cloud"
    return Chart("end-to-end", title, lines, ChartAxis("Cloud rounds"), ChartAxis("%", unit=" %"), group="cells")
