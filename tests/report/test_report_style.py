"""Claims about how lines are told apart."""

from itertools import pairwise

import numpy as np
import pytest
from matplotlib.figure import Figure

from perfeds2.chart import Chart, LineStyle, Series, draw
from perfeds2.report.on_page import SYMBOLS, plot
from perfeds2.report.style import COLOURS, DASHES_PX, SPARE_COLOURS, algorithm_styles, named_styles, ordered_styles
from perfeds2.report.tables import MARKS

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


@pytest.mark.parametrize("count", [3, 22])
def test_every_method_has_a_colour_a_dash_and_a_marker_of_its_own(count: int):
    """A figure of methods that are all semi-synchronous, with one that shares its objective with another."""
    others = [(f"Method {number}", f"Method {number}", "S2") for number in range(count - 1)]
    styles = algorithm_styles([*NINE[1::3], *others, ("FedBuff", "FedAvg", "S2")])
    assert all(style.marker for style in styles.values())
    assert len({(style.dash_px, style.marker) for style in styles.values()}) == 3 + count  # in greyscale print
    further = [style for name, style in styles.items() if name not in {name for name, _, _ in NINE}]
    assert all(style.dash_px for style in further)
    assert len({style.colour for style in further}) == len({style.dash_px for style in further}) == min(count, 5)
    assert {style.marker for style in styles.values()} <= MARKS.keys() & {*SYMBOLS}


def test_a_line_through_many_points_has_a_few_markers():
    line = Series("a", np.arange(200.0), np.arange(200.0), LineStyle("#000000", (), "o"), "line")
    axes = draw(Figure().subplots(), Chart("c", "c", [line]))
    assert axes.lines[0].get_markevery() == (4, 40)
    (trace,) = plot(Chart("c", "c", [line]))["data"]
    assert trace["marker"]["maxdisplayed"] == 6
