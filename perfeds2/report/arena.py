"""Show an arena in the terminal, as an HTML page and in LaTeX."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from statistics import mean

from perfeds2.chart import Chart
from perfeds2.learning.metrics import NEW_UES_METRICS
from perfeds2.report.answer import answer
from perfeds2.report.curves import over_seeds, run_charts
from perfeds2.report.document import Part, document, paragraph, section, verbatim, with_legend, write_html
from perfeds2.report.on_paper import write_figures
from perfeds2.report.read import AlgorithmResult
from perfeds2.report.read_studies import ArenaFolder, BoutFound, load_arena
from perfeds2.report.results import Measure, fairness, new_ues, of_score, results_table, to_target
from perfeds2.report.style import ACCURACY
from perfeds2.report.tables import (
    Cell,
    Column,
    Rows,
    Span,
    Table,
    capitalised,
    counted,
    for_terminal,
    listed,
    p_value,
    seconds,
    text_column,
    write_latex,
)
from perfeds2.report.terminal import open_console, print_prose
from perfeds2.runs.costs import COSTS, SECONDS, TIME
from perfeds2.spec.settings import value_text

WATCHED = "PerFedS2"  # ranked in words, as are the user's own methods and the first to reach the target
MATRICES = {  # by tested measure: section title, then the words for better and worse
    TIME: ("Which method reaches the target sooner?", "sooner", "later"),
    ACCURACY: ("Which method ends better?", "better", "worse"),
    "worst_decile": ("Which method is better for the worst tenth of UEs?", "better", "worse"),
}
RANKED_BY = tuple(COSTS[name].to_target for name in ("seconds", "joules", "bits"))
TESTS = (
    "The row against the column: Student's t-test on the differences between the same seeds, with Holm's correction over all pairs. "
    "Tied differences get the variance of rounding. A cell has a word only if p is below 0.05. For a seed that never met the target, the horizon is used."
)
HOW = (
    "Methods are tuned by successive halving over simulated time, on separate seeds and on data held out from the UEs' training data. "
    "The best settings are then trained with the seeds above. In one seed all methods have the same cell, fading, data and initial weights; "
    "methods with the same rounds and jobs also share the timeline. Uploaded bits are those of merged updates. The worst tenth is the "
    "mean over the worst tenth of the UEs, rounded up. Jain's index is (Σx)²/(nΣx²) over the UEs' accuracies."
)


def write_arena(folder: Path, axis: str = "seconds", paper: Path | None = None, out: Path | None = None) -> list[Path]:
    """Write an arena's ``report.html`` and ``arena.tex`` (to ``out``); with ``paper``, also figures and the table there."""
    arena = load_arena(folder, axis)
    about = "; ".join(f"{bout.title}: {_facts(arena, bout)}" for bout in arena.bouts)
    tables = [bout_table(bout) for bout in arena.bouts]
    place = out or folder
    written = [write_html(place, _page(arena)), write_latex(place / "arena.tex", about, *tables)]
    if paper is not None:
        charts = {f"arena-{number}": bout_charts(bout) for number, bout in enumerate(arena.bouts, 1)}
        written += write_figures(paper, charts)
        written += [] if paper == place else [write_latex(paper / "arena.tex", about, *tables)]
    return written


def print_arena(folder: Path) -> None:
    """Print a table per bout, followed by its summary."""
    arena, console = load_arena(folder), open_console()
    for bout in arena.bouts:
        console.print(f"\n{bout.title}: {_facts(arena, bout)}", style="bold", markup=False)
        console.print(for_terminal(bout_table(bout)))
        print_prose(console, _meaning(bout), "dim")
        for said in words(arena, bout):
            print_prose(console, said)
    if len(arena.bouts) > 1:
        console.print(for_terminal(overview(arena)))
        for _, table in rankings(arena):
            console.print(for_terminal(table))


