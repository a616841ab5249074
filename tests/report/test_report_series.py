"""Claims about the series behind the page and the figures."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure

from perfeds2.chart import Bars, Chart, ChartAxis, LineStyle, Series, draw
from perfeds2.network.cell import Cell
from perfeds2.report import curves, timelines
from perfeds2.report.document import coincidences
from perfeds2.report.on_page import plot
from perfeds2.report.read import RunResults, load_run, over
from perfeds2.timeline.protocol import Protocol
from perfeds2.timeline.simulate import simulate


def test_between_evaluations_the_last_value_stands():
    got = curves.carry_forward(np.array([0.0, 2.0]), np.array([5.0, 7.0]), np.array([0.0, 1.9, 2.0, 9.0]))
    assert got.tolist() == [5.0, 5.0, 7.0, 7.0]


@given(
    st.lists(st.tuples(st.floats(0, 10), st.floats(-1, 1)), min_size=1, max_size=8),
    st.lists(st.floats(0, 12), max_size=8),
)
def test_carrying_forward_matches_looking_back_by_hand(evaluations: list[tuple[float, float]], grid: list[float]):
    evaluations = sorted(evaluations, key=lambda e: e[0])
    time_s, values = (np.array(column, float) for column in zip(*evaluations, strict=True))
    got = curves.carry_forward(time_s, values, np.array(grid, float))
    for at, value in zip(grid, got, strict=True):
        past = [v for t, v in evaluations if t <= at]
        assert value == past[-1] if past else np.isnan(value)


def test_a_curve_ends_where_a_seed_diverges(compared: Path):
    run = load_run(compared)
    (chart,) = curves.run_charts(run, ["train_loss"])
    drawn = {line.name: line for line in chart.series}
    assert drawn["PerFedS2"].x[-1] == 60.0
    assert drawn["FedProx-ASY"].x[-1] <= 32.5 < 60.0  # made infinite at the first evaluation after 30 s
    assert all(np.isfinite(line.y).all() for line in drawn.values())


BLACK = LineStyle("#000000")


def chart_of(title: str, **lines: list[float]) -> Chart:
    return Chart("a", title, [Series(name, np.arange(3.0), np.array(y), BLACK) for name, y in lines.items()])


def test_curves_that_coincide_are_said_to_and_only_those():
    accuracy = chart_of("Accuracy", A=[1.0, 2, 3], B=[1.0, 2, 3], C=[1.0, 2, 3 + 1e-15 * 3], D=[1.0, 2, 3])
    loss = chart_of("Loss", A=[1.0, 2, 3], B=[1.0, 2, 3], C=[1.0, 2, 3], D=[1.0, 2, 3])
    assert coincidences([accuracy]) == ["B and D coincide with A to the last digit."]
    assert coincidences([accuracy, replace(accuracy, title="Loss")]) == coincidences([accuracy])
    assert coincidences([accuracy, loss]) == [
        "Accuracy: B and D coincide with A to the last digit.",
        "Loss: B, C and D coincide with A to the last digit.",
    ]
    assert coincidences([]) == []


def test_who_lies_below_is_wider_on_the_page_and_on_paper():
    chart = chart_of("Accuracy", A=[1.0, 2, 3], B=[1.0, 2, 3], C=[1.0, 2, 4])
    assert [trace["line"]["width"] for trace in plot(chart)["data"]] == [5.0, 2.0, 2.0]
    axes = draw(Figure().subplots(), chart)
    assert axes.lines[0].get_linewidth() > axes.lines[1].get_linewidth() == axes.lines[2].get_linewidth()
    assert [line.get_label() for line in axes.lines] == ["A", "B = A", "C"]


def test_a_loss_that_leaves_the_drawing_takes_its_interval_with_it():
    time_s, flat = np.arange(3.0), np.full(3, 2.0)
    calm = Series("calm", time_s, flat, BLACK, low=flat - 0.1, high=flat + 0.1)
    wild = Series(
        "wild",
        time_s,
        np.array([2.0, 1e6, 1e6]),
        BLACK,
        low=np.array([1.9, -1e6, -1e6]),
        high=np.array([2.1, 3e6, 3e6]),
    )
    shown = [calm, wild, Series("one", time_s, flat, BLACK)]
    seen = [curves.bounded(line, 0.0, curves.loss_ceiling(shown)) for line in shown]
    np.testing.assert_array_equal(seen[0].low, flat - 0.1)
    np.testing.assert_array_equal(seen[1].low, [1.9, 1e6, 1e6])
    np.testing.assert_array_equal(seen[1].high, [2.1, 1e6, 1e6])
    assert seen[2].low is None


def test_without_a_horizon_a_curve_ends_with_its_shortest_seed(compared: Path):
    run = load_run(compared)
    table = pd.DataFrame(
        {"algorithm": "PerFedS2", "seed": [0, 0, 1, 1], "time_s": [0, 4, 0, 10], "train_loss": [2.0, 1.0, 4.0, 3.0]}
    )
    chart = curves.curve_chart(table, "train_loss", run.styles, run.score, points=11)
    (curve,) = chart.series
    assert curve.name == "PerFedS2"
    assert curve.x.tolist() == [0, 1, 2, 3, 4]
    assert curve.y.tolist() == [3.0, 3.0, 3.0, 3.0, 2.5]


def test_algorithms_with_one_timeline_form_one_group(compared: Path):
    labels = [group.label for group in timelines.groups(load_run(compared))]
    assert labels == [
        "FedAvgS2, FedProxS2, PerFedS2",  # the winner's first
        "FedAvg-SYN, FedProx-SYN, PerFed-SYN",
        "FedAvg-ASY, FedProx-ASY, PerFed-ASY",
    ]


def test_the_staleness_chart_counts_every_merge(compared: Path):
    run = load_run(compared)
    groups = timelines.groups(run)
    staleness, shares = timelines.merge_charts(run, groups)
    for group, line in zip(groups, staleness.series, strict=True):
        merged = np.concatenate([t.staleness.ravel() for t in group.timelines])
        for age, percent in zip(line.x, line.y, strict=True):
            assert 100 * (merged < age).mean() <= percent + 1e-9 <= 100 * (merged <= age).mean() + 2e-9
    for group, line in zip(groups, shares.series, strict=True):
        assert line.y == pytest.approx(100 * group.timelines[0].shares)
        assert sum(line.y) == pytest.approx(100.0)


def marks(chart: Chart) -> dict[str, int]:
    return {line.name: len(line.x) for line in chart.series}


@pytest.mark.parametrize("protocol", [Protocol(6), Protocol(2, 1), Protocol(2, 1, "wait"), Protocol(1)])
def test_activity_covers_the_window_of_every_ue_without_gaps(protocol: Protocol):
    timeline = simulate(Cell.draw(6, 3), protocol, payload_bits=1e6, samples=4000.0, rounds=60)
    window_s = timeline.end_s / 3
    chart = timeline.activity_chart(window_s, 6)
    bars = [item for item in chart.items if isinstance(item, Bars)]
    for ue in range(6):
        assert sum(each.length[each.at == ue].sum() for each in bars) == pytest.approx(window_s)
    assert marks(chart)["merged"] == timeline.ues[: timeline.until(window_s)].size


def test_a_merge_at_the_edge_of_the_window_is_marked():
    timeline = simulate(Cell.draw(6, 3), Protocol(2, 1), payload_bits=1e6, samples=4000.0, rounds=12)
    assert marks(timeline.activity_chart(float(timeline.time_s[7]), 6))["merged"] == 8 * 2


def test_a_restarted_job_is_marked_as_thrown_away():
    timeline = simulate(Cell.draw(6, 3), Protocol(1, 1), payload_bits=1e6, samples=4000.0, rounds=30)
    assert marks(timeline.activity_chart(timeline.end_s, 6))["discarded"] == timeline.lost > 0


def test_the_activity_opens_with_the_winner(compared):
    run = load_run(compared)
    reached = [(each.median(), each.name) for each in run.algorithms if each.reached == each.seeds]
    assert run.winner.name == min(reached)[1]
    first, *others = timelines.groups(run)
    assert run.winner in first.algorithms
    assert [run.algorithms.index(group.algorithms[0]) for group in others] == sorted(
        run.algorithms.index(group.algorithms[0]) for group in others
    )


def test_the_window_shows_a_few_jobs_and_never_too_many():
    timeline = simulate(Cell.draw(6, 3), Protocol(6), payload_bits=1e6, samples=4000.0, rounds=60)
    assert (
        timelines.activity_window_s([timeline], rows=6) == timeline.time_s[3]
    )  # four synchronous rounds: four jobs each
    assert (
        timelines.activity_window_s([timeline], rows=6, most_jobs=13) == timeline.time_s[1]
    )  # the 14th job starts there


def test_a_folder_that_is_none_is_refused_with_what_to_do(tmp_path: Path):
    with pytest.raises(ValueError, match=r"no summary\.json"):
        load_run(tmp_path)
    (tmp_path / "summary.json").write_text(json.dumps({"algorithms": []}))
    with pytest.raises(ValueError, match="not a summary"):
        load_run(tmp_path)


def test_curves_are_drawn_over_what_is_asked_for():
    rows = {
        "algorithm": ["A"] * 3,
        "seed": [0] * 3,
        "round": [0, 4, 9],
        "time_s": [0.0, 1.0, 2.0],
        "joules": [0.0, 5.0, 7.0],
    }
    run = RunResults("compare", (0,), (), None, ues=4, horizon_s=2.0, metrics=pd.DataFrame(rows))
    assert over(run, "seconds") is run
    drawn = over(run, "joules")
    assert drawn.metrics is not None
    assert drawn.metrics["time_s"].tolist() == [0.0, 5.0, 7.0]
    assert (drawn.x_words, over(run, "rounds").x_words) == ("energy", "rounds")
    with pytest.raises(ValueError, match=r"metrics\.csv has no complete column merged_bits"):
        over(run, "bits")


def test_every_item_of_a_chart_is_drawn_on_the_page_and_on_paper():
    line = Series(
        "line", [1.0, 2.0], [3.0, 4.0], LineStyle("#000000", (7, 3), "o"), "line", low=[2.0, 3.0], high=[4.0, 5.0]
    )
    marks = Series("marks", [1.0], [2.0], LineStyle("", (), "*"), "marks", texts=["<b>"], hover=["<i>"], hollow=True)
    bars = Bars("bars", [1, 2], [0, 1], [3, 4], "#222222")
    ticks = ChartAxis("x", ticks={0: "zero", 1: "one"})
    for item in (line, marks, bars):
        chart = Chart("chart", "Title", [item], ticks, ticks, level=(1.0, "level"))
        go.Figure(plot(chart))  # refuses a property that does not exist
        assert "<b>" not in str(plot(chart))
        assert "<i>" not in str(plot(chart))
        axes = draw(Figure().subplots(), chart)
        assert axes.has_data()
        assert [text.get_text() for text in axes.get_xticklabels()] == ["zero", "one"]
