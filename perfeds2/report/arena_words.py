"""What do an arena's numbers say in words? Every sentence follows from arena.json."""

import math

from perfeds2.report.read import TIME, AlgorithmResult, Estimate
from perfeds2.report.read_studies import ArenaFolder, BoutFound
from perfeds2.report.style import ACCURACY
from perfeds2.report.tables import estimate, listed, seconds

WATCHED = "PerFedS2"  # it and the user's own methods are ranked in words
MATRICES = {  # what methods are tested by, and the words for better and worse
    TIME: ("Who is sooner at the target?", "sooner", "later"),
    ACCURACY: ("Who is better at the end?", "better", "worse"),
    "worst_decile": ("Whose worst tenth of UEs is better off?", "better", "worse"),
}


def headline(arena: ArenaFolder) -> str:
    """Say which method was first most often; for one bout, return its first sentence."""
    firsts = [soonest(bout) for bout in arena.bouts]
    if len(arena.bouts) == 1:
        return _to_target(arena.bouts[0])[0]
    names = [contestant.name for first in firsts for contestant in first]
    if not names:
        return f"No method reached its target in any of {len(arena.bouts)} bouts."
    most = max(map(names.count, names))
    best = [name for name in dict.fromkeys(names) if names.count(name) == most]
    who = listed(best) if len(best) <= 3 else f"{len(best)} methods"
    were = "were each" if len(best) > 1 else "was"
    among = "soonest" if all(len(first) <= 1 for first in firsts) else "among the soonest"
    return f"{who} {were} {among} at the target in {most} of {len(arena.bouts)} bouts."


def words(arena: ArenaFolder, bout: BoutFound) -> list[str]:
    """Describe a bout in paragraphs: the target, the end, the worst-served UEs, the ranks, and what to be careful with."""
    watched = [
        name for name in dict.fromkeys((WATCHED, *arena.mine)) if name in [each.name for each in bout.run.algorithms]
    ]
    said = [
        _to_target(bout),
        _best(bout, ACCURACY, f"ends with the best personalised {bout.run.score.word}"),
        _best(bout, "worst_decile", "serves the worst tenth of the UEs best"),
        [_stands(bout, name) for name in watched] if len(bout.run.algorithms) > 1 else [],
        _careful(arena, bout),
    ]
    return [" ".join(sentences) for sentences in said if sentences]


def soonest(bout: BoutFound) -> list[AlgorithmResult]:
    """Return the methods that reached the target first."""
    ranked = [each for each in bout.ranked if each.reached]
    return [each for each in ranked if each.lateness == ranked[0].lateness]


def _to_target(bout: BoutFound) -> list[str]:
    where = f"{bout.run.target} on {bout.title}"
    first = soonest(bout)
    if not first:
        return [f"No method reached {where}."]
    names, one = [each.name for each in first], first[0]
    parts = [] if math.isinf(one.median()) else [f"after {seconds(one.median())} in the median"]
    parts += (
        [] if one.reached == one.seeds else [f"in {one.reached} of {one.seeds} seeds"]
    )  # a few seeds have no median
    if len(names) > 3:
        said = [f"{len(names)} methods reached {where} soonest, all {', '.join(parts)}.", f"They are {listed(names)}."]
    else:
        both = "both " if len(names) == 2 else ""
        said = [f"{listed(names)} reached {where} soonest, {both}{', '.join(parts)}."]
    if len(first) == 1:
        said += _than(bout, TIME, one.name, "sooner")
    never = [each.name for each in bout.run.algorithms if not each.reached]
    return said + ([f"Never reached by {listed(never)}."] if never else [])


def _best(bout: BoutFound, measure: str, does: str) -> list[str]:
    first = best_by(bout, measure)
    if first is None:
        return []
    name, found = first
    score = bout.run.score
    said = "".join(span.text for span in estimate(found.mean, found.half_width, score.form, score.scale))
    return [f"{name} {does}, {said}{score.unit}.", *_than(bout, measure, name, "better")]


