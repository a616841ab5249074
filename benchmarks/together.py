"""Compare several runs on one page, and warn where a comparison is unfair::

    python -m benchmarks.together runs/three runs/ten --out runs/three-or-ten --paper

All algorithms of all folders become rows of one table, labelled by folder. Algorithms that two folders share are also
compared seed by seed.
"""

import argparse
import itertools
import shlex
import sys
import tomllib
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from perfeds2.chart import LineStyle
from perfeds2.errors import InputError
from perfeds2.files import Json
from perfeds2.kinds import kind_of
from perfeds2.report.answer import answer, best_at_the_end, first_at_target
from perfeds2.report.document import Part, document, note, paragraph, section, verbatim, write_html
from perfeds2.report.read import AlgorithmResult, RunResults, load_run, over
from perfeds2.report.read_studies import only
from perfeds2.report.results import energy_line
from perfeds2.report.run import curves_section, numbers_sections, write_run_figures
from perfeds2.report.style import (
    ACCURACY,
    COLOURS,
    DASHES_PX,
    GLOBAL,
    MARKERS,
    OWN_DASHES_PX,
    SPARE_COLOURS,
    ordered_styles,
)
from perfeds2.report.tables import Column, Rows, Span, Table, listed, p_value, signed, text_column, write_latex
from perfeds2.report.timelines import timeline_sections
from perfeds2.runs.costs import COSTS, TIME
from perfeds2.runs.folder import RUN
from perfeds2.runs.statistics import INTERVAL_SEEDS, holm, paired_p, statistic
from perfeds2.spec.resolve import flattened

CLOCK = ("cell", "radio")  # spec sections that affect durations
SEED_BY_SEED = (
    "At the end, the later folder minus the first, over the seeds that both have: mean ± half of the 95 % interval, with three seeds "
    "or more. In one seed both have the same cell, fading, data and initial weights, unless their cells or tasks differ. Bold: the "
    "interval excludes 0. p: Student's paired test, adjusted by Holm's method for the table. Seconds: over the seeds in which both "
    "met the target."
)


@dataclass(frozen=True)
class Member:
    """One of several runs that are compared."""

    label: str
    run: RunResults
    settings: Mapping[str, str]  # by section.key; empty if unknown


@dataclass(frozen=True)
class MemberLine:
    """One algorithm of a member."""

    member: Member
    outcome: AlgorithmResult

    @property
    def name(self) -> str:
        return f"{self.outcome.name} ({self.member.label})"

    def by_seed(self, name: str) -> dict[int, float]:
        """Return the finite values of an estimate by seed."""
        values = self.outcome.estimates.get(name, {"values": ()})["values"]
        return {seed: value for seed, value in zip(self.member.run.seeds, values, strict=False) if value is not None}


@dataclass(frozen=True)
class Difference:
    """The difference of two lines over their common seeds: later minus earlier."""

    name: str
    seeds: int  # common to both
    accuracy: Json  # a statistic: mean, low, high, values
    of_global: Json  # for the global model
    seconds: Json | None  # to the target, over seeds where both reached it; None if clocks or targets differ
    p: float | None  # of the accuracy: Student's paired test, adjusted by Holm's method for the whole table


# ---- reading


def load_members(folders: Sequence[Path]) -> list[Member]:
    """Read the runs, labelled by their folders' names, or by their paths if two names are equal."""
    names, runs = [folder.resolve().name for folder in folders], list(map(load_run, folders))
    labels = names if len(set(names)) == len(names) else list(map(str, folders))
    members = []
    for label, run in zip(labels, runs, strict=True):
        settings = flattened(tomllib.loads(run.spec))
        members.append(Member(label, run, {key: _text(value) for key, value in settings.items()}))
    return members


