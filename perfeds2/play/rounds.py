"""What happens in the three cells while the page shows them?

The clock is the one every command uses. A slider needs its answer at once, so the first answer plays a few rounds. They are the
beginning of the whole answer, which follows.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from perfeds2.play.knobs import State, settings_at
from perfeds2.spec.build import Algorithm, Stage, make_algorithms, make_timelines
from perfeds2.spec.cells import make_energy, upload_bits
from perfeds2.spec.fields import Spec
from perfeds2.spec.resolve import spec_from
from perfeds2.timeline.energy import energy_of
from perfeds2.timeline.record import Timeline

TICKS = 20_000  # what is shown is drawn with this resolution
FIRST, MOST = 16, 3_000  # rounds of a cell in a first answer, and in a whole one
GAP = 0.02  # of what is shown; where the last round closed sooner, the next one is played too

Table = dict[str, Any]


def play_cells(state: State, fixed: Mapping[str, Any] | None = None, *, whole: bool = True) -> Table:
    """The three cells as the page draws them: where UEs are, their jobs, and what it comes to."""
    window_s = float(state["window_s"])
    spec = spec_from(**settings_at(state, window_s, fixed))
    stage = Stage.of(spec, spec.run.seeds[0])
    most, cells = MOST if whole else FIRST, list[Table]()
    for algorithm in make_algorithms(spec, stage):
        try:
            timeline = _played(spec, stage, algorithm, rounds=most, horizon_s=window_s)
        except ValueError as error:  # a policy that never serves those a round waits for
            cells.append(_titles(algorithm) | {"sentence": f"{error}"})
            continue
        cells.append(_cell(spec, stage, algorithm, timeline, window_s, complete=timeline.rounds < most))
    where = stage.cell.where
    places = np.stack([where.x_m, where.y_m], axis=1).round(2).tolist()
    return {"window_s": window_s, "ticks": TICKS, "places_m": places, "cells": [without_nan(cell) for cell in cells]}


def _played(spec: Spec, stage: Stage, algorithm: Algorithm, *, rounds: int, horizon_s: float | None) -> Timeline:
    """An algorithm's rounds until both limits, or one of them."""
    limited = spec.model_copy(update={"run": spec.run.model_copy(update={"rounds": rounds, "horizon_s": horizon_s})})
    (timeline,) = make_timelines(limited, replace(stage, timelines={}), [algorithm])
    return timeline


def _titles(algorithm: Algorithm) -> Table:
    protocol = algorithm.protocol
    return {
        "name": algorithm.name,
        "mode": algorithm.mode,
        "quorum": protocol.quorum,
        "max_staleness": protocol.max_staleness,
        "stale": protocol.stale,
    }


def _cell(
    spec: Spec, stage: Stage, algorithm: Algorithm, timeline: Timeline, window_s: float, *, complete: bool
) -> Table:
    """One cell. Where its last round closed well before the end of what is shown, the picture has the one after it too."""
    shown = timeline
    if complete and timeline.end_s < (1 - GAP) * window_s:
        shown = _played(spec, stage, algorithm, rounds=timeline.rounds + 1, horizon_s=None)
    return _titles(algorithm) | {
        "complete": complete,
        "until": int(_ticks(np.array([shown.end_s]), window_s)[0]),
        "numbers": numbers(spec, stage, algorithm, timeline),
        "rounds": _ticks(timeline.time_s, window_s).tolist(),
        "jobs": _jobs(shown, window_s),
    }


def numbers(spec: Spec, stage: Stage, algorithm: Algorithm, timeline: Timeline) -> Table:
    """What the rounds come to: the numbers that ``perfeds2 simulate`` writes into its summary."""
    bits = upload_bits(spec, algorithm.learner.objective)
    joules = energy_of(timeline, stage.cell, make_energy(spec), bits, np.zeros(0)).total_j
    rounds, merges = timeline.rounds, timeline.ues.size
    return {
        "rounds": rounds,
        "merges": merges,
        "seconds_per_round": timeline.end_s / rounds if rounds else None,
        "waiting_share": timeline.waiting_share,
        "wasted_share": timeline.wasted_share,
        "staleness_mean": float(timeline.staleness.mean()) if rounds else 0.0,
        "staleness_max": int(timeline.staleness.max(initial=0)),
        "starved": int(timeline.starved.size),
        "joules": joules,
        "joules_per_merge": joules / merges if merges else None,
    }


def _jobs(timeline: Timeline, window_s: float) -> Table:
    """Every job that began in what is shown, as columns; seconds in ticks, cut at its end."""
    jobs = timeline.jobs()
    round_ = np.full(jobs.ue.size, -1)
    round_[: timeline.ues.size] = np.repeat(np.arange(timeline.rounds), timeline.quorum)  # of the merged ones
    seen = jobs.start_s < window_s
    columns = {
        "ue": jobs.ue,
        "version": jobs.version,
        "start": _ticks(jobs.start_s, window_s),
        "sending": _ticks(jobs.sending_s, window_s),
        "arrival": _ticks(jobs.arrival_s, window_s),
        "end": _ticks(jobs.end_s, window_s),
        "outcome": jobs.outcome,
        "round": round_,
    }
    return {name: values[seen].tolist() for name, values in columns.items()}


def _ticks(seconds: np.ndarray, window_s: float) -> np.ndarray:
    """Seconds in ticks of what is shown; what is later is one tick beyond it."""
    return np.minimum(np.rint(seconds / window_s * TICKS), TICKS + 1).astype(int)


def without_nan(value: Any) -> Any:
    """JSON has no infinity: nothing stands for it."""
    if isinstance(value, dict):
        return {key: without_nan(inner) for key, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
