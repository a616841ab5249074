"""Show many cells on a page: their map, the load of each, end-to-end staleness and the traffic to the cloud."""

from collections.abc import Sequence

import numpy as np

from perfeds2.chart import NEUTRAL, Bars, Chart, ChartAxis, LineStyle, Series
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
RADIO_HEADS = ("Median SINR (dB)", "Merged Mbit/s")
SINR_CLASSES = (  # name, colour and limits in dB
    ("UE below 0 dB", "#D55E00", -np.inf, 0.0),
    ("UE from 0 to 10 dB", "#E69F00", 0.0, 10.0),
    ("UE from 10 to 20 dB", "#56B4E9", 10.0, 20.0),
    ("UE from 20 dB", "#0072B2", 20.0, np.inf),
)
BAND_COLOURS = ("#CC79A7", "#009E73", "#8C6D1F")  # of the thirds of the band


def cells_sections(run: RunResults, shown: Sequence[Group]) -> list[list[Part]]:
    """Return the page sections on cells and cloud; none for a run with one cell."""
    clouds = [group for group in shown if group.timelines[0].cloud is not None]
    sections = [] if run.cells is None else [section("Cells", [map_chart(run.cells)], hint=_map_hint(run, run.cells))]
    if not clouds:
        shown = [group for group in shown if run.cells is not None and len(run.cells["ue"]) == run.ues]
        tables = [served_table(group.timelines[0], run.cells or {}) for group in shown[:1]]
        hint = f"{shown[0].label} with seed {run.seeds[0]}, by the UEs' cells at the start." if shown else ""
        return [*sections, section("Load of each cell", *tables, hint=hint)]
    timeline = clouds[0].timelines[0]
    assert timeline.cloud is not None
    hint = f"{clouds[0].label} with seed {run.seeds[0]}. {traffic(timeline, timeline.cloud)}"
    spent = [each.finite("joules") for each in clouds[0].algorithms]
    hint += f" The UEs spent {spent[0][0]:,.3g} J." if any(spent) else ""
    sections.append(section("Load of each cell", load_table(timeline, timeline.cloud, run.cells), hint=hint))
    hint = (
        "How many cloud rounds passed between the cloud's model that an update descends from and the cloud round that "
        "merged it, over all seeds."
    )
    charts = with_legend([staleness_chart(clouds)], "Algorithms shown")
    return [*sections, section("End-to-end staleness", *charts, hint=hint)]


def map_chart(cells: Json) -> Chart:
    """Draw the cells' borders, the UEs at the start by their SINR, and the base stations by their part of the band."""
    sinr_db = np.array(_sinr_db(cells), float)
    said = ["" if np.isnan(each) else f", SINR {each:.1f} dB" for each in sinr_db]
    ues = [f"UE {ue}, cell {cell}{db}" for ue, cell, db in zip(cells["ue"], cells["ue_cell"], said, strict=True)]
    grey, items = LineStyle(NEUTRAL), list[Series | Bars]()
    if "radius_m" in cells:
        items.append(Series("border", *_borders(cells), grey, "line", listed=False))
    marks = [("UE", STATE_COLOURS["computing"], np.isnan(sinr_db))]
    marks += [(name, colour, (sinr_db >= low) & (sinr_db < high)) for name, colour, low, high in SINR_CLASSES]
    for name, colour, some in marks:
        at, style = np.flatnonzero(some), LineStyle(colour, (), "o")
        x_m, y_m = (np.array(cells[f"ue_{axis}_m"])[at] for axis in "xy")
        items += [Series(name, x_m, y_m, style, "marks", hover=[ues[ue] for ue in at], size_px=6)] if at.size else []
    bands = np.array(cells.get("band") or [0] * len(cells["x_m"]))
    for band in np.unique(bands).tolist():
        at = np.flatnonzero(bands == band)
        x_m, y_m = (np.array(cells[f"{axis}_m"])[at] for axis in "xy")
        name = f"base station, band {band + 1}" if "band" in cells else "base station"
        style, hover = (
            LineStyle(BAND_COLOURS[band] if "band" in cells else "", (), "^"),
            [f"Cell {each}" for each in at],
        )
        items.append(Series(name, x_m, y_m, style, "marks", hover=hover, size_px=11))
    title, metres = "Base stations and UEs at the start", ChartAxis("m")
    return Chart("cells", title, items, metres, metres, height_px=460, legend=True, is_map=True)


def _sinr_db(cells: Json) -> list[float | None]:
    """Return the SINR of the UEs on a map; None for one with a dedicated uplink, and for those of older runs."""
    return cells.get("ue_sinr_db") or [None] * len(cells["ue"])


def _borders(cells: Json) -> tuple[np.ndarray, np.ndarray]:
    """Return the outlines of the hexagons around base stations, and of sectors, as one line with gaps."""
    corners = np.exp(1j * np.pi / 3 * np.arange(7))
    places, sharing = np.unique(np.array(cells["x_m"]) + 1j * np.array(cells["y_m"]), return_counts=True)
    lines = list[np.ndarray]()
    for place, count in zip(places, sharing, strict=True):
        outlines = [corners]
        if count == 3:  # sectors point to 30°, 150° and 270°
            outlines += [np.array([0, np.sqrt(3) / 2 * np.exp(1j * np.radians(angle))]) for angle in (90, 210, 330)]
        lines += [np.append(place + cells["radius_m"] * outline, np.nan) for outline in outlines]
    whole = np.concatenate(lines)
    return np.real(whole), np.imag(whole)


def _map_hint(run: RunResults, cells: Json) -> str:
    said = f"{counted(len(cells['x_m']), 'cell')} of seed {run.seeds[0]}."
    if len(cells["ue"]) < run.ues:
        said += f" {len(cells['ue']):,} of {run.ues:,} UEs are drawn."
    said += " The SINR is on an equal part of a cell's band." if "ue_sinr_db" in cells else ""
    handovers = cells["handovers"]
    return said if handovers is None else f"{said} UEs changed their cell {handovers:,} times."


def served_table(timeline: Timeline, cells: Json) -> Table:
    """Return a table of what one server got from the UEs of each cell."""
    cell_of, merges = np.array(cells["ue_cell"]), timeline.merges
    rows = [
        [str(cell), f"{np.sum(cell_of == cell):,}", f"{merged:,}", *_radio_cells(cells, cell, merged, timeline.end_s)]
        for cell in range(len(cells["x_m"]))
        for merged in [int(merges[cell_of == cell].sum())]
    ][:MOST_ROWS]
    return Table([Column(head) for head in ("Cell", "UEs", "Merged updates", *RADIO_HEADS)], rows)


def _radio_cells(cells: Json | None, cell: int, merged: int, end_s: float) -> list[str]:
    """Return the median SINR of a cell's UEs in dB and what it carried of merged updates in Mbit/s."""
    if cells is None or "upload_bits" not in cells:
        return ["–", "–"]
    own = [db for db, of in zip(_sinr_db(cells), cells["ue_cell"], strict=True) if of == cell and db is not None]
    return [f"{np.median(own):.1f}" if own else "–", f"{merged * cells['upload_bits'] / max(end_s, 1e-9) / 1e6:,.3g}"]


def load_table(timeline: Timeline, cloud: Cloud, cells: Json | None = None) -> Table:
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
            *_radio_cells(cells, int(cell), int(rounds[cell]) * timeline.quorum, timeline.end_s),
        ]
        for cell in order
    ]
    heads = (
        "Cell",
        "UEs",
        "Rounds",
        "Seconds per round",
        "Merged updates",
        "Mean staleness",
        "Merged by the cloud",
        *RADIO_HEADS,
    )
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
