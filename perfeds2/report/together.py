"""What do several folders say together, and what may be compared?

All algorithms of all folders become the rows of one table, named by their folder; what two folders both have is also compared
seed by seed.
"""

import shlex
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from perfeds2.errors import InputError
from perfeds2.files import write_text
from perfeds2.report.answer import answer, best_at_the_end, first_at_target
from perfeds2.report.document import Part, document, note, paragraph, section, verbatim
from perfeds2.report.plan import candidates_table, check_axis, load_plan
from perfeds2.report.read import AlgorithmResult, RunResults, over
from perfeds2.report.read_studies import Member, Settings, differing, flat, folder_labels, load_members, only
from perfeds2.report.results import energy_line, page_measures, results_table
from perfeds2.report.results import meaning as results_meaning
from perfeds2.report.run import curves_section, write_run_figures
from perfeds2.report.style import ACCURACY, GLOBAL, paired_styles
from perfeds2.report.tables import Cell, Column, Span, Table, listed, p_value, signed, text_column, write_latex
from perfeds2.report.timelines import timeline_sections
from perfeds2.report.tuning import best_table, facts
from perfeds2.runs.statistics import INTERVAL_SEEDS, holm, paired_p, statistic

if TYPE_CHECKING:  # it imports JAX
    from perfeds2.studies.tune import Tuning

MOST_LINES = 40  # of a chart
CLOCK = ("cell", "radio")  # sections that decide how long something takes


@dataclass(frozen=True)
class MemberLine:
    """An algorithm of a member."""

    member: Member
    outcome: AlgorithmResult

    @property
    def name(self) -> str:
        return f"{self.outcome.name} ({self.member.label})"

    def by_seed(self, values: Sequence[float | None]) -> dict[int, float]:
        """Return finite values by their seed."""
        return {seed: value for seed, value in zip(self.member.run.seeds, values, strict=False) if value is not None}


@dataclass(frozen=True)
class Difference:
    """Two lines over the seeds that both have: the later one's minus the earlier one's."""

    name: str
    seeds: int  # that both have
    accuracy: dict[str, Any]  # a statistic: mean, low, high, values
    of_global: dict[str, Any]  # of the global model
    seconds: dict[str, Any] | None  # to the target, over the seeds in which both met it; None if clocks differ
    p: float | None  # of the accuracy, Student's paired test, adjusted by Holm's method for the whole table


# ---- runs


def write_together(folders: Sequence[Path], out: Path, axis: str = "seconds", *, paper: bool = False) -> list[Path]:
    """Compare folders on one page in another folder; with ``paper``, also figures and tables. Returns what was written."""
    members = load_members(folders)
    run, found = together(members), differences(members)
    out.mkdir(parents=True, exist_ok=True)
    more = ["--x", axis] if axis != "seconds" else []
    command = shlex.join(["perfeds2", "report", *map(str, folders), "--out", str(out), *more])
    write_text(out / "report.html", _page(members, run, found, command, axis))
    written = [out / "report.html"]
    if paper:
        written += write_run_figures(run, out, axis)
    if paper and found:
        about = f"{_facts(members, run)[0]}. {meaning(members, run)}"
        written.append(write_latex(out / "differences.tex", about, differences_table(run, found)))
    return written


def together(members: Sequence[Member]) -> RunResults:
    """Return all members as one run, its algorithms named by their folders."""
    runs, lines = [member.run for member in members], lines_of(members)
    scores = list(dict.fromkeys(run.score.word for run in runs if run.is_trained))
    if len(scores) > 1:
        raise InputError(
            f"these folders measure {listed(scores)}, which have no common axis; give those that measure one thing."
        )
    alike = len({(run.ues, run.seeds) for run in runs}) == 1
    notes: dict[str, list[str]] = {}
    for member in members:
        for text in member.run.notes:
            notes.setdefault(text, []).append(member.label)
    return RunResults(
        version=listed(list(dict.fromkeys(run.version for run in runs if run.version)) or [""]),
        command=only(run.command for run in runs) or "runs",
        task=only(run.task for run in runs),
        ues=max(run.ues for run in runs),
        horizon_s=only(run.horizon_s for run in runs),
        rounds=only(run.rounds for run in runs),
        seeds=tuple(sorted({seed for run in runs for seed in run.seeds})),
        target_accuracy=only(run.target_accuracy for run in runs if run.is_trained),
        notes=tuple(f"{', '.join(whose)}: {text}" for text, whose in notes.items()),
        algorithms=tuple(replace(line.outcome, name=line.name) for line in lines),
        score=next((run.score for run in runs if run.is_trained), runs[0].score),
        metrics=_joined(members, "metrics"),
        ue_metrics=_joined(members, "ue_metrics"),
        timelines={
            (f"{name} ({member.label})", seed): timeline
            for member in members
            for (name, seed), timeline in (member.run.timelines.items() if alike else ())
        },
        looks=paired_styles([(line.name, line.outcome.name, line.member.label) for line in lines]),
    )


