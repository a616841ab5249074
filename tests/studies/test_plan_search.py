"""Is the right choice found, by few trainings? On curves that are made up, so that nothing is trained."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from perfeds2.errors import InputError
from perfeds2.spec.resolve import spec_from
from perfeds2.studies import plan_trials
from perfeds2.studies.plan import make_plan, notes_of
from perfeds2.studies.plan_data import Choice, PlanRequest, PlanTarget
from perfeds2.studies.plan_search import PlanSearch
from perfeds2.studies.plan_space import Space, make_space, map_of, neighbours, variants
from perfeds2.studies.plan_start import begin, check_limits, horizons
from perfeds2.studies.plan_trials import EVALUATIONS, Played, Trials
from perfeds2.studies.search import Rung

Law = Callable[[Choice, int], tuple[float, float]]  # when the target is reached, and the share of looks that hold it


def space_of(ues: int = 50, search: dict[str, Any] | None = None, **settings: Any) -> Space:
    fixed = {
        "bits": [32],
        "local_steps": [1],
        "stale": ["restart"],
        "schedule": ["first"],
        "bandwidth": ["equal_share"],
    }
    spec = spec_from(ues=ues, algorithms=["PerFedS2"], target_accuracy=0.9, **settings)
    return make_space(spec, fixed | (search or {}))


@dataclass
class MadeUp(Trials):
    """Trials that follow a law instead of a training."""

    keep: float = 0.9
    law: Law = lambda choice, seed: (1.0, 1.0)  # noqa: ARG005 (a law has these)
    impossible: Callable[[Choice], bool] = lambda choice: False  # noqa: ARG005
    starved: Callable[[Choice], bool] = lambda choice: False  # noqa: ARG005
    joules: Callable[[Choice], float] = lambda choice: 1.0  # noqa: ARG005 (a second)
    forgets_s: Callable[[Choice], float] = lambda choice: math.inf  # noqa: ARG005
    wanted: list[tuple[Choice, int, float]] = field(default_factory=list)
    announced: list[float] = field(default_factory=list)

    def play(self, choice: Choice, seed: int, horizon_s: float) -> Played:
        starved = (3,) if self.starved(choice) else ()
        found = Played(0.1, 0.01, str(choice), starved)
        if self.impossible(choice):
            found = Played(obstacle="it cannot be")
        self.played[choice, seed, horizon_s] = found
        return found

    def first_round(self, choice: Choice, seed: int) -> tuple[float, float]:  # noqa: ARG002 (the same for all)
        return 0.05, 0.05 * self.joules(choice)

    def run(self, wanted: Sequence[tuple[Choice, int, float]]) -> list[Sequence[Mapping[str, Any]]]:
        self.wanted += wanted
        self.announced.append(self.expected_s)
        return [self.curve(*one) for one in wanted]

    def curve(self, choice: Choice, seed: int, horizon_s: float) -> list[dict[str, float]]:
        reached_s, held = self.law(choice, seed)
        rows = []
        for number in range(EVALUATIONS + 1):
            time_s = horizon_s * number / EVALUATIONS
            score = 0.5 if time_s >= self.forgets_s(choice) else _score(time_s, number, reached_s, held)
            rows.append({"time_s": time_s, "test_accuracy_personal": score, "train_loss": 1.0})
            rows[-1]["joules"] = self.joules(choice) * time_s
        return rows


def _score(time_s: float, number: int, reached_s: float, held: float) -> float:
    if time_s < reached_s:
        return 0.85 * time_s / reached_s
    return 0.95 if (number * 0.618) % 1 < held else 0.5


def made(law: Law, space: Space | None = None, request: PlanRequest | None = None, **more: Any):
    space = space or space_of()
    request = request or PlanRequest()
    trials = MadeUp(space, request.keep, law=law, **more)
    return make_plan(space, request, trials), trials


def cliff(choice: Choice, seed: int) -> tuple[float, float]:
    """As measured with 50 UEs: a smaller A is faster, but below 7 the target is lost again."""
    return 0.25 * choice.quorum + 0.6 + 0.05 * (seed % 3), 0.35 if choice.quorum < 7 else 1.0


def test_a_cliff_is_not_recommended_and_neither_is_its_edge():
    """A = 4 reaches 90 % soonest and holds it in a third of the looks. A = 7 holds, but stands beside it."""
    plan, _ = made(cliff)
    assert plan.best is not None
    assert plan.best.quorum == 12
    by_quorum = {each.quorum: each for each in plan.candidates if each.max_staleness == plan.best.max_staleness}
    assert by_quorum[4].verdict == "fails"
    assert "lost again" in by_quorum[4].why
    assert by_quorum[7].verdict == "on an edge"
    assert (by_quorum[7].seconds or 0) < (plan.best.seconds or 0)
    assert all(not neighbour.fails for neighbour in plan.best.neighbours)
    assert {neighbour.axis for neighbour in plan.best.neighbours} == {"quorum", "max_staleness"}


def test_the_soonest_that_stands_is_found():
    plan, trials = made(lambda choice, _: (1 + abs(choice.quorum - 7) / 7 + 1 / (choice.max_staleness or 99), 1.0))
    assert plan.best is not None
    assert plan.best.quorum == 7
    everything = len(plan.candidates) * len(plan.seeds)
    watched = {(choice, seed) for choice, seed, until_s in trials.wanted if until_s == plan.target.horizon_s}
    assert len(watched) < everything


def test_bits_and_local_steps_are_searched_too():
    space = space_of(search={"bits": [32, 8], "local_steps": [1, 2, 4]})
    plan, _ = made(lambda c, _: (0.1 * c.quorum + c.bits / 8 + abs(c.local_steps - 2), 1.0), space)
    assert plan.best is not None
    assert (plan.best.choice.bits, plan.best.choice.local_steps) == (8, 2)


def test_bits_that_suit_only_the_best_are_found_by_varying_it():
    """The first map has the bits that suit the spec's own A, 5."""
    space = space_of(search={"bits": [8, 32], "quorum": [5, 7, 12, 18]}, quorum=5)
    plan, _ = made(
        lambda c, _: (1 + abs(c.quorum - 12) / 4 + (c.bits != (8 if c.quorum == 12 else 32)) / 2, 1.0), space
    )
    assert plan.best is not None
    assert (plan.best.quorum, plan.best.choice.bits) == (12, 8)


