"""Define what happens between the closings of rounds, each as a source of events.

A source says when it next acts, and acts. Between two events, gains and bandwidths are constant or follow a trace. A new
kind of event is one more class.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Protocol, runtime_checkable

import numpy as np

from perfeds2.network.channel import Channel
from perfeds2.network.fleet import Presence
from perfeds2.network.link import PerUe
from perfeds2.timeline.jobs import LOST, PAUSED
from perfeds2.timeline.protocol import IDLE, leave
from perfeds2.timeline.state import CellState, ClockState, Mask, ServerState, Ues, empty

Touched = set[int]  # cells whose band is shared again


@runtime_checkable
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
        return min(cell.cell.channel.changes_s(state.time_s) for cell in state.cells)

    def fire(self, state: ClockState) -> Touched:
        for number, cell in enumerate(state.cells):
            cell.signal_hz = cell.cell.channel.signal_at(state.server_of(number).server.round, state.time_s)
        return set(range(len(state.cells))) if _reshares(state) else set()


class BandChanges:
    """Other traffic leaves more or less of a band, which is then shared again."""

    def next_s(self, state: ClockState) -> float:
        profiles = [cell.cell.profile for cell in state.cells]
        return min(math.inf if profile is None else profile.changes_s(state.time_s) for profile in profiles)

    def fire(self, state: ClockState) -> Touched:
        return set(range(len(state.cells)))


class PresenceChanges:
    """UEs leave and return. An absent UE pauses its job, or loses it."""

    def next_s(self, state: ClockState) -> float:
        return math.inf if state.presence is None else state.presence.changes_s(state.time_s)

    def fire(self, state: ClockState) -> Touched:
        before, presence = state.present, state.presence
        assert before is not None
        assert presence is not None
        present = presence.present(state.time_s)
        if np.array_equal(before, present):
            return set()
        for server in state.servers:
            busy = server.busy
            left, returned = np.flatnonzero(before & ~present & busy), np.flatnonzero(~before & present & busy)
            _interrupt(state, server, left, keeps=presence.keeps)
            state.begin_parts(server, returned)
        state.present = present
        return {0} if state.network is None else set(state.serving[before != present].tolist())


class Handovers:
    """UEs go from cell to cell and take their jobs along, or lose them."""

    def next_s(self, state: ClockState) -> float:
        return min(_presence_in(cell).changes_s(state.time_s) for cell in state.cells)

    def fire(self, state: ClockState) -> Touched:
        before, state.serving = state.serving, serving_cells(state)
        moved = before != state.serving
        assert state.network is not None
        for server in state.servers if moved.any() and not state.network.keeps else ():
            _interrupt(state, server, np.flatnonzero(moved & server.busy), keeps=False)
        return {*before[moved].tolist(), *state.serving[moved].tolist()}


def _interrupt(state: ClockState, server: ServerState, ues: Ues, *, keeps: bool) -> None:
    """Record parts of jobs that end now, because their UEs leave; without ``keeps``, the jobs are lost."""
    server.interrupted.append(server.parts(ues, PAUSED if keeps else LOST, state.time_s, state.present))
    if not keeps:
        server.server = leave(server.server, ues)
        state.compute_s[ues] = state.bits[ues] = 0.0


def serving_cells(state: ClockState) -> Ues:
    """Return the cell of each UE in a network."""
    inside = [_presence_in(cell).present(state.time_s) for cell in state.cells]
    return np.argmax(np.array(inside, bool), axis=0)


def _presence_in(cell: CellState) -> Presence:
    """Return which UEs are in a cell of a network."""
    presence = None if cell.cell.fleet is None else cell.cell.fleet.presence
    assert presence is not None
    return presence


class Openings:
    """The cloud's model arrives at an edge, which opens its next round with it."""

    def next_s(self, state: ClockState) -> float:
        return min(server.opens_s for server in state.servers)

    def fire(self, state: ClockState) -> Touched:
        touched = {number for number, server in enumerate(state.servers) if server.opens_s <= state.time_s}
        for server in map(state.servers.__getitem__, touched):
            server.server, server.opens_s = replace(server.server, opened_s=state.time_s), math.inf
            server.begun_s = state.time_s
        return touched


