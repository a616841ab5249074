"""Do the ledger's verdicts follow its rule?"""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfeds2.paper.claims import (
    CLAIMS,
    LEAST_SEEDS,
    SMALLEST_OF_NOTE,
    BetterThan,
    Claim,
    Curve,
    CurveName,
    Entry,
    Finding,
    Verdict,
    adjusted,
    best_fedavg,
    distinct_tests,
    ledger,
)
from perfeds2.paper.claims import _measure as measure
from perfeds2.paper.figures import load_figures
from perfeds2.runs.statistics import mean_over_time, statistic

HIGH, LOW, GONE = (CurveName("exp_1", "MNIST", line) for line in ("PerFedS2", "PerFed-SYN", "absent"))


def curve(
    accuracies: Sequence[float],
    which: CurveName = HIGH,
    *,
    as_it_is: Sequence[float] | None = None,
    losses: Sequence[float] | None = None,
) -> pd.DataFrame:
    """One seed for each accuracy, which it has all the time; the loss is what it is not right about, unless given."""
    plain, loss = as_it_is or accuracies, losses or [1 - accuracy for accuracy in accuracies]
    rows = [
        {"figure": which.figure, "panel": which.panel, "task": "mnist", "line": which.line, "algorithm": which.line}
        | {"seed": seed, "time_s": t, "test_accuracy": plain[seed], "test_accuracy_personal": accuracy}
        | {"train_loss": loss[seed], "train_loss_personal": loss[seed]}
        for seed, accuracy in enumerate(accuracies)
        for t in (0.0, 1.0)
    ]
    return pd.DataFrame(rows)


def found(high: pd.DataFrame, low: pd.DataFrame) -> Finding:
    return measure(BetterThan(HIGH, LOW), {HIGH: Curve.of(high), LOW: Curve.of(low)})


def verdict(high: Sequence[float], low: Sequence[float]) -> str:
    return found(curve(high), curve(low, LOW)).verdict


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
    assert verdict([0.9] * 7, [0.1] * 5) == "holds"


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
    verdicts = [entry.verdict for entry in ledger(tmp_path, claims)]
    assert verdicts == ["holds", "fails", "undecided", "not run", "fails", "not run"]


def test_what_was_not_run_says_so_and_the_rest_is_judged(tmp_path):
    write(tmp_path, curve([0.9] * 5), curve([0.1] * 5, LOW))
    entries = ledger(tmp_path)
    assert [entry.claim.number for entry in entries] == list(range(1, len(CLAIMS) + 1))
    assert entries[0].verdict == "holds"  # PerFedS2 against PerFed-SYN on MNIST, exp_1
    assert {entry.verdict for entry in entries[1:]} == {"not run"}
    assert entries[0].findings[0].difference["mean"] == pytest.approx(0.8)


accuracies = st.lists(st.floats(0, 1), min_size=5, max_size=8)


@pytest.mark.slow
@given(accuracies, accuracies)
@settings(max_examples=30)
def test_swapping_better_and_worse_swaps_holds_and_fails(high, low):
    size = min(len(high), len(low))
    swapped = {"holds": "fails", "fails": "holds", "undecided": "undecided"}
    assert verdict(low[:size], high[:size]) == swapped[verdict(high[:size], low[:size])]


@pytest.mark.slow
@given(accuracies, st.floats(0.001, 1))
@settings(max_examples=30)
def test_the_same_lead_on_every_seed_holds(low, lead):
    """The lead is on a grid that floats keep exactly enough; its spread is rounding."""
    assert verdict([accuracy + lead for accuracy in low], low) == "holds"


def of_seed_7(**columns: list[float]) -> Curve:
    """A curve of one seed, evaluated at 0, 3 and 4 s."""
    usual = {"seed": 7, "task": "mnist", "algorithm": "PerFedS2", "time_s": [0.0, 3.0, 4.0]}
    usual |= {"test_accuracy_personal": [0.5] * 3, "train_loss_personal": [1.0] * 3}
    return Curve.of(pd.DataFrame(usual | columns))


