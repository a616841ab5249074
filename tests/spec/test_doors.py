"""Does every setting mean the same through every door: flag, --set, TOML, grid, Python?"""

import tomllib
from pathlib import Path
from tempfile import mkdtemp

import pytest
from command_line import told

from perfeds2.commands.common import nested_values
from perfeds2.errors import InputError
from perfeds2.spec.fields import SECTIONS, Spec, settings
from perfeds2.spec.resolve import place_of, put_text, resolve, spec_from
from perfeds2.studies.grid import make_grid, parse_grid

WEIGHTS = Path(mkdtemp()) / "body.safetensors"
WEIGHTS.write_bytes(b"opened only when a model is made")

# As typed behind the flag, none of them the default; and what Python is given.
TYPED: dict[str, tuple[str, object]] = {
    "task": ("synthetic", "synthetic"),
    "model": ("mlp", "mlp"),
    "labels_per_ue": ("4", 4),
    "split": ("dirichlet:0.3", "dirichlet:0.3"),
    "target": ("price", ["price"]),
    "ue_column": ("client", "client"),
    "loss": ("binary", "binary"),
    "metric": ("rmse", "rmse"),
    "held_out": ("true", True),
    "new_ues": ("0.3", 0.3),
    "adapter": ("head", "head"),
    "init": (str(WEIGHTS), str(WEIGHTS)),
    "secure_aggregation": ("true", True),
    "data_dir": ("somewhere", "somewhere"),
    "cell": ("paper", "paper"),
    "ues": ("7", 7),
    "layout": ("equal", "equal"),
    "radius_m": ("150", 150.0),
    "distance_m": (",".join(["5"] * 20), [5.0] * 20),
    "bandwidth_hz": ("2e6", 2e6),
    "power_w": ("0.02", 0.02),
    "path_loss_exponent": ("3.5", 3.5),
    "noise_dbm_per_hz": ("-170", -170.0),
    "fading_scale": ("41", 41.0),
    "cpu_hz": ("1e8,1e9", (1e8, 1e9)),
    "cycles": ("per-parameter", "per-parameter"),
    "cycles_per_sample": ("1e5", 1e5),
    "count_hessian": ("true", True),
    "parameters": ("11e6", 11e6),
    "payload_bits": ("1e4", 1e4),
    "downlink_s": ("0.5", 0.5),
    "trace_end": ("hold", "hold"),
    "on_leave": ("keep", "keep"),
    "cells": ("4", 4),
    "sectors": ("3", 3),
    "wrap_around": ("true", True),
    "frequency_reuse": ("3", 3),
    "interference": ("full", "full"),
    "merge_at": ("cloud", "cloud"),
    "reshare": ("events", "events"),
    "begin_s": ("28800", 28800.0),
    "edge_rounds": ("2", 2),
    "cloud_quorum": ("3", 3),
    "cloud_staleness": ("2", 2),
    "backhaul_bps": ("1e8", 1e8),
    "backhaul_s": ("0.01", 0.01),
    "radio": ("umi", "umi"),
    "carrier_hz": ("2e9", 2e9),
    "bs_height_m": ("20", 20.0),
    "ue_height_m": ("2", 2.0),
    "noise_figure_db": ("7", 7.0),
    "indoor": ("0.25", 0.25),
    "walls": ("high", "high"),
    "shadowing_db": ("3", 3.0),
    "power_control": ("-80,0.8", (-80.0, 0.8)),
    "link": ("attenuated", "attenuated"),
    "uplink_share": ("0.25", 0.25),
    "errors": ("harq:3", "harq:3"),
    "outage": ("wait:1e5", "wait:1e5"),
    "csi_error_db": ("3", 3.0),
    "csi_delay": ("2", 2),
    "band_profile": ("0:1,28800:0.7", "0:1,28800:0.7"),
    "efficiency_cap": ("5", 5.0),
    "fading": ("rician:6", "rician:6"),
    "coherence_s": ("0.05", 0.05),
    "speed_mps": ("1.4", 1.4),
    "mobility": ("waypoint", "waypoint"),
    "bits": ("8", 8),
    "top_k": ("0.1", 0.1),
    "compress": ("random-k:0.1", "random-k:0.1"),
    "downlink": ("multicast", "multicast"),
    "bs_power_dbm": ("40", 40.0),
    "energy": ("lte", "lte"),
    "kappa": ("1e-27", 1e-27),
    "energy_budget": ("2.5", 2.5),
    "quorum": ("3", 3),
    "max_staleness": ("unbounded", "unbounded"),
    "stale": ("wait", "wait"),
    "schedule": ("round_robin", "round_robin"),
    "unplanned": ("rest", "rest"),
    "rest_rounds": ("3", 3),
    "feedback_rounds": ("5", 5),
    "tiers": ("4", 4),
    "shares": (",".join(["0.05"] * 20), [0.05] * 20),
    "bandwidth": ("between:0.5", "between:0.5"),
    "alpha": ("0.01", 0.01),
    "beta": ("0.02", 0.02),
    "personal_steps": ("5", 5),
    "batch": ("10", 10),
    "local_epochs": ("2", 2.0),
    "local_steps": ("2", 2),
    "clip": ("2.5", 2.5),
    "merge": ("FedBuff", "FedBuff"),
    "attack": ("noise:0.2", "noise:0.2"),
    "dp_noise": ("2", 2.0),
    "epsilon": ("4", 4.0),
    "delta": ("1e-6", 1e-6),
    "dp_bands": ("4", 4),
    "algorithms": ("PerFedS2,FedAvg-SYN", ["PerFedS2", "FedAvg-SYN"]),
    "seeds": ("3..5", range(3, 6)),
    "horizon_s": ("7.5", 7.5),
    "rounds": ("9", 9),
    "eval_every_s": ("2", 2.0),
    "target_accuracy": ("0.5", 0.5),
    "stop_when_diverged": ("true", True),
}


