"""Each erratum shows what it says, its page is what it prints, and every function and test it names exists."""

import ast
import dataclasses
import functools
import importlib
import math
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.errata import NUMBERS
from perfeds2.errors import InputError
from perfeds2.paper.errata import ERRATA, chosen, errata_markdown, errata_table, errata_text

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs" / "site"))


def errata_in_full() -> str:
    return importlib.import_module("reference").errata_in_full()


@functools.cache
def values(number: int) -> list[Any]:
    """Compute what an erratum measures, in its order, and check that the package records the same."""
    computed = NUMBERS[number]() if number in NUMBERS else []
    recorded = chosen([number])[0].numbers
    assert [label for label, _ in recorded] == [label for label, _ in computed]
    for (label, known), (_, now) in zip(recorded, computed, strict=True):
        same = known == now if isinstance(now, str) else known == pytest.approx(now, rel=0.02, abs=1e-12)
        assert same, f"{label} is now {now}; see python -m benchmarks.errata"
    return [value for _, value in computed]


def test_1_the_printed_denominator_vanishes_and_our_band_ends_on_time():
    load, denominator, band, miss, _ = values(1)
    assert 0 < load < 1
    assert (denominator, miss) == ("below 1e-15", "below 1e-14")
    assert 0 < band < 1e6


def test_2_taking_turns_is_slower_everywhere_and_more_so_far_out():
    near, middle, far, clock, halfway = values(2)
    assert near == pytest.approx(2.8, abs=0.05)
    assert far == pytest.approx(5.3, abs=0.05)
    assert near < middle < far
    assert clock == pytest.approx(5.3, abs=0.3)
    assert 0 < halfway < clock


def test_3_the_factor_is_one_over_ln_2():
    factor, _, with_bits, with_nats = values(3)
    assert factor == pytest.approx(1 / math.log(2), rel=1e-12)
    assert with_bits > with_nats


def test_4_has_no_number():
    assert values(4) == []
    assert "no number" in errata_text([4])


def test_5_the_printed_share_sits_out_far_more_than_s_rounds():
    by_print, sits_out, ours, sits_out_ours, _, total = values(5)
    assert (by_print, ours) == (0.02, 0.05)
    assert sits_out > 4 > sits_out_ours
    assert total > 1


def test_6_the_printed_optima_break_the_constraint_and_miss_the_target():
    a_printed, needed, met_printed, a_ours, met_ours, k_printed, term_printed, k_ours, term_ours = values(6)
    assert a_printed < needed <= a_ours
    assert met_printed < 1 <= met_ours
    assert k_printed < k_ours
    assert term_ours == pytest.approx(0.01)
    assert term_printed > 0.01


def test_7_the_printed_step_never_comes_to_rest_and_the_corrected_one_keeps_its_promise():
    _, _, by_print, corrected, promised, measured, calm, bound = values(7)
    assert corrected < 0.05 < by_print
    assert measured > 1000 * promised
    assert calm <= bound


def test_8_the_root_is_nine_times_the_sum():
    assert values(8) == pytest.approx([0.25, math.sqrt(5), math.sqrt(5) / 0.25])


def test_9_how_far_each_schedule_is_off():
    assert values(9) == pytest.approx([300, 11, 0, 0, 13, 2.4], abs=0.1)


def test_10_the_printed_rule_merges_s_plus_1_and_ours_s():
    by_hand, stalest, too_stale, ours = values(10)
    assert (by_hand, stalest, ours) == (2, 4, 3)
    assert too_stale > 0


@pytest.mark.slow
def test_11_restart_starves_three_of_twenty_and_wait_none():
    starved_restart, restart_s, starved_wait, wait_s, *_ = values(11)
    assert (starved_restart, starved_wait) == (3, 0)
    assert wait_s > restart_s


def test_12_arrivals_differ_by_rounding_and_a_plan_settles_them():
    assert values(12) == ["below 1e-12", 100.0]


def test_13_more_labels_make_ues_more_alike():
    apart = values(13)
    assert (np.diff(apart) < 0).all()
    assert apart[0] == pytest.approx(100 * 18 / 19)  # of 19 others one has the same label
    assert apart[-1] < 1


