"""The radios of TR 38.901 against an outside implementation; line of sight, shadows and fading against their laws."""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from perfeds2.errors import InputError
from perfeds2.network.cell import Cell
from perfeds2.network.link import rate_bps
from perfeds2.network.radios import CITY, COUNTRY, RADIOS, STREET, Radio, Where, path_of, shadow_map
from perfeds2.spec.cells import make_cell
from perfeds2.spec.resolve import spec_from

SCENARIOS = {"umi": STREET, "uma": CITY, "rma": COUNTRY}
with (Path(__file__).parent / "reference_radios.csv").open(encoding="utf-8") as file:
    REFERENCE = list(csv.DictReader(file))


def radio_named(name: str, **changes) -> Radio:
    radio = RADIOS[name]
    assert radio is not None
    return replace(radio, **changes)


@pytest.mark.parametrize("name", SCENARIOS)
def test_losses_and_chances_are_sionnas(name):
    """Sionna has the speed of light to all digits, TR 38.901 rounds it: the breakpoints differ by 0.07 %."""
    rows, scenario = [row for row in REFERENCE if row["scenario"] == name], SCENARIOS[name]
    assert len(rows) >= 48
    for row in rows:
        want = {key: float(value) for key, value in row.items() if key != "scenario"}
        radio = radio_named(name, carrier_hz=want["carrier_hz"], bs_height_m=want["bs_m"], ue_height_m=want["ue_m"])
        path = path_of(radio, np.array([want["ground_m"]]))
        assert scenario.mean_db(path, np.array([True]))[0] == pytest.approx(want["seen_db"], abs=0.02), row
        assert scenario.mean_db(path, np.array([False]))[0] == pytest.approx(want["blocked_db"], abs=0.02), row
        assert scenario.chance_to_see(path.ground_m)[0] == pytest.approx(want["chance"], abs=1e-6), row
        assert np.broadcast_to(scenario.shadow_db(path), (1,))[0] == want["shadow_db"], row
        assert scenario.blocked_shadow_db == want["blocked_shadow_db"]
        assert (scenario.shadow_m, scenario.blocked_shadow_m) == (want["alike_m"], want["blocked_alike_m"])


def test_umi_by_hand():
    # 40 m on the ground, 8.5 m up: 40.893 m. LOS 32.4 + 21·lg 40.893 + 20·lg 3.5 = 32.4 + 33.8447 + 10.8814.
    path = path_of(radio_named("umi"), np.array([40.0]))
    assert STREET.mean_db(path, np.array([True]))[0] == pytest.approx(77.1261, abs=1e-3)
    # NLOS 22.4 + 35.3·lg 40.893 + 21.3·lg 3.5 = 22.4 + 56.8914 + 11.5887
    assert STREET.mean_db(path, np.array([False]))[0] == pytest.approx(90.8797, abs=1e-3)


def test_a_real_cell_is_26_db_and_more_worse_than_table_1():
    where = Where(np.full(200, 100.0), np.zeros(200), 0)
    # At 100 m Table I has −76 dB for d^−3.8 and 17 dB for the mean of h.
    paper_db = 10 * np.log10(100**-3.8 * 40 * np.sqrt(np.pi / 2))
    loss_db = radio_named("umi", shadowing_db=0.0).loss_db(radio_named("umi", shadowing_db=0.0), where)
    assert 25 < (paper_db + loss_db).min() < 30
    assert 44 < (paper_db + loss_db).max() < 48


@pytest.mark.parametrize(("name", "distance_m"), [("umi", 60.0), ("uma", 150.0), ("rma", 800.0)])
def test_as_many_are_in_sight_as_should_be(name, distance_m):
    n, radio = 40_000, radio_named(name, shadowing_db=0.0)
    loss_db = radio.loss_db(radio, Where(np.full(n, distance_m), np.zeros(n), 5))
    chance = SCENARIOS[name].chance_to_see(np.array([distance_m]))[0]
    assert np.unique(loss_db.round(6)).size == 2
    assert np.mean(loss_db == loss_db.min()) == pytest.approx(chance, abs=4 * np.sqrt(0.25 / n))


def test_sight_goes_by_the_distance_on_the_ground():
    """All UEs within 18 m on the ground are in sight, although the station's antenna is 20 m away."""
    n, radio = 2000, radio_named("umi", shadowing_db=0.0)
    loss_db = radio.loss_db(radio, Where(np.full(n, 18.0), np.zeros(n), 5))
    assert np.unique(loss_db).size == 1


