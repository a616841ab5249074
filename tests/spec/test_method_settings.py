"""Can a method's own settings be given through every door, and are wrong ones refused?"""

import tomllib
from dataclasses import fields
from typing import Any

import pytest
from command_line import perfeds2, told
from test_each import typed

from perfeds2.errors import InputError
from perfeds2.learning.methods import METHODS, Ditto, FedAdam
from perfeds2.runs.notes import notes_of
from perfeds2.spec.build import Stage, make_algorithms
from perfeds2.spec.fields import own_settings
from perfeds2.spec.line import command_line
from perfeds2.spec.methods import ListedMethod, listed_methods
from perfeds2.spec.resolve import resolve, spec_from
from perfeds2.studies.grid import make_grid, parse_grid

BOTH = ["Ditto", "PerFedS2"]


def learners(spec):
    return {made.name: made.learner for made in make_algorithms(spec, Stage.of(spec, 0))}


def test_a_methods_setting_means_the_same_through_every_door(tmp_path):
    spec = typed(algorithms=",".join(BOTH), assignments=["Ditto.pull=0.1"])
    assert spec.values()["methods"] == {"Ditto": {"pull": 0.1}}
    assert learners(spec)["Ditto"].objective == Ditto(pull=0.1)
    (tmp_path / "mine.toml").write_text('[run]\nalgorithms = ["Ditto", "PerFedS2"]\n[methods.Ditto]\npull = 0.1\n')
    assert typed(tmp_path / "mine.toml") == spec
    assert typed(algorithms=",".join(BOTH), assignments=["methods.Ditto.pull=0.1"]) == spec
    assert spec_from(algorithms=[Ditto(pull=0.1), "PerFedS2"]) == spec
    assert spec_from(algorithms=BOTH, methods={"Ditto": {"pull": 0.1}}) == spec
    assert spec_from(algorithms=[Ditto, "PerFedS2"], **{"Ditto.pull": 0.1}) == spec
    (point,) = make_grid({"run": {"algorithms": BOTH}}, parse_grid(["Ditto.pull=0.1"])).points
    assert point.spec == spec
    assert resolve(tomllib.loads(spec.to_toml())) == spec
    assert "--set Ditto.pull=0.1" in command_line("compare", spec, {})


def test_settings_of_a_method_hold_in_all_its_rounds_unless_an_algorithm_has_its_own():
    own = {"FedProx": {"proximal": 0.3, "beta": 0.5}, "FedProx-SYN": {"proximal": 0.7}}
    made = learners(spec_from(ues=3, algorithms=["FedProxS2", "FedProx-SYN"], methods=own))
    objectives: list[Any] = [made[name].objective for name in ("FedProxS2", "FedProx-SYN")]
    assert [objective.proximal for objective in objectives] == [0.3, 0.7]
    assert {learner.beta for learner in made.values()} == {0.5}


def test_a_merge_takes_the_settings_of_its_method():
    spec = spec_from(ues=3, algorithms=["PerFedS2"], merge="FedAdam", methods={"FedAdam": {"server_step": 0.3}})
    assert learners(spec)["PerFedS2"].merge == FedAdam(server_step=0.3)
    assert (
        typed(algorithms="PerFedS2", merge="FedAdam", assignments=["FedAdam.server_step=0.3"]).methods == spec.methods
    )


@pytest.mark.parametrize(
    ("assignment", "sentence"),
    [
        ("Ditto.pul=1", "Ditto has no setting pul; did you mean pull?"),
        ("Ditto.pull=-1", "Ditto.pull must be at least 0, got -1."),
        ("Ditto.pull=x", "Ditto.pull must be a finite number, got 'x'."),
        ("Dito.pull=1", "settings for Dito were given, but it is not a method; did you mean Ditto?"),
        ("FedBuff.discount=poli", "FedBuff.discount must be 'poly', 'hinge' or 'constant', got 'poli'."),
        ("FedRep.head_steps=1", "--set FedRep.head_steps=1 is for FedRep, which does not take part; leave it out, or"),
    ],
)
def test_a_wrong_setting_is_refused_in_one_sentence(assignment, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as refused:
        typed(algorithms="Ditto,FedBuff", assignments=[assignment])
    assert sentence in str(refused.value)
    status, said = perfeds2("compare", "--algorithms", "Ditto,FedBuff", "--set", assignment)
    assert (status, said.count("\n")) == (2, 1)
    assert sentence in said


@pytest.mark.parametrize("method", listed_methods(), ids=lambda method: method.name)
def test_a_method_explains_itself_and_its_defaults_are_allowed(method: ListedMethod):
    assert method.make.__doc__
    assert method.make.paper
    helps = {field.name: field.metadata.get("help", "") for field in fields(method.make)}  # type: ignore[arg-type]  # a dataclass
    for key, parameter in own_settings(method.make).items():
        assert helps[key].endswith("."), key
        own = {method.name: {key: parameter.default}}
        assert parameter.default is None or resolve({"methods": own}).methods == own


def test_the_command_lists_every_method_with_its_settings():
    status, said, _ = told("methods")
    assert status == 0
    assert all(name in said for name in METHODS)
    status, said, _ = told("methods", "Ditto")
    assert status == 0
    assert "Ditto.pull = 1.0" in said
    assert "ICML 2021" in said
    status, said = perfeds2("methods", "Dito")
    assert status == 2
    assert "did you mean Ditto?" in said


def test_fedbn_of_a_model_without_normalisation_is_noted():
    facts = {"FedBN": [{"mode": "S2", "quorum": 5, "rounds": 0}]}
    changes = ({}, {"model": "mlp-norm"}, {"FedBN.layers": "dense1"})
    told = [notes_of(spec_from(algorithms=["FedBN"], **more), facts, None) for more in changes]
    assert ["FedBN equals FedAvg here" in " ".join(each) for each in told] == [True, False, False]
