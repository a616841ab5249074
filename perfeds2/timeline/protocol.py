"""Decide when a round closes, which updates it merges and which UEs get the new model.

This module is the whole protocol. It knows no weights, no radio and no clock: the caller says when updates arrived.
The virtual clock and a real server both call ``close_round``, ``end_jobs`` and ``assign_model``, so a deployment behaves as
simulated.
"""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from jaxtyping import Bool, Int

from perfeds2.network.link import Numbers, PerUe

Stale = Literal["restart", "wait", "ignore"]
Planned = Int[np.ndarray, "*groups A"]  # A UEs that close a round, or groups of A: the first complete one does
PresentMask = Bool[np.ndarray, " n"]  # which UEs are present
Lost = Int[np.ndarray, " l"]  # UEs whose job ended without a merge
IDLE = -1  # version of a UE without a job
NO_UES = np.empty(0, np.int64)
NO_UES.flags.writeable = False
GROUP = 64  # values per group, in the search for the k-th smallest


@dataclass(frozen=True)
class Protocol:
    """Close a round on A of n updates, none staler than S. Synchronous: A = n. Asynchronous: A = 1, S = None.

    ``stale`` says what happens to a UE that would exceed the staleness bound (errata 10, 11):

    - ``restart``: the UE gets the new model and starts over (Algorithm 1). A slow UE can starve.
    - ``wait``: the round stays open until every other UE can still be merged in time (Section VI). At most A·(S+1) UEs
      work at once, since more could never be merged in time; the others wait for their turn.
    - ``ignore``: the UE finishes, its update is refused, and it gets the model of the next round.

    With ``rests``, only the UEs planned for a round get its model, when it opens; the others rest. Most papers that
    select UEs use such rounds: synchronous, with no stale updates.

    With ``drafts`` (SAFA), a round closes on the first A arrivals among the UEs not merged in the previous round. A
    UE that was merged then and has arrived again also gets the new model. If fewer than A other UEs are at work, the
    round waits for all updates and fills the remaining slots with UEs merged in the previous round.

    With ``rest_rounds`` B, a UE that was merged in round k gets no model before round k + B opens. This bounds how much
    privacy fast UEs lose.

    Raises:
        ValueError: If a value is out of range or the options contradict each other.
    """

    quorum: int  # A
    max_staleness: int | None = None  # S; None for no bound
    stale: Stale = "restart"
    rests: bool = False  # whether UEs outside the plan have no job
    drafts: bool = False  # whether UEs merged in the previous round come last
    rest_rounds: int = 1  # B: a UE is merged at most once in B rounds

    def __post_init__(self) -> None:
        if self.quorum < 1:
            raise ValueError(f"quorum must be at least 1, got {self.quorum}.")
        if self.max_staleness is not None and self.max_staleness < 0:
            raise ValueError(f"max_staleness must be at least 0 (or None for no bound), got {self.max_staleness}.")
        if self.stale not in ("restart", "wait", "ignore"):
            raise ValueError(f"stale must be restart, wait or ignore, got {self.stale!r}.")
        if self.rests and self.max_staleness is not None:
            raise ValueError(
                f"with rests, planned UEs start from the newest model; max_staleness must be None, got {self.max_staleness}."
            )
        if self.drafts and (self.rests or self.stale != "restart"):
            raise ValueError(
                f"drafts needs rests=False and stale='restart', got rests={self.rests} and stale={self.stale!r}."
            )

        if self.rest_rounds < 1:
            raise ValueError(f"rest_rounds must be at least 1, got {self.rest_rounds}.")
        if self.rest_rounds > 1 and (self.rests or self.drafts or self.stale == "ignore"):
            raise ValueError(
                "rest_rounds above 1 needs stale='restart' or 'wait', rests=False and drafts=False: "
                "otherwise a round might wait for UEs that rest."
            )

    @property
    def waits(self) -> bool:
        """Whether a round may stay open to keep updates within the staleness bound."""
        return self.stale == "wait" and self.max_staleness is not None

    @property
    def most_at_work(self) -> int | None:
        """A·(S+1), the most jobs that can all be merged within the staleness bound; None without a bound."""
        return None if self.max_staleness is None else self.quorum * (self.max_staleness + 1)

    def check(self, ues: int) -> None:
        """Check that the quorum fits a number of UEs.

        Args:
            ues: n, the number of UEs.

        Raises:
            ValueError: If the quorum exceeds it, or too few UEs are left while others rest.
        """
        if self.quorum > ues:
            raise ValueError(f"quorum must be at most the number of UEs, {ues}, got {self.quorum}.")
        if self.quorum * self.rest_rounds > ues:
            raise ValueError(
                f"{self.quorum} (quorum) times {self.rest_rounds} (rest_rounds) must be at most the number of UEs, {ues}."
            )


