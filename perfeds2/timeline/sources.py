"""Define what happens between the closings of rounds, each as a source of events.

A source says when it next acts, and acts. Between two events, gains and bandwidths are constant or follow a trace. A new
kind of event is one more class.
"""

import math
from dataclasses import replace
from typing import Protocol

import numpy as np

from perfeds2.network.link import PerUe
from perfeds2.timeline.jobs import LOST, PAUSED
from perfeds2.timeline.protocol import leave
from perfeds2.timeline.state import ClockState

Touched = set[int]  # stations whose band is shared again


class EventSource(Protocol):
    def next_s(self, state: ClockState) -> float:
        """Return when it next acts, after the state's time; infinite for never."""
        ...

    def fire(self, state: ClockState) -> Touched:
        """Change the state at its time."""
        ...


class FadingChanges:
    """The fading is redrawn within rounds."""

    def next_s(self, state: ClockState) -> float:
        return min(station.conditions.cell.channel.changes_s(state.time_s) for station in state.stations)

    def fire(self, state: ClockState) -> Touched:
        for station in state.stations:
            station.signal_hz = station.conditions.cell.channel.signal_at(station.server.round, state.time_s)
        return set()


class PresenceChanges:
    """UEs leave the only cell and return. An absent UE keeps its job, which rests, or loses it."""

    def next_s(self, state: ClockState) -> float:
        presence = state.stations[0].conditions.presence
        return math.inf if presence is None else presence.changes_s(state.time_s)

    def fire(self, state: ClockState) -> Touched:
        (station,) = state.stations
        presence, before, busy = station.conditions.presence, station.present, station.busy
        assert presence is not None
        assert before is not None
        assert station.jobs is not None
        present = presence.here(state.time_s)
        if np.array_equal(before, present):
            return set()
        left, returned = np.flatnonzero(before & ~present & busy), np.flatnonzero(~before & present & busy)
        station.interrupted.append(station.parts(left, PAUSED if presence.keeps else LOST, state.time_s))
        if not presence.keeps:
            station.server = leave(station.server, left)
            state.compute_s[left] = state.bits[left] = 0.0
        station.present, station.jobs = present, station.jobs.begin(returned, state.time_s, state.compute_s)
        return {0}


class Handovers:
    """UEs go from cell to cell and take their jobs along."""

    def next_s(self, state: ClockState) -> float:
        return min(station.conditions.presence.changes_s(state.time_s) for station in state.stations)  # type: ignore[union-attr]

    def fire(self, state: ClockState) -> Touched:
        before, state.serving = state.serving, serving_cells(state)
        moved = before != state.serving
        return {*before[moved].tolist(), *state.serving[moved].tolist()}


def serving_cells(state: ClockState) -> np.ndarray:
    """Return the cell of each UE."""
    inside = [station.conditions.cell.here(state.time_s) for station in state.stations]
    return np.argmax(np.array(inside, bool), axis=0)


class Openings:
    """The cloud's model arrives at an edge, which opens its next round with it."""

    def next_s(self, state: ClockState) -> float:
        return min(station.opens_s for station in state.stations)

    def fire(self, state: ClockState) -> Touched:
        touched = {number for number, station in enumerate(state.stations) if station.opens_s <= state.time_s}
        for station in map(state.stations.__getitem__, touched):
            station.server, station.opens_s = replace(station.server, opened_s=state.time_s), math.inf
            station.begun_s = state.time_s
        return touched


class UploadEnds:
    """An upload is sent, so that its UE is free for the cell it is in, and no noise any more."""

    def next_s(self, state: ClockState) -> float:
        return float(state.sent_s.min())

    def fire(self, state: ClockState) -> Touched:  # noqa: ARG002
        return set()


class UploadStarts:
    """An upload starts and is noise in other cells."""

    def next_s(self, state: ClockState) -> float:
        return float(_starts_s(state).min(initial=np.inf))

    def fire(self, state: ClockState) -> Touched:  # noqa: ARG002
        return set()


def _starts_s(state: ClockState) -> PerUe:
    return state.time_s + state.compute_s[state.compute_s > 0]
