"""When is a target reached and kept? The fast judge against loops one can read."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfeds2.studies.plan_data import SeedOutcome, too_many_fail
from perfeds2.studies.plan_search import unstable
from perfeds2.studies.plan_trials import judge

TARGET = 0.9


def judged(*scores: float | None, keep: float = 0.9) -> SeedOutcome:
    rows = [
        {"time_s": float(number), "test_accuracy_personal": math.nan if score is None else score, "train_loss": 1.0}
        | {"joules": 10.0 * number}
        for number, score in enumerate(scores)
    ]
    return judge(0, rows, 0.1, TARGET, keep)


def test_what_is_reached_and_held_is_kept_from_where_the_line_crosses_the_target():
    trial = judged(0.0, 0.8, 1.0, 0.95, 0.95, 0.95, 0.95)
    assert (trial.state, trial.time_s, trial.reached_s, trial.held) == (
        "kept",
        pytest.approx(1.5),
        pytest.approx(1.5),
        1.0,
    )
    assert trial.joules == 20  # at the look that ends there


def test_what_is_reached_and_given_up_is_lost():
    trial = judged(0.0, 1.0, 0.2, 1.0, 0.2, 1.0, 0.2, 1.0, 0.2)
    assert (trial.state, trial.time_s, trial.held) == ("lost", None, 0.5)
    assert trial.fails


def test_it_is_kept_from_the_moment_it_settles_not_from_the_first_touch():
    trial = judged(0.0, 1.0, 0.2, 0.8, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0)
    assert (trial.state, trial.time_s, trial.reached_s) == ("kept", pytest.approx(3.5), pytest.approx(0.9))


def test_what_was_watched_for_less_long_than_it_took_is_late():
    assert judged(0.0, 0.1, 0.2, 0.3, 1.0, 1.0).state == "late"
    assert judged(0.0, 1.0, 0.2, 0.2, 0.2, 0.8, 1.0, 1.0, 1.0).state == "late"  # it settles after 6 of 8
    assert not judged(0.0, 0.1, 0.2, 0.3, 1.0, 1.0).fails
    assert judged(0.0, 1.0, 0.2, 0.2, 0.2, 0.2, 0.8, 1.0, 1.0).state == "lost"  # after 7 of 8: too late to trust


def test_a_slow_one_does_not_fail_and_one_that_falls_back_does():
    slow, falling = judged(0.0, 0.2, 0.4, 0.5, 0.6), judged(0.0, 0.8, 0.2, 0.8, 0.1)
    assert (slow.state, slow.fails) == ("never", False)
    assert (falling.state, falling.fails) == ("never", True)
    assert falling.fall == pytest.approx(0.7 / 0.9)


def test_a_fall_counts_only_below_a_target_that_was_not_met_at_the_start():
    assert judged(0.95, 0.2, 0.95, 0.95).fall == judged(TARGET, 0.2, 0.95, 0.95).fall == 0
    assert judged(0.0, 1.0, 0.45, 1.0).fall == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("state", "held", "fall", "fails"),
    [
        ("never", None, 0.25, False),
        ("never", None, 0.26, True),
        ("lost", 0.75, 0.2, False),
        ("late", 0.7, 0.1, False),
        ("late", 0.7, 0.11, True),
        ("kept", 0.7, 0.9, False),
    ],
)
def test_only_what_falls_far_and_often_fails(state, held, fall, fails):
    assert replace(judged(0.0, 1.0), state=state, held=held, fall=fall).fails == fails


def test_one_that_diverges_fails_even_if_it_was_there():
    trial = judged(0.0, 1.0, 1.0, None, None)
    assert (trial.state, trial.fails) == ("diverged", True)


def test_how_long_a_lost_target_was_held_is_one_share_or_a_range_of_them():
    bad, worse = judged(0.0, 1.0, 0.0, 1.0, 0.0), judged(0.0, 1.0, 0.0, 0.0, 0.0)
    assert unstable([bad]) == "lost again in 1 of 1 seeds (held in 50% of later evaluations)"
    assert unstable([bad, worse]) == "lost again in 2 of 2 seeds (held in 25% to 50% of later evaluations)"


def test_what_diverges_or_falls_back_is_told_apart():
    diverged, falling, good = judged(0.0, 1.0, None), judged(0.0, 0.8, 0.2, 0.8, 0.1), judged(0.0, 1.0, 1.0)
    assert unstable([diverged, falling, good]) == "diverges in 1 of 3 seeds"
    assert unstable([falling, good]) == "falls back and never reaches it in 1 of 2 seeds"


def test_a_third_of_the_seeds_is_too_many():
    good, bad = judged(0.0, 1.0, 1.0, 1.0), judged(0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0)
    assert not too_many_fail([good, good, good, bad])
    assert too_many_fail([good, good, bad])
    assert not too_many_fail([])


@given(st.lists(st.one_of(st.none(), st.floats(0, 1)), min_size=2, max_size=14), st.sampled_from([0.5, 0.8, 0.9, 1.0]))
def test_the_judge_agrees_with_reading_look_after_look(scores, keep):
    trial, last = judged(*scores, keep=keep), len(scores) - 1
    there = [score is not None and score >= TARGET for score in scores]
    kept_from = None
    for look in range(len(scores)):
        later = [there[at] for at in range(look, len(scores))]
        if there[look] and later.count(True) / len(later) >= keep:
            kept_from = look
            break
    assert (trial.reached_s is None) == (True not in there)
    if scores[-1] is None:
        assert trial.state == "diverged"
    elif kept_from is not None and kept_from <= last / 2:
        assert trial.state == "kept"
        assert trial.time_s is not None
        assert max(kept_from - 1, 0) <= trial.time_s <= kept_from
    else:
        assert trial.state in ("late", "lost", "never")
        assert trial.time_s is None
