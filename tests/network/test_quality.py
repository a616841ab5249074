"""How good links are, and when no modem would carry what they promise."""

import json
from dataclasses import astuple

import numpy as np
import pytest

from perfeds2.network.cell import Cell
from perfeds2.network.fleet import Fleet
from perfeds2.network.quality import MAX_CARRIED, Deciles, Quality, beyond_modulation, link_quality
from perfeds2.report.run import print_summary, write_report
from perfeds2.spec.resolve import spec_from
from perfeds2.studies.compare import simulate_spec


def test_the_quality_by_hand():
    # Eleven UEs whose signals are 1, 3, 7, … times their tenth of the band: 1, 2, 3, … 11 bit/s/Hz, and the same each round.
    class Steps(Cell):
        def signal_hz(self, round_, ues=None):  # noqa: ARG002 (as a cell is asked)
            return (2.0 ** np.arange(1, 12) - 1) * self.bandwidth_hz / 11

    quality = link_quality([Steps(np.ones(11), np.ones(11))])
    assert quality is not None
    assert astuple(quality.bits_per_s_hz) == pytest.approx((2.0, 6.0, 10.0))
    assert quality.snr_db.median == pytest.approx(10 * np.log10(63))


def test_ues_with_uplinks_of_their_own_take_no_part_of_the_band():
    own_bps = np.array([np.nan, np.nan, 1e5, 1e5])
    cell = Cell(np.full(4, 50.0), np.ones(4), rician_k=np.inf, fleet=Fleet(np.full(4, np.nan), own_bps))
    quality = link_quality([cell])
    assert quality is not None
    halves_hz = cell.signal_hz(0)[:2] / (cell.bandwidth_hz / 2)
    assert quality.snr_db.median == pytest.approx(10 * np.log10(np.median(halves_hz)))


def test_table_1_is_far_better_than_modulation():
    quality = link_quality(Cell.draw(50, seed) for seed in range(5))
    assert quality is not None
    assert 67 < quality.snr_db.low < quality.snr_db.median < quality.snr_db.high < 105
    assert quality.bits_per_s_hz.low > 22 > MAX_CARRIED
    assert "the paper's Table I promises" in (beyond_modulation("paper", quality) or "")


def test_what_modulation_carries_is_no_warning():
    links = Quality(Deciles(0.0, 10.0, 20.0), Deciles(1.0, 7.4, 9.0))
    assert beyond_modulation("umi", links) is None
    assert "umi" in (beyond_modulation("umi", Quality(links.snr_db, Deciles(1.0, 7.5, 9.0))) or "")


def test_a_million_links_are_looked_at_once():
    class Counting(Cell):
        seen = 0

        def signal_hz(self, round_, ues=None):  # noqa: ARG002 (as a cell is asked)
            Counting.seen += 1
            return np.full(self.ues, 1.0)

    link_quality([Counting(np.ones(1_000_000), np.ones(1_000_000))])
    assert Counting.seen == 1


def test_a_run_says_how_good_its_links_are(tmp_path, capsys):
    summary = simulate_spec(spec_from(ues=8, quorum=2, rounds=20, seeds=[0]), "simulate", None).summary
    assert summary["radio"]["name"] == "paper"
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    print_summary(tmp_path)
    assert "Note: radio paper: the paper's Table I promises" in " ".join(capsys.readouterr().out.split())
    assert "Radio paper: SNR" in write_report(tmp_path).read_text()


def test_a_realistic_radio_is_in_the_terminal_and_names_its_ratio(tmp_path, capsys):
    flags = {"ues": 6, "quorum": 2, "rounds": 4, "seeds": [0], "radio": "umi", "bandwidth_hz": 1e7, "cells": 2}
    for interference, ratio in (
        (None, "SNR"),
        ("full", "SINR"),
        (3.0, "SINR"),
        ("coupled", "SNR (without interference)"),
    ):
        given = {} if interference is None else {"interference": interference}
        summary = simulate_spec(spec_from(**flags, **given), "simulate", None).summary
        assert summary["radio"]["warning"] is None
        (tmp_path / "summary.json").write_text(json.dumps(summary))
        print_summary(tmp_path)
        assert f"Radio umi: {ratio} " in capsys.readouterr().out
