"""Do the tests notice? ``make mutate`` breaks the code in small ways, one at a time, and each must fail its test.

A mutation names the test that kills it, so that a mutant costs seconds. Everything happens in copies of the tree. Before
anything is broken, the tests must pass there: a test that fails anyway notices nothing.
"""

import argparse
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from mutants_of_federation import FEDERATION
from mutants_of_fleets import FLEETS
from mutants_of_scheduling import SCHEDULING
from mutants_of_tuning import TUNING

ROOT = Path(__file__).parent.parent
PATIENCE_S = 300.0  # a mutant that hangs is noticed


@dataclass(frozen=True)
class Mutation:
    """A text of a file that occurs once, what stands in for it, and the test that must fail then."""

    file: str  # below perfeds2/
    old: str
    new: str
    killed_by: str  # below tests/

    def __str__(self) -> str:
        return f"{self.file}: {self.old} -> {self.new}"


def of(file: str, tests: str, *mutants: tuple[str, str, str]) -> list[Mutation]:
    """Mutants of one file whose tests are in one file: (old, new, test)."""
    return [Mutation(file, old, new, f"{tests}::{test}") for old, new, test in mutants]


MUTATIONS = [
    *of(
        "studies/plan_trials.py",
        "studies/test_plan_score.py",
        (
            "elif at is not None and time_s[at] <= half_s:",
            "elif at is not None:",
            "test_what_was_watched_for_less_long_than_it_took_is_late",
        ),
        (
            "at = next(map(int, np.flatnonzero(there & (held >= keep))), None)",
            "at = next(map(int, np.flatnonzero(there)), None)",
            "test_what_is_reached_and_given_up_is_lost",
        ),
    ),
    *of(
        "studies/plan_data.py",
        "studies/test_plan_shown.py",
        (
            " if each.choice.without_a_and_s == centre]",
            "]",
            "test_its_map_has_every_a_and_s_of_the_choice_and_a_star_on_it",
        ),
        (
            "return each is not plan.best, each is not asked,",
            "return each is not asked, each is not plan.best,",
            "test_its_table_has_a_row_a_choice_with_the_recommended_first_and_what_was_asked_next",
        ),
    ),
    *of(
        "studies/plan_search.py",
        "studies/test_plan_search.py",
        (
            "if self.has_margin(choice) and self.confirm(choice):",
            "if self.confirm(choice):",
            "test_a_cliff_is_not_recommended_and_neither_is_its_edge",
        ),
        (
            "if self.has_margin(choice) and self.confirm(choice):",
            "if self.has_margin(choice):",
            "test_what_is_lost_when_it_is_watched_longer_is_not_recommended",
        ),
    ),
    *of(
        "timeline/clock.py",
        "timeline/test_rounds_by_hand.py",
        ("(air.arrival_s <= now_s)", "(air.arrival_s < now_s)", "test_ties_go_to_the_smaller_number"),
    ),
    *of(
        "timeline/simulate.py",
        "timeline/test_rounds_by_hand.py",
        (
            "ticked[0].time_s > end_s",
            "ticked[0].time_s >= end_s",
            "test_the_horizon_ends_the_timeline_with_the_last_round_that_closed_by_then",
        ),
    ),
    *of(
        "timeline/clock.py",
        "timeline/test_agrees_with_processes.py",
        (
            "closing.time_s <= border_s and closing.time_s",
            "closing.time_s",
            "test_simulate_agrees_with_processes_on_a_plan_where_fading_changes_inside_rounds",
        ),
    ),
    *of(
        "network/radios.py",
        "network/test_radios.py",
        (
            "np.hypot(ground_m, radio.bs_height_m - radio.ue_height_m)",
            "np.hypot(ground_m, radio.bs_height_m)",
            "test_umi_by_hand",
        ),
        (
            "number = np.sqrt((1 / (1 - part)) ** 2 - 1) / alike_m",
            "number = part / alike_m",
            "test_shadows_are_alike_by_the_distance",
        ),
    ),
    *of(
        "timeline/energy.py",
        "timeline/test_energy.py",
        (
            "np.minimum(jobs.start_s + jobs.model_s + powers.downlink_s, jobs.sending_s)",
            "jobs.start_s",
            "test_waiting_for_the_model_is_free",
        ),
    ),
    *of(
        "timeline/protocol.py",
        "timeline/test_rounds_by_hand.py",
        (
            "(versions != IDLE) & (arrival_s <= close_s)",
            "(versions != IDLE) & (arrival_s < close_s)",
            "test_an_update_that_is_too_stale_is_refused_in_the_round_that_closes_as_it_arrives",
        ),
        ("np.lexsort((arrived, arrival_s", "np.lexsort((-arrived, arrival_s", "test_ties_go_to_the_smaller_number"),
    ),
    *of(
        "learning/replay.py",
        "learning/test_replay.py",
        (
            "return self.local_steps * passes(self.objective) * self.batch",
            "return self.local_steps * self.batch",
            "test_a_job_looks_at_every_batch_of_every_step",
        ),
        (
            "lambda w, own: objective(loss, w, params, own)",
            "lambda w, own: objective(loss, w, w, own)",
            "test_replay_matches_with_local_steps_and_another_optimiser",
        ),
        (
            "for i in range(program.written_out)",
            "for i in range(1, program.written_out)",
            "test_few_plain_gradients_of_a_wide_network_written_out_are_those_of_the_loop_bitwise",
        ),
        (
            "key = jax.random.fold_in(jax.random.fold_in(known.key, ue), version)",
            "key = jax.random.fold_in(known.key, ue)",
            "test_job_noise_belongs_to_the_ue_and_the_version_not_to_the_round",
        ),
    ),
    *of(
        "learning/objectives.py",
        "learning/test_objectives.py",
        (
            "g + self.proximal * (w - w0)",
            "g + self.proximal * (w - w)",
            "test_fedprox_pulls_towards_the_model_it_started_from",
        ),
    ),
    *of(
        "learning/objectives.py",
        "learning/test_gradients.py",
        (
            "_jvp(lambda g: clip(g, most), inner, outer)",
            "clip(outer, most)",
            "test_the_inner_clip_on_a_parabola_by_hand",
        ),
        (
            '0 if self.hessian_batch == "inner" else 2',
            '1 if self.hessian_batch == "inner" else 2',
            "test_with_the_inner_batch_the_update_is_the_gradient_of_one_sampled_loss",
        ),
        (
            "is_early = self.anneal > 0",
            "is_early = self.anneal >= 0",
            "test_annealing_is_first_order_below_the_version_and_exact_from_it_on",
        ),
        (
            "g + self.moreau * (t - w)",
            "g + self.alpha * (t - w)",
            "test_moreaus_gradient_on_a_parabola_is_that_of_the_envelope",
        ),
    ),
    *of(
        "learning/replay.py",
        "learning/test_gradients.py",
        (
            "else clip(total, known.clip)",
            "else total",
            "test_a_whole_job_is_clipped_not_each_of_its_steps",
        ),
        (
            "objective.at(version) if",
            "objective.at(0 * version) if",
            "test_every_job_asks_at_the_version_it_was_handed",
        ),
    ),
    *of(
        "learning/methods/ca2fl.py",
        "learning/test_methods.py",
        ("d - h[arrived.ues]", "d - 0 * h[arrived.ues]", "test_a_method_is_its_papers_pseudocode"),
    ),
    *of(
        "learning/methods/asyncfeded.py",
        "learning/test_methods.py",
        ("far + self.epsilon * long", "self.epsilon * long", "test_a_method_is_its_papers_pseudocode"),
    ),
    *of(
        "learning/merges.py",
        "learning/test_methods.py",
        ("(1.0 + tau) ** -a", "(1.0 + 0 * tau) ** -a", "test_a_method_is_its_papers_pseudocode"),
    ),
    *of(
        "learning/methods/scaffold.py",
        "learning/test_methods.py",
        ("g - mine + c, plain", "g - mine, plain", "test_a_method_is_its_papers_pseudocode"),
    ),
    *of(
        "learning/methods/apfl.py",
        "learning/test_methods.py",
        ("a - beta * share * b", "a - beta * b", "test_a_method_is_its_papers_pseudocode"),
        ("jnp.where(begins, moved, share)", "moved", "test_a_method_is_its_papers_pseudocode"),
    ),
    *of(
        "learning/replay.py",
        "learning/test_top_k.py",
        ("jax.tree.map(jnp.add, total, unsent)", "total", "test_replay_agrees_with_a_twin_in_numpy"),
        (
            "jax.tree.map(jnp.subtract, owed, sent)",
            "jax.tree.map(jnp.subtract, total, sent)",
            "test_replay_agrees_with_a_twin_in_numpy",
        ),
    ),
    *of(
        "network/cell.py",
        "network/test_downlink.py",
        ("begin_s = max(now_s, free_s)", "begin_s = now_s", "test_one_hand_out_after_the_other_by_hand"),
    ),
    *of(
        "timeline/state.py",
        "timeline/test_budget.py",
        (
            "self.joules_per_bit * (before.bits",
            "0 * (before.bits",
            "test_simulate_agrees_with_processes_that_have_batteries",
        ),
        (
            "np.minimum(arrival_s, after.time_s)",
            "after.time_s",
            "test_simulate_agrees_with_processes_that_have_batteries",
        ),
    ),
    *of(
        "timeline/clock.py",
        "timeline/test_budget.py",
        (
            "_may_work(conditions, spent_j, then_present))",
            "then_present)",
            "test_simulate_agrees_with_processes_that_have_batteries",
        ),
    ),
    *of(
        "learning/payload.py",
        "learning/test_top_k.py",
        ("jax.lax.top_k(jnp.abs(flat), count)", "jax.lax.top_k(flat, count)", "test_the_largest_by_hand"),
    ),
    *of(
        "learning/evaluate.py",
        "learning/test_evaluate.py",
        (
            "jnp.where(jnp.isfinite(losses), right, jnp.nan)",
            "jnp.where(jnp.isnan(losses), jnp.nan, right)",
            "test_a_model_whose_loss_is_not_finite_has_no_accuracy",
        ),
        (
            "fori_loop(1, view.steps, lambda",
            "fori_loop(0, view.steps, lambda",
            "test_so_many_personal_steps_as_one_would_do_them_by_hand",
        ),
        (
            "fori_loop(0, -(-last // piece), add",
            "fori_loop(0, last // piece, add",
            "test_pieces_give_what_the_whole_gives",
        ),
        ("if piece is None or mask.size % piece:", "if piece is None:", "test_pieces_give_what_the_whole_gives"),
    ),
    *of(
        "learning/partition.py",
        "learning/test_splits.py",
        ("+ random.random((len(count), 1))", "+ 0.5", "test_no_one_is_favoured_where_there_is_little"),
        (
            "np.exp(self.sigma *",
            "np.exp(2 * self.sigma *",
            "test_quantities_are_log_normal_and_labels_are_not_looked_at",
        ),
        (
            "np.full(ues, self.alpha), labels)",
            "np.full(ues, 1.0), labels)",
            "test_dirichlet_shares_are_numpys_own_draw",
        ),
        ("cut[first_of] = 1", "pass", "test_of_labels_that_a_ue_all_has_once_one_is_for_testing"),
    ),
    *of(
        "spec/build.py",
        "spec/test_own.py",
        (
            "if vars(own.learner)[key] == defaults[key]}",
            "}",
            "test_what_an_own_algorithm_fixes_stays_and_is_listed",
        ),
        (
            "if own.bandwidth is equal_share:",
            "if False:",
            "test_an_own_algorithm_follows_every_setting_that_it_does_not_fix",
        ),
    ),
    *of(
        "spec/build.py",
        "spec/test_build.py",
        ("alone and together", "False", "test_only_asy_does_not_finish_together"),
        ("alone and together", "together", "test_only_asy_does_not_finish_together"),
        ("alone and together", "alone", "test_only_asy_does_not_finish_together"),
        (
            "if key in Learner.__dataclass_fields__}",
            'if key in Learner.__dataclass_fields__ and key != "local_steps"}',
            "test_every_learning_setting_reaches_the_learner",
        ),
        (
            "known | spec.method_settings(algorithm))",
            'known | spec.method_settings(algorithm) | {"hessian": "exact"})',
            "test_every_learning_setting_reaches_the_learner",
        ),
        (
            "same = (rounds, learner.samples, bits",
            "same = (rounds, bits",
            "test_who_looks_at_more_samples_has_a_timeline_of_its_own",
        ),
    ),
    *of(
        "studies/arena.py",
        "studies/test_arena.py",
        ('"bits_to_target": "merged_bits"', '"bits_to_target": "joules"', "test_a_runs_scores_by_hand"),
        (
            "horizon_s if row[measure] is None else",
            "0.0 if row[measure] is None else",
            "test_less_time_is_better_and_never_counts_as_the_horizon",
        ),
    ),
    *of(
        "runs/statistics.py",
        "runs/test_statistics.py",
        ("-(-len(values) // 10)", "max(1, len(values) // 10)", "test_the_worst_tenth_is_rounded_up"),
    ),
    *of(
        "runs/notes.py",
        "runs/test_collapse.py",
        (
            "return all(_came_apart",
            "return any(_came_apart",
            "test_diverged_is_who_ends_where_it_began_although_it_had_learned",
        ),
    ),
    *of(
        "spec/names.py",
        "spec/test_own.py",
        (
            "return hashlib.sha256(path.read_bytes()).hexdigest()",
            "return hashlib.sha256(str(path).encode()).hexdigest()",
            "test_a_spec_with_own_things_reads_back_as_itself_and_notices_a_changed_file",
        ),
        (
            "if reference.startswith(GIVEN):",
            "if False:",
            "test_objects_from_python_enter_as_they_are",
        ),
    ),
    *of(
        "spec/resolve.py",
        "spec/test_own.py",
        (
            "if spec.own.get(source, digest) != digest:",
            "if False:",
            "test_a_spec_with_own_things_reads_back_as_itself_and_notices_a_changed_file",
        ),
    ),
    *of(
        "spec/resolve.py",
        "spec/test_doors.py",
        (
            'if flags.get("seed") is not None and flags.get("seeds") is not None:',
            "if False:",
            "test_one_seed_and_several_seeds_do_not_go_together",
        ),
    ),
    *of(
        "spec/resolve.py",
        "spec/test_spec.py",
        ("round(ues / 4)", "ues // 4", "test_the_quorum_defaults_to_a_quarter"),
        ("if quorum > ues:", "if quorum > ues + 1:", "test_bad_values_get_one_sentence_with_flag_value_and_range"),
    ),
    *of(
        "runs/statistics.py",
        "runs/test_statistics.py",
        (
            "middle = (len(times) - 1) // 2",
            "middle = len(times) // 2",
            "test_who_never_arrives_comes_last_in_the_median",
        ),
        (
            "INTERVAL_SEEDS = 3",
            "INTERVAL_SEEDS = 2",
            "test_fewer_than_three_seeds_have_a_mean_and_no_interval",
        ),
        ("axis=0, ddof=1", "axis=0, ddof=0", "test_the_interval_of_three_seeds_is_students"),
        (
            'row["test_accuracy_personal"] >= target',
            'row["test_accuracy_personal"] > target',
            "test_the_time_to_a_target_is_the_first_evaluation_at_or_above_it",
        ),
        ("np.arange(len(p), 0, -1)", "len(p)", "test_holm_by_hand"),
        ("2 * stdtr(", "stdtr(", "test_at_the_tables_t_the_p_value_is_a_twentieth"),
    ),
    *of(
        "paper/claims.py",
        "paper/test_claims.py",
        (
            "return frozenset(finding.means)",
            "return finding.means",
            "test_comparisons_of_the_same_numbers_are_one_test_whichever_way_round",
        ),
        (
            '"test_accuracy_personal" if is_personal else "test_accuracy"',
            '"test_accuracy_personal"',
            "test_fedavg_is_also_compared_without_its_personal_step",
        ),
        (
            "decide(self.loss, lower_is_better=True)",
            "decide(self.loss)",
            "test_a_lower_training_loss_holds_by_loss_whatever_the_accuracy_says",
        ),
    ),
    *of(
        "runs/pool.py",
        "runs/test_jobs.py",
        (
            "    if workers.on == HERE or unwritten:\n",
            "    if workers.on == HERE:\n        unwritten = False\n",
            "test_what_is_written_nowhere_is_trained_in_this_process",
        ),
        ("waiting.append(job)", "pass", "test_two_processes_leave_the_bytes_of_one_even_if_one_is_killed"),
    ),
    *of(
        "runs/pool.py",
        "runs/test_sharing.py",
        (
            "left.append(job)",
            "pass",
            "test_what_fails_beside_others_is_trained_by_this_process_when_they_have_ended",
        ),
    ),
    *of(
        "runs/store.py",
        "runs/test_sweep.py",
        (
            "found.group == group",
            "True",
            "test_what_was_trained_in_another_group_is_not_reused",
        ),
    ),
    *of(
        "runs/folder.py",
        "runs/test_compare.py",
        (
            'if known.read_text(encoding="utf-8") != text and tomllib.loads(read()) != tomllib.loads(text):',
            "if False:",
            "test_a_folder_with_a_different_run_is_refused",
        ),
        ('startswith(f".{name}.")', 'startswith("")', "test_a_folder_with_a_different_run_is_refused"),
    ),
    *of(
        "runs/store.py",
        "reliability/test_hostile_files.py",
        (
            'if checked["sha256"] != _digest(',
            "if False and _digest(",
            "test_no_flipped_bit_of_a_checkpoint_goes_unnoticed",
        ),
    ),
    *of(
        "runs/folder.py",
        "reliability/test_killed_commands.py",
        (
            "fcntl.LOCK_EX | fcntl.LOCK_NB",
            "fcntl.LOCK_SH | fcntl.LOCK_NB",
            "test_a_folder_that_someone_else_writes_is_left_to_them[run]",
        ),
        (
            "        clear_unfinished(path)",
            "        pass",
            "test_a_command_killed_at_any_moment_ends_with_the_same_bytes[run]",
        ),
    ),
    *of(
        "deployment/federation.py",
        "deployment/test_federation_by_hand.py",
        (
            'if device.wanted and job.kind == "train":',
            'if job.kind == "train":',
            "test_a_late_answer_to_a_job_that_was_given_up_is_dropped_and_its_device_is_handed_the_newest_model",
        ),
    ),
    *of(
        "deployment/record.py",
        "deployment/test_federation_by_hand.py",
        (
            "latest |= by_version[version]",
            "latest |= by_version[version - 1]",
            "test_what_devices_say_of_a_model_is_in_the_row_of_that_model",
        ),
    ),
    *of(
        "learning/factored.py",
        "learning/test_on_gpu.py",
        (
            "jnp.concatenate([x[0], x[on]])).T + 1",
            "jnp.concatenate([x[0], x[on]])).T",
            "test_factors_give_the_objectives_gradient",
        ),
        ("between[:, -x.shape[1] :].T", "between[:, : x.shape[1]].T", "test_factors_give_the_objectives_gradient"),
        ("[second, -alpha * third]", "[second, alpha * third]", "test_factors_give_the_objectives_gradient"),
    ),
    *of(
        "deployment/federation.py",
        "deployment/test_federation_by_hand.py",
        ("not norm <= bound", "not norm <= 10 * bound", "test_the_norm_bound_is_the_largest_norm_that_is_merged"),
    ),
    *of(
        "play/server.py",
        "play/test_play_server.py",
        (
            "len(hosts) != 1 or hosts[0].lower() not in self.server.hosts",
            "not hosts",
            "test_a_name_that_was_bound_to_this_machine_by_someone_else_is_refused",
        ),
        (
            'self.command != "GET" and site != "same-origin"',
            'site == "cross-site"',
            "test_another_page_that_knows_the_secret_cannot_post",
        ),
        ("int(length) > MOST_BODY", "int(length) > 10**12", "test_bodies_are_small_tables_or_refused"),
    ),
    *of(
        "runs/progress.py",
        "runs/test_live.py",
        (
            "if number != len(training.time_s):",
            "if number > len(training.time_s):",
            "test_however_the_file_comes_it_says_the_same_and_nothing_twice",
        ),
        (
            'os.read(self._file, 1) != b"\\n"',
            'os.read(self._file, 1) == b""',
            "test_a_killed_writer_leaves_half_a_line_and_the_next_begins_a_new_one",
        ),
    ),
    *(mutation for each in [*TUNING, *FEDERATION, *SCHEDULING, *FLEETS] for mutation in of(*each)),
]


