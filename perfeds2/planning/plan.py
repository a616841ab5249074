"""Which A and S reach the target soonest, in seconds?

Seconds are rounds × seconds a round. Seconds a round come from the simulated clock, which needs no weights. Rounds come
from the bounds, and, since those promise little for a neural network, from pilots: short trainings along simulated
timelines, and a law through them that says what the others would need. Wherever the law sees the soonest, a pilot is
sent, so that the choice rests on a training. Everything is for PerFed on the cell and data of the spec's first seed.
"""

import math
from collections.abc import Sequence

import numpy as np

from perfeds2 import __version__
from perfeds2.planning.bounds import bound_facts, measured_constants, promises
from perfeds2.planning.data import Candidate, Check, Closing, Law, PilotRun, Plan, Target, Theory
from perfeds2.planning.options import (
    CLOSINGS,
    Option,
    Scene,
    detail,
    longer,
    make_option,
    make_scene,
    policy,
    where,
)
from perfeds2.planning.pilot_task import Measured, train_to_loss
from perfeds2.planning.pilots import (
    PATIENCE,
    PILOT_ROUNDS,
    Tell,
    Trained,
    aim,
    fit_law,
    pick_reference,
    points,
    predicted_s,
    soonest_first,
    train_pilots,
)
from perfeds2.runs.execute import Progress, Watch
from perfeds2.spec.fields import InputError, Spec
from perfeds2.theory.constants import Constants


def make_plan(
    spec: Spec,
    *,
    epsilon: float | None = None,
    target_loss: float | None = None,
    constants: Constants | None = None,
    quorums: Sequence[int] | None = None,
    stalenesses: Sequence[int | None] | None = None,
    pilot_rounds: int = PILOT_ROUNDS,
    check: bool = False,
    watch: Watch | None = None,
) -> Plan:
    """Look at a grid of A and S, and choose.

    The target is ``target_loss`` (the personalised training loss F), or ``epsilon`` (the bounds' mean of ‖∇F‖² over the
    rounds), or, without either, the loss at which a reference pilot meets the spec's target accuracy; that pilot
    translates between loss and ε. ``constants`` stand in for measured ones; ``check`` trains at a few candidates
    with other noise and puts what it took beside what was predicted.
    """
    check_request(spec, epsilon, target_loss, quorums, stalenesses, pilot_rounds)
    scene = make_scene(spec)
    tell = _teller(watch, scene.seed)
    tell("reference pilot", 0.0)
    reference = pick_reference(scene)
    target, first_rounds, probes = aim(scene, reference, epsilon, target_loss, pilot_rounds, tell)
    tell("constants", 0.3)
    measured = () if constants is not None else measured_constants(scene, probes)
    known = constants or Constants(**{constant.name: constant.value for constant in measured})
    theory, obstacle = bound_facts(scene, known, target.epsilon, int(reference.timeline.staleness.max()))
    grid = _grid(scene, quorums, stalenesses, theory)
    found: list[Option | str] = []
    options: list[Option] = []
    for number, (quorum, staleness, closing) in enumerate(grid):
        tell(f"clock A = {quorum}", 0.45 + 0.15 * number / len(grid))
        found.append(make_option(scene, quorum, staleness, closing, options))
        options = [option for option in found if isinstance(option, Option)]
    trained = train_pilots(scene, options, reference, first_rounds, target.loss, tell)
    law = fit_law(points(trained))
    candidates = tuple(
        _candidate(scene, option, known, theory, target, law, trained)
        if isinstance(option, Option)
        else Candidate(*place, policy(place[2]).__name__, obstacle=option)
        for place, option in zip(grid, found, strict=True)
    )
    choice, planned_choice = _choose(candidates), _choose_planned(candidates)
    checks = _check(scene, candidates, options, choice, target.loss, tell) if check else ()
    by_place = {where(option): option for option in options}
    return Plan(
        perfeds2=__version__,
        task=spec.task.name,
        population=scene.cell.ues,
        seed=scene.seed,
        stale=spec.protocol.stale,
        shares=spec.protocol.shares if isinstance(spec.protocol.shares, str) else "given",
        spec_quorum=scene.quorum,
        spec_max_staleness=scene.max_staleness,
        target=target,
        constants=measured,
        theory=theory,
        candidates=candidates,
        choice=choice,
        planned_choice=planned_choice,
        law=law,
        pilots=tuple(_pilot_run(option, outcome) for option, outcome in trained.values()),
        chosen=detail(scene, by_place[where(candidates[choice])]),
        planned=None
        if planned_choice in (None, choice)
        else detail(scene, by_place[where(candidates[planned_choice])]),
        checks=checks,
        notes=tuple(_notes(scene, candidates, choice, trained, obstacle)),
    )


