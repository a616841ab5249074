"""Is the study of docs/how-to/study.md 40 lines, does it run, and does the command line alone give the same?"""

import re
import runpy
import shlex
from pathlib import Path

import pytest
from command_line import perfeds2, train_here
from in_numpy import train_in_numpy

TEXT = (Path(__file__).parent.parent / "docs" / "how-to" / "study.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_study_runs_as_a_script_and_from_the_command_line_alone(tmp_path, monkeypatch):
    """With two seeds instead of five, and not compiled: more would take longer and show no more."""
    train_in_numpy(monkeypatch.setattr, traced=True)
    train_here(monkeypatch)
    text, replaced = re.subn(r"seeds([= ])5\b", r"seeds\g<1>2", TEXT)
    assert replaced == 2
    make_data, study, _ = re.findall(
        r"```python\n(.*?)```", text, re.DOTALL
    )  # the last: tests/studies/test_own_study.py
    assert study.count("\n") <= 40
    monkeypatch.chdir(tmp_path)
    exec(compile(make_data, "data", "exec"), {})
    Path("study.py").write_text(study, encoding="utf-8")
    runpy.run_path("study.py", run_name="__main__")
    assert "TwoStepsS2" in Path("study/figures/table.tex").read_text(encoding="utf-8")
    assert Path("study/figures/test-accuracy-personal.pdf").stat().st_size > 500
    (commands,) = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    for command in commands.strip().splitlines():
        status, said = perfeds2(*shlex.split(command)[1:])
        assert status == 0, said
    for name in ("metrics.csv", "spec.toml", "figures/table.tex"):
        assert Path("again", name).read_bytes() == Path("study", name).read_bytes(), name
