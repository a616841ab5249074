"""Make the table of phones: where each is, how well it is received, what it did, and the energy that took."""

from collections.abc import Iterator, Mapping
from itertools import groupby

import numpy as np

from perfeds2.network.cell import Cell
from perfeds2.network.cells import Cells
from perfeds2.network.link import PerUe, rate_bps
from perfeds2.runs.store import Facts, Row
from perfeds2.spec.cells import fleet_of, make_cell, make_energy, make_network
from perfeds2.spec.fields import Spec
from perfeds2.timeline.energy import energy_of
from perfeds2.timeline.jobs import LOST, MERGED
from perfeds2.timeline.record import Timeline

MOST_UES = 10_000  # a larger population has no table
DAY_S, JOULES_PER_WH = 86_400.0, 3_600.0
COLUMNS = [
    "algorithm",
    "seed",
    "ue",
    "name",
    "group",
    "x_m",
    "y_m",
    "cell",
    "indoor_and_antenna_db",
    "snr_db",
    "bits_per_s_hz",
    "computing_s",
    "sending_s",
    "waiting_s",
    "jobs",
    "merged",
    "lost",
    "joules",
    "joules_per_day",
    "battery_percent_per_day",
]


def phone_rows(
    spec: Spec, timelines: Mapping[tuple[str, int], Timeline], facts: Mapping[tuple[str, int], Facts]
) -> Iterator[Row]:
    """Yield a row per algorithm, seed and UE.

    The SNR and the efficiency are those on an equal part of the cell's band, averaged over fading, at time 0.

    Args:
        spec: The settings that were run.
        timelines: The timeline of each (algorithm, seed).
        facts: Facts by (algorithm, seed).
    """
    by_seed = sorted(timelines, key=lambda which: which[1])
    for seed, group in groupby(by_seed, key=lambda which: which[1]):
        cells = make_network(spec, seed)
        cell = make_cell(spec, seed) if cells is None else cells.whole
        who = links_of(spec, cell, cells)
        for which in group:
            bits = np.broadcast_to(facts[which].get("ue_upload_bits", facts[which]["upload_bits"]), cell.ues)
            spent = _spent(spec, timelines[which], cell, bits, who["battery_wh"])
            for ue in range(cell.ues):
                own = {name: column[ue] for name, column in (who | spent).items()}
                shown = {name: "" if value != value else value for name, value in own.items()}
                yield {"algorithm": which[0], "seed": seed, "ue": ue, **shown}


def links_of(spec: Spec, cell: Cell, cells: Cells | None) -> dict[str, list]:
    """Return the columns that do not depend on the algorithm: names, places and links of UEs."""
    n = cell.ues
    fleet = fleet_of(spec)
    rows = () if fleet is None else fleet.rows
    if cells is None:
        x_m, y_m, cell_of, networks = cell.where.x_m, cell.where.y_m, np.zeros(n, int), [(cell, np.arange(n))]
    else:
        x_m, y_m, cell_of = cells.places()
        networks = list(zip(cells.cells, cells.ues, strict=True))
    signal_hz, per_hz = np.full(n, np.nan), np.full(n, np.nan)
    beyond_db, part_hz = np.zeros(n), np.empty(n)
    for number, (one, ues) in enumerate(networks):
        mine = cell_of[ues] == number
        own, shares = ues[mine], np.ones(n, bool) if one.fleet is None or cells is not None else one.fleet.shares_band
        part_hz[own] = one.bandwidth_hz / max(np.count_nonzero(shares[own]), 1)
        mean_hz = one.mean_signal_hz[mine] * one.fading.signal_of_amplitude(1.0)
        signal_hz[own] = np.where(shares[own], mean_hz, np.nan)
        per_hz[own] = rate_bps(part_hz[own], signal_hz[own], one.limit) / part_hz[own]
        beyond_db[own] = 0.0 if one.offset_db is None else one.offset_db[mine]
    return {
        "name": [row.name for row in rows] or [""] * n,
        "group": [row.group for row in rows] or [""] * n,
        "x_m": x_m.tolist(),
        "y_m": y_m.tolist(),
        "cell": cell_of.tolist(),
        "indoor_and_antenna_db": beyond_db.tolist(),
        "snr_db": (10 * np.log10(signal_hz / part_hz)).tolist(),
        "bits_per_s_hz": per_hz.tolist(),
        "battery_wh": [row.numbers.get("battery_wh", np.nan) for row in rows] or [np.nan] * n,
    }


def _spent(spec: Spec, timeline: Timeline, cell: Cell, bits: PerUe, battery_wh: list[float]) -> dict[str, list]:
    """Return the time and energy of every UE, by column."""
    ues, jobs = timeline.population, timeline.jobs()

    def total(of: PerUe) -> list[float]:
        return np.bincount(jobs.ue, of, ues).tolist()

    sending_s, computing_s = jobs.arrival_s - jobs.sending_s, jobs.sending_s - jobs.begun_s
    joules = energy_of(timeline, cell, make_energy(spec), bits, np.zeros(0)).ue_j
    a_day_j = joules * (DAY_S / timeline.end_s if timeline.end_s > 0 else np.nan)
    return {
        "computing_s": total(computing_s),
        "sending_s": total(sending_s),
        "waiting_s": (timeline.end_s - np.array(total(computing_s + sending_s))).tolist(),
        "jobs": np.bincount(jobs.ue, minlength=ues).tolist(),
        "merged": np.bincount(jobs.ue[jobs.outcome == MERGED], minlength=ues).tolist(),
        "lost": np.bincount(jobs.ue[jobs.outcome == LOST], minlength=ues).tolist(),
        "joules": joules.tolist(),
        "joules_per_day": a_day_j.tolist(),
        "battery_percent_per_day": (100 * a_day_j / JOULES_PER_WH / np.array(battery_wh)).tolist(),
    }
