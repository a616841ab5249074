"""Does a UE change its base station by event A3? Levels by hand, measured every 160 ms."""

import numpy as np

from perfeds2.network.handover import MEASURE_S, Attached, Handover

LEVELS_DB = {  # of base stations 0, 1 and 2 at each measurement, for one UE that starts at 0
    0: (10, 0, 0),
    1: (10, 14, 0),  # 4 dB better, for the first time
    2: (10, 12, 0),  # only 2 dB better: begins again
    3: (10, 14, 0),
    4: (10, 14, 0),  # the second time in a row: goes to 1
    5: (10, 14, 18),  # 4 dB better than 1, for the first time
    6: (10, 14, 18),  # goes to 2
    7: (30, 14, 18),  # the next change needs two measurements, too
    8: (30, 14, 18),
}


def made() -> Handover:
    last = max(LEVELS_DB)
    return Handover(lambda time_s: np.array([LEVELS_DB[min(round(time_s / MEASURE_S), last)]], float))


def test_a_ue_goes_after_two_measurements_of_three_db():
    assert made().block(0)[:9, 0].tolist() == [0, 0, 0, 0, 1, 1, 2, 2, 0]


def test_what_was_better_than_the_old_base_station_does_not_count_for_the_new_one():
    """Base station 2 was better than 0 once, when the UE went to 1; that it is better than 1 must last as well."""
    levels = [(10, 0, 0), (10, 14, 14), (10, 20, 14), (10, 20, 24), (10, 20, 24)]
    handover = Handover(lambda time_s: np.array([levels[min(round(time_s / MEASURE_S), 4)]], float))
    assert handover.block(0)[:5, 0].tolist() == [0, 0, 1, 1, 2]


def test_the_cell_of_a_ue_depends_only_on_the_time_not_on_what_was_asked_before():
    """And not on other UEs: the same UE beside one that never moves."""
    late_first, in_order = made(), made()
    late = late_first.block(1)
    np.testing.assert_array_equal(late_first.block(0), in_order.block(0))
    np.testing.assert_array_equal(late, in_order.block(1))
    last = max(LEVELS_DB)
    beside = Handover(lambda time_s: np.array([(0, 9, 0), LEVELS_DB[min(round(time_s / MEASURE_S), last)]], float))
    np.testing.assert_array_equal(beside.block(0)[:, 1], in_order.block(0)[:, 0])


def test_changes_are_counted_and_seen_by_the_cells():
    handover = made()
    assert [handover.count(number * MEASURE_S + 1e-9) for number in (3, 4, 6, 8)] == [0, 1, 2, 3]
    second = Attached(handover, 1)
    assert [bool(second.present(number * MEASURE_S + 1e-9)[0]) for number in (3, 4, 5, 6)] == [False, True, True, False]
    assert second.changes_s(0.0) == 4 * MEASURE_S
