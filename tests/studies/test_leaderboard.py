"""Is a suite's benchmark always the same, and can only honest files enter its leaderboard?"""

import json
from pathlib import Path
from typing import Any

import pytest
from arena_by_formula import THREE, run

from benchmarks import leaderboard as suite
from benchmarks.leaderboard import fingerprint, main, merge_submissions, plan_suite, read_submission, write_submissions
from perfeds2.errors import InputError
from perfeds2.report.arena import rankings, write_arena
from perfeds2.report.read_studies import load_arena
from perfeds2.report.tables import Span
from perfeds2.studies.arena_plan import read_plan

FROZEN = {
    ("digits", "paper"): "677c83f556ca",
    ("digits", "urban"): "773e982b3cf6",
    ("digits", "phones"): "3e7cdfd04364",
    ("mnist", "paper"): "05f6ce4be2ce",
    ("mnist", "urban"): "f241a26eeece",
    ("mnist", "phones"): "3d8e38a90775",
    ("cifar100", "paper"): "ef9fe2978b52",
    ("cifar100", "urban"): "be16f2ace29a",
    ("cifar100", "phones"): "1cc7fd42b899",
}


def test_a_suite_never_changes():
    """If this fails, a default or a fleet changed: set the old one in suite_v1.toml. Never edit the hashes."""
    plan = plan_suite("v1", {}, methods=["PerFedS2"])
    assert {(bout.task, bout.cell): fingerprint(plan, bout)[:12] for bout in plan.bouts} == FROZEN
    assert plan.seeds == tuple(range(10))


def test_the_fingerprint_depends_on_settings_and_not_on_methods_or_folders():
    plan = plan_suite("v1", {}, tasks=["digits"], methods=["PerFedS2"])
    other = plan_suite("v1", {"task": {"data_dir": "elsewhere"}}, tasks=["digits"], methods=["FedBuff", "Ditto"])
    assert fingerprint(plan, plan.bouts[0]) == fingerprint(other, other.bouts[0])
    changed = suite.make_arena({"cell": {"ues": 20, "radius_m": 201.0}, "run": {"seeds": 10}}, methods=["PerFedS2"])
    assert fingerprint(changed, changed.bouts[0]) != fingerprint(plan, plan.bouts[0])


@pytest.mark.parametrize(
    ("values", "asked", "said"),
    [
        ({"cell": {"ues": 5}}, {}, "--suite v1 fixes all settings"),
        ({}, {"tasks": ["shakespeare"]}, "has only digits, mnist, cifar100"),
    ],
)
def test_settings_of_a_suite_are_fixed(values, asked, said):
    with pytest.raises(InputError, match=said):
        plan_suite("v1", values, **asked)


def test_the_command_refuses_an_unknown_suite(tmp_path):
    with pytest.raises(SystemExit, match="--suite v2 is not known"):
        main(["run", str(tmp_path / "out"), "--suite", "v2"])


@pytest.fixture(scope="module")
def submitted(tmp_path_factory):
    """A suite's digits part without training, and its three submissions."""
    place = tmp_path_factory.mktemp("suite")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(place / "config"))
        run(place / "arena", plan_suite("v1", {}, tasks=["digits"], methods=THREE))
        write_submissions(read_plan(place / "arena"), place / "arena", place / "given")
        yield place


@pytest.mark.slow
def test_merged_submissions_are_the_arena_that_they_came_from(submitted, tmp_path):
    merge_submissions(submitted / "given", tmp_path / "out")
    one, other = (json.loads((path / "arena.json").read_text()) for path in (submitted / "arena", tmp_path / "out"))
    for bout, same in zip(one["bouts"], other["bouts"], strict=True):
        by_name: dict[str, Any] = {each["method"]: each for each in same["methods"]}
        for each in bout["methods"]:
            assert by_name[each["method"]]["seconds_to_target"] == each["seconds_to_target"]
            assert by_name[each["method"]]["accuracy"]["values"] == pytest.approx(each["accuracy"]["values"], 1e-6)
            assert by_name[each["method"]]["settings"] == each["settings"]
        found, again = ({(p["better"], p["worse"]): p["p"] for p in b["compared"]["accuracy"]} for b in (bout, same))
        assert again == pytest.approx(found, 1e-3)
    assert (submitted / "config" / "perfeds2" / "signing.key").stat().st_mode & 0o777 == 0o600


@pytest.mark.slow
def test_the_leaderboard_ranks_methods_and_names_who_signed(submitted, tmp_path):
    main(["merge", str(submitted / "given"), "--out", str(tmp_path / "out")])
    page = (tmp_path / "out" / "report.html").read_text()
    key = read_submission(submitted / "given" / "Ditto.json").key
    assert key[:16] in page
    ranks = page[page.index("Which method is best on digits?") :]
    assert ranks.index("PerFedS2") < ranks.index("FedBuff") < ranks.index("Ditto")
    assert "suite v1" in page
    assert len(load_arena(tmp_path / "out").bouts) == 3