@dataclass(frozen=True)
class Server:
    """What the server knows while a round is open."""

    round: int  # k, the open round; the newest model is w_k
    versions: Numbers  # the model each UE works from, or IDLE
    merged_in: Numbers  # the last round that merged each UE, or -1
    opened_s: float  # when w_k was created; a round cannot close before it opens, even if all updates are there


@dataclass(frozen=True)
class Closing:
    """When a round closes and on which updates, given the arrivals so far."""

    time_s: float  # infinite while too few updates have arrived
    merged: Int[np.ndarray, " A"]  # in order of arrival; ties by UE number
    refused: Int[np.ndarray, " r"]  # arrived in time, but too stale or not drafted


def open_server(ues: int, protocol: Protocol, present: PresentMask | None = None) -> Server:
    """Open round 0 and hand w_0 to every present UE that may work; with ``rests``, to none until a round is planned."""
    protocol.check(ues)
    empty = Server(0, np.full(ues, IDLE, np.int64), np.full(ues, -1, np.int64), 0.0)
    return assign_model(empty, protocol, present)[0]


def close_round(
    server: Server, arrival_s: PerUe, protocol: Protocol, planned: Planned | None = None, now_s: float = 0.0
) -> Closing:
    """Return when the open round closes and on which UEs, given each UE's arrival time (infinite if not yet known).

    The round closes neither before it opened nor before ``now_s``: UEs that it waited for may have left.
    """
    versions, earliest_s = server.versions, max(server.opened_s, now_s)
    fresh = versions >= oldest_version(server.round, protocol)
    all_fresh = fresh.all()
    eligible_s = arrival_s if all_fresh else np.where(fresh, arrival_s, np.inf)
    if planned is not None:
        if planned.ndim == 2:  # the first complete group closes the round
            planned = planned[eligible_s[planned].max(axis=1).argmin()]
        close_s = max(eligible_s[planned].max(), earliest_s)
        merged = np.sort(planned)
    elif protocol.drafts:
        return _draft(server, eligible_s, protocol, earliest_s)
    else:
        close_s = max(_smallest(protocol.quorum, eligible_s), earliest_s)
        if protocol.waits:
            close_s = max(close_s, _everyone_in_time(server, eligible_s, protocol))
        merged = _pick(eligible_s, versions, close_s, protocol)
    if close_s == np.inf:
        return Closing(np.inf, NO_UES, NO_UES)
    merged = merged[eligible_s[merged].argsort(kind="stable")]
    refused = NO_UES if all_fresh else np.flatnonzero(~fresh & (versions != IDLE) & (arrival_s <= close_s))
    return Closing(float(close_s), merged, refused)


def oldest_version(round_: int, protocol: Protocol) -> int:
    """Return the oldest model whose update the round may merge. IDLE is always older."""
    return 0 if protocol.max_staleness is None else max(round_ - protocol.max_staleness, 0)


def end_jobs(server: Server, closing: Closing, protocol: Protocol) -> tuple[Server, Lost]:
    """Close the round: end the jobs that are merged, refused or too old; also return the UEs whose job was not merged."""
    new = server.round + 1
    versions, merged_in, lost = server.versions.copy(), server.merged_in.copy(), closing.refused
    merged_in[closing.merged] = server.round
    versions[closing.merged] = versions[lost] = IDLE
    if protocol.stale == "restart" and protocol.max_staleness is not None:
        # Would be too stale (erratum 10).
        (too_old,) = ((versions != IDLE) & (versions < new - protocol.max_staleness)).nonzero()
        if too_old.size:
            lost = np.concatenate([lost, too_old])
            versions[too_old] = IDLE
    return Server(new, versions, merged_in, closing.time_s), lost


def leave(server: Server, gone: Int[np.ndarray, " g"]) -> Server:
    """Drop the jobs of UEs that left."""
    versions = server.versions.copy()
    versions[gone] = IDLE
    return replace(server, versions=versions)


def assign_model(
    server: Server, protocol: Protocol, present: PresentMask | None = None, planned: Planned | None = None
) -> tuple[Server, Int[np.ndarray, " h"]]:
    """Hand the open round's model to the UEs that are present, idle and allowed a job, and return those UEs too.

    With ``rests`` these are planned UEs. With ``wait`` and a bound, A·(S+1) UEs may have a job, and those longest
    without a merge come first. A job that an absent UE holds continues until it is merged or lost.
    """
    (idle,) = (server.versions == IDLE).nonzero()
    allowed = idle if present is None else idle[present[idle]]
    if protocol.rest_rounds > 1:
        allowed = allowed[server.merged_in[allowed] <= rested_since(server.round, protocol)]
    if protocol.rests:
        allowed = NO_UES if planned is None else np.intersect1d(planned, allowed)
    elif protocol.waits:
        free = most_at_work(server.versions.size, protocol) - (server.versions.size - idle.size)
        allowed = allowed[np.argsort(server.merged_in[allowed], kind="stable")][: max(free, 0)]
    versions = server.versions.copy()
    versions[allowed] = server.round
    return Server(server.round, versions, server.merged_in, server.opened_s), allowed