def main() -> int:
    parser = argparse.ArgumentParser(description="Break the code in small ways; each must fail its test.")
    parser.add_argument("--only", default="", metavar="TEXT", help="those whose file, text or test has this in it")
    parser.add_argument("--processes", type=int, default=2, metavar="N")
    given = parser.parse_args()
    chosen = [each for each in MUTATIONS if given.only in f"{each} {each.killed_by}"]
    with tempfile.TemporaryDirectory(prefix="perfeds2-mutants-") as scratch:
        copies = [copy_tree(Path(scratch) / str(number)) for number in range(given.processes)]
        sound = run_tests(copies[0], sorted({each.killed_by for each in chosen}))
        if sound.status != 0:
            print(f"{sound.said}\nthese tests fail with nothing broken; mend them first")
            return 1
        alive = kill_all(chosen, copies)
    print(
        f"{len(chosen) - len(alive)} of {len(chosen)} mutants killed",
        *(f"survived: {each}" for each in alive),
        sep="\n",
    )
    return 1 if alive else 0


def copy_tree(copy: Path) -> Path:
    """The code and its tests, with what these have compiled: most of it is the same in a mutant."""
    for folder in ("perfeds2", "tests", ".pytest_cache/compiled"):
        if (ROOT / folder).is_dir():
            shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", copy)
    return copy


