"""Do a cell, a timeline and results say in a line what they are, and show the same as a table and as a drawing?"""

import base64
import re
from dataclasses import replace
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest

from perfeds2.errors import InputError
from perfeds2.network.cell import Cell
from perfeds2.network.radios import RADIOS
from perfeds2.runs.comparison import Comparison
from perfeds2.spec.resolve import spec_from
from perfeds2.studies.compare import simulate_spec
from perfeds2.studies.grid import make_grid
from perfeds2.studies.sweep import Sweep
from perfeds2.timeline.protocol import Protocol
from perfeds2.timeline.simulate import simulate

mpl.use("agg")
CELL = Cell.draw(6, seed=3)
TIMELINE = simulate(CELL, Protocol(2, 1), payload_bits=1e5, samples=200.0, rounds=50)
EVIL = "<script>alert(1)</script>"


@pytest.fixture(autouse=True)
def _closed():
    from matplotlib import pyplot

    pyplot.close("all")
    yield
    pyplot.close("all")


@pytest.fixture(scope="module")
def played() -> Comparison:
    return simulate_spec(spec_from(ues=6, quorum=2, horizon_s=0.3, seeds=[0, 1]), "simulate", None)


@pytest.fixture(scope="module")
def trained(played: Comparison) -> Comparison:
    """The same rounds with made-up learning."""
    rows = [
        {"algorithm": name, "seed": seed, "round": k, "time_s": k / 10, "test_accuracy_personal": 0.2 * k + 0.1 * seed}
        for name in ("PerFedS2", "PerFed-SYN")
        for seed in (0, 1)
        for k in range(4)
    ]
    summary = played.summary | {
        "algorithms": [
            {"algorithm": "PerFedS2", "rounds": {"mean": 3.0}, "test_accuracy_personal": {"mean": 0.65}},
            {"algorithm": EVIL, "rounds": {"mean": 3.0}, "test_accuracy_personal": {"mean": None}},
        ]
    }
    return Comparison(played.spec, summary, played.timelines, rows, [], {})


@pytest.fixture
def swept(tmp_path) -> Sweep:
    heads = "quorum,algorithm,seeds,test_accuracy_personal_mean\n"
    (tmp_path / "sweep_summary.csv").write_text(heads + "1,PerFedS2,2,0.5\n2,PerFedS2,2,0.75\n1,PerFed-ASY,2,0.25\n")
    (tmp_path / "sweep.csv").write_text("quorum,algorithm,seed,time_s\n1,PerFedS2,0,0.0\n")
    return Sweep(tmp_path, make_grid({"cell": {"ues": 4}}, {"quorum": [1, 2], "seed": [0, 1]}), ())


def test_each_says_in_a_line_what_it_is(played, trained, swept):
    assert repr(CELL) == "<Cell: 6 UEs, 101 to 190 m, 0.2 to 1.3 GHz, 1 MHz, seed 3>"
    assert repr(TIMELINE).startswith("<Timeline: 6 UEs, 50 rounds of 2 in ")
    assert repr(TIMELINE.prefix(0)) == "<Timeline: 6 UEs, no round closed>"
    assert repr(played) == "<Comparison: digits, 6 UEs, 0.3 s, 6 algorithms, 2 seeds, nothing trained>"
    assert "PerFedS2 ends highest at 0.65" in repr(trained)
    assert repr(swept) == f"<Sweep: 2 quorum, 2 seeds, in {swept.path}>"
    for each in (CELL, TIMELINE, played, trained, swept):
        assert len(repr(each)) < 300
        assert "\n" not in repr(each)


def test_they_are_equal_when_they_were():
    assert TIMELINE == TIMELINE
    assert replace(Cell.draw(1, 0), distance_m=np.array([5.0])).seed == 0
    own = type("Mine", (Cell,), {})
    assert repr(own.draw(2)).startswith("<Mine: 2 UEs")


