"""Does the table of attacks and merges show what it says?"""

import numpy as np
import pytest
from in_numpy import train_in_numpy

from benchmarks import attacks
from benchmarks.attacks import CLEAN, NAMES, Bench, by_attack, by_share, honest_accuracy, main
from perfeds2.learning.attacks import hostile_ues
from perfeds2.runs.pool import WorkerChoice
from perfeds2.runs.store import Result, Store


def test_only_honest_ues_count():
    bad = hostile_ues(1 / 3, 6, 4)
    rows = [{"test_accuracy_personal": 0.0 if one else 0.75} for one in bad]
    assert honest_accuracy(Result(rows, rows, {}, ""), 1 / 3, 4) == 0.75
    rows[0] = {"test_accuracy_personal": float("nan")}
    assert honest_accuracy(Result(rows, rows, {}, ""), 0.0, 4) == pytest.approx((5 - bad[1:].sum()) * 0.75 / 6)


def test_the_tables_have_a_row_for_every_merge(monkeypatch, tmp_path):
    def made_up(_bench, merge, share, *_):
        least = 0.9 - share if merge == "median" else 0.1
        means = {CLEAN: 0.8, **dict.fromkeys(NAMES, 0.95), NAMES[2]: least}
        return {name: mean + np.array([-0.08, 0.0, 0.08]) * (name == NAMES[2]) for name, mean in means.items()}

    monkeypatch.setattr(Bench, "accuracies", made_up)
    bench = Bench(Store(tmp_path), 1, 1, "synthetic")
    same, all_same = "95.0 ± 0.0 %", " | ".join(["95.0 ± 0.0 %"] * 3)
    row = f"| mean | 80.0 ± 0.0 % | {same} | {same} | 10.0 ± 19.9 % | {all_same} | 12.5 ± 24.8 % |"
    assert row in by_attack(bench, ["mean", "median"], 2)
    shares = "80.0 ± 0.0 % | 80.0 ± 19.9 % | 70.0 ± 19.9 % | 60.0 ± 19.9 %"
    assert f"| median | {shares} | {shares} |" in by_share(bench, ["mean", "median"])


@pytest.mark.slow
def test_one_command_trains_and_writes_the_table(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(attacks, "NAMES", ["sign-flip"])
    train_in_numpy(monkeypatch.setattr, traced=True)
    monkeypatch.setattr(
        attacks, "WorkerChoice", lambda **_: WorkerChoice()
    )  # one after the other, as the stand-in needs it
    given = ["--task", "synthetic", "--seeds", "1", "--rounds", "2", "--merges", "median", "--only", "attacks"]
    main([*given, "--out", str(tmp_path)])
    table = (tmp_path / "attacks.md").read_text("utf-8")
    assert table in capsys.readouterr().out
    assert table.count("| median |") == 2
    assert "| merge | none | sign-flip | kept |" in table
