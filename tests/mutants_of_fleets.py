"""What ``make mutate`` breaks in fleets: files, traces, hours, and the clock on them."""

# a file, its tests, and mutants: (old, new, test)
FLEETS: list[tuple[str, str, *tuple[tuple[str, str, str], ...]]] = [
    (
        "timeline/clock.py",
        "timeline/test_fleets.py",
        ("compute_s[away], bits[away] = clock.compute_s[away], clock.bits[away]", "pass", "test_leaving_by_hand"),
        (
            "served = cell.fleet.shares_band if present is None else present & cell.fleet.shares_band",
            "served = present",
            "test_simulate_agrees_with_processes_on_a_mixed_fleet",
        ),
        (
            "replace(closing, time_s=clock.time_s)",
            "closing",
            "test_a_round_closes_no_earlier_than_the_leaving_that_lets_it",
        ),
        (
            "closing.time_s <= border_s and closing.time_s < math.inf",
            "closing.time_s <= border_s",
            "test_a_round_that_waits_for_a_ue_that_has_left_for_good_says_so",
        ),
    ),
    (
        "timeline/clock.py",
        "timeline/test_fleets_that_spend.py",
        (
            "more_j if present is None else np.where(present, more_j, 0.0)",
            "more_j",
            "test_batteries_of_those_who_come_and_go_agree_with_processes",
        ),
        ("job_s[handed] *= slower[handed]", "pass", "test_jobs_that_differ_agree_with_processes"),
    ),
    (
        "timeline/protocol.py",
        "timeline/test_fleets.py",
        ("too_old &= versions != IDLE", "pass", "test_simulate_agrees_with_processes_on_a_mixed_fleet"),
        (
            "idle = idle if here is None else idle[here[idle]]",
            "pass",
            "test_simulate_agrees_with_processes_on_a_mixed_fleet",
        ),
    ),
    (
        "timeline/jobs.py",
        "timeline/test_fleets.py",
        (
            "(log.version <= rounds) & (log.start_s <= time_s)",
            "log.start_s <= time_s",
            "test_a_prefix_where_two_rounds_close_at_once",
        ),
    ),
    (
        "network/availability.py",
        "network/test_fleet_file.py",
        (
            "+ self._borders_s <= time_s)",
            "+ self._borders_s < time_s)",
            "test_hours_repeat_and_borders_belong_to_what_follows",
        ),
    ),
    (
        "network/traces.py",
        "network/test_fleet_file.py",
        ("(periods - before) * self._period_bits + ", "", "test_sending_is_the_integral_of_the_rate_turned_round"),
    ),
    (
        "network/fleet_file.py",
        "network/test_fleet_file.py",
        ('batch / columns["compute_s"]', '1 / columns["compute_s"]', "test_every_column_means_what_it_says"),
    ),
    (
        "deployment/calibrate.py",
        "deployment/test_calibrate.py",
        (
            "sending = compute_s.groupby(laps.ue), beyond_s.groupby",
            "sending = compute_s.groupby(laps.ue), (beyond_s + compute_s).groupby",
            "test_the_fitted_devices_are_those_that_there_were",
        ),
        ("laps.loc[laps.version < rounds]", "laps", "test_only_the_first_rounds_are_looked_at"),
    ),
]
