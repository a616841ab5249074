"""Judge the claims of Section VI by the reproduced curves; the report prints the rule below.

The rule. Each curve is summarised, per seed, by the mean of its personalised test accuracy over the horizon. An algorithm
that learns faster or ends higher has a higher mean, and a run that never reaches a target needs no special treatment.
"Better" compares two curves seed by seed (same data, cell, fading and initial weights). The 95 % Student-t interval of the
paired difference decides: above 0 *holds*, below 0 *fails*, otherwise *undecided*. A claim of several comparisons holds if
all of them hold, and fails if any fails. A run that diverges counts with an accuracy of 0 from then on. With fewer than
five seeds every comparison is undecided. Times to a target are shown, but never decide a verdict.

A verdict is marked where it depends on how strictly one reads. *Not after Holm*: it would be undecided at 0.05 if the
p-values of the paired t-tests were adjusted by Holm's method over all comparisons of the ledger, some of which pass by
chance. Comparisons of the same numbers (claims share runs) count as one test, in either direction.
*Below 0.5 points*: it would be undecided if smaller mean differences did not count. *Nothing learned*: neither curve of a
comparison rises 2 points above its start and above the share of the most frequent label. Two other measures have their own
verdicts, by the same intervals: the accuracy if FedAvg and FedProx are evaluated without a personal step, and the
personalised training loss, where lower is better. A run that diverges has no mean loss, so the loss decides nothing there;
the number of diverged seeds is shown instead.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from perfeds2.paper.figures import TARGET, load_curves
from perfeds2.runs.statistics import (
    Statistic,
    censored_median,
    holm,
    mean_over_time,
    paired_p,
    statistic,
    time_to_target,
)

if TYPE_CHECKING:
    import pandas as pd

Verdict = Literal["holds", "fails", "undecided", "not run"]
LEAST_SEEDS = 5
LEVEL = 0.05  # significance level of p-values
SMALLEST_OF_NOTE = 0.005  # smallest mean difference in accuracy that counts: half a point
# Accuracy of a constant answer: the share of the most frequent label in the evaluated data (mean of two seeds).
MOST_FREQUENT = {"mnist": 0.12, "cifar100": 0.012, "shakespeare": 0.19}
LEAST_LEARNED = 0.02  # above that share, and above the curve's start
NOT_PERSONAL = ("FedAvg", "FedProx")  # prefixes of algorithms that do not train for a personal step


@dataclass(frozen=True)
class CurveName:
    """The figure, panel and line of a curve."""

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
    sentence: str  # the paper's assertion, in our words
    where: str
    comparisons: tuple[BetterThan, ...]


@dataclass(frozen=True)
class Finding:
    """One measured comparison. Differences are better − worse, seed by seed, of means over the horizon."""

    comparison: BetterThan
    difference: Statistic  # in personalised test accuracy
    times_s: tuple[float | None, float | None]  # median times to the target, better and worse
    verdict: Verdict
    means: tuple[tuple[float, ...], ...] = ()  # per-seed means that are subtracted, better and worse
    p: float | None = None  # of the paired t-test; None with too few seeds
    p_holm: float | None = None  # adjusted by Holm's method
    as_it_is: Statistic | None = None  # the same without a personal step for FedAvg and FedProx; None without these
    loss: Statistic | None = None  # in personalised training loss
    diverged: tuple[int, int] = (0, 0)  # number of seeds, better and worse
    learned: bool = True  # whether at least one of the curves did

    @property
    def after_holm(self) -> Verdict:
        """Return the verdict if it survives Holm's adjustment, else undecided."""
        return self._unless(self.p_holm is None or self.p_holm >= LEVEL)

    @property
    def of_note(self) -> Verdict:
        """Return the verdict if the mean difference is at least ``SMALLEST_OF_NOTE``, else undecided."""
        mean = self.difference["mean"]
        return self._unless(mean is None or abs(mean) < SMALLEST_OF_NOTE)

    def _unless(self, doubtful: bool) -> Verdict:
        return "undecided" if doubtful and self.verdict != "not run" else self.verdict

    @property
    def verdict_as_it_is(self) -> Verdict:
        return self.verdict if self.as_it_is is None else decide(self.as_it_is)

    @property
    def verdict_by_loss(self) -> Verdict:
        return "not run" if self.loss is None else decide(self.loss, lower_is_better=True)


@dataclass(frozen=True)
class Entry:
    """A row of the ledger."""

    claim: Claim
    findings: tuple[Finding, ...]

    @property
    def verdict(self) -> Verdict:
        return self.by(lambda finding: finding.verdict)

    def by(self, reading: Callable[[Finding], Verdict]) -> Verdict:
        """Return the joint verdict under a reading of each comparison, such as ``after_holm``."""
        return together(map(reading, self.findings))

    @property
    def learned(self) -> bool:
        return all(finding.learned for finding in self.findings)


@dataclass(frozen=True)
class AgainstBest:
    """PerFedS2 against the best of its rivals on one data set, by one measure."""

    place: CurveName
    measured: str  # in words
    rival: str  # the best by this measure
    difference: Statistic


