"""Is it said when a model is good only after the personal step, and is it not said of one that is merely worse before it?"""

from typing import Any

import pytest
from in_numpy import train_in_numpy

from perfeds2 import compare
from perfeds2.report.run import print_summary
from perfeds2.runs.notes import Rows, _evaluations, has_collapsed, has_diverged, has_risen
from perfeds2.spec.resolve import spec_from

SETTINGS: dict[str, Any] = {
    "ues": 6,
    "quorum": 2,
    "batch": 20,
    "labels_per_ue": 2,
    "beta": 0.1,
    "horizon_s": 12,
    "eval_every_s": 0.5,
    "seeds": (0, 1),
}


def rows(global_, personal):
    pairs = zip(global_, personal, strict=True)
    return [{"test_accuracy": before, "test_accuracy_personal": after} for before, after in pairs]


@pytest.mark.parametrize(
    ("global_", "personal", "collapsed"),
    [
        ([0.1, 0.9, 0.2], [0.1, 0.95, 0.97], True),
        ([0.1, 0.4, 0.18], [0.1, 0.8, 0.98], True),  # it was never good, and is worse
        ([0.1, 0.9, 0.88], [0.1, 0.95, 0.97], False),
        ([0.1, 0.2, 0.4], [0.1, 0.8, 0.98], False),  # merely worse: few labels a UE, and still learning
        ([0.1, 0.9, 0.5], [0.1, 0.95, 0.97], False),  # it wobbles
        ([0.1, 0.9, 0.2], [0.1, 0.95, 0.3], False),  # both are lost: too long a step
        ([0.1, 0.9, float("nan")], [0.1, 0.95, float("nan")], False),  # diverged, which another note reports
    ],
)
def test_collapsed_is_who_lost_half_of_what_it_had_and_is_fine_when_personalised(global_, personal, collapsed):
    assert has_collapsed(rows(global_, personal)) is collapsed


@pytest.mark.slow
def test_a_collapse_is_noted_with_who_and_how_often(tmp_path, capsys, monkeypatch):
    train_in_numpy(monkeypatch.setattr)
    monkeypatch.setattr("perfeds2.runs.notes.has_collapsed", lambda rows: rows[0]["seed"] == 1)
    settings = {"task": "synthetic", "ues": 4, "quorum": 2, "rounds": 4, "seeds": (0, 1)}
    comparison = compare(**settings, algorithms=["PerFedS2", "FedAvgS2"], out=tmp_path / "run")
    (note,) = (note for note in comparison.summary["notes"] if "never merged" not in note)
    assert note.startswith("PerFedS2: in 1 of 2 seeds the global model lost more than half of its best accuracy")
    assert "docs/explanation/personalisation.md" in note
    print_summary(tmp_path / "run")
    assert "Note: PerFedS2: in 1 of 2 seeds" in capsys.readouterr().out


@pytest.mark.slow
def test_a_longer_personal_step_lets_a_global_model_collapse():
    """α = 0.03 is too short to tell two digits apart from where a classifier is, so PerFed moves away from there."""
    comparison = compare(**{**SETTINGS, "horizon_s": 20, "eval_every_s": 2}, alpha=0.03, algorithms=["PerFedS2"])
    often = sum(has_collapsed([row for row in comparison.rows if row["seed"] == seed]) for seed in (0, 1))
    assert often > 0  # one or both of them: rounding differs among processors
    (row,) = comparison.summary["algorithms"]
    assert row["train_loss"]["mean"] > 2.3  # ln 10: the loss of a guess among ten


@pytest.mark.slow
def test_a_short_personal_step_leaves_nothing_to_note():
    comparison = compare(**{**SETTINGS, "seeds": (0,)}, alpha=0.01, algorithms=["PerFedS2"])
    assert comparison.summary["notes"] == []
    (row,) = comparison.summary["algorithms"]
    assert row["test_accuracy"]["mean"] > 0.8


