"""Claims about what a reproduction leaves: figures, ledger, page."""

import csv
import json
import re
import shutil
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
import test_report_in_browser as in_browser
from command_line import told
from made_up_runs import SLOW_S, made_up_metrics
from matplotlib.image import imread
from needs import in_chromium
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from benchmarks.ledger import ledger_markdown, main
from benchmarks.together import check_folders
from perfeds2.chart import Chart, Series
from perfeds2.errors import InputError
from perfeds2.learning.metrics import ACCURACY
from perfeds2.paper.claims import (
    CLAIMS,
    LEAST_LEARNED,
    SMALLEST_OF_NOTE,
    BetterThan,
    Claim,
    CurveName,
    Entry,
    Finding,
    Verdict,
    ledger,
)
from perfeds2.paper.figures import command_of, load_figures
from perfeds2.report.ledger import (
    Ledger,
    counts,
    label_of,
    ledger_json,
    open_ledgers,
    print_ledger,
    rule,
    summary,
    versus,
    write_ledger,
)
from perfeds2.report.reproduction import line_styles, load_panels, write_claims, write_figure, write_page
from perfeds2.report.style import COLOURS, SEQUENCE, ordered_styles
from perfeds2.runs.costs import COSTS
from perfeds2.runs.statistics import statistic
from perfeds2.studies.figure import Figure, Panel, PanelLine
from perfeds2.studies.reproduce import open_set

browser = in_browser.browser
EVIL = in_browser.EVIL


def ordered_colours(names: str) -> list[str]:
    return [style.colour for style in ordered_styles(list(names)).values()]


def lines(chart: Chart) -> dict[str, Series]:
    return {line.name: line for line in chart.series}


def reader(test):
    for mark in in_chromium:
        test = mark(test)
    return test


def numbers_of(figure: Figure, seeds: int = 3, diverged: tuple[str, int] | None = None) -> pd.DataFrame:
    """Made-up learning, in the columns of a reproduced figure."""
    rows = []
    for panel in figure.panels:
        for place, line in enumerate(panel.lines):
            objective, mode = line.algorithm.replace("S2", "-S2").split("-")
            for seed in range(seeds):
                noise = np.random.default_rng([seed, place])
                for step, time_s in enumerate(np.linspace(0, 60, 16)):
                    gone = diverged == (line.label, seed) and time_s > 30
                    rows.append(
                        {"figure": figure.name, "panel": panel.title, "task": panel.task, "line": line.label}
                        | {"algorithm": line.algorithm, "seed": seed, "round": step, "time_s": time_s}
                        | made_up_metrics(objective, time_s / SLOW_S[mode] / (1 + 0.3 * place), noise, gone)
                    )
    return pd.DataFrame(rows)