def test_the_work_ahead_is_announced_in_simulated_seconds():
    _, trials = made(cliff, request=PlanRequest(horizon_s=10.0))
    assert trials.announced[0] == 20 * 10
    scouts = 7 * 3 + 1  # every A and S, and the spec's own choice
    assert pytest.approx(scouts * 10 / 3 + (20 * 3 + 12 * 5) * 10) in trials.announced
    assert trials.announced[-1] == (5 + 5) * 10


def test_what_is_lost_when_it_is_watched_longer_is_not_recommended():
    plan, _ = made(
        lambda choice, _: (0.2 * choice.quorum, 1.0),
        request=PlanRequest(horizon_s=11.0),
        forgets_s=lambda choice: math.inf if choice.quorum > 14 else 12.0,
    )
    assert plan.best is not None
    assert plan.best.quorum > 14


def test_limits_are_kept():
    plan, _ = made(cliff, request=PlanRequest(within_s=2.0))
    assert plan.best is None
    assert "Nothing can be recommended" in plan.sentence
    plan, trials = made(cliff, request=PlanRequest(joules=100.0), joules=lambda choice: 1e4 / choice.quorum)
    assert plan.best is None
    assert plan.sentence.startswith(
        f"Nothing can be recommended: {len(plan.candidates)} of {len(plan.candidates)} choices break a limit or never merge a UE, "
    )
    assert "(--joules 100)." in plan.sentence
    assert plan.headline.endswith(" choices keeps 90 % personalised test accuracy with --joules 100")
    scouted = {(choice, seed) for choice, seed, until_s in trials.wanted if until_s < plan.target.horizon_s}
    assert len(scouted) < len(plan.candidates) + 5  # one short training shows that a choice takes too many joules


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        ({"joules": 0.01}, "--joules 0.01 cannot be met: the first round alone takes 0.05 J"),
        ({"within_s": 0.01}, "--within-s 0.01 cannot be met: the first round alone takes 0.05 s"),
        ({"least_share": 0.5}, "--least-share 0.5 cannot be met: 50 UEs have at most 0.02 of the merges each"),
        (
            {"least_share": 0.015},
            "--least-share 0.015 cannot be met: within 30 s no choice gives every UE more than 0.01",
        ),
    ],
)
def test_a_limit_that_no_choice_can_meet_is_refused_before_anything_is_trained(limit, said):
    trials = MadeUp(space_of(), law=cliff)
    with pytest.raises(InputError, match=re.escape(said)):
        check_limits(trials.space, trials, PlanRequest(**limit))
    assert not trials.wanted


