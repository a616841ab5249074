"""Plan a cell: find the choice that reaches the target soonest and keeps it.

A choice is A, S, bandwidth policy, schedule, stale rule, local steps, bits and rest. Arrivals do not depend on the weights,
so the clock alone shows which choices are impossible and which UEs they leave out. How well a choice learns is found
by training, first on few seeds and for a short time (``plan_search``). Everything goes through the spec, so any cell,
radio, task and semi-synchronous algorithm can be planned.
"""

import math
import shutil
from collections import Counter
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

import tomli_w

from perfeds2 import __version__
from perfeds2.files import write_text
from perfeds2.runs.folder import PLAN, read_run
from perfeds2.runs.notes import noise_warning, privacy_note
from perfeds2.runs.pool import HERE
from perfeds2.runs.progress import Watch
from perfeds2.runs.session import Execution, Session, reading
from perfeds2.runs.store import PARTS, Reuse
from perfeds2.runs.table import radio_name
from perfeds2.spec.build import check as check_spec
from perfeds2.spec.fields import Spec
from perfeds2.spec.kept_files import keep_files
from perfeds2.spec.line import command_line
from perfeds2.spec.resolve import nested, put, resolve
from perfeds2.studies.grid import Listed
from perfeds2.studies.plan_data import Candidate, Choice, Plan, PlanRequest, median_s, or_inf, short_s
from perfeds2.studies.plan_space import Space, algorithm_of, make_space
from perfeds2.studies.plan_start import check_limits, search_at_horizons
from perfeds2.studies.plan_trials import Trials

ADOPTED_BY = {"algorithms": ["PerFedS2"], "seeds": [0]}  # defaults of ``perfeds2 run``
ADOPTED = "planned.toml"
CLOSE = 1.1  # ratio of seconds that other seeds may well reverse
AXIS_NAMES = {"quorum": "A", "max_staleness": "S", "local_steps": "local steps"}


def plan(
    spec: Spec | None = None,
    *,
    out: Path | str | None = None,
    search: Listed | None = None,
    check: bool = False,
    keep: float = 0.9,
    horizon_s: float | None = None,
    within_s: float | None = None,
    joules: float | None = None,
    least_share: float | None = None,
    reuse: Reuse = (),
    watch: Watch | None = None,
    **settings: Any,
) -> Plan:
    """Find what reaches the target soonest and keeps it: ``plan(ues=20, target_accuracy=0.9, radio="umi", seeds=3)``.

    Settings are those of ``compare``, or a whole ``spec``.

    Args:
        spec: The cell, task, algorithm and seeds; None reads them from ``settings``.
        out: The folder of the results; None writes nothing. An interrupted plan there is resumed.
        search: Values to search by setting, such as ``{"quorum": [2, 5], "local_steps": [1, 4]}``.
        check: Also check the choice in the settings themselves.
        keep: Share of later evaluations in which the target must be met.
        horizon_s: Simulated seconds for which every choice is trained; None derives it.
        within_s: Latest second by which every seed must keep the target.
        joules: Largest energy of all UEs until then.
        least_share: Smallest share of the merges that any UE may have.
        reuse: Folders of other studies whose results may be copied.
        watch: Called with a ``Progress`` while the search proceeds.
        **settings: Settings as ``compare`` takes them, if no ``spec`` is given.

    Returns:
        The recommended choice, all candidates with verdicts, and the command that adopts the choice.

    Raises:
        InputError: If a setting is invalid, the target is not reached at all, or the folder holds something else.

    Example:
        >>> found = plan(ues=20, target_accuracy=0.9, seeds=3)  # doctest: +SKIP
        >>> found.best.choice  # doctest: +SKIP
    """
    how = Execution.from_python("plan", on=HERE, workers=1, reuse=reuse, watch=watch)
    if spec is None:
        values = nested(settings)
        put(values, "run", "algorithms", values.get("run", {}).get("algorithms", ["PerFedS2"]))
        spec = resolve(values)
    request = PlanRequest(keep, horizon_s, check, within_s, joules, least_share)
    question = PlanQuestion(make_space(spec, search or {}), request)
    return run_plan(question, None if out is None else Path(out), how)


def run_plan(question: "PlanQuestion", path: Path | None, how: Execution) -> Plan:
    """Make a plan, and write it to a folder if one is given."""
    space, request, spec = question.space, question.request, question.spec
    check_spec(spec, trains=True)
    check_limits(space, Trials(space, request.keep), request)
    with Session.open(PLAN, question, path, how, read_question) as session:
        if path is not None:
            keep_files(path, spec)
        trials = Trials(space, request.keep, session.store, session.reporter)
        made = make_plan(space, request, trials)
        if path is not None:
            if made.best is not None and not spec.unwritten:
                write_text(path / ADOPTED, adopted(trials, made.best.choice, made.target.horizon_s).to_toml())
            write_text(path / PLAN.result, made.to_json() + "\n")
            shutil.rmtree(path / PARTS, ignore_errors=True)  # of a plan by an earlier version
    return made


