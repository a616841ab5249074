"""Tabulate the final results of the algorithms."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from perfeds2.files import Json
from perfeds2.learning.metrics import NEW_UES_METRICS, NEW_UES_STEPS, Score
from perfeds2.report.read import AlgorithmResult, RunResults
from perfeds2.report.style import ACCURACY, GLOBAL
from perfeds2.report.tables import Cell, Column, Span, Table, counted, estimate, p_value, signed, text_column
from perfeds2.runs.costs import COSTS
from perfeds2.runs.statistics import NO_INTERVAL

Extra = tuple[Column, Sequence[Cell]]  # an additional column and its cells


@dataclass(frozen=True)
class Measure:
    """A column of estimates over the seeds."""

    name: str  # in summary.json
    head: str
    narrow: str  # header in the terminal
    form: str
    scale: float = 1
    best: Callable[[Iterable[float]], float] | None = None  # min or max; intervals are shown only if set
    is_cost: bool = False  # a cost of the target: shown as a median, lower is better
    spread: bool = False  # also show the minimum and maximum


TIMING = (
    Measure("rounds", "Rounds", "rounds", ",.0f"),
    Measure("merges", "Merges", "merges", ",.0f"),
    Measure("staleness_mean", "Staleness, mean", "staleness\nmean", ",.2f"),
    Measure("staleness_max", "Staleness, max", "\nmax", ",.0f"),
)
LOSSES = (
    Measure("train_loss", "Train loss, global", "train loss\nglobal", ",.3f", best=min),
    Measure("train_loss_personal", "Train loss, personal", "train loss\npersonal", ",.3f", best=min),
)
PRIVACY = (
    Measure("epsilon_worst", "worst ε of a UE", "ε\nworst UE", ".3g"),
    Measure("epsilon_median", "median ε of the UEs", "ε\nmedian", ".3g"),
)
WAITING = Measure("waiting_share", "UEs wait (% of time)", "UEs\nwait (%)", ".1f", 100)
JAIN = Measure("jain", "Jain's index", "Jain's\nindex", ".4f", best=max)


def of_score(score: Score, name: str, head: str, narrow: str) -> Measure:
    """Return a column for a mean of the metric that is called accuracy; ``{}`` in ``narrow`` stands for its unit."""
    unit = " (%)" if score.is_share else ""
    return Measure(name, head + unit, narrow.format(unit), score.form, score.scale, max)


def accuracies(score: Score) -> list[Measure]:
    """Return the columns for global and personalised accuracy."""
    whose = {GLOBAL: "global", ACCURACY: "personal"}
    return [of_score(score, name, f"Test {score.word}, {who}", f"{score.head}\n{who}") for name, who in whose.items()]


def _recorded(run: RunResults, *measures: Measure) -> list[Measure]:
    """Return those columns that an algorithm has numbers for."""
    return [each for each in measures if any(each.name in one.estimates for one in run.algorithms)]


def fairness(run: RunResults) -> list[Measure]:
    """Return the columns for how personalised accuracy is spread over the UEs; nothing if that is not recorded."""
    tenth = of_score(run.score, "worst_decile", "Worst tenth of UEs", "worst tenth\nof UEs{}")
    return _recorded(run, tenth, *[JAIN] * run.score.is_share)


def by_samples(run: RunResults) -> list[Measure]:
    """Return the column for personalised accuracy weighted by the UEs' samples; nothing if that is not recorded."""
    head = f"Test {run.score.word}, personal, by samples"
    return _recorded(run, of_score(run.score, f"{ACCURACY}_by_samples", head, "by\nsamples"))


def new_ues(run: RunResults) -> list[Measure]:
    """Return the columns for the accuracy on UEs that never trained; nothing if there are none."""
    heads = zip(NEW_UES_METRICS, NEW_UES_STEPS, strict=True)
    return _recorded(
        run,
        *(
            of_score(run.score, name, f"New UEs, {counted(steps, 'step')}", f"new UEs\n{steps} steps")
            for name, steps in heads
        ),
    )


