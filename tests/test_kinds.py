"""Does the table of kinds name functions that exist, and is a folder drawn without executing the code that it names?"""

import subprocess
import sys
from pathlib import Path

import pytest
import tomli_w
from command_line import perfeds2

from perfeds2.kinds import KINDS, Late, kind_of
from perfeds2.spec.names import imported, load_source, refusing_code


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_every_function_of_a_kind_exists(kind):
    functions = [each for each in vars(kind).values() if isinstance(each, Late) and each.place]
    assert kind.draw in functions
    assert all(callable(imported(f"perfeds2.{each.place}")) for each in functions)
    assert {each.place.partition(".")[0] for each in functions} <= {"runs", "studies", "report"}  # below the table


def test_looking_at_the_table_imports_no_jax():
    code = "import sys, perfeds2.kinds; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_report_does_not_execute_the_code_that_a_tuning_names(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "tuned"
    folder.mkdir()
    base = {"task": {"name": "mine.py:task"}, "run": {"algorithms": ["PerFedS2"]}}
    asked = {"base": base, "search": {"PerFedS2": {"beta": [0.1]}}, "seeds": [0], "rungs": 1}
    (folder / "tune.toml").write_text(tomli_w.dumps(asked), encoding="utf-8")
    (folder / "tuned.toml").write_text("", encoding="utf-8")
    (tmp_path / "mine.py").write_text("open('ran', 'w')\ndef task(seed): pass\n", encoding="utf-8")
    status, said = perfeds2("report", "tuned")
    assert status == 2
    assert "is code of mine.py, which is not executed to draw a report" in said
    assert not (tmp_path / "ran").exists()


def test_code_is_executed_again_once_the_folder_is_drawn(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("x = 1\n", encoding="utf-8")
    with refusing_code(), pytest.raises(ValueError, match="not executed"):
        load_source("mine.py")
    assert load_source("mine.py")[0].x == 1


def test_a_federation_is_known_by_its_own_file_and_drawn_as_a_run(tmp_path: Path):
    (tmp_path / "summary.json").write_text("{}", encoding="utf-8")
    (tmp_path / "spec.toml").write_text("", encoding="utf-8")
    assert kind_of(tmp_path).command == "compare"
    (tmp_path / "federation.toml").write_text("", encoding="utf-8")
    kind = kind_of(tmp_path)
    assert (kind.command, bool(kind.run.place)) == ("federate", False)
    assert kind.draw == KINDS["compare"].draw
