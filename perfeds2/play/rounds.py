"""Simulate the three cells that the page shows.

The clock is the one that every command uses. A slider needs an immediate answer, so the first answer has only a few
rounds. The whole answer follows and begins with the same rounds.
"""

import math
from dataclasses import replace

import numpy as np

from perfeds2.play.knobs import Answer, Keywords, State, hands_over, settings_at
from perfeds2.runs.table import OF_TIMELINE
from perfeds2.runs.trainer import facts_of
from perfeds2.spec.build import Algorithm, Stage, make_algorithms, make_timelines
from perfeds2.spec.fields import Spec
from perfeds2.spec.resolve import spec_from
from perfeds2.timeline.edges import edge_versions
from perfeds2.timeline.jobs import MERGED
from perfeds2.timeline.record import Timeline

TICKS = 20_000  # resolution of the window that is shown
FIRST, MOST = 16, 3_000  # rounds per cell in a first answer, and in a whole one
FRAMES = 60  # of moving UEs
GAP = 0.02  # share of the window; if it is left after the last round, the next round is simulated too


def play_cells(state: State, fixed: Keywords | None = None, *, whole: bool = True) -> Answer:
    """Simulate the three cells, and return what the page draws: UE positions in m, jobs, and summary numbers.

    Args:
        state: Value of every knob.
        fixed: Settings that are not knobs.
        whole: Whether to simulate up to ``MOST`` rounds per cell, instead of only ``FIRST``.
    """
    window_s = float(state["window_s"])
    spec = spec_from(**settings_at(state, window_s, fixed))
    stage = Stage.of(spec, spec.run.seeds[0])
    most, cells = MOST if whole else FIRST, list[Answer]()
    if hands_over(state):
        cells.append({"mode": "SYN", "sentence": "a round waits for all UEs of a cell, and UEs move to others"})
    for algorithm in make_algorithms(spec, stage):
        try:
            timeline = _played(spec, stage, algorithm, rounds=most, horizon_s=window_s)
        except ValueError as error:  # a policy that never serves the UEs a round waits for
            cells.append(_titles(algorithm) | {"sentence": f"{error}"})
            continue
        cells.append(_cell(spec, stage, algorithm, timeline, window_s, complete=timeline.rounds < most))
    return {"window_s": window_s, "ticks": TICKS, "cells": [without_nan(cell) for cell in cells]} | _map(
        stage, window_s
    )


def _map(stage: Stage, window_s: float) -> Answer:
    """Return the places of base stations and UEs in metres, and the base station of each UE.

    If UEs move, there is a frame of places and base stations for each of ``FRAMES`` equal parts of the window.
    """
    cell, cells = stage.cell, stage.cells
    moves = (cell if cells is None else cells.cells[0]).moves is not None
    frames: list[tuple[list[list[float]], list[int]]] = []
    for time_s in np.arange(FRAMES if moves else 1) * window_s / FRAMES:
        if cells is None:
            where = cell.at(time_s).where
            x_m, y_m, own = where.x_m, where.y_m, np.zeros(cell.ues, int)
        else:
            x_m, y_m, own = cells.places(time_s)
        frames.append((np.stack([x_m, y_m], axis=1).round(2).tolist(), own.tolist()))
    stations = [[0.0, 0.0]] if cells is None else np.stack([cells.x_m, cells.y_m], axis=1).round(2).tolist()
    places, cell_of = map(list, zip(*frames, strict=True))
    return {"stations_m": stations, "places_m": places, "cell_of": cell_of}


def _played(spec: Spec, stage: Stage, algorithm: Algorithm, *, rounds: int, horizon_s: float | None) -> Timeline:
    """Simulate an algorithm up to a number of rounds or a horizon, whichever comes first."""
    limited = spec.with_(run=spec.run.with_(rounds=rounds, horizon_s=horizon_s))
    (timeline,) = make_timelines(limited, replace(stage, timelines={}), [algorithm])
    return timeline


def _titles(algorithm: Algorithm) -> Answer:
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
) -> Answer:
    """Return one cell. If its last round closed well before the end of the window, the next is drawn too."""
    shown = timeline
    if complete and timeline.end_s < (1 - GAP) * window_s:
        shown = _played(spec, stage, algorithm, rounds=timeline.rounds + 1, horizon_s=None)
    facts = facts_of(spec, algorithm, timeline, spec.run.seeds[0], stage.cell)
    return _titles(algorithm) | {
        "complete": complete,
        "until": int(_ticks(np.array([shown.end_s]), window_s)[0]),
        "numbers": {name: facts[name] for name in (*OF_TIMELINE, "joules", "joules_per_merge")},
        "rounds": [_ticks(closed_s, window_s).tolist() for closed_s in _closed_s(timeline)],
        "jobs": _jobs(shown, window_s),
    }


def _closed_s(timeline: Timeline) -> list[np.ndarray]:
    """Return when each server's rounds closed."""
    if timeline.cloud is None:
        return [timeline.time_s]
    return [timeline.time_s[timeline.cloud.cell == edge] for edge in range(timeline.cloud.edges)]


def _jobs(timeline: Timeline, window_s: float) -> Answer:
    """Return every job that began within the window, as columns. Times are in ticks, clipped to the window."""
    jobs = timeline.jobs()
    rounds, _ = edge_versions(timeline)  # counted by the server that closed them
    merged = (jobs.outcome == MERGED) & (jobs.round >= 0)
    round_ = np.where(merged, np.append(rounds, -1)[jobs.round], -1)
    seen = jobs.start_s < window_s
    columns = {
        "ue": jobs.ue,
        "version": np.append(0, rounds + 1)[jobs.version],
        "start": _ticks(jobs.start_s, window_s),
        "begun": _ticks(jobs.begun_s, window_s),
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


def without_nan(answer: Answer) -> Answer:
    """Replace NaN and infinity by None, because JSON has neither."""
    made: Answer = {}
    for key, value in answer.items():
        lacks = isinstance(value, float) and not math.isfinite(value)
        made[key] = without_nan(value) if isinstance(value, dict) else None if lacks else value
    return made
