"""Claims about one table in the terminal, as Markdown, on a page and in LaTeX."""

import io
import json
import math
import re
from dataclasses import replace
from html import unescape
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console

from benchmarks.ledger import as_markdown
from perfeds2.chart import LineStyle
from perfeds2.report.run import print_summary, write_paper_figures, write_report
from perfeds2.report.tables import Column, Span, Table, as_html, as_latex, for_terminal, in_latex
from perfeds2.runs.statistics import censored_median
from perfeds2.runs.table import behind_best, over_ues

HOSTILE = r"50 % of $x_1$ & {a|b} \cmd #2 <b>~^ [red]"
TABLE = Table(
    [Column("name", "left"), Column("value (%)", narrow="value\n(%)")],
    [
        [[Span(HOSTILE), Span("diverged in 1 of 3 seeds", "warn")], [Span("1.5", "best"), Span(" ± 0.2", "half")]],
        ["two\nlines", Span("holds", "holds")],
    ],
)


def test_the_terminal_shows_names_as_they_are():
    console = Console(width=150, record=True, file=io.StringIO())
    console.print(for_terminal(TABLE))
    lines = [line.rstrip() for line in console.export_text().splitlines()]
    assert lines[1].split() == ["name", "(%)"]
    assert lines[2].split("  ")[0] == HOSTILE
    assert lines[2].endswith("1.5 ± 0.2")
    assert lines[3] == "diverged in 1 of 3 seeds"


def test_markdown_keeps_its_columns():
    head, rule, first, second = as_markdown(TABLE).splitlines()
    assert (head, rule) == ("| name | value (%) |", "|---|--:|")
    assert first.replace("\\|", "").count("|") == 3
    assert first.endswith("(diverged in 1 of 3 seeds) | **1.5** ± 0.2 |")
    assert second == "| two<br>lines | **holds** |"


def test_a_page_runs_nothing_of_a_name():
    html = as_html(replace(TABLE, styles=[LineStyle("#000000")] * 2, kind="ledger"))
    assert html.startswith('<table class="ledger">')
    assert "&lt;b&gt;" in html
    assert html.count("</svg> ") == 2
    assert '<td><b>1.5</b><span class="half"> ± 0.2</span></td>' in html
    assert '</svg> two<br>lines</th><td><span class="holds">holds</span></td>' in html


def test_latex_is_a_plain_tabular_with_everything_escaped():
    lines = as_latex(TABLE).splitlines()
    assert lines[0] == r"\begin{tabular}{lr}"
    assert lines[-1] == r"\end{tabular}"
    assert [lines[1], lines[3], lines[-2]] == [r"\toprule", r"\midrule", r"\bottomrule"]
    assert lines[2] == r"name & value (\%) \\"
    assert lines[4].endswith(r" (diverged in 1 of 3 seeds) & \textbf{1.5} $\pm$ 0.2 \\")
    assert lines[5] == r"two lines & holds \\"
    bare = re.sub(r"\\[{}$&%#_\\]|\\[\^~]\{\}|\\textbackslash\{\}", "", in_latex(HOSTILE))
    assert not re.search(r"[%#&_~^\\]", bare)
    assert bare.count("$") % 2 == 0
    assert in_latex("α ± 日\x1b\n") == r"$\alpha$ $\pm$ ? "


@pytest.mark.slow
def test_the_papers_table_has_rounds_times_and_accuracies_with_intervals(compared: Path, tmp_path: Path):
    path = write_paper_figures(compared, tmp_path)[-1]
    text = path.read_text(encoding="utf-8")
    rows = [line.removesuffix(r" \\").split(" & ") for line in text.splitlines() if line.endswith(r"\\")]
    assert rows[0] == [
        "Algorithm",
        "Rounds",
        r"Seconds to 80 \%",
        r"Test accuracy, global (\%)",
        r"Test accuracy, personal (\%)",
    ]
    assert len(rows) == 1 + 9
    assert {len(row) for row in rows} == {5}
    assert all(re.fullmatch(r"(\\textbf\{)?\d+\.\d\}? \$\\pm\$ \d+\.\d", row[-1]) for row in rows[1:])
    assert sum(r"\textbf" in row[-1] for row in rows) == 1
    assert "FedProx-ASY (diverged in 1 of 3 seeds)" in text
    assert re.search(r"FedAvg-SYN & \d+ & (never|[\d.]+( \(\d of 3\))?) &", text)


@pytest.mark.slow
def test_the_table_of_a_simulation_or_of_two_seeds_has_what_there_is(make_run, tmp_path: Path):
    simulated = make_run(command="simulate", seeds=[0], algorithms=[("α_1", "PerFed", "custom")])
    text = write_paper_figures(simulated, tmp_path)[-1].read_text(encoding="utf-8")
    assert "Staleness, mean" in text
    assert r"$\alpha$\_1 & " in text
    text = write_paper_figures(make_run(seeds=[0, 1]), tmp_path)[-1].read_text(encoding="utf-8")
    assert r"$\pm$" not in text
    assert text.count("Fewer than three seeds give no interval.") == 1


