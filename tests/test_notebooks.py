"""Do the notebooks of examples/notebooks run from top to bottom, and show what their words say?"""

import ast
import json
import re
import sys
import types
from contextlib import nullcontext
from pathlib import Path

import pytest
from command_line import compiled_as_users_do
from matplotlib import pyplot

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))
SHOWN = {  # what must be among the lines
    "collapse": [r"<Timeline: 10 UEs, 199 rounds of 3", r"before the step: [0-6]?\d%, after it: (9\d|8\d|100)%"],
    "first_hour": [
        r"<Cell: 10 UEs, .* seed 0>",
        r"34 rounds of 10 in 9.863 s",
        r"133 rounds of 3 in 9.986 s",
        r"<Comparison: digits, .* PerFedS2 ends highest",
        r"\{'PerFedS2': .*'Mine'",
    ],
    "own_scheduler": [
        r"^patient +22.7\d+ +0.00\d",
        r"^fair +24.6\d+ +0.07\d",
        r"^round_robin +24\d\.\d+ +1\d\.\d+ +0\.9\d",
        r"^fair +24\d\.\d+ +1\d\.\d+ +0\.9\d",
    ],
    "planning": [
        r"old meter",
        r"<Plan: digits, 8 UEs, 80 % after .* on fresh seeds",
        r"<Comparison: .* PerFedS2 ends highest",
    ],
}
TRAIN_MUCH = ("first_hour", "own_scheduler", "planning")  # so much that optimising what they compile is worth it


def test_every_notebook_is_named_where_one_looks():
    page = (ROOT / "docs" / "how-to" / "notebooks.md").read_text(encoding="utf-8")
    assert {path.stem for path in NOTEBOOKS} == SHOWN.keys()
    for path in NOTEBOOKS:
        assert f"(../../examples/notebooks/{path.name})" in page


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_what_it_showed(path):
    book = json.loads(path.read_text(encoding="utf-8"))
    assert (book["nbformat"], book["metadata"]["kernelspec"]["name"]) == (4, "python3")
    assert "".join(book["cells"][0]["source"]).startswith("# ")
    for cell in book["cells"]:
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)
            ast.parse("".join(cell["source"]))
    names = [cell["id"] for cell in book["cells"]]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_installs_perfeds2_only_where_it_is_missing(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    first = next("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    assert 'if importlib.util.find_spec("perfeds2") is None:' in first
    exec(first, {})  # does nothing here


def test_binder_installs_this_repository_with_a_supported_python():
    binder = ROOT / "binder"
    assert (binder / "runtime.txt").read_text(encoding="utf-8").strip() == "python-3.11"
    lines = (binder / "requirements.txt").read_text(encoding="utf-8").splitlines()[1:]
    assert lines == ["-c ../constraints.txt", "."]
    assert (binder / "../constraints.txt").resolve().exists()


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_what_it_says(path, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "__main__", types.ModuleType("__main__"))  # a kernel's has no file
    compiled = compiled_as_users_do() if path.stem in TRAIN_MUCH else nullcontext()
    with compiled, pyplot.rc_context({"backend": "agg"}):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            if cell["cell_type"] == "code":
                run_cell("".join(cell["source"]), cell["id"])
    pyplot.close("all")
    out = capsys.readouterr().out
    for shown in SHOWN[path.stem]:
        assert re.search(shown, out, re.MULTILINE), f"{shown} is not in\n{out}"
    assert list(tmp_path.iterdir()) == []  # nothing is left lying about


def run_cell(source: str, name: str) -> None:
    """As a kernel does: what the last line names is shown."""
    names = vars(sys.modules["__main__"])
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec"), names)
    if isinstance(last, ast.Expr):
        show(eval(compile(ast.Expression(last.value), name, "eval"), names))


def show(value: object) -> None:
    """As a notebook: by its own HTML, if it has any, and here in a line too."""
    if value is not None:
        page = getattr(value, "_repr_html_", lambda: "plain")()
        assert page is None or page  # None: by something else, such as a table of pandas that is told to
        print(repr(value))
