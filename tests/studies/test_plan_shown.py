"""Does a plan say in a line what it is, and show the same as a table and as a map?"""

import base64
import math
import re
from dataclasses import replace
from typing import Any

import matplotlib as mpl
import pandas as pd
import pytest
from matplotlib.figure import Figure

from perfeds2.report.plan import candidates_table, maps_of
from perfeds2.studies.plan import answer, check_answer
from perfeds2.studies.plan_data import (
    LOOKS,
    Candidate,
    Choice,
    Plan,
    PlanRequest,
    PlanTarget,
    SeedOutcome,
    map_chart,
)

mpl.use("agg")
EVIL = "<script>alert(1)</script>"
CHOICE = Choice(4, 5, "first", "equal_share", "restart", 1, 32)


def trial(seed: int, time_s: float) -> SeedOutcome:
    return SeedOutcome(seed, "kept", time_s, time_s, 0.99, 0.5, 0.06, (0.1, 0.9), 0.0, time_s, 0.5)


BEST = Candidate(CHOICE, "holds", "", scouted_s=5.0, trials=(trial(0, 4.0), trial(1, 5.0), trial(2, 7.0)))
ASKED = Candidate(CHOICE.with_(quorum=2), "on an edge", EVIL, trials=(trial(0, 3.0), trial(1, 3.5), trial(2, 3.2)))
OTHERS = (
    Candidate(CHOICE.with_(max_staleness=None), "slower", "", scouted_s=9.0),
    Candidate(CHOICE.with_(quorum=1), "breaks a limit", "UE 0 never merged"),
    Candidate(CHOICE.with_(bits=8), "fails", "", trials=(trial(0, 1.0),)),
)
PLAN = Plan(
    perfeds2="0",
    task="digits",
    radio="paper",
    population=10,
    algorithm="PerFedS2",
    seeds=(0, 1, 2),
    target=PlanTarget(0.9, "accuracy", 26.0, 78.0, "given"),
    request=PlanRequest(),
    candidates=(*OTHERS, ASKED, BEST),
    choice=4,
    asked=3,
    headline="90 % after 5.00 s: A = 4",
    sentence=f"Take {CHOICE} {EVIL}.",
    check="",
    command=f"perfeds2 run --task '{EVIL}'",
    trainings=9,
    notes=(),
)
NOTHING = replace(PLAN, choice=None, command=None, candidates=(OTHERS[1], OTHERS[0]), asked=0)


def test_a_plan_says_in_a_line_what_it_recommends():
    assert repr(PLAN) == "<Plan: digits, 10 UEs, 90 % after 5.00 s: A = 4>"


def test_why_nothing_is_recommended_names_what_to_change():
    edge = answer(replace(PLAN, choice=None, candidates=(*OTHERS, replace(ASKED, why="beside A = 1"))))
    assert edge.startswith(
        "Nothing can be recommended: none of 4 choices reaches 90 % personalised test accuracy by 13 s"
    )
    assert edge.endswith(f"{ASKED.choice} would take 3.2 s but stands beside A = 1; lower --beta or --target-accuracy.")
    slow = answer(replace(PLAN, choice=None, candidates=OTHERS[:1]))
    assert slow.endswith("; they are too slow; give a longer --horizon-s, or a lower --target-accuracy.")
    limits = answer(replace(PLAN, choice=None, candidates=OTHERS[1:2]))
    assert limits.endswith(
        f"1 of 1 choices break a limit or never merge a UE, such as {OTHERS[1].choice}: UE 0 never merged."
    )


@pytest.mark.parametrize(
    ("verdict", "why", "said"),
    [
        ("on an edge", "beside A = 1", "is on an edge: kept in all 3 seeds, but beside A = 1."),
        ("not possible", "no round closes.", "cannot be done: no round closes."),
        ("fails", "diverges in 1 of 3 seeds", "does not hold: diverges in 1 of 3 seeds."),
    ],
)
def test_a_check_says_how_the_choice_in_the_settings_ends(verdict, why, said):
    plan = replace(PLAN, candidates=(*OTHERS, replace(ASKED, verdict=verdict, why=why), BEST))
    better = f" Better: {BEST.choice}, after 5 s on the same seeds."
    assert check_answer(plan) == f"The choice in your settings, {ASKED.choice}, {said}{better}"


