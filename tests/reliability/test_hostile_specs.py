"""Is whatever a user writes into a spec, a --set or a flag either run or refused in one sentence, leaving nothing behind?"""

import itertools
import shutil
import tomllib
from typing import Any

import numpy as np
import pytest
import tomli_w
from command_line import perfeds2
from hostile_bytes import hostile, number, plain, refused_or_read, spoiled, text
from hypothesis import given
from hypothesis import strategies as st

from perfeds2.allocation.policies import POLICIES
from perfeds2.allocation.schedule import SCHEDULES
from perfeds2.errors import InputError
from perfeds2.runs import estimate
from perfeds2.spec import build
from perfeds2.spec.fields import SECTIONS, Spec, settings
from perfeds2.spec.methods import ALGORITHMS
from perfeds2.spec.resolve import put_text, read_toml, resolve
from perfeds2.studies import compare
from perfeds2.studies.compare import simulate_spec

PLACES = [(each.section, each.key) for each in settings()]
GOOD = resolve({}).to_toml().encode()
WORDS = ["digits", "unbounded", "wait", "deficit", "equal", "between:0.5", "between:nan", "exact", "PerFedS2", "0..3"]
WORDS += [
    "0..999999999",
    "9" * 5000,
    "1e999",
    "-0",
    "nan",
    "inf",
    "0x10",
    "١٢",
    "1_000",
    " 5 ",
    "[1,2]",
    "''",
    "%s",
    "\x1b[31m",
]
words = st.one_of(text, st.sampled_from(WORDS), number.map(str))


def is_a_spec(spec: object) -> None:
    """What is accepted can be written down, and read back as the same."""
    if spec is not None:
        assert isinstance(spec, Spec)
        assert resolve(tomllib.loads(spec.to_toml())) == spec


@st.composite
def nested(draw: st.DrawFn) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for section, key in draw(st.lists(st.sampled_from(PLACES), min_size=1, max_size=4)):
        values.setdefault(section, {})[key] = draw(st.one_of(words, number, plain))
    if draw(st.integers(0, 3)) == 0:
        values[draw(st.sampled_from([*SECTIONS, "more"]))] = draw(plain)
    return values


@given(values=nested())
@hostile
def test_nested_values_are_a_spec_or_refused(values):
    is_a_spec(refused_or_read(lambda: resolve(values), InputError))


@given(values=plain)
@hostile
def test_any_value_in_any_section_is_a_spec_or_refused(values):
    for section in SECTIONS:
        is_a_spec(refused_or_read(lambda section=section: resolve({section: values}), InputError))


def toml(values: dict[str, Any]) -> bytes:
    try:
        return tomli_w.dumps(values).encode()
    except (TypeError, ValueError, UnicodeEncodeError):  # what TOML has no word for
        return repr(values).encode("utf-8", "replace")


