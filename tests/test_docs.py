"""Do the documents' examples run, and do their links lead somewhere?"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def python_blocks(path):
    return re.findall(r"```python\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("path", [path for path in DOCS if python_blocks(path)], ids=lambda path: path.name)
def test_the_examples_of_a_document_run(path, capsys):
    """One after the other, in one namespace, as a reader would."""
    namespace = {}
    for block in python_blocks(path):
        exec(compile(block, path.name, "exec"), namespace)
    assert capsys.readouterr().out


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)
def test_links_between_documents_lead_somewhere(path):
    for target in re.findall(r"\]\(([\w./-]+\.\w+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
        assert (path.parent / target).exists(), target