def test_a_cells_table_has_its_ues_and_their_mean_snr():
    for radio in (None, RADIOS["umi"]):
        cell = Cell.draw(6, seed=3, radio=radio)
        table = cell.frame()
        assert list(table["ue"]) == list(range(6))
        np.testing.assert_allclose(np.hypot(table["x_m"], table["y_m"]), cell.distance_m)
        fading = np.mean([cell.signal_hz(k) for k in range(4000)], axis=0) * 6 / cell.bandwidth_hz
        assert np.abs(table["snr_db"] - 10 * np.log10(fading)).max() < 1.5  # near the mean over the fading


def test_a_timelines_table_is_its_activity():
    """Two ways to the seconds of each UE: rows of jobs, and the intervals of its activity."""
    table: Any = TIMELINE.frame()
    assert (table["outcome"] == "merged").sum() == TIMELINE.ues.size
    assert (table["outcome"] == "lost").sum() == TIMELINE.lost
    merged = table[table["outcome"] == "merged"]
    assert sorted(merged["staleness"]) == sorted(TIMELINE.staleness.ravel())
    assert merged["staleness"].max() <= 1
    assert table[table["outcome"] != "merged"]["round"].isna().all()
    for ue in range(6):
        own = table[table["ue"] == ue]
        sent = sum(end - start for state, start, end in TIMELINE.activity(ue) if state == "sending")
        assert (own["arrival_s"] - own["sending_s"]).sum() == pytest.approx(sent)


@pytest.mark.slow
def test_each_draws_where_it_is_told_or_in_a_figure_of_its_own(trained, swept):
    from matplotlib.figure import Figure

    for thing in (CELL, TIMELINE, trained, swept):
        axes = Figure().subplots()
        assert thing.plot(axes) is axes
        assert axes.has_data()
        assert thing.plot().figure is not axes.figure
    lines = {line.get_label(): line for line in trained.plot().lines}
    np.testing.assert_allclose(lines["PerFedS2"].get_ydata(), [0.05, 0.25, 0.45, 0.65])
    assert lines["PerFedS2"].get_linestyle() == "-"
    assert lines["PerFed-SYN = PerFedS2"].get_linestyle() != "-"  # the lines coincide
    assert [list(line.get_xdata()) for line in swept.plot().lines] == [[1, 2], [1]]
    assert TIMELINE.plot(until_s=TIMELINE.time_s[9]).get_xlim()[1] == 1.01 * TIMELINE.time_s[9]
    assert TIMELINE.prefix(0).plot().get_xlabel() == "simulated seconds"


@pytest.mark.slow
def test_a_notebook_gets_a_drawing_and_a_small_table_and_no_markup_of_names(played, trained, swept):
    for thing, draws in ((CELL, 1), (TIMELINE, 1), (trained, 1), (swept, 1), (played, 0)):
        page = thing._repr_html_()
        pictures = re.findall(r'src="data:image/png;base64,([^"]+)"', page)
        assert len(pictures) == draws
        for picture in pictures:
            assert base64.b64decode(picture)[:4] == b"\x89PNG"
        assert page.count("<tr") <= 8
        assert len(page) < 120_000
        assert EVIL not in page
    from matplotlib import pyplot

    assert pyplot.get_fignums() == []  # no one else sees them


def test_what_cannot_be_drawn_is_said(played, trained, swept):
    with pytest.raises(InputError, match="nothing was trained"):
        played.plot()
    with pytest.raises(InputError, match="there is no 'nonsense'; expected one of test_accuracy_personal"):
        trained.plot(metric="nonsense")
    with pytest.raises(InputError, match="'ues' is not a setting of this grid; expected one of quorum"):
        swept.plot(over="ues")
    assert list(played.frame()["algorithm"])[:1] == ["FedAvg-SYN"]
    assert len(swept.frame()) == 1
    assert len(trained.frame()) == 16