def test_every_setting_is_tried():
    assert set(TYPED) == {each.keyword for each in settings()}
    assert len({each.name for each in settings()}) == len(settings())  # a flag of its own each


@pytest.mark.parametrize("each", settings(), ids=lambda each: each.keyword)
def test_a_setting_means_the_same_through_every_door(each):
    typed, value = TYPED[each.keyword]
    by_flag = resolve(nested_values(None, {each.keyword: typed}, [], {}))
    assert by_flag != resolve({}), "the value must differ from the default to show anything"
    assigned: dict = {}
    put_text(assigned, f"{each.section}.{each.key}={typed}")
    assert resolve(assigned) == by_flag
    assert resolve(tomllib.loads(by_flag.to_toml())) == by_flag
    assert spec_from(**{each.keyword: value}) == by_flag
    assert spec_from(**{each.section: {each.key: value}}) == by_flag
    assert place_of(each.name) == place_of(f"{each.section}.{each.key}") == (each.section, each.key)
    if each.keyword != "algorithms" and "," not in typed:  # a comma parts the values of a grid
        (point,) = make_grid({}, parse_grid([f"{each.name}={typed}"])).points
        assert point.spec == by_flag
        if each.keyword != "seeds":
            (same,) = make_grid({}, {each.keyword: [value]}).points
            assert same.spec == by_flag


def test_the_help_says_which_tasks_have_defaults_of_their_own():
    helps = {each.keyword: each.help() for each in settings()}
    assert helps["labels_per_ue"].endswith("(default: 3; digits, cifar10: 2; cifar100: 5)")
    assert helps["batch"].endswith("(default: 40)")


@pytest.mark.parametrize(
    ("task", "labels", "target"), [(None, 2, 0.95), ("digits", 2, 0.95), ("mnist", 3, 0.9), ("synthetic", 3, 0.7)]
)
def test_a_tasks_own_defaults_hold_also_where_it_is_not_named(task, labels, target):
    spec = spec_from(**({} if task is None else {"task": task}))
    assert (spec.task.labels_per_ue, spec.run.target_accuracy) == (labels, target)
    assert (spec.learning.alpha, spec.learning.beta) == (0.03, 0.07)  # Table I
    assert spec_from(**({} if task is None else {"task": task}), labels_per_ue=4).task.labels_per_ue == 4


@pytest.mark.slow
def test_every_setting_explains_itself():
    for each in settings():
        assert each.description.endswith("."), each
        assert each.panel == SECTIONS[each.section].model_config.get("title")
        assert each.default or Spec().model_dump()[each.section][each.key] is None
    _, shown, _ = told("compare", "--help-all")
    text = " ".join(shown.replace("│", " ").split())
    for each in settings():
        assert each.flag in text
    for name in ("proportional_fair", "between:THETA", "printed_fixed", "shakespeare", "FedProx-ASY"):  # looked up
        assert name in text
    assert "{names}" not in text


def test_one_seed_and_several_seeds_do_not_go_together():
    with pytest.raises(InputError, match="--seed 3 and --seeds 5 were both given; give one of them"):
        spec_from(seed=3, seeds=5)
    assert spec_from(seed=3).run.seeds == (3,)
    assert spec_from(seeds=3).run.seeds == (0, 1, 2)


def test_numpy_numbers_and_arrays_are_numbers():
    import numpy as np

    assert spec_from(ues=np.int64(4), distance_m=np.ones(4), seeds=np.arange(2)).to_toml() == (
        spec_from(ues=4, distance_m=[1.0] * 4, seeds=[0, 1]).to_toml()
    )
