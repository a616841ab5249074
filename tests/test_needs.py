"""Is a test skipped only where what it needs is missing?"""

import os
import subprocess
import sys
from pathlib import Path

import needs
import pytest

pytestmark = pytest.mark.slow

TESTS = Path(__file__).parent
NEEDY = """
import pytest
from needs import PRESENT, needs

PRESENT.update(here=lambda: True, away=lambda: False, mnist=lambda: False)

@needs("here")
def test_here(): pass

@needs("away", "here")
def test_away(): pass

@needs("mnist")
def test_data(): pass

def test_always(): pass
"""
AT_WILL = "import pytest\n\ndef test_at_will(): pytest.skip('not today')\n"
WHOLE = "import pytest\n\npytest.importorskip('pyarrow_or_so')\n"


def outcomes(folder: Path, text: str, *flags: str) -> tuple[int, str]:
    (folder / "test_it.py").write_text(text)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "conftest",
        "-p",
        "no:cacheprovider",
        "-q",
        "-rs",
        *flags,
        "test_it.py",
    ]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent)])}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


def test_what_is_missing_skips_its_tests_by_name(tmp_path):
    status, said = outcomes(tmp_path, NEEDY)
    assert status == 0, said
    assert "2 passed, 2 skipped" in said
    assert "needs away\n" in said


def test_where_all_should_be_there_only_data_may_be_away(tmp_path):
    status, said = outcomes(tmp_path, NEEDY, "-m", "needs", "--all-there")
    assert status == 1
    assert "needs away, which should be there" in said
    assert "1 passed, 1 skipped, 1 deselected, 1 error" in said


@pytest.mark.parametrize("text", [AT_WILL, WHOLE], ids=["a test", "a file"])
def test_skipping_at_will_fails(text, tmp_path):
    status, said = outcomes(tmp_path, text)
    assert status != 0
    assert "was skipped, but nothing it needs" in said


def test_every_test_that_needs_something_is_in_a_file_that_names_it(request):
    """``make test-needs`` collects only these files."""
    needy = {item.path for item in request.session.items if item.get_closest_marker("needs")}
    assert needy <= set(needs.files())