def test_14_the_largest_batch_gives_less_than_the_true_variance():
    true, by_print, ours = values(14)
    assert by_print < true <= ours


def test_15_the_second_line_falls_while_nothing_moves_and_the_floor_stays():
    first_line, second_line, by_print, proved, sharpened = values(15)
    assert first_line == 0
    assert second_line == pytest.approx(-0.13)
    assert by_print < 1e-4 < sharpened < proved


@pytest.mark.slow
def test_16_the_claim_of_theorem_1_is_exceeded():
    claimed, measured, settled, claimed_later = values(16)
    assert claimed_later < claimed < measured < settled


def test_17_the_noise_of_a_merge_does_not_shrink_with_its_share():
    assert values(17) == pytest.approx([1, 0.05])


def test_18_the_odd_ue_deviates_more_than_claimed_and_less_than_our_bound():
    _, deviation, claimed, ours = values(18)
    assert claimed < deviation <= ours


def test_19_one_round_of_staleness_exceeds_its_claim_and_the_sum_does_not():
    """w = 1, 1/2, 0, −1/4: in round 3 the model is 1/4 away from the one the merged gradient, 0, came from."""
    one, claimed, total, claimed_total = values(19)
    assert (one, claimed) == (1 / 16, 0)
    assert total <= claimed_total


def test_20_a_share_below_c4_2_keeps_the_staleness():
    stalest, share, least, stalest_of_20, least_s = values(20)
    assert (stalest, stalest_of_20) == (1, 3)
    assert share < least
    assert stalest_of_20 < least_s


def test_21_the_second_term_grows_with_a_and_the_target_is_missed():
    at_1, at_4, accurate, quorum, meets = values(21)
    assert at_4 == pytest.approx(2 * at_1)
    assert accurate < quorum
    assert meets == "no"


def test_22_a_long_inner_step_breaks_lemma_1():
    bend, by_print, bend_short, short = values(22)
    assert bend == pytest.approx(9)  # (1 − α)² at w = 0
    assert bend > by_print
    assert bend_short <= short


def test_23_the_bound_of_theorem_4_makes_the_round_longer():
    least, fastest, without_s, with_s, slower = values(23)
    assert fastest < least
    assert without_s < with_s
    assert slower == pytest.approx(25.6, abs=0.1)


def test_24_an_irrational_share_has_no_period():
    fraction, *seen = values(24)
    assert fraction == 4
    assert seen == sorted(set(seen))  # the longer one looks, the longer the period


def test_25_on_the_papers_plan_three_rounds_of_staleness_are_enough():
    stalest, *seconds = values(25)
    assert stalest == 3
    assert seconds[2] == seconds[3] == seconds[4] < min(seconds[:2])


def test_26_the_lemmas_keep_to_a_third_and_an_eighth():
    by_print, enough, diverse, diverse_enough = values(26)
    assert enough <= by_print / 3
    assert diverse_enough == diverse / 8


def test_every_erratum_has_a_number_in_order_and_a_test_of_its_own():
    assert [item.number for item in ERRATA] == list(range(1, len(ERRATA) + 1))
    here = defined_in(Path(__file__))
    for item in ERRATA:
        assert any(name.startswith(f"test_{item.number}_") for name in here), item.number


def test_the_terminal_shows_all_numbers_or_one_in_full():
    for item in chosen([9, 4]):
        text = errata_text([item.number])
        assert text.startswith(f"{item.number}. {item.where}\n")
        assert item.code[0] in text
        assert item.tests[0] in text
    everything = errata_text()
    assert all(f"{item.number}. {item.where}" in everything for item in ERRATA)
    assert errata_table([8]).split("\n")[0].split("\t") == [
        "8",
        "20 equal UEs, A = 5: Σ η_i over a round, largest",
        "0.25",
    ]


def test_an_unknown_number_is_one_sentence():
    with pytest.raises(InputError, match=r"^there is no erratum 99; choose from 1 to 26\.$"):
        errata_text([1, 99])