def to_target(run: RunResults) -> Measure:
    """Return the column for the cost of the target. Its header shows the target only if there is a common one."""
    cost, what = run.cost, "the target" if run.target_accuracy is None else run.target
    return Measure(cost.to_target, f"{cost.head} to {what}", f"{cost.head.lower()}\nto {what}", cost.form, is_cost=True)


def learned(run: RunResults, measures: Sequence[Measure]) -> list[Measure]:
    """Return the cost of the target followed by ``measures``; nothing for a run without training."""
    if not run.is_trained:
        return []
    return [*([] if run.target_accuracy is None else [to_target(run)]), *measures]


def clock_measures(run: RunResults) -> list[Measure]:
    """Return the columns that follow from the timeline; with noise, also the privacy loss."""
    return [*TIMING, *_recorded(run, *PRIVACY), WAITING]


def accuracy_measures(run: RunResults) -> list[Measure]:
    """Return a page's columns on what was learned, accuracy first because a phone shows only the first few."""
    common, personal = accuracies(run.score)
    return [personal, *by_samples(run), *learned(run, [common, *new_ues(run), *fairness(run), *LOSSES])]


def paper_measures(run: RunResults) -> list[Measure]:
    """Return the columns of a paper's table: rounds, costs of the target, accuracies and fairness."""
    if not run.is_trained:
        return clock_measures(run)
    common, personal = accuracies(run.score)
    joules = Measure("joules_to_target", f"Joules to {run.target}", "joules", ",.3g", is_cost=True)
    has_joules = run.cost is not COSTS["joules"] and any(each.finite(joules.name) for each in run.algorithms)
    costs = learned(run, [joules] if has_joules and run.target_accuracy is not None else [])
    return [TIMING[0], *costs, common, personal, *by_samples(run), *new_ues(run), *fairness(run)]


def results_table(
    run: RunResults,
    measures: Iterable[Measure],
    extras: Sequence[Extra] = (),
    head: str = "Algorithm",
    warnings: bool = True,
) -> Table:
    """Return a row per algorithm, with its warnings under its name unless another table shows them."""
    names = [_named(each) if warnings else each.name for each in run.algorithms]
    columns: list[Extra] = [(text_column(head, head.lower()), names)]
    columns += [(Column(each.head, narrow=each.narrow), _cells(run.algorithms, each)) for each in measures]
    columns += extras
    rows = [list(row) for row in zip(*(cells for _, cells in columns), strict=True)]
    styles = [run.styles[each.name] for each in run.algorithms]
    return Table([column for column, _ in columns], rows, styles=styles)


def behind_best(run: RunResults) -> list[Extra]:
    """Return a column with how far each algorithm ends behind the best, seed by seed, and the paired test's p."""
    cells: list[Cell] = []
    for each in run.algorithms:
        found = each.estimates.get("behind_best")
        p = "" if each.p_behind_best is None else f", p {p_value(each.p_behind_best)}"
        cells.append("–" if found is None else [*signed(found, run.score.form, run.score.scale), Span(p)])
    points = " (points)" if run.score.is_share else ""
    column = Column(f"Behind the best, personal{points}")
    return [(column, cells)] if any("behind_best" in each.estimates for each in run.algorithms) else []


def _named(algorithm: AlgorithmResult) -> Cell:
    said = []
    if algorithm.starved:
        many, average = algorithm.mean("starved"), ", on average" if algorithm.seeds > 1 else ""
        said.append(f"{many:.3g} UE{'' if many == 1 else 's'} never merged{average}")
    if algorithm.diverged:
        said.append(f"diverged in {algorithm.diverged} of {algorithm.seeds} seeds")
    return [Span(algorithm.name), *(Span(text, "warn") for text in said)]


