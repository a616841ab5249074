"""Compare ε with Google's dp-accounting on random timelines, and sensitivities with jax-privacy.

``python -m benchmarks.privacy_oracle make FILE`` writes how often UEs of 200 random timelines were merged, and their ε;
and how far a UE that takes part at equal intervals moves what correlated noise hides.
``python benchmarks/privacy_oracle.py check FILE`` compares the former with privacy loss distributions and the latter with
matrix factorisations. It needs only ``pip install jax-privacy``, which brings dp-accounting, in an environment of its own.
"""

import json
import sys
from pathlib import Path

TIMELINES = 200
PATTERNS = [(rounds, bands, epochs) for rounds in (16, 60, 240) for bands in (2, 4, 8, 16) for epochs in (1, 2, 4)]


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
    kept = {"losses": rows, "sensitivities": [[*pattern, _sensitivity(*pattern)] for pattern in PATTERNS]}
    path.write_text(json.dumps(kept), encoding="utf-8")


def _sensitivity(rounds: int, bands: int, epochs: int) -> float:
    """Return the largest sensitivity if UEs take part in turns, each ``epochs`` times."""
    from perfeds2 import Cell, Protocol, simulate
    from perfeds2.privacy.accounting import sensitivity

    ues = rounds // epochs
    timeline = simulate(
        Cell.draw(ues, seed=0), Protocol(1, rest_rounds=ues), payload_bits=1e4, samples=10, rounds=rounds
    )
    assert (timeline.merges == epochs).all()
    return float(sensitivity(timeline, bands).max())


def check(path: Path) -> None:
    try:
        from dp_accounting.pld import privacy_loss_distribution as pld  # pyright: ignore[reportMissingImports]
    except ImportError:
        sys.exit("This needs dp-accounting; run pip install jax-privacy in an environment of its own.")

    kept = json.loads(path.read_text(encoding="utf-8"))
    rows, apart = kept["losses"], []
    for _, merges, sigma, delta, found in rows:
        expected = 0.0
        if merges:
            one = pld.from_gaussian_mechanism(sigma / merges**0.5, value_discretization_interval=1e-4)
            expected = one.get_epsilon_for_delta(delta)
        apart.append(abs(found - expected))
    print(f"{len({row[0] for row in rows})} timelines, {len(rows)} UEs: ε differs by at most {max(apart):.1e}")
    _check_sensitivities(kept["sensitivities"])


def _check_sensitivities(rows: list[list[float]]) -> None:
    try:
        import jax
        from jax_privacy.matrix_factorization import sensitivity, toeplitz  # pyright: ignore[reportMissingImports]
    except ImportError:
        sys.exit("Sensitivities need jax-privacy; run pip install jax-privacy.")
    import numpy as np
    from scipy.special import binom

    jax.config.update("jax_enable_x64", True)
    apart = []
    for rounds, bands, epochs, found in rows:
        n, b = int(rounds), np.arange(int(bands))
        noising = toeplitz.pad_coefs_to_n(jax.numpy.asarray((-1.0) ** b * binom(0.5, b))[:n], n)
        strategy = toeplitz.inverse_coef(noising)
        separated = toeplitz.minsep_sensitivity_squared(strategy, n // int(epochs), int(epochs)) ** 0.5
        dense = sensitivity.fixed_epoch_sensitivity(toeplitz.materialize_lower_triangular(strategy), int(epochs))
        apart += [abs(found / float(separated) - 1), abs(found / float(dense) - 1)]
    print(f"{len(rows)} patterns of (rounds, bands, epochs): sensitivities differ by at most {max(apart):.1e} of them")


if __name__ == "__main__":
    {"make": make, "check": check}[sys.argv[1]](Path(sys.argv[2]))