def rested_since(round_: int, protocol: Protocol) -> int:
    """Return the last round whose UEs have rested by now; -1 if only UEs that were never merged have."""
    return max(round_ - protocol.rest_rounds, -1)


def why_stuck(
    server: Server,
    arrival_s: PerUe,
    protocol: Protocol,
    planned: Planned | None,
    present: PresentMask | None = None,
) -> str:
    """Return why a round cannot close, and how to fix it."""
    bound = protocol.max_staleness
    for ue in np.flatnonzero(np.isinf(arrival_s)) if planned is None else planned.ravel():
        version = server.versions[ue]
        if present is not None and not present[ue]:
            return f"UE {ue} has left for good, and too few are left. Give its hours a period, or use a smaller quorum."
        is_late = version == IDLE or (bound is not None and server.round - version > bound)
        if planned is not None and is_late:
            return (
                f"the schedule plans UE {ue}, which waits for its turn or has a model staler than {bound}. "
                f"Plan every UE at least once in {(bound or 0) + 1} rounds, or use restart."
            )
    awaited = np.flatnonzero(server.versions != IDLE) if planned is None else np.sort(planned, axis=None)
    stuck = awaited[np.isinf(arrival_s[awaited])]
    if not stuck.size:
        return "the updates that have arrived are too stale. Raise --max-staleness, or use --stale restart."
    return f"UE {stuck[0]} gets no bandwidth; the bandwidth policy must serve the UEs the round waits for."


def _draft(server: Server, arrival_s: PerUe, protocol: Protocol, earliest_s: float) -> Closing:
    """Close on the first A UEs not merged in the previous round; with fewer of them, wait for all updates."""
    again = (server.merged_in >= 0) & (server.merged_in == server.round - 1)
    at_work = server.versions != IDLE
    merged = np.lexsort((arrival_s, again, ~at_work))[: protocol.quorum]
    if np.count_nonzero(at_work) < protocol.quorum:  # the others are absent
        return Closing(np.inf, NO_UES, NO_UES)
    others = np.count_nonzero(at_work & ~again)
    close_s = max(arrival_s[merged if others >= protocol.quorum else at_work].max(initial=0.0), earliest_s)
    if close_s == np.inf:
        return Closing(np.inf, NO_UES, NO_UES)
    undrafted = again & (arrival_s <= close_s)
    undrafted[merged] = False
    merged = np.sort(merged)
    return Closing(float(close_s), merged[arrival_s[merged].argsort(kind="stable")], np.flatnonzero(undrafted))


def most_at_work(ues: int, protocol: Protocol) -> int:
    """Return how many UEs may hold a job at once."""
    return min(ues, protocol.most_at_work or ues) if protocol.waits else ues


def _smallest(rank: int, values: PerUe) -> float:
    """Return the ``rank``-th smallest value, counting from 1, by looking only at the few candidates.

    Split the values into groups. At least ``rank`` groups have a minimum at or below the ``rank``-th smallest
    minimum, so at least ``rank`` values are no larger than it, and the wanted value is one of them.
    """
    groups = values.size // GROUP
    if groups > 2 * rank:
        minima = values[: GROUP * groups].reshape(GROUP, groups).min(axis=0)
        values = values[values <= np.partition(minima, rank - 1)[rank - 1]]
    values = values.copy()
    values.partition(rank - 1)  # in place, because np.partition is slower for few values
    return float(values[rank - 1])


def _everyone_in_time(server: Server, arrival_s: PerUe, protocol: Protocol) -> float:
    """Return the earliest time the round can close so that all other jobs can still be merged within the bound.

    A job on version v must be merged by round v + S. The rounds after this one, up to round m, take A·(m − k) jobs,
    so of the N jobs due by round m at least N − A·(m − k) must have arrived now. Jobs are handed out so that this
    never exceeds A.
    """
    assert protocol.max_staleness is not None
    jobs = np.flatnonzero(server.versions != IDLE)
    due_in = server.versions[jobs] + protocol.max_staleness - server.round
    later = np.arange(protocol.max_staleness + 1)  # m − k
    needed = np.bincount(due_in, minlength=later.size).cumsum() - protocol.quorum * later
    close_s = -np.inf
    for last in np.flatnonzero(needed > 0):
        jobs_s = np.sort(arrival_s[jobs[due_in <= last]])
        close_s = max(close_s, float(jobs_s[needed[last] - 1]))
    return close_s


def _pick(arrival_s: PerUe, versions: Numbers, close_s: float, protocol: Protocol) -> Int[np.ndarray, " A"]:
    """Return the A updates to merge that arrived by ``close_s``: the earliest, or with ``wait`` the stalest."""
    (arrived,) = (arrival_s <= close_s).nonzero()
    if arrived.size <= protocol.quorum:
        return arrived
    first = versions[arrived] if protocol.waits else np.zeros(arrived.size)
    return np.sort(arrived[np.lexsort((arrived, arrival_s[arrived], first))[: protocol.quorum]])
