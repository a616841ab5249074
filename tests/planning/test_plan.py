"""The planner on a small cell: six UEs, digits, an easy target."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfeds2.allocation.schedule import deficit, longest_gap
from perfeds2.allocation.shares import equal_shares
from perfeds2.errors import InputError
from perfeds2.learning.datasets import digits
from perfeds2.network.cell import Cell
from perfeds2.planning import options as options_module
from perfeds2.planning import plan as module
from perfeds2.planning.bounds import bound_facts, promises, stacked_samples
from perfeds2.planning.data import ClosesOn, Plan, Theory
from perfeds2.planning.options import Option, Scene, make_option, make_scene, realisable_shares
from perfeds2.planning.pilots import PlanRequest, Stand, crossing, fit_law, predicted_s
from perfeds2.planning.plan import make_plan
from perfeds2.planning.plan import plan as plan_from_python
from perfeds2.report.plan import print_plan, write_plan
from perfeds2.runs.folder import alone
from perfeds2.spec.fields import Spec
from perfeds2.spec.resolve import resolve
from perfeds2.theory.constants import Constants

SMALL: dict[str, Any] = {"cell": {"ues": 6}, "protocol": {"quorum": 2}, "learning": {"batch": 10}}


def small_spec(**protocol: object) -> Spec:
    return resolve(SMALL | {"protocol": {"quorum": 2, **protocol}, "run": {"seeds": [0]}})


@pytest.fixture(scope="module", autouse=True)
def short_clock() -> Iterator[None]:
    """With every array checked, the clock is what takes time here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(options_module, "LEAST_SIMULATED", 60)
        yield


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("planned") / "new"


@pytest.fixture(scope="module")
def plan(out: Path) -> Plan:
    """The one plan that is trained here, by the Python door."""
    asked: dict[str, Any] = {"target_loss": 2.0, "quorums": [1, 2, 6], "stalenesses": [1, 2, 6], "pilot_rounds": 100}
    return plan_from_python(out=out, check=True, **asked, **SMALL)


@pytest.fixture(scope="module")
def scene() -> Scene:
    return make_scene(small_spec())


def possible(scene: Scene, quorum: int, max_staleness: int | None, closing: ClosesOn = "planned") -> Option:
    option = make_option(scene, quorum, max_staleness, closing)
    assert isinstance(option, Option), option
    return option


# The plan as a whole.


def test_every_combination_of_the_grid_is_listed_possible_or_not(plan: Plan):
    assert len(plan.candidates) == 3 * 3 * 2
    assert len({candidate.place for candidate in plan.candidates}) == 3 * 3 * 2
    for candidate in plan.candidates:
        if not candidate.feasible:
            assert candidate.obstacle
            assert candidate.seconds is None
    assert any(not c.feasible for c in plan.candidates)


def test_the_choice_is_the_soonest_of_all(plan: Plan):
    known = [c.seconds for c in plan.candidates if c.seconds is not None]
    assert plan.best.seconds == min(known)
    assert len(known) >= 6


def test_the_soonest_planned_is_the_soonest_of_those_that_keep_the_shares(plan: Plan):
    planned = [c.seconds for c in plan.candidates if c.closing == "planned" and c.seconds is not None]
    assert plan.best_planned is not None
    assert plan.best_planned.seconds == min(planned)


def test_predicted_seconds_are_rounds_times_seconds_a_round(plan: Plan):
    for candidate in plan.candidates:
        if candidate.seconds is not None:
            assert candidate.rounds is not None
            assert candidate.seconds_per_round is not None
            assert candidate.seconds == pytest.approx(candidate.rounds * candidate.seconds_per_round, rel=1e-12)


def test_the_choice_was_trained(plan: Plan):
    assert plan.best.rounds_from == "pilot"
    assert any((p.quorum, p.closing) == (plan.best.quorum, plan.best.closing) for p in plan.pilots)


def test_no_planned_update_is_staler_than_its_bound(plan: Plan):
    for candidate in plan.candidates:
        if candidate.feasible and candidate.max_staleness is not None:
            assert candidate.staleness_max is not None
            assert candidate.staleness_max <= candidate.max_staleness


