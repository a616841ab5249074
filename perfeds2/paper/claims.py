"""Does what Section VI says hold?

The rule. A curve is summed up, per seed, by its mean over the horizon of the personalised test accuracy: whoever learns
faster, or ends higher, has more, and a run that never reaches a target needs no special treatment. "Better" compares two
curves seed by seed (same data, cell, fading and initial weights); the 95 % Student-t interval of the paired difference
decides: above 0 *holds*, below 0 *fails*, otherwise *undecided*. A claim of several comparisons holds if all do, fails if
any does. A run that diverges is not left out: from then on its accuracy is 0. Fewer than five seeds decide nothing. Times
to a target are shown beside it, never used for a verdict.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from perfeds2.paper.figures.figure import TARGET
from perfeds2.paper.reproduce import load_curves
from perfeds2.runs.statistics import censored_median, statistic, time_to_target

if TYPE_CHECKING:
    import pandas as pd

Verdict = Literal["holds", "fails", "undecided", "not run"]
LEAST_SEEDS = 5


@dataclass(frozen=True)
class CurveName:
    """Where a curve is to be found."""

    figure: str
    panel: str
    line: str


@dataclass(frozen=True)
class BetterThan:
    """One "better than" that a sentence of the paper asserts."""

    better: CurveName
    worse: CurveName


@dataclass(frozen=True)
class Claim:
    number: int
    sentence: str  # what the paper asserts, in our words
    where: str
    comparisons: tuple[BetterThan, ...]


@dataclass(frozen=True)
class Finding:
    """One comparison, measured."""

    comparison: BetterThan
    difference: dict[str, Any]  # of the mean accuracy over the horizon, with its interval
    times_s: tuple[float | None, float | None]  # median time to the target, better and worse
    verdict: Verdict


@dataclass(frozen=True)
class Entry:
    """A row of the ledger."""

    claim: Claim
    findings: tuple[Finding, ...]
    verdict: Verdict


Sentence = tuple[str, str, tuple[BetterThan, ...]]  # what is claimed, where, and what that compares


def _best(sentence: str, figure: str, panel: str, best: str, *others: str) -> Sentence:
    """One curve above all the others."""
    names = [CurveName(figure, panel, line) for line in (best, *others)]
    return sentence, figure, tuple(BetterThan(names[0], other) for other in names[1:])


def _ranked(sentence: str, figure: str, panel: str, *lines: str) -> Sentence:
    """Lines from best to worst, neighbours compared."""
    return sentence, figure, tuple(BetterThan(*pair) for pair in pairwise(CurveName(figure, panel, x) for x in lines))


def _sentences() -> Iterator[Sentence]:
    """What Section VI asserts, in our words."""
    shakespeare = ("Shakespeare, equal shares", "Shakespeare, random distances")
    settings = [(figure, panel) for panel in ("MNIST", "CIFAR-100") for figure in ("exp_1", "exp_2")]
    settings += [("exp_7", panel) for panel in shakespeare]
    for place in settings:
        yield _best(f"PerFedS2 saves time against synchronous training ({place[1]})", *place, "PerFedS2", "PerFed-SYN")
    for mode in ("-SYN", "S2", "-ASY"):
        for place in settings:
            sentence = f"Personalised learning converges faster than not, {mode.strip('-')} ({place[1]})"
            yield _best(sentence, *place, f"PerFed{mode}", f"FedAvg{mode}")
    for figure in ("exp_1", "exp_2"):
        sentence = "On MNIST asynchronous is fastest, semi-synchronous second, synchronous last"
        yield _ranked(sentence, figure, "MNIST", "PerFed-ASY", "PerFedS2", "PerFed-SYN")
        sentence = "On CIFAR-100 semi-synchronous is best"
        yield _best(sentence, figure, "CIFAR-100", "PerFedS2", "PerFed-SYN", "PerFed-ASY")
        sentence = "Without personalisation, too, synchronous is slowest and asynchronous fastest (MNIST)"
        yield _ranked(sentence, figure, "MNIST", "FedAvg-ASY", "FedAvgS2", "FedAvg-SYN")
    for panel in ("MNIST", "CIFAR-100"):
        pair = BetterThan(*(CurveName(figure, panel, "PerFedS2") for figure in ("exp_1", "exp_2")))
        yield f"Unequal shares are worse than equal ones ({panel})", "exp_1, exp_2", (pair,)
    for panel in ("MNIST, equal shares", "MNIST, random distances", *shakespeare):
        yield _best(
            f"PerFedS2 beats FedAvgS2 and FedProxS2 ({panel})", "exp_8", panel, "PerFedS2", "FedAvgS2", "FedProxS2"
        )
    for panel, labels in (("MNIST", (2, 4, 6, 8)), ("CIFAR-100", (3, 5, 7, 9))):
        yield _ranked(f"More labels a UE is worse ({panel})", "exp_3", panel, *(f"l = {label}" for label in labels))
    for place in (("exp_4", "MNIST"), ("exp_5", "MNIST"), ("exp_4", "CIFAR-100")):
        yield _ranked(f"Fewer updates a round are better ({place[1]})", *place, "A = 5", "A = 10", "A = 15")
    sentence = "A = 10 wins on CIFAR-100 with random distances"
    yield _best(sentence, "exp_5", "CIFAR-100", "A = 10", "A = 5", "A = 15")
    for panel in ("MNIST", "CIFAR-100"):
        bounds = (f"S = {s}" for s in (5, 4, 3, 2, 1))
        yield _ranked(f"A larger staleness bound is better ({panel})", "exp_6", panel, *bounds)


CLAIMS = tuple(Claim(number, *sentence) for number, sentence in enumerate(_sentences(), start=1))


def ledger(folder: Path | str, claims: Sequence[Claim] = CLAIMS) -> list[Entry]:
    """Every claim with what was measured and the verdict the rule gives."""
    curves = load_curves(folder)
    groups = {CurveName(*map(str, key)): table for key, table in curves.groupby(["figure", "panel", "line"])}  # type: ignore[arg-type]  # key is a tuple
    return [_judge(claim, groups) for claim in claims]


def _judge(claim: Claim, groups: "dict[CurveName, pd.DataFrame]") -> Entry:
    findings = tuple(_measure(comparison, groups) for comparison in claim.comparisons)
    verdicts = {finding.verdict for finding in findings}
    first: tuple[Verdict, ...] = ("fails", "not run", "undecided", "holds")  # the first of these that there is
    verdict: Verdict = next(each for each in first if each in verdicts)
    return Entry(claim, findings, verdict)


def _measure(comparison: BetterThan, groups: "dict[CurveName, pd.DataFrame]") -> Finding:
    better, worse = groups.get(comparison.better), groups.get(comparison.worse)
    if better is None or worse is None:
        return Finding(comparison, statistic([]), (None, None), "not run")
    high, low = mean_accuracy(better), mean_accuracy(worse)
    seeds = sorted(high.keys() & low.keys())
    difference = statistic([high[seed] - low[seed] for seed in seeds])
    target = TARGET[str(better.task.iloc[0])]
    times = (median_time(better, target), median_time(worse, target))
    verdict: Verdict = "undecided"
    if len(seeds) >= LEAST_SEEDS and difference["low"] is not None:
        verdict = "holds" if difference["low"] > 0 else "fails" if difference["high"] < 0 else "undecided"
    return Finding(comparison, difference, times, verdict)


def mean_accuracy(curve: "pd.DataFrame") -> dict[int, float]:
    """Per seed, the mean over simulated time of the personalised test accuracy; a model stands until the next round."""
    result = {}
    for seed, table in curve.groupby("seed"):
        times, accuracy = table.time_s.to_numpy(), table.test_accuracy_personal.fillna(0.0).to_numpy()
        result[int(seed)] = float((np.diff(times) * accuracy[:-1]).sum() / (times[-1] - times[0]))  # type: ignore[arg-type]  # seeds are whole numbers
    return result


def median_time(curve: "pd.DataFrame", target: float) -> float | None:
    """The median over seeds of the time to a target; a seed that never gets there counts as later than all others."""
    seeds = [table.to_dict("records") for _, table in curve.groupby("seed")]
    return censored_median([time_to_target(rows, target) for rows in seeds])