@given(content=st.one_of(spoiled(GOOD), nested().map(toml), st.just(b"a=" + b"[" * 5000), st.just(b"a.b" * 9000)))
@hostile
def test_a_spec_file_is_a_spec_or_refused(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "hostile.toml"
    path.write_bytes(content)
    is_a_spec(refused_or_read(lambda: resolve(read_toml(path)), InputError))


@given(st.lists(st.one_of(words, st.tuples(st.sampled_from(PLACES), words).map(lambda p: f"{'.'.join(p[0])}={p[1]}"))))
@hostile
def test_set_strings_are_a_spec_or_refused(assignments):
    def read() -> Spec:
        values: dict[str, Any] = {}
        for assignment in assignments:
            put_text(values, assignment)
        return resolve(values)

    is_a_spec(refused_or_read(read, InputError))


class ReachedError(Exception):
    """The command line was understood; nothing is to be run here."""


@pytest.fixture
def commands_stop_before_work(monkeypatch):
    def reached(*_: object, **__: object) -> None:
        raise ReachedError

    monkeypatch.setattr(build, "check", reached)
    monkeypatch.setattr(estimate, "refuse_days", reached)
    monkeypatch.setattr(compare, "refuse_days", reached)


numbers_of_flags = itertools.count()


@pytest.mark.usefixtures("commands_stop_before_work")
@given(
    command=st.sampled_from(["run", "compare", "simulate"]),
    flags=st.lists(
        st.tuples(
            st.sampled_from([*(each.name for each in settings()), "seed", "set", "spec", "resume", "nonsense"]), words
        ),
        max_size=5,
    ),
)
@hostile
def test_flags_are_understood_or_refused_and_leave_nothing_behind(tmp_path_factory, command, flags):
    folder = tmp_path_factory.getbasetemp() / f"flags-{next(numbers_of_flags)}"
    folder.mkdir()
    arguments = [word for flag, value in flags if "\0" not in value for word in (f"--{flag}", value)]
    status, said = perfeds2(command, *arguments, "--out", folder / "out")
    assert status == 2 or "ReachedError" in said, said
    if status == 2:
        assert said.startswith("perfeds2")
        assert said.strip().count("\n") == 0, said
    assert list(folder.iterdir()) == []  # the work, which comes next, would have made it
    shutil.rmtree(folder)


anywhere = st.one_of(st.floats(1e-3, 1e3), st.sampled_from([1e-300, 1e-30, 1e-9, 1.0, 1e12, 1e30, 1e300]))
physical = st.fixed_dictionaries(
    {"ues": st.integers(1, 4)},
    optional={
        "layout": st.sampled_from(["disc", "uniform", "equal"]),
        **dict.fromkeys(("radius_m", "bandwidth_hz", "power_w", "path_loss_exponent", "fading_scale"), anywhere),
        **dict.fromkeys(("cycles_per_sample", "payload_bits", "downlink_s"), anywhere),
        "noise_dbm_per_hz": st.sampled_from([-1e308, -1e4, -174.0, 0.0, 1e4, 1e308]),
        "cpu_hz": st.tuples(anywhere, anywhere),
        "distance_m": st.lists(st.sampled_from([0.0, 1e-300, 1.0, 200.0, 1e300]), min_size=1, max_size=4),
    },
)
rules = st.fixed_dictionaries(
    {},
    optional={
        "quorum": st.integers(1, 4),
        "max_staleness": st.one_of(st.integers(0, 3), st.just("unbounded")),
        "stale": st.sampled_from(["restart", "wait", "ignore"]),
        "schedule": st.sampled_from(
            [*(name for name in SCHEDULES if ":" not in name), "chen:0.1", "power_of_choice:5"]
        ),
        "unplanned": st.sampled_from(["work", "rest"]),
        "tiers": st.integers(1, 5),
        "shares": st.one_of(st.sampled_from(["equal", "distance"]), st.lists(anywhere, min_size=1, max_size=4)),
        "bandwidth": st.sampled_from(
            [
                *(name for name in POLICIES if ":" not in name),
                "between:0",
                "between:1",
                "least_energy:1",
                "time_and_energy:0.1",
            ]
        ),
    },
)


@given(cell=physical, protocol=rules, mode=st.sampled_from(list(ALGORITHMS)))
@hostile
def test_any_cell_has_a_timeline_or_is_refused(cell, protocol, mode):
    def play() -> Any:
        run = {"algorithms": [mode], "seeds": [0], "rounds": 3}
        spec = resolve({"task": {"name": "synthetic"}, "cell": cell, "protocol": protocol, "run": run})
        return simulate_spec(spec, "simulate", None)

    with np.errstate(all="ignore"):
        played = refused_or_read(play, InputError)
    if played is not None:
        (timeline,) = played.timelines.values()  # type: ignore[attr-defined]
        assert timeline.rounds <= 3
        assert np.isfinite(timeline.time_s).all()


def test_paths_of_a_spec_reach_only_what_the_user_names():
    """A spec says where data are read, never where anything is written: there is no such setting."""
    writable = {"out", "path", "folder", "file", "resume", "url", "command", "import", "module"}
    assert not writable & {key for _, key in PLACES}
    with pytest.raises(InputError, match=r"run\.out is not a setting"):
        resolve({"run": {"out": "/etc"}})