@pytest.fixture(scope="module")
def reproduced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three figures of made-up numbers. Read it, do not write to it."""
    folder = tmp_path_factory.mktemp("reproduced")
    for figure in load_figures(["exp_1", "exp_3", "exp_8"]):
        numbers_of(figure, seeds=5).to_csv(folder / f"{figure.name}.csv", index=False)
    return folder


@pytest.mark.usefixtures("rendered")
@pytest.mark.parametrize("name", ["exp_1", "exp_3", "exp_8"])
def test_a_figure_is_a_small_pdf_and_png_over_both_columns(reproduced: Path, tmp_path: Path, name: str):
    (figure,) = load_figures([name])
    before = dict(mpl.rcParams)
    written = write_figure(figure, reproduced / f"{name}.csv", tmp_path / "figures")
    assert [path.name for path in written] == [f"{name}.pdf", f"{name}.png"]
    assert all(0 < path.stat().st_size < 300_000 for path in written)
    pixels = imread(written[1])
    assert pixels.shape[1] == 2148  # 7.16 in at 300 dots
    tinted = pixels[..., :3].max(axis=2) - pixels[..., :3].min(axis=2) > 0.2
    assert (tinted.reshape(pixels.shape[0], 4, -1).any(axis=(0, 2))).all()  # lines in each of the four axes
    if name == "exp_1":
        assert (pixels[:, [0, 1, -2, -1], :3] == 1).all()  # nothing of the legend is cut off at either side
    assert b"/Type3" not in written[0].read_bytes()
    assert dict(mpl.rcParams) == before


def test_the_same_numbers_give_the_same_bytes(reproduced: Path, tmp_path: Path):
    (figure,) = load_figures(["exp_8"])
    first, second = (write_figure(figure, reproduced / "exp_8.csv", tmp_path / name) for name in "ab")
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_loss_stands_beside_accuracy_unless_there_are_four_panels(reproduced: Path):
    for name, metrics in (
        ("exp_1", ["train_loss_personal", "test_accuracy_personal"]),
        ("exp_8", ["test_accuracy_personal"]),
    ):
        (figure,) = load_figures([name])
        panels = load_panels(figure, reproduced / f"{name}.csv")
        assert [drawn.panel for drawn in panels] == list(figure.panels)
        titles = [ACCURACY.named(metric) for metric in metrics]
        assert all([chart.y.label for chart in drawn.charts] == titles for drawn in panels)
        assert all(list(lines(drawn.charts[0])) == [line.label for line in drawn.panel.lines] for drawn in panels)


def test_a_curve_is_the_mean_over_seeds_with_students_interval(tmp_path: Path):
    """Accuracies 0.1, 0.2, 0.6 from the start: mean 0.3, t(0.975; 2) = 4.303 standard errors."""
    figure = Figure("exp_1", "", (Panel("MNIST", "mnist", (PanelLine("PerFedS2", "PerFedS2", {}),), {}),))
    table = numbers_of(figure)
    table["test_accuracy_personal"] = table.seed.map({0: 0.1, 1: 0.2, 2: 0.6})
    table.to_csv(tmp_path / "exp_1.csv", index=False)
    (drawn,) = load_panels(figure, tmp_path / "exp_1.csv")
    curve = lines(drawn.charts[1])["PerFedS2"]
    assert curve.high is not None
    assert (curve.x[0], curve.x[-1], drawn.seeds) == (0, 60, 3)
    np.testing.assert_allclose(curve.y, 30)
    half = 100 * 4.302652729911275 * np.std([0.1, 0.2, 0.6], ddof=1) / 3**0.5
    np.testing.assert_allclose(np.asarray(curve.high), 30 + half)
    np.testing.assert_allclose(np.asarray(curve.low), max(0, 30 - half))


def test_figures_are_drawn_over_joules_too(reproduced, tmp_path):
    (figure,) = load_figures(["exp_1"])
    table = pd.read_csv(reproduced / "exp_1.csv")
    with pytest.raises(InputError, match="has no complete column joules"):
        load_panels(figure, reproduced / "exp_1.csv", COSTS["joules"])
    table.assign(joules=table["time_s"] * (1 + table["seed"])).to_csv(tmp_path / "exp_1.csv", index=False)
    over_time, over_joules = (
        load_panels(figure, tmp_path / "exp_1.csv", COSTS[axis])[0].charts[-1] for axis in ("seconds", "joules")
    )
    assert over_joules.x.label == "Energy of all UEs (J)"
    for name, curve in lines(over_joules).items():
        assert curve.x[-1] == pytest.approx(lines(over_time)[name].x[-1] * (1 + table["seed"].min()))
    assert len(write_figure(figure, tmp_path / "exp_1.csv", tmp_path, "joules")) == 2


@pytest.mark.slow
def test_a_curve_ends_where_a_seed_diverges_and_the_figure_is_still_drawn(tmp_path: Path):
    (figure,) = load_figures(["exp_1"])
    numbers_of(figure, diverged=("PerFed-ASY", 1)).to_csv(tmp_path / "exp_1.csv", index=False)
    drawn = load_panels(figure, tmp_path / "exp_1.csv")[0]
    ends = {label: curve.x[-1] for label, curve in lines(drawn.charts[0]).items()}
    assert ends.pop("PerFed-ASY") < 32
    assert set(ends.values()) == {60}
    assert lines(drawn.charts[1])["PerFed-ASY"].x[-1] == 60
    assert len(write_figure(figure, tmp_path / "exp_1.csv", tmp_path)) == 2


@pytest.mark.slow
@pytest.mark.usefixtures("rendered")
def test_panels_that_were_not_run_are_left_out(reproduced: Path, tmp_path: Path):
    (figure,) = load_figures(["exp_1"])
    table = pd.read_csv(reproduced / "exp_1.csv")
    table[table.task == "mnist"].to_csv(tmp_path / "exp_1.csv", index=False)
    assert [drawn.panel.title for drawn in load_panels(figure, tmp_path / "exp_1.csv")] == ["MNIST"]
    pixels = imread(write_figure(figure, tmp_path / "exp_1.csv", tmp_path)[1])
    assert pixels.shape[1] == 1074
    assert (pixels[:, [0, 1, -2, -1], :3] == 1).all()  # the legend fits over one panel too
    assert "Not run: CIFAR-100." in write_page([figure], tmp_path).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "text", ["", "not,a\nfigure,1\n", "panel,line,time_s\nMoon,x,1\n", "panel,line\nMNIST,PerFedS2\n"]
)
def test_a_csv_without_curves_is_refused_in_one_sentence(tmp_path: Path, text: str):
    (figure,) = load_figures(["exp_1"])
    (tmp_path / "exp_1.csv").write_text(text)
    with pytest.raises(InputError, match="run perfeds2 reproduce exp_1 again"):
        write_figure(figure, tmp_path / "exp_1.csv", tmp_path)


def test_algorithms_have_their_colours_and_varied_settings_an_ordered_scale():
    six, labels = load_figures(["exp_1", "exp_3"])
    styles = line_styles(six.panels[0])
    assert styles["PerFedS2"].colour == styles["PerFed-SYN"].colour == COLOURS["PerFed"]
    assert styles["PerFedS2"].dash_px == () != styles["PerFed-SYN"].dash_px
    varied = [*line_styles(labels.panels[0]).values()]
    assert (varied[0].colour, varied[-1].colour) == (SEQUENCE[0], SEQUENCE[-1])
    assert ordered_colours("abcde") == list(SEQUENCE)
    assert ordered_colours("a") == [SEQUENCE[0]]
    brightness = [
        sum(w * int(c[at : at + 2], 16) for w, at in ((0.3, 1), (0.59, 3), (0.11, 5))) for c in ordered_colours("abcd")
    ]
    assert brightness == sorted(brightness)  # in grey, too


TO_FEDAVG, TO_SYN = (
    BetterThan(CurveName("exp_1", "MNIST", "PerFedS2"), CurveName("exp_1", "MNIST", line))
    for line in ("FedAvgS2", "PerFed-SYN")
)


def entry(
    number: int,
    verdict: Verdict,
    values=(0.1, 0.12, 0.11),
    times=(5.0, None),
    sentence="It is better",
    comparison=TO_SYN,
    **more,
) -> Entry:
    finding = Finding(comparison, statistic(values), times, verdict, **more)
    return Entry(Claim(number, sentence, "exp_1", (comparison,)), (finding,))


FOUR = [
    entry(1, "holds", p_holm=0.01, loss=statistic([-0.1, -0.12, -0.11, -0.1, -0.12])),
    entry(2, "fails", (-0.1, -0.12, -0.11), p_holm=0.05, diverged=(2, 0), loss=statistic([None, -0.1, 0.3])),
    entry(3, "undecided", (0.1,), (1234.5, 2.0), comparison=TO_FEDAVG, as_it_is=statistic([0.2, 0.3, 0.25])),
    entry(4, "not run", (), (None, None)),
]
SMALL = entry(5, "holds", (0.001, 0.0012, 0.0011), p_holm=0.2, learned=False)
ONE = [Ledger("Table I", FOUR)]
OTHER = Ledger("tuned", [entry(1, "fails", (-0.2, -0.22, -0.21)), *FOUR[1:3], SMALL])
TWO = [*ONE, OTHER]


def plain(text: str) -> list[str]:
    return re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()


def row_of(lines: list[str], number: int) -> int:
    (at,) = [at for at, line in enumerate(lines) if line.lstrip().startswith(f"{number}. It is better")]
    return at


def test_the_terminal_shows_difference_times_verdict_and_counts(capsys: pytest.CaptureFixture[str]):
    print_ledger(ONE)
    lines = capsys.readouterr().out.splitlines()
    shown = {
        1: ("holds", ["+11.00 ± 2.48", "−0.110 ± 0.012 holds", "5.0 / never"]),
        2: ("fails", ["not after Holm", "−11.00 ± 2.48", "diverged 2 / 0 of 3"]),
        3: ("undecided", ["+10.00", "+25.00 ± 12.42", "1,234.5 / 2.0"]),
    }
    for number, (verdict, numbers) in shown.items():
        at = row_of(lines, number)
        assert all(text in lines[at] for text in ("It is better [exp_1]", verdict))
        below = [" ".join(line.split()) for line in lines[at + 1 : at + 6]]
        assert any(line.startswith("PerFedS2 vs") for line in below)
        assert [text for text in numbers if not any(text in line for line in below)] == []
    assert not [line for line in lines if line.lstrip().startswith("4. It")]  # not run: no more than a count
    said = "Of 4 claims, 1 holds, 1 fails, 1 is undecided, 1 was not run. After Holm's correction 1 holds, 0 fail;"
    assert said in " ".join(lines)
    assert max(map(len, lines)) <= 150


@pytest.mark.parametrize("width", [60, 80, 110, 120, 200])
@pytest.mark.parametrize("ledgers", [ONE, TWO], ids=["one", "two"])
def test_the_ledger_fits_the_terminal_and_loses_nothing(capsys, on_a_terminal, width: int, ledgers: list[Ledger]):
    on_a_terminal(width)
    print_ledger(ledgers)
    lines = plain(capsys.readouterr().out)
    assert max(map(len, lines)) <= width
    if width >= 80:
        texts = ["+11.00 ± 2.48", "PerFedS2 vs PerFed-SYN", "undecided", "not after Holm", "Table I"]
        texts += ["5.0 / never", "−0.110 ± 0.012", "diverged 2 / 0 of 3", "+25.00 ± 12.42"]
        if len(ledgers) == 2:
            texts += ["tuned", "−21.00 ± 2.48", "below 0.5 points", "nothing learned"]
        assert [text for text in texts if text not in "\n".join(lines)] == []


def test_two_ledgers_stand_together_and_it_is_said_where_they_differ(capsys, on_a_terminal):
    on_a_terminal(120)
    print_ledger(TWO)
    lines = plain(capsys.readouterr().out)
    at = row_of(lines, 1)
    one = "\n".join(lines[at : row_of(lines, 2)])
    assert re.search(r"claim +Table I +tuned", lines[0])
    assert re.search(r"It is better \[exp_1\] +holds +fails.*PerFed-SYN +\+11.00 ± 2.48 +−21.00 ± 2.48", one, re.DOTALL)
    assert re.search(r"not run +holds", lines[row_of(lines, 4)])  # run in one of them
    assert summary(TWO) == [
        f"Table I: {summary(ONE)[0]}",
        f"tuned: {summary([OTHER])[0]}",
        "Verdicts that differ: 1.",
    ]
    assert summary([ONE[0], ONE[0]])[2] == "Verdicts that differ: none."


def test_the_other_readings_are_counted_and_named_where_they_change_the_verdict():
    (said,) = summary([Ledger("", [entry(1, "holds", p_holm=0.01), SMALL])])
    assert said == (
        "Of 2 claims, 2 hold. After Holm's correction 1 holds, 0 fail; by differences of at least 0.5 points 1 holds, 0 fail; "
        "if FedAvg gets no personal step 2 hold, 0 fail; by training loss 0 hold, 0 fail."
    )
    assert summary([Ledger("", FOUR[2:])]) == ["Of 2 claims, 1 is undecided, 1 was not run."]
    text = ledger_markdown([Ledger("", [entry(1, "holds", p_holm=0.04), SMALL])])
    assert "**holds**<br>nothing" not in text
    assert "**holds**<br>not after Holm<br>below 0.5 points<br>nothing learned |" in text


def test_the_other_measures_stand_below_the_comparison():
    five = (0.1, 0.12, 0.11, 0.1, 0.12)
    fedavg = entry(1, "holds", five, comparison=TO_FEDAVG, as_it_is=statistic([-v for v in five]))
    agrees = entry(1, "holds", five, p_holm=0.01, comparison=TO_FEDAVG, loss=statistic([-v for v in five]))
    lines = ledger_markdown([Ledger("a", [fedavg]), Ledger("b", [agrees])]).splitlines()
    assert "| 1. It is better [exp_1] | **holds**<br>not after Holm | **holds** |" in lines
    assert "|     FedAvg without the step | −11.00 ± 1.24 | – |" in lines
    assert "|     training loss | – | −0.110 ± 0.012 **holds** |" in lines
    gone = entry(1, "fails", [-v for v in five], p_holm=0.01, diverged=(5, 0), loss=statistic([None] * 5))
    assert "|     training loss | diverged 5 / 0 of 5 |" in ledger_markdown([Ledger("a", [gone])])


def test_markup_in_a_claim_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]):
    print_ledger([Ledger("[bold]", [entry(1, "holds", sentence="[red]x[/red] [link]")])] * 2)
    out = capsys.readouterr().out
    assert "[red]x[/red] [link]" in out
    assert "[bold]: Of 1 claim" in out


def test_a_comparison_names_only_what_differs():
    one, two = CurveName("exp_1", "MNIST", "PerFedS2"), CurveName("exp_2", "MNIST", "PerFedS2")
    assert versus(BetterThan(one, two)) == "PerFedS2: exp_1 vs exp_2"
    assert versus(BetterThan(one, CurveName("exp_2", "M", "x"))) == "PerFedS2 (exp_1, MNIST) vs x (exp_2, M)"


def test_markdown_has_a_row_per_judged_claim_with_the_same_columns():
    text = ledger_markdown([Ledger("Table I", [*FOUR, entry(5, "holds", sentence="a | b")])])
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len([row for row in rows if "It is better" in row or "a \\| b" in row]) == 4  # not that which was not run
    assert {line.replace("\\|", "").count("|") for line in rows} == {3}
    assert rows[2:6] == [
        "| 1. It is better [exp_1] | **holds** |",
        "|   PerFedS2 vs PerFed-SYN | +11.00 ± 2.48 |",
        "|     training loss | −0.110 ± 0.012 **holds** |",
        "|     seconds to target | 5.0 / never |",
    ]
    assert text.endswith("\n")
    assert text.startswith("Of 5 claims, 2 hold,")


def test_the_ledger_is_written_tidily_and_as_json(tmp_path: Path):
    table, written = write_ledger(ONE, tmp_path)
    with table.open() as file:
        rows = list(csv.DictReader(file))
    assert [row["verdict"] for row in rows] == ["holds", "fails", "undecided", "not run"]
    assert float(rows[0]["difference"]) == pytest.approx(0.11)
    assert (rows[0]["better_median_time_s"], rows[0]["worse_median_time_s"], rows[3]["difference"]) == ("5.0", "", "")
    read = json.loads(written.read_text(encoding="utf-8"))
    assert read == json.loads(ledger_json(ONE))
    assert read["counts"] == {"holds": 1, "fails": 1, "undecided": 1, "not run": 1}
    assert read["claims"][0]["comparisons"][0]["values"] == [0.1, 0.12, 0.11]


def test_two_ledgers_are_written_one_below_the_other_and_as_json_beside(tmp_path: Path):
    table, written = write_ledger(TWO, tmp_path)
    read = pd.read_csv(table)
    assert read.ledger.tolist() == ["Table I"] * 4 + ["tuned"] * 4
    assert read.after_holm.tolist()[:4] == ["holds", "undecided", "undecided", "not run"]
    found = [read.better_diverged[1], read.as_it_is_difference[2], read.loss_difference[0]]
    assert found == pytest.approx([2, 0.25, -0.11])
    whole = json.loads(written.read_text(encoding="utf-8"))
    assert (whole["label"], whole["beside"]["label"], whole["verdicts_differ"]) == ("Table I", "tuned", [1])
    assert whole["beside"]["claims"][0]["verdict"] == "fails"
    assert whole["smallest_of_note"] == 0.005


def test_a_folder_is_called_by_what_was_changed_or_by_its_name(tmp_path: Path):
    folder = tmp_path / "tuned"
    folder.mkdir()
    assert label_of(folder) == "Table I"
    open_set(folder, "paper", {})
    assert label_of(folder) == "Table I"
    (folder / "reproduce.toml").write_text('scale = "paper"\n[changes.learning]\nbeta = 0.02\n')
    assert label_of(folder) == "learning.beta = 0.02"
    (folder / "reproduce.toml").write_text(
        'scale = "paper"\n[changes.learning]\nbeta = 0.02\nalpha = 0.005\nbatch = 9\n'
    )
    assert label_of(folder) == "tuned"
    (folder / "reproduce.toml").write_text('scale = "paper"\nspecs = ["tuned.toml"]\n[changes]\n')
    assert label_of(folder) == "tuned"  # whatever that is, it is not Table I alone


def test_ledgers_of_two_folders_are_opened_with_names_that_tell_them_apart(reproduced: Path, tmp_path: Path):
    folder = shutil.copytree(reproduced, tmp_path / "again")
    assert [each.label for each in open_ledgers(reproduced)] == ["Table I"]
    assert [each.label for each in open_ledgers(reproduced, folder)] == [str(reproduced), str(folder)]
    open_set(folder, "paper", {"learning": {"beta": 0.02}})
    first, second = open_ledgers(reproduced, folder)
    assert (first.label, second.label) == ("Table I", "learning.beta = 0.02")
    assert [each.verdict for each in first.entries] == [each.verdict for each in second.entries]
    assert [(best.place.panel, best.measured) for best in first.bests] == [
        (panel, measured) for panel in ("MNIST", "CIFAR-100") for measured in ("over the horizon", "at its end")
    ]
    quick = shutil.copytree(reproduced, tmp_path / "quick")
    open_set(quick, "quick", {})
    with pytest.raises(InputError, match="holds figures of --scale quick; expected paper"):
        open_ledgers(folder, quick)
    with pytest.raises(InputError, match="holds no reproduced figures"):
        open_ledgers(folder, tmp_path)


def test_the_command_prints_and_writes_two_folders_side_by_side(
    reproduced: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    folders = [shutil.copytree(reproduced, tmp_path / name) for name in ("out", "tuned")]
    open_set(folders[0], "paper", {})
    open_set(
        folders[1], "paper", {"learning": {"alpha": 0.005, "beta": 0.02}, "methods": {"PerFed": {"hessian": "fo"}}}
    )
    command = ["reproduce", "--out", folders[0], "--beside", folders[1]]
    status, shown, _ = told(*command)
    assert status == 0
    assert "tuned: Of 44 claims" in shown
    assert "Verdicts that differ: none." in shown
    assert "MNIST (exp_1, tuned)" in shown
    assert ">tuned</th>" in (folders[0] / "reproduction.html").read_text(encoding="utf-8")
    assert set(pd.read_csv(folders[0] / "claims.csv").ledger) == {"Table I", "tuned"}
    assert not (folders[1] / "claims.csv").exists()
    main([str(folders[0]), "--beside", str(folders[1])])
    markdown = capsys.readouterr().out
    assert markdown.startswith("Table I: Of 44 claims")
    assert "| claim | Table I | tuned |" in markdown


def test_the_claims_of_two_folders_are_one_latex_table(reproduced: Path, tmp_path: Path):
    one, two = (shutil.copytree(reproduced, tmp_path / name) for name in ("one", "two"))
    open_set(one, "paper", {})
    open_set(two, "paper", {"learning": {"beta": 0.02}})
    lines = write_claims(open_ledgers(one, two), tmp_path).read_text().splitlines()
    assert any("& Table I & learning.beta = 0.02" in line for line in lines)
    seen = [entry for entry in ledger(one) if entry.verdict != "not run"]
    assert len([line for line in lines if " vs " in line]) == sum(len(entry.findings) for entry in seen)


def test_reproductions_are_not_compared_on_one_page(reproduced: Path, tmp_path: Path):
    one, two = (shutil.copytree(reproduced, tmp_path / name) for name in ("one", "two"))
    for folder in (one, two):
        open_set(folder, "paper", {})
    with pytest.raises(InputError, match="holds a reproduction; give folders of runs or federations"):
        check_folders([one, two], None)


def test_the_rule_is_the_one_that_judges():
    assert rule().startswith("Each curve is summarised")
    assert "With fewer than five seeds every comparison is undecided" in rule()
    assert "count as one test" in rule()
    assert f"Below {100 * SMALLEST_OF_NOTE:g} points" in rule()
    assert f"{100 * LEAST_LEARNED:g} points above its start" in rule()
    assert counts([]) == "Of 0 claims, none can be judged."


def test_the_page_has_ledger_rule_figures_and_commands(reproduced: Path, tmp_path: Path):
    folder = shutil.copytree(reproduced, tmp_path / "copy")
    page = write_page(load_figures(["all"]), folder, "perfeds2 reproduce all --seeds 5 --out here")
    text = page.read_text(encoding="utf-8")
    assert page == folder / "reproduction.html"
    judged = sum(entry.verdict != "not run" for entry in ledger(folder))
    best = 2 * 2  # of two data sets, over the horizon and at its end
    assert len(re.findall(r'<th scope="row">\d+\. ', text)) == judged < len(CLAIMS)
    assert len(re.findall(r"over the horizon</td>|at its end</td>", text)) == best
    assert [f'<section id="exp_{number}">' in text for number in range(1, 9)] == [n in (1, 3, 8) for n in range(1, 9)]
    assert counts(ledger(folder)) == "Of 44 claims, 15 hold, 2 fail, 27 were not run."
    assert "<h1>exp_1, exp_3 and exp_8: Of 17 claims, 15 hold, 2 fail.</h1>" in text  # not what is missing
    assert "27 of 44 claims need figures that were not run." in text
    assert text.index('<section id="exp_1">') < text.index("Do the claims of Section VI hold?")  # figures first
    assert "<em>undecided</em>" in text
    assert "perfeds2 reproduce all --seeds 5 --out here" in text
    assert text.count("Content-Security-Policy") == 1
    assert len(text) < 8_000_000


@reader
def test_every_chart_draws_hides_its_own_lines_and_fits_a_phone(
    browser: webdriver.Chrome, reproduced: Path, tmp_path: Path
):
    page = write_page(load_figures(["all"]), shutil.copytree(reproduced, tmp_path / "copy"))
    in_browser.open_page(browser, page, 390)
    drawn = in_browser.LINES.format
    assert in_browser.count(browser, ".chart") == 4 + 4 + 4
    assert in_browser.count(browser, drawn("exp_1-0-train-loss-personal")) == 6 * 3
    assert in_browser.count(browser, drawn("exp_3-1-test-accuracy-personal")) == 4 * 3
    assert in_browser.count(browser, drawn("exp_8-3-test-accuracy-personal")) == 3 * 3
    button = browser.find_element(By.CSS_SELECTOR, "#exp_8 .legend button")
    assert button.text == "PerFedS2"
    browser.execute_script("arguments[0].click()", button)
    WebDriverWait(browser, 10).until(lambda b: in_browser.count(b, drawn("exp_8-3-test-accuracy-personal")) == 2 * 3)
    assert in_browser.count(browser, drawn("exp_1-0-train-loss-personal")) == 6 * 3  # another figure's PerFedS2 stays
    assert browser.get_log("browser") == []
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 390


@reader
def test_hostile_texts_are_shown_and_not_run(browser: webdriver.Chrome, tmp_path: Path):
    figure = Figure("exp_1", EVIL, (Panel(EVIL, EVIL, (PanelLine(EVIL, "PerFedS2", {}),), {}),))
    numbers_of(figure, seeds=1).to_csv(tmp_path / "exp_1.csv", index=False)
    in_browser.open_page(browser, write_page([figure], tmp_path, EVIL), 390)
    assert browser.execute_script("return window.injected") is None
    assert in_browser.count(browser, "#injected, img") == 0
    assert browser.find_element(By.CSS_SELECTOR, "#exp_1 .legend button").text == EVIL
    assert browser.get_log("browser") == []
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 390


def test_report_draws_a_set_again_and_says_which_command_made_it(reproduced: Path, tmp_path: Path):
    folder = shutil.copytree(reproduced, tmp_path / "copy")
    open_set(folder, "paper", {"learning": {"beta": 0.02}, "methods": {"PerFed": {"hessian": "fo"}}})
    status, shown, _ = told("report", folder, "--paper", "--out", tmp_path / "figures")
    assert status == 0
    assert "Report:" in shown
    assert sorted(path.name for path in (tmp_path / "figures").iterdir()) == [
        "claims.tex",
        *(f"exp_{number}.{kind}" for number in (1, 3, 8) for kind in ("pdf", "png")),
        "reproduction.html",
    ]
    made = "perfeds2 reproduce exp_1 exp_3 exp_8 --scale paper --seeds 5 --set learning.beta=0.02 --set methods.PerFed.hessian=fo"
    assert command_of(folder) == f"{made} --out {folder}"
    assert made in (tmp_path / "figures/reproduction.html").read_text(encoding="utf-8")


def test_the_command_names_tasks_and_seeds_where_they_are_not_all(tmp_path: Path):
    (figure,) = load_figures(["exp_1"])
    table = numbers_of(figure, seeds=3)
    table[(table.task == "mnist") & (table.seed != 1)].to_csv(tmp_path / "exp_1.csv", index=False)
    open_set(tmp_path, "quick", {})
    assert command_of(tmp_path) == f"perfeds2 reproduce exp_1 --scale quick --seeds 0,2 --task mnist --out {tmp_path}"


@pytest.mark.slow
def test_the_page_says_which_settings_are_not_the_papers(tmp_path: Path):
    (figure,) = load_figures(["exp_1"])
    numbers_of(figure, seeds=1).to_csv(tmp_path / "exp_1.csv", index=False)
    assert "learning.beta" not in write_page([figure], tmp_path).read_text(encoding="utf-8")
    (tmp_path / "reproduce.toml").write_text('scale = "paper"\n[changes.learning]\nbeta = 0.02\n')
    assert "learning.beta = 0.02" in write_page([figure], tmp_path).read_text(encoding="utf-8")