def _facts(arena: ArenaFolder, bout: BoutFound) -> str:
    tuned = f"tuned with {arena.tries} settings each" if bout.is_tuned else "not tuned"
    counts = f"{counted(len(bout.run.algorithms), 'method')}, {counted(len(arena.seeds), 'seed')}"
    return f"{bout.run.ues} UEs, {seconds(bout.run.horizon_s)} simulated, {counts}, {tuned}"


# ---- in words


def headline(arena: ArenaFolder) -> str:
    """Return which method was first at the target most often; for a single bout, its own headline."""
    if len(arena.bouts) == 1:
        return answer(arena.bouts[0].run)[0]
    names = [first.name for bout in arena.bouts for first in soonest(bout)]
    most = max(map(names.count, names), default=0)
    best = [name for name in dict.fromkeys(names) if names.count(name) == most]
    who = f"{listed(best)} among the soonest" if best else "No method"
    return f"{who} at the target in {most} of {len(arena.bouts)} bouts."


def words(arena: ArenaFolder, bout: BoutFound) -> list[str]:
    """Describe a bout in paragraphs: the target, the final scores, ranks and tests, and caveats."""
    first, paragraphs = answer(bout.run)
    names = [each.name for each in bout.run.algorithms]
    watched = dict.fromkeys((*(each.name for each in soonest(bout)), WATCHED, *arena.mine))
    ranks = [_rank(bout, name) for name in watched if name in names and len(names) > 1]
    return [first, *paragraphs, *ranks, *_careful(bout)]


def soonest(bout: BoutFound) -> list[AlgorithmResult]:
    """Return the methods that reached the target first in most seeds, including ties."""
    ranked = [each for each in bout.ranked if math.isfinite(each.median())]
    return [each for each in ranked if each.lateness() == ranked[0].lateness()]


def _rank(bout: BoutFound, name: str) -> str:
    """Return a method's rank, and which methods it is significantly better or worse than.

    A method that misses the target in most seeds has no rank by time.
    """
    mine = next(each for each in bout.run.algorithms if each.name == name)
    by_time = 1 + sum(each.lateness() < mine.lateness() for each in bout.run.algorithms)
    to_target = f"no. {by_time} to the target and " if math.isfinite(mine.median()) else ""
    by_end = 1 + sum(each.mean(ACCURACY) > mine.mean(ACCURACY) for each in bout.run.algorithms)
    said = []
    for measure, better, worse in ((TIME, "sooner", "later"), (ACCURACY, "better at the end", "worse at the end")):
        tests = [v for v in bout.compared.get(measure, ()) if v.is_significant]
        others = {
            better: [v.worse for v in tests if v.better == name],
            worse: [v.better for v in tests if v.worse == name],
        }
        said += [f"{word} than {listed(names)}" for word, names in others.items() if names]
    tested = f" It is significantly {'; '.join(said)}." if said else ""
    return f"Of {len(bout.run.algorithms)}, {name} is {to_target}no. {by_end} at the end.{tested}"


def _careful(bout: BoutFound) -> list[str]:
    said = [f"Failed, and not shown: {listed(bout.missing)}."] if bout.missing else []
    tried = {each.name: each.tried for each in bout.run.algorithms}
    few = [f"{name} ({count})" for name, count in tried.items() if count < max(tried.values())]
    if few:
        said.append(f"Not all had {max(tried.values())} settings tried: {listed(few)}.")
    edges = [f"{each.name} ({', '.join(each.edges)})" for each in bout.run.algorithms if each.edges]
    if edges:
        said.append(f"At the edge of the search, so a better value may lie beyond it: {listed(edges)}.")
    return said


# ---- tables