@pytest.mark.slow
@pytest.mark.parametrize(("width", "tables"), [(90, 2), (150, 1)])
def test_the_summary_fits_the_terminal(compared: Path, capsys, on_a_terminal, width: int, tables: int):
    on_a_terminal(width)
    print_summary(compared)
    out = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    assert max(map(len, out.splitlines())) <= width
    assert len(re.findall("^PerFedS2  ", out, re.MULTILINE)) == tables
    assert "diverged in 1 of 3" in out
    assert out.count("± half of the 95 % interval") == 1


@pytest.mark.slow
def test_the_terminal_ends_with_the_answer_two_notes_and_the_report(make_run, capsys):
    folder = make_run(notes=["one", "two", "three"])
    print_summary(folder)
    *_, answer, one, two, report = capsys.readouterr().out.splitlines()
    assert "reached 80 % personalised accuracy first" in answer
    assert (one, two) == ("Note: one", "Note: two")
    assert report == f"Report: {folder / 'report.html'} (with 1 more note)"


@pytest.mark.slow
def test_the_page_says_how_far_each_is_behind_the_best_and_whether_that_is_chance(make_run):
    folder = make_run()
    summary = json.loads((folder / "summary.json").read_text())
    rows = summary["algorithms"]
    summary["algorithms"] = [row | behind for row, behind in zip(rows, behind_best(rows), strict=True)]
    (folder / "summary.json").write_text(json.dumps(summary))
    html = write_report(folder).read_text()
    assert "Behind the best, personal (points)" in html
    assert html.count(", p ") == len(rows) - 1
    assert "Student's paired test over the seeds" in unescape(html)


def with_more(folder: Path) -> Path:
    """Add to a made-up run what ``compare`` records: differences, fairness over the UEs, and joules."""
    summary = json.loads((folder / "summary.json").read_text())
    rows, ues = summary["algorithms"], pd.read_csv(folder / "ue_metrics.csv")
    for row, behind in zip(rows, behind_best(rows), strict=True):
        mine = pd.DataFrame(ues[ues["algorithm"] == row["algorithm"]])
        joules = [None if time_s is None else 2 * time_s for time_s in row["time_to_target_s"]["values"]]
        spent = {"values": joules, "reached": len(joules) - joules.count(None), "median": censored_median(joules)}
        own = over_ues([seed.to_dict(orient="records") for _, seed in mine.groupby("seed")])
        row |= behind | own | {"joules_to_target": spent}
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


@pytest.mark.slow
def test_the_papers_table_has_energy_fairness_and_p_values(make_run, tmp_path: Path, capsys):
    folder = with_more(make_run())
    text = write_paper_figures(folder, tmp_path)[-1].read_text(encoding="utf-8")
    (head,) = [line for line in text.splitlines() if line.startswith("Algorithm")]
    heads = ["Joules to 80", "Worst tenth of UEs", "Jain's index", "personal, by samples", "Behind the best"]
    assert [each for each in heads if each not in head] == []
    assert text.count(", p ") == 8
    assert "booktabs" in text
    assert "paired test over the seeds" in text
    page = write_report(folder).read_text()
    assert all(each in unescape(page).replace("\xa0", " ") for each in (heads[1], heads[2], heads[3]))
    print_summary(folder)
    said = " ".join(capsys.readouterr().out.split())
    assert re.search(r"Worst tenth of UEs \(%\) / Jain's index, personal: FedAvg-SYN \d\d\.\d / 0\.99\d\d, ", said)


def test_means_over_ues_by_hand():
    ues = [(0.2, 0.4, 10), (0.4, 0.8, 30)]
    rows = [{"test_accuracy": one, "test_accuracy_personal": own, "samples": size} for one, own, size in ues]
    found = {name: each["mean"] for name, each in over_ues([rows]).items()}
    assert found == pytest.approx(
        {
            "worst_decile": 0.4,
            "jain": 1.2**2 / (2 * (0.4**2 + 0.8**2)),
            "test_accuracy_by_samples": 0.35,
            "test_accuracy_personal_by_samples": 0.7,
        }
    )
    unknown = over_ues([[row | {"samples": 0} for row in rows]])
    assert unknown["test_accuracy_personal_by_samples"]["mean"] == pytest.approx(0.6)  # data without limit
    gone = over_ues([[rows[0], rows[1] | {"test_accuracy_personal": math.nan}]])
    assert gone["worst_decile"]["mean"] is gone["jain"]["mean"] is None
