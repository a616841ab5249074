"""What came out, in a few sentences?"""

import math
from collections.abc import Sequence

from perfeds2.report.read import AlgorithmResult, RunResults
from perfeds2.report.style import ACCURACY
from perfeds2.report.tables import capitalised, listed, seconds


def answer(run: RunResults) -> tuple[str, list[str]]:
    """Return the headline, and paragraphs with what a careful reader should know."""
    said = [first_at_target(run), best_at_the_end(run)] if run.is_trained else [least_waiting(run)]
    (headline, *rest), *others = [sentences for sentences in said if sentences]
    return headline, [" ".join(sentences) for sentences in (rest, *others, _warnings(run)) if sentences]


def first_at_target(run: RunResults) -> list[str]:
    """Say who reached the target first."""
    if run.target_accuracy is None:
        return []
    target = in_words(run, run.target_accuracy)
    ranked = sorted((a for a in run.algorithms if a.reached), key=lambda a: a.lateness)
    if not ranked and len(run.algorithms) > 1:
        return [f"No algorithm reached {target}."]
    if not ranked:
        return [f"{capitalised(target)} was not reached."]
    first, seeds = ranked[0], len(run.seeds)
    tied = [a.name for a in ranked if a.lateness == first.lateness]
    after = f"after {_median(first)}"
    if len(run.algorithms) == 1:
        said = [f"{first.name} reached {target} {after}."]
    elif len(tied) <= 3:
        said = [f"{listed(tied)} reached {target} first, {'both ' if len(tied) == 2 else ''}{after}."]
    elif len(tied) < len(run.algorithms):
        said = [f"{len(tied)} algorithms reached {target} first, all {after}.", f"They are {listed(tied)}."]
    else:
        said = [f"All {len(tied)} algorithms reached {target} at the same time, {after}."]
    if seeds > 1 and len(tied) == 1:
        times = [time for time in first.times_s if time is not None]
        soonest, latest = seconds(min(times)), seconds(max(times))
        spread = f"at {latest}" if soonest == latest else f"between {soonest} and {latest}"
        said.append(f"That is the median; {first.reached} of {seeds} seeds reached it, {spread}.")
        if len(run.algorithms) > 1:
            said.append(f"In {_wins(first, run.algorithms)} of {seeds} seeds nobody was sooner.")
    elif seeds > 1:
        said.append(f"That is the median; {first.reached} of {seeds} seeds reached it.")
    if len(ranked) > len(tied):
        later = ranked[len(tied)]
        some = "" if later.reached == seeds else f" (in {later.reached} of {seeds} seeds)"
        said.append(f"Next came {later.name}, after {_median(later)}{some}.")
    never = [a.name for a in run.algorithms if not a.reached]
    if never:
        said.append(f"Never reached by {listed(never)}.")
    return said


def in_words(run: RunResults, target: float) -> str:
    """Write 95 % personalised accuracy, or a personalised R² of 0.5."""
    level, word = run.score.level(target), run.score.word
    return f"{level} personalised {word}" if run.score.is_share else f"a personalised {word} of {level}"


def _wins(first: AlgorithmResult, algorithms: Sequence[AlgorithmResult]) -> int:
    """Count the seeds in which no algorithm was sooner. In one seed all of them have the same radio and data."""
    by_seed = zip(*(map(_or_infinite, a.times_s) for a in algorithms if a.times_s), strict=True)
    mine = map(_or_infinite, first.times_s)
    return sum(math.isfinite(own) and own <= min(all_) for own, all_ in zip(mine, by_seed, strict=True))


def best_at_the_end(run: RunResults) -> list[str]:
    """Say who ends best."""
    final = {a.name: a.estimates.get(ACCURACY) for a in run.algorithms}
    known = {name: (e.mean, e) for name, e in final.items() if e is not None and e.mean is not None}
    if not known:
        return [f"No run ended with a finite {run.score.word}."]
    best = max(known, key=lambda name: known[name][0])
    mean, estimate = known[best]
    score, interval, low = run.score, "", _or_infinite(estimate.low)
    value = score.show(mean)
    if estimate.low is not None and estimate.high is not None:
        ends = (max(low, 0), min(estimate.high, 1)) if score.is_share else (low, estimate.high)
        shown = [f"{score.scale * end:{score.form}}" for end in ends]
        interval = f" (95 % interval {shown[0]} to {shown[1]}{score.unit})"
    if len(run.algorithms) == 1 and score.is_share:
        return [f"{best} ends with {value}{interval} personalised {score.word}."]
    if len(run.algorithms) == 1:
        return [f"{best} ends with a personalised {score.word} of {value}{interval}."]
    said = [f"{best} ends with the best personalised {score.word}, {value}{interval}."]
    rivals = [name for name, (_, e) in known.items() if name != best and e.high is not None and e.high >= low]
    if rivals:
        said.append(f"Its interval overlaps {'that' if len(rivals) == 1 else 'those'} of {listed(rivals)}.")
    elif interval:
        said.append("Its interval overlaps no other.")
    return said


def least_waiting(run: RunResults) -> list[str]:
    """Say with whom UEs wait least."""
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
    diverged = [f"{a.name} ({a.diverged} of {len(run.seeds)} seeds)" for a in run.algorithms if a.diverged]
    starved = [a.name for a in run.algorithms if a.starved]
    said = [f"Diverged: {listed(diverged)}."] if diverged else []
    if starved:
        said.append(f"Some UEs were never merged with {listed(starved)}.")
    if not run.has_intervals and len(run.algorithms) > 1:
        few = "One seed" if len(run.seeds) == 1 else "Two seeds"
        said.append(f"{few} only: there are no intervals, and a difference may be chance.")
    return said


def _median(algorithm: AlgorithmResult) -> str:
    return seconds(None if math.isinf(algorithm.median()) else algorithm.median())


def _or_infinite(value: float | None) -> float:
    return math.inf if value is None else value
