"""Start the search of a plan: refuse limits that nothing meets, and derive the horizon, the bits and the local steps."""

from collections.abc import Iterator
from dataclasses import replace

from perfeds2.errors import InputError
from perfeds2.runs.notes import noise_warning
from perfeds2.spec.rules import HORIZON_S
from perfeds2.spec.tasks import metric_of
from perfeds2.studies.plan_data import Choice, PlanRequest, PlanTarget
from perfeds2.studies.plan_search import NEAR, PlanSearch
from perfeds2.studies.plan_space import CELL_AXES, Space, map_of, varied
from perfeds2.studies.plan_trials import Trials
from perfeds2.studies.search import FACTOR, Rung

REFERENCE_DOUBLINGS = 3  # the first training gets up to 8 times the spec's horizon before the search gives up
HORIZON_DOUBLINGS = 2  # and the search up to 4 times its own horizon


def search_at_horizons(space: Space, trials: Trials, request: PlanRequest) -> tuple[PlanSearch, Choice | None]:
    """Search, with longer horizons if no choice stands; return the last search and the best choice."""
    trials.expected_s = 20 * (request.horizon_s or space.spec.run.horizon_s or HORIZON_S)
    base, target = begin(space, trials, request)
    for longer, scouting in horizons(target, request):
        searched = PlanSearch(space, trials, request, longer, scouting)
        best = searched.run(base)
        excluded = (searched.verdict(choice)[0] in ("breaks a limit", "not possible") for choice in searched.listed)
        if best is not None or all(excluded):
            break
    return searched, searched.final_choice(best)


def check_limits(space: Space, trials: Trials, request: PlanRequest) -> None:
    """Refuse limits that no choice can meet, before anything is trained.

    The shares of the merges, and the seconds and joules of the first round, follow from the clock alone.

    Raises:
        InputError: If a limit cannot be met.
    """
    spec, share = space.spec, request.least_share or 0.0
    if share * spec.cell.ues > 1:
        even = f"{spec.cell.ues} UEs have at most {1 / spec.cell.ues:.3g} of the merges each"
        raise InputError(f"--least-share {share:g} cannot be met: {even}.")
    asked, seed = space.asked, spec.run.seeds[0]
    choices = [asked, *map_of(space, asked.with_(bits=min(asked.bits, *space.axes["bits"])))]
    horizon_s = request.horizon_s or spec.run.horizon_s or HORIZON_S
    most = 0.0
    for choice in sorted(choices, key=lambda each: -each.quorum):  # the larger A, the more equal the shares
        if most >= share:
            break
        most = max(most, trials.play(choice, seed, horizon_s).least_share)
    if most < share:
        found = f"within {horizon_s:g} s no choice gives every UE more than {most:.3g} of the merges"
        raise InputError(f"--least-share {share:g} cannot be met: {found}.")
    if request.within_s is None and request.joules is None:
        return
    seconds, joules = zip(*(trials.first_round(choice, seed) for choice in choices), strict=True)
    for flag, limit, least, unit in (
        ("--within-s", request.within_s, min(seconds), "s"),
        ("--joules", request.joules, min(joules), "J"),
    ):
        if limit is not None and least > limit:
            raise InputError(f"{flag} {limit:g} cannot be met: the first round alone takes {least:.3g} {unit}.")


def horizons(target: PlanTarget, request: PlanRequest) -> Iterator[tuple[PlanTarget, float]]:
    """Yield targets with longer and longer horizons, and the share of each that a scout is trained for.

    A given horizon stays the same; then scouts are trained for half of it, since nothing reached later can be kept.
    """
    yield target, 1 / FACTOR
    if request.horizon_s is not None:
        yield target, 0.5
        return
    for doubling in range(1, HORIZON_DOUBLINGS + 1):
        horizon_s = 2**doubling * target.horizon_s
        yield replace(target, horizon_s=horizon_s, confirm_s=FACTOR * horizon_s), 1 / FACTOR


