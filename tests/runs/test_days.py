"""Is what would take days refused in a sentence, before anything is written?"""

import pytest

from perfeds2 import compare, sweep
from perfeds2.errors import InputError
from perfeds2.runs.execute import refuse_days
from perfeds2.spec.fields import spec_from

LONG = {"task": "synthetic", "ues": 4, "quorum": 2, "algorithms": ["PerFedS2"], "seeds": [0]}


@pytest.mark.parametrize("long", [{"horizon_s": 1e30}, {"rounds": 1_000_000_000}], ids=["seconds", "rounds"])
def test_a_run_of_days_is_refused_and_says_how_many(tmp_path, long):
    with pytest.raises(
        InputError, match=r"would take about \S+ days of this machine's time; give a shorter --horizon-s"
    ):
        compare(**LONG, **long, out=tmp_path / "run")
    with pytest.raises(InputError, match=r"days of this machine's time"):
        sweep({**LONG, **long}, {"quorum": [1, 2]}, out=tmp_path / "swept")
    assert list(tmp_path.iterdir()) == []


def test_it_is_done_all_the_same_if_meant_and_short_runs_are_never_refused():
    refuse_days([spec_from(**LONG, horizon_s=1e30)], yes=True)
    refuse_days([spec_from()], yes=False)
    refuse_days([spec_from(task="shakespeare")], yes=False, trains=False)


def test_a_thousand_short_runs_are_long():
    day = spec_from(**LONG, rounds=20_000_000)
    with pytest.raises(InputError, match="days"):
        refuse_days([day] * 1000, yes=False)
