"""Every pair of features works in one cell, in many cells and at one server of many cells, or is refused for a reason.

The table is in docs/explanation/cells.md. A pair is simulated, and what must hold in every network is checked.
"""

import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from perfeds2.allocation.bandwidth import Policy, equal_share
from perfeds2.allocation.joint import LeastEnergy
from perfeds2.allocation.schedule import SCHEDULES
from perfeds2.allocation.schedulers import Moment, first_of
from perfeds2.network.availability import Availability, Hours
from perfeds2.network.cell import Cell
from perfeds2.network.cells import make_cells
from perfeds2.network.energy import ENERGY
from perfeds2.network.errors import Errors, Outage
from perfeds2.network.fleet import Fleet
from perfeds2.network.link import Downlink
from perfeds2.network.mobility import Moves, Waypoints
from perfeds2.network.profile import Profile
from perfeds2.network.sites import Sites
from perfeds2.network.traces import Trace, Traces
from perfeds2.timeline.cells import conditions_of_edges, network_of, simulate_cells
from perfeds2.timeline.chunks import ChunkedPlay
from perfeds2.timeline.jobs import LOST, MERGED
from perfeds2.timeline.protocol import Protocol
from perfeds2.timeline.record import Timeline
from perfeds2.timeline.simulate import conditions_of, simulate
from perfeds2.timeline.state import Budget

UES, COUNT, RADIUS_M = 12, 2, 60.0
UNKNOWN, CHUNK = np.full(UES, np.nan), 7
LOAD: dict[str, Any] = {"payload_bits": 77_120.0, "samples": 120.0}
Where = Literal["one cell", "edges", "one server"]


@dataclass
class Setting:
    """What is simulated; features change it."""

    cell: dict[str, Any] = field(default_factory=dict)
    fleet: Fleet = field(default_factory=lambda: Fleet(UNKNOWN, UNKNOWN))
    network: dict[str, Any] = field(default_factory=dict)
    protocol: dict[str, Any] = field(default_factory=dict)
    schedule: Callable[..., Any] | None = None
    joules: float | None = None
    reshare: Literal["round", "events"] = "round"
    bandwidth: Policy = equal_share


def downlink(way: Literal["unicast", "multicast"]) -> Callable[[Setting], None]:
    return lambda setting: setting.cell.update(downlink=Downlink(way, 25.0, 1e5))


def budget(setting: Setting) -> None:
    setting.joules = 3.0


def traces(setting: Setting) -> None:
    trace = Trace(np.array([0.0, 0.1, 0.3]), np.array([2e5, 0.0, 1e6]))
    setting.fleet = replace(setting.fleet, traces=Traces([1, 4], [trace, trace]))


def hours(*, keeps: bool) -> Callable[[Setting], None]:
    def change(setting: Setting) -> None:
        on = [Hours(((0.0, 0.4 + 0.1 * (ue % 4)),), 0.9) if ue % 2 else Hours() for ue in range(UES)]
        setting.fleet = replace(setting.fleet, presence=Availability(on, keeps))
        setting.network["keeps"] = keeps

    return change


def moving(*, keeps: bool) -> Callable[[Setting], None]:
    def change(setting: Setting) -> None:
        setting.cell.update(coherence_s=0.05, moves=Moves(Waypoints, 40.0, RADIUS_M))
        setting.network["keeps"] = keeps

    return change


def scheduled(name: str) -> Callable[[Setting], None]:
    def change(setting: Setting) -> None:
        setting.schedule = SCHEDULES[name]

    return change


class ByLoss:
    """The UEs that are present, those with the highest losses first."""

    feedback = "loss"

    def __call__(self, moment: Moment) -> np.ndarray:
        assert moment.feedback is not None
        return first_of(moment, -np.nan_to_num(moment.feedback, nan=np.inf))


def by_loss(setting: Setting) -> None:
    setting.schedule = ByLoss


def rests(setting: Setting) -> None:
    setting.schedule = SCHEDULES["best_channel"]
    setting.protocol.update(rests=True, max_staleness=None)


def protocol(**changes: Any) -> Callable[[Setting], None]:
    return lambda setting: setting.protocol.update(changes)


def coupled(setting: Setting) -> None:
    setting.network["interference"] = "coupled"


def fading(setting: Setting) -> None:
    setting.cell.setdefault("coherence_s", 0.05)


def reshared(setting: Setting) -> None:
    setting.reshare = "events"


def unsafe(**changes: Any) -> Callable[[Setting], None]:
    return lambda setting: setting.cell.update(changes)


