"""Arrays that the compiled loops write to: rounds, lost jobs and intermediate values."""

from typing import NamedTuple

import numpy as np

from perfeds2.timeline.fast.search import SEARCH_ROWS


class RoundBuffers(NamedTuple):
    """Output buffers for the rounds played and the jobs lost in them."""

    ues: np.ndarray
    staleness: np.ndarray
    arrival_s: np.ndarray
    time_s: np.ndarray
    model_s: np.ndarray
    lost_ue: np.ndarray
    lost_version: np.ndarray
    lost_round: np.ndarray
    lost_arrival_s: np.ndarray
    lost_count: np.ndarray
    lost_model_s: np.ndarray


class Scratch(NamedTuple):
    """Scratch arrays for one round, each with a value per followed UE of a server."""

    band: np.ndarray
    rate: np.ndarray
    arrival: np.ndarray
    eligible: np.ndarray
    spare: np.ndarray
    key: np.ndarray
    merged: np.ndarray
    order: np.ndarray
    lost: np.ndarray
    serve: np.ndarray
    call: np.ndarray  # the arguments of a call of NumPy


def new_buffers(rounds, quorum, lost_rows):
    """Return empty buffers for this many rounds and rows of lost jobs."""
    table, whole = (rounds, quorum), np.int64
    return RoundBuffers(
        *(np.empty(table, whole), np.empty(table, whole), np.empty(table), np.empty(rounds), np.empty(table)),
        *(np.empty(lost_rows, whole), np.empty(lost_rows, whole), np.empty(lost_rows, whole)),
        *(np.empty(lost_rows), np.empty(lost_rows, whole), np.empty(lost_rows)),
    )


def new_scratch(n):
    """Return scratch arrays for a server with at most ``n`` followed UEs."""
    values, whole, masks = np.empty((6, n)), np.empty((2, n), np.int64), np.zeros((2, n), np.bool_)
    return Scratch(*values, *whole, *masks, call=np.empty(7, np.int64))


def new_search(n):
    """Return scratch arrays for a search for the bandwidths of at most ``n`` UEs."""
    return np.empty((SEARCH_ROWS, n))