@pytest.mark.slow
def test_it_is_not_said_of_methods_that_are_not_trained_for_a_personal_step(monkeypatch):
    """Nor that FedAsync, whose UEs compute what FedProx's do, equals FedAvg."""
    monkeypatch.setattr("perfeds2.runs.notes.has_collapsed", lambda _: True)
    train_in_numpy(monkeypatch.setattr)
    few = {"task": "synthetic", "ues": 4, "quorum": 2, "rounds": 4, "seeds": (0,)}
    comparison = compare(**few, algorithms=["PerFedS2", "FedBuff", "FedAsync", "Ditto", "PersA-FL"])
    notes = [note for note in comparison.summary["notes"] if "never merged" not in note]
    assert [note.partition(":")[0] for note in notes] == ["PerFedS2", "PersA-FL"]


@pytest.mark.parametrize(
    ("global_", "personal", "diverged"),
    [
        ([2.3, 0.9, 0.3], [2.3, 0.8, 0.2], False),
        ([2.3, 1.2, 2.3], [2.2, 1.1, 2.2], True),  # its units have died
        ([2.3, 1.2, 1.9], [2.2, 1.1, 1.8], True),
        ([2.3, 0.4, 0.9], [2.2, 0.3, 0.8], False),  # it wobbles
        ([2.3, 9.0, 40.0], [2.3, 8.0, 30.0], True),
        ([2.3, float("nan"), float("nan")], [2.3, float("nan"), float("nan")], True),
        ([2.3, 3.0, 4.0], [2.3, 0.4, 0.1], False),  # only the global model is lost
        ([2.3, 0.4, 0.1], [2.3, 3.0, float("nan")], False),  # only the personal step is too long
        ([2.30, 2.28, 2.30], [2.30, 2.27, 2.30], False),  # it has hardly begun
        ([2.32, 2.24, 3.37], [2.29, 2.20, 3.10], False),  # nor has this one: FedAvg-ASY after 1 s, which learns later
        # FedAvg-ASY after 2 s: it oscillates, and its lowest values become lower
        ([2.3, 2.2, 1.7, 2.5, 2.4, 1.6, 1.4, 2.6], [2.3, 2.1, 1.5, 1.8, 2.2, 1.4, 1.2, 2.1], False),
        ([2.3, 1.4, 9.7, 1.6, 1.5, 1.4, 1.3, 5.0], [2.3, 1.2, 6.8, 1.5, 1.4, 1.3, 1.2, 4.9], False),  # one high value
        ([2.3, 1.4, 0.7, 2.5, 2.4, 2.3, 2.3, 2.3], [2.3, 1.2, 0.8, 2.5, 2.4, 2.3, 2.3, 2.3], True),
        ([2.3], [2.3], False),
        ([-1.0, -1.02, -1.05], [-1.0, -1.02, -1.05], False),  # a user's own loss
    ],
)
def test_diverged_is_who_ends_where_it_began_although_it_had_learned(global_, personal, diverged):
    losses = [{"train_loss": one, "train_loss_personal": other} for one, other in zip(global_, personal, strict=True)]
    assert has_diverged(losses) is diverged


def test_a_short_run_whose_loss_rose_has_not_learned_yet():
    losses = [{"train_loss": one, "train_loss_personal": own} for one, own in ((2.32, 2.29), (2.24, 2.2), (3.37, 3.1))]
    assert has_risen(losses)
    assert not has_diverged(losses)
    assert not has_risen(losses[:2])


def test_what_was_evaluated_and_what_it_cost_is_said():
    """Two evaluations of 1,024 UEs with 10 samples each take 4 · 10 samples a UE; 20 gradients 3 · 40."""
    spec = spec_from(ues=2000, quorum=5, horizon_s=30, algorithms=["FedAvgS2"], seeds=[0])
    facts = {"FedAvgS2": [{"merges": 20, "local_steps": 1, "objective": "FedAvg", "quorum": 5}]}
    ue_rows: Rows = {("FedAvgS2", 0): [{"samples": 10}] * 1024}
    rows: Rows = {("FedAvgS2", 0): [{}, {}]}
    said = _evaluations(spec, facts, rows, ue_rows)
    assert said == [
        "Metrics are means over 1,024 of 2,000 UEs, at equal distances.",
        "Evaluations computed on 34 times as many samples as training, so they took most of the time; --eval-every-s sets "
        "how often.",
    ]
    facts["FedAvgS2"][0]["merges"] = 20_000
    assert _evaluations(spec, facts, rows, ue_rows) == said[:1]