Sentence = tuple[str, str, tuple[BetterThan, ...]]  # the claim, its figure, and its comparisons


def _best(sentence: str, figure: str, panel: str, best: str, *others: str) -> Sentence:
    """Claim that one curve is above all others."""
    names = [CurveName(figure, panel, line) for line in (best, *others)]
    return sentence, figure, tuple(BetterThan(names[0], other) for other in names[1:])


def _ranked(sentence: str, figure: str, panel: str, *lines: str) -> Sentence:
    """Claim an order of lines from best to worst, comparing neighbours."""
    return sentence, figure, tuple(BetterThan(*pair) for pair in pairwise(CurveName(figure, panel, x) for x in lines))


def _sentences() -> Iterator[Sentence]:
    """Yield what Section VI asserts, in our words."""
    shakespeare = ("Shakespeare, equal shares", "Shakespeare, random distances")
    settings = [(figure, panel) for panel in ("MNIST", "CIFAR-100") for figure in ("exp_1", "exp_2")]
    settings += [("exp_7", panel) for panel in shakespeare]
    for place in settings:
        yield _best(f"PerFedS2 saves time against synchronous training ({place[1]})", *place, "PerFedS2", "PerFed-SYN")
    for mode in ("-SYN", "S2", "-ASY"):
        for place in settings:
            sentence = f"Personalised learning converges faster than plain learning, {mode.strip('-')} ({place[1]})"
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
        yield _ranked(f"More labels per UE are worse ({panel})", "exp_3", panel, *(f"l = {label}" for label in labels))
    for place in (("exp_4", "MNIST"), ("exp_5", "MNIST"), ("exp_4", "CIFAR-100")):
        yield _ranked(f"Fewer updates per round are better ({place[1]})", *place, "A = 5", "A = 10", "A = 15")
    sentence = "A = 10 wins on CIFAR-100 with random distances"
    yield _best(sentence, "exp_5", "CIFAR-100", "A = 10", "A = 5", "A = 15")
    for panel in ("MNIST", "CIFAR-100"):
        bounds = (f"S = {s}" for s in (5, 4, 3, 2, 1))
        yield _ranked(f"A larger staleness bound is better ({panel})", "exp_6", panel, *bounds)


CLAIMS = tuple(Claim(number, *sentence) for number, sentence in enumerate(_sentences(), start=1))


def ledger(folder: Path | str, claims: Sequence[Claim] = CLAIMS) -> list[Entry]:
    """Return every claim with its measurements and verdict, from the figures reproduced in a folder."""
    curves = _curves(
        folder, (curve for claim in claims for pair in claim.comparisons for curve in (pair.better, pair.worse))
    )
    asked = dict.fromkeys(comparison for claim in claims for comparison in claim.comparisons)
    found = adjusted([_measure(comparison, curves) for comparison in asked])
    by_comparison = dict(zip(asked, found, strict=True))
    return [Entry(claim, tuple(by_comparison[each] for each in claim.comparisons)) for claim in claims]


def _curves(folder: Path | str, names: Iterable[CurveName]) -> "dict[CurveName, Curve]":
    """Return those of the named curves that were run."""
    groups = load_curves(folder).groupby(["figure", "panel", "line"])
    tables = {CurveName(*map(str, key)): table for key, table in groups}  # type: ignore[arg-type]  # key is a tuple
    return {name: Curve.of(tables[name]) for name in dict.fromkeys(names) if name in tables}


@dataclass(frozen=True)
class Curve:
    """A curve, summarised per seed by means over the horizon."""

    accuracy: dict[int, float]  # personalised
    accuracy_as_it_is: dict[int, float]  # personalised, except for FedAvg and FedProx
    accuracy_at_end: dict[int, float]  # personalised, at the last evaluation
    loss: dict[int, float | None]  # personalised training loss; None if it diverges
    time_s: float | None  # median time to the target
    is_personal: bool
    learned: bool

    @classmethod
    def of(cls, table: "pd.DataFrame") -> "Curve":
        task, algorithm = str(table["task"].iloc[0]), str(table["algorithm"].iloc[0])
        is_personal = not algorithm.startswith(NOT_PERSONAL)
        as_it_is = "test_accuracy_personal" if is_personal else "test_accuracy"
        every: list[Any] = table.filter(regex="seed|time_s|test_acc|train_loss").to_dict("records")  # all take longer
        seeds: dict[Any, list[dict[str, Any]]] = {}
        for row in every:
            seeds.setdefault(row["seed"], []).append(row)
        return cls(
            accuracy={seed: mean_over_time(rows) for seed, rows in seeds.items()},
            accuracy_as_it_is={seed: mean_over_time(rows, as_it_is) for seed, rows in seeds.items()},
            accuracy_at_end={seed: mean_over_time(rows, last=True) for seed, rows in seeds.items()},
            loss={seed: _mean_loss(rows) for seed, rows in seeds.items()},
            time_s=censored_median([time_to_target(rows, TARGET[task]) for rows in seeds.values()]),
            is_personal=is_personal,
            learned=_learned(every, MOST_FREQUENT[task]),
        )


