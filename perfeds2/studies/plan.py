"""Which choice of A, S, band, schedule, stale rule, local steps and bits reaches the target soonest, and keeps it?

When an update arrives does not depend on the weights, so the clock alone says what a choice cannot do and whom it leaves out. What
it learns is trained: on a few seeds, the soonest first (``race``). What is recommended kept the target in every seed, and its
neighbours stand too. Everything goes through the spec, so any cell, radio, task and semi-synchronous algorithm can be planned.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import tomli_w

from perfeds2 import __version__
from perfeds2.errors import InputError
from perfeds2.files import clear_unfinished, write_text
from perfeds2.runs.execute import Progress, ProgressWatch
from perfeds2.runs.folder import Folder, alone, open_folder
from perfeds2.runs.live import Follower, open_live
from perfeds2.runs.summary import radio_name
from perfeds2.runs.trackers import trackers
from perfeds2.spec.build import check as check_spec
from perfeds2.spec.fields import Spec
from perfeds2.spec.line import command_line
from perfeds2.spec.names import refuse_while_loading
from perfeds2.spec.resolve import nested, put, read_toml, resolve
from perfeds2.studies.plan_data import Candidate, Choice, Limits, Plan, Theory
from perfeds2.studies.plan_search import Announce, Request
from perfeds2.studies.plan_search import search as search_through
from perfeds2.studies.plan_space import Space, algorithm_of, make_space
from perfeds2.studies.plan_trials import LOOKS, Trials
from perfeds2.studies.plan_words import answer, check_answer, notes_of

SEEDS = (0, 1, 2, 3, 4)
RUN = {"algorithms": ["PerFedS2"], "seeds": list(SEEDS)}  # what a plan is for, unless told otherwise
ADOPTED_BY = {"algorithms": ["PerFedS2"], "seeds": [0]}  # what ``perfeds2 run`` has unless told otherwise
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
    watch: ProgressWatch | None = None,
    write: Write = write_json,
    followers: Sequence[Follower] = (),
    track: Any = None,
    **settings: Any,
) -> Plan:
    """What reaches the target soonest and keeps it: ``plan(ues=20, target_accuracy=0.9, radio="umi", seeds=3)``.

    Settings are those of ``compare``, or a whole ``spec``. ``search`` names what is searched and its values
    (``{"local_steps": [1, 4]}``); ``quorums`` and ``stalenesses`` are A and S of it. ``keep``: the share of later looks in
    which the target must be held; ``within_s``, ``joules`` and ``least_share`` are limits; ``check`` checks what the settings
    themselves say; ``theory`` adds the paper's bounds. With ``out`` the folder gets everything, and a plan that was
    interrupted goes on there; nobody else plans into it meanwhile. ``track`` is that of ``compare``.
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
    request = Request(Limits(within_s, joules, least_share), keep, horizon_s, check)
    request.verify()
    space = make_space(spec, axes)
    check_spec(spec, trains=True)
    if out is None:
        return make_plan(space, request, Trials(space, None), theory=theory, watch=watch)
    folder = _open(Path(out), space, request, theory)
    with alone(folder.path), open_live(folder.path, "plan", followers) as live:
        place = folder.path / "trials"
        place.mkdir(exist_ok=True)
        clear_unfinished(place)
        trials, watch = Trials(space, place, looks=LOOKS, live=live), live.progress(watch)
        made = make_plan(space, request, trials, theory=theory, watch=watch)
        if made.best is not None and not spec.unwritten:
            write_text(folder.path / ADOPTED, adopted(space, made.best.choice, made.target.horizon_s).to_toml())
        write(made, folder.path)
        if folder.parts.exists():
            folder.close()
    return made


def _open(path: Path, space: Space, request: Request, theory: bool) -> Folder:
    """The folder of a plan, with what was asked; or found again with the same."""
    text, known = tomli_w.dumps(_asked(space, request, theory)), path / ASKED
    if known.exists() and known.read_text(encoding="utf-8") != text:
        raise InputError(
            f"--out {path} already holds a different plan (see {known}); choose another folder, or delete it."
        )
    folder = open_folder(path, space.spec)
    if not known.exists():
        write_text(known, text)
    return folder


def _asked(space: Space, request: Request, theory: bool) -> dict[str, Any]:
    said = {"keep": request.keep, "horizon_s": request.horizon_s, "check": request.check, "theory": theory}
    said |= asdict(request.limits)
    search = {
        axis: ["unbounded" if value is None else value for value in values] for axis, values in space.axes.items()
    }
    return {"plan": {key: value for key, value in said.items() if value is not None}, "search": search}


def read_asked(path: Path) -> dict[str, Any]:
    """What a folder was started with, as keywords of ``plan``."""
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


def make_plan(
    space: Space, request: Request, trials: Trials, *, theory: bool = False, watch: ProgressWatch | None = None
) -> Plan:
    """Look for the best choice, and say what was found."""
    spec, announce = space.spec, _announcer(watch, space.spec.run.seeds[0])
    race, best = search_through(space, trials, request, announce)
    target, candidates = race.target, race.candidates(best)
    places = {candidate.choice: number for number, candidate in enumerate(candidates)}
    chosen, asked = None if best is None else candidates[places[best]], candidates[places[space.asked]]
    known: Theory | None = None
    if theory and chosen is not None:
        from perfeds2.studies.plan_theory import theory_of

        announce(0.97, "constants", None)
        known = theory_of(space.spec_of(chosen.choice, spec.run.seeds, target.horizon_s, LOOKS), chosen)
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
        command=_command(space, chosen, target.horizon_s),
        theory=known,
        trainings=trials.trained,
        notes=tuple(notes_of(space, chosen, asked, candidates, target, request.check)),
    )


def adopted(space: Space, choice: Choice, horizon_s: float) -> Spec:
    """The spec that runs a choice as it was watched."""
    spec = space.spec_of(choice, space.spec.run.seeds, horizon_s, LOOKS)
    return spec.model_copy(update={"run": spec.run.model_copy(update={"stop_when_diverged": None})})


def _command(space: Space, best: Candidate | None, horizon_s: float) -> str | None:
    """The line to type. What was given from Python cannot be typed."""
    if best is None or space.spec.unwritten:
        return None
    return command_line("run", adopted(space, best.choice, horizon_s), ADOPTED_BY)


def _announcer(watch: ProgressWatch | None, seed: int) -> Announce:
    """Passes progress on: it never goes back, and counts the rounds of all trainings."""
    furthest, rounds, last = 0.0, 0, 0

    def announce(share: float, what: str, now: Progress | None) -> None:
        nonlocal furthest, rounds, last
        furthest = max(furthest, share)
        trained = 0 if now is None else now.rounds
        rounds, last = rounds + max(trained - last, 0), trained
        if watch is not None:
            watch(
                Progress(what, seed if now is None else now.seed, furthest, 0.0 if now is None else now.time_s, rounds)
            )

    return announce
