"""Does a spec mean the same from flags, from a file and back, and are its errors sentences?"""

import pytest

from perfeds2.errors import InputError
from perfeds2.learning.methods import LISTED
from perfeds2.spec.fields import settings
from perfeds2.spec.methods import ALGORITHMS
from perfeds2.spec.resolve import put_text, read_toml, resolve
from perfeds2.spec.rounds import protocol_of


def test_the_nine_algorithms_have_the_papers_names():
    assert {name for name in ALGORITHMS if name not in LISTED and "Moreau" not in name} == {
        *("FedAvg-SYN", "FedProx-SYN", "PerFed-SYN"),
        *("FedAvgS2", "FedProxS2", "PerFedS2"),
        *("FedAvg-ASY", "FedProx-ASY", "PerFed-ASY"),
    }


def test_fedprox_is_compared_where_it_differs_from_fedavg_or_where_it_is_named():
    six = {f"{objective}{mode}" for objective in ("FedAvg", "PerFed") for mode in ("-SYN", "S2", "-ASY")}
    fedprox = {"FedProx-SYN", "FedProxS2", "FedProx-ASY"}
    assert {one.text for one in resolve({}).algorithms} == six
    assert {one.text for one in resolve({"learning": {"local_steps": "5"}}).algorithms} == six | fedprox
    each = {"FedProxS2": {"local_steps": "5"}, "PerFedS2": {"local_steps": 2}}
    assert {one.text for one in resolve({"methods": each}).algorithms} == six | {"FedProxS2"}
    assert [one.text for one in resolve({"run": {"algorithms": "FedProxS2"}}).algorithms] == ["FedProxS2"]


def test_a_resolved_spec_written_and_read_is_the_same(tmp_path):
    spec = resolve({"cell": {"ues": 7}, "run": {"seeds": [3, 1], "horizon_s": 2.5}, "protocol": {"shares": "distance"}})
    path = tmp_path / "spec.toml"
    path.write_text(spec.to_toml())
    assert resolve(read_toml(path)) == spec
    assert resolve(read_toml(path)).to_toml() == spec.to_toml()


def test_a_merge_is_written_down_by_its_name_for_all_and_for_one(tmp_path):
    spec = resolve({"learning": {"merge": "FedAdam"}, "methods": {"PerFedS2": {"merge": "FedBuff"}}})
    path = tmp_path / "spec.toml"
    path.write_text(spec.to_toml())
    assert spec.values()["methods"] == {"PerFedS2": {"merge": "FedBuff"}}
    assert spec.values()["learning"]["merge"] == "FedAdam"
    assert resolve(read_toml(path)) == spec


def test_a_run_that_names_no_merge_is_written_as_it_was_before_there_were_any():
    assert resolve({}).values()["learning"].keys() == {"alpha", "beta", "batch", "local_steps"}


def test_a_merge_that_is_not_known_is_a_sentence():
    with pytest.raises(InputError, match=r"--merge 'FedBuf' .*did you mean FedBuff"):
        resolve({"learning": {"merge": "FedBuf"}})


def test_modes_are_one_protocol():
    spec = resolve({"cell": {"ues": 12}, "protocol": {"quorum": 3, "max_staleness": 4, "stale": "wait"}})
    assert protocol_of(spec, "SYN").quorum == 12
    assert protocol_of(spec, "ASY").quorum == 1
    assert protocol_of(spec, "ASY").max_staleness is None
    assert (protocol_of(spec, "S2").quorum, protocol_of(spec, "S2").max_staleness) == (3, 4)


def test_the_quorum_defaults_to_a_quarter():
    assert resolve({}).protocol.quorum == 5
    assert resolve({"cell": {"ues": 188}}).protocol.quorum == 47
    assert resolve({"cell": {"ues": 7}}).protocol.quorum == 2  # the nearest
    assert resolve({"cell": {"ues": 1}}).protocol.quorum == 1


