"""Claims about the page as a file."""

import json
import pkgutil
import re
import shutil
import subprocess
import sys
from pathlib import Path

import plotly.graph_objects as go
import pytest
from command_line import told
from made_up_runs import ALGORITHMS, charts_of
from plotly.offline import get_plotlyjs

import perfeds2.report
from perfeds2.report.document import packed_element
from perfeds2.report.run import write_report

PANELS = {"test-accuracy-personal", "train-loss-personal", "test-accuracy", "train-loss"}
TIMING = {"activity-0", "activity-1", "activity-2", "staleness", "shares"}
PANELS |= TIMING | {"ues"}


def page_of(folder: Path, tmp_path: Path) -> str:
    """The page of a copy, so that folders shared between tests stay as they are."""
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy, dirs_exist_ok=True)
    return write_report(str(copy)).read_text()


@pytest.fixture(scope="module")
def page(compared: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of the comparison."""
    return page_of(compared, tmp_path_factory.mktemp("page"))


@pytest.mark.slow
def test_the_page_has_every_panel_and_every_chart_is_one_plotly_knows(page: str):
    charts = charts_of(page)
    assert charts.keys() == PANELS
    for name, figure in charts.items():
        assert f'id="{name}"' in page
        go.Figure(figure)  # refuses a property that does not exist


@pytest.mark.slow
def test_the_page_holds_plotly_once_little_else_and_loads_nothing(page: str):
    element = packed_element("library", get_plotlyjs())
    assert page.count(element) == 1
    rest = page.replace(element, "")
    assert len(page) < 2_000_000
    assert not re.search(r"https?:|src=|@import|url\(", rest)


@pytest.mark.slow
def test_the_same_folder_gives_the_same_page(page: str, compared: Path, tmp_path: Path):
    assert page_of(compared, tmp_path) == page


def test_the_table_has_a_row_per_algorithm_and_marks_what_went_wrong(page: str):
    learned, rounds = re.findall(r"<table.*?</table>", page, re.DOTALL)[:2]
    assert [table.count('<th scope="row">') for table in (learned, rounds)] == [9, 9]
    assert page.count("diverged in 1 of 3 seeds</span>") == 1
    assert re.search(r"<b>\d+\.\d</b><span class=\"half\"> ± \d+\.\d</span>", page)


def test_the_headline_and_the_table_go_by_the_cost_that_is_asked_for(make_run):
    run = make_run(seeds=(0,))
    summary = json.loads((run / "summary.json").read_text())
    for rounds, row in enumerate(summary["algorithms"], 30):
        row["rounds_to_target"] = {"values": [rounds], "reached": 1, "median": rounds}
    (run / "summary.json").write_text(json.dumps(summary))
    page = write_report(run, "rounds").read_text()
    assert "FedAvg-SYN reached 80 % personalised accuracy with fewest rounds, after 30 rounds." in page
    assert "Rounds to 80&nbsp;%" in page
    assert "Simulated time (s)" in str(charts_of(page))  # of what UEs do


def test_starved_ues_are_marked(make_run, tmp_path: Path):
    folder = make_run(algorithms=[("PerFedS2", "PerFed", "S2")], seeds=[0])
    summary = json.loads((folder / "summary.json").read_text())
    summary["algorithms"][0]["starved"] = {"mean": 3.0, "low": None, "high": None, "values": [3.0]}
    (folder / "summary.json").write_text(json.dumps(summary))
    page = page_of(folder, tmp_path)
    assert "3 UEs never merged" in page
    assert "Some UEs were never merged with PerFedS2." in page


def test_only_simulated_time_is_called_so(page: str, make_run, tmp_path: Path):
    federated = page_of(make_run(command="federate", algorithms=ALGORITHMS[:1], seeds=[0]), tmp_path)
    for text, title in ((page, "Simulated time (s)"), (federated, "Time (s)")):
        titles = {figure["layout"]["xaxis"]["title"]["text"] for figure in charts_of(text).values()}
        assert {name for name in titles if "ime (s)" in name} == {title}
        assert ("simulated" in text.split("<script")[0].lower()) == (title == "Simulated time (s)")


def test_a_simulation_has_no_learning_panels(make_run, tmp_path: Path):
    page = page_of(make_run(command="simulate", seeds=[0]), tmp_path)
    assert charts_of(page).keys() == TIMING
    assert "accuracy" not in page


def test_a_single_unnamed_timeline_is_the_algorithms(make_run, tmp_path: Path):
    folder = make_run(command="simulate", seeds=[0], algorithms=[("PerFedS2", "PerFed", "S2")])
    page = page_of(folder, tmp_path)
    assert charts_of(page).keys() == {"activity-0", "staleness", "shares"}
    assert "PerFedS2 merged" in page


def test_a_folder_without_timelines_still_has_its_curves(compared: Path, tmp_path: Path):
    shutil.copytree(compared, tmp_path / "copy")
    (tmp_path / "copy" / "timeline.npz").unlink()
    assert charts_of(write_report(tmp_path / "copy").read_text()).keys() == PANELS - TIMING


def test_one_seed_draws_no_band(make_run, tmp_path: Path):
    folder = make_run(algorithms=[("PerFedS2", "PerFed", "S2")], seeds=[0])
    figure = charts_of(page_of(folder, tmp_path))["train-loss"]
    assert len(figure["data"]) == 1


def test_bands_stay_where_an_accuracy_can_be(page: str):
    figure = charts_of(page)["test-accuracy-personal"]
    values = [value for trace in figure["data"] for value in trace["y"]]
    assert 0 <= min(values) < max(values) <= 100


@pytest.mark.slow
def test_many_ues_stay_few_rows(make_run, tmp_path: Path):
    folder = make_run(algorithms=[("PerFedS2", "PerFed", "S2")], seeds=[0], ues=60, command="simulate")
    page = page_of(folder, tmp_path)
    figure = charts_of(page)["activity-0"]
    assert max(max(trace["y"]) for trace in figure["data"]) == 29
    assert "UEs 0 to 29 of 60" in page


def test_the_page_shows_the_spec_and_how_to_run_it_again(page: str):
    assert "task = &quot;digits&quot;" in page
    assert "perfeds2 compare --spec spec.toml --out again" in page


def test_no_name_or_text_becomes_markup(make_run, tmp_path: Path):
    evil = "</script></pre><script>alert(1)</script>"
    folder = make_run(algorithms=[(evil, evil, "S2")], seeds=[0], spec=evil, notes=[evil])
    page = page_of(folder, tmp_path)
    assert "<script>alert" not in page
    assert page.count("</script>") == 3  # the data, plotly, ours


def test_two_seeds_have_no_interval_anywhere_and_the_page_says_why(make_run, tmp_path: Path):
    page = page_of(make_run(seeds=[0, 1]), tmp_path)
    assert "±" not in page
    assert page.count("Fewer than three seeds give no interval.") == 2  # of the curves, and of the table
    assert "Fewer than three seeds: a difference may be chance." in page
    assert len(charts_of(page)["train-loss"]["data"]) == 9


@pytest.mark.slow
def test_own_algorithms_have_lines_of_their_own(make_run, tmp_path: Path):
    own = [(f"Mine {number}", "PerFed", "custom") for number in range(3)]
    page = page_of(make_run(algorithms=[*ALGORITHMS, *own], seeds=[0]), tmp_path)
    lines = [tuple(trace["line"].items()) for trace in charts_of(page)["train-loss"]["data"]]
    assert len(lines) == len(set(lines)) == 12
    assert "dash-dotted another method" in page
    samples = re.findall(r'stroke="(#\w+)" stroke-width="2.5" stroke-dasharray="([\d ]*)"', page)
    assert samples[:12] == samples[12:24] == samples[-12:]  # in the legends of curves and of UEs, and in the table
    assert len(set(samples[:12])) == 12


MODULES = sorted(each.name for each in pkgutil.iter_modules(perfeds2.report.__path__))


@pytest.mark.slow
def test_the_report_needs_neither_jax_nor_flower():
    code = f"import sys\nfrom perfeds2.report import {', '.join(MODULES)}\nsys.exit(bool({{'jax', 'flwr'}} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_out_leaves_the_folder_as_it_is(make_run, tmp_path: Path):
    folder = make_run(seeds=[0])
    write_report(folder)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    status, said, _ = told("report", folder, "--x", "rounds", "--out", tmp_path / "other")
    assert status == 0
    assert said.splitlines() == [f"Report: {tmp_path / 'other' / 'report.html'}"]
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