def test_who_leaves_a_ue_out_is_no_choice_and_no_neighbour():
    plan, _ = made(lambda choice, _: (0.1 * choice.quorum, 1.0), starved=lambda choice: choice.quorum < 4)
    assert plan.best is not None
    assert plan.best.quorum == 7  # 4 stands beside 2, which leaves UE 3 out
    allowed, _ = made(
        lambda choice, _: (0.1 * choice.quorum, 1.0),
        starved=lambda choice: choice.quorum < 4,
        request=PlanRequest(least_share=0.0),
    )
    assert allowed.best is not None
    assert allowed.best.quorum == 1


def test_what_cannot_be_done_is_listed_with_the_reason_and_is_no_cliff():
    plan, _ = made(lambda choice, _: (0.1 * choice.quorum, 1.0), impossible=lambda choice: choice.quorum < 4)
    assert plan.best is not None
    assert plan.best.quorum == 4
    impossible = [each for each in plan.candidates if each.verdict == "not possible"]
    assert {each.why for each in impossible} == {"it cannot be"}


def test_what_was_asked_for_is_checked_and_something_better_named():
    plan, _ = made(cliff, space_of(quorum=4), PlanRequest(check=True))
    assert "does not hold: lost again in 5 of 5 seeds" in plan.check
    assert plan.best is not None
    assert f"Better: A = {plan.best.quorum}" in plan.check
    good, _ = made(cliff, space_of(quorum=26), PlanRequest(check=True))
    assert "holds: 90 % personalised test accuracy" in good.check
    assert "times as soon" in good.check


def test_nothing_is_recommended_where_nothing_stands():
    plan, _ = made(lambda choice, _: (0.1 * choice.quorum, 0.4))
    assert (plan.best, plan.command) == (None, None)
    assert "lose it again" in plan.sentence
    assert "None of" in repr(plan)


def test_if_the_spec_does_not_reach_the_target_a_quarter_of_the_ues_without_a_bound_is_tried():
    space = space_of(quorum=4)
    gentle = space.asked.with_(quorum=12, max_staleness=None)
    trials = MadeUp(space, law=lambda choice, _: (2.0 if choice == gentle else 1e6, 1.0))
    best, target = begin(space, trials, PlanRequest())
    assert best == gentle
    assert target.horizon_s == 8.6  # 4.5 times 1.92 s, where the line crosses 90 %
    assert {choice for choice, _, _ in trials.wanted} == {space.asked, gentle}


def test_with_a_given_horizon_the_first_training_is_repeated_only_to_compare_it():
    for bits, trained in (([32], 1), ([8, 32], 3)):
        trials = MadeUp(space := space_of(search={"bits": bits}))
        begin(space, trials, PlanRequest(horizon_s=4.0))
        assert len(set(trials.wanted)) == trained


def test_if_the_spec_is_checked_it_gets_three_times_as_long_as_it_takes():
    space = space_of(search={"bits": [8, 32]})
    for check, horizon_s in ((False, 5.2), (True, 15.0)):
        trials = MadeUp(space, law=lambda choice, _: (5.0 if choice.bits == 32 else 1.2, 1.0))
        best, target = begin(space, trials, PlanRequest(check=check))
        assert best.bits == 8
        assert target.horizon_s == pytest.approx(horizon_s, rel=0.1)


def test_a_target_no_one_reaches_is_refused_with_how_far_it_got():
    with pytest.raises(
        InputError, match=r"--target-accuracy 0.9 is not reached within 240 simulated seconds .*best evaluation"
    ):
        made(lambda *_: (1e6, 1.0))


# ---- choices


def test_neighbours_lie_on_both_sides_also_beyond_what_is_searched():
    space = space_of(search={"quorum": [4, 7, 12], "max_staleness": [5, 10]})
    choice = space.asked.with_(quorum=4, max_staleness=10)
    beside = {(axis, vars(each)[axis]) for axis, each in neighbours(space, choice)}
    assert beside == {("quorum", 2), ("quorum", 7), ("max_staleness", 5), ("max_staleness", 20)}
    all_of_them = choice.with_(quorum=50, max_staleness=None)
    beside = {(axis, vars(each)[axis]) for axis, each in neighbours(space, all_of_them)}
    assert beside == {("quorum", 33), ("max_staleness", 50)}  # 12 and 10 are searched, but far
    smallest = choice.with_(quorum=1, max_staleness=0)
    beside = {(axis, vars(each)[axis]) for axis, each in neighbours(space, smallest)}
    assert beside == {("quorum", 2), ("max_staleness", 1)}