def chosen(setting: Setting) -> None:
    setting.bandwidth = LeastEnergy(0.5)


FEATURES: dict[str, Callable[[Setting], None]] = {
    "unicast": downlink("unicast"),
    "multicast": downlink("multicast"),
    "energy budget": budget,
    "traced uplinks": traces,
    "hours, keep": hours(keeps=True),
    "hours, lose": hours(keeps=False),
    "mobility, keep": moving(keeps=True),
    "mobility, lose": moving(keeps=False),
    "schedule by number": scheduled("round_robin"),
    "schedule by moment": scheduled("best_channel"),
    "schedule by loss": by_loss,
    "rests": rests,
    "drafts": protocol(drafts=True),
    "rest rounds": protocol(rest_rounds=2),
    "fading within rounds": fading,
    "coupled interference": coupled,
    "reshare events": reshared,
    "errors": unsafe(errors=Errors("discard", 75.0)),
    "outages": unsafe(outage=Outage("lose", 1e6), coherence_s=0.05),
    "other traffic": unsafe(profile=Profile((0.0, 0.2, 0.5), (1.0, 0.4, 0.7)), csi_error_db=3.0, csi_delay=1),
    "power and frequency": chosen,
}
NETWORKS: tuple[Where, ...] = ("one cell", "edges", "one server")
PLANNED = {"schedule by number", "schedule by moment", "schedule by loss", "rests"}
OTHER_WAY = [{"unicast", "multicast"}, *map(set, itertools.combinations(PLANNED, 2))]
OTHER_WAY += [{"hours, keep", "mobility, lose"}, {"hours, lose", "mobility, keep"}]
OTHER_WAY += [{"hours, keep", "hours, lose"}, {"mobility, keep", "mobility, lose"}]  # two values of one setting
REFUSED = {  # by pair: the words of the refusal, and where; the page has the reasons
    ("unicast", "traced uplinks"): ("downlink of UEs with dedicated uplinks is unknown", NETWORKS),
    ("multicast", "traced uplinks"): ("downlink of UEs with dedicated uplinks is unknown", NETWORKS),
    ("energy budget", "schedule by number"): ("wait for UEs that have spent their energy", NETWORKS),
    ("energy budget", "schedule by moment"): ("wait for UEs that have spent their energy", NETWORKS),
    ("energy budget", "schedule by loss"): ("wait for UEs that have spent their energy", NETWORKS),
    ("energy budget", "rests"): ("wait for UEs that have spent their energy", NETWORKS),
    ("energy budget", "power and frequency"): ("takes no policy that chooses powers", NETWORKS),
    ("energy budget", "rest rounds"): ("rest_rounds above 1 takes no", NETWORKS),
    ("schedule by number", "drafts"): ("takes no schedule", NETWORKS),
    ("schedule by moment", "drafts"): ("takes no schedule", NETWORKS),
    ("schedule by loss", "drafts"): ("takes no schedule", NETWORKS),
    ("rests", "drafts"): ("drafts needs rests=False", NETWORKS),
    ("schedule by number", "rest rounds"): ("takes no schedule", NETWORKS),
    ("schedule by moment", "rest rounds"): ("takes no schedule", NETWORKS),
    ("schedule by loss", "rest rounds"): ("takes no schedule", NETWORKS),
    ("rests", "rest rounds"): ("rest_rounds above 1 needs", NETWORKS),
    ("drafts", "rest rounds"): ("rest_rounds above 1 needs", NETWORKS),
    ("mobility, keep", "schedule by number"): ("which move to others", ("edges",)),
    ("mobility, lose", "schedule by number"): ("lost its job in another cell", ("edges",)),
    ("mobility, lose", "schedule by moment"): ("lost its job in another cell", ("edges",)),
    ("mobility, lose", "schedule by loss"): ("lost its job in another cell", ("edges",)),
    ("mobility, lose", "rests"): ("lost its job in another cell", ("edges",)),
}