def test_trainings_with_other_noise_take_what_was_predicted_within_a_factor_of_two(plan: Plan):
    assert len(plan.checks) >= 3
    assert (plan.checks[0].quorum, plan.checks[0].closing) == (plan.best.quorum, plan.best.closing)
    for check in plan.checks:
        assert check.measured_s is not None
        assert 0.5 < check.measured_s / check.predicted_s < 2


def test_constants_are_positive_and_lie_between_their_limits(plan: Plan):
    assert [c.symbol for c in plan.constants] == ["L", "C", "ρ", "σ_G", "σ_H", "γ_G", "γ_H", "F(w_0) − F*"]
    for constant in plan.constants:
        assert 0 < constant.low <= constant.value <= constant.high


def test_epsilon_is_translated_by_the_reference_pilot(plan: Plan):
    """By the descent lemma F falls by about β·ε a round, ε being the mean of ‖∇F‖² on the way."""
    first = plan.pilots[0]
    assert first.rounds is not None
    gap = next(c.value for c in plan.constants if c.name == "gap")
    fallen = gap - plan.target.loss  # the loss itself is bounded below by 0
    assert 0.5 < fallen / (small_spec().learning.beta * plan.target.epsilon * first.rounds) < 2


def test_a_schedule_repeats_and_serves_everybody(plan: Plan):
    detail = plan.planned or plan.chosen
    assert plan.best_planned is not None
    assert detail.period is not None
    assert detail.period == len(detail.rows)
    assert sum(ue.merges_per_period for ue in detail.ues) == detail.period * plan.best_planned.quorum
    for ue in detail.ues:
        assert ue.merges_per_period == len(ue.rounds) == len(ue.bandwidth_hz) > 0
        assert all(hz > 0 for hz in ue.bandwidth_hz)
        assert all(ue.ue in detail.rows[k] for k in ue.rounds)
    for k in range(detail.period):
        given = sum(hz for ue in detail.ues for at, hz in zip(ue.rounds, ue.bandwidth_hz, strict=True) if at == k)
        assert given == pytest.approx(1e6)  # the planned UEs share all of the band


def test_a_plan_goes_to_json_and_back(plan: Plan, out: Path):
    assert Plan.from_json(plan.to_json()) == plan
    assert json.loads(plan.to_json())["choice"] == plan.choice
    assert {path.name for path in out.iterdir()} == {"spec.toml", "plan.json"}
    assert Plan.from_json((out / "plan.json").read_text(encoding="utf-8")) == plan


