"""Is a run that would take days refused before it begins?"""

import pytest

from perfeds2.errors import InputError
from perfeds2.learning.task import parameters
from perfeds2.runs import execute
from perfeds2.runs.execute import refuse_days
from perfeds2.spec.build import model_of
from perfeds2.spec.fields import spec_from

RUN = {"task": "synthetic", "ues": 4, "quorum": 2, "batch": 5, "algorithms": ["FedAvgS2"]}


def test_a_horizon_of_a_geological_age_is_one_sentence():
    spec = spec_from(**RUN, horizon_s=1e30, eval_every_s=1e29, seeds=[0])
    with pytest.raises(InputError, match=r"would take about \S+ days .* give a shorter --horizon-s or .* --yes"):
        refuse_days(spec, yes=False)
    refuse_days(spec, yes=True)


def test_days_are_counted_by_rounds_seeds_and_arithmetic(monkeypatch):
    """On a clock that stands still only the arithmetic counts: 6 operations a weight and sample, 2e10 a second."""
    monkeypatch.setattr(execute.time, "perf_counter", lambda: 0.0)
    two_seeds, three_seeds = (spec_from(**RUN, rounds=100, seeds=seeds) for seeds in (2, 3))
    samples = 100 * 2 * 5  # rounds, quorum, batch
    monkeypatch.setattr(execute, "DAY_S", 2.5 * samples * 6 * parameters(model_of(two_seeds)) / 2e10)
    refuse_days(two_seeds, yes=False)
    with pytest.raises(InputError, match=r"about 1\.2 days of this machine's time \(100 rounds\)"):
        refuse_days(three_seeds, yes=False)
    refuse_days(three_seeds, yes=False, trains=False)