def lines_of(members: Sequence[Member]) -> list[MemberLine]:
    """Return every algorithm of every member; those of one name stand together."""
    lines = [MemberLine(member, each) for member in members for each in member.run.algorithms]
    names = list(dict.fromkeys(line.outcome.name for line in lines))
    return sorted(lines, key=lambda line: names.index(line.outcome.name))


def _joined(members: Sequence[Member], name: str) -> pd.DataFrame | None:
    found = [
        table.assign(algorithm=table["algorithm"] + f" ({member.label})")
        for member in members
        if (table := getattr(member.run, name)) is not None
    ]
    return pd.concat(found, ignore_index=True) if found else None


def _page(members: Sequence[Member], run: RunResults, found: Sequence[Difference], command: str, axis: str) -> str:
    headline, paragraphs = _answer(members, run)
    about = [*(paragraph(said, "caution") for said in cautions(members)), *map(paragraph, paragraphs)]
    notes = [said for said in (*run.notes, energy_line(run)) if said]
    hint = (
        "Means over each one's seeds, with the 95 % interval if there are three or more. Colour is the algorithm, dash and "
        "mark are the folder. Click a name to hide it, double-click to see it alone."
    )
    too_many = f"{len(run.algorithms)} lines cannot be told apart; give fewer folders, or see the table."
    sections = [
        curves_section(over(run, axis), hint)
        if len(run.algorithms) <= MOST_LINES
        else section("Curves", note(too_many)),
        section("In numbers", results_table(run, page_measures(run)), hint=results_meaning(run)),
        _differences_section(members, run, found),
        settings_section([member.label for member in members], [member.settings for member in members]),
        *timeline_sections(run),
        section("Good to know", *map(note, notes)),
        section("Draw it again", verbatim(command)),
    ]
    return document(_facts(members, run), headline, about, sections)


def _facts(members: Sequence[Member], run: RunResults) -> list[str]:
    folders = list(dict.fromkeys(member.folder for member in members))
    version = [f"perfeds2 {run.version}"] if run.version else []
    return [f"{listed(folders)} together", run.task or "several tasks", *version]


def _answer(members: Sequence[Member], run: RunResults) -> tuple[str, list[str]]:
    """Answer as for one run, as far as that is fair: no time if clocks differ, no winner if tasks or seeds do."""
    if not run.is_trained:
        return answer(run)
    for what, of in (
        ("of different tasks", {m.run.task for m in members}),
        ("with different seeds", {m.run.seeds for m in members}),
    ):
        if len(of) > 1:
            return f"{len(members)} runs side by side, {what}.", []
    said = [*(first_at_target(run) if have_one_clock(members) else []), *best_at_the_end(run)]
    return said[0], [" ".join(said[1:])] if said[1:] else []


def settings_section(labels: Sequence[str], settings: Sequence[Settings]) -> list[Part]:
    """Return a table of the settings in which folders differ."""
    unlike, known = differing(settings), len({key for each in settings for key in each})
    if not unlike:
        return section("Settings that differ", note("None: every setting is the same.")) if known else []
    rows = [[key, *values] for key, values in unlike.items()]
    table = Table([text_column(label) for label in ("Setting", *labels)], rows, kind="plain")
    return section("Settings that differ", table, hint=f"{len(unlike)} of {known}; the others are the same in all.")


# ---- may it be compared?


def have_one_clock(members: Sequence[Member]) -> bool:
    """Return whether a second means the same everywhere: the same cell and task, and no simulated clock beside a real one."""
    sections = {key.partition(".")[0] for key in differing([member.settings for member in members])}
    return not sections & {*CLOCK, "task"} and len({(member.run.clock, member.run.task) for member in members}) == 1


def cautions(members: Sequence[Member]) -> list[str]:
    """Say what makes a comparison unfair."""
    unlike, runs, said = (
        differing([member.settings for member in members]),
        [member.run for member in members],
        list[str](),
    )
    tasks = [key for key in unlike if key.startswith("task.")]
    cells = [key for key in unlike if key.partition(".")[0] in CLOCK]
    if tasks or len({run.task for run in runs}) > 1:
        what = f" ({', '.join(tasks)})" if tasks else ""
        said.append(f"The tasks differ{what}: neither accuracies nor times are of the same thing.")
    if cells:
        said.append(
            f"The cells differ ({', '.join(cells)}): a second is not the same second, so times are not comparable."
        )
    real = [member.label for member in members if member.run.command == "federate"]
    if 0 < len(real) < len(members):
        said.append(
            f"The clock of {listed(real)} is real, that of the others simulated: their times are not comparable."
        )
    if len({run.seeds for run in runs}) > 1:
        seeds = [f"{member.label} has {', '.join(map(str, member.run.seeds))}" for member in members]
        said.append(f"The seeds differ: {'; '.join(seeds)}. Differences are over those that both have.")
    if len({(run.horizon_s, run.rounds) for run in runs}) > 1:
        said.append("Not all were run for as long, so their ends are not at the same time.")
    if len({run.target_accuracy for run in runs if run.is_trained}) > 1:
        said.append("The targets differ, so who reached them first says nothing.")
    versions = list(dict.fromkeys(run.version for run in runs if run.version))
    if len(versions) > 1:
        said.append(f"They were made by different versions of perfeds2: {listed(versions)}.")
    if none := [member.label for member in members if not member.settings]:
        said.append(f"The settings of {listed(none)} are not known, so more may differ than is said here.")
    return said


