"""Does the list of hand-typed mutants still fit the code?"""

from mutate import TESTS, listed


def test_every_hand_typed_mutant_changes_one_place_and_has_tests():
    mutants = listed()  # raises where a text does not occur once
    assert len(mutants) <= 80  # the tool makes the others
    assert all(mutant.old != mutant.new and (TESTS / mutant.tests[0]).is_file() for mutant in mutants)
