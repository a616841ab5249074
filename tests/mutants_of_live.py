"""What ``make mutate`` breaks in what is shown while a command works."""

LIVE: list[tuple[str, str, *tuple[tuple[str, str, str], ...]]] = [  # a file, its tests, and mutants: (old, new, test)
    (
        "runs/progress.py",
        "runs/test_live.py",
        ("if number != len(training.time_s):", "if number > len(training.time_s):", "test_however_the_file_comes_it_says_the_same_and_nothing_twice"),
        ('os.read(self._file, 1) != b"\\n"', 'os.read(self._file, 1) == b""', "test_a_killed_writer_leaves_half_a_line_and_the_next_begins_a_new_one"),
        ("self.command, self.end, self.shares, self.what = str(line[\"begin\"]), \"\", None, \"\"", "self.command, self.end, self.what = str(line[\"begin\"]), \"\", \"\"", "test_the_rest_takes_as_long_as_the_pace_since_the_last_start_says"),
        ("and born(process) != birth", "and not born(process)", "test_a_process_that_is_gone_without_a_word_is_dead_and_one_of_another_machine_is_not"),
    ),
    (
        "runs/trackers.py",
        "runs/test_tracking.py",
        ("if number >= told.get(training.name, 0):", "if True:", "test_what_a_tracker_knows_is_not_told_again"),
        ('("WANDB_MODE", "offline")', '("WANDB_MODE", "online")', "test_wandb_writes_offline_files_unless_it_was_set_up_otherwise"),
        ("if named and out is None:", "if False:", "test_what_is_no_tracker_is_refused_before_anything_is_written"),
    ),
    (
        "report/live_page.py",
        "report/test_live_page.py",
        ("if began_s < self._due_s:", "if False:", "test_the_page_takes_the_reports_place_and_gives_it_back"),
        ("(ended_s - began_s) / SHARE", "0.0", "test_a_page_that_takes_long_to_write_is_written_rarely"),
    ),
    (
        "report/live.py",
        "report/test_live_page.py",
        ("there = times <= training.time_s[-1]", "there = times <= times[-1]", "test_a_curve_is_the_mean_over_the_seeds_that_have_come_so_far"),
    ),
]  # fmt: skip
