"""Plan a cell: which A, S, band, schedule, stale rule, local steps and bits reach the target soonest, and keep it?

Arrivals do not depend on the weights, so the clock alone says what is impossible and which UEs a choice leaves out. How a choice learns is
trained, on few seeds and for a short time at first (``plan_search``). Everything goes through the spec, so any cell, radio, task and
semi-synchronous algorithm can be planned.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import tomli_w

from perfeds2 import __version__
from perfeds2.errors import InputError
from perfeds2.files import write_text
from perfeds2.runs.folder import alone, open_folder
from perfeds2.runs.progress import Follower, Reporter, Watch, open_live
from perfeds2.runs.store import TRAININGS, Reuse, Store, open_others
from perfeds2.runs.table import radio_name
from perfeds2.runs.trackers import trackers
from perfeds2.spec.build import check as check_spec
from perfeds2.spec.fields import Spec
from perfeds2.spec.line import command_line
from perfeds2.spec.names import refuse_while_loading
from perfeds2.spec.resolve import nested, put, read_toml, resolve
from perfeds2.studies.plan_data import Choice, Plan, PlanLimits, Theory
from perfeds2.studies.plan_search import PlanRequest
from perfeds2.studies.plan_search import search as search_through
from perfeds2.studies.plan_space import Space, algorithm_of, make_space
from perfeds2.studies.plan_trials import Trials
from perfeds2.studies.plan_words import answer, check_answer, notes_of

RUN = {"algorithms": ["PerFedS2"], "seeds": [0, 1, 2, 3, 4]}  # what is planned for by default
ADOPTED_BY = {"algorithms": ["PerFedS2"], "seeds": [0]}  # what ``perfeds2 run`` has by default
ASKED = "plan.toml"
ADOPTED = "planned.toml"
Write = Callable[[Plan, Path], object]


def write_json(made: Plan, folder: Path) -> None:
    write_text(folder / "plan.json", made.to_json() + "\n")


def plan(
    spec: Spec | None = None,
    *,
    out: Path | str | None = None,
    check: bool = False,
    quorums: Sequence[int] | None = None,
    stalenesses: Sequence[int | None] | None = None,
    search: Mapping[str, Iterable[Any]] | None = None,
    keep: float = 0.9,
    horizon_s: float | None = None,
    within_s: float | None = None,
    joules: float | None = None,
    least_share: float | None = None,
    theory: bool = False,
    reuse: Reuse = (),
    watch: Watch | None = None,
    write: Write = write_json,
    followers: Sequence[Follower] = (),
    track: Any = None,
    **settings: Any,
) -> Plan:
    """Find what reaches the target soonest and keeps it: ``plan(ues=20, target_accuracy=0.9, radio="umi", seeds=3)``.

    Settings are those of ``compare``, or a whole ``spec``.

    Args:
        out: The folder of the results. An interrupted plan continues there.
        check: Also check what the settings themselves say.
        quorums: The A to search; as ``search={"quorum": ...}``.
        stalenesses: The S to search.
        search: Values to search by setting, such as ``{"local_steps": [1, 4]}``.
        keep: The share of later evaluations in which the target must be held.
        horizon_s: Simulated seconds for which every choice is watched.
        within_s: The latest second from which the target is kept, in every seed.
        joules: The most energy of all UEs until then.
        least_share: The least share of the merges of any UE.
        theory: Add what the paper's bounds say.
        reuse: Folders of other studies whose trainings are taken.
        watch: Called with a ``Progress`` as the work goes on.
        write: Writes the plan into the folder.
        followers: Shown every evaluation while the plan is made.
        track: Trackers that get every evaluation, such as "tensorboard" (docs/how-to/live.md).
    """
    refuse_while_loading("plan")
    followers = [*followers, *trackers(track, out)]
    if spec is None:
        values = nested(settings)
        for key, default in RUN.items():
            put(values, "run", key, values.get("run", {}).get(key, default))
        spec = resolve(values)
    axes = dict(search or {})
    axes |= {} if quorums is None else {"quorum": quorums}
    axes |= {} if stalenesses is None else {"max_staleness": stalenesses}
    request = PlanRequest(PlanLimits(within_s, joules, least_share), keep, horizon_s, check)
    request.verify()
    space = make_space(spec, axes)
    check_spec(spec, trains=True)
    others = open_others(reuse)
    if out is None:
        trials = Trials(space, keep, Store(None, reuse=others), Reporter(watch))
        return make_plan(space, request, trials, theory=theory)
    path, asked = Path(out), tomli_w.dumps(_asked(space, request, theory))
    if (path / ASKED).exists() and (path / ASKED).read_text(encoding="utf-8") != asked:
        raise InputError(
            f"--out {path} already holds a different plan (see {path / ASKED}); choose another folder, or delete it."
        )
    folder = open_folder(path, spec)
    with alone(path):
        write_text(path / ASKED, asked)
        with open_live(path, "plan", followers) as live:  # closed before the report takes the live page's place
            trials = Trials(space, keep, Store(path / TRAININGS, reuse=others), Reporter(watch, live))
            made = make_plan(space, request, trials, theory=theory)
        if made.best is not None and not spec.unwritten:
            write_text(path / ADOPTED, adopted(trials, made.best.choice, made.target.horizon_s).to_toml())
        write(made, path)
        if folder.parts.exists():
            folder.close()
    return made


def _asked(space: Space, request: PlanRequest, theory: bool) -> dict[str, Any]:
    said = {"keep": request.keep, "horizon_s": request.horizon_s, "check": request.check, "theory": theory}
    said |= asdict(request.limits)
    search = {
        axis: ["unbounded" if value is None else value for value in values] for axis, values in space.axes.items()
    }
    return {"plan": {key: value for key, value in said.items() if value is not None}, "search": search}


def read_asked(path: Path) -> dict[str, Any]:
    """Read what a folder was started with, as keywords of ``plan``."""
    if not (path / ASKED).exists() or not (path / "spec.toml").exists():
        raise InputError(f"--resume {path} holds no plan (no {ASKED}); give the folder of one that was started.")
    said = read_toml(path / ASKED)
    try:
        search = {
            axis: [None if value == "unbounded" else value for value in each] for axis, each in said["search"].items()
        }
        return {**said["plan"], "search": search, "spec": resolve(read_toml(path / "spec.toml"))}
    except (LookupError, TypeError, AttributeError):
        raise InputError(f"{path / ASKED} is not what plan writes; start anew in another folder.") from None


def make_plan(space: Space, request: PlanRequest, trials: Trials, *, theory: bool = False) -> Plan:
    """Search for the best choice and describe what was found."""
    spec = space.spec
    searched, best = search_through(space, trials, request)
    target, candidates = searched.target, tuple(searched.candidate(choice, best) for choice in searched.listed)
    places = {candidate.choice: number for number, candidate in enumerate(candidates)}
    chosen, asked = None if best is None else candidates[places[best]], candidates[places[space.asked]]
    known: Theory | None = None
    if theory and chosen is not None:
        from perfeds2.studies.plan_theory import theory_of

        known = theory_of(space.spec_of(chosen.choice, spec.run.seeds, target.horizon_s, trials.evaluations), chosen)
    command = None
    if chosen is not None and not spec.unwritten:  # an object given from Python cannot be typed
        command = command_line("run", adopted(trials, chosen.choice, target.horizon_s), ADOPTED_BY)
    return Plan(
        perfeds2=__version__,
        task=spec.task.name.label,
        radio=radio_name(spec),
        population=spec.cell.ues,
        algorithm=algorithm_of(spec),
        seeds=spec.run.seeds,
        target=target,
        limits=request.limits,
        candidates=candidates,
        choice=None if best is None else places[best],
        asked=places[space.asked],
        checked=request.check,
        sentence=answer(chosen, candidates, target, spec.cell.ues),
        check=check_answer(asked, chosen, target) if request.check else None,
        command=command,
        theory=known,
        trainings=len(trials.outcomes),
        notes=tuple(notes_of(space, chosen, asked, candidates, target, request.check)),
    )


def adopted(trials: Trials, choice: Choice, horizon_s: float) -> Spec:
    """Return the spec that runs a choice as it was watched."""
    spec = trials.space.spec_of(choice, trials.space.spec.run.seeds, horizon_s, trials.evaluations)
    return spec.model_copy(update={"run": spec.run.model_copy(update={"stop_when_diverged": None})})
