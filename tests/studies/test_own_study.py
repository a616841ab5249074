"""Does a study of one's own have a page, watch and resume like every study, and is its code left alone where it must be?"""

import re
import shlex
from pathlib import Path

import pytest
from command_line import perfeds2, told, train_here
from in_numpy import train_in_numpy

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "study.md").read_text(encoding="utf-8")
TINY = "--task synthetic --ues 4 --horizon-s 0.1 --eval-every-s 0.05 --batch 4 --seeds 2 --workers 1 --quiet --out own"
SHORT = """
def quorums(spec, train):
    \"\"\"Which quorum?\"\"\"
    points = {str(a): spec.with_(protocol=spec.protocol.with_(quorum=a)) for a in QUORUMS}
    return [{"quorum": a, "rounds": results[0].facts["rounds"]} for a, results in train(points).items()]
"""
TWICE = """
from pathlib import Path

def quorums(spec, train):
    for a in (1, 2):
        ((_, results),) = train({str(a): spec.with_(protocol=spec.protocol.with_(quorum=a))}).items()
        yield {"quorum": a, "rounds": results[0].facts["rounds"]}
        if Path("stop").exists():
            raise KeyboardInterrupt
"""
TABLES = ("study.csv", "study_metrics.csv", "study.json", "report.html")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    train_in_numpy(monkeypatch.setattr)
    train_here(monkeypatch)
    monkeypatch.chdir(tmp_path)


def write(quorums: str) -> None:
    Path("mine.py").write_text(SHORT.replace("QUORUMS", quorums), encoding="utf-8")


def run(*words: str) -> str:
    status, said = perfeds2("study", *words)
    assert status == 0, said
    return said


def trained() -> set[str]:
    return {path.name for path in Path("own", "trainings").glob("*.safetensors")}


def tables() -> list[bytes]:
    return [Path("own", name).read_bytes() for name in TABLES]


def test_the_study_of_the_page_is_short_and_runs():
    study = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[-1]
    assert study.count("\n") <= 40
    Path("quorums.py").write_text(study, encoding="utf-8")
    (typed,) = re.findall(r"\$ perfeds2 (study quorums.py:quorums .*)", PAGE)
    shorter = TINY.replace("--quiet ", "").replace("--ues 4", "")  # with the UEs of the page
    status, printed, said = told(*shlex.split(f"{typed} {shorter}"))
    assert status == 0, said
    assert "A = 5" in printed
    assert "Which quorum learns most?" in Path("own/report.html").read_text(encoding="utf-8")
    assert Path("own/study.csv").read_text("utf-8").splitlines()[0] == "quorum,accuracy,joules"
    assert len(trained()) == 6


def test_an_interrupted_study_ends_with_the_same_bytes():
    """Interrupted between two calls of train()."""
    Path("mine.py").write_text(TWICE, encoding="utf-8")
    run("mine.py:quorums", *shlex.split(TINY))
    whole = tables()
    Path("own").rename("whole")
    Path("stop").touch()
    assert perfeds2("study", "mine.py:quorums", *shlex.split(TINY))[0] == 130
    assert len(trained()) == 2
    Path("stop").unlink()
    run("--resume", "own", "--quiet")
    assert len(trained()) == 4
    assert tables() == whole


def test_a_changed_study_trains_only_what_is_new():
    write("(1, 2)")
    run("mine.py:quorums", *shlex.split(TINY))
    before = {name: Path("own", "trainings", name).stat().st_mtime_ns for name in trained()}
    write("(1, 2, 3)")
    run("mine.py:quorums", *shlex.split(TINY))
    assert len(trained()) == 6
    assert {name: Path("own", "trainings", name).stat().st_mtime_ns for name in before} == before
    said = perfeds2("study", "mine.py:quorums", *shlex.split(TINY.replace("--ues 4", "--ues 5")))
    assert said[0] == 2
    assert "already holds a different study" in said[1]


def test_another_study_reuses_what_was_trained():
    write("(1, 2)")
    run("mine.py:quorums", *shlex.split(TINY))
    write("(2, 3)")
    status, said, _ = told(
        "study", "mine.py:quorums", *shlex.split(TINY.replace("--quiet --out own", "--out more")), "--reuse", "own"
    )
    assert status == 0
    assert "Reused 2 trainings." in said


def test_report_and_watch_never_execute_the_code_that_a_folder_names():
    write("(1, 2)")
    run("mine.py:quorums", *shlex.split(TINY))
    whole = tables()
    Path("mine.py").write_text("raise SystemExit('executed')", encoding="utf-8")
    assert perfeds2("report", "own", "--paper", "--quiet")[0] == 0
    assert tables() == whole
    assert told("watch", "own")[:2] == (0, "The command in own has finished (see study.json)\n")
    Path("own/study.json").unlink()
    status, said = perfeds2("report", "own")
    assert status == 2
    assert "holds an unfinished study; continue it by adding --resume own" in said


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return 3", "must yield rows: dictionaries of texts and numbers; it returned int."),
        ("yield 3", "it yielded int."),
        ("yield {'a': [1]}", "a is list."),
    ],
)
def test_what_is_no_table_is_refused(body, said):
    Path("mine.py").write_text(f"def quorums(spec, train):\n    {body}\n", encoding="utf-8")
    status, error = perfeds2("study", "mine.py:quorums", *shlex.split(TINY))
    assert status == 2
    assert said in error
    assert not Path("own/study.json").exists()


def test_a_missing_study_is_asked_for():
    assert "the study is missing; give FILE.py:NAME" in perfeds2("study", "--quiet")[1]
    assert "holds no study" in perfeds2("study", "--resume", "nowhere")[1]
