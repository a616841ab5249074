"""Turn results into tidy rows, and into summary rows with intervals over seeds."""

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from perfeds2 import __version__
from perfeds2.files import Json, write_atomically
from perfeds2.learning.metrics import METRICS, NEW_UES_METRICS, recorded
from perfeds2.network.quality import beyond_modulation, link_quality
from perfeds2.network.sites import Sites
from perfeds2.runs.costs import COSTS, EPSILON, SPENT, TIME
from perfeds2.runs.notes import OfSeeds, Rows, notes_of
from perfeds2.runs.statistics import (
    INTERVAL_SEEDS,
    censored_median,
    holm,
    jain,
    paired_p,
    statistic,
    time_to_target,
    worst_decile,
)
from perfeds2.runs.store import Facts, Result, Row
from perfeds2.spec.fields import Spec

SAME_IN_SEEDS = ("algorithm", "objective", "mode", "quorum", "max_staleness", "stale")
OF_TIMELINE = (
    *("rounds", "merges", "staleness_mean", "staleness_max", "seconds_per_round", "waiting_share", "wasted_share"),
    "starved",
)
OF_PRIVACY = ("noise", "noise_to_clip", "epsilon_worst", "epsilon_median")  # with noise
OF_CLOUD = ("cloud_rounds", "backhaul_bits", "end_to_end_staleness_mean", "end_to_end_staleness_max")  # of edges
MEANS = ("rounds", "merges", "staleness_mean", "seconds_per_round", "waiting_share", "wasted_share")
MOST_UES_ON_MAP = 1_000
SEEDS_OF_RADIO = 5  # whose cells are examined, at most


# ---- summary of a run


def summarise(
    spec: Spec,
    command: str,
    facts: Mapping[tuple[str, int], Facts],
    rows: Rows | None,
    ue_rows: Rows | None = None,
    *,
    radio: bool = True,
) -> Json:
    """Return the content of summary.json: a row per algorithm, with statistics over seeds.

    Args:
        spec: The settings that were run.
        command: The command that ran them.
        facts: Facts by (algorithm, seed), in the order of the algorithms.
        rows: Evaluations by (algorithm, seed); None if nothing was trained.
        ue_rows: Metrics of the UEs at the end by (algorithm, seed); None if nothing was trained.
        radio: Include the quality of the simulated links; False for a federation, which has real ones.
    """
    from perfeds2.spec.tasks import metric_of

    trained, seeds = rows is not None, spec.run.seeds
    names = list(dict.fromkeys(name for name, _ in facts))
    of_seeds: OfSeeds = {name: [facts[name, seed] for seed in seeds] for name in names}
    algorithms = [
        _timeline_part(own)
        | ({} if rows is None else learning_part(spec.run.target_accuracy, [rows[name, seed] for seed in seeds]))
        | ({} if ue_rows is None else over_ues([ue_rows[name, seed] for seed in seeds]))
        for name, own in of_seeds.items()
    ]
    return {
        "perfeds2": __version__,
        "command": command,
        "task": spec.task.name.label,
        "ues": spec.cell.ues,
        "horizon_s": spec.run.horizon_s,
        "rounds": spec.run.rounds,
        "seeds": list(seeds),
        "target_accuracy": spec.run.target_accuracy if trained else None,
        "metric": metric_of(spec) if trained else None,
        "notes": notes_of(spec, of_seeds, rows, ue_rows),
        "radio": _radio_part(spec) if radio else None,
        "cells": _cells_part(spec) if radio else None,
        "algorithms": [row | behind for row, behind in zip(algorithms, behind_best(algorithms), strict=True)],
    }


def _radio_part(spec: Spec) -> Json | None:
    """Return the quality of the simulated links over a few seeds, with a warning if no modem reaches such rates."""
    from perfeds2.spec.cells import make_cell

    name = radio_name(spec)
    quality = link_quality(make_cell(spec, seed) for seed in spec.run.seeds[:SEEDS_OF_RADIO])
    if quality is None:  # no UE uses the simulated radio
        return None
    return {
        "name": name,
        **asdict(quality),
        "warning": beyond_modulation(name, quality),
        "interference": spec.cells.interference,
    }