@pytest.mark.parametrize("apart_m", [0.0, 2.0, 10.0, 25.0])
def test_shadows_are_alike_by_the_distance(apart_m):
    """Over many maps: standard normal, with correlation e^(−Δd/d_c), in any direction."""
    x, y = np.random.default_rng(0).uniform(-5000, 5000, (2, 500))
    maps = [shadow_map(seed, "shadow", 10.0) for seed in range(60)]
    here = np.array([one(x, y) for one in maps])
    there = np.array([one(x + apart_m * 0.6, y + apart_m * 0.8) for one in maps])
    assert here.mean() == pytest.approx(0, abs=0.03)
    assert here.std() == pytest.approx(1, abs=0.02)
    assert np.mean(here * there) == pytest.approx(np.exp(-apart_m / 10), abs=0.03)
    assert stats.kstest(here[:, 0], "norm").pvalue > 1e-3
    assert stats.kurtosis(here.ravel()) == pytest.approx(0, abs=0.15)


def test_a_cells_shadows_have_their_deviation():
    cell = Cell.draw(20_000, 4, radio=radio_named("umi"), radius_m=2000.0)
    bare = replace(cell, radio=radio_named("umi", shadowing_db=0.0))
    shadow_db = 10 * np.log10(bare.mean_signal_hz / cell.mean_signal_hz)
    assert shadow_db.std() == pytest.approx(7.82, rel=0.05)  # at such distances nearly no UE is in sight
    assert shadow_db.mean() == pytest.approx(0, abs=0.5)
    given = replace(cell, radio=radio_named("umi", shadowing_db=2.0))
    assert np.log10(bare.mean_signal_hz / given.mean_signal_hz).std() * 10 == pytest.approx(2.0, rel=0.05)


def test_the_first_ues_are_the_same_in_a_larger_cell():
    small, large = (Cell.draw(n, 9, radio=radio_named("uma"), rician_k=3.0) for n in (5, 70_000))
    large = replace(large, bandwidth_hz=1e6)
    np.testing.assert_array_equal(small.mean_signal_hz, large.mean_signal_hz[:5])
    np.testing.assert_array_equal(small.signal_hz(3), large.signal_hz(3)[:5])
    np.testing.assert_array_equal(large.signal_hz(3, np.array([2, 69_999])), large.signal_hz(3)[[2, 69_999]])


# ---- fading


def strengths(rounds: int = 50, **changes) -> np.ndarray:
    cell = Cell.draw(400, 5, radio=radio_named("umi"), **changes)
    return np.array([cell.signal_hz(k) / cell.mean_signal_hz for k in range(rounds)]).ravel()


def test_a_real_radio_fades_in_power():
    assert stats.kstest(strengths(), "expon").pvalue > 0.01


@pytest.mark.parametrize("k", [0.5, 6.0, 100.0])
def test_rician_fading_has_its_law(k):
    strength = strengths(rician_k=k)
    assert strength.mean() == pytest.approx(1, abs=0.02)
    # |h|²·2(1 + K) is a noncentral χ² of two degrees of freedom, 2K off its centre.
    assert stats.kstest(strength * 2 * (1 + k), stats.ncx2(2, 2 * k).cdf).pvalue > 0.01


def test_table_1_fades_in_amplitude():
    cell = Cell.draw(400, 5, rician_k=6.0)
    h = np.array([cell.signal_hz(k) / cell.mean_signal_hz for k in range(50)]).ravel()
    spread = 40 / np.sqrt(1 + 6)
    assert stats.kstest(h, stats.rice(np.sqrt(2 * 6), scale=spread).cdf).pvalue > 0.01


def test_no_fading_stands_still_at_the_mean_power():
    assert (strengths(rician_k=np.inf) == 1).all()
    paper = Cell.draw(3, 0, rician_k=np.inf)
    np.testing.assert_allclose(paper.signal_hz(0) / paper.mean_signal_hz, 40 * np.sqrt(2))
    np.testing.assert_array_equal(paper.signal_hz(0), paper.signal_hz(7))


@pytest.mark.parametrize("changes", [{}, {"rician_k": 2.0}, {"rician_k": np.inf}])
@pytest.mark.parametrize("name", ["paper", "umi"])
def test_no_fading_is_above_its_bound(name, changes):
    cell = Cell.draw(50_000, 1, radio=RADIOS[name], **changes)
    most = max(float((cell.signal_hz(k) / cell.mean_signal_hz).max()) for k in range(4))
    assert most <= cell.fading.max_ratio <= 30 * most
    deepest = min(float((cell.signal_hz(k) / cell.mean_signal_hz).min()) for k in range(4))
    assert deepest > 0


# ---- power, noise and the cap


