"""Is what would take days refused in a sentence, before anything is written?"""

import pytest

from perfeds2 import compare, sweep
from perfeds2.errors import InputError
from perfeds2.learning.operations import multiply_adds
from perfeds2.runs import estimate
from perfeds2.runs.estimate import refuse_days
from perfeds2.runs.training import trainings_of
from perfeds2.spec.resolve import spec_from
from perfeds2.spec.tasks import model_of, sample_of

RUN = {"task": "synthetic", "ues": 4, "quorum": 2, "batch": 5, "algorithms": ["FedAvgS2"]}


@pytest.mark.parametrize("long", [{"horizon_s": 1e30}, {"rounds": 1_000_000_000}], ids=["seconds", "rounds"])
def test_a_run_of_a_geological_age_is_refused_and_leaves_nothing(tmp_path, long):
    settings = {**RUN, **long, "seeds": [0]}
    with pytest.raises(
        InputError, match=r"would take about \S+ days of this machine's time; give a shorter --horizon-s"
    ):
        compare(**settings, out=tmp_path / "run")
    with pytest.raises(InputError, match=r"days of this machine's time"):
        sweep(settings, {"quorum": [1, 2]}, out=tmp_path / "swept")
    assert list(tmp_path.iterdir()) == []
    refuse_days(trainings_of(spec_from(**settings)), yes=True)


def test_days_are_counted_by_rounds_seeds_points_and_arithmetic(monkeypatch):
    """On a clock that stands still only training counts: a tenth of a millisecond a gradient, and 2 operations a
    multiply-add, 1e10 a second."""
    monkeypatch.setattr(estimate.time, "perf_counter", lambda: 0.0)
    one, two, three = (trainings_of(spec_from(**RUN, rounds=100, seeds=seeds)) for seeds in (1, 2, 3))
    gradients = 100 * 2  # rounds, quorum
    seed_s = gradients * (1e-4 + 5 * 2 * multiply_adds(model_of(one[0].spec), sample_of(one[0].spec)) / 1e10)
    monkeypatch.setattr(estimate, "DAY_S", 2.5 * seed_s)
    refuse_days(two, yes=False)
    with pytest.raises(InputError, match=r"about 1\.2 days of this machine's time"):
        refuse_days(three, yes=False)
    refuse_days(three, yes=False, trains=False)
    with pytest.raises(InputError, match="about 40 days"):
        refuse_days(one * 100, yes=False)
