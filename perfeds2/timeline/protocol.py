"""When does a round close, and who gets the new model?

This is the protocol, and all of it. It knows no weights, no radio and no clock of its own: it is told when updates
arrived and answers who is merged. The virtual clock and a real server drive the same two functions, ``close_round`` and
``hand_out``, so what is simulated is what is deployed.
"""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Int

Stale = Literal["restart", "wait", "ignore"]
Planned = Int[np.ndarray, "*groups A"]  # whom a round closes on: A UEs, or the first complete of several groups of A
Here = Bool[np.ndarray, " n"]  # who is there
IDLE = -1  # the version of a UE that waits for its turn
NOBODY = np.empty(0, np.int64)
NOBODY.flags.writeable = False
GROUP = 64  # values whose minimum is looked at before they are


@dataclass(frozen=True)
class Protocol:
    """A of n updates close a round; none that is merged is staler than S. Synchronous: A = n. Asynchronous: A = 1, S = None.

    What happens to a UE that would exceed the bound (errata 10, 11):

    - ``restart``: it is handed the new model and starts over (Algorithm 1). A slow UE can starve.
    - ``wait``: the round stays open until every UE can still be merged in time (Section VI). At most A·(S+1) UEs work
      at once, more could never be served in time; the others wait for their turn.
    - ``ignore``: it finishes, its update is refused, and it is handed the model of the next round.

    With ``rests``, only those a round is planned for are handed its model, when it opens; the others rest until they are.
    These are the rounds of most papers that choose UEs: synchronous, with nobody stale.

    With ``drafts``, the first A of those close a round who were not merged in the round before (SAFA). Who was, and has arrived
    again, is handed the new model, too; where the others are fewer than A, all are waited for, and those fill up.
    """

    quorum: int  # A
    max_staleness: int | None = None  # S; None is no bound
    stale: Stale = "restart"
    rests: bool = False  # who is not planned has no job
    drafts: bool = False  # who was merged last round comes last

    def __post_init__(self) -> None:
        if self.quorum < 1:
            raise ValueError(f"quorum must be at least 1, got {self.quorum}.")
        if self.max_staleness is not None and self.max_staleness < 0:
            raise ValueError(f"max_staleness must be at least 0 (or None for no bound), got {self.max_staleness}.")
        if self.stale not in ("restart", "wait", "ignore"):
            raise ValueError(f"stale must be restart, wait or ignore, got {self.stale!r}.")
        if self.rests and self.max_staleness is not None:
            raise ValueError(
                f"where the unplanned rest, the planned begin with the newest model: max_staleness must be None, got {self.max_staleness}."
            )
        if self.drafts and (self.rests or self.stale != "restart"):
            raise ValueError(
                "where the first who were not merged last time close a round, nobody rests, and stale must be restart."
            )

    @property
    def waits(self) -> bool:
        return self.stale == "wait" and self.max_staleness is not None

    @property
    def most_at_work(self) -> int | None:
        """A·(S+1): more jobs than this cannot all be merged within the bound. None without a bound."""
        return None if self.max_staleness is None else self.quorum * (self.max_staleness + 1)

    def check(self, ues: int) -> None:
        if self.quorum > ues:
            raise ValueError(f"quorum must be at most the number of UEs, {ues}, got {self.quorum}.")


@dataclass(frozen=True)
class Server:
    """What the server knows while a round is open."""

    round: int  # k: the open round; the newest model is w_k
    versions: Int[np.ndarray, " n"]  # the model each UE works from, or IDLE
    merged_in: Int[np.ndarray, " n"]  # the last round each UE was merged in; -1 for never
    opened_s: float  # when w_k existed: no round closes before it opens, whoever arrived early


@dataclass(frozen=True)
class Closing:
    """How a round ends, as far as the arrivals tell."""

    time_s: float  # infinite while the arrivals do not suffice
    merged: Int[np.ndarray, " A"]  # in order of arrival, ties by UE number
    refused: Int[np.ndarray, " r"]  # arrived by then, but staler than the bound, or not drafted


@dataclass(frozen=True)
class HandOut:
    """Who starts a new job when a round closes, and whose job ends without a merge."""

    handed: Int[np.ndarray, " h"]
    lost: Int[np.ndarray, " l"]


