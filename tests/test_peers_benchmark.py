"""Does the benchmark against the peers run here, and does it say what failed?"""

import importlib.util
import json
import runpy
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.slow

PEERS = Path(__file__).resolve().parents[1] / "benchmarks" / "peers"


@pytest.fixture(scope="module")
def peers() -> ModuleType:
    spec = importlib.util.spec_from_file_location("peers_run", PEERS / "run.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def said(speed: float) -> dict:
    return {"rounds_per_s": speed, "cpu_rounds_per_s": 2 * speed, "final_loss": 2.1, "version": "x 1", "shim": ""}


def test_our_own_script_learns_and_says_how_fast(peers: ModuleType, monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["on_perfeds2.py", "--rounds", "5"])
    monkeypatch.syspath_prepend(PEERS)  # as Python does for a script
    runpy.run_path(str(PEERS / "on_perfeds2.py"), run_name="__main__")
    line = json.loads(capsys.readouterr().out)
    assert line["rounds"] == 5
    assert line["rounds_per_s"] > 0
    assert line["final_loss"] < peers.LEARNED


def test_a_ratio_is_the_median_of_the_turns_ratios(peers: ModuleType) -> None:
    ours, theirs = peers.ROWS[0], peers.ROWS[2]
    turns = {ours: [said(10), said(30), said(40)], theirs: [said(5), said(10), said(10)]}  # 2, 3 and 4 times as fast
    assert "| 10 (5 to 10) | 20 (10 to 20) | 3 (2 to 4) | 3 (2 to 4) | 2.10 |" in peers.table(turns, {})


def test_a_peer_that_does_not_run_is_in_the_table_with_its_reason(peers: ModuleType) -> None:
    ours, theirs = peers.ROWS[0], peers.ROWS[1]
    text = peers.table({ours: [said(10)], theirs: []}, {theirs: "not installed: no such version"})
    assert f"| {theirs.name} | not installed: no such version |" in text


def test_exact_hessians_are_held_against_our_exact_hessians(peers: ModuleType) -> None:
    plain, exact = (next(r for r in peers.ROWS if r.environment == "perfeds2" and r.exact is e) for e in (False, True))
    rival = next(r for r in peers.ROWS if r.environment == "torch" and r.exact)
    text = peers.table({plain: [said(100)], exact: [said(8)], rival: [said(2)]}, {})
    assert "| 2 (2 to 2) | 4 (4 to 4) | 4 (4 to 4) |" in text


def test_every_row_has_its_script_and_its_packages(peers: ModuleType) -> None:
    for row in peers.ROWS:
        assert (PEERS / f"on_{row.environment}.py").exists()
        assert (PEERS / f"{row.environment}.txt").exists()