def check_request(
    spec: Spec,
    epsilon: float | None = None,
    target_loss: float | None = None,
    quorums: Sequence[int] | None = None,
    stalenesses: Sequence[int | None] | None = None,
    pilot_rounds: int = PILOT_ROUNDS,
) -> None:
    """Refuse what cannot be planned, before any work."""
    for flag, value in (("--epsilon", epsilon), ("--target-loss", target_loss)):
        if value is not None and not (math.isfinite(value) and value > 0):
            raise InputError(f"{flag} must be a finite number above 0, got {value}.")
    for quorum in quorums if quorums is not None else ():
        if not 1 <= quorum <= spec.cell.ues:
            raise InputError(f"--quorums must be from 1 to the number of UEs, {spec.cell.ues} (--ues), got {quorum}.")
    for staleness in stalenesses if stalenesses is not None else ():
        if staleness is not None and staleness < 0:
            raise InputError(f"--stalenesses must be at least 0, or 'unbounded', got {staleness}.")
    for flag, values in (("--quorums", quorums), ("--stalenesses", stalenesses)):
        if values is not None and len(values) == 0:
            raise InputError(f"{flag} is empty; give at least one.")
    if pilot_rounds < 1:
        raise InputError(f"--pilot-rounds must be at least 1, got {pilot_rounds}.")


def _grid(
    scene: Scene, quorums: Sequence[int] | None, stalenesses: Sequence[int | None] | None, theory: Theory | None
) -> list[tuple[int, int | None, Closing]]:
    """Every (A, S, how a round closes): about 8 A, spaced by a factor, with the spec's and A*; the spec's S and looser ones."""
    n, bound = scene.cell.ues, scene.max_staleness
    if quorums is None:
        spaced = {int(a) for a in np.geomspace(1, n, 7).round()}
        star = None if theory is None else theory.corrected_quorum
        quorums = sorted(spaced | {scene.quorum, n} | ({star} if star is not None else set()))
    if stalenesses is None:
        stalenesses = [n, None] if bound is None else sorted({bound, 2 * bound, max(n, bound)})
    return [(a, s, closing) for a in dict.fromkeys(quorums) for s in dict.fromkeys(stalenesses) for closing in CLOSINGS]


def _candidate(
    scene: Scene,
    option: Option,
    constants: Constants,
    theory: Theory | None,
    target: Target,
    law: Law,
    trained: Trained,
) -> Candidate:
    """Everything known of an option."""
    timeline, pace = option.timeline, option.seconds_per_round
    wanted = np.maximum(scene.shares, 1e-12)
    seconds = predicted_s(option, law, trained)
    promised = {} if theory is None else promises(scene, option, constants, target.epsilon)
    return Candidate(
        *where(option),
        policy(option.closing).__name__,
        note=option.note,
        seconds_per_round=pace,
        staleness_mean=float(timeline.staleness.mean()),
        staleness_square=option.staleness_square,
        staleness_max=int(timeline.staleness.max()),
        inequality=option.inequality,
        share_error=float((np.abs(timeline.shares - scene.shares) / wanted).max()),
        waiting_share=timeline.waiting_share,
        rule=promised.get("rule"),
        printed=promised.get("printed"),
        sharpened=promised.get("sharpened"),
        proved=promised.get("proved"),
        rounds=None if seconds is None else seconds / pace,
        rounds_from="pilot" if option.who in trained else "law",
        seconds=seconds,
    )


def _choose(candidates: Sequence[Candidate]) -> int:
    """The place of the soonest candidate."""
    possible = [at for at, candidate in enumerate(candidates) if candidate.seconds is not None]
    if not possible:
        some = next((c.obstacle for c in candidates if c.obstacle), None)
        why = some or f"no pilot reached the target in {PATIENCE} times the reference's rounds; give other --quorums."
        raise InputError(f"none of the {len(candidates)} candidates can reach the target: {why}")
    return min(possible, key=lambda at: soonest_first(candidates[at].seconds, candidates[at]))


def _choose_planned(candidates: Sequence[Candidate]) -> int | None:
    possible = [at for at, c in enumerate(candidates) if c.seconds is not None and c.closing == "planned"]
    return min(possible, key=lambda at: soonest_first(candidates[at].seconds, candidates[at]), default=None)


