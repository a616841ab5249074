"""Check the columns of a timeline, which may come from a file."""

from collections.abc import Mapping
from itertools import pairwise

import numpy as np

from perfeds2.timeline.jobs import MERGED, OPEN, PAUSED, Jobs


def check_merges(columns: Mapping[str, np.ndarray]) -> None:
    """Raise ValueError unless the merges of a timeline have the right shapes and possible values."""
    ues, time_s, compute_s = columns["ues"], columns["time_s"], columns["compute_s"]
    k, n = time_s.size, compute_s.size
    if ues.ndim != 2 or ues.shape[0] != k or time_s.ndim != 1 or (k and not ues.size):
        raise ValueError(f"timeline has {ues.shape} merges for {time_s.shape} round times; expected (K, A) and (K,).")
    allowed = {"ues": (0, n - 1), "staleness": (0, max(k - 1, 0))}
    for name, values in columns.items():
        shape = (n,) if name == "compute_s" else ues.shape
        if name != "time_s" and values.shape != shape:
            raise ValueError(f"timeline field {name} has shape {values.shape}; expected {shape}.")
        if name in allowed:
            check_whole(f"field {name}", values, *allowed[name])
        elif not np.issubdtype(values.dtype, np.floating):
            raise ValueError(f"timeline field {name} must hold seconds, got {values.dtype}.")
    if not (np.isfinite(compute_s).all() and (compute_s >= 0).all()):
        raise ValueError("timeline field compute_s must be finite and at least 0.")
    if (columns["staleness"] > np.arange(k)[:, None]).any():
        raise ValueError("timeline has an update from a model that did not exist: staleness exceeds the round number.")
    if not (np.isfinite(time_s).all() and (np.diff(time_s, prepend=0.0) >= 0).all()):
        raise ValueError("timeline round times must be finite and never run backwards.")
    if not np.isfinite(columns["arrival_s"]).all():
        raise ValueError("timeline arrival times must be finite numbers.")


def check_log(log: Jobs, ues: int, rounds: int) -> None:
    """Raise ValueError unless the log fits this many UEs and rounds."""
    if {values.shape for values in vars(log).values()} != {(log.ue.size,)}:
        raise ValueError("timeline log must have columns of one length.")
    check_whole("log ue", log.ue, 0, ues - 1)
    check_whole("log count", log.count, 1, ues)
    check_whole("log version", log.version, 0, rounds)
    check_whole("log round", log.round, 0, rounds)
    check_whole("log outcome", log.outcome, MERGED, PAUSED)
    if (log.ue + log.count > ues).any():
        raise ValueError(f"timeline log has a job of a UE beyond its {ues}.")
    if ((log.version > log.round) & (log.outcome != OPEN)).any():
        raise ValueError("timeline log has a job from a model that did not exist.")
    if log.arrived.dtype != bool:
        raise ValueError(f"timeline log must hold true or false in arrived, got {log.arrived.dtype}.")
    if not ((log.model_s >= 0) & (log.model_s < np.inf)).all():
        raise ValueError("timeline log must hold waits for models that are finite and at least 0.")
    times = 0.0, log.start_s, log.sending_s, log.arrival_s, log.end_s
    if not all(np.all(later >= earlier) for earlier, later in pairwise(times)) or np.isinf(log.end_s).any():
        raise ValueError("timeline log must hold finite seconds that do not run backwards.")


def check_whole(what: str, values: np.ndarray, low: int, high: int) -> None:
    whole = np.issubdtype(values.dtype, np.signedinteger)
    if not whole or (values.size and not low <= values.min() <= values.max() <= high):
        raise ValueError(f"timeline {what} must hold whole numbers from {low} to {high}.")
