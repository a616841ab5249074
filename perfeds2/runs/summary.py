"""What came out, in one row per algorithm?"""

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from perfeds2 import __version__
from perfeds2.learning.metrics import METRICS
from perfeds2.network.cell import Cell
from perfeds2.network.quality import beyond_modulation, link_quality
from perfeds2.runs.statistics import censored_median, statistic, time_to_target
from perfeds2.spec.fields import Spec
from perfeds2.timeline.budget import too_few
from perfeds2.timeline.energy import energy_of
from perfeds2.timeline.record import Timeline

if TYPE_CHECKING:
    from perfeds2.learning.train import EvaluationPoint
    from perfeds2.spec.build import Algorithm

Row = dict[str, Any]  # one line of metrics.csv
COSTS = ("joules", "merged_bits")  # what had been spent when a model was evaluated
SEEDS_OF_RADIO = 5  # whose cells are looked at


def summarise(
    spec: Spec,
    command: str,
    algorithms: "Sequence[Algorithm]",
    timelines: dict[tuple[str, int], Timeline],
    rows: dict[tuple[str, int], list[Row]] | None,
) -> dict[str, Any]:
    """Everything the table and the report's table show. ``rows`` is None where nothing was trained."""
    from perfeds2.spec.build import metric_of

    trained = rows is not None
    return {
        "perfeds2": __version__,
        "command": command,
        "task": spec.task.name.label,
        "ues": spec.cell.ues,
        "horizon_s": spec.run.horizon_s,
        "rounds": spec.run.rounds,
        "seeds": list(spec.run.seeds),
        "target_accuracy": spec.run.target_accuracy if trained else None,
        "metric": metric_of(spec) if trained else None,
        "notes": _notes(spec, algorithms, timelines, rows),
        "radio": _radio_part(spec) if command != "federate" else None,
        "algorithms": [
            _timeline_part(algorithm, [timelines[algorithm.name, seed] for seed in spec.run.seeds])
            | (_energy_part(spec, algorithm, timelines) if command != "federate" else {})
            | (
                _learning_part(spec, [rows[algorithm.name, seed] for seed in spec.run.seeds])
                if rows is not None
                else {}
            )
            for algorithm in algorithms
        ],
    }


def _radio_part(spec: Spec) -> dict[str, Any] | None:
    """How good the simulated links are, over a few seeds, and a warning where no modem would carry so much."""
    from perfeds2.spec.build import make_cell

    name = radio_name(spec)
    quality = link_quality(make_cell(spec, seed) for seed in spec.run.seeds[:SEEDS_OF_RADIO])
    if quality is None:  # every UE has an uplink of its own
        return None
    return {"name": name, **asdict(quality), "warning": beyond_modulation(name, quality)}


def radio_name(spec: Spec) -> str:
    """Of the radio, or of a cell that brings its own."""
    named = spec.radio.name or spec.cell.kind
    return "paper" if named is None else named.label


def _timeline_part(algorithm: "Algorithm", timelines: list[Timeline]) -> dict[str, Any]:
    protocol = algorithm.protocol
    return {
        "algorithm": algorithm.name,
        "objective": algorithm.objective,
        "mode": algorithm.mode,
        "quorum": protocol.quorum,
        "max_staleness": protocol.max_staleness,
        "stale": protocol.stale,
        "rounds": statistic([timeline.rounds for timeline in timelines]),
        "merges": statistic([timeline.ues.size for timeline in timelines]),
        "staleness_mean": statistic([float(t.staleness.mean()) if t.rounds else 0.0 for t in timelines]),
        "staleness_max": statistic([int(t.staleness.max(initial=0)) for t in timelines]),
        "seconds_per_round": statistic([t.end_s / t.rounds if t.rounds else None for t in timelines]),
        "waiting_share": statistic([timeline.waiting_share for timeline in timelines]),
        "wasted_share": statistic([timeline.wasted_share for timeline in timelines]),
        "starved": statistic([timeline.starved.size for timeline in timelines]),
    }