def test_a_value_that_is_far_is_no_neighbour_however_few_are_searched():
    space = space_of(search={"quorum": [4, 40], "max_staleness": [5, 80, None], "local_steps": [1, 16]})
    choice = space.asked.with_(quorum=4, max_staleness=5, local_steps=1)
    beside = {(axis, vars(each)[axis]) for axis, each in neighbours(space, choice)}
    assert beside == {("quorum", 2), ("quorum", 6), ("max_staleness", 2), ("max_staleness", 10)}
    beside = {vars(each)["max_staleness"] for axis, each in neighbours(space, choice.with_(max_staleness=None))}
    assert 80 in beside  # an update is hardly ever staler
    space = space_of(search={"max_staleness": [40, None]})
    beside = {vars(each)["max_staleness"] for _, each in neighbours(space, space.asked.with_(max_staleness=None))}
    assert beside == {None, 50}  # None: those beside it in A


def test_something_sooner_that_was_not_searched_is_named_with_the_flag_to_type():
    space = space_of(search={"quorum": [12], "max_staleness": [10, 20]})
    plan, _ = made(lambda c, _: (40 / (c.max_staleness or 99) + abs(c.quorum - 12), 1.0), space)
    assert plan.best is not None
    assert plan.best.max_staleness == 20
    (said,) = [note for note in plan.notes if note.startswith("Sooner, not searched")]
    assert "S = 40" in said
    assert said.endswith("1.1 s against 2.19 s on the given seeds; add --search max-staleness=10,20,40.")
    assert not [note for note in plan.notes if "too close to call" in note]


def test_what_takes_twice_or_half_as_long_is_not_close():
    close, _ = made(lambda choice, _: (1 + 0.01 * abs(choice.quorum - 7), 1.0))
    assert [note for note in close.notes if note.startswith("Within 10 %")]
    far, _ = made(lambda choice, _: (1 + abs(choice.quorum - 7) + (choice.max_staleness or 999) / 10, 1.0))
    assert not [note for note in far.notes if note.startswith("Within 10 %")]


def test_the_seconds_are_promised_by_seeds_the_choice_was_not_made_with():
    """The given seeds are lucky: they take 1 s, all others 2 to 2.4 s."""
    plan, trials = made(lambda choice, seed: (0.01 * choice.quorum + (1.0 if seed < 5 else 2 + 0.1 * (seed % 5)), 1.0))
    assert plan.best is not None
    assert [trial.seed for trial in plan.best.fresh] == [5, 6, 7, 8, 9]
    assert {choice for choice, seed, _ in trials.wanted if seed >= 5} == {plan.best.choice}
    low, high = plan.best.promise_s or (0, 0)
    assert 1 < low < 2.2 < high < 3
    shown = f"after 2.21 s ({low:.2f} to {high:.2f} s on fresh seeds)"  # 2.2 and 0.01 A
    assert plan.headline.startswith(f"90 % personalised test accuracy {shown}: A = 1, S = ")
    assert shown in plan.sentence
    unlucky, _ = made(lambda choice, seed: (0.01 * choice.quorum + 1, 1.0 if seed != 7 else 0.3))
    assert unlucky.best is not None
    assert "(kept by 4 of 5 fresh seeds)" in unlucky.headline


def test_bands_that_finish_together_go_with_plans_only():
    space = space_of(search={"schedule": ["first", "deficit"], "bandwidth": ["equal_share", "equal_finish"]})
    found = {(each.schedule, each.bandwidth) for each in map_of(space, space.asked)}
    assert found == {("first", "equal_share"), ("deficit", "equal_share"), ("deficit", "equal_finish")}


def test_stale_rules_are_searched_with_first_arrivals_only():
    space = space_of(search={"schedule": ["first", "deficit"], "stale": ["restart", "wait"]})
    found = {(each.schedule, each.stale) for each in map_of(space, space.asked.with_(stale="wait"))}
    assert found == {("first", "restart"), ("first", "wait"), ("deficit", "wait")}


