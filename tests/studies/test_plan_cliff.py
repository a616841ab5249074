"""A cliff that is real: trained, not made up. Is it refused?"""

import pytest

from perfeds2.spec.resolve import spec_from
from perfeds2.studies.plan_data import Choice, PlanRequest, PlanTarget
from perfeds2.studies.plan_search import PlanSearch
from perfeds2.studies.plan_space import make_space
from perfeds2.studies.plan_trials import Trials

CELL_16 = {
    "ues": 30,
    "layout": "uniform",
    "cpu_hz": [500000000.0, 2500000000.0],
    "labels_per_ue": 2,
    "target_accuracy": 0.9,
    "radio": "umi",
    "power_w": 0.2,
    "link": "shannon",  # this and the next two were the defaults when the cell was found
    "speed_mps": 0,
    "cycles": "per-parameter",
}


@pytest.mark.slow
def test_a_choice_that_loses_the_target_again_is_refused():
    """30 UEs, A = 3: with seed 3 the target is reached after 0.5 s, and held in less than half of later looks.

    The cell is number 16 of ``benchmarks/plan_bet.py``.
    """
    spec = spec_from(**CELL_16, algorithms=["PerFedS2"], seeds=[3])
    space = make_space(spec, {"max_staleness": [10], "local_steps": [2], "quorum": [3]})
    target = PlanTarget(0.9, "accuracy", 3.0, 9.0, "")
    searched = PlanSearch(space, Trials(space, 0.9, evaluations=30), PlanRequest(), target, 1 / 3)
    cliff = Choice(3, 10, "first", "equal_share", "wait", 2, 4)
    searched.watch([cliff], searched.seeds)
    (trial,) = searched.watched(cliff)
    assert trial.reached_s is not None
    assert trial.reached_s < 1.5
    assert trial.held is not None
    assert trial.held < 0.5
    assert trial.fails
    assert not searched.stands(cliff, searched.seeds)
    assert searched.verdict(cliff)[0] == "fails"
    assert searched.settle([cliff], None) is None  # the only one there is, and not recommended