def _mean_loss(rows: Sequence[Mapping[str, Any]]) -> float | None:
    name = "train_loss_personal"
    return mean_over_time(rows, name) if all(math.isfinite(row[name]) for row in rows) else None


def _learned(rows: Sequence[Mapping[str, Any]], most_frequent: float) -> bool:
    """Return whether the mean over seeds ever clearly exceeds its start and the share of the most frequent label."""
    accuracy: dict[float, list[float]] = {}
    for row in rows:
        accuracy.setdefault(row["time_s"], []).append(max(0.0, row["test_accuracy_personal"]))  # NaN is 0
    mean = [fmean(accuracy[time_s]) for time_s in sorted(accuracy)]
    return max(mean) >= max(mean[0], most_frequent) + LEAST_LEARNED


def _measure(comparison: BetterThan, curves: Mapping[CurveName, Curve]) -> Finding:
    better, worse = curves.get(comparison.better), curves.get(comparison.worse)
    if better is None or worse is None:
        return Finding(comparison, statistic([]), (None, None), "not run")
    seeds = sorted(better.accuracy.keys() & worse.accuracy.keys())
    difference = _difference(better.accuracy, worse.accuracy)
    some_as_it_is = not (better.is_personal and worse.is_personal)
    return Finding(
        comparison,
        difference,
        (better.time_s, worse.time_s),
        decide(difference),
        means=tuple(tuple(curve.accuracy[seed] for seed in seeds) for curve in (better, worse)),
        p=paired_p(difference["values"]) if len(seeds) >= LEAST_SEEDS else None,
        as_it_is=_difference(better.accuracy_as_it_is, worse.accuracy_as_it_is) if some_as_it_is else None,
        loss=_difference(better.loss, worse.loss),
        diverged=(_diverged(better, seeds), _diverged(worse, seeds)),
        learned=better.learned or worse.learned,
    )


def _difference(high: Mapping[int, float | None], low: Mapping[int, float | None]) -> Statistic:
    """Return the statistic of the differences over the seeds that both have."""
    pairs = [(high[seed], low[seed]) for seed in sorted(high.keys() & low.keys())]
    return statistic([None if a is None or b is None else a - b for a, b in pairs])


def _diverged(curve: Curve, seeds: Iterable[int]) -> int:
    return sum(curve.loss[seed] is None for seed in seeds)


def decide(difference: Statistic, *, lower_is_better: bool = False) -> Verdict:
    """Return the verdict of a 95 % interval."""
    if len(difference["values"]) < LEAST_SEEDS or difference["low"] is None:
        return "undecided"
    above, below = difference["low"] > 0, difference["high"] < 0
    if lower_is_better:
        above, below = below, above
    return "holds" if above else "fails" if below else "undecided"


def together(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the joint verdict of several comparisons: the first of fails, not run, undecided, holds that occurs."""
    found = set(verdicts)
    first: tuple[Verdict, ...] = ("fails", "not run", "undecided", "holds")
    return next(each for each in first if each in found)


def adjusted(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings with Holm's p-values over all that can be decided."""
    tests = distinct_tests(findings)
    p_holm = dict(zip(tests, holm(list(tests.values())), strict=True))
    return [replace(finding, p_holm=p_holm.get(_numbers(finding))) for finding in findings]


def distinct_tests(findings: Iterable[Finding]) -> dict[frozenset[tuple[float, ...]], float]:
    """Return the p-values by the numbers compared, so that a repeated comparison counts once."""
    return {_numbers(finding): finding.p for finding in findings if finding.p is not None}


def _numbers(finding: Finding) -> frozenset[tuple[float, ...]]:
    """Return the numbers compared, regardless of direction."""
    return frozenset(finding.means)


RIVALS = ("FedAvg-SYN", "FedAvgS2", "FedAvg-ASY")
BEST_OF = (("exp_1", "MNIST"), ("exp_1", "CIFAR-100"), ("exp_7", "Shakespeare, equal shares"))


def best_fedavg(folder: Path | str) -> list[AgainstBest]:
    """Compare PerFedS2 with the best FedAvg of any mode, on each data set with equal shares, where all four were run.

    The rival is chosen on the seeds it is compared on, so chance favours the rival, never PerFedS2.
    """
    lines = ("PerFedS2", *RIVALS)
    names = {panel: [CurveName(*panel, line) for line in lines] for panel in BEST_OF}
    curves = _curves(folder, (name for each in names.values() for name in each))
    found = []
    for mine, *rivals in names.values():
        if all(name in curves for name in (mine, *rivals)):
            for measured, name in (("over the horizon", "accuracy"), ("at its end", "accuracy_at_end")):
                of = {each: vars(curves[each])[name] for each in (mine, *rivals)}
                best = rivals[int(np.argmax([fmean(of[each].values()) for each in rivals]))]
                found.append(AgainstBest(mine, measured, best.line, _difference(of[mine], of[best])))
    return found