def test_a_variant_differs_in_one_of_local_steps_bits_and_stale_rule():
    space = space_of(search={"bits": [8, 32], "local_steps": [1, 2], "stale": ["restart", "wait"]})
    asked = space.asked
    changes: list[dict[str, Any]] = [{"bits": 8}, {"local_steps": 2}, {"stale": "wait"}]
    assert set(variants(space, asked)) == {asked.with_(**change) for change in changes}
    assert len(variants(space, asked)) == 3


def test_the_spec_of_a_choice_says_what_the_choice_says():
    space = space_of(search={"bits": [8]}, **{"PerFedS2.local_steps": 3, "PerFedS2.beta": 0.02})
    assert space.asked.local_steps == 3
    choice = Choice(7, None, "deficit", "equal_finish", "wait", 2, 8)
    space = replace(space, named=make_space(space.spec, {}).named)
    spec = space.spec_of(choice, [3], 12.0, 60)
    assert make_space(spec, {}).asked == choice
    assert (spec.learning_of("PerFedS2").beta, spec.run.seeds, spec.run.horizon_s) == (0.02, (3,), 12.0)
    assert (spec.run.eval_every_s, spec.run.rounds, spec.run.stop_when_diverged) == (0.2, None, True)


def test_what_the_clock_shows_agrees_with_counting_the_merges_up_to_the_horizon():
    space = space_of(ues=6, quorum=2)
    trials = Trials(space, 0.9)
    until_s = {horizon_s: trials.play(space.asked, 0, horizon_s) for horizon_s in (2.0, 0.5)}
    simulated_s, *_, timeline = trials.timelines[space.asked, 0]
    assert simulated_s == 2  # the shorter one is its beginning
    for horizon_s, played in until_s.items():
        closed = [round_ for round_, time_s in enumerate(timeline.time_s) if time_s <= horizon_s]
        merged = [int(ue) for round_ in closed for ue in timeline.ues[round_]]
        counts = [merged.count(ue) for ue in range(6)]
        assert not played.obstacle
        assert 1 < len(closed) < len(timeline.time_s) + (horizon_s == 2)
        assert played.seconds_per_round == pytest.approx(timeline.time_s[closed[-1]] / len(closed))
        assert played.least_share == pytest.approx(min(counts) / len(merged))
        assert played.starved == tuple(ue for ue in range(6) if not counts[ue])
    assert trials.play(space.asked, 0, 1e-6) == Played(obstacle="no round closes within 1e-06 s")


@pytest.mark.parametrize(
    ("search", "said"),
    [
        ({"beta": [1]}, "--search beta cannot be planned; expected one of quorum, max_staleness"),
        ({"quorum": [51]}, "--quorum must be from 1 to the number of UEs, 50"),
        ({"quorum": []}, "--search quorum is empty"),
        ({"schedule": ["firts"]}, "--schedule 'firts' is not known; did you mean first"),
        ({"bits": [7]}, "--bits"),
    ],
)
def test_what_cannot_be_searched_is_refused_in_one_sentence(search, said):
    with pytest.raises(InputError, match=said):
        space_of(search=search)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"keep": 0.2}, "--keep must be from 0.5 to 1"),
        ({"horizon_s": -1.0}, "--horizon-s must be a finite number above 0"),
        ({"joules": float("nan")}, "--joules must be a finite number above 0"),
        ({"least_share": 2.0}, "--least-share must be from 0 to 1"),
    ],
)
def test_limits_that_are_none_are_refused_in_one_sentence(asked, said):
    with pytest.raises(InputError, match=said):
        PlanRequest(**asked)


@pytest.mark.parametrize("asked", [{"keep": 0.5}, {"keep": 1.0}, {"least_share": 0.0}, {"least_share": 1.0}])
def test_the_ends_of_a_range_are_allowed(asked):
    assert vars(PlanRequest(**asked)).items() >= asked.items()


def test_a_plan_is_for_one_algorithm_in_semi_synchronous_rounds():
    with pytest.raises(InputError, match="has rounds of its own"):
        make_space(spec_from(algorithms=["FedAvg-SYN"]), {})
    with pytest.raises(InputError, match="one algorithm, got 2"):
        make_space(spec_from(algorithms=["PerFedS2", "FedBuff"]), {})
    assert make_space(spec_from(algorithms=["FedBuff"]), {}).asked.quorum == 5


