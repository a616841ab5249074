"""What do several folders say together, and what may be compared?

Every folder is one or more runs: a sweep one for each point of its grid, an arena one for each bout. All their algorithms
become the rows of one table, named by their folder; what two folders have both is also compared seed by seed.
"""

import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from perfeds2.errors import InputError
from perfeds2.report.arena_read import BoutFound, Contestant, load_arena
from perfeds2.report.run import Estimate, Outcome, Run, load_run
from perfeds2.report.style import ACCURACY, GLOBAL, paired_styles
from perfeds2.report.sweep_page import SweepFound, load_sweep_folder
from perfeds2.report.tables import listed
from perfeds2.runs.statistics import INTERVAL_SEEDS, censored_median, holm, paired_p, statistic, time_to_target

CLOCK = ("cell", "radio")  # sections that say how long something takes, whoever decides
Settings = Mapping[str, str]  # by section.key


@dataclass(frozen=True)
class Member:
    """A run among others."""

    folder: str  # what it is called here
    part: str  # which of the folder's; empty if it has one
    run: Run
    settings: Settings

    @property
    def label(self) -> str:
        return ", ".join(filter(None, (self.folder, self.part)))


@dataclass(frozen=True)
class Line:
    """An algorithm of a member."""

    member: Member
    outcome: Outcome

    @property
    def name(self) -> str:
        return f"{self.outcome.name} ({self.member.label})"

    def by_seed(self, values: Sequence[float | None]) -> dict[int, float]:
        """Finite values by their seed."""
        return {seed: value for seed, value in zip(self.member.run.seeds, values, strict=False) if value is not None}


@dataclass(frozen=True)
class Difference:
    """Two lines over the seeds that both have: the later one's minus the earlier one's."""

    earlier: Line
    later: Line
    seeds: int  # that both have
    accuracy: Mapping[str, Any]  # a statistic: mean, low, high, values
    as_it_is: Mapping[str, Any]  # of the global model
    seconds: Mapping[str, Any] | None  # to the target, over the seeds that both met it in; None where clocks differ
    p: float | None  # of the accuracy, Student's paired test, adjusted by Holm's method for all of the table

    @property
    def name(self) -> str:
        one, other = self.later, self.earlier
        if one.outcome.name == other.outcome.name:
            return f"{one.outcome.name}: {one.member.label} − {other.member.label}"
        return f"{one.name} − {other.name}"


# ---- what a folder holds


def load_members(folders: Sequence[Path]) -> list[Member]:
    """All runs of the folders, each by its name."""
    members = []
    for folder, label in zip(folders, labels_of(folders), strict=True):
        load = next((load for mark, load in HELD.items() if (folder / mark).exists()), None)
        if load is None:
            raise InputError(
                f"{folder} holds no runs; expected the folder of a run, a federation, a sweep or an arena."
            )
        members += [replace(member, folder=label) for member in load(folder)]
    return members


def labels_of(folders: Sequence[Path]) -> list[str]:
    """Folders by their names, or by their paths where names are the same."""
    names = [folder.resolve().name for folder in folders]
    return names if len(set(names)) == len(names) else [str(folder) for folder in folders]


def _run(folder: Path) -> list[Member]:
    run = load_run(folder)
    try:
        settings = flat(tomllib.loads(run.spec))
    except ValueError:
        settings = {}
    return [Member("", "", run, settings)]


def _arena(folder: Path) -> list[Member]:
    from perfeds2.studies.arena_plan import read_plan

    arena, specs = load_arena(folder), _specs(lambda: [bout.spec for bout in read_plan(folder).bouts])
    members = []
    for number, bout in enumerate(arena.bouts):
        run = Run(
            version=arena.version, command="arena", task=bout.task, ues=bout.ues, horizon_s=bout.horizon_s, rounds=None,
            seeds=arena.seeds, target_accuracy=bout.target_accuracy, notes=(), score=bout.score,
            algorithms=tuple(_of_contestant(each) for each in bout.methods), metrics=_renamed(bout),
        )  # fmt: skip
        settings = specs[number] if number < len(specs) else {}
        found = {f"each.{each.name}.{key}": _text(value) for each in bout.methods for key, value in each.settings.items()}  # fmt: skip
        members.append(Member("", bout.title if len(arena.bouts) > 1 else "", run, {**settings, **found}))
    return members