def play(names: tuple[str, ...], where: Where) -> tuple[Timeline, Setting]:
    """Simulate features together."""
    setting = Setting()
    for name in names:
        FEATURES[name](setting)
    drawn = Cell.draw(UES, seed=3, radius_m=RADIUS_M, fleet=setting.fleet, **setting.cell)
    terms: dict[str, Any] = {"quorum": 2, "max_staleness": 4}
    rules = Protocol(**terms | setting.protocol)

    def limits(cell: Cell) -> Budget | None:
        return None if setting.joules is None else Budget.of(setting.joules, ENERGY["yang"], cell, LOAD["samples"])

    parts = COUNT if where == "edges" else 1

    def plan() -> Callable[..., Any] | None:
        by_number = setting.schedule is SCHEDULES["round_robin"]
        if setting.schedule is ByLoss:
            return ByLoss()
        return setting.schedule(cell=Cell.draw(UES // parts), quorum=2) if by_number else setting.schedule  # type: ignore[misc]

    until, more = {"rounds": 30, "horizon_s": 10.0}, {"reshare": setting.reshare, "bandwidth": setting.bandwidth}

    def played(whole: Callable[..., Timeline], conditions: Callable[..., Any], *args: Any, **rest: Any) -> Timeline:
        if setting.schedule is not ByLoss:
            return whole(*args, **LOAD, **until, **more, **rest)
        return with_feedback(ChunkedPlay(conditions(*args, **LOAD, **more, **rest), **until, chunk=CHUNK))

    if where == "one cell":
        return played(simulate, conditions_of, drawn, rules, budget=limits(drawn), schedule=plan()), setting
    grid, backhaul = Sites.grid(COUNT, RADIUS_M), {"backhaul_s": 0.02, "backhaul_bps": 1e8}
    cells = make_cells(drawn, grid, RADIUS_M, **backhaul, **setting.network, one_server=where == "one server")
    if where == "one server":
        whole = cells.whole
        network = network_of(cells, LOAD["payload_bits"], one_server=True) if cells.joint else None
        rest = {"budget": limits(whole), "schedule": plan(), "network": network}
        return played(simulate, conditions_of, whole, rules, **rest), setting
    rest = {"budgets": [limits(cell) for cell in cells.cells], "schedules": [plan()] * COUNT}
    rest |= {"model_bits": 1e5, "edge_rounds": 2}
    return played(simulate_cells, conditions_of_edges, cells, rules, Protocol(1), **rest), setting


def with_feedback(play: ChunkedPlay) -> Timeline:
    """Play to the end; UEs report losses that fall from job to job."""
    while not play.is_finished:
        play.play(reported(play.timeline.merges))
    return play.timeline


def reported(merges: np.ndarray) -> np.ndarray:
    return np.where(merges > 0, 2.0 + np.arange(merges.size) % 3 - 0.3 * merges, np.nan)


def check(timeline: Timeline, setting: Setting) -> None:
    """Check what must hold in every timeline."""
    jobs, end_s = timeline.jobs(), timeline.end_s
    assert timeline.rounds >= 10
    bound = setting.protocol.get("max_staleness", 4)
    if bound is not None and timeline.cloud is None:
        assert timeline.staleness.max() <= bound
    assert (timeline.arrival_s <= timeline.time_s[:, None]).all()
    assert (np.diff(timeline.arrival_s, axis=1) >= 0).all()
    # A UE has at most one unsent job at a time, and no part of one while another works.
    order = np.lexsort((jobs.arrival_s, jobs.start_s, jobs.ue))
    ue, start_s, busy_until_s = jobs.ue[order], jobs.start_s[order], jobs.arrival_s[order]
    same = np.diff(ue) == 0
    if not setting.network.get("keeps") or timeline.cloud is None:  # an upload for another edge travels on the backhaul
        assert (start_s[1:][same] >= busy_until_s[:-1][same] - 1e-9).all()
    assert (jobs.end_s <= end_s + 1e-9).all()
    merged = jobs.outcome == MERGED
    assert np.unique(np.stack([jobs.ue, jobs.version])[:, merged], axis=1).shape[1] == timeline.ues.size
    assert np.isin(jobs.outcome, [MERGED, LOST, 2]).all()


PAIRS = [pair for pair in itertools.combinations(FEATURES, 2) if set(pair) not in OTHER_WAY]


@pytest.mark.parametrize("where", NETWORKS)
@pytest.mark.parametrize("pair", PAIRS, ids=" and ".join)
def test_every_pair_of_features_is_simulated_or_refused_for_a_reason(pair: tuple[str, str], where: Where):
    words, places = REFUSED.get(pair, ("", ()))
    if where in places:
        with pytest.raises(ValueError, match=words):
            play(pair, where)
        return
    check(*play(pair, where))


def test_the_table_of_the_page_names_every_feature_and_refusal():
    page = (Path(__file__).parents[2] / "docs/explanation/cells.md").read_text()
    table = page[page.index("## What works together") :]
    for name in FEATURES:
        assert re.search(rf"\b{re.escape(name)}\b", table), name