def _text(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def differing(members: Sequence[Member]) -> dict[str, list[str]]:
    """Return the settings that are not the same everywhere, each with all of its values."""
    keys = dict.fromkeys(key for member in members for key in member.settings)
    found = {key: [member.settings.get(key, "–") for member in members] for key in keys}
    return {key: values for key, values in found.items() if len(set(values)) > 1}


# ---- runs


def write_together(folders: Sequence[Path], out: Path, axis: str = "seconds", *, paper: bool = False) -> list[Path]:
    """Compare folders on one page in ``out``; with ``paper``, also write figures and tables. Return the paths."""
    members = load_members(folders)
    run, found = over(together(members), axis), differences(members)
    out.mkdir(parents=True, exist_ok=True)
    command = shlex.join(["python", "-m", "benchmarks.together", *map(str, folders), "--out", str(out), "--x", axis])
    written = [write_html(out, _page(members, run, found, command))]
    if paper:
        written += write_run_figures(run, out)
    if paper and found:
        written.append(write_latex(out / "differences.tex", SEED_BY_SEED, differences_table(run, found)))
    return written


def together(members: Sequence[Member]) -> RunResults:
    """Return all members as one run, with algorithms labelled by folder."""
    runs, lines = [member.run for member in members], lines_of(members)
    trained = [run for run in runs if run.is_trained]
    scores = list(dict.fromkeys(run.score.word for run in trained))
    if len(scores) > 1:
        raise InputError(
            f"these folders measure {listed(scores)}, which have no common axis; give folders with the same metric."
        )
    alike = not _differ((run.ues, run.seeds) for run in runs)
    return RunResults(
        version=listed(list(dict.fromkeys(run.version for run in runs if run.version)) or [""]),
        command=only(run.command for run in runs) or "runs",
        task=only(run.task for run in runs),
        ues=max(run.ues for run in runs),
        horizon_s=only(run.horizon_s for run in runs),
        rounds=only(run.rounds for run in runs),
        seeds=tuple(sorted({seed for run in runs for seed in run.seeds})),
        target_accuracy=only(run.target_accuracy for run in trained),
        notes=tuple(f"{member.label}: {text}" for member in members for text in member.run.notes),
        algorithms=tuple(replace(line.outcome, name=line.name) for line in lines),
        score=(trained or runs)[0].score,
        metrics=_joined((member.label, member.run.metrics) for member in members),
        ue_metrics=_joined((member.label, member.run.ue_metrics) for member in members),
        timelines={
            (f"{name} ({member.label})", seed): timeline
            for member in members
            for (name, seed), timeline in (member.run.timelines.items() if alike else ())
        },
        looks=paired_styles([(line.name, line.outcome.name, line.member.label) for line in lines]),
    )


def lines_of(members: Sequence[Member]) -> list[MemberLine]:
    """Return every algorithm of every member, with equal names next to each other."""
    lines = [MemberLine(member, each) for member in members for each in member.run.algorithms]
    names = list(dict.fromkeys(line.outcome.name for line in lines))
    return sorted(lines, key=lambda line: names.index(line.outcome.name))


def _joined(tables: Iterable[tuple[str, pd.DataFrame | None]]) -> pd.DataFrame | None:
    found = [table.assign(algorithm=table["algorithm"] + f" ({label})") for label, table in tables if table is not None]
    return pd.concat(found, ignore_index=True) if found else None


def _page(members: Sequence[Member], run: RunResults, found: Sequence[Difference], command: str) -> str:
    said, paragraphs = _answer(members, run)
    about = [*(paragraph(text, "caution") for text in cautions(members)), *map(paragraph, paragraphs)]
    hint = (
        "Means over each one's seeds, with the 95 % interval if there are three or more. Colour is the algorithm, dash and "
        "mark are the folder. Click a name to hide it, double-click to see it alone."
    )
    folders = listed([member.label for member in members])
    sections = [
        curves_section(run, hint),
        *numbers_sections(run),
        section("Seed by seed", differences_table(run, found), hint=SEED_BY_SEED) if found and run.is_trained else [],
        settings_section(members),
        *timeline_sections(run),
        section("Notes", *map(note, filter(None, (*run.notes, energy_line(run))))),
        section("Draw it again", verbatim(command)),
    ]
    return document(
        [f"{folders} together", run.task or "several tasks", f"perfeds2 {run.version}"], said, about, sections
    )


def _answer(members: Sequence[Member], run: RunResults) -> tuple[str, list[str]]:
    """Summarise as for one run, as far as is fair: no times if clocks differ, no winner if tasks or seeds do."""
    if not run.is_trained:
        return answer(run)
    if _differ((member.run.task, member.run.seeds) for member in members):
        return f"{len(members)} runs side by side, with different tasks or seeds.", []
    said = [*(first_at_target(run) if have_one_clock(members) else []), *best_at_the_end(run)]
    return said[0], [" ".join(said[1:])] if said[1:] else []


def settings_section(members: Sequence[Member]) -> list[Part]:
    """Return a table of the settings that differ."""
    rows = [[key, *values] for key, values in differing(members).items()]
    columns = [text_column(label) for label in ("Setting", *(member.label for member in members))]
    table = Table(columns, rows, kind="plain")
    return section("Settings that differ", table if rows else note("None: every setting is the same."))


def paired_styles(lines: Sequence[tuple[str, str, str]]) -> dict[str, LineStyle]:
    """Return a style for each (name, algorithm, folder).

    Colour shows the algorithm, dash and marker show the folder. With a single algorithm all three show the folder.
    """
    algorithms, folders = ([*dict.fromkeys(each[place] for each in lines)] for place in (1, 2))
    if len(algorithms) == 1:
        return dict(zip((name for name, _, _ in lines), ordered_styles(folders).values(), strict=True))
    tints = dict(zip(algorithms, itertools.cycle([*COLOURS.values(), *SPARE_COLOURS]), strict=False))
    dashes = (*DASHES_PX.values(), *OWN_DASHES_PX)
    looks = {
        name: (dashes[number % len(dashes)], MARKERS[number % len(MARKERS)]) for number, name in enumerate(folders)
    }
    return {name: LineStyle(tints[algorithm], *looks[folder]) for name, algorithm, folder in lines}


# ---- fairness


def _differ(values: Iterable[Hashable]) -> bool:
    return len(set(values)) > 1


def have_one_clock(members: Sequence[Member]) -> bool:
    """Return whether times are comparable: same cell, radio and task, and not real time against simulated time."""
    sections = {key.partition(".")[0] for key in differing(members)}
    return not sections & {*CLOCK, "task"} and not _differ((member.run.clock, member.run.task) for member in members)


def cautions(members: Sequence[Member]) -> list[str]:
    """Return a sentence for each reason why the comparison is unfair."""
    unlike, runs = differing(members), [member.run for member in members]
    tasks = [key for key in unlike if key.startswith("task.")]
    cells = [key for key in unlike if key.partition(".")[0] in CLOCK]
    real = ", ".join(member.label for member in members if member.run.clock == "time")
    seeds = "; ".join(f"{member.label} has {', '.join(map(str, member.run.seeds))}" for member in members)
    unknown = ", ".join(member.label for member in members if not member.settings)
    keys = f" ({', '.join(tasks)})" if tasks else ""
    said = {
        f"The tasks differ{keys}: neither accuracies nor times are comparable.": tasks
        or _differ(run.task for run in runs),
        f"The cells differ ({', '.join(cells)}): times are not comparable.": cells,
        f"The clock of {real} is real, that of the others simulated: their times are not comparable.": _differ(
            run.clock for run in runs
        ),
        f"The seeds differ: {seeds}. Differences are over those that both have.": _differ(run.seeds for run in runs),
        "The runs have different lengths, so their final values are from different times.": _differ(
            (run.horizon_s, run.rounds) for run in runs
        ),
        "The targets differ, so times to the target are not comparable.": _differ(
            run.target_accuracy for run in runs if run.is_trained
        ),
        "They were made by different versions of perfeds2.": _differ(run.version for run in runs if run.version),
        f"The settings of {unknown} are not known, so there may be more differences than listed here.": unknown,
    }
    return [sentence for sentence, applies in said.items() if applies]


# ---- seed by seed


def differences(members: Sequence[Member]) -> list[Difference]:
    """Compare the first folder's lines with their counterparts in each other folder, over common seeds."""
    one_clock = have_one_clock(members)
    found = [_difference(earlier, later, one_clock) for earlier, later in pairs(members)]
    adjusted = iter(holm([each.p for each in found if each.p is not None]))
    return [each if each.p is None else replace(each, p=next(adjusted)) for each in found]


def pairs(members: Sequence[Member]) -> list[tuple[MemberLine, MemberLine]]:
    """Pair lines of the same algorithm. If every folder has a single line, those are paired whatever their algorithm."""
    lines = lines_of(members)
    first = [line for line in lines if line.member is members[0]]
    others = [line for line in lines if line.member is not members[0]]
    alone = len(lines) == len(members)
    return [
        (earlier, later) for later in others for earlier in first if alone or earlier.outcome.name == later.outcome.name
    ]


def _difference(earlier: MemberLine, later: MemberLine, one_clock: bool) -> Difference:
    def subtracted(name: str) -> Json:
        one, other = earlier.by_seed(name), later.by_seed(name)
        return statistic([other[seed] - one[seed] for seed in sorted(one.keys() & other.keys())])

    one, other = earlier.member.run, later.member.run
    is_fair = one_clock and one.target_accuracy == other.target_accuracy
    accuracy = subtracted(ACCURACY)
    p = paired_p(accuracy["values"]) if len(accuracy["values"]) >= INTERVAL_SEEDS else None
    name = f"{later.name} − {earlier.name}"
    if later.outcome.name == earlier.outcome.name:
        name = f"{later.outcome.name}: {later.member.label} − {earlier.member.label}"
    shared, seconds = len(set(one.seeds) & set(other.seeds)), subtracted(TIME) if is_fair else None
    return Difference(name, shared, accuracy, subtracted(GLOBAL), seconds, p)


def differences_table(run: RunResults, found: Sequence[Difference]) -> Table:
    """Return a row per pair of lines: later minus earlier."""
    score, points = run.score, " (points)" if run.score.is_share else ""
    heads = [f"Test {score.word}, personal{points}", "p", f"Test {score.word}, global{points}", "Seconds to the target"]
    rows: Rows = []
    for each in found:
        p = "–" if each.p is None else p_value(each.p)
        personal, common = (signed(end, score.form, score.scale) for end in (each.accuracy, each.of_global))
        met = 0 if each.seconds is None else len(each.seconds["values"])
        seconds = [*signed(each.seconds, ".1f"), Span(f" (in {met})" * (0 < met < each.seeds), "half")]
        rows.append([each.name, personal, p, common, seconds, str(each.seeds)])
    return Table([text_column("Difference"), *map(Column, heads), Column("Seeds of both")], rows, kind="plain")


# ---- the command line


def main(given: Sequence[str] | None = None) -> None:
    """Compare the folders on the command line."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("::")[0])
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="folders of runs or federations")
    parser.add_argument("--out", type=Path, help="folder to write to (default: runs/A-and-B)")
    parser.add_argument("--x", default="seconds", choices=COSTS, help="what curves are drawn over")
    parser.add_argument("--paper", action="store_true", help="also write PDF and PNG figures and LaTeX tables")
    asked = parser.parse_args(given)
    try:
        check_folders(asked.folders, asked.out)
        names = "-and-".join(folder.resolve().name for folder in asked.folders)
        written = write_together(asked.folders, asked.out or Path("runs", names), asked.x, paper=asked.paper)
    except (ValueError, OSError) as error:
        sys.exit(f"together.py: {error}")
    print(*written, sep="\n")


def check_folders(folders: Sequence[Path], out: Path | None) -> None:
    """Refuse folders that cannot be compared, or that the page would be written into."""
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise InputError("a folder is given twice; expected different ones.")
    if out is not None and out.resolve() in [folder.resolve() for folder in folders]:
        raise InputError(f"--out {out} is one of the folders to compare; give another.")
    for folder in folders:
        what = kind_of(folder).folder
        if what.result != RUN.result:
            raise InputError(f"{folder} holds a {what.holds}; give folders of runs or federations.")


if __name__ == "__main__":
    main()