def _of_contestant(each: Contestant) -> Outcome:
    known = {"accuracy": ACCURACY, "accuracy_global": GLOBAL} | {name: name for name in ("rounds", "merges", "staleness_mean")}  # fmt: skip
    estimates = {name: each.estimates[own] for own, name in known.items() if own in each.estimates}
    times = each.estimates["seconds_to_target"].values
    return Outcome(each.name, each.name, "", estimates, times, each.medians["seconds_to_target"], each.diverged)


def _renamed(bout: BoutFound) -> pd.DataFrame | None:
    return None if bout.curves is None else bout.curves.rename(columns={"method": "algorithm"})


def _sweep(folder: Path) -> list[Member]:
    from perfeds2.runs.sweep import read_sweep

    sweep, specs = load_sweep_folder(folder), _specs(lambda: [point.spec for point in read_sweep(folder).points])
    keys = sweep.axes or ["algorithm"]
    members = []
    for number, (_, rows) in enumerate(sweep.evaluations.groupby(keys, sort=False, dropna=False)):
        rows, settings = pd.DataFrame(rows), specs[number] if number < len(specs) else {}
        members.append(Member("", _point(sweep, rows), _point_run(sweep, rows, settings), settings))
    return members


def _point(sweep: SweepFound, rows: pd.DataFrame) -> str:
    return sweep.label(rows.iloc[0].to_dict() | {"algorithm": ""}).removeprefix(", ")


def _point_run(sweep: SweepFound, rows: pd.DataFrame, settings: Settings) -> Run:
    own = sweep.summary.merge(rows[sweep.axes].drop_duplicates()) if sweep.axes else sweep.summary
    target, seeds = float(own["target_accuracy"].iloc[0]), tuple(sorted({int(seed) for seed in rows["seed"]}))
    outcomes = tuple(_of_rows(str(name), pd.DataFrame(each), seeds, target) for name, each in rows.groupby("algorithm", sort=False))  # fmt: skip
    horizon = settings.get("run.horizon_s")
    return Run(
        version="", command="sweep", task=settings.get("task.name"), ues=int(settings.get("cell.ues", 0)),
        horizon_s=None if horizon is None else float(horizon), rounds=None, seeds=seeds, target_accuracy=target,
        notes=(), score=sweep.score, algorithms=outcomes, metrics=rows,
    )  # fmt: skip


def _of_rows(name: str, rows: pd.DataFrame, seeds: Sequence[int], target: float) -> Outcome:
    """What an algorithm's evaluations come to, each seed's last one being its end."""
    by_seed = [pd.DataFrame(rows[rows["seed"] == seed]).to_dict("records") for seed in seeds]
    measured = (ACCURACY, GLOBAL, "train_loss", "train_loss_personal", "round")
    ends = {key: statistic([each[-1][key] if each else None for each in by_seed]) for key in measured}
    estimates = {
        "rounds" if key == "round" else key: Estimate(said["mean"], said["low"], said["high"], tuple(said["values"]))
        for key, said in ends.items()
    }
    times = tuple(time_to_target(each, target) for each in by_seed)
    diverged = sum(value is None for value in ends["train_loss"]["values"])
    return Outcome(name, name, "", estimates, times, censored_median(times), diverged)


HELD: dict[str, Callable[[Path], list[Member]]] = {  # by what a folder has
    "arena.json": _arena,
    "sweep_summary.csv": _sweep,
    "summary.json": _run,
}


def _specs(read: Callable[[], Iterable[Any]]) -> list[Settings]:
    """Settings with everything filled in; none where a file they name is gone."""
    try:
        return [flat(spec.values()) for spec in read()]
    except InputError:
        return []