def _energy_part(spec: Spec, algorithm: "Algorithm", timelines: dict[tuple[str, int], Timeline]) -> dict[str, Any]:
    """Joules of all UEs together, and for each merge."""
    from perfeds2.spec.build import make_cell, upload_bits
    from perfeds2.spec.radio import make_energy

    totals: list[float] = []
    shares: list[float | None] = []
    bits = upload_bits(spec, algorithm.learner.objective)
    for seed in spec.run.seeds:
        timeline = timelines[algorithm.name, seed]
        energy = energy_of(timeline, make_cell(spec, seed), make_energy(spec), bits, np.zeros(0))
        totals.append(energy.total_j)
        shares.append(energy.total_j / timeline.ues.size if timeline.ues.size else None)
    return {"joules": statistic(totals), "joules_per_merge": statistic(shares)}


def _ended_by_budget(spec: Spec, algorithm: "Algorithm", timelines: dict[tuple[str, int], Timeline]) -> str | None:
    """Where a run ended because too few UEs had energy left: a sentence."""
    from perfeds2.spec.fleets import limits_energy

    ends = [timelines[algorithm.name, seed] for seed in spec.run.seeds]
    ends = [each for each in ends if each.log is None]  # else who has no job may only be away
    ends = [each for each in ends if too_few(each.open_version, each.rounds, algorithm.protocol)]
    if not limits_energy(spec) or not ends:
        return None
    first, quorum = min(ends, key=lambda each: each.end_s), algorithm.protocol.quorum
    left = "no UE was" if quorum == 1 else f"fewer than {quorum} UEs were"
    return (
        f"{algorithm.name}: after {first.end_s:.3g} s and {first.rounds:,} rounds {left} left to close "
        f"one, the others having spent their energy budget, so it ended there"
        f"{'.' if len(spec.run.seeds) == 1 else f' (in {len(ends)} of {len(spec.run.seeds)} seeds, the first of them).'}"
    )


def costs_at(
    spec: Spec, cell: Cell, algorithm: "Algorithm", timeline: Timeline, points: "Sequence[EvaluationPoint]"
) -> list[Row]:
    """What had been spent when a model was evaluated: joules of all UEs, and the bits of the merged uploads."""
    from perfeds2.spec.build import upload_bits
    from perfeds2.spec.radio import make_energy

    bits = upload_bits(spec, algorithm.learner.objective)
    times_s = np.array([point.time_s for point in points], float)
    by_time_j = energy_of(timeline, cell, make_energy(spec), bits, times_s).by_time_j
    return [
        {"joules": float(joules), "merged_bits": float(point.round * timeline.quorum * bits)}
        for point, joules in zip(points, by_time_j, strict=True)
    ]


def _learning_part(spec: Spec, rows: list[list[Row]]) -> dict[str, Any]:
    times, joules = (
        [time_to_target(seed_rows, spec.run.target_accuracy, what) for seed_rows in rows]
        for what in ("time_s", "joules")
    )
    reached = sum(time is not None for time in times)
    diverged = sum(not np.isfinite(seed_rows[-1]["train_loss"]) for seed_rows in rows)
    return {
        "time_to_target_s": {"values": times, "reached": reached, "median": censored_median(times)},
        "joules_to_target": {"values": joules, "median": censored_median(joules)},
        **{name: statistic([seed_rows[-1][name] for seed_rows in rows]) for name in METRICS},
        "diverged": diverged,
    }


def has_collapsed(rows: Sequence[Row]) -> bool:
    """Whether the model as it is lost over half of its accuracy again, while the personalised one is better than it ever was.

    The rows are one seed's. A diverged model has no accuracy, and has not collapsed.
    """
    best = max(row["test_accuracy"] for row in rows)
    return rows[-1]["test_accuracy"] < best / 2 and rows[-1]["test_accuracy_personal"] >= best


LOST = 0.5  # of what it had learned


