"""Claims about what several seeds say together."""

import itertools
import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t, ttest_rel

from benchmarks.family_wise_error import family_wise_error
from perfeds2.runs.statistics import (
    censored_median,
    holm,
    jain,
    mean_and_interval,
    mean_over_time,
    paired_p,
    pairwise_p,
    prediction_interval,
    statistic,
    time_to_target,
    worst_decile,
)
from perfeds2.runs.table import behind_best


def test_the_interval_of_three_seeds_is_students():
    result = statistic([1.0, 2.0, 3.0])
    assert result["mean"] == 2.0
    assert result["high"] - 2.0 == pytest.approx(4.302653 / np.sqrt(3), rel=1e-6)  # t of 2 degrees, deviation 1
    assert 2.0 - result["low"] == pytest.approx(result["high"] - 2.0)


@pytest.mark.parametrize("values", [[1.0], [1.0, 3.0]])
def test_fewer_than_three_seeds_have_a_mean_and_no_interval(values: list[float]):
    mean = sum(values) / len(values)
    assert statistic(values) == {"mean": mean, "low": None, "high": None, "values": values}
    means, low, high = mean_and_interval(np.array(values)[:, None])
    assert (means.tolist(), low, high) == ([mean], None, None)


@pytest.mark.parametrize("missing", [None, float("nan"), float("inf")])
def test_a_seed_without_a_value_leaves_no_mean(missing: float | None):
    assert statistic([1.0, missing, 2.0, 3.0]) == {
        "mean": None,
        "low": None,
        "high": None,
        "values": [1.0, None, 2.0, 3.0],
    }
    assert statistic([]) == {"mean": None, "low": None, "high": None, "values": []}


def test_nine_of_ten_further_values_lie_in_the_prediction_interval():
    draws = np.random.default_rng(0).lognormal(1.0, 0.4, (2000, 6))
    inside = [low <= further <= high for *seen, further in draws for low, high in [prediction_interval(seen) or (0, 0)]]
    assert np.mean(inside) == pytest.approx(0.9, abs=0.02)
    assert prediction_interval([2.0, 2.0, 2.0]) == pytest.approx((2.0, 2.0))
    assert prediction_interval([1.0, 2.0]) is None


def test_every_time_of_a_curve_has_the_statistic_of_its_values():
    values = np.random.default_rng(0).normal(size=(5, 4))
    mean, low, high = mean_and_interval(values)
    assert low is not None
    assert high is not None
    for at in range(4):
        alone = statistic(values[:, at].tolist())
        assert (mean[at], low[at], high[at]) == pytest.approx((alone["mean"], alone["low"], alone["high"]))


@pytest.mark.parametrize(
    ("times", "median"),
    [
        ([], None),
        ([3.0], 3.0),
        ([9.0, 3.0, 5.0], 5.0),
        ([9.0, 3.0, 7.0, 5.0], 5.0),  # of an even number the lower of the middle two, not their mean
        ([9.0, 3.0], 3.0),
        ([None, 3.0], 3.0),
        ([None, 3.0, None], None),
        ([None, 3.0, 5.0], 5.0),  # who never arrives is later than all others, not left out
        ([None, 3.0, 5.0, None], 5.0),
        ([None, 3.0, None, None], None),
    ],
)
def test_who_never_arrives_comes_last_in_the_median(times: list[float | None], median: float | None):
    assert censored_median(times) == median


def test_the_time_to_a_target_is_the_first_evaluation_at_or_above_it():
    rows = [{"time_s": float(at), "test_accuracy_personal": value} for at, value in enumerate((0.2, 0.5, 0.4, 0.5))]
    assert time_to_target(rows, 0.5) == 1.0
    assert time_to_target(rows, 0.6) is None


def test_statistics_need_no_jax():
    code = "import sys, perfeds2.runs.statistics; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(("seeds", "table"), [(3, 4.303), (5, 2.776), (20, 2.093)])
def test_at_the_tables_t_the_p_value_is_a_twentieth(seeds: int, table: float):
    """Values with deviation 1 around a mean of t standard errors, above 0 or below."""
    values = np.linspace(-1, 1, seeds)
    values = values / values.std(ddof=1) + table / np.sqrt(seeds)
    assert paired_p(values.tolist()) == pytest.approx(0.05, abs=5e-5)
    assert paired_p((-values).tolist()) == pytest.approx(0.05, abs=5e-5)