def _cells_part(spec: Spec) -> Json | None:
    """Return a map of many cells: base stations, and the places, cells and SINR of some UEs of the first seed."""
    from perfeds2.runs.phones import links_of
    from perfeds2.spec.cells import make_network, upload_bits

    cells = make_network(spec, spec.run.seeds[0])
    if cells is None:
        return None
    ues = np.unique(np.linspace(0, cells.population - 1, MOST_UES_ON_MAP).round().astype(int))
    links = {name: np.array(column)[ues] for name, column in links_of(spec, cells.whole, cells).items()}
    stations: Json = {"x_m": cells.x_m.round(1).tolist(), "y_m": cells.y_m.round(1).tolist()}
    stations |= {"radius_m": spec.cell.radius_m, "upload_bits": upload_bits(spec)}
    if spec.cells.frequency_reuse == 3:
        grid = Sites.grid(cells.x_m.size, spec.cell.radius_m, spec.cells.sectors or 1)
        stations["band"] = [] if grid.colour is None else grid.colour.tolist()
    places: Json = {f"ue_{axis}": links[axis].round(1).tolist() for axis in ("x_m", "y_m")}
    places["ue_cell"] = links["cell"].tolist()
    places["ue_sinr_db"] = [None if np.isnan(each) else round(float(each), 1) for each in links["snr_db"]]
    handovers = None if spec.run.horizon_s is None else cells.handovers(spec.run.horizon_s)
    return stations | {"ue": ues.tolist(), **places, "handovers": handovers}


def radio_name(spec: Spec) -> str:
    """Return the name of the radio, or of a cell that brings its own."""
    named = spec.radio.name or spec.cell.kind
    return "paper" if named is None else named.label


def _timeline_part(of_seeds: Sequence[Facts]) -> Json:
    more = [name for name in ("joules", "joules_per_merge", *OF_PRIVACY, *OF_CLOUD) if name in of_seeds[0]]
    same = {name: of_seeds[0][name] for name in SAME_IN_SEEDS}
    return same | {name: statistic([each[name] for each in of_seeds]) for name in (*OF_TIMELINE, *more)}


def learning_part(target: float, of_seeds: Sequence[Sequence[Row]]) -> Json:
    """Return the costs of a target and the final metrics, from each seed's evaluations."""
    return {
        **{
            name: {"values": spent, "reached": len(spent) - spent.count(None), "median": censored_median(spent)}
            for name, spent in _costs(target, of_seeds).items()
        },
        **{name: statistic([rows[-1][name] for rows in of_seeds]) for name in recorded(of_seeds[0][-1])},
        "diverged": sum(not math.isfinite(rows[-1]["train_loss"]) for rows in of_seeds),
    }


def over_ues(of_seeds: Sequence[Sequence[Row]]) -> Json:
    """Return how the final metrics are spread over the UEs, and their means weighted by the UEs' samples."""
    score = "test_accuracy_personal"
    of_ues = [[row[score] for row in rows] for rows in of_seeds]
    found = {
        name: [of(values) if np.isfinite(values).all() else math.nan for values in of_ues]
        for name, of in (("worst_decile", worst_decile), ("jain", jain))
    }
    for name in ("test_accuracy", score):
        found[f"{name}_by_samples"] = [_by_samples(rows, name) for rows in of_seeds]
    return {name: statistic(values) for name, values in found.items()}


def _by_samples(rows: Sequence[Row], name: str) -> float:
    """Return a mean over UEs, weighted by their training samples; the plain mean if these are not known."""
    samples = np.array([row["samples"] for row in rows], float)
    return float(np.average([row[name] for row in rows], weights=samples if samples.any() else None))


