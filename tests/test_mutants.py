"""Does the list of hand-typed mutants still fit the code, and does the tool judge rightly?"""

from pathlib import Path

import mutate
import pytest
from mutate import STOPPED, TESTS, Ended, Mutant, Sound, listed


def test_every_hand_typed_mutant_changes_one_place_and_has_tests():
    mutants = listed()  # raises where a text does not occur once
    assert len(mutants) <= 80  # the tool makes the others
    assert all(mutant.old != mutant.new and (TESTS / mutant.tests[0]).is_file() for mutant in mutants)


@pytest.mark.parametrize(("status", "verdict"), [(1, "killed"), (STOPPED, "stopped"), (0, "survived")])
def test_files_of_tests_run_until_one_fails_or_does_not_end(monkeypatch, tmp_path, status, verdict):
    """The second of three files ends with the status; the others pass."""
    (tmp_path / "perfeds2").mkdir()
    path = tmp_path / "perfeds2" / "sum.py"
    path.write_text("a + b\n")
    ran = []

    def run_tests(copy: Path, _mark: str, test: str, *_: object) -> Ended:
        if copy == tmp_path:
            assert path.read_text() == "a - b\n"
            ran.append(test)
        return Ended(status if copy == tmp_path and test == "two.py" else 0, 1.0, "")

    monkeypatch.setattr(mutate, "run_tests", run_tests)
    mutant = Mutant("sum.py", 1, "", 2, "+", "-", ("one.py", "two.py", "three.py"))
    assert mutate.test_mutant(mutant, tmp_path, Sound(60.0), 10.0) == verdict
    assert ran == (["one.py", "two.py", "three.py"] * 2 if status == 0 else ["one.py", "two.py"])
    assert path.read_text() == "a + b\n"
