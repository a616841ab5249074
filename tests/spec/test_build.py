"""Do the settings reach the objects that a spec stands for?"""

import pytest

from perfeds2.allocation.bandwidth import equal_finish, equal_share, proportional_fair
from perfeds2.errors import InputError
from perfeds2.learning.methods import APFL, FedAvgM, FedBuff, FedRep, PFedMe
from perfeds2.learning.objectives import FedAvg, FedProx, Moreau, PerFed
from perfeds2.spec.build import Stage, clock_key, make_algorithms, make_timelines
from perfeds2.spec.cells import upload_bits
from perfeds2.spec.resolve import spec_from


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
    settings = {"alpha": 0.02, "beta": 0.03, "batch": 7, "local_steps": 3}
    own = {"FedProx": {"proximal": 0.7}, "PerFed": {"hessian": "fo"}}
    _, _, made = algorithms_of(algorithms=["PerFedS2", "FedProx-SYN", "FedAvg-ASY"], methods=own, **settings)
    objectives = (PerFed(0.02, "fo"), FedProx(0.7), FedAvg())
    for algorithm, objective in zip(made.values(), objectives, strict=True):
        learner = algorithm.learner
        assert learner.objective == objective
        assert (learner.beta, learner.batch, learner.local_steps, learner.personal_step) == (0.03, 7, 3, 0.02)


def test_a_methods_own_settings_reach_it():
    methods = {
        "FedAvgM": {"momentum": 0.5},
        "FedBuff": {"momentum": 0.5},
        "APFL": {"own_share": 0.25},
        "FedRep": {"head_steps": 4},
        "pFedMe": {"moreau_steps": 3},
        "PersA-FL-ME": {"moreau_steps": 3, "server_step": 0.5},
    }
    _, _, made = algorithms_of(algorithms=list(methods), methods=methods, personal_steps=6)
    learners = [each.learner for each in made.values()]
    assert [each.merge for each in learners[:2]] == [FedAvgM(momentum=0.5), FedBuff(momentum=0.5)]
    assert learners[-1].merge == FedBuff("constant", 0.5)
    expected = [APFL(0.25), FedRep(4), PFedMe(0.03, moreau_steps=3), Moreau(0.03, moreau_steps=3)]
    assert [each.objective for each in learners[2:]] == expected
    assert {each.personal_steps for each in learners} == {6}


def test_what_a_ue_keeps_for_itself_is_not_sent():
    """Of 64·32 + 32 + 32·10 + 10 numbers FedRep keeps the last 330, so its rounds are shorter; unless someone says what is sent."""
    spec, stage, made = algorithms_of(algorithms=["FedAvgS2", "FedPer"])
    bits = [upload_bits(spec, each.learner.objective) for each in made.values()]
    assert bits == [32 * 2410, pytest.approx(32 * 2080)]
    whole, part = make_timelines(spec, stage, list(made.values()))
    assert part.end_s / part.rounds < whole.end_s / whole.rounds
    said = spec_from(payload_bits=1e4, algorithms=["FedPer"])
    assert upload_bits(said, made["FedPer"].learner.objective) == 1e4


def test_a_clip_that_the_server_would_not_hear_of_is_refused():
    for name in ("SCAFFOLD", "FedDyn"):
        with pytest.raises(InputError, match=f"--clip 2.0 cannot be combined with {name}: what its UEs keep"):
            algorithms_of(algorithms=[name], clip=2.0)
    algorithms_of(algorithms=["SCAFFOLD", "PerFedS2"], methods={"PerFedS2": {"clip": 2.0}})


