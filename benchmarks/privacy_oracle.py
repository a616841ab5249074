"""Compare ε with Google's dp-accounting on random timelines.

``python -m benchmarks.privacy_oracle make FILE`` writes how often UEs of 200 random timelines were merged, and their ε.
``python benchmarks/privacy_oracle.py check FILE`` compares them with privacy loss distributions. It needs only
``pip install dp-accounting "attrs<24"``, in an environment of its own.
"""

import json
import sys
from pathlib import Path

TIMELINES = 200


def make(path: Path) -> None:
    import numpy as np

    from perfeds2 import Cell, Protocol, privacy_loss, simulate

    rows = []
    for seed in range(TIMELINES):
        rng = np.random.default_rng(seed)
        ues = int(rng.integers(2, 40))
        protocol = Protocol(int(rng.integers(1, ues + 1)), [None, 2, 5][seed % 3])
        timeline = simulate(
            Cell.draw(ues, seed=seed), protocol, payload_bits=77_120, samples=120, rounds=int(rng.integers(1, 200))
        )
        sigma, delta = float(rng.uniform(1.0, 20.0)), 10.0 ** -int(rng.integers(3, 8))
        losses, merges = privacy_loss(timeline, sigma, delta), timeline.merges
        for ue in {int(merges.argmax()), int(np.argsort(merges)[ues // 2])}:  # the worst and the median UE
            rows.append([seed, int(merges[ue]), sigma, delta, float(losses[ue])])
    path.write_text(json.dumps(rows), encoding="utf-8")


def check(path: Path) -> None:
    from dp_accounting.pld import privacy_loss_distribution as pld

    rows = json.loads(path.read_text(encoding="utf-8"))
    apart = []
    for _, merges, sigma, delta, found in rows:
        expected = 0.0
        if merges:
            one = pld.from_gaussian_mechanism(sigma / merges**0.5, value_discretization_interval=1e-4)
            expected = one.get_epsilon_for_delta(delta)
        apart.append(abs(found - expected))
    print(f"{len({row[0] for row in rows})} timelines, {len(rows)} UEs: ε differs by at most {max(apart):.1e}")


if __name__ == "__main__":
    {"make": make, "check": check}[sys.argv[1]](Path(sys.argv[2]))