def _pilot_run(option: Option, outcome: Measured) -> PilotRun:
    final = outcome.final_loss if math.isfinite(outcome.final_loss) else None
    return PilotRun(*where(option), outcome.rounds, outcome.trained_rounds, final)


def _check(
    scene: Scene, candidates: Sequence[Candidate], options: Sequence[Option], choice: int, loss: float, tell: Tell
) -> tuple[Check, ...]:
    """Train the choice and a few others from other weights with other noise, and see when they really get there.

    The others are those the law spoke for, spread over A: there a prediction can be most wrong.
    """
    known = [c for c in candidates if c.seconds is not None and c is not candidates[choice]]
    best = candidates[choice]
    chosen = [best]
    others = sorted(
        (c for c in known if c.quorum != best.quorum),
        key=lambda c: (c.rounds_from != "law", soonest_first(c.seconds, c)),
    )
    by_quorum = {candidate.quorum: candidate for candidate in reversed(others)}
    spread = [by_quorum[a] for a in sorted(by_quorum)]
    chosen += [spread[i] for i in np.unique(np.linspace(0, len(spread) - 1, min(3, len(spread))).round().astype(int))]
    checks = []
    for number, candidate in enumerate(chosen):
        predicted, source = candidate.rounds, candidate.rounds_from
        assert predicted is not None
        assert candidate.seconds is not None
        assert source is not None
        option = next(o for o in options if where(o) == where(candidate))
        timeline = longer(scene, option, math.ceil(3 * predicted))

        def watch(round_: int, share: float = 0.95 + 0.05 * number / len(chosen), option: Option = option) -> None:
            tell(f"check A = {option.quorum}", share, round_, round_ * option.seconds_per_round)

        every = max(1, round(predicted / 20))
        outcome = train_to_loss(
            scene.task,
            timeline,
            scene.learner,
            loss,
            seed=(scene.seed + 1) % 2**32,
            every=every,
            tell=watch,
        )
        rounds = outcome.rounds
        seconds = None if rounds is None else float(np.interp(rounds, np.arange(timeline.rounds + 1), timeline.start_s))
        checks.append(Check(*where(candidate), predicted, candidate.seconds, source, rounds, seconds))
    return tuple(checks)


def _notes(
    scene: Scene, candidates: Sequence[Candidate], choice: int, trained: Trained, obstacle: str | None
) -> list[str]:
    """What a careful reader should know."""
    notes = [f"One cell, one data partition, one training noise: those of seed {scene.seed}."]
    best = candidates[choice]
    assert best.seconds is not None
    close = {c.quorum for c in candidates if c.seconds is not None and c.seconds <= 1.1 * best.seconds} - {best.quorum}
    if close:
        notes.append(f"A = {', '.join(map(str, sorted(close)))} comes within 10 % of the choice: too close to call.")
    feasible = [c for c in candidates if c.feasible]
    promised = [b for c in feasible for b in (c.printed, c.sharpened, c.proved) if b is not None]
    if promised and all(b.rounds is None for b in promised):
        notes.append(
            "No bound promises the target for any candidate (see the obstacles): as usual for neural networks, the rounds "
            "come from pilots. The paper's rule asks only its bound's first term to meet ε and promises nothing."
        )
    if obstacle is not None:
        notes.append(f"No A* from the paper's rule: {obstacle}")
    lost = [option for option, outcome in trained.values() if outcome.rounds is None]
    if lost:
        which = "; ".join(f"A = {o.quorum}, {o.closing}" for o in lost)
        notes.append(f"Pilots that did not reach the target in {PATIENCE} times the reference's rounds: {which}.")
    if best.rounds_from != "pilot":
        notes.append("The choice itself was not trained, only read off the law; --check trains it.")
    learning = scene.spec.learning
    if learning.local_steps > 1 or learning.hessian != "exact":
        notes.append("The bounds are for one local step with the exact Hessian, not for this spec's settings.")
    return notes


def _teller(watch: Watch | None, seed: int) -> Tell:
    """Passes progress on, counting the rounds of all trainings."""
    trained = last = 0

    def tell(what: str, share: float, rounds: int = 0, time_s: float = 0.0) -> None:
        nonlocal trained, last
        trained, last = trained + max(rounds - last, 0), rounds
        if watch is not None:
            watch(Progress(what, seed, share, time_s, trained))

    return tell
