"""Summarise a run's results in a few sentences."""

import math

from perfeds2.report.read import AlgorithmResult, RunResults
from perfeds2.report.style import ACCURACY
from perfeds2.report.tables import listed, seconds
from perfeds2.runs.costs import SECONDS, Cost

MOST_NAMES = 6  # names listed in one sentence


def answer(run: RunResults) -> tuple[str, list[str]]:
    """Return the headline, and paragraphs with the details and warnings."""
    said = [first_at_target(run), best_at_the_end(run)] if run.is_trained else [least_waiting(run)]
    (headline, *rest), *others = [sentences for sentences in said if sentences]
    if run.took_part is not None:
        headline = f"{headline.removesuffix('.')}, on {run.population}."
    return headline, [" ".join(sentences) for sentences in (rest, *others, _warnings(run)) if sentences]


def first_at_target(run: RunResults) -> list[str]:
    """Return sentences on which algorithm reached the target first, or at the lowest ``run.cost``."""
    if run.target_accuracy is None:
        return []
    target, known = in_words(run, run.target_accuracy), [each.median(run.cost.to_target) for each in run.algorithms]
    cost = SECONDS if set(known) == {math.inf} else run.cost
    ranked = sorted((each for each in run.algorithms if each.reached), key=lambda each: each.lateness(cost.to_target))
    if not ranked:
        return [f"No algorithm reached {target}."]

    def as_late_as(one: AlgorithmResult) -> list[str]:
        return [each.name for each in ranked if each.lateness(cost.to_target) == one.lateness(cost.to_target)]

    first, tied = ranked[0], as_late_as(ranked[0])
    if math.isinf(first.median(cost.to_target)):
        said = [f"No algorithm reached {target} in most seeds.", f"Most often: {_few(tied)}, {_spent(first, cost)}."]
    else:
        how = "first" if cost is SECONDS else f"with fewest {cost.head.lower()}"
        said = [f"{_few(tied)} reached {target} {how}, {_spent(first, cost)}."]
        if first.seeds > 1:
            spent = first.finite(cost.to_target)
            ends = " to ".join(_amount(end, cost) for end in sorted({min(spent), max(spent)}))
            said.append(f"That is the median; {first.reached} of {first.seeds} seeds reached it, after {ends}.")
    if len(ranked) > len(tied):
        later = ranked[len(tied)]
        said.append(f"Next came {_few(as_late_as(later))}, {_spent(later, cost)}.")
    never = [each.name for each in run.algorithms if not each.reached]
    return [*said, f"Never reached by {_few(never)}."] if never else said


def _few(names: list[str]) -> str:
    return listed(names) if len(names) <= MOST_NAMES else f"{listed(names[:3])} and {len(names) - 3} others"


def _spent(algorithm: AlgorithmResult, cost: Cost) -> str:
    """Describe the median cost of the target, and how many seeds reached it if not all did."""
    median, some = algorithm.median(cost.to_target), f"in {algorithm.reached} of {algorithm.seeds} seeds"
    if math.isinf(median):
        return some
    return f"after {_amount(median, cost)}" + f" ({some})" * (algorithm.reached < algorithm.seeds)


def _amount(value: float, cost: Cost) -> str:
    return seconds(value) if cost is SECONDS else f"{value:,.3g} {cost.unit}"


def in_words(run: RunResults, target: float) -> str:
    """Describe a target, such as "95 % personalised accuracy" or "a personalised R² of 0.5"."""
    level, word = run.score.level(target), run.score.word
    return f"{level} personalised {word}" if run.score.is_share else f"a personalised {word} of {level}"


def best_at_the_end(run: RunResults) -> list[str]:
    """Return sentences on which algorithm has the best final score."""
    score = run.score
    final = {a.name: a.estimates.get(ACCURACY, {"mean": None}) for a in run.algorithms}
    known = {name: found for name, found in final.items() if found["mean"] is not None}
    if not known:
        return [f"No run ended with a finite {score.word}."]
    best = max(known, key=lambda name: known[name]["mean"])
    mean, low, high = (known[best][part] for part in ("mean", "low", "high"))
    only = len(run.algorithms) == 1
    said = f"{best} ends with {'a' if only else 'the best'} personalised {score.word} of {score.show(mean)}"
    if low is None:
        return [f"{said}."]
    ends = (max(low, 0), min(high, 1)) if score.is_share else (low, high)
    said = f"{said} (95 % interval {' to '.join(f'{score.scale * end:{score.form}}' for end in ends)}{score.unit})."
    rivals = [name for name, each in known.items() if name != best and (each["high"] or -math.inf) >= low]
    return [said] if only else [said, f"Its interval overlaps with {_few(rivals) if rivals else 'no other'}."]


def least_waiting(run: RunResults) -> list[str]:
    """Return sentences on which algorithm keeps UEs waiting least."""
    waiting, merges = ({a.name: a.mean(name) for a in run.algorithms} for name in ("waiting_share", "merges"))
    least, most = min(waiting, key=lambda name: waiting[name]), max(waiting, key=lambda name: waiting[name])
    if len(run.algorithms) == 1:
        return [f"{least} merged {merges[least]:,.0f} updates; UEs waited {100 * waiting[least]:.1f} % of the time."]
    return [
        f"UEs waited least with {least}: {100 * waiting[least]:.1f} % of the time, "
        f"against {100 * waiting[most]:.1f} % with {most}.",
        f"{least} merged {merges[least]:,.0f} updates, {most} {merges[most]:,.0f}.",
    ]


def _warnings(run: RunResults) -> list[str]:
    diverged = [f"{a.name} ({a.diverged} of {a.seeds} seeds)" for a in run.algorithms if a.diverged]
    starved = [a.name for a in run.algorithms if a.starved]
    said = [f"Diverged: {_few(diverged)}."] if diverged else []
    said += [f"Some UEs were never merged with {_few(starved)}."] if starved else []
    if not run.has_intervals and len(run.algorithms) > 1:
        said.append("Fewer than three seeds: a difference may be chance.")
    return said
