"""Does the code read the contract of objectives and merges, instead of detecting what they can do?"""

import ast
import re
from pathlib import Path

import pytest

import perfeds2.learning.methods as methods

PACKAGE = Path(__file__).parents[2] / "perfeds2"
FOLDERS = ("learning", "spec", "runs", "deployment")
PARTS = {"objective", "merge", "method"}  # what a variable or attribute that holds a part is called
DOORS = {"isinstance(merge, Merge)"}  # a merge is given as it is, or as what makes one
REPLAY_LINES = 350


def detections(code: str) -> list[str]:
    """Return the expressions that ask what a part is or has. ``type(part).__name__`` is for errors."""
    found = []
    for node in ast.walk(ast.parse(code)):
        call = node.left if isinstance(node, ast.Compare) else node
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.args):
            continue
        asks = ("type",) if isinstance(node, ast.Compare) else ("isinstance", "issubclass", "hasattr", "getattr")
        if call.func.id in asks and PARTS & set(re.split(r"\W+", ast.unparse(call.args[0]))):
            found.append(ast.unparse(node))
    return found


def test_a_detection_is_found():
    code = "isinstance(learner.objective, A); hasattr(merge, 'b'); type(objective) is A; type(merge).__name__; type(n) is int"
    assert detections(code) == ["isinstance(learner.objective, A)", "hasattr(merge, 'b')", "type(objective) is A"]


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_capability_of_an_objective_or_a_merge_is_detected(folder):
    for path in sorted((PACKAGE / folder).rglob("*.py")):
        found = detections(path.read_text("utf-8"))
        assert [each for each in found if each not in DOORS] == [], path


def test_what_builds_and_what_arranges_names_no_method():
    names = {name for name in vars(methods) if isinstance(vars(methods)[name], type)} - {
        "FedAvg",
        "Mean",
        "Merge",
        "Method",
        "Objective",
    }
    for file in ("spec/build.py", "learning/script.py", "learning/replay.py", "learning/job.py"):
        tree = ast.parse((PACKAGE / file).read_text("utf-8"))
        used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
        assert not used & names
        assert not {module for module in imported if module.startswith("perfeds2.learning.methods.")}


def test_the_replay_stays_short():
    assert len((PACKAGE / "learning/replay.py").read_text("utf-8").splitlines()) < REPLAY_LINES
