"""Are trainings, bouts and fingerprints of earlier versions found again when a setting is added?"""

from dataclasses import replace
from typing import Any

import pytest
from pydantic import Field

from benchmarks.leaderboard import fingerprint, plan_suite
from perfeds2.errors import InputError
from perfeds2.runs.folder import SWEEP, claim
from perfeds2.runs.training import trainings_of
from perfeds2.spec import hashes
from perfeds2.spec.fields import SECTIONS, CellSpec, LearningSpec, Spec
from perfeds2.spec.resolve import nested, read_toml, resolve
from perfeds2.spec.values import Section, setting
from perfeds2.studies.arena_plan import make_arena, read_plan
from perfeds2.studies.figure import merged
from perfeds2.studies.grid import make_grid, read_sweep
from perfeds2.studies.tune_space import make_search, read_search

FIRST = {  # sections and settings of the first hashes; never edit this
    "task": "name model labels_per_ue split target ue_column loss metric data_dir held_out",
    "cell": "kind ues layout radius_m distance_m bandwidth_hz power_w path_loss_exponent noise_dbm_per_hz fading_scale "
    "cpu_hz cycles_per_sample payload_bits downlink_s trace_end on_leave",
    "radio": "name carrier_hz bs_height_m ue_height_m noise_figure_db shadowing_db power_control efficiency_cap fading "
    "coherence_s speed_mps mobility bits top_k downlink bs_power_dbm",
    "energy": "model kappa budget",
    "protocol": "quorum max_staleness stale schedule unplanned rest_rounds feedback_rounds tiers shares bandwidth",
    "learning": "alpha beta personal_steps batch local_steps clip merge attack",
    "privacy": "noise epsilon delta bands secure_aggregation",
    "run": "algorithms seeds horizon_s rounds eval_every_s target_accuracy stop_when_diverged",
}
SPEC: dict[str, Any] = {
    "task": {"name": "digits", "model": "mlp", "labels_per_ue": 3},
    "cell": {"ues": 6, "layout": "disc", "cycles": "per-parameter"},
    "protocol": {"quorum": 2, "max_staleness": 5, "stale": "restart", "schedule": "first"}
    | {"shares": "equal", "bandwidth": "equal_share"},
    "learning": {"alpha": 0.03, "beta": 0.07, "batch": 40, "local_steps": 1},
    "run": {"algorithms": ["PerFedS2", "FedBuff"], "seeds": [0], "horizon_s": 30.0, "eval_every_s": 0.5},
}
NOISY = {"learning": SPEC["learning"] | {"clip": 1.0}, "privacy": {"noise": 2.0}, "radio": {"name": "umi"}} | {
    "methods": {"FedBuff": {"beta": 0.1}}
}
KEYS = {  # never edit these
    "plain": ["cad4a0f1ccfa1c0905695e25", "2d2b99cdbb83747c0fc6d20b"],
    "noisy": ["c6c9b9721c132cf379410987", "f0a5c2efae4c906a11b64056"],
}
LATER = {"cell": {"tilt_deg": 6.0}, "learning": {"momentum": 0.0, "warmup": None}, "weather": {"rain": "none"}}


class TiltedCell(CellSpec):
    tilt_deg: float = setting("DEG", "Tilt of the antenna.", 6.0)


class NewLearning(LearningSpec):
    momentum: float = setting("M", "Momentum of the server.", 0.0)
    warmup: int | None = setting("K", "Rounds of warm-up.")


class Weather(Section, title="Weather"):
    rain: str = setting("WORD", "Rain.", "none")


class NewSpec(Spec):
    """The spec of a later version: two sections have grown, one is new."""

    cell: TiltedCell = Field(default_factory=TiltedCell)
    learning: NewLearning = Field(default_factory=NewLearning)
    weather: Weather = Field(default_factory=Weather)


def of_later_version(spec: Spec, **learning: Any) -> NewSpec:
    grown = {"cell": TiltedCell(**vars(spec.cell)), "learning": NewLearning(**vars(spec.learning), **learning)}
    return NewSpec.model_construct(**vars(spec) | grown, weather=Weather())


@pytest.fixture
def later(monkeypatch):
    monkeypatch.setattr(hashes, "LATER_SECTIONS", (*hashes.LATER_SECTIONS, "weather"))
    for section, settings in LATER.items():
        monkeypatch.setitem(hashes.LATER, section, hashes.LATER.get(section, {}) | settings)


def test_trainings_have_the_keys_they_always_had():
    assert [one.key for one in trainings_of(resolve(SPEC))] == KEYS["plain"]
    noisy = resolve(SPEC | NOISY)
    earlier = noisy.with_(radio=noisy.radio.with_(link=None, speed_mps=None), energy=noisy.energy.with_(model=None))
    assert [one.key for one in trainings_of(earlier)] == KEYS["noisy"]


def test_what_means_something_else_now_has_another_key():
    """Radios of TR 38.901 have later defaults: CQI steps, a walking speed and the energy of a whole phone."""
    assert not {one.key for one in trainings_of(resolve(SPEC | NOISY))} & set(KEYS["noisy"])