def test_a_race_needs_no_training_of_what_the_clock_rules_out():
    space = space_of()
    trials = MadeUp(space, law=cliff, starved=lambda choice: choice.quorum == 4)
    make_plan(space, PlanRequest(), trials)
    assert not [choice for choice, _, _ in trials.wanted if choice.quorum == 4]


# ---- the rules of a search, one at a time


def search_of(law: Law, seeds: int, request: PlanRequest | None = None, **more: Any) -> tuple[PlanSearch, Choice]:
    """Return a search over 10 s, confirmed over 20 s, in which the spec's own choice has been trained with every seed."""
    space = space_of(seeds=list(range(seeds)))
    trials = MadeUp(space, law=law, **more)
    target = PlanTarget(0.9, "accuracy", 10.0, 20.0, "")
    search = PlanSearch(space, trials, request or PlanRequest(), target, 1 / 3)
    trials.train([space.asked], Rung(search.seeds, target.horizon_s))
    return search, space.asked


def test_a_limit_holds_for_the_worst_seed():
    for request, said in (
        (PlanRequest(within_s=2.0), "takes at least 2.94 s with a seed"),  # where the line crosses 90 %
        (PlanRequest(joules=2.0), "takes at least 3 J with a seed"),  # at the next evaluation
    ):
        search, choice = search_of(lambda _, seed: (1.0 + seed, 1.0), 3, request)
        assert said in (search.breach(choice) or "")


def test_the_least_share_counts_before_and_after_training():
    said = "a UE has only 1.00% of the merges (--least-share 0.02)"
    search, trained = search_of(lambda *_: (1.0, 1.0), 3, PlanRequest(least_share=0.02))
    simulated = trained.with_(quorum=9)
    assert search.breach(simulated) is None
    search.play(simulated)
    assert (search.breach(simulated), search.breach(trained)) == (said, said)
    allowed, choice = search_of(lambda *_: (1.0, 1.0), 3, PlanRequest(least_share=0.01))
    assert allowed.breach(choice) is None


def test_the_least_share_counts_in_the_worst_seed():
    """Each seed's timeline is another; a UE has 3 % of the merges in two seeds and 1 % in the third."""
    search, choice = search_of(lambda *_: (1.0, 1.0), 3, PlanRequest(least_share=0.02))
    for number, trial in enumerate(search.watched(choice)):
        object.__setattr__(trial, "least_share", 0.01 if number == 2 else 0.03)
    assert "has only 1.00% of the merges" in (search.breach(choice) or "")


@pytest.mark.parametrize(("seeds", "stands"), [(3, False), (4, True)])
def test_fewer_than_a_third_of_the_seeds_may_be_late(seeds: int, stands: bool):
    search, choice = search_of(lambda _, seed: (6.0 if seed == 0 else 1.0, 1.0), seeds)
    assert [trial.state for trial in search.watched(choice)].count("late") == 1
    assert search.stands(choice, search.seeds) == stands


def test_of_equivalent_choices_the_fastest_by_the_clock_is_trained():
    @dataclass
    class Paced(MadeUp):
        def play(self, choice: Choice, seed: int, horizon_s: float) -> Played:
            pace_s = {"equal_share": 0.3, "equal_finish": 0.2, "min_time": 0.4}[choice.bandwidth]
            self.played[choice, seed, horizon_s] = found = Played(pace_s, 0.01, str(choice), ())
            return found

    search, choice = search_of(lambda *_: (1.0, 1.0), 3)
    search.trials = Paced(search.space)
    planned = [choice.with_(schedule="deficit", bandwidth=band) for band in ("equal_share", "equal_finish", "min_time")]
    assert search.worth_training(planned) == [planned[1]]
    assert search.slower == dict.fromkeys((planned[0], planned[2]), "merges as with band equal_finish, later")


def test_every_seed_must_keep_the_target_to_confirm_a_choice():
    search, choice = search_of(lambda _, seed: (1.0, 0.3 if seed == 1 else 1.0), 3)
    assert not search.confirm(choice)
    search, choice = search_of(lambda *_: (1.0, 1.0), 3)
    assert search.confirm(choice)