def begin(space: Space, trials: Trials, request: PlanRequest) -> tuple[Choice, PlanTarget]:
    """Find the bits and local steps that suit one choice best, and derive the horizon from the time it takes.

    A scout is trained for ``NEAR`` times the soonest time. If the spec's own choice is to be checked, the horizon is
    at least three times what that takes.
    """
    spec = space.spec
    best, best_s, asked_s = _reference(space, trials, request)
    rung = Rung(spec.run.seeds[:1], 1.2 * best_s)
    for axis in ("bits", "local_steps", "rest_rounds", *CELL_AXES):
        tried = [varied(space, best, axis, value) for value in space.axes[axis]]
        if tried != [best] or request.horizon_s is None:  # otherwise nothing depends on it
            trials.train(tried, rung)
        for each in tried:
            for trial in trials.known(each, rung.seeds, rung.horizon_s):
                if trial.reached_s is not None and trial.reached_s < best_s:
                    best, best_s = each, trial.reached_s
    listed = {axis: space.axes[axis] for axis in ("stale", "bits", "local_steps", "rest_rounds", *CELL_AXES)}
    best = best.with_(**{axis: values[0] for axis, values in listed.items() if vars(best)[axis] not in values})
    if request.horizon_s is not None:
        horizon_s, why = request.horizon_s, "as given"
    else:
        times = FACTOR * NEAR
        horizon_s, why = times * best_s, f"{times:g} times as long as the soonest of a few took at first"
        if request.check and asked_s is not None and 3 * asked_s > horizon_s:
            horizon_s, why = 3 * asked_s, "three times as long as what you asked for takes"
    horizon_s = float(f"{horizon_s:.2g}")
    accuracy, metric = spec.run.target_accuracy, metric_of(spec)
    return best, PlanTarget(accuracy, metric, horizon_s, FACTOR * horizon_s, why)


def _reference(space: Space, trials: Trials, request: PlanRequest) -> tuple[Choice, float, float | None]:
    """Return a choice that reaches the target, its time, and the time of the spec's own choice if that keeps it.

    It is the spec's own choice, or else a conservative one: at least a quarter of the UEs, no staleness bound.
    """
    spec, asked = space.spec, space.asked
    quarter = max(round(spec.cell.ues / spec.edges / 4), 1)
    gentle = asked.with_(quorum=max(asked.quorum, quarter), max_staleness=None, schedule="first")
    gentle = gentle.with_(bandwidth="equal_share") if ("bandwidth", "equal_share") in space.named else gentle
    horizon_s, best = request.horizon_s or spec.run.horizon_s or HORIZON_S, 0.0
    for doubling in range(REFERENCE_DOUBLINGS + 1 if request.horizon_s is None else 1):
        rung = Rung(spec.run.seeds[:1], 2**doubling * horizon_s)
        reached: list[tuple[bool, float, Choice]] = []
        for choice in dict.fromkeys((asked, gentle)):
            trials.train([choice], rung)
            for trial in trials.known(choice, rung.seeds, rung.horizon_s):
                best = max([best, *(score for score in trial.scores if score is not None)])
                if trial.time_s is not None:
                    return choice, trial.time_s, trial.time_s if choice == asked else None
                if trial.reached_s is not None:
                    reached.append((trial.state == "late", trial.reached_s, choice))
        if reached and (doubling > 0 or request.horizon_s is not None):
            _, took_s, choice = max(reached, key=lambda each: each[:2])
            return choice, took_s, None
    played = trials.play(gentle, rung.seeds[0], rung.horizon_s)
    why = noise_warning(gentle.quorum, played.privacy)
    raise InputError(
        f"--target-accuracy {spec.run.target_accuracy:g} is not reached within {rung.horizon_s:g} simulated seconds by {asked}, nor by "
        f"{gentle} (best evaluation: {best:.4g}); lower it, tune the step sizes (perfeds2 tune), or give --horizon-s."
        + f" With the latter, {why}"
        * bool(why)
    )