@pytest.mark.parametrize(
    ("assignments", "sentence"),
    [
        (["protocol.quorum=21"], "--quorum must be from 1 to the number of UEs, 20 (--ues), got 21."),
        (["protocol.quorum=0"], "--quorum must be at least 1, got 0."),
        (["protocol.max_staleness=-1"], "--max-staleness must be at least 0 or 'unbounded', got -1."),
        (["cell.ues=0"], "--ues must be at least 1, got 0."),
        (["cell.bandwidth_hz=-5"], "--bandwidth-hz must be greater than 0, got -5."),
        (["learning.alpha=nan"], "--alpha must be a finite number, got nan."),
        (["learning.alpha=atuo"], "--alpha must be a finite number, got 'atuo'."),
        (["learning.clip=0"], "--clip must be greater than 0, got 0."),
        (["PerFed.hessian=anneal"], "PerFed.hessian must be 'exact', 'fo' or 'hf', got 'anneal'."),
        (["cell.noise_dbm_per_hz=nan"], "--noise-dbm-per-hz must be a finite number, got nan."),
        (["cell.cpu_hz=[1e9, inf]"], "--cpu-hz must be a finite number, got inf."),
        (["run.horizon_s=nan"], "--horizon-s must be a finite number, got nan."),
        (
            ["task.name=digit"],
            "--task 'digit' is not known; did you mean digits? or your own as FILE.csv, FILE.npz, a folder of npz files or FILE.py:NAME "
            "(docs/how-to/data.md converts other data sets).",
        ),
        (["run.algorithms=['PerFed2']"], "did you mean PerFedS2?"),
        (["protocol.stale=sometimes"], "--stale must be 'restart', 'wait' or 'ignore', got 'sometimes'."),
        (["protocol.bandwidth=equal_finsh"], "did you mean equal_finish?"),
        (
            ["protocol.bandwidth=between:2"],
            "--bandwidth 'between:2' needs a number as in between:0.5 (theta must be from 0",
        ),
        (["cell.bandwith_hz=1"], "cell.bandwith_hz is not a setting; did you mean bandwidth_hz?"),
        (["run.rounds=5", "run.horizon_s=5"], "give one of them"),
        (["cell.distance_m=[1, 2]"], "has 2 distances, but there are 20 UEs"),
        (["nonsense"], "--set takes section.key=value or Method.key=value, got 'nonsense'."),
    ],
)
def test_bad_values_get_one_sentence_with_flag_value_and_range(assignments, sentence):
    def resolve_all():
        values = {}
        for assignment in assignments:
            put_text(values, assignment)
        resolve(values)

    with pytest.raises(InputError) as raised:
        resolve_all()
    assert sentence in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_corrupt_spec_file_gets_one_sentence(tmp_path):
    path = tmp_path / "spec.toml"
    for content in (b"[cell", b"\xff\xfe\x00", b"cell = 3\n"):
        path.write_bytes(content)
        with pytest.raises(InputError):
            resolve(read_toml(path))
    with pytest.raises(InputError, match="does not exist"):
        read_toml(tmp_path / "none.toml")


WRONG = [
    [],
    {},
    {"a": 1},
    "x",
    "",
    -1,
    float("inf"),
    True,
    [1, 2, 3],
    ["a"],
    3.7,
    object(),
    "a:b",
    ":",
    "python:x",
    b"x",
]


@pytest.mark.parametrize("each", settings(), ids=lambda each: each.keyword)
def test_whatever_is_wrong_is_said_in_our_words(each):
    for value in WRONG:
        said = refusal(each, value)
        assert said is None or said.startswith(("--", each.section)), said
        assert not any(word in (said or "") for word in ("Input should", "valid ", "pydantic", "something else", "\n"))


def refusal(each, value):
    try:
        resolve({each.section: {each.key: value}})
    except InputError as error:
        return str(error)
    return None
