"""Does every setting go through the federation's door: text out, text in, the same value?"""

from typing import Literal, get_args, get_origin

import numpy as np
import pytest
import tomli_w

from perfeds2.deployment.device import compute_job
from perfeds2.deployment.fields import FOLLOWED_FIELDS, SETTINGS, DeploymentSpec
from perfeds2.deployment.merging import StartModel
from perfeds2.deployment.server import hasty
from perfeds2.deployment.setup import Setup
from perfeds2.errors import InputError
from perfeds2.learning.methods import Ditto
from perfeds2.spec.fields import SECTIONS

OTHER = {  # where a number one higher, or another of the names, is not another value
    "task": "synthetic",
    "model": "mlp",
    "data-dir": '/a, folder/of "data"',
    "adapter": "lora:2",
    "bits": 8,
    "top-k": 0.5,
    "compress": "random-k:0.5",
    "secure-aggregation": True,
    "max-staleness": "unbounded",
    "quorum": 3,
    "algorithm": "FedAvg-ASY",
    "seed": 5,
    "rounds": 7,
    "app-module": "/mine/task.py",
    "slow": "1=2.5,3=20.0",
    "uplink-bps": "0=200000.0",
    "norm-bound": 3.5,
    "target-accuracy": 0.6,
    "clip": 2.5,
    "personal-steps": 5,
    "local-epochs": 2.5,
    "merge": "FedBuff",
    "attack": "noise:0.5",
    "max-share": 0.5,
    "alarm-fall": 0.3,
    "split": "dirichlet:0.3",
    "dp-noise": 2.5,
    "epsilon": 3.5,
    "delta": 0.001,
    "dp-bands": 4,
    "rest-rounds": 2,
    "schedule": "random",
    "epsilon-budget": 1.5,
    "cells": 2,
    "edge-rounds": 3,
    "cloud-quorum": 2,
    "cloud-staleness": 4,
    "edge": 1,
    "cloud": "cloud.example:8883",
    "cloud-credentials": "/of/the/cloud",
}


def fields():
    """Every field of the spec and of a deployment, with where it is."""
    sections = SECTIONS | {"deployment": DeploymentSpec}
    return {(name, key): field for name, section in sections.items() for key, field in section.model_fields.items()}


def other_value(name, field):
    """A value that is not the default."""
    if name in OTHER:
        return OTHER[name]
    if get_origin(field.annotation) is Literal:
        return next(value for value in get_args(field.annotation) if value != field.default)
    return field.default + 1


def at(told, place):
    values = told.spec.model_dump(mode="json") | {"deployment": told.own.model_dump(mode="json")}
    return values[place[0]][place[1]]


def test_every_setting_travels_and_what_a_federation_cannot_follow_is_refused():
    places = {name: (each.section, each.key) for name, each in SETTINGS.items()}
    refused = {(section, key) for section, key in fields() if key not in FOLLOWED_FIELDS.get(section, (key,))}
    assert len(places) == len(set(places.values()))
    assert {*places.values(), *refused} == set(fields())
    plain = Setup.from_texts({"devices": 4})
    for name, place in places.items():
        if name == "init":  # names a file, so it never travels (test_federated_adapters.py)
            continue
        value = other_value(name, fields()[place])
        needed = {"cells": "2"} if name == "edge" else {}
        told = Setup.from_texts({"devices": 4} | needed | {name: str(value)})
        assert at(told, place) != at(plain, place), name
        assert at(told, place) in (value, [value]), name
        assert Setup.from_toml(told.to_toml()) == told, name
    for section, key in sorted(refused):
        names = {key, key.replace("_", "-"), f"{section}.{key}"}
        for name in sorted(names - places.keys()):
            with pytest.raises(InputError, match=f"{name} is not a setting of a federation"):
                Setup.from_texts({name: "1"})


