"""Claims about what several seeds say together."""

import subprocess
import sys

import numpy as np
import pytest

from perfeds2.runs.statistics import censored_median, mean_and_interval, statistic, time_to_target


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
    assert statistic([1.0, missing, 2.0, 3.0]) == {"mean": None, "low": None, "high": None, "values": [1.0, None, 2.0, 3.0]}  # fmt: skip
    assert statistic([]) == {"mean": None, "low": None, "high": None, "values": []}


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