def test_its_table_has_a_row_a_choice_with_the_recommended_first_and_what_was_asked_next():
    table: Any = PLAN.frame()
    assert len(table) == 5
    assert list(table["quorum"][:2]) == [4, 2]
    assert list(table["seconds"][:2]) == [5.0, 3.2]
    assert list(table["kept"][:2]) == [3, 3]
    unbounded = table[table["verdict"] == "slower"].iloc[0]
    assert unbounded["max_staleness"] is pd.NA
    assert math.isnan(unbounded["seconds"])
    assert unbounded["scouted_s"] == 9.0


def test_a_seed_that_never_reached_the_target_held_it_in_no_evaluation():
    never = replace(trial(1, 4.0), state="never", time_s=None, reached_s=None, held=None)
    assert Candidate(CHOICE, "slower", "", trials=(trial(0, 4.0), never)).held == pytest.approx(0.99 / 2)


def test_only_a_plan_with_noise_has_columns_for_it():
    private = replace(PLAN, candidates=(*OTHERS, ASKED, replace(BEST, noise=2.0, epsilon_worst=3.0)))
    for plan, heads in ((PLAN, set()), (private, {"σ", "ε"})):
        table = candidates_table(plan)
        assert {column.head for column in table.columns} & {"rest", "σ", "ε"} == heads
        assert {len(row) for row in table.rows} == {len(table.columns)}
        assert ("noise" in plan.frame()) == bool(heads)


def test_its_map_has_every_a_and_s_of_the_choice_and_a_star_on_it():
    axes = Figure().subplots()
    assert PLAN.plot(axes) is axes
    lines: Any = axes.lines
    marks = {(line.get_label(), *line.get_xydata()[0]) for line in lines}
    assert marks == {
        ("breaks a limit", 0, 0),
        ("on an edge", 1, 0),
        ("holds", 2, 0),
        ("the choice", 2, 0),
        ("slower", 2, 1),
    }  # not the one with other bits
    assert [text.get_text() for text in axes.get_xticklabels()] == ["1", "2", "4"]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["5", "none"]
    assert {text.get_text() for text in axes.texts} == {"5.00", "3.20", "~9.00", ""}
    legend: Any = axes.get_legend()
    assert len(legend.get_texts()) == 5
    assert {line.get_label() for line in NOTHING.plot(Figure().subplots()).lines} == {"breaks a limit", "slower"}


def test_a_map_has_three_choices_or_the_recommended_one_which_comes_first():
    pair = tuple(Candidate(CHOICE.with_(bits=4, quorum=quorum), "slower", "") for quorum in (1, 2))
    wide = tuple(Candidate(CHOICE.with_(local_steps=2, quorum=quorum), "slower", "") for quorum in range(1, 7))
    plan = replace(PLAN, candidates=(*PLAN.candidates, *pair, *wide))
    assert [(name, len(group)) for name, group in maps_of(plan)] == [(CHOICE.rest, 4), (wide[0].choice.rest, 6)]
    assert [len(group) for _, group in maps_of(replace(plan, choice=None))] == [6, 4]
    assert [len(group) for _, group in maps_of(replace(plan, candidates=(BEST, *pair), choice=0))] == [1]
    assert [len(group) for _, group in maps_of(replace(plan, candidates=(BEST, *pair), choice=None))] == [2]
    assert map_chart(PLAN.candidates[:1], None).height_px == 170  # a row for each S


def test_verdicts_are_told_apart_by_more_than_colour():
    looks = {name: style.marker for name, style in LOOKS.items() if name != "slower"}  # hollow, or grey beside green
    assert len(set(looks.values())) == len(looks)


@pytest.mark.parametrize("plan", [PLAN, NOTHING])
def test_a_notebook_gets_the_sentence_a_map_a_small_table_and_the_line_to_type(plan):
    from matplotlib import pyplot

    shown_before = pyplot.get_fignums()
    page = plan._repr_html_()
    (picture,) = re.findall(r'src="data:image/png;base64,([^"]+)"', page)
    assert base64.b64decode(picture)[:4] == b"\x89PNG"
    assert EVIL not in page
    assert page.startswith("<p>Take A = 4")
    assert page.count("<tr") <= 8
    assert page.count("<pre>perfeds2 run") == (plan.command is not None)
    assert pyplot.get_fignums() == shown_before  # no one else sees it
