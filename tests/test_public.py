"""Are the public names documented, do their examples run, and does no document import anything else?"""

import ast
import doctest
import importlib
import inspect
import json
import re
from pathlib import Path

import pytest
from command_line import train_here
from in_numpy import train_in_numpy

import perfeds2

ROOT = Path(__file__).parents[1]
PUBLIC = {
    name: set(importlib.import_module(name).__all__)
    for name in ("perfeds2", "perfeds2.runs", "perfeds2.report", "perfeds2.deployment")
}
FUNCTIONS = [name for name in perfeds2.__all__ if inspect.isfunction(getattr(perfeds2, name))]
PARTS = ["Algorithm", "FedBuff", "Optax"]  # what an algorithm of your own is put together from
DOCUMENTS = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.*")]


def code_in(path: Path) -> list[str]:
    """Return the Python code in a document, notebook or example."""
    if path.suffix == ".py":
        return [path.read_text("utf-8")]
    if path.suffix == ".ipynb":
        cells = json.loads(path.read_text("utf-8"))["cells"]
        return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    if path.suffix == ".md":
        return re.findall(r"^```py(?:thon)?\n(.*?)^```", path.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    return []


def internal(code: str) -> list[str]:
    """Return what a piece of code imports from the package that is not public."""
    code = "\n".join(line for line in code.splitlines() if not line.lstrip().startswith(("%", "!")))
    found = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] == "perfeds2":
            known = PUBLIC.get(str(node.module), set())
            found += [f"{node.module}.{each.name}" for each in node.names if each.name not in known]
        elif isinstance(node, ast.Import):
            found += [each.name for each in node.names if each.name.startswith("perfeds2.")]
    return [each for each in found if each != "perfeds2.__version__"]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_document_imports_nothing_internal(path):
    assert [name for code in code_in(path) for name in internal(code)] == []


def test_what_is_internal_is_found():
    assert internal("from perfeds2.spec.resolve import resolve\nfrom perfeds2 import compare, nonsense") == [
        "perfeds2.spec.resolve.resolve",
        "perfeds2.nonsense",
    ]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_public_function_says_what_it_takes_and_returns(name):
    function = getattr(perfeds2, name)
    said = inspect.getdoc(function) or ""
    assert {title for title in ("Args:", "Returns:", "Example:") if title not in said} == set()
    for parameter in inspect.signature(function).parameters.values():
        assert f"{parameter.name}:" in said, parameter
        assert parameter.annotation is not parameter.empty
    assert inspect.signature(function).return_annotation is not inspect.Signature.empty


@pytest.mark.parametrize("name", [name for name in perfeds2.__all__ if inspect.isclass(getattr(perfeds2, name))])
def test_a_public_class_says_what_it_is(name):
    assert len((getattr(perfeds2, name).__doc__ or "").split()) >= 3


@pytest.mark.parametrize("name", FUNCTIONS + PARTS)
def test_the_example_of_a_public_name_runs(name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    train_here(monkeypatch)
    train_in_numpy(monkeypatch.setattr, traced=True)
    function = getattr(perfeds2, name)
    test = doctest.DocTestParser().get_doctest(inspect.getdoc(function) or "", {}, name, None, 0)
    assert test.examples
    assert doctest.DocTestRunner().run(test).failed == 0


def test_sub_packages_export_what_their_stubs_name():
    for name, names in PUBLIC.items():
        for each in names:
            assert getattr(importlib.import_module(name), each) is not None
