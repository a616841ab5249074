"""Compare constant interference with the coupled one: simulated time to a number of rounds, and CPU time per round.

    python -m benchmarks.interference --cells 3 7 --radio paper umi --seeds 8

It prints one line per network. A ratio is the simulated time with constant interference over that with coupled
interference, for the same UEs, fading and rounds: the geometric mean over seeds, with a 95 % interval.
"""

import argparse
import json
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.stats import t

from perfeds2 import Cell, Protocol
from perfeds2.network.cells import Cells, make_cells
from perfeds2.network.radios import RADIOS
from perfeds2.network.sites import Sites
from perfeds2.timeline.cells import simulate_cells

LOAD: dict[str, Any] = {"payload_bits": 77_120.0, "samples": 120.0}
UES, QUORUM, STALENESS, RADIUS_M = 6, 2, 5, 200.0  # of a cell


def networks(count: int, radio: str, seed: int) -> Mapping[str, Cells]:
    """Return a network with coupled interference, and the same UEs and fading with constant ones."""
    drawn, sites = Cell.draw(UES * count, seed, radio=RADIOS[radio]), Sites.grid(count, RADIUS_M)
    coupled = make_cells(drawn, sites, RADIUS_M, interference="coupled")
    full = make_cells(drawn, sites, RADIUS_M, interference="full")
    noise_dbm = {
        "none": [drawn.noise_dbm_per_hz] * count,
        "3 dB": [drawn.noise_dbm_per_hz + 3.0] * count,
        "full": [cell.noise_dbm_per_hz for cell in full.cells],
    }
    silence = np.zeros((count, count), bool)  # plays on the clock of coupled cells, which couples none of them
    made = {"coupled": coupled}
    for name, levels in noise_dbm.items():
        loud = [replace(cell, noise_dbm_per_hz=dbm) for cell, dbm in zip(coupled.cells, levels, strict=True)]
        made[name] = replace(coupled, cells=loud, co_channel=silence)
    return made


def end_s(cells: Cells, rounds: int) -> tuple[float, float]:
    """Return the simulated seconds of some rounds per cell, and the CPU seconds of one of them."""
    count, began_s = len(cells.cells), time.process_time()
    timeline = simulate_cells(cells, Protocol(QUORUM, STALENESS), Protocol(count), **LOAD, rounds=rounds * count)
    return timeline.end_s, (time.process_time() - began_s) / timeline.rounds


def ratio(of_seeds: np.ndarray) -> list[float]:
    """Return the geometric mean of ratios and its 95 % interval."""
    logs = np.log(of_seeds)
    half = t.ppf(0.975, logs.size - 1) * logs.std(ddof=1) / np.sqrt(logs.size)
    return np.exp([logs.mean(), logs.mean() - half, logs.mean() + half]).round(3).tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, nargs="+", default=[3, 7])
    parser.add_argument("--radio", nargs="+", default=["paper", "umi"], choices=list(RADIOS))
    parser.add_argument("--rounds", type=int, default=40, help="rounds of each cell")
    parser.add_argument("--seeds", type=int, default=8)
    asked = parser.parse_args()
    for radio, count in ((radio, count) for radio in asked.radio for count in asked.cells):
        played = []
        for seed in range(asked.seeds):
            of = networks(count, radio, seed)
            apart = replace(of["none"], co_channel=None)
            played.append({name: end_s(cells, asked.rounds) for name, cells in {**of, "apart": apart}.items()})
        seconds = {name: np.array([each[name] for each in played]) for name in played[0]}
        told: dict[str, Any] = {"radio": radio, "cells": count, "coupled_s": float(np.median(seconds["coupled"][:, 0]))}
        for name in ("none", "3 dB", "full"):
            told[f"{name} over coupled"] = ratio(seconds[name][:, 0] / seconds["coupled"][:, 0])
        cost = {name: round(1e3 * float(np.median(seconds[name][:, 1])), 2) for name in ("coupled", "apart")}
        print(json.dumps(told | {"ms_per_round": cost}), flush=True)


if __name__ == "__main__":
    main()