@dataclass(frozen=True)
class PlanQuestion:
    """What a plan is asked for, as saved in its folder."""

    space: Space
    request: PlanRequest

    @property
    def spec(self) -> Spec:
        return self.space.spec

    @property
    def unwritten(self) -> list[str]:
        """Return the names of objects that were given from Python and cannot be saved."""
        return self.spec.unwritten

    def to_toml(self) -> str:
        axes = self.space.axes.items()
        search = {axis: ["unbounded" if each is None else each for each in values] for axis, values in axes}
        said = {key: value for key, value in asdict(self.request).items() if value is not None}
        return tomli_w.dumps({"plan": said, "search": search})


def read_question(path: Path) -> PlanQuestion:
    """Read what a plan was asked for from its folder."""
    with reading(path, PLAN) as said:
        return PlanQuestion(make_space(read_run(path), said["search"]), PlanRequest(**said["plan"]))


def make_plan(space: Space, request: PlanRequest, trials: Trials) -> Plan:
    """Search for the best choice and describe the result."""
    spec = space.spec
    searched, best = search_at_horizons(space, trials, request)
    target, listed = searched.target, list(searched.listed)
    command = None
    if best is not None and not spec.unwritten:  # objects given from Python cannot be typed
        command = command_line("run", adopted(trials, best, target.horizon_s), ADOPTED_BY)
    made = Plan(
        perfeds2=__version__,
        task=spec.task.name.label,
        radio=radio_name(spec),
        population=spec.cell.ues,
        algorithm=algorithm_of(spec),
        seeds=spec.run.seeds,
        target=target,
        request=request,
        candidates=tuple(searched.candidate(choice, best) for choice in listed),
        choice=None if best is None else listed.index(best),
        asked=listed.index(space.asked),
        headline="",
        sentence="",
        check="",
        command=command,
        trainings=len(trials.outcomes),
        notes=(),
    )
    said = {"headline": headline(made), "sentence": answer(made), "check": check_answer(made)}
    return replace(made, **said, notes=tuple(notes_of(made, space)))


def adopted(trials: Trials, choice: Choice, horizon_s: float) -> Spec:
    """Return the spec that runs a choice as it was trained in the search."""
    spec = trials.space.spec_of(choice, trials.space.spec.run.seeds, horizon_s, trials.evaluations)
    return spec.with_(run=spec.run.with_(stop_when_diverged=None))


# ---- sentences


def headline(plan: Plan) -> str:
    """Return the recommendation in a line: when, A, S, and whatever else differs from the spec."""
    if plan.best is None:
        limits = {name: vars(plan.request)[name] for name in ("within_s", "joules", "least_share")}
        said = [f" --{name.replace('_', '-')} {limit:g}" for name, limit in limits.items() if limit is not None]
        return f"None of {len(plan.candidates)} choices keeps {plan.target.words}{' with' * bool(said)}{','.join(said)}"
    new, old = (each.choice.settings for each in (plan.best, plan.candidates[plan.asked]))
    said = [_in_words(name, value) for name, value in new.items() if name in "AS" or value != old[name]]
    return f"{plan.target.words} {_when(plan.best)}: {', '.join(said)}"


def _in_words(name: str, value: str) -> str:
    if name in "AS":
        return f"{name} = {value}"
    return f"{value} {name.removesuffix('s' * (value == '1'))}" if value.isdigit() else f"{name} {value}"


def answer(plan: Plan) -> str:
    """Return the sentence that states the result of a plan."""
    best, target = plan.best, plan.target
    if best is None:
        return f"Nothing can be recommended: {_why_none(plan)}."
    return (
        f"Take {best.choice}: {target.words} of {plan.population} UEs is reached {_when(best)} and held in "
        f"{best.held:.0%} of the evaluations until {target.confirm_s:.4g} s{_margin(best)}."
    )


def _when(best: Candidate) -> str:
    """Return when the target is kept, by seeds that the choice was not made with."""
    if best.promise_s is None:
        kept = sum(trial.time_s is not None for trial in best.fresh)
        return f"after {short_s(best.seconds)} s (kept by {kept} of {len(best.fresh)} fresh seeds)"
    low, high = map(short_s, best.promise_s)
    return f"after {short_s(median_s(best.fresh))} s ({low} to {high} s on fresh seeds)"


