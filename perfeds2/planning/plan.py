"""Which A and S reach the target soonest, in seconds?

Seconds are rounds × seconds a round. Seconds a round come from the simulated clock, which needs no weights. Rounds come
from the bounds, and, since those promise little for a neural network, from pilots: short trainings along simulated
timelines, and a law through them that says what the others would need. Wherever the law sees the soonest, a pilot is
sent, so that the choice rests on a training. Everything is for PerFed on the cell and data of the spec's first seed.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from perfeds2 import __version__
from perfeds2.errors import InputError
from perfeds2.files import write_text
from perfeds2.planning.bounds import bound_facts, measured_constants, promises
from perfeds2.planning.data import Candidate, Check, Law, Place, Plan, Target, Theory
from perfeds2.planning.options import BANDWIDTH, PERSONAL, Option, Scene, detail, longer, make_option, make_scene
from perfeds2.planning.pilots import (
    PATIENCE,
    PILOT_ROUNDS,
    Announce,
    PlanRequest,
    Trained,
    aim,
    fit_law,
    pick_reference,
    points,
    predicted_s,
    soonest_first,
    train_pilots,
    train_to_loss,
)
from perfeds2.runs.execute import Progress, ProgressWatch
from perfeds2.runs.folder import alone, open_folder
from perfeds2.spec.build import alpha_of
from perfeds2.spec.build import check as check_spec
from perfeds2.spec.fields import Spec
from perfeds2.spec.resolve import nested, put, resolve
from perfeds2.theory.constants import Constants

RUN = {"algorithms": [PERSONAL], "seeds": [0]}  # what a plan is for, unless told otherwise


def write_json(made: Plan, folder: Path) -> None:
    write_text(folder / "plan.json", made.to_json() + "\n")


def plan(
    spec: Spec | None = None,
    *,
    out: Path | str | None = None,
    check: bool = False,
    quorums: Sequence[int] | None = None,
    stalenesses: Sequence[int | None] | None = None,
    target_loss: float | None = None,
    epsilon: float | None = None,
    pilot_rounds: int = PILOT_ROUNDS,
    watch: ProgressWatch | None = None,
    write: Callable[[Plan, Path], object] = write_json,
    **settings: Any,
) -> Plan:
    """The A and S that reach the target soonest: ``plan(ues=20, quorums=[1, 5, 20], check=True)``.

    Settings are those of ``compare``, or a whole ``spec``; the rest is explained at ``make_plan``. With ``out`` the folder
    gets ``spec.toml`` and what ``write`` writes; nobody else plans into it meanwhile.
    """
    if spec is None:
        values = nested(settings)
        for key, default in RUN.items():
            put(values, "run", key, values.get("run", {}).get(key, default))
        spec = resolve(values)
    request = PlanRequest(epsilon, target_loss, quorums, stalenesses, pilot_rounds)
    request.check(spec.cell.ues)
    if out is None:
        return make_plan(spec, request, check=check, watch=watch)
    check_spec(spec, trains=True)
    folder = open_folder(Path(out), spec)
    with alone(folder.path):
        made = make_plan(spec, request, check=check, watch=watch)
        write(made, folder.path)
        if folder.parts.exists():
            folder.close()
    return made


def make_plan(
    spec: Spec,
    request: PlanRequest = PlanRequest(),  # noqa: B008 (frozen)
    *,
    constants: Constants | None = None,
    check: bool = False,
    watch: ProgressWatch | None = None,
) -> Plan:
    """Look at a grid of A and S, and choose.

    The target is ``target_loss`` (the personalised training loss F), or ``epsilon`` (the bounds' mean of ‖∇F‖² over the
    rounds), or, without either, the loss at which a reference pilot meets the spec's target accuracy; that pilot
    translates between loss and ε. ``constants`` stand in for measured ones; ``check`` trains at a few candidates
    with other noise and puts what it took beside what was predicted.
    """
    scene = make_scene(spec)
    request.check(scene.cell.ues)
    announce = _announcer(watch, scene.seed)
    announce("reference pilot", 0.0)
    reference = pick_reference(scene)
    target, first, models = aim(scene, reference, request, announce)
    announce("constants", 0.3)
    measured = () if constants is not None else measured_constants(scene, models)
    known = constants or Constants(**{constant.name: constant.value for constant in measured})
    theory = bound_facts(scene, known, target.epsilon, int(reference.timeline.staleness.max()))
    theory, obstacle = (None, theory) if isinstance(theory, str) else (theory, theory.obstacle)
    grid = _grid(scene, request, theory)
    found: dict[Place, Option | str] = {}
    options: list[Option] = []
    for number, place in enumerate(grid):
        announce(f"clock A = {place[0]}", 0.45 + 0.15 * number / len(grid))
        found[place] = option = make_option(scene, *place, options)
        if isinstance(option, Option):
            options.append(option)
    trained = train_pilots(scene, options, reference, first, target.loss, announce)
    law = fit_law(points(trained))
    candidates = tuple(
        _candidate(scene, option, known if theory else None, target, law, trained)
        if isinstance(option, Option)
        else Candidate(*place, BANDWIDTH[place[2]].__name__, obstacle=option)
        for place, option in found.items()
    )
    choice, planned_choice = _choose(candidates), _soonest(candidates, planned=True)
    by_place = {option.place: option for option in options}

    def chosen(at: int) -> Option:
        return by_place[candidates[at].place]

    return Plan(
        perfeds2=__version__,
        task=spec.task.name.label,
        population=scene.cell.ues,
        seed=scene.seed,
        stale=spec.protocol.stale,
        shares="given" if isinstance(spec.protocol.shares, tuple) else str(spec.protocol.shares),
        spec_quorum=scene.quorum,
        spec_max_staleness=scene.max_staleness,
        target=target,
        constants=measured,
        theory=theory,
        candidates=candidates,
        choice=choice,
        planned_choice=planned_choice,
        law=law,
        pilots=tuple(run for _, run in trained.values()),
        chosen=detail(scene, chosen(choice)),
        planned=None if planned_choice in (None, choice) else detail(scene, chosen(planned_choice)),
        checks=_check(scene, candidates, by_place, choice, target.loss, announce) if check else (),
        notes=tuple(_notes(scene, candidates, choice, trained, obstacle)),
    )


def _grid(scene: Scene, request: PlanRequest, theory: Theory | None) -> list[Place]:
    """Every (A, S, how a round closes): about 8 A, spaced by a factor, with the spec's and A*; the spec's S and looser ones."""
    n, bound, quorums, stalenesses = scene.cell.ues, scene.max_staleness, request.quorums, request.stalenesses
    if quorums is None:
        spaced = {int(a) for a in np.geomspace(1, n, 7).round()}
        star = None if theory is None else theory.corrected_quorum
        quorums = sorted(spaced | {scene.quorum, n} | ({star} if star is not None else set()))
    if stalenesses is None:
        stalenesses = [n, None] if bound is None else sorted({bound, 2 * bound, max(n, bound)})
    return [
        (a, s, closing) for a in dict.fromkeys(quorums) for s in dict.fromkeys(stalenesses) for closing in BANDWIDTH
    ]


def _candidate(
    scene: Scene, option: Option, constants: Constants | None, target: Target, law: Law, trained: Trained
) -> Candidate:
    """Everything known of an option. Without constants no bound promises anything."""
    timeline, pace = option.timeline, option.seconds_per_round
    wanted = np.maximum(scene.shares, 1e-12)
    seconds = predicted_s(option, law, trained)
    promised: dict[str, Any] = {} if constants is None else promises(scene, option, constants, target.epsilon)
    return Candidate(
        *option.place,
        BANDWIDTH[option.closing].__name__,
        note=option.note,
        seconds_per_round=pace,
        staleness_mean=float(timeline.staleness.mean()),
        staleness_square=option.staleness_square,
        staleness_max=int(timeline.staleness.max()),
        inequality=option.inequality,
        share_error=float((np.abs(timeline.shares - scene.shares) / wanted).max()),
        waiting_share=timeline.waiting_share,
        **promised,
        rounds=None if seconds is None else seconds / pace,
        rounds_from="pilot" if option.who in trained else "law",
        seconds=seconds,
    )


def _choose(candidates: Sequence[Candidate]) -> int:
    """The place of the soonest candidate."""
    best = _soonest(candidates)
    if best is None:
        some = next((c.obstacle for c in candidates if c.obstacle), None)
        why = some or f"no pilot reached the target in {PATIENCE} times the reference's rounds; give other --quorums."
        raise InputError(f"none of the {len(candidates)} candidates can reach the target: {why}")
    return best


def _soonest(candidates: Sequence[Candidate], *, planned: bool = False) -> int | None:
    possible = [
        at for at, c in enumerate(candidates) if c.seconds is not None and (c.closing == "planned" or not planned)
    ]
    return min(possible, key=lambda at: soonest_first(candidates[at].seconds, candidates[at]), default=None)


def _check(
    scene: Scene,
    candidates: Sequence[Candidate],
    options: dict[Place, Option],
    choice: int,
    loss: float,
    announce: Announce,
) -> tuple[Check, ...]:
    """Train the choice and a few others from other weights with other noise, and see when they really get there.

    The others are those the law spoke for, spread over A: there a prediction can be most wrong.
    """
    best = candidates[choice]
    others = sorted(
        (c for c in candidates if c.seconds is not None and c.quorum != best.quorum),
        key=lambda c: (c.rounds_from != "law", soonest_first(c.seconds, c)),
    )
    by_quorum = {candidate.quorum: candidate for candidate in reversed(others)}
    spread = [by_quorum[a] for a in sorted(by_quorum)]
    some = np.unique(np.linspace(0, len(spread) - 1, min(3, len(spread))).round().astype(int))
    chosen = [best, *(spread[i] for i in some)]
    checks = []
    for number, candidate in enumerate(chosen):
        predicted, option = candidate.rounds, options[candidate.place]
        assert predicted is not None
        assert candidate.seconds is not None
        assert candidate.rounds_from is not None

        def tell(round_: int, share: float = 0.95 + 0.05 * number / len(chosen), option: Option = option) -> None:
            announce(f"check A = {option.quorum}", share, round_, round_ * option.seconds_per_round)

        timeline, every = longer(scene, option, math.ceil(3 * predicted)), max(1, round(predicted / 20))
        run = train_to_loss(scene, option, timeline, loss, every=every, seed=(scene.seed + 1) % 2**32, tell=tell)
        rounds = run.rounds
        seconds = None if rounds is None else float(np.interp(rounds, np.arange(timeline.rounds + 1), timeline.start_s))
        checks.append(Check(*option.place, predicted, candidate.seconds, candidate.rounds_from, rounds, seconds))
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
    promised = [b for c in candidates for b in (c.printed, c.sharpened, c.proved) if b is not None]
    if promised and all(b.rounds is None for b in promised):
        notes.append(
            "No bound promises the target for any candidate (see the obstacles): as usual for neural networks, the rounds "
            "come from pilots. The paper's rule asks only its bound's first term to meet ε and promises nothing."
        )
    if obstacle is not None:
        notes.append(f"No A* from the paper's rule: {obstacle}")
    lost = [option for option, run in trained.values() if run.rounds is None]
    if lost:
        which = "; ".join(f"A = {o.quorum}, {o.closing}" for o in lost)
        notes.append(f"Pilots that did not reach the target in {PATIENCE} times the reference's rounds: {which}.")
    if best.rounds_from != "pilot":
        notes.append("The choice itself was not trained, only read off the law; --check trains it.")
    learning = scene.spec.learning_of(PERSONAL)
    changed = learning.hessian_batch == "inner" or learning.clip is not None or learning.inner_clip is not None
    if learning.local_steps > 1 or learning.hessian != "exact" or changed:
        notes.append("The bounds are for one local step with the exact Hessian, not for this spec's settings.")
    if (about_alpha := alpha_of(scene.spec, PERSONAL).note) is not None:
        notes.append(about_alpha)
    return notes


def _announcer(watch: ProgressWatch | None, seed: int) -> Announce:
    """Passes progress on, counting the rounds of all trainings."""
    trained = last = 0

    def announce(what: str, share: float, rounds: int = 0, time_s: float = 0.0) -> None:
        nonlocal trained, last
        trained, last = trained + max(rounds - last, 0), rounds
        if watch is not None:
            watch(Progress(what, seed, share, time_s, trained))

    return announce
