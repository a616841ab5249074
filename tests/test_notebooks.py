"""Are the notebooks of examples/notebooks stored, listed and installed as they should be? ``test_first_hour.py`` runs them."""

import ast
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))


def test_every_notebook_is_named_where_one_looks():
    page = (ROOT / "docs" / "how-to" / "notebooks.md").read_text(encoding="utf-8")
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
