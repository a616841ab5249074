"""Is a comparison fair, complete, reproducible, and not lost when it is killed?"""

import csv
import json
from typing import Any

import numpy as np
import pytest
from in_numpy import advance, train_in_numpy
from safetensors import safe_open
from safetensors.numpy import save_file

from perfeds2 import Algorithm, FedAvg, Learner, Protocol, compare
from perfeds2.errors import InputError
from perfeds2.learning import train
from perfeds2.runs import trainer as module
from perfeds2.runs.folder import open_folder
from perfeds2.runs.pool import WorkerChoice
from perfeds2.runs.session import Execution
from perfeds2.runs.store import load_arrays, save_arrays
from perfeds2.spec.resolve import resolve, spec_from
from perfeds2.studies.compare import train_spec
from perfeds2.timeline.record import load_timelines

SMALL = {"ues": 6, "quorum": 2, "horizon_s": 1.5, "batch": 8, "seeds": (0, 1), "eval_every_s": 0.25}
NINE: dict[str, Any] = {
    "algorithms": [
        f"{objective}{mode}" for objective in ("FedAvg", "FedProx", "PerFed") for mode in ("-SYN", "S2", "-ASY")
    ]
}


@pytest.fixture(scope="module")
def nine(tmp_path_factory):
    """All nine, with real first weights and evaluations; compiling the rounds of all would take longer than the rest."""
    folder = tmp_path_factory.mktemp("runs") / "nine"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "advance", advance)
        return compare(**SMALL | {"seeds": (1,)}, **NINE, out=folder), folder


def test_all_nine_meet_the_same_horizon_and_initial_weights(nine):
    comparison, _ = nine
    metrics = comparison.metrics
    assert metrics.algorithm.nunique() == 9
    first = metrics[metrics["round"] == 0].drop_duplicates(["algorithm", "seed"])
    for _, group in first.groupby("seed"):
        assert group.train_loss.nunique() == 1
    assert (metrics.groupby(["algorithm", "seed"]).time_s.max() == 1.5).all()
    assert all(timeline.end_s <= 1.5 for timeline in comparison.timelines.values())


def test_the_modes_are_what_they_say(nine):
    comparison, _ = nine
    for (name, _), timeline in comparison.timelines.items():
        if name.endswith("SYN"):
            assert timeline.quorum == 6
            assert timeline.staleness.max() == 0
        elif name.endswith("ASY"):
            assert timeline.quorum == 1
        else:
            assert timeline.quorum == 2
            assert timeline.staleness.max() <= 5


