"""Does everything that is allowed work, to the last file?"""

import csv
import gzip
import json
import math
from pathlib import Path

import numpy as np
import pytest
from command_line import told
from in_numpy import train_in_numpy
from tiny_data import idx, write_mnist


def pairs(flags: str) -> dict[str, str]:
    """Each flag with its value."""
    words = flags.split()
    return dict(zip(words[::2], words[1::2], strict=True))


TINY = pairs("--task synthetic --ues 3 --quorum 2 --rounds 2 --eval-every-s 1e9 --batch 4 --algorithms FedAvgS2")
EXTREMES = {
    "one UE": "--ues 1 --quorum 1",
    "A = n": "--quorum 3",
    "S = 0": "--max-staleness 0",
    "S = 0, waiting": "--max-staleness 0 --stale wait",
    "no bound": "--max-staleness unbounded",
    "distance zero": "--set cell.distance_m=[0,0,0]",
    "one UE at the antenna": "--set cell.distance_m=[0,100,200]",
    "one label": "--labels-per-ue 1",
    "1 Hz": "--bandwidth-hz 1",
    "1 THz": "--bandwidth-hz 1e12",
    "1 THz, shared to finish together": "--bandwidth-hz 1e12 --bandwidth equal_finish",
    "one round": "--rounds 1",
    "one sample a batch": "--batch 1",
    "no personal step": "--alpha 0 --algorithms PerFedS2",
    "losses that overflow": "--beta 1e30 --algorithms PerFedS2 --rounds 5",
    "personal losses that overflow": "--alpha 1e30 --algorithms PerFedS2 --rounds 5",
}


def read_results(folder: Path) -> tuple[dict, list[dict]]:
    assert (folder / "report.html").stat().st_size > 1_000
    with (folder / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    return json.loads((folder / "summary.json").read_text()), rows


@pytest.mark.slow
@pytest.mark.parametrize("extreme", EXTREMES)
def test_legal_extremes_run_to_the_report(tmp_path, monkeypatch, extreme):
    if "overflow" not in extreme:  # otherwise only shapes matter
        train_in_numpy(monkeypatch.setattr, traced=True)
    flags = TINY | pairs(EXTREMES[extreme])
    words = [word for flag, value in flags.items() for word in (flag, value)]
    status, out, err = told("run", *words, "--quiet", "--out", tmp_path / "out")
    assert (status, out) == (0, ""), err
    assert "Traceback" not in err
    _, rows = read_results(tmp_path / "out")
    assert {row["algorithm"] for row in rows} == {flags["--algorithms"]}
    if "overflow" in extreme:
        assert not all(math.isfinite(float(row["train_loss_personal"])) for row in rows)


@pytest.mark.slow
def test_a_horizon_shorter_than_the_first_round_is_a_run_of_no_rounds(tmp_path, monkeypatch):
    train_in_numpy(monkeypatch.setattr, traced=True)
    flags = "run --task synthetic --ues 3 --quorum 2 --horizon-s 1e-6 --batch 4 --algorithms FedAvgS2 --quiet --out"
    assert told(*flags.split(), tmp_path / "out") == (0, "", "")
    _, rows = read_results(tmp_path / "out")
    assert {row["round"] for row in rows} == {"0"}


@pytest.mark.slow
def test_data_of_one_class_and_one_sample_a_ue_are_enough(tmp_path, monkeypatch):
    train_in_numpy(monkeypatch.setattr, traced=True)
    folder = write_mnist(tmp_path / "mnist" / "mnist", each=1, classes=1)
    assert sorted(path.name for path in folder.iterdir())[0] == "t10k-images-idx3-ubyte.gz"
    flags = "run --task mnist --labels-per-ue 1 --ues 1 --rounds 2 --batch 4 --algorithms FedAvgS2 --quiet --data-dir"
    mnist = tmp_path / "mnist"
    assert told(*flags.split(), mnist, "--out", tmp_path / "out") == (0, "", "")
    status, _, err = told(*flags.replace("--ues 1", "--ues 2").split(), mnist, "--out", tmp_path / "two")
    assert status == 2
    assert "label 0 has 1 training samples, too few for the 2 UEs that share it" in err
    assert not (tmp_path / "two").exists()


def test_data_that_are_broken_are_exit_2_and_leave_nothing_behind(tmp_path):
    folder = write_mnist(tmp_path / "mnist" / "mnist")
    (folder / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(np.full(100, 12, np.uint8))))
    flags = "run --task mnist --rounds 1 --data-dir"
    status, _, err = told(*flags.split(), tmp_path / "mnist", "--out", tmp_path / "out")
    assert status == 2
    assert "holds the label 12; the largest is 9" in err
    assert err.strip().count("\n") == 0
    assert not (tmp_path / "out").exists()
