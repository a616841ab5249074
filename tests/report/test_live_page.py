"""Does the page of a command that goes on show what is known, reload itself, and stop when it is over?"""

import base64
import hashlib
import math
import re
import shutil
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from perfeds2.report import live as module
from perfeds2.report.live import (
    BLOCKS,
    MOST_CURVES,
    LivePage,
    Picture,
    curves_of,
    heading,
    is_live,
    live_page,
    shown_of,
)
from perfeds2.runs.progress import DONE, INTERRUPTED, Board, LiveTraining

EVIL = "</script><script>window.injected = 1</script><img src=x onerror='window.injected = 1'>"


def board_of(scores: dict[tuple[str, int], list[float]], of: int = 4, label: str = "", **known) -> Board:
    """A comparison that has come so far; evaluations are half a second apart."""
    board = Board(command="compare", began_s=100.0, heard_s=130.0, shares=(0.0, 0.25, 100.0), what="", **known)
    for (algorithm, seed), score in scores.items():
        times = [n / 2 for n in range(len(score))]
        training = LiveTraining(f"{algorithm}{seed}", label, algorithm, seed, of, time_s=times, score=list(score))
        board.trainings[training.name] = training
    return board


SOME = {("FedAvg-SYN", 0): [0.1, 0.3, 0.5, 0.7], ("PerFedS2", 0): [0.1, 0.6], ("PerFedS2", 1): [0.3, 0.8, 0.9]}


# ---- what is shown


def test_a_curve_is_the_mean_over_the_seeds_that_have_come_so_far():
    syn, s2 = curves_of(board_of(SOME))
    assert (syn.name, syn.seeds, syn.over) == ("FedAvg-SYN", 1, 1)
    assert (s2.name, s2.seeds, s2.over) == ("PerFedS2", 2, 0)
    np.testing.assert_allclose(s2.time_s, [0.0, 0.5, 1.0])
    np.testing.assert_allclose(s2.mean, [0.2, 0.7, 0.9])  # at 1.0 s only one has been looked at


@pytest.mark.slow
@given(st.lists(st.lists(st.tuples(st.floats(0, 9), st.floats(0, 1)), min_size=1, max_size=6), min_size=1, max_size=5))
def test_the_mean_agrees_with_plain_loops(courses):
    board = Board()
    for seed, course in enumerate(courses):
        times = sorted({time_s for time_s, _ in course})
        score = [course[place][1] for place in range(len(times))]
        board.trainings[str(seed)] = LiveTraining(str(seed), "", "A", seed, 9, time_s=times, score=score)
    (found,) = curves_of(board)
    expected = {}
    for time_s in sorted({each for training in board.trainings.values() for each in training.time_s}):
        there = []
        for training in board.trainings.values():
            so_far = [s for at, s in zip(training.time_s, training.score, strict=True) if at <= time_s]
            if so_far and time_s <= training.time_s[-1]:
                there.append(so_far[-1])
        if there:
            expected[time_s] = sum(there) / len(there)
    np.testing.assert_allclose(found.time_s, list(expected))
    np.testing.assert_allclose(found.mean, list(expected.values()))


def test_a_diverged_seed_leaves_no_mean_where_it_is_no_number():
    (curve,) = curves_of(board_of({("A", 0): [0.1, 0.5, math.nan], ("A", 1): [0.3, 0.5, 0.7, 0.9]}))
    np.testing.assert_allclose(curve.mean, [0.2, 0.5, 0.9])
    assert curves_of(board_of({("A", 0): [math.nan]})) == []


def test_of_many_curves_the_best_are_shown():
    board = board_of({(f"A{number:02}", 0): [0.0, number / 100] for number in range(40)})
    shown, more = shown_of(board)
    assert [each.name for each in shown] == [f"A{number}" for number in range(28, 40)]
    assert (len(shown), more) == (MOST_CURVES, 28)