def test_the_folder_has_the_contracts_files(nine):
    comparison, folder = nine
    names = {path.name for path in folder.iterdir()}
    assert names >= {"spec.toml", "timeline.npz", "metrics.csv", "summary.json", "model.safetensors", "events.log"}
    assert "Behind the best" in (folder / "report.html").read_text()
    assert not (folder / "parts").exists()
    with (folder / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert set(rows[0]) >= {
        *("algorithm", "seed", "round", "time_s"),
        *("train_loss", "train_loss_personal", "test_accuracy", "test_accuracy_personal"),
    }
    assert [float(row["train_loss"]) for row in rows] == [row["train_loss"] for row in comparison.rows]
    timelines = load_timelines(folder)
    assert set(timelines) == {f"{name}/{seed}" for name, seed in comparison.timelines}
    arrays, _ = load_arrays(folder / "model.safetensors")
    np.testing.assert_array_equal(arrays["PerFedS2/1/dense1.weight"], comparison.models["PerFedS2", 1]["dense1.weight"])
    assert json.loads((folder / "summary.json").read_text()) == json.loads(json.dumps(comparison.summary))


def test_per_ue_rows_average_to_the_final_metrics(nine):
    comparison, _ = nine
    per_ue = [row for row in comparison.ue_rows if row["algorithm"] == "PerFedS2"]
    final = [row for row in comparison.rows if row["algorithm"] == "PerFedS2"][-1]
    for name in ("train_loss", "test_accuracy_personal"):
        assert np.mean([row[name] for row in per_ue]) == pytest.approx(final[name], rel=1e-6)
    assert sum(row["merges"] for row in per_ue) == comparison.timelines["PerFedS2", 1].ues.size


class KilledError(Exception):
    pass


@pytest.mark.slow
def test_a_run_stopped_at_any_evaluation_ends_with_the_same_bytes(tmp_path, monkeypatch):
    train_in_numpy(monkeypatch.setattr)
    monkeypatch.setattr(module, "CHECKPOINT_EVERY_S", 0.0)
    settings = {**SMALL, "seeds": (0,), "algorithms": ("FedAvgS2", "PerFed-ASY")}
    spec = spec_from(**settings)
    train_spec(spec, "compare", tmp_path / "whole")
    calls = 14  # 7 evaluations of each of the two

    def killed_after(count):
        def watch(_):
            nonlocal count
            count -= 1
            if count == 0:
                raise KilledError

        return watch

    for stop in (1, 8, calls):
        folder = tmp_path / f"stopped-{stop}"
        with pytest.raises(KilledError):
            train_spec(spec, "compare", folder, Execution(WorkerChoice(), watch=killed_after(stop)))
        train_spec(spec, "compare", folder)
        assert (folder / "metrics.csv").read_bytes() == (tmp_path / "whole" / "metrics.csv").read_bytes()
        assert (folder / "model.safetensors").read_bytes() == (tmp_path / "whole" / "model.safetensors").read_bytes()


def test_corrupt_checkpoints_are_refused_in_one_sentence(tmp_path):
    spec = resolve({"run": {"horizon_s": 1.0}})
    folder = open_folder(tmp_path / "run", spec)
    (folder.parts / "x.safetensors").write_bytes(b"\x08\x00\x00\x00\x00\x00\x00\x00nonsense")
    with pytest.raises(InputError, match="corrupt"):
        load_arrays(folder.parts / "x.safetensors")


@pytest.mark.parametrize("changed", [np.zeros((3, 2), np.float32), np.zeros((2, 3), np.int32)])
def test_a_checkpoint_whose_arrays_changed_shape_or_type_is_refused(tmp_path, changed: np.ndarray):
    path = tmp_path / "x.safetensors"
    save_arrays(path, {"a": np.zeros((2, 3), np.float32)})
    with safe_open(path, "numpy") as file:
        metadata = file.metadata()
    save_file({"a": changed}, path, metadata)  # the same bytes
    with pytest.raises(InputError, match="checksum"):
        load_arrays(path)


def test_a_folder_with_a_different_run_is_refused(tmp_path):
    open_folder(tmp_path / "run", resolve({"run": {"horizon_s": 1.0}}))
    with pytest.raises(InputError, match="already holds a different run"):
        open_folder(tmp_path / "run", resolve({"run": {"horizon_s": 2.0}}))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("")
    with pytest.raises(InputError, match="holds other files"):
        open_folder(tmp_path / "other", resolve({}))


@pytest.mark.slow
def test_an_own_algorithm_is_compared_with_the_papers(monkeypatch):
    train_in_numpy(monkeypatch.setattr, traced=True)

    def nearest_first(uplink):
        """All band to the UE with the best signal, a little to all others."""
        bandwidth = (uplink.bits > 0) * 0.1 * uplink.bandwidth_hz / uplink.bits.size
        bandwidth[np.argmax(np.where(uplink.bits > 0, uplink.signal_hz, 0))] += 0.9 * uplink.bandwidth_hz
        return bandwidth

    mine = Algorithm("Mine", Learner(FedAvg(), batch=8), Protocol(3, 2), nearest_first)
    comparison = compare(**{**SMALL, "seeds": (0,)}, algorithms=["FedAvgS2", mine])
    assert [row["algorithm"] for row in comparison.summary["algorithms"]] == ["FedAvgS2", "Mine"]
    assert comparison.timelines["Mine", 0].quorum == 3


def test_unknown_settings_of_compare_are_errors():
    with pytest.raises(InputError, match="quorums is not a setting"):
        compare(quorums=3)
