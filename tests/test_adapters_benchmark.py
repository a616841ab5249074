"""Does the benchmark of adapters compare what it says?"""

import numpy as np
import pytest

from benchmarks.adapters import KINDS, Bench, shown, table, until


class Formula(Bench):
    """Losses by a formula: from 4 down to a level, sooner with fewer numbers; least at β = 0.3."""

    def rows(self, adapter, beta, seeds):
        speed = 1 if adapter is None else 2
        level = 2 + abs(beta - 0.3) if adapter != "head" else 3.5
        return [
            {"seed": seed, "train_loss": max(level, 4 - speed * at), "time_s": 10.0 * at}
            | {"merged_bits": 1e6 * at, "joules": float(at), "epsilon": 0.5 * at}
            for seed in seeds
            for at in range(4)
        ]

    def size(self, adapter):
        return 100 if adapter is None else 10


def test_each_kind_is_charged_until_half_of_the_largest_improvement(tmp_path):
    bench = Formula(tmp_path, {}, (0, 1, 2), (0.1, 0.3, 1.0))
    found = {name: bench.trained(adapter) for name, adapter in KINDS.items()}
    assert {beta for name, (beta, _) in found.items() if name != "last layer"} == {0.3}
    first, _, *lines = table(bench, found).splitlines()
    assert first == "Loss at the start: 4.000. To a loss of 3.000:"
    cells = {line.split("|")[1].strip(): [cell.strip() for cell in line.split("|")[5:-1]] for line in lines[2:]}
    assert cells["all weights"] == ["10 ± 0", "1 ± 0", "1 ± 0", "0.5 ± 0"]
    assert cells["rank 8"] == ["10 ± 0", "1 ± 0", "1 ± 0", "0.5 ± 0"]
    assert cells["last layer"] == ["never"] * 4


def test_seeds_that_never_get_there_are_counted():
    rows = [{"train_loss": loss, "time_s": time} for time, loss in enumerate([3.0, 2.0, 1.0])]
    assert until(rows, 2.0, "time_s") == 1.0
    assert np.isnan(until(rows, 0.5, "time_s"))
    assert shown([1.0, np.nan]) == "1 (1 of 2)"
    assert shown([np.nan]) == "never"
    assert float(shown([1.0, 2.0, 3.0]).split()[0]) == pytest.approx(2.0)