def test_the_mean_is_over_simulated_time_and_a_model_stands_until_the_next():
    """0.2 for 3 s and 0.6 for 1 s: 0.3. What the last round brings at the horizon had no time."""
    assert of_seed_7(test_accuracy_personal=[0.2, 0.6, 0.9]).accuracy == {7: pytest.approx(0.3)}


def test_a_run_that_diverged_counts_with_accuracy_zero_from_then_on():
    gone = of_seed_7(test_accuracy_personal=[0.2, math.nan, math.nan])
    assert (gone.accuracy, gone.accuracy_at_end) == ({7: pytest.approx(0.15)}, {7: 0.0})


@given(st.lists(st.floats(0, 1), min_size=2, max_size=9), st.data())
def test_the_mean_lies_between_the_lowest_and_the_highest(values, data):
    steps = data.draw(st.lists(st.floats(0.01, 10), min_size=len(values), max_size=len(values)))
    rows = [{"time_s": at, "test_accuracy_personal": value} for at, value in zip(np.cumsum(steps), values, strict=True)]
    assert min(values) - 1e-12 <= mean_over_time(rows) <= max(values) + 1e-12


def reaching(times: Sequence[float | None]) -> Curve:
    """Seeds that reach 0.9 at a time, or never."""
    rows = []
    for seed, time_s in enumerate(times):
        rows.append({"seed": seed, "time_s": 0.0, "test_accuracy_personal": 0.1})
        rows.append({"seed": seed, "time_s": time_s or 50.0, "test_accuracy_personal": 0.1 if time_s is None else 0.9})
    return Curve.of(pd.DataFrame(rows).assign(task="mnist", algorithm="PerFedS2", train_loss_personal=1.0))


def test_a_seed_that_never_gets_there_is_later_than_all_others():
    assert reaching([5.0, 1.0, 3.0]).time_s == 3.0
    assert reaching([5.0, None, 3.0]).time_s == 5.0
    assert reaching([None, None, 3.0]).time_s is None
    assert reaching([None, 3.0]).time_s == 3.0  # the lower of the two in the middle, as everywhere


def test_times_to_a_target_change_no_verdict():
    """Both reach 0.9 at once or never; only the mean decides."""
    finding = found(curve([0.85] * 5), curve([0.8] * 5, LOW))
    assert (finding.verdict, finding.times_s) == ("holds", (None, None))


BASE = [0.5, 0.52, 0.51, 0.53, 0.5]
FEDAVG = CurveName("exp_1", "MNIST", "FedAvgS2")


def ahead(lead: float, spread: float) -> list[float]:
    """Five seeds that are ahead of ``BASE`` by so much, give or take."""
    return [b + lead + spread * sign for b, sign in zip(BASE, (-1, 1, 0, 1, -1), strict=True)]


def test_the_p_value_says_what_the_interval_says():
    """Leads of 0.01, 0.03, 0.02, 0.03, 0.01: mean 0.02, variance 0.01² + 0.01²/6 for the ties. The p of t with 4 degrees is a formula."""

    def p_of(t_squared: float) -> float:
        x = t_squared / (1 + t_squared / 4)
        return 1 - 0.75 * math.sqrt(x) * (1 - x / 12)

    finding = found(curve(ahead(0.02, 0.01)), curve(BASE, LOW))
    assert finding.p == pytest.approx(p_of(5 * 0.02**2 / (0.01**2 + 0.01**2 / 6)))
    assert finding.verdict == "holds"
    wide = found(curve(ahead(0.02, 0.05)), curve(BASE, LOW))  # 0 and 0.02 are the closest
    assert wide.p == pytest.approx(p_of(5 * 0.02**2 / (0.05**2 + 0.02**2 / 6)))
    assert found(curve(BASE[:4]), curve(BASE[:4], LOW)).p is None  # four seeds decide nothing: not a test


