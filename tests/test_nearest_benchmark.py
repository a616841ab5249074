"""Does the reproduction of SEAFL's result compare what it says?"""

import math

import numpy as np
import pytest

from benchmarks import nearest
from benchmarks.nearest import METHODS, TUNED_ON, Bench, main, table


class Formula(Bench):
    """Seconds by a formula: best at β = 0.2, SEAFL a quarter faster, FedAvg never."""

    def train(self, method, beta, seed):
        if method == "FedAvg":
            return math.inf
        share = 0.75 if method == "SEAFL" else 1.0
        return share * (10 + seed % 10 + 100 * abs(beta - 0.2))


def test_each_method_runs_with_its_best_step_size_on_other_seeds(tmp_path):
    bench = Formula(tmp_path, "digits", 12, 30.0, 0.8)
    lines = table(bench, range(3)).splitlines()
    cells = {line.split("|")[1].strip(): [cell.strip() for cell in line.split("|")[2:-1]] for line in lines[2:]}
    assert list(cells) == list(METHODS)
    assert cells["SEAFL"][0] == cells["FedBuff"][0] == "0.2"
    assert cells["FedBuff"][1].startswith("11.0 ±")
    assert cells["FedBuff"][2] == "0.75 ± 0.00"
    assert cells["FedAvg"][1:] == ["never", "never", "0 of 3"]
    trained = {name.name.removesuffix(".json").rpartition("-")[2] for name in tmp_path.glob("*.json")}
    assert trained == {str(seed) for seed in (*TUNED_ON, 0, 1, 2)}


@pytest.mark.slow
@pytest.mark.slow
def test_a_training_ends_at_the_target_and_is_kept(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(nearest, "METHODS", {"SEAFL": METHODS["SEAFL"]})
    monkeypatch.setattr(nearest, "BETAS", (0.4,))
    monkeypatch.setattr(nearest, "TUNED_ON", (1000,))
    given = ["--task", "digits", "--ues", "12", "--seeds", "1", "--target", "0.3", "--out", str(tmp_path)]
    main(given)
    first = capsys.readouterr().out
    bench = Bench(tmp_path, "digits", 12, 240.0, 0.3)
    assert 0 < bench.seconds("SEAFL", 0.4, 0) < 240
    monkeypatch.setattr(Bench, "train", None)  # nothing is trained again
    main(given)
    assert capsys.readouterr().out == first
    assert (tmp_path / "nearest.md").read_text(encoding="utf-8").strip() == first.strip()
    speeds = np.genfromtxt(tmp_path / "fleet-12-0.csv", delimiter=",", skip_header=1)[:, 1]
    assert 40 <= speeds.min() < speeds.max() <= 200