class UploadEnds:
    """An upload ends: its UE may get a model from the cell it is in, and is no longer noise."""

    def next_s(self, state: ClockState) -> float:
        return float(state.sent_s.min(where=state.bits > 0, initial=np.inf))

    def fire(self, state: ClockState) -> Touched:
        return _cells(state, state.sent_s == state.time_s) if _reshares(state) else set()


class UploadErrors:
    """An upload that is discarded is sent: its job is lost, and its UE gets the newest model."""

    def next_s(self, state: ClockState) -> float:
        assert state.luck is not None
        return float(state.sent_s.min(where=(state.bits > 0) & state.luck.fails, initial=np.inf))

    def fire(self, state: ClockState) -> Touched:
        assert state.luck is not None
        failed = state.luck.fails & (state.bits == 0)
        for server in state.servers:
            ues = np.flatnonzero(failed & (server.server.versions != IDLE) & (server.sent_s == state.time_s))
            _interrupt(state, server, ues, keeps=False)
            server.arrived_s[ues] = server.sent_s[ues] = np.inf
            state.luck.fails[ues] = False
        return _cells(state, failed)


class Outages:
    """An upload begins at too low a rate, or its rate falls too low: its job is lost, and its UE gets the newest model."""

    def next_s(self, state: ClockState) -> float:
        return float((state.time_s + state.compute_s).min(where=_in_reach(state, state.weak), initial=np.inf))

    def fire(self, state: ClockState) -> Touched:
        lost = _in_reach(state, state.weak) & (state.time_s + state.compute_s <= state.time_s)
        for server in state.servers:
            _interrupt(state, server, np.flatnonzero(lost & server.busy), keeps=False)
        return _cells(state, lost)


class UploadStarts:
    """An upload starts: it is noise in other cells, and may get a part of the band."""

    def __init__(self) -> None:
        self._starts_s: PerUe = empty()

    def next_s(self, state: ClockState) -> float:
        self._starts_s = np.where(_will_start(state), state.time_s + state.compute_s, np.inf)
        return float(self._starts_s.min())

    def fire(self, state: ClockState) -> Touched:
        return _cells(state, self._starts_s <= state.time_s) if _reshares(state) else set()


def _will_start(state: ClockState) -> Mask:
    return _in_reach(state, state.compute_s > 0)


def _in_reach(state: ClockState, ues: Mask) -> Mask:
    return ues if state.present is None else ues & state.present


def _reshares(state: ClockState) -> bool:
    return state.servers[0].conditions.reshare == "events"


def _cells(state: ClockState, ues: Mask) -> Touched:
    """Return the cells of these UEs."""
    if state.network is None:
        return {0} if ues.any() else set()
    return set(state.serving[ues].tolist())


def sources_of(state: ClockState, *, has_cloud: bool) -> Iterator[EventSource]:
    """Return the sources of events that a clock needs, in the order in which they act at one instant."""
    cells, conditions = [state.cell for state in state.cells], state.servers[0].conditions
    reshares = _reshares(state)
    if any(cell.coherence_s is not None or type(cell.channel) is not Channel for cell in cells):
        yield FadingChanges()
    if state.presence is not None:
        yield PresenceChanges()
    if state.network is not None:
        yield Handovers()
    if state.network is not None or reshares:
        yield UploadEnds()
    if any(cell.profile is not None for cell in cells):
        yield BandChanges()
    if state.luck is not None:
        yield UploadErrors()
    if cells[0].outage is not None and cells[0].outage.rule == "lose":
        yield Outages()
    if reshares or (state.network is not None and state.network.co_channel is not None):
        yield UploadStarts()
    if has_cloud:
        yield Openings()
    yield from conditions.events
