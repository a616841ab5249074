"""Claims about the series behind the page and the figures."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure

from perfeds2.network.cell import Cell
from perfeds2.report import series
from perfeds2.report.drawing import draw_curves
from perfeds2.report.run import load_run
from perfeds2.report.style import LineStyle
from perfeds2.report.traces import curve_chart
from perfeds2.timeline.rounds import Protocol
from perfeds2.timeline.simulate import simulate


def test_between_evaluations_the_last_value_stands():
    got = series.carry_forward(np.array([0.0, 2.0]), np.array([5.0, 7.0]), np.array([0.0, 1.9, 2.0, 9.0]))
    assert got.tolist() == [5.0, 5.0, 7.0, 7.0]


@given(
    st.lists(st.tuples(st.floats(0, 10), st.floats(-1, 1)), min_size=1, max_size=8),
    st.lists(st.floats(0, 12), max_size=8),
)
def test_carrying_forward_matches_looking_back_by_hand(evaluations: list[tuple[float, float]], grid: list[float]):
    evaluations = sorted(evaluations, key=lambda e: e[0])
    time_s, values = (np.array(column, float) for column in zip(*evaluations, strict=True))
    got = series.carry_forward(time_s, values, np.array(grid, float))
    for at, value in zip(grid, got, strict=True):
        past = [v for t, v in evaluations if t <= at]
        assert value == past[-1] if past else np.isnan(value)


def test_a_curve_ends_where_a_seed_diverges(compared: Path):
    run = load_run(compared)
    drawn = series.curves(run, "train_loss")
    assert drawn["PerFedS2"].time_s[-1] == 60.0
    assert drawn["FedProx-ASY"].time_s[-1] <= 32.5 < 60.0  # made infinite at the first evaluation after 30 s
    assert all(np.isfinite(curve.mean).all() for curve in drawn.values())


def panel_of(metric: str, **means: list[float]) -> series.CurvePanel:
    time_s = np.arange(3.0)
    curves = {name: series.MeanCurve(time_s, np.array(mean), None, None) for name, mean in means.items()}
    return series.CurvePanel(metric, curves, dict.fromkeys(means, LineStyle("#000000")))


def test_curves_that_coincide_are_said_to_and_only_those():
    accuracy = panel_of(
        "test_accuracy_personal", A=[1.0, 2, 3], B=[1.0, 2, 3], C=[1.0, 2, 3 + 1e-15 * 3], D=[1.0, 2, 3]
    )
    loss = panel_of("train_loss", A=[1.0, 2, 3], B=[1.0, 2, 3], C=[1.0, 2, 3], D=[1.0, 2, 3])
    assert series.said_to_coincide([accuracy]) == ["B and D coincide with A to the last digit."]
    assert series.said_to_coincide([accuracy, replace(accuracy, metric="train_loss")]) == series.said_to_coincide(
        [accuracy]
    )
    assert series.said_to_coincide([accuracy, loss]) == [
        "Personalised test accuracy (%): B and D coincide with A to the last digit.",
        "Global training loss: B, C and D coincide with A to the last digit.",
    ]
    assert series.said_to_coincide([]) == []


def test_who_lies_below_is_wider_on_the_page_and_on_paper():
    panel = panel_of("test_accuracy_personal", A=[1.0, 2, 3], B=[1.0, 2, 3], C=[1.0, 2, 4])
    [plot] = curve_chart(panel, {"A": 0, "B": 1, "C": 2}).plots
    assert [trace["line"]["width"] for trace in plot["data"]] == [5.0, 2.0, 2.0]
    axes = Figure().subplots()
    draw_curves(axes, panel)
    assert axes.lines[0].get_linewidth() > axes.lines[1].get_linewidth() == axes.lines[2].get_linewidth()
    assert [line.get_label() for line in axes.lines] == ["A", "B = A", "C"]


def test_a_loss_that_leaves_the_drawing_takes_its_interval_with_it():
    time_s, flat = np.arange(3.0), np.full(3, 2.0)
    calm = series.MeanCurve(time_s, flat, flat - 0.1, flat + 0.1)
    wild = series.MeanCurve(time_s, np.array([2.0, 1e6, 1e6]), np.array([1.9, -1e6, -1e6]), np.array([2.1, 3e6, 3e6]))
    seen = series.in_view(
        {"calm": calm, "wild": wild, "one": series.MeanCurve(time_s, flat, None, None), "none": None}, "train_loss"
    )
    np.testing.assert_array_equal(np.asarray(seen["calm"].low), flat - 0.1)
    np.testing.assert_array_equal(np.asarray(seen["wild"].low), [1.9, 1e6, 1e6])
    np.testing.assert_array_equal(np.asarray(seen["wild"].high), [2.1, 1e6, 1e6])
    assert (list(seen), seen["one"].low) == (["calm", "wild", "one"], None)


def test_without_a_horizon_a_curve_ends_with_its_shortest_seed(compared: Path):
    run = load_run(compared)
    table = pd.DataFrame(
        {"algorithm": "PerFedS2", "seed": [0, 0, 1, 1], "time_s": [0, 4, 0, 10], "train_loss": [2.0, 1.0, 4.0, 3.0]}
    )
    curve = series.curves(replace(run, metrics=table, horizon_s=None, rounds=7), "train_loss", points=11)["PerFedS2"]
    assert curve.time_s.tolist() == [0, 1, 2, 3, 4]
    assert curve.mean.tolist() == [3.0, 3.0, 3.0, 3.0, 2.5]


def test_algorithms_with_one_timeline_form_one_group(compared: Path):
    labels = [group.label for group in series.groups(load_run(compared))]
    assert labels == [
        "FedAvg-SYN, FedProx-SYN, PerFed-SYN",
        "FedAvgS2, FedProxS2, PerFedS2",
        "FedAvg-ASY, FedProx-ASY, PerFed-ASY",
    ]


@given(st.integers(0, 5000))
def test_every_staleness_has_one_bin(largest: int):
    starts, labels = series.staleness_bins(largest)
    covered = []
    for label in labels:
        first, _, last = label.partition("–")
        covered += range(int(first), int(last or first) + 1)
    assert covered == list(range(largest + 1))
    assert starts.tolist() == [int(label.partition("–")[0]) for label in labels]
    assert len(labels) <= 30


def test_staleness_shares_count_every_merge(compared: Path):
    run = load_run(compared)
    for group in series.groups(run):
        starts, _ = series.staleness_bins(max(t.depth for t in group.timelines) - 1)
        shares = series.staleness_shares(group, starts)
        merged = np.concatenate([t.staleness.ravel() for t in group.timelines])
        assert shares.sum() == pytest.approx(1.0)
        assert shares[0] == (merged == 0).mean()


@pytest.mark.parametrize("protocol", [Protocol(6), Protocol(2, 1), Protocol(2, 1, "wait"), Protocol(1)])
def test_activity_covers_the_window_of_every_ue_without_gaps(protocol: Protocol):
    timeline = simulate(Cell.draw(6, 3), protocol, payload_bits=1e6, samples=4000.0, rounds=60)
    window_s = timeline.end_s / 3
    activity = series.activity(timeline, window_s, rows=6)
    rows = np.concatenate(list(activity.intervals.values()))
    for ue in range(6):
        mine = rows[rows[:, 0] == ue]
        assert (mine[:, 2] - mine[:, 1]).sum() == pytest.approx(window_s)
    assert activity.merges.shape[0] == timeline.ues[: timeline.until(window_s)].size


def test_a_restarted_job_is_marked_as_thrown_away():
    timeline = simulate(Cell.draw(6, 3), Protocol(1, 1), payload_bits=1e6, samples=4000.0, rounds=30)
    assert len(series.activity(timeline, timeline.end_s, rows=6).lost) == timeline.lost > 0


def test_the_window_shows_a_few_jobs_and_never_too_many():
    timeline = simulate(Cell.draw(6, 3), Protocol(6), payload_bits=1e6, samples=4000.0, rounds=60)
    assert series.activity_window_s([timeline], rows=6) == timeline.time_s[3]  # four synchronous rounds: four jobs each
    assert series.activity_window_s([timeline], rows=6, most_jobs=13) == timeline.time_s[1]  # the 14th job starts there


def test_a_folder_that_is_none_is_refused_with_what_to_do(tmp_path: Path):
    with pytest.raises(ValueError, match=r"no summary\.json"):
        load_run(tmp_path)
    (tmp_path / "summary.json").write_text(json.dumps({"algorithms": []}))
    with pytest.raises(ValueError, match="not a summary"):
        load_run(tmp_path)


def test_curves_are_drawn_over_what_is_asked_for():
    from dataclasses import replace

    import pandas as pd

    from perfeds2.report.run import Run, over

    rows = {
        "algorithm": ["A"] * 3,
        "seed": [0] * 3,
        "round": [0, 4, 9],
        "time_s": [0.0, 1.0, 2.0],
        "joules": [0.0, 5.0, 7.0],
    }
    run = Run("0", "compare", "digits", 4, 2.0, None, (0,), None, (), (), metrics=pd.DataFrame(rows))
    assert over(run, "seconds") is run
    drawn = over(run, "joules")
    assert drawn.metrics is not None
    assert drawn.metrics["time_s"].tolist() == [0.0, 5.0, 7.0]
    assert (drawn.time_label, drawn.horizon_s) == ("Energy of all UEs (J)", None)
    assert over(run, "rounds").time_label == "Rounds"
    with pytest.raises(ValueError, match=r"metrics\.csv does not have all merged_bits"):
        over(replace(run), "bits")
