"""Does the comparison of links say what its trainings found?"""

from types import SimpleNamespace

import pytest

from benchmarks import real_links
from benchmarks.real_links import ALGORITHMS, LINKS, main


def test_every_link_has_its_settings_and_a_column(tmp_path, monkeypatch, capsys):
    asked = {}

    def compare(*, out, algorithms, **settings):
        asked[out.name] = settings
        times = [5.0, None, 1.0, 3.0, 4.0] if settings.get("errors") else [None, 2.0, None, None, 1.0]
        accuracy = {"mean": 0.9, "low": 0.85, "high": 0.95}
        row = {
            "time_to_target_s": {"values": times},
            "test_accuracy_personal": accuracy,
            "rounds": accuracy | {"high": None},
        }
        return SimpleNamespace(summary={"algorithms": [{"algorithm": name, **row} for name in algorithms]})

    monkeypatch.setattr(real_links, "compare", compare)
    main(["--out", str(tmp_path), "--seeds", "5"])
    said = capsys.readouterr().out
    assert [row for row in said.splitlines() if row.startswith("| PerFedS2")] == [
        "| PerFedS2 | 2 of 5 | 2 of 5 | 2 of 5 | 4.0 (1.0 to never) |",
        "| PerFedS2 | 90.0 ± 5.0 | 90.0 ± 5.0 | 90.0 ± 5.0 | 90.0 ± 5.0 |",
        "| PerFedS2 | 0.9 | 0.9 | 0.9 | 0.9 |",
    ]
    assert said.count("\n|") == 3 * (len(ALGORITHMS) + 2) - 1
    assert list(asked) == ["paper", "umi-shannon", "umi-cqi", "umi-cqi-harq"]
    assert "radio" not in asked["paper"]
    assert (asked["umi-shannon"]["link"], asked["umi-cqi-harq"]["errors"]) == ("shannon", "harq:3")
    with pytest.raises(SystemExit):
        main(["--only", "none"])
    assert len(LINKS) == 4