@pytest.mark.usefixtures("later")
def test_a_version_with_more_settings_finds_the_trainings_of_this_one():
    assert [one.key for one in trainings_of(of_later_version(resolve(SPEC)))] == KEYS["plain"]
    with_momentum = trainings_of(of_later_version(resolve(SPEC), momentum=0.9))
    assert not {one.key for one in with_momentum} & set(KEYS["plain"])


@pytest.mark.usefixtures("later")
def test_a_version_with_more_settings_has_the_frozen_bouts_and_their_fingerprints():
    plan = plan_suite("v1", {}, tasks=["digits"], methods=["PerFedS2"])
    for bout in plan.bouts:
        newer = replace(bout, spec=of_later_version(bout.spec))
        assert fingerprint(plan, newer) == fingerprint(plan, bout)
        changed = replace(bout, spec=of_later_version(bout.spec, warmup=3))
        assert fingerprint(plan, changed) != fingerprint(plan, bout)


def test_without_a_line_in_the_table_they_would_be_lost():
    assert trainings_of(of_later_version(resolve(SPEC)))[0].key != KEYS["plain"][0]


def test_every_later_setting_that_a_hash_would_notice_has_a_line_in_the_table():
    """If this fails: you added a setting. Add it to ``LATER`` (a section to ``LATER_SECTIONS``) in spec/hashes.py."""
    assert set(SECTIONS) - set(FIRST) <= set(hashes.LATER_SECTIONS)
    missing = [
        f"{section}.{key}"
        for section, model in SECTIONS.items()
        for key, info in model.model_fields.items()
        if key not in FIRST.get(section, "").split() and key not in hashes.LATER.get(section, {})
        if section == "learning" or info.default is not None
    ]
    assert missing == []


@pytest.mark.parametrize("asked", [{"quorum": 1}, {"quorum": 1, "cycles": "counted"}], ids=["usual", "asked"])
@pytest.mark.parametrize("kind", ["sweep", "search", "arena"])
def test_a_request_keeps_its_trainings_when_a_default_changes(tmp_path, kind, asked):
    base = nested({"ues": 4, "rounds": None, "algorithms": ["PerFedS2"], **asked})
    if kind == "sweep":
        made, file, read = make_grid(base, {"alpha": [0.1]}), "sweep.toml", lambda path: read_sweep(path).points[0].spec
    elif kind == "search":
        made, file, read = make_search(base, {"beta": [0.1]}), "tune.toml", lambda path: read_search(path).spec
    else:
        made, file, read = make_arena(base, tries=0), "arena.toml", lambda path: read_plan(path).bouts[0].spec
    (tmp_path / file).write_text(made.to_toml())
    assert read(tmp_path).cell.cycles == "counted"
    before = made.to_toml().replace('cycles = "counted"\n', "")
    assert before != made.to_toml()
    (tmp_path / file).write_text(before)  # by a version that knew only one rule
    spec = read(tmp_path)
    assert spec.cell.cycles == "per-parameter"
    assert list(map(str, (spec.protocol.schedule, spec.protocol.shares, spec.protocol.bandwidth))) == [
        *("first", "equal", "equal_share")
    ]


def test_a_radio_in_a_file_has_the_link_that_the_flag_gives(tmp_path):
    """A run writes only the settings of a radio that are given, so a file's section does not show who wrote it."""
    asked = nested({"ues": 4, "radio": "umi", "algorithms": ["PerFedS2"]})
    (tmp_path / "mine.toml").write_text('[radio]\nname = "umi"\n')
    read = [resolve(read_toml(tmp_path / "mine.toml"))]
    made = make_grid(asked, {"quorum": [1]}), make_search(asked, {"beta": [0.1]}), make_arena(asked, tries=0)
    for name, request in zip(("sweep", "tune", "arena"), made, strict=True):
        (tmp_path / f"{name}.toml").write_text(request.to_toml())
    read += [read_sweep(tmp_path).points[0].spec, read_search(tmp_path).spec, read_plan(tmp_path).bouts[0].spec]
    assert [spec.radio for spec in read] == [resolve(asked).radio] * 4
    assert read[0].radio.link == "cqi"


def test_an_earlier_folder_says_how_to_continue_it(tmp_path):
    base = {"cell": {"ues": 4}, "run": {"algorithms": ["PerFedS2"]}}
    grid = make_grid(base, {"quorum": [1]})
    (tmp_path / "sweep.toml").write_text(grid.to_toml().replace('cycles = "counted"\n', ""))
    with pytest.raises(InputError, match=r"base\.cell\.cycles is per-parameter, and counted was asked for"):
        claim(SWEEP, tmp_path, grid, read_sweep)
    claim(SWEEP, tmp_path, read_sweep(tmp_path), read_sweep)  # as --resume does
    rounds = {"schedule": "first", "shares": "equal", "bandwidth": "equal_share"}
    same = merged({}, base, {"cell": {"cycles": "per-parameter"}, "protocol": rounds})
    claim(SWEEP, tmp_path, make_grid(same, {"quorum": [1]}), read_sweep)