def test_what_keeps_gradients_stable_reaches_the_learner():
    own = {"PerFed": {"inner_clip": 5.0, "hessian_batch": "inner", "anneal": 9}, "Moreau": {"moreau": 7.0}}
    _, _, made = algorithms_of(algorithms=["PerFedS2", "Moreau-SYN", "FedAvgS2"], methods=own, alpha=0.02, clip=3.0)
    objectives = (PerFed(0.02, "exact", "inner", 5.0, 9), Moreau(0.02, 7.0), FedAvg())
    assert [each.learner.objective for each in made.values()] == list(objectives)
    assert {each.learner.clip for each in made.values()} == {3.0}
    _, _, plain = algorithms_of(algorithms=["PerFedS2", "Moreau-ASY"])
    assert [each.learner.objective for each in plain.values()] == [PerFed(0.03), Moreau(0.03, 15.0)]
    assert {each.learner.clip for each in plain.values()} == {None}


def test_moreau_is_there_by_name_and_not_unless_named():
    assert not any("Moreau" in each.text for each in spec_from().algorithms)
    names = ["Moreau-SYN", "MoreauS2", "Moreau-ASY"]
    assert [each.text for each in spec_from(algorithms=names).algorithms] == names


def test_what_is_not_used_does_not_stand_in_the_spec():
    learning = spec_from().values()["learning"]
    assert learning == {"alpha": 0.03, "beta": 0.07, "batch": 40, "local_steps": 1}


def test_who_looks_at_more_samples_has_a_timeline_of_its_own():
    spec, stage, made = algorithms_of(algorithms=["FedAvg-SYN", "FedProx-SYN", "PerFed-SYN"])
    averaged, held, personal = make_timelines(spec, stage, list(made.values()))
    assert averaged is held  # one batch each: the clock runs once
    assert personal.compute_s == pytest.approx(3 * averaged.compute_s)


SEEN = [{"ues": 5}, {"cpu_hz": "1e8,1e9"}, {"quorum": 3}, {"schedule": "random"}, {"shares": "equal"}]
SEEN += [{"bandwidth": "equal_share"}, {"rounds": 4}, {"model": "mlp"}, {"payload_bits": 100.0}]
UNSEEN = [{"alpha": 0.5}, {"PerFedS2.beta": 0.5}, {"labels_per_ue": 3}, {"held_out": True}, {"batch": 3}]


@pytest.mark.parametrize("changed", SEEN + UNSEEN, ids=str)
def test_specs_share_a_stage_where_the_clock_sees_the_same_and_only_there(changed):
    """Batches and local steps are seen by each algorithm's own timeline, in the stage."""
    usual = {"ues": 4, "quorum": 2, "rounds": 3}
    one, other = (clock_key(spec_from(**settings)) for settings in (usual, usual | changed))
    assert (one == other) == (changed in UNSEEN)
    assert hash(one) == hash(clock_key(spec_from(**usual)))


def test_a_merge_is_given_by_name_by_file_or_as_it_is(tmp_path):
    mine = tmp_path / "mine.py"
    mine.write_text(
        "from dataclasses import dataclass\n\nfrom perfeds2 import Merge\n\n\n@dataclass(frozen=True)\nclass Half(Merge):\n    beta: float = 1.0\n\n"
        "    def step(self, params, arrived, state):\n"
        "        return {name: w - self.beta / 2 * arrived.mean[name] for name, w in params.items()}, state\n"
    )
    for given, expected in ((f"{mine}:Half", "Half"), ("FedAdam", "FedAdam"), (FedBuff("constant"), "FedBuff")):
        _, _, made = algorithms_of(algorithms=["PerFedS2"], merge=given, beta=0.02)
        merge = made["PerFedS2"].learner.merge
        assert type(merge).__name__ == expected
        assert getattr(merge, "beta", 0.02) == 0.02  # it is called with the settings it names
    assert spec_from(merge=f"{mine}:Half").own.keys() == {str(mine)}
    with pytest.raises(InputError, match="FedAvg is not a merge"):
        algorithms_of(algorithms=["PerFedS2"], merge=FedAvg)
    with pytest.raises(InputError, match="cannot be combined with SCAFFOLD"):
        algorithms_of(algorithms=["SCAFFOLD"], merge="mean")
