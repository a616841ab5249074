"""May one algorithm learn otherwise than the others, said through any door, and does only it?"""

import tomllib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from command_line import perfeds2
from in_numpy import train_in_numpy

from perfeds2.api import compare
from perfeds2.commands.common import Study, nested_values
from perfeds2.deployment.setup import Setup
from perfeds2.errors import InputError
from perfeds2.learning.objectives import FedAvg
from perfeds2.spec.build import Stage, make_algorithms, make_timelines
from perfeds2.spec.fields import LearningSpec, Spec, settings
from perfeds2.spec.resolve import name_of, place_of, put, put_text, resolve, spec_from, take
from perfeds2.studies.grid import grid_from_flags, make_grid, parse_grid, read_sweep
from perfeds2.studies.plan_space import make_space

OTHER: dict[str, object] = {  # none of them the default
    "alpha": 0.01,
    "beta": 0.02,
    "batch": 10,
    "local_steps": 2,
    "local_epochs": 3,
    "clip": 2.5,
    "personal_steps": 5,
    "merge": "FedBuff",
    "attack": "sign-flip:0.5",
}


def typed(spec_file=None, assignments=(), **flags: object) -> Spec:
    """As a command reads what a shell gives it."""
    given = dict.fromkeys([each.keyword for each in settings()]) | {
        "seed": None,
        "spec": spec_file,
        "set_": list(assignments),
        "quiet": True,
        "resume": None,
    }
    return Study("compare", given | flags).spec({})


def test_every_learning_setting_is_tried():
    assert set(OTHER) == set(LearningSpec.model_fields)


@pytest.mark.parametrize(("key", "value"), OTHER.items())
def test_a_setting_of_one_algorithm_means_the_same_through_every_door(key, value, tmp_path):
    name = "PerFed-ASY"
    by_flag = typed(assignments=[f"{name}.{key}={value}"])
    assert by_flag.values()["methods"] == {name: {key: value}}
    assert by_flag.learning == Spec().learning
    assert by_flag.learning_of(name).model_dump()[key] == value
    assert by_flag.learning_of("PerFedS2") == by_flag.learning
    (tmp_path / "mine.toml").write_text(f"[methods.{name}]\n{key} = {value!r}\n".replace("'", '"'))
    assert typed(tmp_path / "mine.toml") == by_flag
    assert typed(assignments=[f"methods.{name}.{key}={value}"]) == by_flag
    assert spec_from(methods={name: {key: value}}) == by_flag
    assert spec_from(**{f"{name}.{key}": value}) == by_flag
    for text in (f"{name}.{key}", f"{name}.{key.replace('_', '-')}", f"methods.{name}.{key}"):
        (point,) = make_grid({}, parse_grid([f"{text}={value}"])).points
        assert point.spec == by_flag
        assert place_of(text) == ("methods", f"{name}.{key}")
    assert name_of(("methods", f"{name}.{key}")) == f"{name}.{key}"
    assert resolve(tomllib.loads(by_flag.to_toml())) == by_flag
    assert resolve(by_flag.values()) == by_flag


def test_a_flag_is_for_everybody_and_set_for_some():
    own = ["PerFed-ASY.beta=0.02", "FedAvgS2.beta=0.5", "FedAvgS2.local_steps=3"]
    spec = typed(beta="0.05", assignments=own)
    assert spec == spec_from(beta=0.05, **{name: value for name, _, value in (each.partition("=") for each in own)})
    assert spec.learning.beta == 0.05
    assert spec.methods == {"PerFed-ASY": {"beta": 0.02}, "FedAvgS2": {"beta": 0.5, "local_steps": 3}}
    assert [spec.learning_of(name).beta for name in ("PerFedS2", "PerFed-ASY", "FedAvgS2")] == [0.05, 0.02, 0.5]


def test_flags_go_over_the_file_and_set_over_both(tmp_path):
    (tmp_path / "mine.toml").write_text("[learning]\nbeta = 0.3\n[methods.PerFedS2]\nbeta = 0.1\nclip = 1.0\n")
    spec = typed(tmp_path / "mine.toml", ["methods.PerFedS2.clip=4", "learning.batch=7"], alpha="0.5", batch="9")
    assert spec.methods == {"PerFedS2": {"beta": 0.1, "clip": 4.0}}
    assert (spec.learning.beta, spec.learning.alpha, spec.learning.batch) == (0.3, 0.5, 7)