def flat(values: Mapping[str, Any], before: str = "") -> dict[str, str]:
    """Nested settings by section.key."""
    found: dict[str, str] = {}
    for key, value in values.items():
        found |= flat(value, f"{before}{key}.") if isinstance(value, Mapping) else {f"{before}{key}": _text(value)}
    return found


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value))
    return f"{value:.10g}" if isinstance(value, float) else str(value)


# ---- together


def lines_of(members: Sequence[Member]) -> list[Line]:
    """Every algorithm of every member; those of one name stand together."""
    names = list(dict.fromkeys(each.name for member in members for each in member.run.algorithms))
    return [Line(member, each) for name in names for member in members for each in member.run.algorithms if each.name == name]  # fmt: skip


def together(members: Sequence[Member]) -> Run:
    """All members as one run, its algorithms named by their folders."""
    runs = [member.run for member in members]
    scores = list(dict.fromkeys(run.score.word for run in runs if run.is_trained))
    if len(scores) > 1:
        raise InputError(f"these folders measure {listed(scores)}, which have no common axis; give those that measure one thing.")  # fmt: skip
    metrics = [_named(run.metrics, member) for member, run in zip(members, runs, strict=True)]
    ue_metrics = [_named(run.ue_metrics, member) for member, run in zip(members, runs, strict=True)]
    seeds = tuple(sorted({seed for run in runs for seed in run.seeds}))
    alike = _one({run.ues for run in runs}) is not None and _one({run.seeds for run in runs}) is not None
    timelines = {
        (f"{name} ({member.label})", seed): timeline
        for member, run in zip(members, runs, strict=True)
        for (name, seed), timeline in run.timelines.items()
    }
    notes: dict[str, list[str]] = {}
    for member in members:
        for note in member.run.notes:
            notes.setdefault(note, []).append(member.label)
    return Run(
        version=listed(list(dict.fromkeys(run.version for run in runs if run.version)) or [""]),
        command=_one({run.command for run in runs}) or "runs",
        task=_one({run.task for run in runs}),
        ues=max(run.ues for run in runs),
        horizon_s=_one({run.horizon_s for run in runs}),
        rounds=_one({run.rounds for run in runs}),
        seeds=seeds,
        target_accuracy=_one({run.target_accuracy for run in runs if run.is_trained}),
        notes=tuple(f"{', '.join(whose)}: {note}" for note, whose in notes.items()),
        algorithms=tuple(replace(line.outcome, name=line.name) for line in lines_of(members)),
        score=next((run.score for run in runs if run.is_trained), runs[0].score),
        metrics=_joined(metrics),
        ue_metrics=_joined(ue_metrics),
        timelines=timelines if alike else {},
        looks=paired_styles([(line.name, line.outcome.name, line.member.label) for line in lines_of(members)]),
    )


def _named(table: pd.DataFrame | None, member: Member) -> pd.DataFrame | None:
    return None if table is None else table.assign(algorithm=table["algorithm"] + f" ({member.label})")


def _joined(tables: Iterable[pd.DataFrame | None]) -> pd.DataFrame | None:
    found = [table for table in tables if table is not None and len(table)]
    return pd.concat(found, ignore_index=True) if found else None


def _one(values: set[Any]) -> Any:
    """What all have; None where they differ."""
    return values.pop() if len(values) == 1 else None


# ---- may it be compared?


def differing(members: Sequence[Member]) -> dict[str, list[str]]:
    """The settings that are not the same in all members, with each one's."""
    keys = list(dict.fromkeys(key for member in members for key in member.settings))
    found = {key: [member.settings.get(key, "–") for member in members] for key in keys}
    return {key: values for key, values in found.items() if len(set(values)) > 1}


def have_one_clock(members: Sequence[Member]) -> bool:
    """Whether a second means the same everywhere: the same cell and task, and no clock of simulation beside a real one."""
    sections = {key.partition(".")[0] for key in differing(members)}
    return not sections & {*CLOCK, "task"} and len({(member.run.clock, member.run.task) for member in members}) == 1