def test_a_plan_can_be_printed_and_drawn(plan: Plan, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    print_plan(plan)
    said = capsys.readouterr().out
    assert f"Soonest: A = {plan.best.quorum}" in said
    assert "Not possible" in said
    assert "measured" in said
    assert max(map(len, said.splitlines())) <= 150
    written = write_plan(plan, tmp_path / "new")
    assert {path.name for path in written} == {"plan.json", "plan.png", "plan.pdf"}
    assert all(path.stat().st_size > 1000 for path in written)
    assert Plan.from_json((tmp_path / "new" / "plan.json").read_text(encoding="utf-8")) == plan


# The folder.


def test_a_second_planner_in_the_same_folder_is_refused_in_one_sentence(tmp_path: Path):
    tmp_path /= "out"
    tmp_path.mkdir()
    with (
        alone(tmp_path),
        pytest.raises(InputError, match=r"^another process is writing into .*choose another folder\.$"),
    ):
        plan_from_python(small_spec(), out=tmp_path)
    assert [path.name for path in tmp_path.iterdir() if path.name == "plan.json"] == []


def test_what_is_written_is_written_alone_and_nothing_before_it_is_known_to_work(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "make_plan", lambda *_, **__: plan)

    def write(made: Plan, out: Path) -> None:
        assert made is plan
        with pytest.raises(InputError, match="another process"), alone(out):
            pass

    for _ in range(2):  # the folder of the same spec may be planned again
        assert plan_from_python(small_spec(), out=tmp_path / "new", write=write) is plan
    with pytest.raises(InputError, match="--pilot-rounds"):
        plan_from_python(small_spec(), out=tmp_path / "other", pilot_rounds=0)
    assert not (tmp_path / "other").exists()


def test_a_plan_is_made_on_a_users_own_task_and_cell(plan: Plan, monkeypatch: pytest.MonkeyPatch):
    scenes: list[Scene] = []
    monkeypatch.setattr(module, "make_plan", lambda spec, *_, **__: (scenes.append(make_scene(spec)), plan)[1])
    task = digits(6, 2, 7)
    plan_from_python(task=task, cell=lambda seed: Cell.draw(6, seed + 5, layout="uniform"), ues=6, quorum=2, batch=10)
    assert scenes[0].task is task
    np.testing.assert_array_equal(scenes[0].cell.distance_m, Cell.draw(6, 5, layout="uniform").distance_m)
    assert (scenes[0].quorum, scenes[0].seed) == (2, 0)


# What can be planned.


def test_too_many_ues_for_the_staleness_bound_are_refused_with_the_way_out():
    with pytest.raises(ValueError, match=r"n > A\(S\+1\) = 3; raise S to 5 or A to 2"):
        realisable_shares(equal_shares(6), 1, 2, 60)


def test_equal_shares_can_be_planned_up_to_the_last_staleness_that_allows_it():
    shares, note = realisable_shares(equal_shares(6), 2, 2, 60)  # n = A(S+1), though 1/(A·S) > 1/n
    assert note is None
    np.testing.assert_allclose(shares, 1 / 6)


def test_shares_out_of_range_move_to_the_nearest_and_say_so():
    shares, note = realisable_shares(np.array([0.7, 0.06, 0.06, 0.06, 0.06, 0.06]), 2, 10, 200)
    assert shares.max() == pytest.approx(0.5)  # at most once a round: 1/A
    assert note is not None
    assert "moved to the nearest" in note


def test_planned_shares_keep_the_staleness_bound_whatever_was_asked_for():
    target = np.array([0.4, 0.25, 0.15, 0.1, 0.06, 0.04])
    for quorum, bound in ((2, 2), (2, 3), (2, 5), (3, 1), (3, 2)):
        shares, note = realisable_shares(target, quorum, bound, 300)
        assert note is not None
        assert longest_gap(deficit(shares, quorum, 300), 6).max() <= bound


def test_first_arrivals_that_starve_a_ue_are_no_option():
    scene = make_scene(resolve({"run": {"seeds": [0]}}))
    starving = make_option(scene, 1, 5, "first")
    assert isinstance(starving, str)
    assert "never merged" in starving


def test_a_plan_that_keeps_the_staleness_bound_is_the_same_for_a_looser_one(scene: Scene):
    tight, loose = possible(scene, 2, 2), possible(scene, 2, 6)
    assert tight.who == loose.who
    np.testing.assert_array_equal(tight.timeline.time_s, loose.timeline.time_s)


# What the bounds say.


GENTLE = Constants(1.0, 1e-3, 1e-3, 1e-4, 1e-4, 1e-4, 1e-4, 1.0)


def test_a_bound_that_promises_something_is_turned_into_seconds(scene: Scene):
    option = possible(scene, 6, 2)
    said = promises(scene, option, GENTLE, epsilon=0.1)
    for name in ("rule", "printed", "sharpened", "proved"):
        rounds = said[name].rounds
        assert rounds is not None
        assert rounds >= math.ceil(2 / (0.07 * 0.1))  # 2Δ/(βε) with Δ = 1
        assert said[name].seconds == pytest.approx(rounds * option.seconds_per_round)
    assert said["rule"].rounds == math.ceil(2 / (0.07 * 0.1))


def test_a_bound_that_promises_nothing_says_why(scene: Scene):
    option = possible(scene, 6, 2)
    steep, noisy = Constants(10.0, 1, 1, 0, 0, 0, 0, 1), Constants(1.0, 1, 1, 5, 5, 5, 5, 1)
    assert "above the largest admissible" in (promises(scene, option, steep, 0.1)["proved"].obstacle or "")
    assert "noise floor" in (promises(scene, option, noisy, 0.1)["proved"].obstacle or "")


def test_too_large_an_inner_step_leaves_no_bound(scene: Scene):
    obstacle = bound_facts(scene, Constants(100.0, 1, 1, 1, 1, 1, 1, 1), 0.1)
    assert isinstance(obstacle, str)
    assert "lower alpha" in obstacle


def test_a_star_is_what_c42_asks_for_when_the_noise_allows_less():
    theory = bound_facts(make_scene(small_spec(max_staleness=3)), Constants(1.0, 1, 1, 1, 1, 1, 1, 1), 0.1)
    assert isinstance(theory, Theory)
    assert theory.corrected_quorum == 2  # ⌈n/S⌉
    assert theory.meets_target is False
    assert theory.printed_quorum is not None
    assert theory.printed_quorum < 1


# What the law says.


@pytest.fixture(scope="module")
def options(scene: Scene) -> list[Option]:
    found = [make_option(scene, quorum, 6, closing) for quorum in (1, 2, 3, 6) for closing in ("planned", "first")]
    return [option for option in found if isinstance(option, Option)]


def test_the_law_finds_itself(options: list[Option]):
    truth = np.array([100.0, 50.0, 2.0, 0.0, 30.0])
    law = fit_law([(option, float(truth @ option.features)) for option in options])
    for option in options:
        assert predicted_s(option, law, {}) == pytest.approx(
            float(truth @ option.features) * option.seconds_per_round, rel=0.02
        )


def test_more_noise_or_staleness_never_helps_by_the_law(options: list[Option]):
    random = np.random.default_rng(0)
    law = fit_law([(option, float(random.uniform(50, 200))) for option in options])
    assert law.base > 0
    assert min(law.noise, law.staleness, law.late, law.inequality) >= 0
    assert law.left_out_factor is not None
    assert law.left_out_factor >= 1


def test_a_loss_that_falls_exponentially_is_met_where_it_should_be():
    before, after = Stand(10, 2.0, 0.5, None), Stand(20, 0.5, 0.5, None)
    assert crossing(before, after, 1.0) == pytest.approx(15)
    assert crossing(before, after, 0.5) == pytest.approx(20)
    assert crossing(None, after, 1.0) == 20


def test_samples_are_the_ues_own(scene: Scene):
    x, y = stacked_samples(scene.task, samples=16)
    assert x.shape == (6, 16, 64)
    assert y.shape == (6, 16)
    assert all(len(set(labels)) <= 3 for labels in y.tolist())  # 3 labels a UE


# What cannot be used.


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"epsilon": -1.0}, "--epsilon must be a finite number above 0"),
        ({"target_loss": math.inf}, "--target-loss must be a finite number above 0"),
        ({"quorums": [7]}, "--quorums must be from 1 to the number of UEs, 6"),
        ({"quorums": []}, "--quorums is empty"),
        ({"stalenesses": [-1]}, "--stalenesses must be at least 0"),
        ({"pilot_rounds": 0}, "--pilot-rounds must be at least 1"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_sentence(wrong: dict, message: str):
    with pytest.raises(InputError, match=message):
        make_plan(small_spec(), PlanRequest(**wrong))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "message"),
    [
        ({"target_loss": 0.001}, r"--target-loss 0.001 is not reached .*after 20 rounds"),
        ({"target_loss": 5.0}, "is met before training"),
        ({"epsilon": 1000.0}, "never exceeds"),
        ({"epsilon": 1e-9}, r"--epsilon 1e-09 is not reached .*after 20 rounds"),
    ],
)
def test_a_target_out_of_the_pilots_reach_is_refused_with_how_far_it_got(target: dict, message: str):
    with pytest.raises(InputError, match=message):
        make_plan(small_spec(), PlanRequest(**target, pilot_rounds=20))
