"""Does the list of ``make mutate`` still fit the code and the tests?"""

import re

import pytest
from mutations import MUTATIONS, ROOT, mutate


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda each: f"{each.file}: {each.new}")
def test_a_mutation_changes_one_place_and_names_a_test(mutation):
    text = (ROOT / "perfeds2" / mutation.file).read_text(encoding="utf-8")
    assert mutate(text, mutation) != text
    file, name = mutation.killed_by.split("::")
    assert re.search(rf"^def {re.escape(name.partition('[')[0])}\(", (ROOT / "tests" / file).read_text("utf-8"), re.M)