def test_equal_differences_have_the_variance_of_rounding():
    """Differences of one step are t = 1/√(step²/6/n) = √(6n) standard errors from 0."""
    assert paired_p([0.0] * 5) == 1.0
    assert paired_p([0.0] * 4 + [5e-324]) == 1.0
    for seeds in (3, 5, 10):
        p = 2 * t.sf(np.sqrt(6 * seeds), seeds - 1)
        assert paired_p([0.25] * seeds) == pytest.approx(p)
        assert paired_p([-7.0] * seeds) == pytest.approx(p)
    nearly = [0.9 - 0.8, 0.8 - 0.7, 0.1]  # equal except for their last digits
    assert len(set(nearly)) > 1
    assert paired_p(nearly) == pytest.approx(paired_p([0.1] * 3))


@pytest.mark.parametrize("values", [[1.0, 1.0, 3.0, 6.0], [0.0, 1.0, 3.0, 6.0]])
def test_a_tie_adds_the_variance_of_rounding(values: list[float]):
    variance = np.var(values, ddof=1) + 1 / 6  # the smallest gap is 1
    expected = 2 * t.sf(np.mean(values) / np.sqrt(variance / 4), 3)
    assert paired_p(values) == pytest.approx(expected)


@given(st.lists(st.integers(-1000, 1000).map(lambda thousandths: thousandths / 1000), min_size=3, max_size=9))
def test_p_is_below_a_twentieth_only_where_the_interval_leaves_out_zero(values: list[float]):
    result, p = statistic(values), paired_p(values)
    assert 0 < p <= 1
    outside = result["low"] > 0 or result["high"] < 0
    if p < 0.05 - 1e-9:
        assert outside
    if len({0.0, *values}) == len(values) + 1 and abs(p - 0.05) > 1e-9:  # no tie
        assert (p < 0.05) == outside


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_equal_methods_on_a_coarse_grid_rarely_differ_significantly(seeds: int):
    assert max(family_wise_error(seeds, noise, arenas=200) for noise in (0.3, 0.7, 2.0)) <= 0.05


def test_holm_by_hand():
    """Four: 0.01 × 4, 0.02 × 3, 0.03 × 2 (the same as 0.02's), 0.5 × 1. In any order."""
    assert holm([0.03, 0.01, 0.5, 0.02]) == pytest.approx([0.06, 0.04, 0.5, 0.06])
    assert holm([0.4, 0.4]) == pytest.approx([0.8, 0.8])
    assert holm([0.4, 0.9, 0.6]) == [1.0, 1.0, 1.0]
    assert holm([0.04]) == [0.04]
    assert holm([]) == []


p_values = st.lists(st.floats(0, 1) | st.sampled_from([0.0, 0.01, 0.05, 1.0]), max_size=12)


@given(p_values)
def test_holm_is_what_its_definition_says(p: list[float]):
    """Of all p no greater than this one, each times how many there are no smaller than it: the greatest."""
    slow = [min(1.0, max(each * sum(other >= each for other in p) for each in p if each <= mine)) for mine in p]
    assert holm(p) == pytest.approx(slow)


@given(p_values)
def test_holm_keeps_the_order_and_lowers_nothing(p: list[float]):
    adjusted = holm(p)
    assert all(raw <= new <= 1 for raw, new in zip(p, adjusted, strict=True))
    in_order = [new for _, new in sorted(zip(p, adjusted, strict=True))]
    assert in_order == sorted(in_order)


def looks(*pairs: tuple[float, float]) -> list[dict[str, float]]:
    return [{"time_s": time_s, "test_accuracy_personal": share, "test_accuracy": share / 2} for time_s, share in pairs]


def test_a_model_stands_until_the_next_look():
    """0.1 for 1 s, 0.5 for 3 s; what it has at the end has had no time to stand."""
    rows = looks((0, 0.1), (1, 0.5), (4, 0.9))
    assert mean_over_time(rows) == pytest.approx((0.1 + 3 * 0.5) / 4)
    assert mean_over_time(looks((2, 0.1), (3, 0.5), (6, 0.9))) == pytest.approx((0.1 + 3 * 0.5) / 4)
    assert mean_over_time(looks((5, 0.25))) == 0.25
    assert mean_over_time(looks((5, 0.25), (5, 0.5))) == 0.5


def test_a_model_that_diverged_counts_nothing_from_then_on():
    nan = float("nan")
    assert mean_over_time(looks((0, 0.4), (1, nan), (4, nan))) == pytest.approx(0.1)
    assert mean_over_time(looks((0, nan), (1, float("inf")))) == 0.0
    assert mean_over_time(looks((0, nan))) == 0.0