def has_diverged(rows: Sequence[Row]) -> bool:
    """Whether training came apart: no loss is a number any more, or both end above where they began, or half way back there.

    The rows are one seed's. Units that die of too long a step leave a loss that is a number, and as large as at first.
    """
    return all(_came_apart([row[name] for row in rows]) for name in ("train_loss", "train_loss_personal"))


def _came_apart(losses: Sequence[float]) -> bool:
    first, last, least = float(losses[0]), float(losses[-1]), float(min(losses))
    if not math.isfinite(last):
        return True
    learned = first - least
    rose, fell_back = last > 1.1 * first, learned > 0.1 * first and last - least > LOST * learned
    return first > 0 and (rose or fell_back)  # of an own loss below 0 nobody knows what is much


def how_it_is_learned(spec: Spec) -> str:
    """Of a file: by what, and who has what, as the flags would say it."""
    task = spec.task
    split = f"--labels-per-ue {task.labels_per_ue}" if task.split is None else f"--split {task.split}"
    return f"{split} --loss {task.loss} --metric {task.metric}"


def _notes(
    spec: Spec,
    algorithms: "Sequence[Algorithm]",
    timelines: dict[tuple[str, int], Timeline],
    rows: dict[tuple[str, int], list[Row]] | None,
) -> list[str]:
    from perfeds2.learning.objectives import Personal
    from perfeds2.spec.build import recipe_of

    notes, recipe = list[str](), recipe_of(spec)
    if recipe is not None and recipe.said:
        notes.append(f"{spec.task.name}: {recipe.said}; {how_it_is_learned(spec)}.")
    if rows is not None and any(a.name.startswith("FedProx") and a.learner.local_steps == 1 for a in algorithms):
        notes.append("With one local step FedProx's proximal term is zero, so it equals FedAvg; see --local-steps.")
    auto = [each.name for each in algorithms if spec.learning_of(each.name).alpha == "auto"]
    if rows is not None and auto:
        from perfeds2.spec.build import alpha_of

        notes.append(str(alpha_of(spec, auto[0]).note))
    for algorithm in algorithms:
        name = algorithm.name
        if any(timelines[name, seed].rounds == 0 for seed in spec.run.seeds):
            notes.append(f"{name}: no round closed in time in at least one seed; try a longer --horizon-s.")
            continue
        if (ended := _ended_by_budget(spec, algorithm, timelines)) is not None:
            notes.append(ended)
        starved = {int(ue) for seed in spec.run.seeds for ue in timelines[name, seed].starved}
        if starved:
            bounded = algorithm.protocol.max_staleness is not None
            notes.append(
                f"{name}: UE{'s' if len(starved) > 1 else ''} {', '.join(map(str, sorted(starved)[:5]))}"
                f"{' …' if len(starved) > 5 else ''} never got an update in (in at least one seed); try "
                f"{'--stale wait, a larger --max-staleness or ' if bounded else ''}a longer horizon."
            )
        diverged = sum(has_diverged(rows[name, seed]) for seed in spec.run.seeds) if rows is not None else 0
        if diverged:
            notes.append(
                f"{name}: training diverged in {diverged} of {len(spec.run.seeds)} seeds: the loss ends above where it began, "
                f"or most of the way back there. Its steps are too long; try a third, --beta {name}={algorithm.learner.beta / 3:.2g}."
            )
        by_share = rows if str(spec.task.metric or "accuracy") == "accuracy" else None  # else halves say nothing
        if algorithm.objective in ("FedAvg", "FedProx") or isinstance(algorithm.learner.objective, Personal):
            by_share = None  # they are not trained for a personal step
        collapsed = sum(has_collapsed(by_share[name, seed]) for seed in spec.run.seeds) if by_share is not None else 0
        if collapsed:
            notes.append(
                f"{name}: in {collapsed} of {len(spec.run.seeds)} seeds the global model lost more than half of its accuracy "
                f"again, while the personalised ones are fine: it is trained only for what comes after the personal step. See "
                f"docs/personalisation.md; a smaller --alpha keeps both."
            )
    return notes