# ---- seed by seed


def differences(members: Sequence[Member]) -> list[Difference]:
    """Compare what the first folder has with the same in each of the others, over the seeds that both have."""
    one_clock = have_one_clock(members)
    found = [_difference(earlier, later, one_clock) for earlier, later in pairs(members)]
    adjusted = iter(holm([each.p for each in found if each.p is not None]))
    return [each if each.p is None else replace(each, p=next(adjusted)) for each in found]


def pairs(members: Sequence[Member]) -> list[tuple[MemberLine, MemberLine]]:
    """Pair lines of the same algorithm and part; if one folder has an algorithm once, with every part of the other.

    Folders with one line each are compared whatever it is.
    """
    lines = lines_of(members)
    first = [line for line in lines if line.member.folder == members[0].folder]
    others = [line for line in lines if line.member.folder != members[0].folder]
    found = []
    for later in others:
        same = [line for line in first if line.outcome.name == later.outcome.name]
        exact = [line for line in same if line.member.part == later.member.part]
        mine = (later.member.folder, later.outcome.name)
        once = [line for line in others if (line.member.folder, line.outcome.name) == mine]
        found += [(earlier, later) for earlier in (exact or (same if 1 in (len(same), len(once)) else []))]
    folders = {line.member.folder for line in lines}
    return found or ([(first[0], later) for later in others] if len(lines) == len(folders) else [])


def _difference(earlier: MemberLine, later: MemberLine, one_clock: bool) -> Difference:
    def subtracted(values: Callable[[AlgorithmResult], Sequence[float | None]]) -> dict[str, Any]:
        one, other = (line.by_seed(values(line.outcome)) for line in (earlier, later))
        return statistic([other[seed] - one[seed] for seed in sorted(one.keys() & other.keys())])

    accuracy, of_global = (
        subtracted(lambda outcome, name=name: outcome.estimates[name].values if name in outcome.estimates else ())
        for name in (ACCURACY, GLOBAL)
    )
    is_fair = one_clock and earlier.member.run.target_accuracy == later.member.run.target_accuracy
    shared = len(set(earlier.member.run.seeds) & set(later.member.run.seeds))
    p = paired_p(accuracy["values"]) if len(accuracy["values"]) >= INTERVAL_SEEDS else None
    name = f"{later.name} − {earlier.name}"
    if later.outcome.name == earlier.outcome.name:
        name = f"{later.outcome.name}: {later.member.label} − {earlier.member.label}"
    return Difference(
        name, shared, accuracy, of_global, subtracted(lambda outcome: outcome.times_s) if is_fair else None, p
    )


def _differences_section(members: Sequence[Member], run: RunResults, found: Sequence[Difference]) -> list[Part]:
    if not run.is_trained:
        return []
    none = note("No algorithm is in the first folder and in another, so nothing is compared seed by seed.")
    return section(
        "Seed by seed",
        differences_table(run, found) if found else none,
        hint=escape(meaning(members, run)) * bool(found),
    )


def differences_table(run: RunResults, found: Sequence[Difference]) -> Table:
    """Return a row for every two lines: the later minus the earlier."""
    score, points = run.score, " (points)" if run.score.is_share else ""
    has_seconds = run.target_accuracy is not None and any(each.seconds is not None for each in found)
    heads = [f"Test {score.word}, personal{points}", "p", f"Test {score.word}, global{points}"]
    heads += [f"Seconds to {score.level(run.target_accuracy or 0.0)}"] * has_seconds
    rows: list[list[Cell]] = []
    for each in found:
        p = "–" if each.p is None else p_value(each.p)
        ends = [signed(statistic, score.form, score.scale) for statistic in (each.accuracy, each.of_global)]
        cells: list[Cell] = [ends[0], p, ends[1]]
        if has_seconds:
            met = 0 if each.seconds is None else len(each.seconds["values"])
            cells.append([*signed(each.seconds, ".1f"), *[Span(f" (in {met})", "half")] * (met < each.seeds)])
        rows.append([each.name, *cells, str(each.seeds)])
    return Table([text_column("Difference"), *map(Column, heads), Column("Seeds of both")], rows, kind="plain")


