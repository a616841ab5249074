"""What ``make mutate`` breaks in a federation over MQTT, in its bound on norms, and in who is where."""

# a file, its tests, and mutants: (old, new, test)
FEDERATION: list[tuple[str, str, *tuple[tuple[str, str, str], ...]]] = [
    (
        "deployment/mqtt/transport.py",
        "deployment/test_mqtt_hostile.py",
        (
            "if job is None or ticket != job.request.ticket:",
            "if job is None:",
            "test_chunks_without_a_head_or_of_another_ticket_are_never_kept",
        ),
        (
            "elif said.here or said.session == peer.session:",
            "else:",
            "test_a_device_that_went_took_its_job_along_and_an_old_will_is_not_believed",
        ),
        ("ue >= self.ues or retained", "ue >= self.ues", "test_what_was_retained_before_is_not_believed"),
    ),
    (
        "deployment/mqtt/transport.py",
        "deployment/test_mqtt_federation.py",
        (
            "        self._send_job(ue)\n",
            "",
            "test_a_device_that_comes_back_answers_the_job_it_had",
        ),
        (
            "if each != self._newest and not self._held[each]",
            "if False",
            "test_a_model_is_published_once_and_cleared_when_no_one_works_on_it",
        ),
    ),
    (
        "deployment/mqtt/wire.py",
        "deployment/test_mqtt_hostile.py",
        ("if 0 < said.bytes <= most", "if 0 < said.bytes", "test_a_head_is_judged_before_any_memory_is_taken"),
        (
            "return data if hashlib.sha256(data).hexdigest() == self.sha256 else None",
            "return data",
            "test_what_has_another_checksum_or_is_no_arrays_is_refused",
        ),
    ),
    (
        "deployment/mqtt/device.py",
        "deployment/test_mqtt_hostile.py",
        (
            "        if name in settings_in(run.settings):",
            "        if False:",
            "test_the_network_never_says_what_a_device_loads_or_where",
        ),
        ("and name not in IMPOSED)", "and False)", "test_what_is_the_servers_own_business_does_not_travel"),
    ),
    (
        "deployment/validate.py",
        "deployment/test_attacks.py",
        (
            "max(median, HARMLESS * whole)",
            "median",
            "test_a_fast_device_does_not_move_the_median_and_tiny_updates_shut_no_one_out",
        ),
        (
            "return min(factor * usual, LARGEST)",
            "return LARGEST",
            "test_who_comes_first_moves_the_model_by_no_more_than_its_own_length",
        ),
    ),
    (
        "deployment/crew.py",
        "deployment/test_crew.py",
        (
            'if self._filed[ue] == "idle":',
            "if True:",
            "test_who_left_while_it_waited_for_its_turn_is_passed_over_until_it_is_back",
        ),
        (
            "(device.merged_in, ue))",
            "(0, ue))",
            "test_who_looks_only_at_who_changed_does_what_one_does_who_looks_at_all",
        ),
    ),
    (
        "deployment/federation.py",
        "deployment/test_federation_by_hand.py",
        (
            "waited_s <= self.own.job_s",
            "waited_s < self.own.job_s",
            "test_a_job_is_given_up_after_its_time_and_not_before_and_never_if_so_told",
        ),
        (
            "self.time_s - max(sent_s, self._reached_s)",
            "self.time_s - sent_s",
            "test_while_the_network_is_away_no_job_is_overdue",
        ),
        (
            "        self._give_up()\n",
            "",
            "test_a_device_that_is_here_and_never_answers_is_given_up_and_set_aside",
        ),
    ),
    (
        "deployment/federation.py",
        "deployment/test_memory.py",
        (
            "if isinstance(self.learner.objective, Stateful) else None",
            "if False else None",
            "test_devices_keep_what_the_simulators_ues_keep",
        ),
    ),
    (
        "deployment/device.py",
        "deployment/test_memory.py",
        ("if ticket not in known:", "if not known:", "test_what_a_job_left_counts_when_the_next_job_names_it"),
        ('leaves("left", left)', 'leaves("left", before)', "test_what_a_job_left_counts_when_the_next_job_names_it"),
        ("if size > 2 *", "if size > 2**40 *", "test_a_file_that_is_not_what_was_written_is_not_believed"),
    ),
    (
        "deployment/merging.py",
        "deployment/test_memory.py",
        (
            "version_of(holders[-1]) != version",
            "version_of(holders[-1]) < 0",
            "test_a_server_has_the_models_that_updates_began_with_and_no_others",
        ),
    ),
]
