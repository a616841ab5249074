"""The clock and a process for every job, transfer and source of events agree on random settings of the full table."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from network_twin import assert_agrees, play_network
from random_runs import STALE, uneven_share
from test_agrees_with_processes import mast_of
from test_errors import tries_by_hand
from test_every_combination import (
    CHUNK,
    FEATURES,
    NETWORKS,
    OTHER_WAY,
    REFUSED,
    ByLoss,
    Setting,
    Where,
    reported,
    with_feedback,
)
from twin_inputs import Battery, Inputs, Levels, Place, RoundRules, Site, Steps

from perfeds2.allocation.bandwidth import (
    Allocation,
    Policy,
    Uplink,
    chooses_more,
    equal_share,
    in_each_cell,
    planned_share,
)
from perfeds2.allocation.by_loss import refl
from perfeds2.allocation.schedule import by_distance
from perfeds2.allocation.schedulers import age, best_channel, chen, fedcs, proportional_fair, random, round_robin
from perfeds2.allocation.tiers import AllTiers, OneTier, tiers_by_latency
from perfeds2.network.availability import Availability
from perfeds2.network.cell import Cell
from perfeds2.network.cells import Cells, make_cells
from perfeds2.network.energy import EnergyModel
from perfeds2.network.errors import STREAM, Errors, Outage
from perfeds2.network.fleet import Fleet, Spread
from perfeds2.network.profile import Profile
from perfeds2.network.sites import Sites
from perfeds2.timeline.cells import conditions_of_edges, network_of, simulate_cells
from perfeds2.timeline.chunks import ChunkedPlay
from perfeds2.timeline.protocol import Protocol
from perfeds2.timeline.record import Timeline
from perfeds2.timeline.simulate import conditions_of, simulate
from perfeds2.timeline.state import Budget

UES, RADIUS_M, UNTIL_S, BITS, SAMPLES = 12, 20.0, 2.51, 77_120.0, 120.0
SPENT = EnergyModel(1e-27, True, 0.7, 1e-7)  # a bit of everything
Schedule = Callable[..., np.ndarray]
TABLE, SEEDS = list(FEATURES), range(3 * len(FEATURES))  # every feature comes first in every network


def by_bits(uplink: Uplink) -> np.ndarray:
    """Give more band for more bits and weaker signals, so that it matters when the policy is asked."""
    weight = uplink.bits / np.sqrt(uplink.signal_hz)
    return uplink.bandwidth_hz * weight / max(weight.sum(), 1e-300)


def to_everyone(uplink: Uplink) -> np.ndarray:
    """Give a part also to UEs with nothing to send, or with an uplink of their own."""
    return np.full(uplink.bits.size, uplink.bandwidth_hz / uplink.bits.size)


def smoothly(uplink: Uplink) -> Allocation:
    """Choose powers and frequencies by all that a policy sees."""
    assert uplink.cycles is not None
    assert uplink.cpu_hz is not None
    assert uplink.power_w is not None
    speed, power = (
        0.3 + 0.7 / (1 + uplink.cycles / uplink.cpu_hz),
        0.2 + 0.8 / (1 + uplink.elapsed_s + uplink.compute_s),
    )
    return Allocation(by_bits(uplink), power * uplink.power_w, speed * uplink.cpu_hz)


def unevenly(uplink: Uplink) -> Allocation:
    """Choose powers and frequencies by lot, and give a part of the band to everyone."""
    assert uplink.cpu_hz is not None
    assert uplink.power_w is not None
    power, speed = np.random.default_rng(uplink.round).uniform(0.1, 1.0, (2, uplink.bits.size))
    return Allocation(to_everyone(uplink), power * uplink.power_w, speed * uplink.cpu_hz)


def by_number(kind: int, cell: Cell, quorum: int, seed: int) -> Schedule:
    load: dict[str, Any] = {"payload_bits": BITS, "samples": SAMPLES}
    planned = by_distance(cell, quorum, None, **load, rounds=500)
    return [round_robin(cell, quorum), random(cell, quorum, seed), planned][kind % 3]


def by_moment(kind: int, cell: Cell, _quorum: int, seed: int) -> Schedule:
    many: list[Schedule] = [best_channel, proportional_fair(cell), age, fedcs, chen(0.5), refl(cell, seed)]
    return many[kind % 6]


def with_rests(kind: int, cell: Cell, quorum: int, seed: int) -> Schedule:
    """Tiers too: a round closes on the first complete group, or on UEs of one tier."""
    tiers = tiers_by_latency(cell, BITS, SAMPLES, max(1, cell.ues // quorum), quorum)
    in_tiers: list[Schedule] = [AllTiers(tiers, quorum, seed), OneTier(tiers, quorum, seed), best_channel]
    return in_tiers[kind % 3]


def by_loss(_kind: int, _cell: Cell, _quorum: int, _seed: int) -> Schedule:
    return ByLoss()


PLANS = {"schedule by number": by_number, "schedule by moment": by_moment}
PLANS |= {"schedule by loss": by_loss, "rests": with_rests}


@dataclass
class Drawn:
    """A random setting of the full table."""

    seed: int
    where: Where
    names: list[str]
    setting: Setting = field(default_factory=Setting)

    @classmethod
    def of(cls, seed: int) -> "Drawn":
        random, where = np.random.default_rng([seed, 44]), NETWORKS[seed % 3]
        first = TABLE[seed // len(NETWORKS) % len(TABLE)]
        wanted = [first, *random.permutation(TABLE).tolist()]
        names: list[str] = []
        for name in dict.fromkeys(wanted):
            pairs = [tuple(sorted((name, other), key=TABLE.index)) for other in names]
            refused = any(set(pair) in OTHER_WAY or where in REFUSED.get(pair, ("", ()))[1] for pair in pairs)  # type: ignore[call-overload]
            if not refused and len(names) < 2 + seed % 4 and (name != "coupled interference" or where != "one cell"):
                names.append(name)
        drawn = cls(seed, where, names)
        for name in names:
            FEATURES[name](drawn.setting)
        if drawn.setting.joules is not None:
            drawn.setting.joules = drawn.pick(12, 0.05, 0.15)
        options: dict[str, Any] = {
            "errors": Errors(drawn.pick(14, "discard", "repeat", "harq"), drawn.pick(15, 80.0, 90.0))
        }
        options |= {"outage": Outage(drawn.pick(16, "wait", "lose"), drawn.pick(17, 1.5e6, 2.5e6))}
        options |= {
            "profile": Profile((0.0, *np.sort(random.uniform(0.0, 2.0, 3))), tuple(random.uniform(0.2, 1.0, 4)))
        }
        drawn.setting.cell.update({name: value for name, value in options.items() if name in drawn.setting.cell})
        return drawn

    def pick(self, stream: int, *options: Any) -> Any:
        return options[int(np.random.default_rng([self.seed, 45, stream]).integers(len(options)))]

    @property
    def plans(self) -> Callable[[int, Cell, int, int], Schedule] | None:
        return next((PLANS[name] for name in self.names if name in PLANS), None)

    @property
    def rules(self) -> Protocol:
        terms: dict[str, Any] = {"quorum": self.pick(0, 1, 2, 3), "max_staleness": self.pick(1, None, 3, 5)}
        terms["stale"] = "restart" if {"drafts", *PLANS} & set(self.names) else self.pick(2, *STALE)
        if "rest rounds" in self.names:
            terms |= {"quorum": self.pick(0, 1, 2), "stale": self.pick(2, "restart", "wait")}
        return Protocol(**terms | self.setting.protocol)

    @property
    def policy(self) -> Policy:
        if "power and frequency" in self.names:
            return self.pick(3, smoothly, unevenly)
        if "reshare events" in self.names and self.where != "one cell":
            return by_bits
        return self.pick(3, equal_share, uneven_share(self.seed), by_bits, to_everyone, planned_share)

    def cell(self) -> Cell:
        fleet, random = self.setting.fleet, np.random.default_rng([self.seed, 46])
        if fleet.traces is not None:
            fleet = replace(fleet, rate_bps=np.where(np.arange(UES) % 6 == 5, 3e5, np.nan))
        if self.pick(4, True, False):
            own = np.isfinite(fleet.rate_bps)
            fleet = replace(fleet, spread=Spread(random.uniform(0, 0.5, UES), random.uniform(0, 0.5, UES) * own))
        more = self.setting.cell | {"downlink_s": self.pick(5, 0.0, 0.02)}
        if "downlink" in more:
            more["downlink"] = replace(more["downlink"], model_bits=self.pick(13, 1e5, 2e6))  # 0.1 s: it has a queue
        return Cell.draw(UES, self.seed, radius_m=RADIUS_M, cpu_hz=(1e8, 2e9), fleet=fleet, **more)


def signals_of(cell: Cell) -> Callable[[int], np.ndarray]:
    return cell.signal_hz if cell.coherence_s is None else cell.channel.signal_in


@dataclass
class Case:
    """A drawn setting with its cells, as both sides play it."""

    drawn: Drawn
    cells: Sequence[Cell]  # one for each base station of the twin
    described: Sequence[np.ndarray]  # the UEs that each of them describes
    planned: Sequence[np.ndarray]  # the UEs that the schedule of each server numbers from 0
    policies: Sequence[Policy]
    network: Cells | None = None
    one_server: bool = True

    @classmethod
    def of(cls, drawn: Drawn) -> "Case":
        cell, everyone, policy = drawn.cell(), np.arange(UES), drawn.policy
        if drawn.where == "one cell":
            return cls(drawn, [cell], [everyone], [everyone], [policy])
        count, many = drawn.pick(6, 2, 3), drawn.where == "edges"
        options: dict[str, Any] = {"reuse": drawn.pick(7, 1, 1, 3) if count == 3 else 1, **drawn.setting.network}
        if many:
            options |= {"backhaul_s": drawn.pick(8, 0.0, 0.05, 0.2)}
        cells = make_cells(cell, Sites.grid(count, RADIUS_M), RADIUS_M, **options, one_server=not many)
        if many or cells.joint:
            inside = cells.members if many and cells.joint and not cells.moving else cells.ues
            planned = inside if many else [everyone]
            return cls(drawn, cells.cells, cells.ues, planned, [policy] * count, cells, not many)
        shared = in_each_cell(policy, cells.ues, [one.bandwidth_hz for one in cells.cells])
        return cls(drawn, [cells.whole], [everyone], [everyone], [shared], None)

    @property
    def schedules(self) -> list[Schedule | None]:
        drawn, plans = self.drawn, self.drawn.plans
        kind = 2 if self.network is not None and self.network.moving and not self.one_server else drawn.seed
        if plans is None:
            return [None] * len(self.planned)
        of = [self.network.whole] if self.one_server and self.network is not None else list(self.cells)
        of = [
            cell if cell.ues == own.size else self.alone(number)
            for number, (cell, own) in enumerate(zip(of, self.planned, strict=True))
        ]
        return [plans(kind, cell, drawn.rules.quorum, drawn.seed) for cell in of]

    def alone(self, number: int) -> Cell:
        assert self.network is not None
        return self.network.alone(number)

    def budget(self, cell: Cell) -> Budget | None:
        return None if self.drawn.setting.joules is None else Budget.of(self.drawn.setting.joules, SPENT, cell, SAMPLES)

    def simulate(self) -> Timeline:
        drawn, rules = self.drawn, self.drawn.rules
        more: dict[str, Any] = {"payload_bits": BITS, "samples": SAMPLES, "horizon_s": UNTIL_S}
        more["reshare"] = drawn.setting.reshare
        if not self.one_server:
            assert self.network is not None
            more |= {"budgets": [self.budget(cell) for cell in self.cells], "schedules": self.schedules}
            more |= {"model_bits": 1e5, "edge_rounds": self.edge_rounds, "bandwidth": self.policies[0]}
            if self.has_feedback:
                until = {"rounds": None, "horizon_s": more.pop("horizon_s")}
                conditions = conditions_of_edges(self.network, rules, self.cloud, **more)
                return with_feedback(ChunkedPlay(conditions, **until, chunk=CHUNK))
            return simulate_cells(self.network, rules, self.cloud, **more)
        whole, network = self.cells[0], None
        if self.network is not None:
            whole, network = self.network.whole, network_of(self.network, BITS, one_server=True)
        more |= {"budget": self.budget(whole), "schedule": self.schedules[0], "network": network}
        more["bandwidth"] = self.policies[0]
        if self.has_feedback:
            until = {"rounds": None, "horizon_s": more.pop("horizon_s")}
            return with_feedback(ChunkedPlay(conditions_of(whole, rules, **more), **until, chunk=CHUNK))
        return simulate(whole, rules, **more)

    @property
    def has_feedback(self) -> bool:
        return "schedule by loss" in self.drawn.names

    @property
    def edge_rounds(self) -> int:
        return self.drawn.pick(9, 1, 2, 3)

    @property
    def cloud(self) -> Protocol:
        count = len(self.cells)
        return Protocol(self.drawn.pick(10, *range(1, count + 1)), self.drawn.pick(11, None, count - 1), "wait")

    def inputs(self) -> Inputs:
        """What the twin is given."""
        drawn, cells, network, rules = self.drawn, self.cells, self.network, self.drawn.rules
        first, count, fleet = cells[0], len(cells), drawn.cell().fleet
        assert fleet is not None
        sites = []
        for cell, own, policy in zip(cells, self.described, self.policies, strict=True):
            mast = None if cell.downlink is None else mast_of(Run(cell))  # type: ignore[arg-type]  # of its cell alone
            limits = (cell.cap_bits_per_s_hz, cell.coherence_s or math.inf)
            chosen = (cell.cpu_hz, np.broadcast_to(cell.sent_power_w, cell.ues)) if chooses_more(policy) else ()
            signals = (signals_of(cell), cell.bandwidth_hz, policy)
            sites.append(Site(own.tolist(), *signals, *limits, mast, known_of(cell), *chosen))
        processors = np.empty(UES)
        for cell, own in zip(cells, self.described, strict=True):
            processors[own] = cell.cpu_hz
        compute_s = first.cycles_per_sample * SAMPLES / processors
        if self.one_server:
            whole = cells[0] if network is None else network.whole
            places = [
                Place(
                    range(count),
                    range(UES),
                    self.schedules[0],
                    whole.job_s(SAMPLES, rules.quorum),
                    job=jobs_of(first, fleet, compute_s, np.arange(UES)),
                    tries=tries_of(first, np.arange(UES)),
                )
            ]
            trip_s = [[0.0] * count]
        else:
            assert network is not None
            transfer_s, trips_s = network.transfer_s(1e5).tolist(), network.transfer_s(BITS)
            places = []
            for number, (cell, own, planned) in enumerate(zip(cells, self.described, self.planned, strict=True)):
                usual_s = cell.job_s(SAMPLES, rules.quorum)[np.searchsorted(own, planned)]
                seeded = first if network.joint else cell
                job, tries = jobs_of(seeded, fleet, compute_s, own), tries_of(seeded, own)
                places.append(
                    Place([number], planned.tolist(), self.schedules[number], usual_s, transfer_s[number], job, tries)
                )
            trip_s = np.where(np.eye(count), 0.0, trips_s[:, None] + trips_s).tolist()
        serving, level_db, co_channel = [0] * UES, None, []
        if network is not None:
            serving = network.places()[2].tolist()
            if network.moving:
                level_db = levels_of(network)
            if network.co_channel is not None:
                apart_m = np.hypot(
                    np.subtract.outer(network.x_m, network.x_m), np.subtract.outer(network.y_m, network.y_m)
                )
                reuse = drawn.pick(7, 1, 1, 3) if count == 3 else 1
                co_channel = ((apart_m > 1.0) & (reuse == 1)).tolist()
        hours: dict[int, Steps] = {}
        if isinstance(fleet.presence, Availability):
            hours = {ue: (each.intervals, each.period_s) for ue, each in enumerate(fleet.presence.hours)}
        uplinks = {}
        for ue, trace in zip(fleet.traces.ues, fleet.traces.traces, strict=True) if fleet.traces else ():
            uplinks[int(ue)] = list(zip(trace.time_s.tolist(), trace.bps.tolist(), strict=True)), trace.lasts_s
        uplinks |= {
            int(ue): ([(0.0, float(fleet.rate_bps[ue]))], math.inf)
            for ue in np.flatnonzero(np.isfinite(fleet.rate_bps))
        }
        battery = None
        if drawn.setting.joules is not None:
            sending_w = first.power_w * SPENT.radiates + SPENT.sending_w
            battery = Battery(
                drawn.setting.joules, SPENT.kappa * processors**3, np.full(UES, sending_w), SPENT.joules_per_bit
            )
        cloud = None if self.one_server else RoundRules(self.cloud.quorum, self.cloud.max_staleness, "wait")
        return Inputs(
            sites,
            places,
            RoundRules(
                rules.quorum, rules.max_staleness, rules.stale, None, rules.rests, rules.drafts, rules.rest_rounds
            ),
            compute_s.tolist(),
            BITS,
            serving,
            trip_s,
            first.downlink_s,
            level_db,
            hours,
            bool(drawn.setting.network.get("keeps", True)),
            uplinks,
            fleet.own_bps,
            battery,
            co_channel,
            drawn.setting.reshare == "events",
            cloud,
            self.edge_rounds,
            0.0 if first.outage is None else first.outage.rate_bps,
            first.outage is not None and first.outage.rule == "lose",
            ((0.0, 1.0),)
            if first.profile is None
            else list(zip(first.profile.time_s, first.profile.share, strict=True)),
            reported if self.has_feedback else None,
            CHUNK,
        )


@dataclass
class Run:
    """A cell as ``mast_of`` takes it."""

    cell: Cell
    samples: float = SAMPLES
    protocol: Protocol = field(default_factory=lambda: Protocol(1))


def jobs_of(
    cell: Cell, fleet: Fleet, compute_s: np.ndarray, described: np.ndarray
) -> Callable[[int, int], tuple[float, float]]:
    def job(ue: int, version: int) -> tuple[float, float]:
        spread = fleet.spread
        if spread is None:
            return float(compute_s[ue]), 1.0
        own = int(np.searchsorted(described, ue))
        z = np.random.default_rng([cell.seed, 15, version]).standard_normal((described.size, 2))[own]
        longer, faster = (
            math.exp(s[ue] * min(max(x, -4.0), 4.0)) for s, x in zip((spread.compute, spread.rate), z, strict=True)
        )
        return float(compute_s[ue]) * longer, faster

    return job


def tries_of(cell: Cell, described: np.ndarray) -> Callable[[int, int, int, float], tuple[int, bool]] | None:
    errors = cell.errors
    if errors is None:
        return None

    def tries(ue: int, version: int, before: int, snr: float) -> tuple[int, bool]:
        own = int(np.searchsorted(described, ue))
        return tries_by_hand(
            errors, snr, float(np.random.default_rng([cell.seed, STREAM, version, before]).random(own + 1)[-1])
        )

    return tries


def known_of(cell: Cell) -> Callable[[int], np.ndarray] | None:
    if not cell.csi_error_db and not cell.csi_delay:
        return None

    def known_hz(block: int) -> np.ndarray:
        normals = [NormalDist().inv_cdf(u) for u in cell.channel._draws.uniform(block, 2).tolist()]
        return signals_of(cell)(max(block - cell.csi_delay, 0)) * 10 ** (cell.csi_error_db / 10 * np.array(normals))

    return known_hz


def levels_of(network: Cells) -> Levels:
    """What UEs measure, by the path loss of Table I."""

    def level_db(time_s: float) -> list[list[float]]:
        seen = [np.maximum(cell.at(time_s).where.distance_m, 1.0) for cell in network.cells]
        return (-38 * np.log10(np.transpose(seen))).tolist()

    return level_db


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_random_settings_of_the_full_table_agree_with_processes(seed: int):
    case = Case.of(Drawn.of(seed))
    timeline = case.simulate()
    assert_agrees(timeline, *play_network(case.inputs(), UNTIL_S))
    assert timeline.rounds >= 3


def test_the_random_settings_cover_every_feature_in_every_network():
    drawn = [Drawn.of(seed) for seed in SEEDS]
    for where, name in itertools.product(NETWORKS, TABLE):
        if (where, name) != ("one cell", "coupled interference"):
            assert sum(one.where == where and name in one.names for one in drawn) >= 1, (where, name)


def test_a_discarded_upload_takes_no_earlier_update_of_its_ue_along():
    """A UE that has sent an update to its old edge fails at its new one (a clock once lost both)."""
    drawn = Drawn(3002, "edges", ["errors", "mobility, keep"])
    for name in drawn.names:
        FEATURES[name](drawn.setting)
    drawn.setting.cell["errors"] = Errors("discard", 100.0)
    case = Case.of(drawn)
    assert_agrees(case.simulate(), *play_network(case.inputs(), UNTIL_S))
