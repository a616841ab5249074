"""How much time does it save to share the band whenever a UE starts or stops sending, instead of once per round?

Prints the table of docs/explanation/schedulers.md: simulated seconds with ``--reshare events`` divided by those with
``--reshare round``, for the same UEs and fading.
"""

import argparse
import itertools
from typing import Any

import numpy as np

from benchmarks.interference import ratio
from perfeds2.allocation.bandwidth import equal_finish, equal_share
from perfeds2.allocation.schedule import as_schedule, deficit
from perfeds2.network.cell import Cell
from perfeds2.timeline.protocol import Protocol
from perfeds2.timeline.simulate import simulate
from perfeds2.timeline.state import Reshare

UES, QUORUM, STALENESS = 20, 5, 5
LOAD: dict[str, Any] = {"payload_bits": 77_120.0, "samples": 120.0}
RULES = {"SYN": Protocol(UES), "S2": Protocol(QUORUM, STALENESS), "ASY": Protocol(1)}


def end_s(mode: str, policy: str, reshare: Reshare, seed: int, updates: int, *, plans: bool = False) -> float:
    """Return the simulated second at which a cell has merged a number of updates."""
    rules, more = RULES[mode], dict[str, Any]()
    if mode == "S2" and (plans or policy == "equal_finish"):
        more["schedule"] = as_schedule(deficit(np.full(UES, 1 / UES), QUORUM, updates // QUORUM))
    share = equal_finish if policy == "equal_finish" else equal_share
    rounds = updates // rules.quorum
    return simulate(Cell.draw(UES, seed), rules, **LOAD, rounds=rounds, bandwidth=share, reshare=reshare, **more).end_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--updates", type=int, default=600, help="merged updates in each run, a multiple of 20")
    given = parser.parse_args()
    print("| policy | SYN | S2 | ASY |\n|---|---:|---:|---:|")
    hows: tuple[Reshare, ...] = ("events", "round")
    for policy in ("equal_share", "equal_finish"):
        cells = []
        for mode in ("SYN", "S2", "ASY"):
            if (policy, mode) == ("equal_finish", "ASY"):  # it needs a plan
                cells.append("")
                continue
            saved = []
            for seed in range(given.seeds):
                events_s, round_s = (end_s(mode, policy, how, seed, given.updates) for how in hows)
                saved.append(events_s / round_s)
            mean, low, high = ratio(np.array(saved))
            cells.append(f"{mean:.2f} ({low:.2f} to {high:.2f})")
        print(f"| `{policy}` | {' | '.join(cells)} |", flush=True)
    print("Seconds with equal_finish over those with equal_share, both with the same plan:")
    for mode, how in itertools.product(("SYN", "S2"), hows):
        gains = []
        for seed in range(given.seeds):
            finish_s, share_s = (
                end_s(mode, policy, how, seed, given.updates, plans=True) for policy in ("equal_finish", "equal_share")
            )
            gains.append(finish_s / share_s)
        mean, low, high = ratio(np.array(gains))
        print(f"{mode}, {how}: {mean:.2f} ({low:.2f} to {high:.2f})", flush=True)


if __name__ == "__main__":
    main()