def test_the_signal_is_power_over_loss_and_noise():
    radio = radio_named("umi", shadowing_db=0.0, noise_figure_db=5.0)
    cell = Cell(np.array([15.0]), np.array([1e9]), radio=radio, power_w=0.2)  # below 18 m every UE is in sight
    loss_db = 32.4 + 21 * np.log10(np.hypot(15.0, 8.5)) + 20 * np.log10(3.5)
    want_db = 10 * np.log10(200) - loss_db - (-174 + 5)
    assert 10 * np.log10(cell.mean_signal_hz[0]) == pytest.approx(want_db, abs=1e-9)


def test_power_control_by_hand():
    # P0 −80 dBm, α 0.8, PL 100 dB and 2 blocks: −80 + 80 + 3.01 = 3.01 dBm; at PL 140 it would be 35 dBm: full power.
    radio = radio_named("umi", power_control=(-80.0, 0.8))
    power_w = radio.power_w(np.array([1e-10, 1e-14]), 0.2, 360_000.0)
    np.testing.assert_allclose(power_w, [0.002, 0.2], rtol=1e-3)
    assert radio_named("umi").power_w(np.array([1e-10]), 0.2, 1.0) == 0.2


def test_no_link_carries_more_than_the_cap():
    np.testing.assert_allclose(rate_bps(np.array([10.0, 10.0]), np.array([1e9, 30.0]), 7.4), [74.0, 20.0])
    assert Cell.draw(2).cap_bits_per_s_hz is None
    assert Cell.draw(2, radio=RADIOS["umi"]).cap_bits_per_s_hz == 7.4
    assert Cell.draw(2, radio=RADIOS["umi"], most_bits_per_s_hz=5.0).cap_bits_per_s_hz == 5.0


# ---- from a spec


def test_a_spec_says_which_radio():
    spec = spec_from(radio="uma", ues=7, carrier_hz=2e9, fading="rician:4", power_control=[-90, 0.7], efficiency_cap=5)
    cell = make_cell(spec, 3)
    assert cell.radio is not None
    assert (cell.radio.name, cell.radio.carrier_hz, cell.radio.bs_height_m) == ("uma", 2e9, 25.0)
    assert (cell.radio.power_control, cell.rician_k, cell.cap_bits_per_s_hz) == ((-90.0, 0.7), 4.0, 5.0)
    assert cell.power_w == 0.2
    assert make_cell(spec_from(radio="uma", power_w=0.1), 0).power_w == 0.1
    assert make_cell(spec_from(radio="paper"), 0).radio is None
    assert make_cell(spec_from(fading="none"), 0).rician_k == np.inf


def test_a_spec_that_says_nothing_is_written_as_before():
    assert "radio" not in spec_from().values()
    assert spec_from(radio="umi").values()["radio"] == {"name": "umi", "link": "cqi", "speed_mps": 0.83}


def test_a_radio_of_ones_own(tmp_path):
    (tmp_path / "mine.py").write_text("def hilly(distance_m, carrier_hz):\n    return 60 + 0.1 * distance_m\n")
    cell = make_cell(spec_from(radio=f"{tmp_path}/mine.py:hilly", ues=2, distance_m=[100, 200]), 0)
    ratio = cell.mean_signal_hz[0] / cell.mean_signal_hz[1]
    assert 10 * np.log10(ratio) == pytest.approx(10)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"radio": "umx"}, r"--radio 'umx' is not known; did you mean um[ia]"),
        ({"radio": "umi", "path_loss_exponent": 3.0}, "--path-loss-exponent 3.0 has no effect with --radio umi"),
        ({"shadowing_db": 3}, "--shadowing-db 3.0 has no effect with the paper's radio"),
        ({"fading": "rician"}, r"--fading 'rician' is not known; expected none, rayleigh or rician:K"),
        ({"fading": "rician:-1"}, "--fading 'rician:-1' is not known"),
        ({"radio": "umi", "carrier_hz": 1e8}, "--carrier-hz 100000000.0 is out of range"),
        ({"radio": "umi", "power_control": "-90"}, "--power-control"),
    ],
)
def test_what_cannot_be_is_said(settings, words):
    with pytest.raises(InputError, match=words):
        make_cell(spec_from(**settings), 0)


def test_an_own_radio_must_give_a_loss_for_everybody(tmp_path):
    (tmp_path / "mine.py").write_text("def short(distance_m):\n    return distance_m[:1]\n")
    cell = make_cell(spec_from(radio=f"{tmp_path}/mine.py:short", ues=3), 0)
    with pytest.raises(InputError, match="expected a path loss in dB for each of 3 UEs"):
        cell.signal_hz(0)