def _cells(algorithms: Sequence[AlgorithmResult], measure: Measure) -> list[Cell]:
    if measure.is_cost:
        return _costs(algorithms, measure)
    found = [each.estimates.get(measure.name, {}) for each in algorithms]
    means = [each["mean"] for each in found if each.get("mean") is not None]
    best = measure.best(means) if measure.best and means and len(algorithms) > 1 else None
    cells: list[Cell] = []
    for each in found:
        mean, low = each.get("mean"), each.get("low") if measure.best else None
        half = None if low is None else (each["high"] - low) / 2
        cells.append(estimate(mean, half, measure.form, measure.scale, best=mean is not None and mean == best))
    return cells


def _costs(algorithms: Sequence[AlgorithmResult], measure: Measure) -> list[Cell]:
    """Return medians over seeds, and the number of seeds at the target if some missed it.

    Only algorithms whose seeds all reached the target can be marked as best.
    """
    name, form = measure.name, measure.form
    everywhere = [each.median(name) for each in algorithms if each.reached == each.seeds]
    cells: list[Cell] = []
    for each in algorithms:
        median, found = each.median(name), each.finite(name)
        text = "never" if not each.reached else "–" if math.isinf(median) else f"{median * measure.scale:{form}}"
        is_best = each.reached == each.seeds and len(algorithms) > 1 and median == min(everywhere) < math.inf
        some = f" ({each.reached} of {each.seeds})" if 0 < each.reached < each.seeds else ""
        if measure.spread and not some and len(found) > 1:
            some = f" [{min(found) * measure.scale:{form}}, {max(found) * measure.scale:{form}}]"
        cells.append([Span(text, "best" if is_best else ""), Span(some, "half")])
    return cells


def fairness_line(run: RunResults) -> str:
    """Describe how personalised accuracy is spread over the UEs."""
    measures = fairness(run)
    texts = []
    for each in run.algorithms:
        found = [(each.estimates.get(one.name, {}).get("mean"), one) for one in measures]
        said = [f"{one.scale * mean:{one.form}}" for mean, one in found if mean is not None]
        texts += [f"{each.name} {' / '.join(said)}"] if said else []
    heads = " / ".join(one.head for one in measures)
    return f"{heads}, personal: {', '.join(texts)}." if texts else ""


def meaning(run: RunResults) -> str:
    """Describe how to read the numbers."""
    said = []
    if len(run.seeds) > 1:
        over = ", ± half of the 95 % interval." if run.has_intervals else f". {NO_INTERVAL}"
        said.append(f"Means over seeds{over}")
    if run.is_trained and run.target_accuracy is not None:
        said.append("To the target: medians.")
    if run.is_trained and len(run.algorithms) > 1:
        said.append("Bold is the best of a column.")
    return " ".join(said)


PAIRED = (
    "Behind the best (bold if the interval excludes 0): the difference in each seed from the algorithm that ends best. p: Student's paired test over the "
    "seeds, adjusted by Holm's method; small means that the difference is hardly chance."
)


def radio_line(radio: Json) -> str:
    """Describe the quality of the simulated links."""
    snr, carried = (
        f"{found['median']:.3g} ({found['low']:.3g} to {found['high']:.3g})"
        for found in (radio["snr_db"], radio["bits_per_s_hz"])
    )
    most = f" {radio['capped']:.0%} of them are at the limit of the modulation." if radio["capped"] else ""
    spread = "median (10th to 90th percentile) of UEs on equal parts of the band"
    with_noise = {"coupled": "SNR (without interference)", None: "SNR"}
    ratio = with_noise.get(radio.get("interference"), "SINR")  # a constant part of the noise, or that of a full load
    return f"Radio {radio['name']}: {ratio} {snr} dB, {carried} bit/s/Hz: {spread}.{most}"


def energy_line(run: RunResults) -> str:
    """Describe the energy per merged update."""
    found = {each.name: each.mean("joules_per_merge") for each in run.algorithms}
    costs = ", ".join(f"{name} {joules * 1000:,.3g}" for name, joules in found.items() if joules)
    return f"Energy of all UEs, mJ per merged update: {costs}." if costs else ""