@pytest.mark.slow
def test_one_file_takes_only_ones_own_method(submitted, tmp_path):
    plan = read_plan(submitted / "arena")
    with pytest.raises(InputError, match="there are 3 methods; give a folder"):
        write_submissions(plan, submitted / "arena", tmp_path / "one.json")


def forged(path: Path, change, tmp_path: Path, *, signed: bool = True) -> Path:
    """A folder with one changed submission."""
    values = json.loads(path.read_text())
    change(values)
    if signed:
        values.pop("signature", None)
        values.pop("key", None)
        values = suite._signed(values, suite._signing_key())
    (tmp_path / "forged.json").write_text(json.dumps(values))
    return tmp_path


def of_row(name: str, value: object):
    def change(values):
        values["bouts"][0]["columns"].setdefault(name, [1.0] * 10)[3] = value

    return change


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "signed", "said"),
    [
        (of_row("accuracy", 0.99), False, "was changed after it was signed"),
        (lambda values: values.update(key="00" * 32), False, "was changed after it was signed"),
        (lambda values: values["bouts"][0].update(fingerprint="0" * 64), True, "run with other settings"),
        (lambda values: values["bouts"][0]["columns"]["seed"].pop(), True, "exactly the measures"),
        (lambda values: values["bouts"][0]["columns"]["jain"].append(1.0), True, "exactly the measures"),
        (lambda values: values["bouts"][0]["columns"].pop("jain"), True, "exactly the measures"),
        (of_row("seed", 4), True, "exactly the seeds"),
        (of_row("accuracy", 1.2), True, "1.2 as accuracy, which is impossible"),
        (of_row("accuracy", None), True, "None as accuracy, which is impossible"),
        (of_row("seconds_to_target", 31.0), True, "31.0 as seconds_to_target, which is impossible"),
        (of_row("seconds_to_target", -1.0), True, "-1.0 as seconds_to_target, which is impossible"),
        (of_row("jain", float("nan")), True, "not a submission"),
        (of_row("accuracy", "1"), True, "not a submission"),
        (of_row("extra", 1.0), True, "exactly the measures"),
        (lambda values: values["bouts"].append(values["bouts"][0]), True, "twice"),
        (lambda values: values["bouts"][0].update(cell="moon"), True, "does not have it"),
        (lambda values: values.update(method="x" * 101), True, "not a submission"),
        (lambda values: values.update(method="a\x1b[31m"), True, "not printable"),
        (lambda values: values.update(suite="v0"), True, "--suite v0 is not known"),
        (lambda values: values.update(more=1), True, "not a submission"),
    ],
)
def test_no_forged_submission_enters(submitted, tmp_path, change, signed, said):
    folder = forged(submitted / "given" / "Ditto.json", change, tmp_path, signed=signed)
    with pytest.raises(InputError) as refused:
        merge_submissions(folder, tmp_path / "out")
    assert said in str(refused.value)
    assert str(folder) in str(refused.value)  # the file is named
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("text", ["", "[]", "{" * 100_000, '{"suite": ' * 5000, "\x00", "1e999"])
def test_a_file_that_is_no_submission_is_refused(tmp_path, text):
    (tmp_path / "bad.json").write_text(text)
    with pytest.raises(InputError, match="is not a submission"):
        merge_submissions(tmp_path, tmp_path / "out")


def test_large_files_are_not_read(tmp_path, monkeypatch):
    (tmp_path / "large.json").write_text("{}" + " " * suite.MOST_BYTES)
    monkeypatch.setattr(json, "loads", None)
    with pytest.raises(InputError, match="is larger than"):
        merge_submissions(tmp_path, tmp_path / "out")


def test_two_files_of_one_method_are_refused(submitted, tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.json").write_bytes((submitted / "given" / "Ditto.json").read_bytes())
    with pytest.raises(InputError, match="both have Ditto"):
        merge_submissions(tmp_path, tmp_path / "out")


def test_names_on_the_page_are_text(submitted, tmp_path):
    folder = forged(submitted / "given" / "Ditto.json", lambda v: v.update(method="<script>alert(1)"), tmp_path)
    merge_submissions(folder, tmp_path / "out")
    write_arena(tmp_path / "out")
    assert "<script>alert(1)" not in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.slow
def test_the_published_results_are_valid(tmp_path):
    """docs/reports/leaderboard.md has the ranks that the signed files give."""
    root = Path(__file__).parents[2]
    merge_submissions(root / "benchmarks" / "suite_v1", tmp_path)
    said = (root / "docs" / "reports" / "leaderboard.md").read_text()
    rows = [row for _, table in rankings(load_arena(tmp_path)) for row in table.rows]
    for name, *ranks in rows:
        shown = [f"**{each.text}**" if each.kind else each.text for each in ranks if isinstance(each, Span)]
        assert f"| {name} | {' | '.join(shown)} |" in said
