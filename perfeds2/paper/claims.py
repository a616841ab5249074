"""Does what Section VI says hold?

The rule. A curve is summed up, per seed, by its mean over the horizon of the personalised test accuracy: whoever learns
faster, or ends higher, has more, and a run that never reaches a target needs no special treatment. "Better" compares two
curves seed by seed (same data, cell, fading and initial weights); the 95 % Student-t interval of the paired difference
decides: above 0 *holds*, below 0 *fails*, otherwise *undecided*. A claim of several comparisons holds if all do, fails if
any does. A run that diverges is not left out: from then on its accuracy is 0. Fewer than five seeds decide nothing. Times
to a target are shown beside it, never used for a verdict.
"""

from collections.abc import Sequence
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
class Curve:
    figure: str
    panel: str
    line: str


@dataclass(frozen=True)
class Comparison:
    """One "better than" that a sentence of the paper asserts."""

    better: Curve
    worse: Curve


@dataclass(frozen=True)
class Claim:
    number: int
    sentence: str  # what the paper asserts, in our words
    where: str
    comparisons: tuple[Comparison, ...]


@dataclass(frozen=True)
class Finding:
    """One comparison, measured."""

    comparison: Comparison
    difference: dict[str, Any]  # of the mean accuracy over the horizon, with its interval
    times_s: tuple[float | None, float | None]  # median time to the target, better and worse
    verdict: Verdict


@dataclass(frozen=True)
class Entry:
    """A row of the ledger."""

    claim: Claim
    findings: tuple[Finding, ...]
    verdict: Verdict


def _ranked(figure: str, panel: str, *lines: str) -> tuple[Comparison, ...]:
    """Lines from best to worst, neighbours compared."""
    return tuple(
        Comparison(Curve(figure, panel, better), Curve(figure, panel, worse)) for better, worse in pairwise(lines)
    )


def _against(figure: str, panel: str, best: str, *others: str) -> tuple[Comparison, ...]:
    return tuple(Comparison(Curve(figure, panel, best), Curve(figure, panel, other)) for other in others)


def _claims() -> tuple[Claim, ...]:
    shakespeare = ("Shakespeare, equal shares", "Shakespeare, random distances")
    settings = [("exp_1", "MNIST"), ("exp_2", "MNIST"), ("exp_1", "CIFAR-100"), ("exp_2", "CIFAR-100")]
    settings += [("exp_7", panel) for panel in shakespeare]
    listed: list[tuple[str, str, tuple[Comparison, ...]]] = []
    for figure, panel in settings:
        listed.append(
            (
                f"PerFedS2 saves time against synchronous training ({panel})",
                figure,
                _against(figure, panel, "PerFedS2", "PerFed-SYN"),
            )
        )
    for mode in ("-SYN", "S2", "-ASY"):
        for figure, panel in settings:
            listed.append(
                (
                    f"Personalised learning converges faster than not, {mode.strip('-')} ({panel})",
                    figure,
                    _against(figure, panel, f"PerFed{mode}", f"FedAvg{mode}"),
                )
            )
    for figure in ("exp_1", "exp_2"):
        listed.append(
            (
                "On MNIST asynchronous is fastest, semi-synchronous second, synchronous last",
                figure,
                _ranked(figure, "MNIST", "PerFed-ASY", "PerFedS2", "PerFed-SYN"),
            )
        )
        listed.append(
            (
                "On CIFAR-100 semi-synchronous is best",
                figure,
                _against(figure, "CIFAR-100", "PerFedS2", "PerFed-SYN", "PerFed-ASY"),
            )
        )
        listed.append(
            (
                "Without personalisation, too, synchronous is slowest and asynchronous fastest (MNIST)",
                figure,
                _ranked(figure, "MNIST", "FedAvg-ASY", "FedAvgS2", "FedAvg-SYN"),
            )
        )
    for panel in ("MNIST", "CIFAR-100"):
        listed.append(
            (
                f"Unequal shares are worse than equal ones ({panel})",
                "exp_1, exp_2",
                (Comparison(Curve("exp_1", panel, "PerFedS2"), Curve("exp_2", panel, "PerFedS2")),),
            )
        )
    for panel in ("MNIST, equal shares", "MNIST, random distances", *shakespeare):
        listed.append(
            (
                f"PerFedS2 beats FedAvgS2 and FedProxS2 ({panel})",
                "exp_8",
                _against("exp_8", panel, "PerFedS2", "FedAvgS2", "FedProxS2"),
            )
        )
    listed.append(
        ("More labels a UE is worse (MNIST)", "exp_3", _ranked("exp_3", "MNIST", "l = 2", "l = 4", "l = 6", "l = 8"))
    )
    listed.append(
        (
            "More labels a UE is worse (CIFAR-100)",
            "exp_3",
            _ranked("exp_3", "CIFAR-100", "l = 3", "l = 5", "l = 7", "l = 9"),
        )
    )
    for figure, panel in (("exp_4", "MNIST"), ("exp_5", "MNIST"), ("exp_4", "CIFAR-100")):
        listed.append(
            (f"Fewer updates a round are better ({panel})", figure, _ranked(figure, panel, "A = 5", "A = 10", "A = 15"))
        )
    listed.append(
        (
            "A = 10 wins on CIFAR-100 with random distances",
            "exp_5",
            _against("exp_5", "CIFAR-100", "A = 10", "A = 5", "A = 15"),
        )
    )
    for panel in ("MNIST", "CIFAR-100"):
        listed.append(
            (
                f"A larger staleness bound is better ({panel})",
                "exp_6",
                _ranked("exp_6", panel, *(f"S = {s}" for s in (5, 4, 3, 2, 1))),
            )
        )
    return tuple(Claim(number, *entry) for number, entry in enumerate(listed, start=1))


CLAIMS = _claims()


def ledger(folder: Path | str, claims: Sequence[Claim] = CLAIMS) -> list[Entry]:
    """Every claim with what was measured and the verdict the rule gives."""
    curves = load_curves(folder)
    groups = {Curve(*map(str, key)): table for key, table in curves.groupby(["figure", "panel", "line"])}  # type: ignore[arg-type]  # key is a tuple
    return [_judge(claim, groups) for claim in claims]


def _judge(claim: Claim, groups: "dict[Curve, pd.DataFrame]") -> Entry:
    findings = tuple(_measure(comparison, groups) for comparison in claim.comparisons)
    verdicts = {finding.verdict for finding in findings}
    verdict: Verdict = "undecided"
    if "fails" in verdicts:
        verdict = "fails"
    elif "not run" in verdicts:
        verdict = "not run"
    elif verdicts == {"holds"}:
        verdict = "holds"
    return Entry(claim, findings, verdict)


def _measure(comparison: Comparison, groups: "dict[Curve, pd.DataFrame]") -> Finding:
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
