"""Convert a drive test or a contact plan, a plain CSV file, to a fleet with a trace per device::

    python examples/import_links.py drive drive.csv --out car --band-hz 1e6
    python examples/import_links.py contacts plan.csv --out satellites --period-s 86400

- ``drive``: columns ``time_s,rsrp_dbm`` and, for several phones, ``name``. The path gain is the RSRP minus
  ``--reference-dbm``, the base station's power per resource element (46 dBm on 1,200 of them: 15 dBm), also for the
  uplink. With ``--power-dbm`` on a dedicated ``--band-hz`` it gives the SNR, and TR 36.942 the rate at it.
- ``contacts``: columns ``name,start_s,end_s,bps``, a row for each time in which a satellite and a ground station see each
  other. A device is available during its contacts; of several at once, the fastest counts. ``--period-s`` repeats the plan.
"""

import argparse
import csv
import itertools
import math
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from perfeds2 import InputError, spec_from

NOISE_DBM_PER_HZ = -174.0
SHARE, MOST, LEAST_DB = 0.4, 2.0, -10.0  # of Shannon's rate, bit/s/Hz and SNR: the uplink of TR 36.942, annex A
Samples = dict[str, list[list[float]]]  # by device: the numbers of its rows


class Device(NamedTuple):
    """A row of the fleet."""

    name: str
    steps: list[tuple[float, float]]  # second, and rate from then on
    available: str = ""


def read(path: Path, columns: Sequence[str]) -> Samples:
    """Return the numbers of each device, in the order of the columns."""
    samples: Samples = defaultdict(list)
    with path.open(newline="", encoding="utf-8-sig") as file:
        for line, row in enumerate(csv.DictReader(file), 2):
            try:
                samples[row.get("name") or "phone"].append([float(row[column]) for column in columns])
            except (KeyError, TypeError, ValueError):
                raise InputError(f"{path} line {line} needs numbers in the columns {', '.join(columns)}.") from None
    if not samples:
        raise InputError(f"{path} has no rows; expected the columns {', '.join(columns)}.")
    return samples


def drive(
    samples: Samples, band_hz: float, power_dbm: float, reference_dbm: float, noise_figure_db: float
) -> list[Device]:
    """Return the uplink of each phone from its received powers."""
    begin_s, devices = min(at_s for rows in samples.values() for at_s, _ in rows), []
    for name, rows in samples.items():
        at_s, rsrp_dbm = np.array(sorted(rows)).T
        noise_dbm = NOISE_DBM_PER_HZ + noise_figure_db + 10 * np.log10(band_hz)
        snr_db = power_dbm + rsrp_dbm - reference_dbm - noise_dbm
        bps = band_hz * np.minimum(SHARE * np.log2(1 + 10 ** (snr_db / 10)), MOST) * (snr_db >= LEAST_DB)
        since_s = np.append(0.0, at_s[1:] - begin_s)  # before its first sample, a phone has the rate of that sample
        devices.append(Device(name, list(zip(since_s.tolist(), bps.tolist(), strict=True))))
    return devices


def contacts(samples: Samples, period_s: float | None) -> list[Device]:
    """Return the uplink of each satellite, 0 between its contacts, and when it has one."""
    devices = []
    for name, rows in samples.items():
        wrong = next((row for row in rows if not 0 <= row[0] < row[1] <= (period_s or math.inf)), None)
        if wrong is not None:
            raise InputError(f"{name} has a contact from {wrong[0]} to {wrong[1]} s, which does not fit the period.")
        borders_s = sorted({0.0, *(second for start_s, end_s, _ in rows for second in (start_s, end_s))})
        steps, hours = [], []
        for at_s, until_s in itertools.pairwise(borders_s):
            bps = max((bps for start_s, end_s, bps in rows if start_s <= at_s < end_s), default=0.0)
            steps.append((at_s, bps))
            hours += [f"{at_s}-{until_s}"] if bps > 0 else []
        last_s, end_s = borders_s[-1], period_s or borders_s[-1]
        if last_s < end_s:
            steps.append((last_s, 0.0))
        steps.append(
            ((steps[-1][0] + end_s) / 2, steps[-1][1])
        )  # a trace's last step lasts as long as the one before it
        devices.append(Device(name, steps, ";".join(hours) + (f"/{period_s}" if period_s else "")))
    return devices


def write(devices: Sequence[Device], folder: Path) -> Path:
    """Write a trace for each device, and the fleet that names them."""
    (folder / "traces").mkdir(parents=True, exist_ok=True)
    rows = [["name", "uplink_trace", "available"]]
    for number, device in enumerate(devices):
        rows.append([device.name, f"traces/{number}.csv", device.available])
        _write_rows(folder / rows[-1][1], [["time_s", "bps"], *device.steps])
    _write_rows(folder / "fleet.csv", rows)
    return folder / "fleet.csv"


def _write_rows(path: Path, rows: Sequence[Sequence[object]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=["drive", "contacts"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--band-hz", type=float, default=1e6)
    parser.add_argument("--power-dbm", type=float, default=23.0)
    parser.add_argument("--reference-dbm", type=float, default=15.0)
    parser.add_argument("--noise-figure-db", type=float, default=5.0)
    parser.add_argument("--period-s", type=float, help="Of a contact plan; by default it ends.")
    given = parser.parse_args(arguments)
    try:
        if (given.out / "fleet.csv").exists():
            raise InputError(f"--out {given.out} already has a fleet.csv; choose another folder, or delete it.")
        if given.kind == "drive":
            radio = given.band_hz, given.power_dbm, given.reference_dbm, given.noise_figure_db
            devices = drive(read(given.file, ("time_s", "rsrp_dbm")), *radio)
        else:
            devices = contacts(read(given.file, ("start_s", "end_s", "bps")), given.period_s)
        path = write(devices, given.out)
        count = spec_from(cell=str(path)).cell.ues
    except (InputError, OSError) as error:
        sys.exit(f"{parser.prog}: {error}")
    print(f"{count} devices: {path}    Try: perfeds2 simulate --cell {path}")


if __name__ == "__main__":
    main()
