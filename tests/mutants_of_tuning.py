"""What ``make mutate`` breaks in tuning, in settings that differ by algorithm, and in the parts that are held out."""

# a file, its tests, and mutants: (old, new, test)
TUNING: list[tuple[str, str, *tuple[tuple[str, str, str], ...]]] = [
    (
        "studies/tune.py",
        "studies/test_tune.py",
        (
            "key=lambda each: -mean_score(scores[rung.horizon_s][each])",
            "key=lambda each: mean_score(scores[rung.horizon_s][each])",
            "test_the_better_third_goes_on_three_times_as_long",
        ),
        ("float(np.mean([each.", "float(np.max([each.", "test_seeds_count_alike"),
        ("value == listed[-1] or (", "(", "test_the_edge_of_what_was_searched_is_said"),
    ),
    (
        "studies/tune_space.py",
        "studies/test_tune.py",
        ("return -(-count // FACTOR)", "return max(1, count // FACTOR)", "test_a_third_is_rounded_up"),
        (
            "horizon_s / FACTOR**more for more in reversed(range(self.rungs))",
            "horizon_s / FACTOR**more for more in range(self.rungs)",
            "test_the_better_third_goes_on_three_times_as_long",
        ),
        ("FIRST_SEED = 1_000_000", "FIRST_SEED = 1_000", "test_tuning_seeds_are_none_of_an_evaluations"),
        (
            'put(values, "task", "held_out", True)',
            'put(values, "task", "held_out", None)',
            "test_the_test_part_is_never_looked_at",
        ),
        (
            '"algorithms": [named]',
            '"algorithms": [name]',
            "test_an_objective_of_ones_own_is_tuned_under_its_name",
        ),
    ),
    (
        "runs/statistics.py",
        "runs/test_statistics.py",
        (
            "(np.diff(time_s) * values[:-1])",
            "(np.diff(time_s) * values[1:])",
            "test_a_model_stands_until_the_next_look",
        ),
        (
            "row[metric] if math.isfinite(row[metric]) else worst for row",
            "row[metric] for row",
            "test_a_model_that_diverged_counts_nothing_from_then_on",
        ),
    ),
    (
        "learning/data.py",
        "learning/test_held_out.py",
        (
            "train_count=self.train_count - held, test_count=held",
            "train_count=self.train_count, test_count=held",
            "test_by_hand",
        ),
        ("jnp.minimum(1, count - 1), None)", "0, None)", "test_a_quarter_at_least_one_and_never_all_is_held_out"),
        (
            "replace(self, test_noise=4)",
            "replace(self, test_noise=1)",
            "test_validation_has_other_noise_than_training_and_test",
        ),
    ),
    (
        "learning/datasets/shakespeare.py",
        "learning/test_held_out.py",
        (
            "jnp.maximum(left - WINDOW, (left + 1) // 2)",
            "jnp.maximum(left - WINDOW + 1, (left + 1) // 2)",
            "test_no_character_is_trained_and_validated_where_the_gap_fits",
        ),
        (
            "test_start=self.start + left,",
            "test_start=self.start + left + 1,",
            "test_no_character_is_trained_and_validated_where_the_gap_fits",
        ),
    ),
    (
        "spec/fields.py",
        "spec/test_each.py",
        (
            "self.learning.model_copy(update=own) if own",
            "self.learning if own",
            "test_every_learner_has_its_own_numbers_and_the_general_ones_else",
        ),
    ),
    (
        "spec/resolve.py",
        "spec/test_each.py",
        (
            "        if given:\n",
            "        if True:\n",
            "test_only_what_was_given_is_kept_and_a_spec_without_is_what_it_was",
        ),
        (
            "several_steps = spec.learning_of(name).local_steps > 1",
            "several_steps = spec.learning.local_steps > 1",
            "test_fedprox_is_usual_where_it_has_several_steps_of_its_own",
        ),
    ),
    (
        "studies/reproduce.py",
        "studies/test_reproduce.py",
        (
            'common | spec.values().get("methods", {}).get(name, {})',
            'spec.values().get("methods", {}).get(name, {}) | common',
            "test_what_was_tuned_is_each_ones_own_over_what_all_have",
        ),
        (
            "bool(before) != bool(own and path.exists())",
            "False",
            "test_a_folder_takes_one_tuning_a_task_and_no_other",
        ),
        ('{"tuned": before | own}', '{"tuned": own}', "test_a_folder_takes_one_tuning_a_task_and_no_other"),
    ),
]