def _costs(target: float, of_seeds: Sequence[Sequence[Row]]) -> dict[str, list[float | None]]:
    """Return what reaching the target cost in each seed, by name; with noise, also the worst UE's ε."""
    has_noise = not math.isnan(of_seeds[0][-1].get("epsilon", math.nan))  # in a table, NaN stands for none
    return {
        cost.to_target: [time_to_target(rows, target, cost.column) for rows in of_seeds]
        for cost in COSTS.values()
        if has_noise or cost is not EPSILON
    }


def behind_best(algorithms: Sequence[Row]) -> list[Row]:
    """Return how far each algorithm ends below the best, seed by seed, with the p-value of a paired test.

    The best has the highest mean of the final personalised test accuracy. The p-values of Student's paired t-test are
    adjusted by Holm's method; fewer than three seeds give none. Algorithms with a diverged seed are left out.
    """
    score = "test_accuracy_personal"
    finals = {row["algorithm"]: row[score] for row in algorithms if score in row and row[score]["mean"] is not None}
    if len(finals) < 2:
        return [{} for _ in algorithms]
    best = max(finals, key=lambda name: finals[name]["mean"])
    behind = {
        name: statistic([own - top for own, top in zip(final["values"], finals[best]["values"], strict=True)])
        for name, final in finals.items()
        if name != best
    }
    tests: dict[str, float] = {}
    if len(finals[best]["values"]) >= INTERVAL_SEEDS:
        p_values = holm([paired_p(found["values"]) for found in behind.values()])
        tests = dict(zip(behind, p_values, strict=True))
    names = [row["algorithm"] for row in algorithms]
    return [{"behind_best": behind[name], "p_behind_best": tests.get(name)} if name in behind else {} for name in names]


# ---- summary of a point of a sweep


def summarise_point(spec: Spec, results: Sequence[Result]) -> Json:
    """Return a row about one algorithm in one setting, with 95 % intervals over seeds.

    It has the final metrics, and the time, rounds, joules and bits until the target was reached.
    A seed that never reaches the target counts as later than all others in the median; then there is no mean.
    """
    from perfeds2.spec.tasks import metric_of

    estimates = learning_part(spec.run.target_accuracy, [result.rows for result in results])
    row: Json = {
        "seeds": len(results),
        "diverged": estimates.pop("diverged"),
        **({} if spec.task.metric is None else {"metric": metric_of(spec)}),
        "target_accuracy": spec.run.target_accuracy,
        "censored": estimates[TIME]["values"].count(None),  # seeds that never reached the target
    }
    for name, estimate in estimates.items():
        row |= {f"{name}_median": estimate["median"]} if "median" in estimate else {}
        row |= {f"{name}_{part}": (estimate | statistic(estimate["values"]))[part] for part in ("mean", "low", "high")}
    means = {fact: statistic([each.facts[fact] for each in results])["mean"] for fact in MEANS}
    return row | {f"{fact.removesuffix('_mean')}_mean": mean for fact, mean in means.items()}


# ---- files


def evaluation_heads(specs: Sequence[Spec]) -> list[str]:
    """Return the columns of evaluations, without those that say which training they are of."""
    from perfeds2.spec.privacy import has_noise  # imports JAX

    new = NEW_UES_METRICS if any(spec.task.new_ues for spec in specs) else ()
    private = any(has_noise(spec.privacy) for spec in specs)
    return ["round", "time_s", *METRICS, *new, *SPENT, *([EPSILON.column] if private else [])]


def write_csv(path: Path, heads: Iterable[str], rows: Iterable[Row]) -> None:
    """Write a table row by row, with floats in the shortest form that round-trips.

    Keys that are not in ``heads`` are ignored.
    """
    with write_atomically(path) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
        table = csv.DictWriter(text, list(heads), lineterminator="\n", extrasaction="ignore")
        table.writeheader()
        table.writerows(rows)
        text.detach()