def test_the_page_is_what_is_printed():
    page = (ROOT / "docs/reports/errata.md").read_text(encoding="utf-8")
    assert page == errata_markdown(), "run: perfeds2 errata --markdown > docs/reports/errata.md"


def test_every_function_and_test_an_erratum_names_exists():
    for item in ERRATA:
        assert item.code
        assert item.tests
        for name in item.code:
            assert exists(name), f"erratum {item.number} names {name}"
        for name in item.tests:
            assert exists_test(name), f"erratum {item.number} names {name}"


def test_the_page_has_a_line_and_the_reference_an_entry_for_each():
    page, reference = errata_markdown(), errata_in_full()
    for item in ERRATA:
        assert f"errata.md#erratum-{item.number})" in page
        entry = reference.partition(f"{{ #erratum-{item.number} }}")[2].partition("\n## ")[0]
        assert item.code[0] in entry
        assert item.tests[0] in entry


@pytest.mark.slow
@pytest.mark.parametrize("page", [None, "explanation/paper-to-code.md"])
def test_every_function_and_test_a_page_names_exists(page):
    text = (ROOT / "docs" / page).read_text(encoding="utf-8") if page else errata_in_full()
    functions, tests = re.findall(r"`(perfeds2\.[\w.]+)`", text), re.findall(r"`(tests/[^`]+)`", text)
    assert len(functions) > 30
    assert len(tests) > 30
    assert [name for name in functions if not exists(name)] == []
    assert [name for name in tests if not exists_test(name)] == []


def test_paper_to_code_leaves_nothing_of_the_paper_out():
    text = (ROOT / "docs/explanation/paper-to-code.md").read_text(encoding="utf-8")
    first_column = " ".join(line.split("|")[1] for line in text.splitlines() if line.startswith("|"))
    parts = [f"({number})" for number in range(1, 60)]
    parts += [
        f"{kind} {number}"
        for kind, most in (("Lemma", 3), ("Theorem", 4), ("Corollary", 5), ("Assumption", 5), ("Algorithm", 2))
        for number in range(1, most + 1)
    ]
    parts += [f"Fig. {number}" for number in range(1, 11)]
    parts += [f"P{number}" for number in range(1, 5)]
    parts += [
        f"C{problem}.{number}" for problem, most in ((1, 5), (2, 3), (3, 3), (4, 3)) for number in range(1, most + 1)
    ]
    assert [part for part in parts if part not in first_column] == []


def test_paper_to_code_points_to_errata_that_are_about_that_place():
    """Where an erratum's place is an equation, that equation's row names the erratum."""
    text = (ROOT / "docs/explanation/paper-to-code.md").read_text(encoding="utf-8")
    rows = [line.split("|") for line in text.splitlines() if line.startswith("|") and line.count("|") == 6]
    for item in ERRATA:
        for equation in re.findall(r"\(\d+\)", item.where):
            named = [row[5] for row in rows if equation in row[1]]
            assert any(str(item.number) in re.findall(r"\d+", cell) for cell in named), (item.number, equation)


def exists(dotted):
    """Whether a dotted name leads to something: module, then attributes (or fields of a dataclass)."""
    parts = dotted.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for name in parts[cut:]:
            if dataclasses.is_dataclass(found) and name in {field.name for field in dataclasses.fields(found)}:
                return name == parts[-1]
            if not hasattr(found, name):
                return False
            found = getattr(found, name)
        return True
    return False


def exists_test(reference):
    file, _, name = reference.partition("::")
    return (ROOT / file).exists() and name in defined_in(ROOT / file)


def defined_in(file):
    return {
        node.name for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if isinstance(node, ast.FunctionDef)
    }


def test_a_name_that_leads_nowhere_is_noticed():
    assert exists("perfeds2.network.link.rate_bps")
    assert not exists("perfeds2.network.link.no_such_thing")
    assert not exists("perfeds2.no_such_module.rate_bps")
    assert not exists_test("tests/network/test_link.py::test_that_is_not_there")
