"""Do the ledger's verdicts follow its rule?"""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfeds2.paper.claims import (
    CLAIMS,
    LEAST_SEEDS,
    BetterThan,
    Claim,
    CurveName,
    ledger,
    mean_accuracy,
    median_time,
)
from perfeds2.paper.claims import _measure as measure
from perfeds2.paper.reproduce import load_figures

HIGH, LOW, GONE = (CurveName("exp_1", "MNIST", line) for line in ("PerFedS2", "PerFed-SYN", "nobody"))


def curve(accuracies: Sequence[float], which: CurveName = HIGH) -> pd.DataFrame:
    """One seed for each accuracy, which it has all the time."""
    rows = [
        {"figure": which.figure, "panel": which.panel, "task": "mnist", "line": which.line, "seed": seed, "time_s": t}
        | {"test_accuracy_personal": accuracy}
        for seed, accuracy in enumerate(accuracies)
        for t in (0.0, 1.0)
    ]
    return pd.DataFrame(rows)


def verdict(high: Sequence[float], low: Sequence[float]) -> str:
    return measure(BetterThan(HIGH, LOW), {HIGH: curve(high), LOW: curve(low, LOW)}).verdict


def write(folder, *curves: pd.DataFrame) -> None:
    pd.concat(curves).to_csv(folder / "exp_1.csv", index=False)


def test_better_on_every_seed_holds_worse_fails_and_mixed_is_undecided():
    assert verdict([0.9, 0.91, 0.92, 0.9, 0.91], [0.8, 0.82, 0.81, 0.8, 0.8]) == "holds"
    assert verdict([0.8, 0.82, 0.81, 0.8, 0.8], [0.9, 0.91, 0.92, 0.9, 0.91]) == "fails"
    assert verdict([0.9, 0.7, 0.9, 0.7, 0.8], [0.8, 0.8, 0.8, 0.8, 0.8]) == "undecided"
    assert verdict([0.8] * 5, [0.8] * 5) == "undecided"


def test_seeds_are_compared_with_themselves():
    """Seeds differ by 10 points, the algorithms by 1 on each: pairing sees it, two separate intervals would not."""
    base = [0.5, 0.6, 0.7, 0.8, 0.9]
    assert verdict([b + 0.01 + 0.001 * (b > 0.6) for b in base], base) == "holds"


@pytest.mark.parametrize("seeds", range(1, LEAST_SEEDS))
def test_fewer_than_five_seeds_decide_nothing(seeds):
    assert verdict([0.9] * seeds, [0.1] * seeds) == "undecided"


def test_only_seeds_that_both_have_count():
    assert verdict([0.9] * 5, [0.1] * 4) == "undecided"
    assert measure(BetterThan(HIGH, LOW), {HIGH: curve([0.9] * 7), LOW: curve([0.1] * 5, LOW)}).verdict == "holds"


def test_a_claim_holds_if_all_comparisons_do_and_fails_if_any_does(tmp_path):
    middle = CurveName("exp_1", "MNIST", "PerFed-ASY")
    write(tmp_path, curve([0.9] * 5), curve([0.5] * 5, middle), curve([0.1] * 5, LOW))
    up, down = BetterThan(HIGH, middle), BetterThan(LOW, middle)
    unsure, absent = BetterThan(HIGH, HIGH), BetterThan(HIGH, GONE)
    asked = [
        (up, BetterThan(middle, LOW)),
        (up, down),
        (up, unsure),
        (up, absent),
        (down, unsure, absent),
        (unsure, absent),
    ]
    claims = [Claim(number, "", "exp_1", comparisons) for number, comparisons in enumerate(asked)]
    found = [entry.verdict for entry in ledger(tmp_path, claims)]
    assert found == ["holds", "fails", "undecided", "not run", "fails", "not run"]


def test_what_was_not_run_says_so_and_the_rest_is_judged(tmp_path):
    write(tmp_path, curve([0.9] * 5), curve([0.1] * 5, LOW))
    entries = ledger(tmp_path)
    assert [entry.claim.number for entry in entries] == list(range(1, len(CLAIMS) + 1))
    assert entries[0].verdict == "holds"  # PerFedS2 against PerFed-SYN on MNIST, exp_1
    assert {entry.verdict for entry in entries[1:]} == {"not run"}
    assert entries[0].findings[0].difference["mean"] == pytest.approx(0.8)