def kill_all(mutations: Iterable[Mutation], copies: Sequence[Path]) -> list[Mutation]:
    """Who survives. Each copy of the tree holds one mutant at a time."""
    free: queue.Queue[Path] = queue.Queue()
    for copy in copies:
        free.put(copy)

    def survives(mutation: Mutation) -> bool:
        copy, began = free.get(), time.monotonic()
        path = copy / "perfeds2" / mutation.file
        sound = path.read_text(encoding="utf-8")
        try:
            path.write_text(mutate(sound, mutation), encoding="utf-8")
            ended = run_tests(copy, [mutation.killed_by])
        finally:
            path.write_text(sound, encoding="utf-8")
            free.put(copy)
        verdict = {0: "SURVIVED", 1: "killed"}.get(ended.status, f"NOT TESTED\n{ended.said}\n")
        print(f"{verdict} in {time.monotonic() - began:.0f} s: {mutation}", flush=True)
        return ended.status != 1  # 1 is pytest's for a test that failed

    with ThreadPoolExecutor(len(copies)) as pool:
        mutations = list(mutations)
        return [each for each, alive in zip(mutations, pool.map(survives, mutations), strict=True) if alive]


def mutate(text: str, mutation: Mutation) -> str:
    if text.count(mutation.old) != 1:
        raise ValueError(f"{mutation.file} has {text.count(mutation.old)} times {mutation.old!r}; expected it once.")
    return text.replace(mutation.old, mutation.new)


@dataclass(frozen=True)
class Ended:
    status: int  # as pytest has it
    said: str


def run_tests(copy: Path, tests: Sequence[str]) -> Ended:
    """Tests of a copy, on the copy's package."""
    command = [sys.executable, "-B", "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    try:
        ended = subprocess.run(
            [*command, *(f"tests/{test}" for test in tests)],
            cwd=copy,
            env={**os.environ, "PYTHONPATH": str(copy)},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S * len(tests),
        )
    except subprocess.TimeoutExpired:
        return Ended(1, "it hangs")
    return Ended(ended.returncode, ended.stdout[-2000:] + ended.stderr[-2000:])


if __name__ == "__main__":
    sys.exit(main())