def bout_table(bout: BoutFound) -> Table:
    """Return a row per method, first to the target on top: accuracy, costs, fairness and the settings found."""
    run = replace(bout.run, algorithms=tuple(bout.ranked), looks=bout.run.styles, cost=SECONDS)
    score = run.score
    costs = [
        replace(to_target(run), spread=True),
        Measure("rounds_to_target", "Rounds", "\nrounds", ",.0f", is_cost=True),
        Measure("bits_to_target", "Uploaded (Mbit)", "\nMbit", ",.1f", 1e-6, is_cost=True),
    ]
    if any(each.finite("joules_to_target") for each in run.algorithms):
        costs.append(Measure("joules_to_target", "Energy (J)", "\njoules", ",.1f", is_cost=True))
    end = of_score(score, ACCURACY, f"{capitalised(score.word)} at the end", f"{score.head}\nat the end")
    found = (text_column("Settings found"), [_settings(each) for each in run.algorithms])
    extras = [found] if any(each.settings for each in run.algorithms) else []
    return results_table(run, [end, *costs, *new_ues(run), *fairness(run)], extras, head="Method")


def _settings(method: AlgorithmResult) -> str:
    said = [f"{key} {value_text(value)}{'*' * (key in method.edges)}" for key, value in method.settings.items()]
    return ", ".join(said) or "as given"


def _meaning(bout: BoutFound) -> str:
    return (
        "At the end: means over seeds, ± half of the 95 % interval with three seeds or more. To the target: medians, [smallest, "
        f"largest]. Evaluated every {seconds(bout.eval_every_s)}. * the smallest or largest value that was searched."
    )


def overview(arena: ArenaFolder) -> Table:
    """Return a row per bout with the best method by each measure."""
    rows: Rows = []
    for bout in arena.bouts:
        first = [f"{each.name} ({seconds(each.median())})" for each in soonest(bout) if each.reached == each.seeds]
        best = [_best(bout, measure) for measure in (ACCURACY, "worst_decile")]
        rows.append([bout.title, bout.run.target, ", ".join(first) or "none in all seeds", *best])
    heads = ("Soonest at the target", "Best at the end", "Best for the worst tenth of UEs")
    return Table([Column("Bout", "left"), Column("Target"), *(Column(head, "left") for head in heads)], rows)


def rankings(arena: ArenaFolder) -> Iterator[tuple[list[BoutFound], Table]]:
    """Return a table of mean ranks for the bouts that the same methods took part in."""
    groups: dict[frozenset[str], list[BoutFound]] = {}
    for bout in arena.bouts:
        groups.setdefault(frozenset(each.name for each in bout.run.algorithms), []).append(bout)
    for bouts in groups.values():
        yield bouts, _ranking(bouts)


def _ranking(bouts: Sequence[BoutFound]) -> Table:
    """Return a row per method: its mean rank by each measure, where 1 is the best."""
    ranks: dict[str, list[list[int]]] = {}
    for bout in bouts:
        keys = {
            each.name: (*(each.lateness(name) for name in RANKED_BY), -each.mean("worst_decile"), -each.mean(ACCURACY))
            for each in bout.run.algorithms
        }
        for name, own in keys.items():
            ranks.setdefault(name, []).append(
                [1 + sum(other[at] < key for other in keys.values()) for at, key in enumerate(own)]  # type: ignore[operator]  # alike by place
            )
    means = {name: [mean(of_bouts) for of_bouts in zip(*own, strict=True)] for name, own in ranks.items()}
    best = [min(of_methods) for of_methods in zip(*means.values(), strict=True)]
    rows: Rows = [
        [name, *(Span(f"{each:.1f}", "best" if each == least else "") for each, least in zip(own, best, strict=True))]
        for name, own in sorted(means.items(), key=lambda item: item[1])
    ]
    heads = ("Seconds", "Joules", "Bits", "Worst tenth of UEs", "At the end")
    return Table([Column("Mean rank by", "left"), *map(Column, heads)], rows)


def signatures(arena: ArenaFolder) -> Table:
    """Return who signed which method's results."""
    rows = [
        [one["method"], one["perfeds2"], one["key"][:16], one["source"][:16] or "built in"] for one in arena.submissions
    ]
    heads = ("Method", "perfeds2", "Signed with key", "Hash of its file")
    return Table([Column(head, "left") for head in heads], rows)


def _best(bout: BoutFound, measure: str) -> str:
    best = max(bout.run.algorithms, key=lambda each: each.mean(measure))
    return f"{best.name} ({bout.run.score.show(best.mean(measure))})"