def test_comparisons_of_the_same_numbers_are_one_test_whichever_way_round(tmp_path):
    """Asked four times in two figures, one of them the other way round, p counts once; a second test makes it two."""
    high, low, middle = curve(ahead(0.02, 0.01)), curve(BASE, LOW), curve(ahead(0.01, 0.02), FEDAVG)
    write(tmp_path, high, low, middle)
    pd.concat([high.assign(figure="exp_8"), low.assign(figure="exp_8")]).to_csv(tmp_path / "exp_8.csv", index=False)
    there = BetterThan(*(CurveName("exp_8", "MNIST", each.line) for each in (HIGH, LOW)))
    same = (BetterThan(HIGH, LOW), BetterThan(LOW, HIGH), there)
    asked = [Claim(1, "", "", same), Claim(2, "", "", same[:1])]
    once = [finding for entry in ledger(tmp_path, asked) for finding in entry.findings]
    assert len(distinct_tests(once)) == 1
    assert {finding.p_holm for finding in once} == {once[0].p}
    twice = ledger(tmp_path, [*asked, Claim(3, "", "", (BetterThan(FEDAVG, LOW),))])
    assert len(distinct_tests(finding for entry in twice for finding in entry.findings)) == 2
    assert twice[0].findings[0].p_holm == pytest.approx(2 * (once[0].p or 0))


def test_equal_differences_of_other_curves_are_other_tests():
    one = found(curve(ahead(0.02, 0.01)), curve(BASE, LOW))
    lower = [b - 0.25 for b in BASE]
    other = found(curve([a - 0.25 for a in ahead(0.02, 0.01)]), curve(lower, LOW))
    assert other.p == pytest.approx(one.p)
    assert [finding.p_holm for finding in adjusted([one, other])] == pytest.approx([2 * (one.p or 0)] * 2)


def finding(verdict: Verdict, mean: float = 0.1, p_holm: float | None = 0.01) -> Finding:
    return Finding(BetterThan(HIGH, LOW), statistic([mean] * 5), (None, None), verdict, p_holm=p_holm)


def test_after_holm_a_claim_is_judged_by_the_same_rule():
    sure, unsure = finding("holds"), finding("holds", p_holm=0.05)
    bad, maybe_bad, absent = finding("fails"), finding("fails", p_holm=0.2), finding("not run", p_holm=None)
    claim = Claim(1, "", "", ())
    cases = [
        ((sure, sure), "holds"),
        ((sure, unsure), "undecided"),
        ((bad, unsure), "fails"),
        ((maybe_bad, sure), "undecided"),
        ((maybe_bad, bad), "fails"),
        ((sure, absent), "not run"),
    ]
    for findings, verdict in cases:
        assert Entry(claim, findings).by(lambda each: each.after_holm) == verdict


def test_a_small_difference_is_not_of_note_and_half_a_point_is():
    assert finding("holds", SMALLEST_OF_NOTE).of_note == "holds"
    assert finding("holds", 0.0049).of_note == "undecided"
    assert finding("fails", -0.0049).of_note == "undecided"
    assert finding("fails", -0.006).of_note == "fails"
    assert finding("not run").of_note == "not run"


def test_fedavg_is_also_compared_without_its_personal_step():
    """FedAvg is 2 points behind with it, 12 without; PerFed keeps its own."""
    low = curve(BASE, FEDAVG, as_it_is=[b - 0.1 for b in BASE])
    high = curve(ahead(0.02, 0), as_it_is=[0.0] * 5)
    seen = found(high, low)
    assert seen.difference["mean"] == pytest.approx(0.02)
    assert seen.as_it_is is not None
    assert seen.as_it_is["mean"] == pytest.approx(0.12)
    assert found(high, curve(BASE, LOW)).as_it_is is None  # PerFed-SYN trains for its step


def test_without_its_personal_step_fedavg_may_be_better_and_both_sides_may_be_fedavg():
    ahead_of_both = curve(BASE, FEDAVG, as_it_is=[b + 0.1 for b in BASE])
    seen = found(curve(ahead(0.02, 0)), ahead_of_both)
    assert (seen.verdict, seen.verdict_as_it_is) == ("holds", "fails")
    other = CurveName("exp_1", "MNIST", "FedProxS2")
    both = found(curve(BASE, other, as_it_is=ahead(0.3, 0)), ahead_of_both).as_it_is
    assert both is not None
    assert both["mean"] == pytest.approx(0.2)