def best_by(bout: BoutFound, measure: str) -> tuple[str, Estimate] | None:
    """Return the method with the largest mean over seeds."""
    known = [(each.name, found) for each in bout.run.algorithms if (found := each.estimates[measure]).mean is not None]
    return max(known, key=lambda one: one[1].mean or 0.0, default=None)


def _than(bout: BoutFound, measure: str, name: str, how: str) -> list[str]:
    """Say than which methods that is significantly better."""
    of_it = [v for v in bout.compared.get(measure, ()) if name in (v.better, v.worse)]
    if not of_it:
        return []
    beaten = [v.worse for v in of_it if v.better == name and v.is_significant]
    if len(beaten) == len(of_it):
        return [f"That is significantly {how} than {'all others' if len(beaten) > 1 else beaten[0]}."]
    if not beaten:
        return [f"That is not significantly {how} than any other."]
    open_ = [v.worse if v.better == name else v.better for v in of_it if v.worse not in beaten]
    if len(beaten) <= len(open_):
        rest = listed(open_) if len(open_) <= 3 else f"the other {len(open_)}"
        return [f"It is significantly {how} than {listed(beaten)}, and not than {rest}."]
    return [f"It is significantly {how} than all but {listed(open_)}."]


def _stands(bout: BoutFound, name: str) -> str:
    """Say the rank of a method, and which are significantly better and worse."""
    mine = next(each for each in bout.run.algorithms if each.name == name)
    by_time = 1 + sum(each.lateness < mine.lateness for each in bout.run.algorithms)
    by_end = 1 + sum(each.mean(ACCURACY) > mine.mean(ACCURACY) for each in bout.run.algorithms)
    first = f"{_nth(by_time)} to the target" if mine.reached else "among those that never reached the target"
    said = f"{name} is {first} and {_nth(by_end)} at the end, of {len(bout.run.algorithms)}."
    return " ".join([said, *_tested(bout, name)])


def _tested(bout: BoutFound, name: str) -> list[str]:
    """Say than which methods one is significantly sooner, later, better and worse."""
    said = []
    for measure, *how in (
        (TIME, "sooner", "later"),
        (ACCURACY, "better at the end", "worse at the end"),
    ):
        tests = [v for v in bout.compared.get(measure, ()) if v.is_significant]
        others = [v.worse for v in tests if v.better == name], [v.better for v in tests if v.worse == name]
        said += [f"{word} than {listed(names)}" for word, names in zip(how, others, strict=True) if names]
    if said:
        return [f"It is significantly {'; '.join(said)}."]
    return ["No difference between it and another is significant."] if any(bout.compared.values()) else []


def _nth(number: int) -> str:
    ending = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def _careful(arena: ArenaFolder, bout: BoutFound) -> list[str]:
    said = []
    diverged = [f"{each.name} ({each.diverged} of {each.seeds} seeds)" for each in bout.run.algorithms if each.diverged]
    if diverged:
        said.append(f"Diverged: {listed(diverged)}; a diverged seed has an accuracy of 0.")
    if bout.missing:
        said.append(f"Failed, and not shown: {listed(bout.missing)}.")
    tried = sorted({each.tried for each in bout.run.algorithms})
    if len(tried) > 1:
        few = [f"{each.name} ({each.tried})" for each in bout.run.algorithms if each.tried != tried[-1]]
        said.append(f"Not all had {tried[-1]} settings tried: {listed(few)}.")
    edges = [f"{each.name} ({', '.join(each.edges)})" for each in bout.run.algorithms if each.edges]
    if edges:
        said.append(f"At the edge of what was searched, so perhaps better beyond it: {listed(edges)}.")
    if not arena.has_tests:
        said.append("Fewer than three seeds: no intervals and no tests, so a difference may be chance.")
    return said
