"""Is the study of docs/how-to/study.md 40 lines, does it run, and does the command line alone give the same?"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import perfeds2

TEXT = (Path(__file__).parent.parent / "docs" / "how-to" / "study.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_study_runs_as_a_script_and_from_the_command_line_alone(tmp_path, monkeypatch):
    make_data, study = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert study.count("\n") <= 40
    monkeypatch.chdir(tmp_path)
    exec(compile(make_data, "data", "exec"), {})
    Path("study.py").write_text(study, encoding="utf-8")
    run("study.py")
    assert "TwoStepsS2" in Path("study/figures/table.tex").read_text(encoding="utf-8")
    assert Path("study/figures/test-accuracy-personal.pdf").stat().st_size > 5_000
    (commands,) = re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL)
    compared, drawn = (shlex.split(command) for command in commands.strip().splitlines())
    run("-m", "perfeds2", *compared[1:])
    status, said = perfeds2(*drawn[1:])
    assert status == 0, said
    for name in ("metrics.csv", "spec.toml", "figures/table.tex"):
        assert Path("again", name).read_bytes() == Path("study", name).read_bytes(), name


def run(*words):
    environment = os.environ | {
        "JAX_COMPILATION_CACHE_DIR": os.environ["PERFEDS2_COMPILE_CACHE"]
    }  # the library itself keeps nothing
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
