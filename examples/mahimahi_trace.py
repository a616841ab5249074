"""Convert a mahimahi trace of a saturated uplink to a trace for a fleet file::

    python examples/mahimahi_trace.py Verizon-LTE-driving.up traces/lte.csv

A line of such a file (https://github.com/ravinet/mahimahi, *.up) is the millisecond in which a packet of 1,500 bytes may
leave. The trace has the mean rate of every half second.
"""

import csv
import sys
from collections.abc import Iterable
from pathlib import Path

PACKET_BITS = 8 * 1500
STEP_S = 0.5


def write_trace(lines: Iterable[str], path: Path) -> None:
    """Write the columns ``time_s`` and ``bps``."""
    at_s = [int(line) / 1000 for line in lines if line.strip()]
    bits = [0] * (int(max(at_s) / STEP_S) + 1)
    for second in at_s:
        bits[int(second / STEP_S)] += PACKET_BITS
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["time_s", "bps"])
        table.writerows((STEP_S * step, sent / STEP_S) for step, sent in enumerate(bits))


if __name__ == "__main__":
    write_trace(Path(sys.argv[1]).read_text(encoding="utf-8").splitlines(), Path(sys.argv[2]))
