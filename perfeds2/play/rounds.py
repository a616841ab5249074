"""Simulate the three cells that the page shows.

The clock is the one that every command uses. A slider needs an immediate answer, so the first answer has only a few
rounds. The whole answer follows and begins with the same rounds.
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

TICKS = 20_000  # resolution of the window that is shown
FIRST, MOST = 16, 3_000  # rounds per cell in a first answer, and in a whole one
GAP = 0.02  # share of the window; if it is left after the last round, the next round is simulated too

Table = dict[str, Any]


def play_cells(state: State, fixed: Mapping[str, Any] | None = None, *, whole: bool = True) -> Table:
    """Simulate the three cells, and return what the page draws: UE positions in m, jobs, and summary numbers.

    Args:
        state: Value of every knob.
        fixed: Settings that are not knobs.
        whole: Whether to simulate up to ``MOST`` rounds per cell, instead of only ``FIRST``.
    """
    window_s = float(state["window_s"])
    spec = spec_from(**settings_at(state, window_s, fixed))
    stage = Stage.of(spec, spec.run.seeds[0])
    most, cells = MOST if whole else FIRST, list[Table]()
    for algorithm in make_algorithms(spec, stage):
        try:
            timeline = _played(spec, stage, algorithm, rounds=most, horizon_s=window_s)
        except ValueError as error:  # a policy that never serves the UEs a round waits for
            cells.append(_titles(algorithm) | {"sentence": f"{error}"})
            continue
        cells.append(_cell(spec, stage, algorithm, timeline, window_s, complete=timeline.rounds < most))
    where = stage.cell.where
    places = np.stack([where.x_m, where.y_m], axis=1).round(2).tolist()
    return {"window_s": window_s, "ticks": TICKS, "places_m": places, "cells": [without_nan(cell) for cell in cells]}


def _played(spec: Spec, stage: Stage, algorithm: Algorithm, *, rounds: int, horizon_s: float | None) -> Timeline:
    """Simulate an algorithm up to a number of rounds or a horizon, whichever comes first."""
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
    """Return one cell. If its last round closed well before the end of the window, the next is drawn too."""
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
    """Return the numbers that ``perfeds2 simulate`` writes into its summary."""
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
    """Return every job that began within the window, as columns. Times are in ticks, clipped to the window."""
    jobs = timeline.jobs()
    round_ = np.full(jobs.ue.size, -1)
    round_[: timeline.ues.size] = np.repeat(np.arange(timeline.rounds), timeline.quorum)  # merged jobs come first
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
    """Convert seconds to ticks of the window; later times become one tick beyond its end."""
    return np.minimum(np.rint(seconds / window_s * TICKS), TICKS + 1).astype(int)


def without_nan(value: Any) -> Any:
    """Replace NaN and infinity by None, because JSON has neither."""
    if isinstance(value, dict):
        return {key: without_nan(inner) for key, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