accuracies = st.lists(st.floats(0, 1), min_size=5, max_size=8)


@given(accuracies, accuracies)
def test_swapping_better_and_worse_swaps_holds_and_fails(high, low):
    size = min(len(high), len(low))
    swapped = {"holds": "fails", "fails": "holds", "undecided": "undecided"}
    assert verdict(low[:size], high[:size]) == swapped[verdict(high[:size], low[:size])]


@given(accuracies, st.floats(0.001, 1))
def test_the_same_lead_on_every_seed_holds(low, lead):
    """The lead is on a grid that floats keep exactly enough; its spread is rounding."""
    assert verdict([accuracy + lead for accuracy in low], low) == "holds"


def test_the_mean_is_over_simulated_time_and_a_model_stands_until_the_next():
    """0.2 for 3 s and 0.6 for 1 s: 0.3. What the last round brings at the horizon had no time."""
    table = pd.DataFrame({"seed": 7, "time_s": [0.0, 3.0, 4.0], "test_accuracy_personal": [0.2, 0.6, 0.9]})
    assert mean_accuracy(table) == {7: pytest.approx(0.3)}


def test_a_run_that_diverged_counts_with_accuracy_zero_from_then_on():
    table = pd.DataFrame({"seed": 7, "time_s": [0.0, 3.0, 4.0], "test_accuracy_personal": [0.2, math.nan, math.nan]})
    assert mean_accuracy(table) == {7: pytest.approx(0.15)}


@given(st.lists(st.floats(0, 1), min_size=2, max_size=9), st.data())
def test_the_mean_lies_between_the_lowest_and_the_highest(values, data):
    steps = data.draw(st.lists(st.floats(0.01, 10), min_size=len(values), max_size=len(values)))
    table = pd.DataFrame({"seed": 0, "time_s": np.cumsum(steps), "test_accuracy_personal": values})
    assert min(values) - 1e-12 <= mean_accuracy(table)[0] <= max(values) + 1e-12


def reaching(times: Sequence[float | None]) -> pd.DataFrame:
    """Seeds that reach 0.9 at a time, or never."""
    rows = []
    for seed, time_s in enumerate(times):
        rows.append({"seed": seed, "time_s": 0.0, "test_accuracy_personal": 0.1})
        rows.append({"seed": seed, "time_s": time_s or 50.0, "test_accuracy_personal": 0.1 if time_s is None else 0.9})
    return pd.DataFrame(rows)


def test_a_seed_that_never_gets_there_is_later_than_all_others():
    assert median_time(reaching([5.0, 1.0, 3.0]), 0.9) == 3.0
    assert median_time(reaching([5.0, None, 3.0]), 0.9) == 5.0
    assert median_time(reaching([None, None, 3.0]), 0.9) is None
    assert median_time(reaching([None, 3.0]), 0.9) == 3.0  # the lower of the two in the middle, as everywhere


def test_times_to_a_target_change_no_verdict():
    """Both reach 0.9 at once or never; only the mean decides."""
    finding = measure(BetterThan(HIGH, LOW), {HIGH: curve([0.85] * 5), LOW: curve([0.8] * 5, LOW)})
    assert (finding.verdict, finding.times_s) == ("holds", (None, None))


def test_every_claim_is_about_curves_that_figures_have():
    have = {CurveName(f.name, p.title, line.label) for f in load_figures(["all"]) for p in f.panels for line in p.lines}
    named = {curve for claim in CLAIMS for pair in claim.comparisons for curve in (pair.better, pair.worse)}
    assert named - have == set()
    assert {curve.figure for curve in named} == {f"exp_{number}" for number in range(1, 9)}
    assert all(pair.better != pair.worse for claim in CLAIMS for pair in claim.comparisons)
    assert all(
        curve.figure in claim.where
        for claim in CLAIMS
        for pair in claim.comparisons
        for curve in (pair.better, pair.worse)
    )
    assert len({(claim.sentence, claim.where) for claim in CLAIMS}) == len(CLAIMS)


def test_comparisons_stay_on_one_task():
    task = {(f.name, p.title): p.task for f in load_figures(["all"]) for p in f.panels}
    for claim in CLAIMS:
        for pair in claim.comparisons:
            assert task[pair.better.figure, pair.better.panel] == task[pair.worse.figure, pair.worse.panel]