def meaning(members: Sequence[Member], run: RunResults) -> str:
    """Say what the differences are."""
    same = have_one_clock(members)
    why = (
        "In one seed both have the same cell, fading, data and first weights."
        if same
        else "Seeds pair the runs, though their cells or tasks differ."
    )
    few = any(0 < len(each.run.seeds) < INTERVAL_SEEDS for each in members)
    none = " Fewer than three common seeds give no interval." if few else ""
    times = " Seconds: over the seeds in which both met the target." if same and run.target_accuracy is not None else ""
    return (
        f"At the end, the later folder minus the first, over the seeds that both have: mean ± half of the 95 % interval. {why} "
        f"Bold: the interval leaves out 0. p: Student's paired test, adjusted by Holm's method for the table.{times}{none}"
    )


# ---- plans and tunings


def write_plans(folders: Sequence[Path], out: Path, axis: str = "seconds", *, paper: bool = False) -> list[Path]:
    """Compare plans: a row each, and the settings in which they differ. Returns what was written."""
    check_axis(axis)
    labels, plans = folder_labels(folders), [load_plan(folder) for folder in folders]
    named = list(zip(labels, plans, strict=True))
    times = [(best.seconds, label) for label, plan in named if (best := plan.best) and best.seconds is not None]
    known = len({(plan.task, plan.population, plan.radio, plan.target) for plan in plans}) == 1
    headline = f"{len(plans)} plans beside each other."
    if known and times:
        headline = f"The choice of {min(times)[1]} is the soonest, after {min(times)[0]:.3g} s in the median."
    careful = "" if known else "Their tasks, cells, radios or targets differ, so their seconds are not comparable."
    found = [candidates_table(plan, 1) for plan in plans]
    rows: list[list[Cell]] = [
        [label, plan.task, str(plan.population), plan.target.score.level(plan.target.accuracy), *best.rows[0]]
        for (label, plan), best in zip(named, found, strict=True)
    ]
    heads = [text_column("Plan"), Column("Task", "left"), Column("UEs"), Column("Target")]
    table = Table([*heads, *found[0].columns], rows, kind="plain")
    commands = [section(f"Adopt {label}", verbatim(plan.command)) for label, plan in named if plan.command]
    said = [f"{label}: {plan.sentence}" for label, plan in named]
    return _write_beside(out, "plans", folders, "spec.toml", headline, careful, said, table, commands, paper=paper)


def write_tunings(tunings: "Sequence[Tuning]", out: Path, *, paper: bool = False) -> list[Path]:
    """Compare tunings: the settings found in each, and what was searched. Returns what was written."""
    folders = [each.path for each in tunings]
    labels, parts = folder_labels(folders), [best_table(each, score_first=True) for each in tunings]
    heads = list(dict.fromkeys(column.head for part in parts for column in part.columns))
    rows: list[list[Cell]] = []
    for label, part in zip(labels, parts, strict=True):
        for row in part.rows:
            cells = dict(zip((column.head for column in part.columns), row, strict=True))
            rows.append([f"{cells[heads[0]]} ({label})", *(cells.get(head, "–") for head in heads[1:])])
    rows.sort(key=lambda row: str(row[0]).partition(" (")[0])
    table = Table([text_column(heads[0]), *map(Column, heads[1:])], rows, kind="plain")
    searches = [each.search for each in tunings]
    alike = len({(each.spec.task.name.label, each.seeds, each.spec.run.horizon_s) for each in searches}) == 1
    careful = "" if alike else "Their tasks, seeds or horizons differ, so their accuracies are not of the same thing."
    said = [f"{label}: {', '.join(facts(each))}." for label, each in zip(labels, tunings, strict=True)]
    headline = f"{len(tunings)} tunings beside each other."
    return _write_beside(out, "tunings", folders, "tune.toml", headline, careful, said, table, [], paper=paper)


def _write_beside(
    out: Path,
    kind: str,
    folders: Sequence[Path],
    file: str,
    headline: str,
    careful: str,
    said: Sequence[str],
    table: Table,
    more: Sequence[list[Part]],
    *,
    paper: bool,
) -> list[Path]:
    labels = folder_labels(folders)
    about = [*([paragraph(careful, "caution")] if careful else []), *map(paragraph, said)]
    settings = [flat(tomllib.loads((folder / file).read_text(encoding="utf-8"))) for folder in folders]
    sections = [section("What was found", table), settings_section(labels, settings), *more]
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / "report.html", document([kind, listed(labels)], headline, about, sections))
    return [out / "report.html", *([write_latex(out / "table.tex", listed(labels), table)] if paper else [])]