def test_only_what_was_given_is_kept_and_a_spec_without_is_what_it_was():
    assert "methods" not in spec_from(beta=0.5).to_toml()
    assert spec_from(methods={"PerFedS2": {}}).to_toml() == spec_from().to_toml()
    assert spec_from(methods={}) == spec_from()
    text = spec_from(**{"PerFedS2.local_steps": 2}).to_toml()
    assert text == spec_from().to_toml().replace("\n[own]", "") + "\n[methods.PerFedS2]\nlocal_steps = 2\n"
    assert spec_from(**{"PerFedS2.beta": 0.07}).methods == {
        "PerFedS2": {"beta": 0.07}
    }  # also where it is the general one


def test_values_are_put_and_taken_where_they_belong():
    values: dict = {}
    put(values, "methods", "PerFed-ASY.beta", 0.1)
    put(values, "methods", "PerFed-ASY.clip", 2)
    put(values, "learning", "beta", 0.2)
    assert values == {"methods": {"PerFed-ASY": {"beta": 0.1, "clip": 2}}, "learning": {"beta": 0.2}}
    assert (take(values, "methods", "PerFed-ASY.beta"), take(values, "learning", "beta")) == (0.1, 0.2)
    put_text(values, "methods.mine.py:X.beta=3")  # an own name may have a dot
    assert values["methods"]["mine.py:X"] == {"beta": 3}


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            {"PerFed-ASI.beta": 0.1},
            r"settings for PerFed-ASI were given, but it is not a method; did you mean PerFed-ASY\?$",
        ),
        ({"xyzzy.beta": 0.1}, r"settings for xyzzy were given, but it is not a method; expected one of .*\.$"),
        ({"methods": {"PerFedS2": {"betta": 1}}}, r"PerFedS2 has no setting betta; did you mean beta\?"),
        ({"methods": {"PerFedS2": {"quorum": 1}}}, "PerFedS2 has no setting quorum; expected one of hessian, "),
        ({"methods": {"PerFedS2": 3}}, r"section \[methods\] must be a table of settings, got 3"),
        ({"PerFedS2.beta": -1}, "PerFedS2.beta must be greater than 0, got -1"),
        ({"PerFedS2.beta": "x"}, "PerFedS2.beta must be a finite number, got 'x'"),
        ({"PerFedS2.alpha": "x"}, "PerFedS2.alpha must be a finite number, got 'x'"),
        ({"PerFedS2.local_steps": 1.5}, "PerFedS2.local_steps must be a whole number"),
        ({"clip": 1.0, "PerFedS2.clip": None}, "PerFedS2.clip is None; give a value, or leave it out"),
        ({"beta": "0.1,0.2"}, "--beta must be a finite number, got '0.1,0.2'"),
        ({"quorum": "PerFedS2=2"}, "--quorum must be a whole number, got 'PerFedS2=2'"),
    ],
    ids=str,
)
def test_what_is_wrong_is_said_in_one_sentence(given, sentence):
    with pytest.raises(InputError, match=sentence) as refused:
        spec_from(**given)
    assert "\n" not in str(refused.value)
    assert not str(refused.value).endswith("?.")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--set", "PerFed-ASI.beta=0.1"], "did you mean PerFed-ASY?"),
        (["--beta", "PerFedS2=0.2"], "--beta must be a finite number, got 'PerFedS2=0.2'"),
        (["--set", "methods.PerFedS2=0.1"], "section [methods] must be a table of settings"),
        (["--set", "methods.beta=0.1"], "section [methods] must be a table of settings"),
        (["--set", "methods.PerFedS2=1", "--set", "methods.PerFedS2.beta=1"], "PerFedS2 must be a section"),
    ],
)
def test_the_command_says_so_too(tmp_path, monkeypatch, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    status, said = perfeds2("compare", *arguments)
    assert (status, said.count("\n")) == (2, 1)
    assert sentence in said
    assert not list(tmp_path.iterdir())


# Grids


def test_a_grid_over_one_algorithms_setting_goes_over_the_base_and_survives_its_file(tmp_path):
    base = nested_values(None, {"beta": "0.3"}, ["PerFed-ASY.beta=0.2", "PerFed-ASY.clip=1", "FedAvgS2.clip=2"], {})
    grid = grid_from_flags(base, ["PerFed-ASY.beta=0.01,0.02", "seed=0,1"], ["alpha"])
    assert grid.base["methods"] == {"PerFed-ASY": {"clip": 1.0}, "FedAvgS2": {"clip": 2.0}}
    assert [axis.name for axis in grid.axes] == ["PerFed-ASY.beta"]
    assert [point.spec.learning_of("PerFed-ASY").beta for point in grid.points] == [0.01, 0.02]
    assert [point.spec.learning_of("PerFed-ASY").clip for point in grid.points] == [1.0, 1.0]
    assert [point.spec.learning_of("PerFedS2").beta for point in grid.points] == [0.3, 0.3]
    assert grid.points[0].label == "PerFed-ASY.beta=0.01"
    (tmp_path / "sweep.toml").write_text(grid.to_toml())
    assert read_sweep(tmp_path) == grid


def test_a_grid_over_nothing_else_and_an_empty_table_are_fine(tmp_path):
    grid = make_grid({"methods": {"FedAvgS2": {}}}, {"PerFedS2.beta": np.array([0.1, 0.2]), "seed": [0]})
    assert "methods" not in grid.base
    assert [point.values for point in grid.points] == [(0.1,), (0.2,)]
    (tmp_path / "sweep.toml").write_text(grid.to_toml())
    assert read_sweep(tmp_path) == grid
    with pytest.raises(InputError, match="is given twice"):
        make_grid({}, {"PerFedS2.beta": [1], "methods.PerFedS2.beta": [2]})
    with pytest.raises(InputError, match="but it is not a method"):
        make_grid({}, {"PerFedS3.beta": [1]})


# What follows from it


def test_every_learner_has_its_own_numbers_and_the_general_ones_else():
    own = {"alpha": 0.01, "beta": 0.02, "batch": 5, "local_steps": 3, "clip": 2.5}
    spec = spec_from(ues=4, algorithms=["PerFedS2", "PerFed-ASY", "FedAvg-ASY"], batch=8, methods={"PerFed-ASY": own})
    made = {each.name: each.learner for each in make_algorithms(spec, Stage.of(spec, 0))}
    assert {key: getattr(made["PerFed-ASY"], key) for key in own} == own
    for name in ("PerFedS2", "FedAvg-ASY"):
        assert {key: getattr(made[name], key) for key in own} == {
            "alpha": 0.03,
            "beta": 0.07,
            "batch": 8,
            "local_steps": 1,
            "clip": None,
        }
    objective = made["PerFed-ASY"].objective
    assert getattr(objective, "alpha", None) == 0.01
    assert (made["PerFed-ASY"].samples, made["PerFedS2"].samples) == (3 * 3 * 5, 3 * 8)


def test_the_clock_sees_each_ones_work():
    """Three times the steps take three times the computing; step sizes take no time."""
    base: dict[str, Any] = {
        "ues": 3,
        "algorithms": ["FedAvg-SYN", "FedProx-SYN"],
        "batch": 8,
        "horizon_s": 2.0,
        "cycles_per_sample": 1e7,
    }

    def ends(**more):
        spec = spec_from(**base | more)
        stage = Stage.of(spec, 0)
        return [timeline.rounds for timeline in make_timelines(spec, stage, make_algorithms(spec, stage))]

    plain, steps, batch = ends(), ends(**{"FedProx-SYN.local_steps": 3}), ends(**{"FedProx-SYN.batch": 24})
    assert plain[0] == plain[1]
    assert steps == batch
    assert steps[0] == plain[0]
    assert steps[1] < plain[1] / 2
    assert ends(**{"FedProx-SYN.beta": 3.0, "FedProx-SYN.alpha": 0.5}) == plain


@pytest.mark.slow
def test_what_an_algorithm_gets_of_its_own_is_what_it_would_get_alone(monkeypatch):
    """And nothing changes for the other."""
    train_in_numpy(monkeypatch.setattr)  # it sees each one's β
    small: dict[str, Any] = {
        "ues": 3,
        "batch": 4,
        "horizon_s": 0.3,
        "eval_every_s": 0.1,
        "seeds": [0],
        "algorithms": ["FedAvgS2", "FedAvg-SYN"],
    }
    both = compare(**small, methods={"FedAvg-SYN": {"beta": 0.5}}).metrics
    for name, beta in (("FedAvgS2", 0.07), ("FedAvg-SYN", 0.5)):
        only: dict[str, Any] = small | {"algorithms": [name]}
        alone = compare(**only, beta=beta).metrics
        mine = both[both.algorithm == name].reset_index(drop=True)
        assert mine.to_csv() == alone.to_csv()
        assert mine.to_csv() != compare(**only, beta=0.3).metrics.to_csv()


@pytest.mark.slow
def test_notes_are_about_each_ones_own_settings(monkeypatch):
    train_in_numpy(monkeypatch.setattr)
    small: dict[str, Any] = {
        "ues": 3,
        "batch": 4,
        "horizon_s": 0.2,
        "seeds": [0],
        "algorithms": ["FedAvgS2", "FedProxS2"],
    }
    one, two = (
        compare(**small, methods={name: {"local_steps": 2}}).summary["notes"] for name in ("FedAvgS2", "FedProxS2")
    )
    assert any("proximal term is zero" in note for note in one)
    assert not any("proximal term is zero" in note for note in two)


def test_fedprox_is_usual_where_it_has_several_steps_of_its_own():
    def names(**given):
        return [named.text for named in spec_from(**given).algorithms]

    assert not [name for name in names() if name.startswith("FedProx")]
    assert [name for name in names(**{"FedProx-ASY.local_steps": 2}) if name.startswith("FedProx")] == ["FedProx-ASY"]
    assert [name for name in names(local_steps=2, **{"FedProxS2.local_steps": 1}) if name.startswith("FedProx")] == [
        "FedProx-SYN",
        "FedProx-ASY",
    ]
    assert not [name for name in names(**{"FedAvgS2.local_steps": 2}) if name.startswith("FedProx")]


def test_a_plan_is_made_for_what_perfeds2_has():
    spec = spec_from(
        task="synthetic",
        ues=3,
        batch=4,
        methods={"PerFedS2": {"beta": 0.2, "local_steps": 2}, "FedAvgS2": {"beta": 5.0}},
        algorithms=["PerFedS2"],
    )
    space = make_space(spec, {})
    assert space.asked.local_steps == 2
    learning = space.spec_of(space.asked.with_(local_steps=4), [0], 1.0, 10).learning_of("PerFedS2")
    assert (learning.beta, learning.local_steps, learning.batch) == (0.2, 4, 4)


def test_a_federation_has_one_algorithm_and_takes_no_names():
    assert Setup.from_texts({"devices": 4, "beta": "0.2"}).algorithm.learner.beta == 0.2
    with pytest.raises(InputError, match=r"--beta must be a finite number, got 'PerFedS2=0\.2'"):
        Setup.from_texts({"devices": 4, "beta": "PerFedS2=0.2"})


# The user's own


@dataclass(frozen=True)
class Mine(FedAvg):
    pass


def test_an_own_objective_has_settings_under_the_name_it_gets():
    spec = spec_from(ues=3, algorithms=[Mine, "FedAvgS2"], beta=0.1, methods={"MineS2": {"beta": 0.5, "clip": 2}})
    made = {each.name: each.learner for each in make_algorithms(spec, Stage.of(spec, 0))}
    assert (made["MineS2"].beta, made["FedAvgS2"].beta) == (0.5, 0.1)
    assert (made["MineS2"].clip, made["FedAvgS2"].clip) == (2.0, None)
    assert resolve(spec.values()) == spec


def test_an_own_objective_has_settings_under_its_plain_name_too():
    spec = spec_from(ues=3, algorithms=[Mine], **{"Mine.beta": 0.5})
    assert spec.learning_of("MineS2").beta == 0.5


def test_settings_for_no_method_are_refused():
    with pytest.raises(
        InputError, match=r"settings for MinS2 were given, but it is not a method; did you mean MineS2\?$"
    ):
        spec_from(ues=3, algorithms=[Mine], **{"MinS2.beta": 0.5})


def test_an_algorithm_that_brings_its_learner_takes_no_settings():
    spec = spec_from(ues=3, algorithms=["FedAvgS2"])
    (made,) = make_algorithms(spec, Stage.of(spec, 0))
    own = replace(made, name="Whole")
    with pytest.raises(InputError, match="settings for Whole were given, but it is not a method"):
        spec_from(ues=3, algorithms=[own], **{"Whole.beta": 0.5})
