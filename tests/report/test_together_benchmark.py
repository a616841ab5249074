"""Claims about several folders on one page: what is paired, which differences are listed, and what must not be compared."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from benchmarks.together import (
    cautions,
    differences,
    differences_table,
    differing,
    have_one_clock,
    load_members,
    main,
    paired_styles,
    pairs,
    together,
    write_together,
)
from perfeds2.errors import InputError

TWO = [("FedAvgS2", "FedAvg", "S2"), ("PerFedS2", "PerFed", "S2")]
SPEC = '[task]\nname = "digits"\n[cell]\nues = 12\n[protocol]\nquorum = {}\n[run]\nhorizon_s = 60.0\n'


@pytest.fixture(scope="module")
def folders(make_run, tmp_path_factory) -> list[Path]:
    """Two runs that differ in A, and in one more algorithm. Read them, do not write to them."""
    home = tmp_path_factory.mktemp("folders")
    made = [
        make_run(algorithms=TWO, spec=SPEC.format(5)),
        make_run(algorithms=[*TWO, ("PerFed-SYN", "PerFed", "SYN")], spec=SPEC.format(3)),
    ]
    summary = json.loads((made[1] / "summary.json").read_text())
    for row in summary["algorithms"]:
        values = [value - 0.01 * place - 0.05 for place, value in enumerate(row["test_accuracy_personal"]["values"])]
        row["test_accuracy_personal"] = {"mean": float(np.mean(values)), "low": None, "high": None, "values": values}
    (made[1] / "summary.json").write_text(json.dumps(summary))
    return [shutil.copytree(folder, home / name) for folder, name in zip(made, "ab", strict=True)]


def final(folder: Path, name: str) -> list[float]:
    rows = json.loads((folder / "summary.json").read_text())["algorithms"]
    return next(row["test_accuracy_personal"]["values"] for row in rows if row["algorithm"] == name)


def test_all_lines_are_in_one_run_named_by_folder_and_together_by_algorithm(folders):
    merged = together(load_members(folders))
    names = [each.name for each in merged.algorithms]
    assert names == ["FedAvgS2 (a)", "FedAvgS2 (b)", "PerFedS2 (a)", "PerFedS2 (b)", "PerFed-SYN (b)"]
    assert merged.metrics is not None
    assert set(merged.metrics["algorithm"]) == set(names)
    assert {name for name, _ in merged.timelines} == set(names)


def test_differences_are_of_the_same_seeds_with_students_interval(folders):
    found = differences(load_members(folders))
    assert [each.name for each in found] == ["FedAvgS2: b − a", "PerFedS2: b − a"]
    oracle = [stats.ttest_rel(final(folders[1], name), final(folders[0], name)) for name, _, _ in TWO]
    for each, test in zip(found, oracle, strict=True):
        ends = test.confidence_interval(0.95)
        assert each.seeds == 3
        assert (each.accuracy["low"], each.accuracy["high"]) == pytest.approx((ends.low, ends.high))
    smaller, larger = sorted(test.pvalue for test in oracle)
    assert sorted(each.p or 0 for each in found) == pytest.approx([min(2 * smaller, 1), max(2 * smaller, larger)])


def test_a_difference_whose_interval_leaves_out_nothing_is_bold(folders):
    members = load_members(folders)
    table = differences_table(together(members), differences(members))
    assert [str(row[0]) for row in table.rows] == ["FedAvgS2: b − a", "PerFedS2: b − a"]
    for each, row in zip(differences(members), table.rows, strict=True):
        cell = row[1]
        assert not isinstance(cell, str)
        sure = each.accuracy["high"] < 0 or each.accuracy["low"] > 0
        assert next(span.kind for span in cell) == ("best" if sure else "")  # type: ignore[union-attr]


def test_seeds_that_only_one_has_are_left_out(folders, make_run, tmp_path):
    other = shutil.copytree(make_run(algorithms=TWO, seeds=(1, 2, 5), spec=SPEC.format(5)), tmp_path / "c")
    members = load_members([folders[0], other])
    found = differences(members)
    assert [each.seeds for each in found] == [2, 2]
    expected = np.array(final(other, "PerFedS2"))[:2] - np.array(final(folders[0], "PerFedS2"))[1:]
    assert found[1].accuracy["values"] == pytest.approx(expected.tolist())
    assert found[1].accuracy["low"] is None  # two seeds give no interval
    assert found[1].p is None
    assert any(said.startswith("The seeds differ: a has 0, 1, 2; c has 1, 2, 5.") for said in cautions(members))
    page = write_together([folders[0], other], tmp_path / "out")[0].read_text()
    assert (
        "<h1>2 runs side by side, with different tasks or seeds.</h1>" in page
    )  # no one is the best by the luck of seeds


def test_settings_that_differ_are_listed_and_a_policy_keeps_the_clock(folders):
    members = load_members(folders)
    assert differing(members) == {"protocol.quorum": ["5", "3"]}
    assert have_one_clock(members)
    assert cautions(members) == []
    assert all(each.seconds is not None for each in differences(members))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (("ues = 12", "ues = 12\nradius_m = 9.0"), "The cells differ (cell.radius_m): times are not comparable"),
        (("digits", "mnist"), "The tasks differ (task.name)"),
    ],
)
def test_another_cell_or_task_makes_times_incomparable(folders, tmp_path, changed, said):
    other = shutil.copytree(folders[1], tmp_path / "other")
    (other / "spec.toml").write_text((other / "spec.toml").read_text().replace(*changed))
    members = load_members([folders[0], other])
    assert not have_one_clock(members)
    assert any(each.startswith(said) for each in cautions(members))
    assert all(each.seconds is None for each in differences(members))
    page = write_together([folders[0], other], tmp_path / "out")[0].read_text()
    assert said in page
    assert "reached" not in re.search("<h1>(.*?)</h1>", page)[1]  # type: ignore[index]  # no time in the headline


def test_a_real_clock_is_not_a_simulated_one(folders, make_run, tmp_path):
    real = shutil.copytree(make_run(algorithms=TWO, command="federate", spec=SPEC.format(5)), tmp_path / "real")
    members = load_members([folders[0], real])
    assert "The clock of real is real, that of the others simulated: their times are not comparable." in cautions(
        members
    )
    assert not have_one_clock(members)


def test_folders_of_one_line_each_are_compared_whatever_it_is(make_run, tmp_path):
    one, two = (shutil.copytree(make_run(algorithms=[each], spec=SPEC.format(5)), tmp_path / each[0]) for each in TWO)
    assert [(a.name, b.name) for a, b in pairs(load_members([one, two]))] == [
        ("FedAvgS2 (FedAvgS2)", "PerFedS2 (PerFedS2)")
    ]


def test_colour_is_the_algorithm_and_dash_the_folder():
    styles = paired_styles([(f"{a} ({f})", a, f) for a in ("X", "Y", "PerFedS2", "PerFed-SYN") for f in "abc"])
    assert len({(style.colour, style.dash_px) for style in styles.values()}) == 12
    assert len({styles[f"X ({f})"].colour for f in "abc"}) == 1
    assert len({styles[f"{a} (b)"].dash_px for a in ("X", "Y", "PerFedS2")}) == 1
    alone = paired_styles([(f"X ({f})", "X", f) for f in "abc"]).values()  # of one algorithm both are the folder's
    assert len({style.colour for style in alone}) == len({style.dash_px for style in alone}) == 3


@pytest.mark.slow
def test_the_command_writes_page_figures_and_tables(folders, tmp_path, capsys):
    main([*map(str, folders), "--out", str(tmp_path / "ab"), "--paper", "--x", "rounds"])
    names = {path.name for path in (tmp_path / "ab").iterdir()}
    assert {"report.html", "table.tex", "differences.tex", "test-accuracy-personal.pdf", "activity.png"} <= names
    assert capsys.readouterr().out.splitlines()[0] == str(tmp_path / "ab" / "report.html")
    page = (tmp_path / "ab" / "report.html").read_text()
    assert "Accuracy and loss over rounds" in page
    assert '<th scope="row">protocol.quorum</th><td class="text wraps">5</td><td class="text wraps">3</td>' in page
    assert "PerFedS2: b $-$ a &" in (tmp_path / "ab" / "differences.tex").read_text()
    again = write_together(folders, tmp_path / "ab", "rounds")[0].read_text()
    assert again == page  # no clock, no chance


@pytest.mark.parametrize(
    ("others", "said"),
    [
        (lambda both: [both[0], both[0]], "a folder is given twice"),
        (lambda both: [*both, "--out", both[1]], "is one of the folders to compare; give another."),
        (lambda both: [both[0], both[0].parent], "holds no finished run (no summary.json)"),
    ],
)
def test_what_cannot_be_compared_is_refused(folders, others, said):
    with pytest.raises(SystemExit) as refused:
        main(list(map(str, others(folders))))
    assert said in str(refused.value)


def test_what_has_no_common_axis_is_refused(folders, tmp_path):
    other = shutil.copytree(folders[1], tmp_path / "other")
    summary = json.loads((other / "summary.json").read_text())
    (other / "summary.json").write_text(json.dumps(summary | {"metric": "r2"}))
    with pytest.raises(InputError, match="accuracy and R², which have no common axis"):
        together(load_members([folders[0], other]))