def matrix(bout: BoutFound, measure: str) -> Table | None:
    """Compare all pairs of methods: adjusted p-values, with a word if below 0.05. Return None without tests."""
    verdicts = {(v.better, v.worse): v for v in bout.compared.get(measure, ())}
    if not verdicts:
        return None
    _, better, worse = MATRICES[measure]
    names = [each.name for each in bout.run.algorithms]

    def cell(mine: str, other: str) -> Cell:
        won, lost = verdicts.get((mine, other)), verdicts.get((other, mine))
        verdict = won or lost
        if verdict is None:
            return ""
        said = p_value(verdict.p)
        if not verdict.is_significant:
            return Span(said, "dim")
        return Span(f"{better if won else worse}\n{said}", "holds" if won else "fails")

    columns = [Column("", "left"), *(Column(name, "left") for name in names)]
    return Table(columns, [[mine, *(cell(mine, other) for other in names)] for mine in names], kind="ledger matrix")


# ---- the page


def _page(arena: ArenaFolder) -> str:
    facts = [
        "arena",
        counted(len(arena.bouts), "bout"),
        f"seeds {listed([str(seed) for seed in arena.seeds])}",
        f"{arena.tries} settings tried for each method" if arena.tries else "nothing tuned",
        f"perfeds2 {arena.version}",
    ]
    if arena.suite:
        facts.insert(1, f"suite {arena.suite}")
    sections = []
    if len(arena.bouts) > 1:
        for bouts, table in rankings(arena):
            tasks, methods = dict.fromkeys(str(bout.run.task) for bout in bouts), counted(len(table.rows), "method")
            hint = f"Mean rank of {methods} over {counted(len(bouts), 'bout')}; 1 is the best. Costs are those of reaching the target."
            sections.append(section(f"Which method is best on {listed(list(tasks))}?", table, hint=hint))
        sections.append(section("Which method is first in which bout?", overview(arena)))
    for number, bout in enumerate(arena.bouts):
        sections += _bout_sections(arena, bout, number)
    again = f"perfeds2 arena --resume {arena.folder.name}"
    if arena.submissions:
        again = f"python -m benchmarks.leaderboard run OUT --suite {arena.suite} --mine FILE.py:NAME --submit NAME.json\npython -m benchmarks.leaderboard merge DIR"
        hint = "A signature shows that a file was not changed afterwards. To check a result, run the method again."
        sections.append(section("Who submitted which results?", signatures(arena), hint=hint))
    sections.append(section("How it was done", verbatim(again), hint=escape(HOW)))
    return document(facts, headline(arena), [], sections)


def _bout_sections(arena: ArenaFolder, bout: BoutFound, number: int) -> Iterator[list[Part]]:
    texts = map(
        paragraph, words(arena, bout)[len(arena.bouts) == 1 :]
    )  # a single bout's first sentence is the headline
    yield section(bout.title, *texts, bout_table(bout), caption=_facts(arena, bout), hint=escape(_meaning(bout)))
    charts = bout_charts(bout, f"bout-{number}")
    hint = (
        f"{over_seeds(len(arena.seeds), bout.run.has_intervals)} Click a name to hide it, double-click to see it alone."
    )
    title = f"{bout.title}: {bout.run.score.word} over {bout.run.x_words}"
    yield section(title, *with_legend(charts, "Methods shown"), hint=hint)
    for measure, (title, _, _) in MATRICES.items():
        yield section(f"{bout.title}: {title}", matrix(bout, measure) or "", hint=escape(TESTS))


def bout_charts(bout: BoutFound, group: str = "") -> list[Chart]:
    """Draw a bout's accuracy over time or another cost. Return nothing if the bout has no evaluations."""
    if bout.run.metrics is None or bout.run.metrics.empty:
        return []
    return [replace(chart, height_px=420) for chart in run_charts(bout.run, [ACCURACY, *NEW_UES_METRICS], group)]
