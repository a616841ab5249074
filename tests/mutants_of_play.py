"""What ``make mutate`` breaks in the page that is played with."""

PLAY: list[tuple[str, str, *tuple[tuple[str, str, str], ...]]] = [  # a file, its tests, and mutants: (old, new, test)
    (
        "play/server.py",
        "play/test_play_server.py",
        ("len(hosts) != 1 or hosts[0].lower() not in self.server.hosts", "not hosts", "test_a_name_that_was_bound_to_this_machine_by_somebody_else_is_refused"),
        ('self.command != "GET" and site != "same-origin"', 'site == "cross-site"', "test_another_page_that_knows_the_secret_cannot_post"),
        ("int(length) > MOST_BODY", "int(length) > 10**12", "test_bodies_are_small_tables_or_refused"),
    ),
    (
        "play/rounds.py",
        "play/test_play_rounds.py",
        ("complete and timeline.end_s < (1 - GAP) * window_s", "timeline.end_s > window_s", "test_what_has_no_round_yet_is_drawn_all_the_same"),
        ("np.arange(timeline.rounds), timeline.quorum)", "np.arange(1, timeline.rounds + 1), timeline.quorum)", "test_a_merged_job_has_its_round_and_its_staleness"),
        ("if spec.radio.bits not in (None, 32):", "if False:", "test_what_is_weighed_once_is_what_a_run_would_weigh"),
    ),
    (
        "play/knobs.py",
        "play/test_play_knobs.py",
        ("or value not in known[name].values", "or (isinstance(value, float) and value not in known[name].values)", "test_what_the_page_does_not_offer_is_refused"),
    ),
]  # fmt: skip
