"""What was found, in a sentence or two?"""

from collections.abc import Sequence

from perfeds2.studies.plan_data import Candidate, PlanTarget
from perfeds2.studies.plan_space import Space

NAMES = {"quorum": "A", "max_staleness": "S", "local_steps": "local steps"}


def answer(best: Candidate | None, candidates: Sequence[Candidate], target: PlanTarget, ues: int) -> str:
    """The one sentence a plan ends with."""
    if best is None:
        return f"Nothing can be recommended: none of {len(candidates)} choices {_standing(target)}; {_why_none(candidates)}."
    span = best.span_s
    assert span is not None
    seeds = len(best.trials)
    between = f", {span[0]:.3g} to {span[1]:.3g} s" if seeds > 1 else ""
    return (
        f"Take {best.choice}: {target.words} of {ues} UEs is reached after {best.seconds:.3g} s (median of {seeds} "
        f"seed{'s' if seeds > 1 else ''}{between}) and held in {best.held:.0%} of the looks until {target.confirm_s:.4g} s"
        f"{_margin(best)}."
    )


def _standing(target: PlanTarget) -> str:
    return (
        f"reaches {target.words} by {target.horizon_s / 2:.3g} s and keeps it in every seed and one step to each side"
    )


def _why_none(candidates: Sequence[Candidate]) -> str:
    """What stands in the way, and what to do."""
    edges = [each for each in candidates if each.verdict == "on an edge"]
    if edges:
        soonest = min(edges, key=lambda each: each.seconds or 0.0)
        return f"{soonest.choice} would take {soonest.seconds:.3g} s but stands {soonest.why}; lower --beta or --target-accuracy"
    counts = {verdict: sum(each.verdict == verdict for each in candidates) for verdict in ("fails", "breaks a limit")}
    if counts["breaks a limit"] > counts["fails"]:
        broken = next(each for each in candidates if each.verdict == "breaks a limit")
        return f"{counts['breaks a limit']} break a limit ({broken.choice}: {broken.why}); loosen it"
    if counts["fails"]:
        return f"{counts['fails']} lose it again; lower --beta (perfeds2 tune) or --target-accuracy"
    return "they are too slow; give a longer --horizon-s, or a lower --target-accuracy"


def _margin(best: Candidate) -> str:
    """How far one may go to each side."""
    said = []
    for axis, name in NAMES.items():
        held = [each for each in best.neighbours if each.axis == axis and not each.why.startswith("not possible")]
        values = [each.choice.bound if axis == "max_staleness" else str(vars(each.choice)[axis]) for each in held]
        if values:
            said.append(f"{name} = {' and '.join(values)}")
    return f"; beside it {', '.join(said)} do not fail" if said else ""


def check_answer(asked: Candidate, best: Candidate | None, target: PlanTarget) -> str:
    """Whether what was asked for holds, and what is better."""
    said = f"What you asked for, {asked.choice}, "
    if asked.verdict == "not possible":
        said += f"cannot be done: {asked.why.rstrip('.')}."
    elif asked.verdict == "holds":
        assert asked.seconds is not None
        said += (
            f"holds: {target.words} after {asked.seconds:.3g} s, kept in all {len(asked.trials)} seeds{_margin(asked)}."
        )
    elif asked.verdict == "on an edge":
        said += f"is on an edge: kept in all {len(asked.trials)} seeds, but {asked.why}."
    else:
        said += f"does not hold: {asked.why}."
    if best is None or best.choice == asked.choice:
        return said + (" Nothing that was tried is better." if best is not None else "")
    if asked.verdict == "holds" and asked.seconds is not None and best.seconds is not None:
        return f"{said} Better: {best.choice}, after {best.seconds:.3g} s ({asked.seconds / best.seconds:.2g} times as soon)."
    return f"{said} Better: {best.choice}, after {best.seconds:.3g} s."


def notes_of(
    space: Space,
    best: Candidate | None,
    asked: Candidate,
    candidates: Sequence[Candidate],
    target: PlanTarget,
    checked: bool,
) -> list[str]:
    """What a careful reader should know."""
    spec = space.spec
    notes = [
        f"Every choice is watched until {target.horizon_s:.4g} s ({target.horizon_from}), the one recommended until {target.confirm_s:.4g} s; the target counts as kept from a second "
        f"on if it is held in {target.keep:.0%} of the looks from there to the end, and watched at least as long as it took."
    ]
    if not checked and best is not None and asked.choice != best.choice:
        took = asked.why if asked.seconds is None else f"{asked.seconds:.3g} s"
        took += f", but {asked.why}" if asked.seconds is not None and asked.verdict not in ("holds", "slower") else ""
        notes.append(f"The spec's own choice, {asked.choice}: {took}.")
    close = [
        str(each.choice)
        for each in candidates
        if best is not None
        and each is not best
        and each.verdict == "holds"
        and (each.seconds or 0) < 1.1 * (best.seconds or 0)
    ]
    if close:
        notes.append(f"Within 10 % of the choice, too close to call: {'; '.join(close[:3])}.")
    if len(spec.run.seeds) < 3:
        notes.append(
            f"{len(spec.run.seeds)} seed{'s say' if len(spec.run.seeds) > 1 else ' says'} little of the next one; five are usual."
        )
    return notes