@pytest.mark.slow
def test_a_device_clips_and_anneals_as_it_is_told():
    def update(version, **more):
        told = Setup.from_texts({"devices": 2, "batch": 4} | {name.replace("_", "-"): v for name, v in more.items()})
        made = compute_job(told, told.task(1), StartModel(told.first_params()), 1, version)[0]
        return np.concatenate([values.ravel() for values in made.values()])

    exact, length = update(5), float(np.linalg.norm(update(5)))
    np.testing.assert_allclose(update(5, clip=length / 2), exact / 2, rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(update(5, **{"PerFed.anneal": 5}), exact, rtol=1e-5, atol=1e-8)
    assert np.abs(update(5, **{"PerFed.anneal": 6}) - exact).max() > 1e-4


def test_a_methods_own_settings_travel_and_shared_ones_under_its_name_are_refused():
    told = Setup.from_texts({"devices": 4, "algorithm": "Ditto", "Ditto.pull": "0.5"})
    assert told.algorithm.learner.objective == Ditto(0.5)
    assert Setup.from_toml(told.to_toml()) == told
    with pytest.raises(InputError, match="Ditto has no setting push"):
        Setup.from_texts({"devices": 4, "algorithm": "Ditto", "Ditto.push": "0.5"})
    for name in ("Ditto.merge", "methods.Ditto.merge"):
        with pytest.raises(InputError, match=f"{name} is not a setting of a federation"):
            Setup.from_texts({"devices": 4, name: "mine.py:Merge"})


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"quorums": 3}, "quorums is not a setting of a federation."),
        ({"devices": 4, "quorum": 9}, "--quorum must be from 1 to the number of UEs, 4"),
        ({"devices": "many"}, "must be a whole number, got 'many'"),
        ({"norm-bound": -1}, "--norm-bound must be greater than 0, got -1."),
        ({"norm-factor": "0.5"}, "--norm-factor '0.5' would shorten ordinary updates; expected at least 1, or off."),
        ({"set-aside-after": 0}, "--set-aside-after must be at least 1, got 0."),
        ({"gather-s": "long"}, "--gather-s must be a finite number, got 'long'."),
        ({"slow": "5"}, "--slow '5' is not a value for each device; expected DEVICE=VALUE, such as 5=20."),
        ({"slow": "5=1,3=1,5=2"}, "names device 5 twice; give each device one value"),
        ({"slow": "5=-1"}, "--slow must be at least 0, got '-1'."),
        ({"task": "mine.csv"}, "--task mine.csv names data files, but in a federation every device has its own"),
        ({"split": "mine.py:mine"}, "--split mine.py:mine refers to a file or module, which a federation does not run"),
    ],
)
def test_what_a_federation_cannot_be_told_is_said_in_one_sentence(given, sentence):
    with pytest.raises(InputError) as refused:
        Setup.from_texts(given)
    assert sentence in str(refused.value)


@pytest.mark.parametrize("reference", ["{file}:what", "trap:what", "digits,{file}:what"])
@pytest.mark.parametrize("name", [name for name, each in SETTINGS.items() if each.kind is not None])
def test_nothing_that_travels_makes_a_device_run_a_file(name, reference, tmp_path, monkeypatch):
    trap = tmp_path / "trap.py"
    trap.write_text("from pathlib import Path\nPath(__file__).with_name('sprung').touch()\nwhat = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    text = reference.format(file=trap)
    for given in (text, [text]):
        with pytest.raises(InputError, match=r"refers to a file or module, .* by --app-module\.$"):
            Setup.from_toml(tomli_w.dumps({name: given}))
    assert not (tmp_path / "sprung").exists()


def test_a_time_limit_below_the_heartbeat_is_noted():
    given = {"devices": 2, "quorum": 1}
    assert "--job-s 5 is shorter than the 20 s" in (hasty(Setup.from_texts(given | {"job-s": 5})) or "")
    assert hasty(Setup.from_texts(given | {"job-s": 0})) is None
    assert hasty(Setup.from_texts(given | {"job-s": 20})) is None
