"""How often does an arena of identical methods report a significant difference?

Twelve methods reach the target after the same time plus normal noise, and every time is rounded up to the next
evaluation. All 66 pairs are tested as `perfeds2 arena` does. The share of arenas with any p-value below 0.05 must be at
most 5 %.
"""

import argparse
import itertools

import numpy as np

from perfeds2.runs.statistics import holm, paired_p

LEVEL = 0.05


def family_wise_error(seeds: int, noise: float, *, methods: int = 12, arenas: int = 2000) -> float:
    """Return the share of arenas in which some pair of identical methods differs significantly.

    Args:
        seeds: Seeds per method.
        noise: Standard deviation of a method's time, in steps of the evaluation grid.
        methods: Identical methods in an arena.
        arenas: Simulated arenas.

    Returns:
        A share between 0 and 1.
    """
    draws = np.random.default_rng([seeds, round(1000 * noise), methods])
    times = np.ceil(draws.uniform(size=(arenas, 1, 1)) + noise * draws.normal(size=(arenas, methods, seeds)))
    first, second = zip(*itertools.combinations(range(methods), 2), strict=True)
    differences = np.sort(times[:, first] - times[:, second], axis=-1).reshape(-1, seeds)
    distinct, where = np.unique(differences, axis=0, return_inverse=True)  # each p-value is computed once
    p_values = np.array([paired_p(row) for row in distinct.tolist()])[where.reshape(arenas, -1)].tolist()
    return float(np.mean([min(holm(of_arena)) < LEVEL for of_arena in p_values]))


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("--arenas", type=int, default=2000, help="Simulated arenas per cell of the table.")
    arenas = given.parse_args().arenas
    noises = (0.2, 0.5, 1.0, 2.0, 5.0)
    print("| seeds | " + " | ".join(f"noise of {noise:g} steps" for noise in noises) + " |")
    print("|---" * (len(noises) + 1) + "|")
    for seeds in (3, 5, 10):
        shares = [family_wise_error(seeds, noise, arenas=arenas) for noise in noises]
        print(f"| {seeds} | " + " | ".join(f"{100 * share:.1f} %" for share in shares) + " |")


if __name__ == "__main__":
    main()