def cautions(members: Sequence[Member]) -> list[str]:
    """What makes a comparison unfair, in sentences."""
    unlike = differing(members)
    tasks = [key for key in unlike if key.startswith("task.")]
    cells = [key for key in unlike if key.partition(".")[0] in CLOCK]
    said = []
    if tasks or len({member.run.task for member in members}) > 1:
        what = f" ({', '.join(tasks)})" if tasks else ""
        said.append(f"The tasks differ{what}: neither accuracies nor times are of the same thing.")
    if cells:
        said.append(
            f"The cells differ ({', '.join(cells)}): a second is not the same second, so times are not comparable."
        )
    real = [member.label for member in members if member.run.command == "federate"]
    if real and len(real) < len(members):
        said.append(
            f"The clock of {listed(real)} is real, that of the others simulated: their times are not comparable."
        )
    if len({member.run.seeds for member in members}) > 1:
        seeds = [f"{member.label} has {', '.join(map(str, member.run.seeds))}" for member in members]
        said.append(f"The seeds differ: {'; '.join(seeds)}. Differences are over those that both have.")
    if len({(member.run.horizon_s, member.run.rounds) for member in members}) > 1:
        said.append("Not all were run for as long, so their ends are not at the same time.")
    targets = [member.run.target_accuracy for member in members if member.run.is_trained]
    if len(set(targets)) > 1:
        said.append("The targets differ, so who reached them first says nothing.")
    versions = list(dict.fromkeys(member.run.version for member in members if member.run.version))
    if len(versions) > 1:
        said.append(f"They were made by different versions of perfeds2: {listed(versions)}.")
    if any(not member.settings for member in members):
        none = [member.label for member in members if not member.settings]
        said.append(f"The settings of {listed(none)} are not known, so more may differ than is said here.")
    return said


# ---- seed by seed


def differences(members: Sequence[Member]) -> list[Difference]:
    """What the first folder has, against the same in each of the others, over the seeds that both have."""
    one_clock = have_one_clock(members)
    found = [_difference(earlier, later, one_clock) for earlier, later in pairs(members)]
    tested = [each for each in found if each.p is not None]
    adjusted = iter(holm([each.p for each in tested if each.p is not None])) if tested else iter(())
    return [each if each.p is None else replace(each, p=next(adjusted)) for each in found]


def pairs(members: Sequence[Member]) -> list[tuple[Line, Line]]:
    """Lines of the same algorithm and part; where one folder has an algorithm once, against every part of the other.

    Folders with one line each are compared whatever it is.
    """
    lines = lines_of(members)
    first = [line for line in lines if line.member.folder == members[0].folder]
    others = [line for line in lines if line.member.folder != members[0].folder]
    found = []
    for later in others:
        same = [line for line in first if line.outcome.name == later.outcome.name]
        exact = [line for line in same if line.member.part == later.member.part]
        once = [line for line in others if (line.member.folder, line.outcome.name) == (later.member.folder, later.outcome.name)]  # fmt: skip
        found += [(earlier, later) for earlier in (exact or (same if 1 in (len(same), len(once)) else []))]
    folders = {line.member.folder for line in lines}
    return found or ([(first[0], later) for later in others] if len(lines) == len(folders) else [])


def _difference(earlier: Line, later: Line, one_clock: bool) -> Difference:
    def over(values: Callable[[Outcome], Sequence[float | None]]) -> dict[str, Any]:
        one, other = (line.by_seed(values(line.outcome)) for line in (earlier, later))
        return statistic([other[seed] - one[seed] for seed in sorted(one.keys() & other.keys())])

    def estimated(name: str) -> Callable[[Outcome], Sequence[float | None]]:
        return lambda outcome: outcome.estimates[name].values if name in outcome.estimates else ()

    accuracy = over(estimated(ACCURACY))
    targets = {line.member.run.target_accuracy for line in (earlier, later)}
    seconds = over(lambda outcome: outcome.target_times_s) if one_clock and len(targets) == 1 else None
    shared = len(set(earlier.member.run.seeds) & set(later.member.run.seeds))
    p = paired_p(accuracy["values"]) if len(accuracy["values"]) >= INTERVAL_SEEDS else None
    return Difference(earlier, later, shared, accuracy, over(estimated(GLOBAL)), seconds, p)
