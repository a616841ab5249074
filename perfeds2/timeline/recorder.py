"""How does a timeline come about, round after round?"""

from dataclasses import replace

import numpy as np
from jaxtyping import Float, Int

from perfeds2.network.downlink import Downlink
from perfeds2.timeline.jobs import Jobs
from perfeds2.timeline.protocol import IDLE, Closing, Server
from perfeds2.timeline.record import Timeline
from perfeds2.timeline.stretches import Ended, Log

A_CROWD = 256  # jobs lost at once; from here on they are not recorded one by one


class Recorder:
    """Collects the rounds of a timeline, one after the other."""

    def __init__(self, past: Timeline) -> None:
        self._compute_s = past.compute_s
        self._rounds = [[past.ues, past.staleness, past.arrival_s, past.time_s]]
        self._lost = [[past.lost_ue, past.lost_version, past.lost_round, past.lost_arrival_s, past.lost_count]]
        self._models = [[past.model_s, past.lost_model_s]]  # Nones where there is no downlink
        self.log = Log(past.log)  # empty where nobody comes and goes

    def add(
        self,
        server: Server,
        closing: Closing,
        staleness: Int[np.ndarray, " A"],
        lost: Int[np.ndarray, " l"],
        arrival_s: Float[np.ndarray, " n"],
        model_s: Float[np.ndarray, " n"] | None = None,
        ended: Ended | None = None,
    ) -> None:
        """One more round: the server that it had, how it closed and how stale, whose job was lost, who arrives when.

        ``model_s`` is how long each had waited for its model, where there is a downlink; ``ended`` the work that ended
        in the round, where UEs come and go.
        """
        if ended is not None:
            self.log.parts.append(ended.log)
            self._lost.append(ended.lost_rows(server.round))
        merged, now_s = closing.merged, closing.time_s
        self._rounds.append([merged[None], staleness[None], arrival_s[None, merged], np.array([now_s])])
        if lost.size:
            version, arrived_s = server.versions[lost], arrival_s[lost]
            arrived_s[arrived_s > now_s] = np.inf
            first = np.arange(lost.size)
            if lost.size > A_CROWD:  # one row for UEs with successive numbers and the same fate: that is few rows
                same = (np.diff(version) == 0) & (arrived_s[1:] == arrived_s[:-1])
                same &= True if model_s is None else np.diff(model_s[lost]) == 0
                first = np.concatenate([[0], 1 + np.flatnonzero((np.diff(lost) != 1) | ~same)])
            round_, count = np.full(first.size, server.round), np.diff(first, append=lost.size)
            self._lost.append([lost[first], version[first], round_, arrived_s[first], count])
            lost = lost[first]
        if model_s is not None:
            self._models.append([model_s[None, merged], model_s[lost]])

    def add_rounds(self, rounds: list[np.ndarray], lost: list[np.ndarray]) -> None:
        """Several rounds at once: their fields of a timeline, and those of the jobs lost in them."""
        self._rounds.append(rounds)
        self._lost.append(lost)

    def timeline(
        self,
        versions: Int[np.ndarray, " n"],
        arrived_s: Float[np.ndarray, " n"],
        model_s: Float[np.ndarray, " n"] | None = None,
        log: Jobs | None = None,
    ) -> Timeline:
        """What was recorded, and what everybody had in hand when the clock stopped."""
        models = (None, None)
        if model_s is not None:
            merged, lost = zip(*self._models, strict=True)
            models = np.concatenate(merged), np.concatenate(lost)
            model_s = np.where(versions == IDLE, 0.0, model_s)
        ues, staleness, arrival_s, time_s = map(np.concatenate, zip(*self._rounds, strict=True))
        lost_ue, lost_version, lost_round, lost_arrival_s, lost_count = map(
            np.concatenate, zip(*self._lost, strict=True)
        )
        return Timeline(
            ues, staleness, arrival_s, time_s, self._compute_s,
            lost_ue, lost_version, lost_round, lost_arrival_s, versions, arrived_s, lost_count, *models, model_s, log,
        )  # fmt: skip


def nothing_yet(compute_s: Float[np.ndarray, " n"], quorum: int, downlink: Downlink | None = None) -> Timeline:
    """A timeline of no rounds: everybody holds w_0."""
    n, none, never = compute_s.size, np.empty(0, np.int64), np.empty(0)
    table = (0, quorum)
    empty = Timeline(
        none.reshape(table), none.reshape(table), never.reshape(table), never, compute_s,
        none, none, none, never, np.zeros(n, np.int64), np.full(n, np.inf), none,
    )  # fmt: skip
    if downlink is None:
        return empty
    return replace(empty, model_s=never.reshape(table), lost_model_s=never, open_model_s=np.zeros(n))
