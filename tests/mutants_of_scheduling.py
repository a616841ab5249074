"""What ``make mutate`` breaks in schedulers, tiers and drafts."""

# a file, its tests, and mutants: (old, new, test)
SCHEDULING: list[tuple[str, str, *tuple[tuple[str, str, str], ...]]] = [
    (
        "allocation/schedulers.py",
        "allocation/test_schedulers.py",
        (
            "return _first(moment, -moment.signal_hz, -moment.age)",
            "return _first(moment, -moment.age)",
            "test_age_leaves_the_smallest_sum_of_ages_and_of_those_the_best_heard",
        ),
        ("np.maximum(moment.compute_s - elapsed_s, 0.0)", "moment.compute_s", "test_fedcs_by_hand"),
        (
            "if block + 1 < self._blocks:",
            "if block < 0:",
            "test_proportional_fair_is_its_definition_in_whatever_order_it_is_asked",
        ),
        (
            "cell.block_at(moment.round, moment.time_s)",
            "moment.round",
            "test_proportional_fair_means_over_blocks_of_time_where_fading_has_a_coherence_time",
        ),
        ("moment.signal_hz, moment.most_bits_per_s_hz", "moment.signal_hz", "test_fedcs_knows_what_modulation_carries"),
        (
            "np.maximum(late_s, 0.0))",
            "-np.maximum(late_s, 0.0))",
            "test_who_is_not_heard_at_all_is_chosen_last_and_who_has_arrived_first",
        ),
        ("0.0, -success)", "0.0, success)", "test_chen_is_the_best_of_all_assignments_that_meet_the_deadline"),
    ),
    (
        "timeline/protocol.py",
        "timeline/test_schedulers_on_the_clock.py",
        ("handed = planned[server.versions[planned] == IDLE]", "handed = planned.ravel()", "test_two_groups_by_hand"),
        ("planned[eligible_s[planned].max(axis=1).argmin()]", "planned[0]", "test_two_groups_by_hand"),
        ("undrafted = again & (arrival_s <= close_s)", "undrafted = again & (arrival_s < 0)", "test_the_draft_by_hand"),
        ("merged if others >= protocol.quorum else at_work", "merged", "test_simulate_agrees_with_processes"),
        ("again = (server.merged_in >= 0) & (", "again = (", "test_simulate_agrees_with_processes"),
    ),
    (
        "timeline/clock.py",
        "timeline/test_schedulers_on_the_clock.py",
        ("np.where(rests, conditions.payload_bits, clock.bits)", "clock.bits", "test_simulate_agrees_with_processes"),
        (
            "signal_at(clock.server.round, clock.time_s)",
            "signal_hz(clock.server.round)",
            "test_simulate_agrees_with_processes_where_a_schedule_looks_at_a_capped_radio_of_now",
        ),
        (
            "np.where(rests, conditions.usual_s, clock.compute_s)",
            "np.where(rests, conditions.compute_s, clock.compute_s)",
            "test_simulate_agrees_with_processes_where_a_schedule_looks_at_a_capped_radio_of_now",
        ),
        ("_clear_idle(conditions, work, next_server)", "pass", "test_simulate_agrees_with_processes"),
    ),
    (
        "timeline/fast/play.py",
        "timeline/test_compiled_clock.py",
        ("and own.signal_hz is Cell.signal_hz", "and own is not None", "test_what_is_unknown_is_not_played"),
        (
            "return rows if good.all() else rows[: int(good.argmin())]",
            "return rows",
            "test_a_schedule_that_goes_wrong_is_told_of_when_its_round_comes",
        ),
        ("f.name in known for f in", "True for f in", "test_what_is_unknown_is_not_played"),
    ),
    (
        "timeline/fast/kernel.py",
        "timeline/test_compiled_clock.py",
        (
            "lost[i] = versions[i] < new - rules.bound",
            "lost[i] = versions[i] <= new - rules.bound",
            "test_many_lost_jobs_are_written_down_in_the_same_rows",
        ),
        (
            "followed.bits[i] / rate[i] + (time_s + followed.compute_s[i])",
            "followed.bits[i] / rate[i] + time_s + followed.compute_s[i]",
            "test_many_lost_jobs_are_written_down_in_the_same_rows",
        ),
    ),
    (
        "spec/cells.py",
        "learning/test_payload.py",
        ("len(arrays) - len(stays)", "len(arrays)", "test_fewer_bits_of_less_than_the_model"),
    ),
    (
        "learning/methods/fedat.py",
        "learning/test_tiers.py",
        ("rounds[::-1] / rounds.sum()", "rounds / rounds.sum()", "test_fedat_is_its_papers_pseudocode"),
    ),
    (
        "learning/methods/safa.py",
        "learning/test_tiers.py",
        (
            "params = mean_of(merged)",
            "params = mean_of(jax.tree.map(lambda old, new: old.at[others].set(new[half:]), merged, models))",
            "test_safa_is_its_papers_pseudocode[left behind]",
        ),
        ("left = handed < round_ - self.lag", "left = handed < 0", "test_safa_is_its_papers_pseudocode[left behind]"),
        (
            "jnp.where(came, round_ + 1, handed[others])",
            "handed[others]",
            "test_safa_is_its_papers_pseudocode[left behind]",
        ),
        (
            "lambda old, new: old.at[others].set(new[half:]), merged, models)  # the bypass",
            "lambda old, new: old, merged, models)",
            "test_safa_is_its_papers_pseudocode[undrafted]",
        ),
        (
            "versions[k, again[0]] if again.size else versions[k - 1, slot]",
            "versions[k - 1, slot]",
            "test_safa_is_its_papers_pseudocode[drafted twice]",
        ),
    ),
]
