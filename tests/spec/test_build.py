"""Do the settings reach the objects that a spec stands for?"""

import pytest

from perfeds2.allocation.bandwidth import equal_finish, equal_share, proportional_fair
from perfeds2.learning.objectives import FedAvg, FedProx, PerFed
from perfeds2.spec.build import Stage, make_algorithms, make_timelines
from perfeds2.spec.fields import spec_from


def algorithms_of(**settings):
    spec = spec_from(ues=4, quorum=2, seeds=[0], rounds=3, **settings)
    stage = Stage.of(spec, 0)
    return spec, stage, {algorithm.name: algorithm for algorithm in make_algorithms(spec, stage)}


@pytest.mark.parametrize(
    ("bandwidth", "of_asy"),
    [("equal_finish", equal_share), ("between:0.5", equal_share), ("proportional_fair", proportional_fair)],
)
def test_only_asy_does_not_finish_together(bandwidth, of_asy):
    spec, _, made = algorithms_of(bandwidth=bandwidth, local_steps=2)  # with several steps FedProx is among them
    policies = {name: algorithm.bandwidth for name, algorithm in made.items()}
    for objective in ("FedAvg", "FedProx", "PerFed"):
        assert policies[f"{objective}-ASY"] is of_asy
        assert policies[f"{objective}-SYN"] is policies[f"{objective}S2"] is spec.protocol.bandwidth.value
    assert (bandwidth == "equal_finish") == (policies["PerFedS2"] is equal_finish)


def test_every_learning_setting_reaches_the_learner():
    settings = {"alpha": 0.02, "beta": 0.03, "batch": 7, "local_steps": 3, "proximal": 0.7, "hessian": "fo"}
    _, _, made = algorithms_of(algorithms=["PerFedS2", "FedProx-SYN", "FedAvg-ASY"], **settings)
    objectives = (PerFed(0.02, "fo"), FedProx(0.7), FedAvg())
    for algorithm, objective in zip(made.values(), objectives, strict=True):
        learner = algorithm.learner
        assert learner.objective == objective
        assert (learner.beta, learner.batch, learner.local_steps, learner.personal_step) == (0.03, 7, 3, 0.02)


def test_who_looks_at_more_samples_has_a_timeline_of_its_own():
    spec, stage, made = algorithms_of(algorithms=["FedAvg-SYN", "FedProx-SYN", "PerFed-SYN"])
    averaged, held, personal = make_timelines(spec, stage, list(made.values()))
    assert averaged is held  # one batch each: the clock runs once
    assert personal.compute_s == pytest.approx(3 * averaged.compute_s)