@given(st.lists(st.tuples(st.integers(1, 9), st.floats(0, 1)), min_size=2, max_size=8))
def test_the_mean_over_time_is_that_of_every_moment(steps: list[tuple[int, float]]):
    times = np.cumsum([step for step, _ in steps])
    rows = looks(*((float(time), share) for time, (_, share) in zip(times, steps, strict=True)))
    moments = [share for (_, share), (later, _) in itertools.pairwise(steps) for _ in range(later)]
    assert mean_over_time(rows) == pytest.approx(np.mean(moments))


# Who is better than whom


@pytest.mark.slow
@given(st.integers(2, 5), st.integers(3, 6), st.integers(0, 2**31))
def test_every_two_are_tested_as_scipy_does_and_corrected_for_all_of_them(names: int, seeds: int, seed: int):
    values = np.random.default_rng(seed).normal(size=(names, seeds)) + np.arange(names)[:, None]
    found = pairwise_p({str(name): row.tolist() for name, row in enumerate(values)})
    raw = {
        (str(a), str(b)): float(ttest_rel(values[a], values[b]).pvalue)
        for a, b in itertools.combinations(range(names), 2)
    }
    assert found.keys() == raw.keys()
    for pair, p in raw.items():
        smaller = [other for other in raw.values() if other <= p]  # Holm, from its definition
        adjusted = max(min(1.0, q * sum(other >= q for other in raw.values())) for q in smaller)
        assert found[pair] == pytest.approx(adjusted, rel=1e-9)


def test_two_seeds_or_one_method_are_not_tested():
    assert pairwise_p({"a": [1.0, 2.0], "b": [2.0, 3.0]}) == {}
    assert pairwise_p({"a": [1.0, 2.0, 3.0]}) == {}
    assert pairwise_p({}) == {}


# How fair


def test_the_worst_tenth_is_rounded_up():
    assert worst_decile([0.9, 0.2, 0.8]) == 0.2
    assert worst_decile([k / 100 for k in range(20, 0, -1)]) == pytest.approx(0.015)  # the worst two of twenty
    assert worst_decile([k / 100 for k in range(1, 22)]) == pytest.approx(0.02)  # three of twenty-one
    assert worst_decile([k / 100 for k in range(1, 11)]) == pytest.approx(0.01)


def test_jains_index_by_hand():
    assert jain([0.5, 0.5, 0.5]) == pytest.approx(1.0)
    assert jain([1.0, 0.0, 0.0, 0.0]) == pytest.approx(0.25)
    assert jain([1.0, 3.0]) == pytest.approx(16 / 20)
    assert jain([0.0, 0.0]) == 1.0


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30), st.floats(0.01, 100))
def test_jains_index_lies_between_one_nth_and_one_and_knows_no_unit(values: list[float], scale: float):
    values = [value if value > 1e-6 else 0.0 for value in values]
    assert 1 / len(values) - 1e-9 <= jain(values) <= 1 + 1e-9
    assert jain([scale * value for value in values]) == pytest.approx(jain(values))
    assert worst_decile(values) <= np.mean(values) + 1e-12


def final(name: str, *values: float) -> dict[str, Any]:
    return {"algorithm": name, "test_accuracy_personal": statistic(values)}


def test_each_algorithm_is_paired_with_the_best_seed_by_seed():
    rows = [
        final("b", 0.8, 0.72, 0.5),
        final("a", 0.9, 0.8, 0.7),
        final("c", 0.89, 0.7, 0.65),
        final("d", 0.9, math.nan, 0.9),
    ]
    second, best, third, diverged = behind_best(rows)
    assert best == diverged == {}
    assert second["behind_best"]["values"] == pytest.approx([-0.1, -0.08, -0.2])
    assert second["behind_best"]["mean"] == pytest.approx(-0.38 / 3)
    p = [ttest_rel(row["test_accuracy_personal"]["values"], [0.9, 0.8, 0.7]).pvalue for row in (rows[0], rows[2])]
    assert second["p_behind_best"] == pytest.approx(2 * p[0])  # the smaller of two
    assert third["p_behind_best"] == pytest.approx(max(2 * p[0], p[1]))


def test_two_seeds_are_no_test_and_one_algorithm_has_no_rival():
    assert behind_best([final("a", 0.9, 0.8), final("b", 0.8, 0.7)])[1]["p_behind_best"] is None
    assert behind_best([final("a", 0.9, 0.8, 0.7)]) == [{}]
    assert behind_best([{"algorithm": "simulated"}, {"algorithm": "too"}]) == [{}, {}]
