"""The table of phones: one row per phone, with units in the names of its columns."""

import csv

import pytest
from command_line import told

FLEET = "name,group,x_m,y_m,battery_wh,cpu_hz\na,cars,30,40,10,1e9\nb,,-60,80,,1e9\nc,homes,10,0,20,2e9\n"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("phones")
    (folder / "fleet.csv").write_text(FLEET)
    flags = "--radio umi --quorum 1 --schedule first --horizon-s 4 --algorithms PerFedS2,PerFed-SYN --quiet --out"
    status, _, said = told("simulate", "--cell", folder / "fleet.csv", *flags.split(), folder / "run")
    assert status == 0, said
    return folder / "run"


def rows_of(run) -> list[dict[str, str]]:
    with (run / "phones.csv").open() as file:
        return list(csv.DictReader(file))


def test_simulate_writes_a_row_for_every_phone(run):
    rows = rows_of(run)
    assert [(row["algorithm"], row["ue"], row["name"], row["group"]) for row in rows] == [
        (algorithm, str(ue), name, group)
        for algorithm in ("PerFedS2", "PerFed-SYN")
        for ue, (name, group) in enumerate((("a", "cars"), ("b", ""), ("c", "homes")))
    ]
    assert (float(rows[1]["x_m"]), float(rows[1]["y_m"])) == pytest.approx((-60, 80))


def test_times_and_joules_add_up(run):
    import json

    algorithms = json.loads((run / "summary.json").read_text())["algorithms"]
    for summary in algorithms:
        rows = [row for row in rows_of(run) if row["algorithm"] == summary["algorithm"]]
        assert sum(float(row["joules"]) for row in rows) == pytest.approx(summary["joules"]["mean"])
        assert sum(int(row["merged"]) for row in rows) == summary["merges"]["mean"]
        times_s = [sum(float(row[f"{what}_s"]) for what in ("computing", "sending", "waiting")) for row in rows]
        assert times_s == pytest.approx([times_s[0]] * 3)
        for row, battery_wh in zip(rows, (10, None, 20), strict=True):
            assert float(row["joules_per_day"]) == pytest.approx(float(row["joules"]) * 86_400 / times_s[0])
            if battery_wh is None:
                assert row["battery_percent_per_day"] == ""
            else:
                share = float(row["joules_per_day"]) / 3600 / battery_wh
                assert float(row["battery_percent_per_day"]) == pytest.approx(100 * share)