def test_the_terminal_shows_how_far_it_is_and_every_curve():
    console = Console(width=80, height=30, record=True, force_terminal=False)
    with console.capture() as capture:
        console.print(Picture(board_of(SOME)))
    lines = capture.get().splitlines()
    assert lines[0] == "compare: 25%, 1 training over, 2 at work, 0:00:30 so far, about 0:01:30 left"
    drawn = {}
    for name, numbers in (("FedAvg-SYN", r"70.0% +70.0% +1.5 s +1 of 1"), ("PerFedS2", r"90.0% +90.0% +1 s +0 of 2")):
        found = re.search(rf"{name} +{numbers}  ([{BLOCKS}]+)", capture.get())
        assert found is not None
        drawn[name] = found[1]
    assert max(map(len, lines)) <= 80
    assert (drawn["PerFedS2"][0], drawn["PerFedS2"][-1]) == ("▂", "█")  # the best of all, at the end
    assert (drawn["FedAvg-SYN"][0], drawn["FedAvg-SYN"][-1]) == ("▁", "▆")
    assert len(drawn["PerFedS2"]) < len(drawn["FedAvg-SYN"])  # and not as far
    for empty in (Board(command="run"), board_of({("A", 0): [0.5]})):
        with console.capture():
            console.print(Picture(empty))  # nothing there, or one point: no division by nothing


# ---- the page


def test_the_page_reloads_itself_as_long_as_the_command_goes_on():
    going = live_page(board_of(SOME), "runs/a", reloads=True)
    over = live_page(board_of(SOME, end=DONE), "runs/a", reloads=False)
    (script,) = re.findall(r"<script>(.*?)</script>", going, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in going  # which the page's own rules allow, and nothing else
    assert "location.reload()" in script
    assert '<noscript><meta http-equiv="refresh"' in going
    for word in ("script", "refresh", "reload"):
        assert word not in over
    assert heading(board_of(SOME)) in going
    assert "compare has finished" in over
    assert len(re.findall(f"[{BLOCKS}]{{9,}}", going)) == 2  # two curves


@pytest.mark.parametrize("name", [EVIL, "a & b", '"'])
def test_a_name_is_only_text_on_the_page(name):
    text = live_page(board_of({(name, 0): [0.1, 0.2]}, label=name, end=name), name, reloads=True)
    assert EVIL not in text
    assert "<img" not in text
    assert text.count("<script>") == 1


def test_the_page_takes_the_reports_place_and_gives_it_back(tmp_path, monkeypatch):
    page, report = LivePage(tmp_path), tmp_path / "report.html"
    page.look(board_of(SOME), [])
    assert not report.exists()  # what is over in two seconds has none
    monkeypatch.setattr(module, "FIRST_S", 0.0)
    page = LivePage(tmp_path)
    page.look(board_of(SOME), [])
    assert is_live(report)
    first = report.stat().st_mtime_ns
    page.look(board_of(SOME), [])
    assert report.stat().st_mtime_ns == first  # not again at once
    page.end(board_of(SOME, end=DONE))
    assert "reload" in report.read_text()  # it looks for the report
    shutil.copy(report, tmp_path / "kept")
    report.write_text("<!doctype html>the report")
    page.settle()
    assert report.read_text() == "<!doctype html>the report"
    shutil.copy(tmp_path / "kept", report)
    page.settle()  # no one has written one
    assert not report.exists()
    page.settle()


def test_the_page_of_what_was_interrupted_reloads_no_more_and_says_how_to_go_on(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "FIRST_S", 0.0)
    page = LivePage(tmp_path)
    page.look(board_of(SOME), [])
    page.end(board_of(SOME, end=INTERRUPTED))
    text = (tmp_path / "report.html").read_text()
    assert "reload" not in text
    assert f"continue with: perfeds2 compare --resume {tmp_path}" in text
    assert is_live(tmp_path / "report.html")  # the report is still to be written


def test_a_page_that_takes_long_to_write_is_written_rarely(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "FIRST_S", 0.0)
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    times: list[float] = []

    def slow(*_: object) -> None:
        times.append(now[0])
        now[0] += 0.1

    monkeypatch.setattr(module, "write_text", slow)
    page = LivePage(tmp_path)
    while now[0] < 100.0:
        page.look(board_of(SOME), [])
        now[0] += 0.5
    assert 4 <= len(times) <= 5  # half a per cent of the time: 0.1 s of every 20


def test_a_page_that_cannot_be_read_is_not_live(tmp_path):
    assert not is_live(tmp_path / "nowhere.html")
    (tmp_path / "report.html").write_text(f"<!doctype html>{time.time()}" + "x" * 1000 + module.MARK)
    assert not is_live(tmp_path / "report.html")  # only its head counts