def test_one_seed_that_is_late_in_the_longer_training_makes_a_choice_waver():
    search, choice = search_of(lambda *_: (1.0, 1.0), 3)
    assert search.confirm(choice)
    assert search.verdict(choice) == ("holds", "no sooner")
    key = str(choice), 1, 20.0
    search.trials.outcomes[key] = replace(search.trials.outcomes[key], state="late")
    assert search.verdict(choice) == ("wavers", "not kept in every seed when trained for 20 s")


def test_a_first_round_that_is_impossible_takes_for_ever(monkeypatch):
    monkeypatch.setattr(plan_trials, "_simulate", lambda _: "no UE is there")
    space = space_of(ues=6, quorum=2)
    assert Trials(space, 0.9).first_round(space.asked, 0) == (math.inf, math.inf)


@pytest.mark.parametrize(("ues", "said"), [((0, 2, 4), "UE 0, 2, 4 never"), ((0, 2, 4, 7), "UE 0, 2, 4 … never")])
def test_up_to_three_ues_that_are_left_out_are_named(ues, said):
    search, choice = search_of(lambda *_: (1.0, 1.0), 1)
    search.trials = Trials(search.space, 0.9)
    for horizon_s in (10.0, 20.0):
        search.trials.played[choice, 0, horizon_s] = Played(0.1, 0.0, "", ues)
    assert search.left_out(choice) == f"{said} merged with seed 0"


def test_a_derived_horizon_doubles_twice_and_a_given_one_has_longer_scouts_instead():
    target = PlanTarget(0.9, "accuracy", 10.0, 30.0, "")
    found = [(each.horizon_s, each.confirm_s, scouting) for each, scouting in horizons(target, PlanRequest())]
    assert found == [(10, 30, 1 / 3), (20, 60, 1 / 3), (40, 120, 1 / 3)]
    assert list(horizons(target, PlanRequest(horizon_s=10.0))) == [(target, 1 / 3), (target, 0.5)]


# ---- many cells


def of_cells(**settings: Any) -> Space:
    return space_of(12, {"quorum": [1, 2]}, cells=4, quorum=2, **settings)


def test_with_many_cells_the_rounds_of_edges_the_cloud_and_the_reuse_are_searched():
    space = of_cells()
    assert space.axes["edge_rounds"] == (1, 2, 5)
    assert space.axes["cloud_quorum"] == (2, 4)
    assert space.axes["frequency_reuse"] == (1, 3)

    def law(choice: Choice, _: int) -> tuple[float, float]:
        wrong = (choice.edge_rounds != 2) + (choice.cloud_quorum != 2) + (choice.frequency_reuse != 3)
        return 1.0 + wrong, 1.0

    best = made(law, space)[0].best
    assert best is not None
    assert (best.choice.edge_rounds, best.choice.cloud_quorum, best.choice.frequency_reuse) == (2, 2, 3)
    assert "edge rounds 2, cloud quorum 2, reuse 3" in str(best.choice)


def test_the_clouds_staleness_bound_limits_its_quorum():
    """Of 4 edges, a quorum of 2 with S = 0 could leave one behind forever."""
    assert of_cells(cloud_staleness=0).axes["cloud_quorum"] == (4,)


def test_the_spec_of_a_choice_has_its_settings_of_cells():
    space = of_cells()
    spec = space.spec_of(space.asked.with_(edge_rounds=5, cloud_quorum=2, frequency_reuse=3), [0], 10.0, 5)
    assert (spec.cells.edge_rounds, spec.cells.cloud_quorum, spec.cells.frequency_reuse) == (5, 2, 3)


def test_a_single_cell_is_planned_without_edges_and_cloud():
    space = space_of()
    assert all(space.axes[axis] == (1,) for axis in ("edge_rounds", "cloud_quorum", "frequency_reuse"))
    assert "cloud" not in str(space.asked)


def test_a_plan_whose_global_model_is_poor_says_so():
    plan, _ = made(lambda choice, _: (1 + abs(choice.quorum - 7), 1.0))
    assert plan.best is not None
    poor = replace(plan.best, trials=tuple(replace(each, end_global=0.128) for each in plan.best.trials))
    shown = replace(plan, candidates=tuple(poor if each is plan.best else each for each in plan.candidates))
    (said,) = [note for note in notes_of(shown, space_of()) if "global model" in note]
    assert said.startswith("The target is for personalised models; the global model of the choice ends with 12.8 %.")
    assert not [note for note in plan.notes if "global model" in note]