def _why_none(plan: Plan) -> str:
    """Return why nothing can be recommended and, where it is known, what to change."""
    target, soonest = plan.target, dict[str, Candidate]()  # by verdict
    for each in sorted(plan.candidates, key=lambda each: or_inf(each.seconds or each.scouted_s)):
        soonest.setdefault(each.verdict, each)
    counts, every = Counter(each.verdict for each in plan.candidates), len(plan.candidates)
    broken, edge = soonest.get("breaks a limit"), soonest.get("on an edge")
    if broken is not None and edge is None and counts["breaks a limit"] > counts["fails"]:
        return f"{counts['breaks a limit']} of {every} choices break a limit or never merge a UE, such as {broken.choice}: {broken.why}"
    standing = (
        f"reaches {target.words} by {target.horizon_s / 2:.3g} s and keeps it in every seed and one step to each side"
    )
    if edge is not None:
        why = f"{edge.choice} would take {edge.seconds:.3g} s but stands {edge.why}; lower --beta or --target-accuracy"
    elif counts["fails"]:
        why = f"{counts['fails']} lose it again; lower --beta (perfeds2 tune) or --target-accuracy"
    else:
        why = "they are too slow; give a longer --horizon-s, or a lower --target-accuracy"
    return f"none of {every} choices {standing}; {why}"


def _margin(best: Candidate) -> str:
    """Return which neighbouring values do not fail either."""
    said = []
    for axis, name in AXIS_NAMES.items():
        held = [each for each in best.neighbours if each.axis == axis and not each.why.startswith("not possible")]
        values = [each.choice.bound if axis == "max_staleness" else str(vars(each.choice)[axis]) for each in held]
        if values:
            said.append(f"{name} = {' and '.join(values)}")
    return f"; beside it {', '.join(said)} do not fail" if said else ""


def check_answer(plan: Plan) -> str:
    """Return whether the spec's own choice holds, and what is better."""
    asked, best = plan.candidates[plan.asked], plan.best
    said = f"The choice in your settings, {asked.choice}, "
    if asked.verdict == "not possible":
        said += f"cannot be done: {asked.why.rstrip('.')}."
    elif asked.verdict == "holds":
        kept = f"{plan.target.words} after {asked.seconds:.3g} s, kept in all {len(asked.trials)} seeds"
        said += f"holds: {kept}{_margin(asked)}."
    elif asked.verdict == "on an edge":
        said += f"is on an edge: kept in all {len(asked.trials)} seeds, but {asked.why}."
    else:
        said += f"does not hold: {asked.why}."
    if best is None or best.seconds is None or best is asked:
        return said + (" Nothing that was tried is better." if best is not None else "")
    as_soon = (
        f" ({asked.seconds / best.seconds:.2g} times as soon)" if asked.verdict == "holds" and asked.seconds else ""
    )
    return f"{said} Better: {best.choice}, after {best.seconds:.3g} s on the same seeds{as_soon}."


def notes_of(plan: Plan, space: Space) -> list[str]:
    """Return notes about horizons, alternatives and few seeds."""
    target, best, seeds = plan.target, plan.best, len(plan.seeds)
    notes = [
        f"Choices are trained for {target.horizon_s:.4g} s ({target.horizon_from}), the recommended one for "
        f"{target.confirm_s:.4g} s. The target counts as kept from a time on if {plan.request.keep:.0%} of the later evaluations "
        "meet it and at least as much time follows. Nine of ten further runs should keep it within the interval given for "
        "fresh seeds."
    ]
    notes += _privacy_notes(plan, space)
    best_s = or_inf(None if best is None else best.seconds)
    others = [
        (or_inf(each.seconds), each.choice) for each in plan.candidates if each.verdict == "holds" and each is not best
    ]
    close = [str(choice) for seconds, choice in others if best_s / CLOSE <= seconds <= CLOSE * best_s < math.inf]
    if close:
        notes.append(f"Within 10 % of the choice, too close to call: {'; '.join(close[:3])}.")
    unsearched = [each for each in others if each[0] < best_s / CLOSE and space.lacks(each[1])]
    if unsearched:
        seconds, choice = min(unsearched, key=lambda each: each[0])
        notes.append(
            f"Sooner, not searched: {choice}, {seconds:.3g} s against {best_s:.3g} s on the given seeds; "
            f"add {space.lacks(choice)}."
        )
    ends = [] if best is None else [each.end_global for each in best.trials if each.end_global is not None]
    if ends and target.score.is_share and mean(ends) < target.accuracy / 2:
        notes.append(
            f"The target is for personalised models; the global model of the choice ends with "
            f"{target.score.show(mean(ends))}. See docs/explanation/personalisation.md."
        )
    if seeds < 3:
        notes.append(f"Chosen with only {seeds} seed{'s' * (seeds > 1)}; five are usual.")
    return notes


def _privacy_notes(plan: Plan, space: Space) -> list[str]:
    """Return what the ε of a plan covers, and whether the model is too large for the fleet."""
    if not plan.is_private:
        return []
    quietest = plan.best or min(plan.candidates, key=lambda each: or_inf(each.noise_to_clip))
    clip, why = space.spec.learning_of(plan.algorithm).clip, noise_warning(quietest.quorum, vars(quietest))
    covered = f"{privacy_note(space.spec)} Uploads are clipped to norm {clip:g}. σ and ε are those of {plan.target.horizon_s:.4g} s."
    return [covered, *([f"With {quietest.choice}, {why}"] if why else [])]