def open_server(ues: int, protocol: Protocol, here: Here | None = None) -> Server:
    """Round 0 opens: everybody who may work and is there is handed w_0, or whoever is invited later."""
    protocol.check(ues)
    versions = np.full(ues, IDLE, np.int64)
    if not protocol.rests:
        versions[(np.arange(ues) if here is None else np.flatnonzero(here))[: most_at_work(ues, protocol)]] = 0
    return Server(0, versions, np.full(ues, -1, np.int64), 0.0)


def invite(server: Server, planned: Planned, here: Here | None = None) -> tuple[Server, Int[np.ndarray, " h"]]:
    """Where the unplanned rest: hand the open round's model to those planned who are there and have no job. Returns them, too."""
    handed = planned[server.versions[planned] == IDLE]
    handed = handed if here is None else handed[here[handed]]
    versions = server.versions.copy()
    versions[handed] = server.round
    return Server(server.round, versions, server.merged_in, server.opened_s), handed


def close_round(
    server: Server, arrival_s: Float[np.ndarray, " n"], protocol: Protocol, planned: Planned | None = None
) -> Closing:
    """Given when each UE's update arrived (infinite: not yet), when does the open round close, and on whom?"""
    versions = server.versions
    fresh = versions >= oldest_version(server.round, protocol)
    all_fresh = fresh.all()
    eligible_s = arrival_s if all_fresh else np.where(fresh, arrival_s, np.inf)
    if planned is not None:
        if planned.ndim == 2:  # several groups: the first that is complete
            planned = planned[eligible_s[planned].max(axis=1).argmin()]
        close_s = eligible_s[planned].max()
        merged = np.sort(planned)
    elif protocol.drafts:
        return _draft(server, eligible_s, protocol)
    else:
        close_s = _smallest(protocol.quorum, eligible_s)
        if protocol.waits:
            close_s = max(close_s, _everyone_in_time(server, eligible_s, protocol))
        merged = _pick(eligible_s, versions, close_s, protocol)
    if close_s == np.inf:
        return Closing(np.inf, NOBODY, NOBODY)
    close_s = max(close_s, server.opened_s)
    merged = merged[eligible_s[merged].argsort(kind="stable")]
    refused = NOBODY if all_fresh else np.flatnonzero(~fresh & (versions != IDLE) & (arrival_s <= close_s))
    return Closing(float(close_s), merged, refused)


def oldest_version(round_: int, protocol: Protocol) -> int:
    """The oldest model whose update the round may still merge; IDLE is older."""
    return 0 if protocol.max_staleness is None else max(round_ - protocol.max_staleness, 0)


def hand_out(server: Server, closing: Closing, protocol: Protocol, here: Here | None = None) -> tuple[Server, HandOut]:
    """Close the round: w_{k+1} exists. Returns the server of the next round, and who was handed the new model.

    Who is not there is handed nothing, and the newest model when it comes (``welcome``); a job it has goes on until it
    is merged or lost.
    """
    new = server.round + 1
    versions, merged_in = server.versions.copy(), server.merged_in.copy()
    merged_in[closing.merged] = server.round
    lost = closing.refused
    if protocol.waits:
        versions[closing.merged] = versions[lost] = IDLE
        handed = _next_in_turn(versions, merged_in, protocol, here)
    elif protocol.rests:
        versions[closing.merged] = versions[lost] = IDLE
        handed = NOBODY  # who is planned next is invited then
    else:
        versions[closing.merged] = versions[lost] = new
        if protocol.stale == "restart" and protocol.max_staleness is not None:
            too_old = versions < new - protocol.max_staleness  # would be merged too stale (erratum 10)
            if here is not None:
                too_old &= versions != IDLE
            lost = np.concatenate([lost, too_old.nonzero()[0]])
        handed = np.concatenate([closing.merged, lost])
        if here is not None:
            versions[handed] = IDLE
            handed = np.flatnonzero(here & (versions == IDLE))  # also who came at this very second
    versions[handed] = new
    return Server(new, versions, merged_in, closing.time_s), HandOut(handed, lost)


def leave(server: Server, gone: Int[np.ndarray, " g"]) -> Server:
    """Who left loses its job."""
    versions = server.versions.copy()
    versions[gone] = IDLE
    return replace(server, versions=versions)


