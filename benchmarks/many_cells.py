"""Measure what many cells cost: CPU seconds per round of the clock, against single cells.

    PERFEDS2_CLOCK=compiled python benchmarks/many_cells.py --cells 1000 --ues 1000000 --rounds 20

It prints one line per case, with CPU seconds per closed round: a single cell with the UEs of one cell, a single cell with
all UEs, and all cells below a cloud, for several numbers of edge rounds per exchange.
"""

import argparse
import json
import resource
import time
from collections.abc import Callable
from typing import Any

from perfeds2 import Cell, Protocol, simulate
from perfeds2.network.cells import make_cells
from perfeds2.network.sites import Sites
from perfeds2.timeline.cells import simulate_cells
from perfeds2.timeline.record import Timeline

LOAD: dict[str, Any] = {"payload_bits": 77_120.0, "samples": 120.0}


def measured(name: str, play: Callable[[], Timeline]) -> None:
    """Print what a simulation costs per round."""
    began_s, timeline = time.process_time(), play()
    cpu_s = time.process_time() - began_s
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    told = {"case": name, "rounds": timeline.rounds, "cpu_s": round(cpu_s, 3), "peak_mb": peak}
    print(json.dumps(told | {"us_per_round": round(1e6 * cpu_s / timeline.rounds, 1)}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=100)
    parser.add_argument("--ues", type=int, default=100_000, help="UEs of all cells together")
    parser.add_argument("--rounds", type=int, default=20, help="rounds of each cell")
    parser.add_argument("--edge-rounds", type=int, nargs="+", default=[1, 10])
    asked = parser.parse_args()
    each = asked.ues // asked.cells
    protocol, drawn = Protocol(max(1, each // 10), 5), Cell.draw(asked.ues, 0)
    began_s = time.process_time()
    cells = make_cells(drawn, Sites.grid(asked.cells, 200.0), 200.0, backhaul_s=0.01)
    print(json.dumps({"case": "placing UEs", "cpu_s": round(time.process_time() - began_s, 3)}), flush=True)
    simulate(cells.cells[0], protocol, **LOAD, rounds=2)  # compiles
    measured(f"one cell of {each:,} UEs", lambda: simulate(cells.cells[0], protocol, **LOAD, rounds=50 * asked.rounds))
    whole = Protocol(protocol.quorum, None)
    measured(f"one cell of {asked.ues:,} UEs", lambda: simulate(drawn, whole, **LOAD, rounds=asked.rounds))
    for edge_rounds in asked.edge_rounds:
        until = {"edge_rounds": edge_rounds, "rounds": asked.rounds * asked.cells - 1}
        cloud = Protocol(asked.cells)
        measured(
            f"{asked.cells:,} cells of {each:,} UEs, {edge_rounds} edge rounds",
            lambda cloud=cloud, until=until: simulate_cells(cells, protocol, cloud, **LOAD, **until),
        )


if __name__ == "__main__":
    main()