def test_a_lower_training_loss_holds_by_loss_whatever_the_accuracy_says():
    low, high = curve(BASE, LOW, losses=[2.0] * 5), curve([b - 0.1 for b in BASE], losses=[1.0, 1.1, 1.0, 1.1, 1.0])
    seen = found(high, low)
    assert (seen.verdict, seen.verdict_by_loss) == ("fails", "holds")
    assert seen.loss is not None
    assert seen.loss["mean"] == pytest.approx(-0.96)
    assert found(low, high).verdict_by_loss == "fails"
    assert found(low, low).verdict_by_loss == "undecided"


@pytest.mark.parametrize("gone", [math.nan, math.inf])
def test_a_seed_that_diverged_leaves_no_loss_and_is_counted(gone):
    high, low = curve(BASE, losses=[1.0, gone, 1.0, gone, 1.0]), curve(BASE, LOW, losses=[2.0, 2.0, 2.0, gone, 2.0])
    seen = found(high, low)
    assert (seen.diverged, seen.verdict_by_loss) == ((2, 1), "undecided")
    assert seen.loss is not None
    assert seen.loss["mean"] is None


def test_the_mean_loss_is_over_simulated_time():
    assert of_seed_7(train_loss_personal=[2.0, 6.0, 1.0]).loss == {7: pytest.approx(3.0)}
    assert of_seed_7(train_loss_personal=[2.0, 6.0, math.inf]).loss == {7: None}  # at the very end, too


def rising(start: float, end: float, which: CurveName = HIGH) -> Curve:
    table = curve([start] * 5, which)
    return Curve.of(table.assign(test_accuracy_personal=np.where(table.time_s > 0, end, start)))


def test_a_curve_has_learned_when_it_gets_clear_of_its_start_and_the_most_frequent_label():
    """MNIST's most frequent label is 12 % of what is evaluated."""
    assert not rising(0.02, 0.139).learned
    assert rising(0.02, 0.141).learned
    assert not rising(0.3, 0.319).learned
    assert rising(0.3, 0.321).learned
    assert not rising(0.3, math.nan).learned
    table = curve([0.1] * 5)
    table.loc[table.time_s > 0, "test_accuracy_personal"] = [math.nan, *[0.3] * (sum(table.time_s > 0) - 1)]
    assert Curve.of(table).learned  # a seed that diverged is one that learned nothing, not the end of the curve


def test_a_comparison_is_about_nothing_if_neither_curve_learned():
    flat, steep = rising(0.1, 0.1), rising(0.1, 0.9)
    pairs = [(flat, flat), (flat, steep), (steep, flat), (steep, steep)]
    seen = [measure(BetterThan(HIGH, LOW), {HIGH: high, LOW: low}).learned for high, low in pairs]
    assert seen == [False, True, True, True]
    one, other = (measure(BetterThan(HIGH, LOW), {HIGH: flat, LOW: low}) for low in (flat, steep))
    claim = Claim(1, "", "", ())
    assert [Entry(claim, each).learned for each in ((other, other), (other, one))] == [True, False]


def test_perfeds2_meets_the_best_fedavg_by_each_measure(tmp_path):
    """FedAvg-SYN has more over the horizon, FedAvg-ASY ends higher."""
    rows = []
    for line, start, end in (
        ("PerFedS2", 0.5, 0.9),
        ("FedAvgS2", 0.1, 0.2),
        ("FedAvg-SYN", 0.6, 0.7),
        ("FedAvg-ASY", 0.2, 0.95),
    ):
        table = curve([start] * 5, CurveName("exp_1", "MNIST", line))
        rows.append(table.assign(test_accuracy_personal=np.where(table.time_s > 0, end, start)))
    write(tmp_path, *rows)
    over, end = best_fedavg(tmp_path)
    assert (over.measured, end.measured) == ("over the horizon", "at its end")
    assert (over.rival, end.rival) == ("FedAvg-SYN", "FedAvg-ASY")
    assert over.difference["mean"] == pytest.approx(-0.1)
    assert end.difference["mean"] == pytest.approx(-0.05)
    write(tmp_path, *rows[:3])
    assert best_fedavg(tmp_path) == []  # the best of any mode is not known


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
