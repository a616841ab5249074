"""Claims about how lines are told apart."""

from itertools import pairwise

import pytest

from perfeds2.report.style import COLOURS, DASHES_PX, SPARE_COLOURS, algorithm_styles, named_styles, ordered_styles

NINE = [
    (f"{objective}{dash}{mode}", objective, mode)
    for objective in COLOURS
    for dash, mode in (("-", "SYN"), ("", "S2"), ("-", "ASY"))
]


def test_the_papers_nine_look_alike_wherever_they_are_drawn():
    styles = algorithm_styles(NINE)
    assert styles == named_styles([name for name, _, _ in NINE])
    assert all((styles[n].colour, styles[n].dash_px) == (COLOURS[o], DASHES_PX[m]) for n, o, m in NINE)


def test_the_papers_nine_can_be_told_apart_without_colour():
    styles = algorithm_styles(NINE).values()
    assert len({(style.dash_px, style.marker) for style in styles}) == 9
    assert all(style.marker for style in styles)


@pytest.mark.parametrize("own", [1, 3, 15])
def test_own_algorithms_have_colours_and_dashes_of_their_own(own: int):
    mine = [(f"Mine {number}", "PerFed", "custom") for number in range(own)]
    styles = algorithm_styles([*mine, *NINE])
    assert list(styles) == [name for name, _, _ in (*mine, *NINE)]
    assert len(set(styles.values())) == own + 9
    for name, _, _ in mine:
        assert styles[name].colour in SPARE_COLOURS
        assert styles[name].dash_px not in DASHES_PX.values()
    assert named_styles(["MineS2", "PerFedS2"])["MineS2"].dash_px not in DASHES_PX.values()


def test_an_own_objective_keeps_its_modes_dash_and_two_of_a_kind_differ():
    styles = algorithm_styles([("A", "Own", "S2"), ("B", "Own", "ASY"), ("C", "Own", "S2"), ("D", "PerFed", "custom")])
    assert (styles["A"].dash_px, styles["B"].dash_px) == (DASHES_PX["S2"], DASHES_PX["ASY"])
    assert styles["A"].colour == styles["B"].colour != styles["D"].colour
    assert len(set(styles.values())) == 4


def test_a_dozen_values_of_a_setting_differ_in_colour_and_neighbours_in_dash():
    styles = list(ordered_styles([str(number) for number in range(12)]).values())
    assert len({style.colour for style in styles}) == 12
    assert all(one.dash_px != two.dash_px and one.marker != two.marker for one, two in pairwise(styles))
    few = list(ordered_styles(list("abc")).values())
    assert len({style.dash_px for style in few}) == len({style.marker for style in few}) == 3