def welcome(
    server: Server, protocol: Protocol, here: Here, planned: Planned | None = None
) -> tuple[Server, Int[np.ndarray, " h"]]:
    """In the middle of a round: hand its model to those who are there without a job and may have one. Returns them, too."""
    if protocol.rests:
        return (server, NOBODY) if planned is None else invite(server, planned.ravel(), here)
    versions = server.versions.copy()
    handed = np.flatnonzero(here & (versions == IDLE))
    if protocol.waits:
        handed = _next_in_turn(versions, server.merged_in, protocol, here)
    versions[handed] = server.round
    return replace(server, versions=versions), handed


def _next_in_turn(
    versions: Int[np.ndarray, " n"], merged_in: Int[np.ndarray, " n"], protocol: Protocol, here: Here | None
) -> Int[np.ndarray, " h"]:
    """Who takes the free places: of those without a job who are there, longest out first."""
    idle = np.flatnonzero(versions == IDLE)
    free = most_at_work(versions.size, protocol) - (versions.size - idle.size)
    idle = idle if here is None else idle[here[idle]]
    return idle[np.argsort(merged_in[idle], kind="stable")][:free]


def obstacle(
    server: Server,
    arrival_s: Float[np.ndarray, " n"],
    protocol: Protocol,
    planned: Planned | None,
    present: Here | None = None,
) -> str:
    """Return why a round cannot close, and what to do."""
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


def _draft(server: Server, arrival_s: Float[np.ndarray, " n"], protocol: Protocol) -> Closing:
    """Close on the first who were not merged in the round before, if there are A of them, else when all have arrived."""
    again = (server.merged_in >= 0) & (server.merged_in == server.round - 1)
    at_work = server.versions != IDLE
    merged = np.lexsort((arrival_s, again, ~at_work))[: protocol.quorum]
    others = np.count_nonzero(at_work & ~again)
    close_s = max(arrival_s[merged if others >= protocol.quorum else at_work].max(initial=0.0), server.opened_s)
    if close_s == np.inf:
        return Closing(np.inf, NOBODY, NOBODY)
    undrafted = again & (arrival_s <= close_s)
    undrafted[merged] = False
    merged = np.sort(merged)
    return Closing(float(close_s), merged[arrival_s[merged].argsort(kind="stable")], np.flatnonzero(undrafted))


def most_at_work(ues: int, protocol: Protocol) -> int:
    """Return how many UEs may hold a job at once."""
    return min(ues, protocol.most_at_work or ues) if protocol.waits else ues


def _smallest(rank: int, values: Float[np.ndarray, " n"]) -> float:
    """The ``rank``-th smallest of many values, counting from 1, found among the few that can be it.

    With the values in groups, ``rank`` groups have their minimum at or below the ``rank``-th smallest of the minima: so
    many values at least are no larger than that, and the one we look for is among them.
    """
    groups = values.size // GROUP
    if groups > 2 * rank:
        minima = values[: GROUP * groups].reshape(GROUP, groups).min(axis=0)
        values = values[values <= np.partition(minima, rank - 1)[rank - 1]]
    values = values.copy()
    values.partition(rank - 1)  # np.partition takes longer for few values
    return float(values[rank - 1])


def _everyone_in_time(server: Server, arrival_s: Float[np.ndarray, " n"], protocol: Protocol) -> float:
    """The earliest time at which this round can close with everybody else still able to be merged within the bound.

    A job on version v must be merged by round v + S. Rounds after this one up to round m take A·(m − k) jobs, so of the
    N jobs due by m at least N − A·(m − k) must have arrived now. (Jobs are handed out so that this is never above A.)
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


def _pick(
    arrival_s: Float[np.ndarray, " n"], versions: Int[np.ndarray, " n"], close_s: float, protocol: Protocol
) -> Int[np.ndarray, " A"]:
    """The A updates to merge of those that arrived by ``close_s``: the earliest, or, where a round waited, the stalest first."""
    (arrived,) = (arrival_s <= close_s).nonzero()
    if arrived.size <= protocol.quorum:
        return arrived
    first = versions[arrived] if protocol.waits else np.zeros(arrived.size)
    return np.sort(arrived[np.lexsort((arrived, arrival_s[arrived], first))[: protocol.quorum]])
