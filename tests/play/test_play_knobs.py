"""Do knobs mean settings, and nothing else?"""

import json
import shlex

import pytest
from command_line import told
from hypothesis import given
from hypothesis import settings as settings_of_hypothesis
from hypothesis import strategies as st

from perfeds2.errors import InputError
from perfeds2.play.knobs import (
    KNOBS,
    MOST_UES,
    OURS,
    knobs_at,
    read_state,
    same_again,
    settings_at,
    start_of,
    usual,
)
from perfeds2.spec.fields import settings
from perfeds2.spec.line import flag_words
from perfeds2.spec.resolve import spec_from

STATES = st.fixed_dictionaries({knob.name: st.sampled_from(knob.values) for knob in KNOBS})


def test_every_knob_is_a_setting_and_begins_where_the_setting_does():
    keywords = {setting.keyword for setting in settings()}
    for knob in KNOBS:
        assert knob.start in knob.values
        if knob.name not in OURS:
            assert knob.name in keywords
    spec = spec_from(**settings_at(start_of(KNOBS), 30.0))
    plain = spec_from(schedule="first", algorithms=["PerFed-SYN", "PerFedS2", "PerFed-ASY"], seeds=[0])
    assert spec == plain  # the page starts from the usual defaults, with rounds that close on the first arrivals
    assert usual("bandwidth") == "equal_share"


@settings_of_hypothesis(max_examples=30)
@given(state=STATES)
def test_any_knobs_make_a_spec_that_its_command_line_makes_too(state):
    state = read_state(state)
    assert 1 <= state["quorum"] <= state["ues"]
    keywords = settings_at(state, 2.0)
    spec = spec_from(**keywords)
    words = flag_words(keywords)
    flags = {
        flag.removeprefix("--").replace("-", "_"): text for flag, text in zip(words[::2], words[1::2], strict=True)
    }
    assert spec_from(**flags) == spec
    assert spec.protocol.quorum == state["quorum"]
    assert spec.cell.cpu_hz == (state["slowest_hz"], state["fastest_hz"])


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"bandwidth": "evil.py:policy"}, "bandwidth cannot be 'evil.py:policy'"),
        ({"radio": "os:system"}, "radio cannot be"),
        ({"ues": 10**9}, "ues cannot be"),
        ({"ues": 20.5}, "ues cannot be"),
        ({"ues": True}, "ues cannot be"),
        ({"ues": [20]}, "ues cannot be"),
        ({"quorum": float("nan")}, "quorum cannot be"),
        ({"task": "digits"}, "'task' is not a control"),
        ({"__class__": 1}, "is not a control"),
        ([], "a table of controls"),
        (None, "a table of controls"),
    ],
)
def test_what_the_page_does_not_offer_is_refused(given, word):
    with pytest.raises(InputError, match=word):
        read_state(given)


def test_flags_set_the_knobs_and_what_is_no_knob_holds_for_everything():
    flags = {
        "ues": "30",
        "cpu_hz": "4e8,2e9",
        "horizon_s": "0.7",
        "seed": "77",
        "energy": "lte",
        "max_staleness": "25",
        "held_out": True,
    }
    knobs, fixed = knobs_at(flags)
    start = start_of(knobs)
    assert fixed == {"energy": "lte", "held_out": True}
    assert (start["ues"], start["quorum"], start["seed"], start["window_s"]) == (30, 8, 77, 0.7)
    assert (start["slowest_hz"], start["fastest_hz"], start["max_staleness"]) == (4e8, 2e9, 25)
    by_name = {knob.name: knob for knob in knobs}
    assert by_name["max_staleness"].values[-1] == "unbounded"
    assert list(by_name["window_s"].values) == sorted(by_name["window_s"].values)
    assert "--energy lte --held-out" in same_again(start, fixed)["shown_by"]
    assert read_state(start, knobs) == start
    with pytest.raises(InputError):
        read_state(start)  # the usual page does not offer them


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        (["--ues", "51"], f"the page has 2 to {MOST_UES} UEs"),
        (["--ues", "1"], "cannot be shown"),
        (["--port", "70000"], "--port must be from 0 to 65535"),
        (["--quorum", "21"], "--quorum must be from 1"),
        (["--export", "nowhere/talk.html"], "give a file in a folder that exists"),
        (["--energy", "nuclear"], "--energy must be"),
    ],
)
def test_a_command_that_cannot_be_is_one_sentence(flags, word, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, _, said = told("play", "--no-open", *flags)
    assert status == 2, said
    assert word in said
    assert list(tmp_path.iterdir()) == []


def test_the_command_that_is_shown_gives_the_numbers_that_are_shown(tmp_path, monkeypatch):
    from perfeds2.play.rounds import play_cells

    monkeypatch.chdir(tmp_path)
    state = read_state(
        {
            "ues": 9,
            "quorum": 4,
            "max_staleness": 1,
            "stale": "wait",
            "bandwidth_hz": 5e5,
            "radio": "umi",
            "window_s": 0.5,
        }
        | {"fastest_hz": 1e9, "layout": "uniform", "radius_m": 100, "seed": 3, "bandwidth": "between:0.5"}
    )
    fixed = {"energy": "lte"}
    _, *words = shlex.split(same_again(state, fixed)["shown_by"])
    status, _, said = told(*words, "--out", "again", "--quiet")
    assert status == 0, said
    rows = json.loads((tmp_path / "again/summary.json").read_text())["algorithms"]
    cells = play_cells(state, fixed)["cells"]
    assert [cell["name"] for cell in cells] == [row["algorithm"] for row in rows]
    for cell, row in zip(cells, rows, strict=True):
        assert cell["complete"]
        for name, value in cell["numbers"].items():
            assert value == row[name]["mean"], (cell["name"], name)
