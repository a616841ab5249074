"""Does an arena's page say what its numbers say?"""

import shutil
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from arena_by_formula import THREE, fixed, plan_of, played, run
from command_line import told
from made_up_runs import charts_of

from perfeds2.report.arena import (
    MATRICES,
    bout_charts,
    bout_table,
    headline,
    matrix,
    overview,
    print_arena,
    words,
    write_arena,
)
from perfeds2.report.read_studies import NAMES, BoutFound, load_arena
from perfeds2.report.style import ACCURACY
from perfeds2.report.tables import Cell, Span
from perfeds2.studies.arena import BETTER


@pytest.fixture(scope="module")
def arena(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Read it, do not write to it."""
    folder = tmp_path_factory.mktemp("arena") / "a"
    run(folder, plan_of({"target_accuracy": 0.77, "seeds": 5}, tries=4, tuning_seeds=1, rungs=1))
    return folder


@pytest.fixture
def shown(arena: Path, tmp_path: Path) -> Path:
    return shutil.copytree(arena, tmp_path / "a")


def spans_of(cell: Cell) -> list[Span]:
    return [Span(cell)] if isinstance(cell, str) else [cell] if isinstance(cell, Span) else list(cell)


def only_bout(folder: Path) -> BoutFound:
    (bout,) = load_arena(folder).bouts
    return bout


def test_the_words_follow_from_the_numbers(shown):
    arena = load_arena(shown)
    first, rest, end, rank = words(arena, arena.bouts[0])[:4]
    assert first == headline(arena) == "PerFedS2 reached 77 % personalised accuracy first, after 4.5 s."
    assert rest.endswith("Next came FedBuff, in 2 of 5 seeds. Never reached by Ditto.")
    assert end.startswith("PerFedS2 ends with the best personalised accuracy of 80.4 % (95 % interval 80.0 to 80.8 %).")
    assert rank == (
        "Of 3, PerFedS2 is no. 1 to the target and no. 1 at the end. It is significantly sooner than Ditto; better at the end than "
        "FedBuff and Ditto."
    )


def test_who_got_there_in_few_seeds_has_no_median(shown):
    arena = load_arena(shown)
    run = arena.bouts[0].run
    bout = replace(arena.bouts[0], run=replace(run, algorithms=tuple(a for a in run.algorithms if a.name == "FedBuff")))
    alone = words(arena, bout)
    assert alone[:2] == ["No algorithm reached 77 % personalised accuracy in most seeds.", alone[1]]
    assert alone[1].startswith("Most often: FedBuff, in 2 of 5 seeds.")
    assert not any("Of 1, " in said for said in alone)  # a method alone has no rank


def test_who_missed_the_target_in_most_seeds_has_no_rank_by_time(shown):
    arena = load_arena(shown)
    run = arena.bouts[0].run
    slow = tuple(a for a in run.algorithms if a.name in ("FedBuff", "Ditto"))
    bout = replace(arena.bouts[0], run=replace(run, algorithms=slow))
    said = words(replace(arena, mine=("FedBuff", "Ditto")), bout)
    assert said[0] == "No algorithm reached 77 % personalised accuracy in most seeds."
    ranks = [each for each in said if each.startswith("Of 2, ")]
    assert [each.split(".")[0] for each in ranks] == ["Of 2, FedBuff is no", "Of 2, Ditto is no"]
    assert not any("to the target" in each for each in ranks)


def test_the_table_has_who_was_first_on_top_and_the_best_in_bold(shown):
    table = bout_table(only_bout(shown))
    texts = [["".join(span.text for span in spans_of(cell)) for cell in row] for row in table.rows]
    assert [row[0] for row in texts] == ["PerFedS2", "FedBuff", "Ditto"]
    assert texts[0][1:5] == ["80.4 ± 0.4", "4.5 [4.5, 4.5]", "10", "0.0"]
    assert texts[1][2] == "– (2 of 5)"
    assert texts[2][2] == "never"
    heads = [column.head for column in table.columns]
    assert heads[:5] == ["Method", "Accuracy at the end (%)", "Seconds to 77 %", "Rounds", "Uploaded (Mbit)"]
    assert not any("Energy" in head for head in heads)  # nothing knows joules
    assert heads[-1] == "Settings found"
    assert spans_of(table.rows[0][1])[0].kind == "best"


def test_the_matrix_has_a_sign_where_the_test_is_significant(shown):
    found = matrix(only_bout(shown), ACCURACY)
    assert found is not None
    verdicts = {(v.better, v.worse): v for v in only_bout(shown).compared[ACCURACY]}
    cells = {
        (row[0], column.head): cell
        for row in found.rows
        for column, cell in zip(found.columns[1:], row[1:], strict=True)
    }
    for (better, worse), verdict in verdicts.items():
        (won,), (lost,) = spans_of(cells[better, worse]), spans_of(cells[worse, better])
        assert verdict.is_significant
        assert (won.kind, lost.kind) == ("holds", "fails")
        assert won.text.startswith("better")
        assert lost.text.startswith("worse")
    assert [cells[name, name] for name in THREE] == [""] * 3
    assert set(MATRICES) == {NAMES.get(name, name) for name in BETTER}


def test_two_seeds_are_shown_without_tests(tmp_path):
    run(tmp_path / "a", plan_of({"seeds": 2}, tries=0))
    arena = load_arena(tmp_path / "a")
    assert matrix(arena.bouts[0], ACCURACY) is None
    assert any("Fewer than three seeds" in said for said in words(arena, arena.bouts[0]))
    write_arena(tmp_path / "a")


def test_the_page_and_the_latex_table_are_whole(shown, capsys):
    first = [path.read_bytes() for path in write_arena(shown)]
    assert [path.read_bytes() for path in write_arena(shown)] == first  # no clock, no chance
    page, latex = (shown / "report.html").read_text(), (shown / "arena.tex").read_text()
    assert "Which method reaches the target sooner?" in page
    assert "better at the end than FedBuff and Ditto" in page
    assert latex.count(r"\begin{tabular}") == 1
    assert r"& \textbf{4.5} [4.5, 4.5] & \textbf{10}" in latex
    print_arena(shown)
    said = capsys.readouterr().out
    assert "PerFedS2" in said
    assert "[smallest, largest]" in " ".join(said.split())
    assert max(len(line) for line in said.splitlines() if "significantly" in line) <= 120  # sentences, in a pipe too


def test_report_draws_an_arena_again(shown):
    write_arena(shown)
    page = (shown / "report.html").read_bytes()
    (shown / "report.html").unlink()
    status, said, _ = told("report", shown)
    assert (status, said.splitlines()[0]) == (0, f"Report: {shown / 'report.html'}")
    assert (shown / "report.html").read_bytes() == page


def test_a_paper_gets_a_figure_a_bout_and_the_table(shown, tmp_path):
    status, said, _ = told("report", shown, "--paper", "--out", tmp_path / "paper")
    assert status == 0
    assert sorted(path.name for path in (tmp_path / "paper").iterdir()) == [
        *("arena-1.pdf", "arena-1.png", "arena.tex", "report.html"),
    ]
    assert str(tmp_path / "paper" / "arena-1.pdf") in said


def test_an_arena_is_drawn_over_rounds_joules_or_bits(shown):
    assert "joules,merged_bits" in (shown / "arena_metrics.csv").read_text().splitlines()[0]
    status, _, error = told("report", shown, "--x", "joules")
    assert status == 2
    assert "arena_metrics.csv has no complete column joules" in error  # the formula's workers count none
    assert told("report", shown, "--x", "rounds")[0] == 0
    page = (shown / "report.html").read_text()
    assert "digits: accuracy over rounds" in page
    assert "'text': 'Rounds'" in str(charts_of(page))
    table = pd.read_csv(shown / "arena_metrics.csv")
    spent = table.assign(joules=table["round"] * (1.0 + table["seed"]), merged_bits=50.0 * table["round"])
    spent.to_csv(shown / "arena_metrics.csv", index=False)
    for axis, what in (("joules", "energy"), ("bits", "uploaded bits")):
        assert told("report", shown, "--x", axis)[0] == 0
        assert f"digits: accuracy over {what}" in (shown / "report.html").read_text()
    (bout,) = load_arena(shown, "joules").bouts
    (chart,) = bout_charts(bout)
    ends = {line.name: line.x[-1] for line in chart.series}
    assert ends["PerFedS2"] == 20.0  # seed 0 has spent 20 J at the end, the others more: no mean beyond


def test_several_bouts_have_an_overview(tmp_path, capsys):
    def accuracy(name, learning, seed):
        """Ditto is first with a quorum of 3, which the formula knows by β."""
        return fixed(name, learning, seed) + (0.2 if name == "Ditto" and learning.beta == 0.5 else 0.0)

    cells = {"paper": {}, "other": {"learning": {"beta": 0.5}}}
    run(tmp_path / "a", plan_of({"target_accuracy": 0.6}, tries=0, cells=cells), on=played(accuracy))
    arena = load_arena(tmp_path / "a")
    assert headline(arena) == "PerFedS2, FedBuff and Ditto among the soonest at the target in 2 of 2 bouts."
    rows = overview(arena).rows
    assert [row[0] for row in rows] == ["digits", "digits (other)"]
    assert [row[3] for row in rows] == ["PerFedS2 (80.2 %)", "Ditto (91.8 %)"]
    write_arena(tmp_path / "a")
    assert "Which method is first in which bout?" in (tmp_path / "a/report.html").read_text()
    print_arena(tmp_path / "a")
    assert "Ditto (91.8 %)" in capsys.readouterr().out
