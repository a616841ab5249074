"""The slow twin of every network: what would happen if every job, transfer and source of events were a process?

One SimPy process for each job, transfer, trace, fading, UE with hours and cloud, and one for all handovers. Like ``twin``,
whose rules of a server it takes, it is written from the description and shares with the package only what it is given:
gains, policies, schedules, and what these look at (``Uplink``, ``Moment``).

Whatever happens at an instant happens before ``Network.settle``, which closes rounds, hands out models and shares bands.
"""

import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import simpy
from twin import OUT, has_rested, overdue, who_closes
from twin_inputs import Inputs, Levels, Place, Round, RoundRules, Site

from perfeds2.allocation.bandwidth import Uplink
from perfeds2.allocation.schedulers import Moment
from perfeds2.timeline.record import Timeline

MEASURES_S, BETTER_DB = 0.16, 3.0  # event A3: a neighbour is 3 dB better at two measurements in a row
LAST: Any = 9  # priority in SimPy, after everything else that happens at an instant
Phase = Literal["waiting", "computing", "sending", "sent"]


class Job:
    """A process: the model comes, the UE computes and sends, and the update crosses the backhaul."""

    def __init__(self, network: "Network", seat: "Seat", version: int, wait_s: float):
        self.network, self.seat, self.ue = network, seat, seat.number
        given, place = network.inputs, seat.server.place
        seconds, self.ease = (given.compute_s[self.ue], 1.0) if place.job is None else place.job(self.ue, version)
        sent, self.fails = network.tries(place, self.ue, version)
        self.left: dict[Phase, float] = {"waiting": wait_s, "computing": seconds, "sending": sent * given.payload_bits}
        self.phase: Phase = "waiting"
        self.is_new, self.is_new_upload = True, False  # its frequency can still be chosen; it has just begun to send
        self.is_over = self.is_here = False
        self.speed, self.since_s = 0.0, network.env.now
        self.news = network.env.event()
        network.env.process(self.live())

    def live(self):
        env, network = self.network.env, self.network
        for phase in ("waiting", "computing", "sending"):
            self.settle()
            self.phase = phase
            if phase == "sending":
                self.is_new_upload = True
                network.ring({network.serving[self.ue]} if network.inputs.shares_at_events else set())
            self.go(self.is_here, 0.0)
            while self.left[phase] > 0 and not self.is_over:
                self.news = env.event()
                done = env.timeout(self.left[phase] / self.speed) if self.speed > 0 else env.event()
                yield done | self.news
                if not self.news.triggered:
                    self.settle()
                    self.left[phase] = 0.0
            if self.is_over:
                return
        self.phase = "sent"
        network.work[self.ue] = None
        at = network.serving[self.ue]
        network.ring({at} if network.inputs.shares_at_events or self.fails else set())
        if self.fails:
            self.seat.clear()
            return
        trip_s = network.inputs.trip_s[self.seat.server.number][at]
        if trip_s > 0:
            yield env.timeout(trip_s)
        if not self.is_over:
            self.seat.arrived_s = env.now
            network.ring()

    def go(self, is_here: bool, rate: float) -> None:
        """Go on at another speed: in bit/s while sending, and in seconds per second before."""
        speed = (rate if self.phase == "sending" else 1.0) * is_here
        if (speed, is_here) != (self.speed, self.is_here):
            self.settle()
            self.speed, self.is_here = speed, is_here
            if not self.news.triggered:
                self.news.succeed()

    def settle(self) -> None:
        """Note what is left now, and which energy has gone."""
        now_s = self.network.env.now
        passed_s, self.since_s = now_s - self.since_s, now_s
        if self.phase == "sent":
            return
        before = self.left[self.phase]
        self.left[self.phase] = max(before - self.speed * passed_s, 0.0)
        battery = self.network.inputs.battery
        if battery is not None and self.is_here and self.phase != "waiting":
            watts = battery.computing_w if self.phase == "computing" else battery.sending_w
            self.network.spent_j[self.ue] += float(watts[self.ue]) * passed_s
            if self.phase == "sending":
                self.network.spent_j[self.ue] += battery.joules_per_bit * (before - self.left["sending"])

    @property
    def compute_left(self) -> float:
        return self.left["waiting"] + self.left["computing"]

    @property
    def bits_left(self) -> float:
        """The bits left of the transmission that is under way."""
        left = self.left["sending"]
        while left > self.network.inputs.payload_bits:
            left -= self.network.inputs.payload_bits
        return left

    def drop(self) -> None:
        self.settle()
        if self.phase == "sending" and self.network.inputs.shares_at_events:
            self.network.ring({self.network.serving[self.ue]})
        if self.phase != "sent":
            self.network.work[self.ue] = None
        self.is_over = True
        if not self.news.triggered:
            self.news.succeed()


@dataclass
class Seat:
    """What a server knows of a UE."""

    number: int
    server: "Server"
    version: int = OUT
    merged_in: int = -1
    arrived_s: float = math.inf
    job: Job | None = None

    def clear(self) -> None:
        if self.job is not None:
            self.job.drop()
        self.version, self.arrived_s, self.job = OUT, math.inf, None


class Server:
    """A server; for the cloud, an edge has a version and an arrival as a UE has for a server."""

    def __init__(self, network: "Network", number: int, place: Place):
        self.network, self.number, self.place = network, number, place
        self.seats = [Seat(ue, self) for ue in range(len(network.serving))]
        self.round, self.plan, self.history = 0, None, list[Round]()
        self.has_model, self.has_stopped, self.hands_out_first = True, False, True
        self.version, self.merged_in, self.arrived_s = 0, -1, math.inf
        self.begun_s = 0.0

    def reaches(self, ue: int) -> bool:
        return self.network.is_here[ue] and self.network.serving[ue] in self.place.sites

    def stops(self) -> bool:
        """Whether fewer than A UEs have energy or an update that counts."""
        network, k = self.network, self.round
        if network.inputs.battery is None or not self.has_model or self.has_stopped:
            return False
        able = [seat for seat in self.seats if seat.version != OUT and not overdue(seat, k, network.inputs.rules)]  # type: ignore[arg-type]
        idle = [seat for seat in self.seats if seat.version == OUT and network.has_energy(seat.number)]
        if network.inputs.level_db is None:
            idle = [seat for seat in idle if network.serving[seat.number] in self.place.sites]
        return len(able) + len(idle) < network.inputs.rules.quorum

    def close(self, merged: list[Seat]) -> None:
        network, rules, k = self.network, self.network.inputs.rules, self.round
        merged.sort(key=lambda seat: (seat.arrived_s, seat.number))
        numbers = tuple(seat.number for seat in merged)
        self.history.append(Round(network.env.now, numbers, tuple(k - seat.version for seat in merged)))
        there = [seat for seat in self.seats if seat.arrived_s < math.inf and seat not in merged]
        refused = [seat for seat in there if overdue(seat, k, rules)]  # type: ignore[arg-type]
        if rules.drafts:
            refused = [seat for seat in there if 0 <= seat.merged_in == k - 1]
        for seat in [*merged, *refused]:
            seat.clear()
        for seat in merged:
            seat.merged_in = k
            network.merged[seat.number] += 1
        for seat in self.seats:
            if rules.stale == "restart" and overdue(seat, k + 1, rules):  # type: ignore[arg-type]
                seat.clear()
        self.round, self.plan, self.begun_s = k + 1, None, network.env.now
        if network.inputs.cloud is not None and self.round % network.inputs.edge_rounds == 0:
            self.has_model = False
            network.env.process(network.exchange(self))

    def assign_model(self) -> bool:
        """Give the model to the UEs that may have it; return whether any did."""
        network, rules = self.network, self.network.inputs.rules
        if not self.has_model or self.has_stopped:
            return False
        if rules.rests and self.plan is None:
            self.ask()
        idle = [seat for seat in self.seats if seat.version == OUT and has_rested(seat, self.round, rules)]  # type: ignore[arg-type]
        idle = [seat for seat in idle if self.reaches(seat.number) and network.work[seat.number] is None]
        idle = [seat for seat in idle if network.has_energy(seat.number)]
        if rules.rests:
            idle = [seat for seat in idle if any(seat.number in group for group in self.plan or [])]
        if rules.stale == "wait" and rules.max_staleness is not None:
            places = rules.quorum * (rules.max_staleness + 1) - sum(seat.version != OUT for seat in self.seats)
            idle = sorted(idle, key=lambda seat: (seat.merged_in, seat.number))[: max(places, 0)]
        for site in self.place.sites:
            mine = [seat for seat in idle if network.serving[seat.number] == site]
            for seat, wait_s in zip(mine, network.masts[site].send([seat.number for seat in mine]), strict=True):
                seat.version, seat.arrived_s = self.round, math.inf
                seat.job = network.work[seat.number] = Job(network, seat, self.round, network.inputs.fixed_s + wait_s)
        return bool(idle)

    def ask(self) -> None:
        """Ask the schedule for the UEs of this round: groups, the first complete one of which closes it."""
        network, place, k, given = self.network, self.place, self.round, self.network.inputs
        if place.schedule is None:
            return
        if "moment" not in inspect.signature(place.schedule).parameters:
            planned = place.schedule(k)
        else:
            seats, jobs = [self.seats[ue] for ue in place.ues], [self.seats[ue].job for ue in place.ues]
            left_s = [float(place.usual_s[i]) if job is None else job.compute_left for i, job in enumerate(jobs)]
            left = [given.payload_bits if job is None else job.bits_left for job in jobs]
            one = place.sites[0] if len(place.sites) == 1 else None
            gains = [network.known_gain(network.serving[ue] if one is None else one, ue) for ue in place.ues]
            planned = place.schedule(
                Moment(
                    k,
                    network.env.now,
                    given.rules.quorum,
                    sum(given.sites[site].bandwidth_hz for site in place.sites) * network.band_left,
                    np.array(gains),
                    np.array(left_s),
                    np.array(left),
                    np.array([seat.version for seat in seats]),
                    np.array([seat.merged_in for seat in seats]),
                    given.sites[0].cap,
                    None if given.own_bps is None else given.own_bps[list(place.ues)],
                    np.array([self.reaches(ue) for ue in place.ues]),
                    None if given.reports is None else network.reported[list(place.ues)],
                )
            )
        self.plan = [[place.ues[int(own)] for own in group] for group in np.atleast_2d(planned)]


class Sender:
    """A base station's own band: it sends one hand-out after the other."""

    def __init__(self, network: "Network", site: Site):
        self.network, self.site, self.free_s = network, site, 0.0

    def send(self, ues: list[int]) -> list[float]:
        """Return after how many seconds each UE has its model."""
        mast, site, now_s = self.site.mast, self.site, self.network.env.now
        if mast is None or not ues:
            return [0.0] * len(ues)
        begins_s = max(now_s, self.free_s)
        heard_hz = mast.heard_hz(begins_s)
        gains = [float(heard_hz[list(site.ues).index(ue)]) for ue in ues]
        if mast.way == "multicast":
            rates = [site.rate(site.bandwidth_hz, min(gains)) for _ in ues]
        else:
            rates = [site.rate(site.bandwidth_hz / len(ues), gain / len(ues)) for gain in gains]
        self.free_s = begins_s + mast.model_bits / min(rates)
        return [begins_s - now_s + mast.model_bits / rate for rate in rates]


class Network:
    """All processes, and what they share."""

    def __init__(self, inputs: Inputs):
        self.env, self.inputs = simpy.Environment(), inputs
        self.serving, count = list(inputs.serving), len(inputs.sites)
        n = len(self.serving)
        self.work: list[Job | None] = [None] * n  # the job of each UE that is not sent
        self.is_here = [ue not in inputs.hours or inputs.hours[ue][0][0][0] == 0 for ue in range(n)]
        self.own_rate, self.spent_j, self.power = [0.0] * n, [0.0] * n, [1.0] * n
        self.tried, self.band_left = [(OUT, 0)] * n, 1.0  # the version of each UE's last job, and jobs on it before
        self.merged, self.reported, self.closed_since = np.zeros(n, int), np.full(n, np.nan), 0
        self.block, self.bands = [0] * count, [dict[int, float]() for _ in range(count)]
        self.gains: dict[tuple[int, int], dict[int, float]] = {}
        self.masts = [Sender(self, site) for site in inputs.sites]
        self.servers = [Server(self, number, place) for number, place in enumerate(inputs.places)]
        self.server_of = {site: server for server in self.servers for site in server.place.sites}
        self.touched, self.bell = set(range(count)), self.env.event()
        self.inbox, self.merges = simpy.Store(self.env), list[Round]()
        for number, site in enumerate(inputs.sites):
            if site.coherence_s < math.inf:
                self.env.process(self.fade(number, site.coherence_s))
        self.env.process(self.change_band(inputs.band))
        for ue, (steps, period_s) in inputs.uplinks.items():
            self.env.process(self.follow(ue, steps, period_s))
        for ue, (intervals, period_s) in inputs.hours.items():
            self.env.process(self.come_and_go(ue, intervals, period_s))
        if inputs.level_db is not None:
            self.env.process(self.hand_over(inputs.level_db))
        if inputs.cloud is not None:
            self.env.process(self.merge_edges(inputs.cloud))
        self.env.process(self.settles())
        self.ring()

    def ring(self, touched: set[int] = frozenset()) -> None:  # type: ignore[assignment]  # never changed
        """Say that something has happened, and in which cells the band is to be shared again."""
        self.touched |= touched
        if not self.bell.triggered:
            self.bell.succeed()

    # ---- What happens to UEs and gains

    def fade(self, site: int, coherence_s: float):
        while True:
            yield self.env.timeout((self.block[site] + 1) * coherence_s - self.env.now)
            self.block[site] += 1
            self.ring({site} if self.inputs.shares_at_events else set())

    def change_band(self, steps: Sequence[tuple[float, float]]):
        for at_s, share in steps:
            yield self.env.timeout(at_s - self.env.now)
            self.band_left = share
            self.ring(set(range(len(self.bands))))

    def tries(self, place: Place, ue: int, version: int) -> tuple[int, bool]:
        """How often an upload will be sent, drawn at the signal of now and an equal part of the band."""
        if place.tries is None:
            return 1, False
        last, before = self.tried[ue]
        self.tried[ue] = version, before + 1 if last == version else 0
        at, snr = self.serving[ue], math.inf
        if ue not in self.inputs.uplinks:
            many = sum(
                self.serving[other] == at for other in range(len(self.serving)) if other not in self.inputs.uplinks
            )
            snr = self.gain(at, ue) * many / self.inputs.sites[at].bandwidth_hz
        return place.tries(ue, *self.tried[ue], snr)

    def follow(self, ue: int, steps: Sequence[tuple[float, float]], period_s: float):
        start_s = 0.0
        while start_s < math.inf:
            for at_s, rate in steps:
                if start_s + at_s > self.env.now:
                    yield self.env.timeout(start_s + at_s - self.env.now)
                self.own_rate[ue] = rate
                self.ring()
            start_s += period_s

    def come_and_go(self, ue: int, intervals: Sequence[tuple[float, float]], period_s: float):
        start_s = 0.0
        while start_s < math.inf:
            for borders_s in intervals:
                for at_s, comes in zip(borders_s, (True, False), strict=True):
                    if start_s + at_s == math.inf:
                        return
                    if start_s + at_s > self.env.now:
                        yield self.env.timeout(start_s + at_s - self.env.now)
                    if comes != self.is_here[ue]:
                        self.is_here[ue] = comes
                        self.move(ue, {self.serving[ue]})
            start_s += period_s

    def move(self, ue: int, cells: set[int]) -> None:
        """Share the band of cells that a UE leaves or enters. If it does not keep its job, that is lost."""
        work = self.work[ue]
        if work is not None and not self.inputs.keeps:
            work.seat.clear()
        for server in self.servers:
            server.hands_out_first = True
        self.ring(cells)

    def hand_over(self, level_db: Levels):
        """Event A3: a UE goes to the best of the cells that were 3 dB better than its own, now and one measurement ago."""
        better, count = [set[int]() for _ in self.serving], 0
        while True:
            for ue, levels in enumerate(level_db(count * MEASURES_S)):
                own = self.serving[ue]
                now_better = {site for site, level in enumerate(levels) if level > levels[own] + BETTER_DB}
                still, better[ue] = better[ue] & now_better, now_better
                if still:
                    self.serving[ue] = max(still, key=lambda site, levels=levels: (levels[site], -site))
                    better[ue] = set()
                    self.move(ue, {own, self.serving[ue]})
            count += 1
            yield self.env.timeout(count * MEASURES_S - self.env.now)

    # ---- What servers do

    def settles(self):
        """After everything that happens at an instant."""
        while True:
            yield self.bell
            last = self.env.event()
            last._ok, last._value = True, None
            self.env.schedule(last, priority=LAST)
            yield last
            self.bell = self.env.event()
            self.settle()

    def settle(self) -> None:
        """Close rounds, hand out models, plan, share bands again where something has changed, and set all rates."""
        for work in self.work:
            if work is not None:
                work.settle()
        changed = [server for server in self.servers if server.hands_out_first]
        open_ = [
            server
            for server in self.servers
            if server.has_model and not server.has_stopped and not server.hands_out_first
        ]
        closing = [(server, who_closes(server.seats, server.round, self.inputs.rules, server.plan)) for server in open_]  # type: ignore[arg-type]  # a seat is like a phone
        closed = [server for server, merged in closing if merged is not None]
        for server, merged in closing:
            if merged is not None:
                server.close(merged)  # type: ignore[arg-type]
        self.closed_since += len(closed)
        rests, reports = self.inputs.rules.rests, self.inputs.reports
        assert not (rests and reports), "plans of rests are made before the reports of the round"
        if reports is not None and self.closed_since >= self.inputs.chunk:
            self.reported, self.closed_since = reports(self.merged), 0
        for server in self.servers:
            if server.assign_model() or server in closed:
                self.touched |= set(server.place.sites)
        for server in self.servers:
            if server.stops():
                server.has_stopped, server.version = True, OUT
                self.inbox.put(server.number)
        touched, self.touched = self.touched, set()
        for site in sorted(touched):
            server = self.server_of[site]
            if server.plan is None and server.has_model and not server.has_stopped and not self.inputs.rules.rests:
                server.ask()
            self.share(site)
        for work in self.work:
            if work is not None:
                work.is_new = False
        self.set_rates()
        for server in changed:
            server.hands_out_first = False
        if closed or changed:
            self.ring()  # the next round may close at this instant, too

    def gain(self, site: int, ue: int) -> float:
        given, block = self.inputs.sites[site], self.block_of(site)
        if (site, block) not in self.gains:
            self.gains[site, block] = dict(zip(given.ues, given.signal_hz(block).tolist(), strict=True))
        return self.gains[site, block].get(ue, 0.0)

    def block_of(self, site: int) -> int:
        return self.server_of[site].round if self.inputs.sites[site].coherence_s == math.inf else self.block[site]

    def known_gain(self, number: int, ue: int) -> float:
        """What policies and schedules are told."""
        site = self.inputs.sites[number]
        if site.known_hz is None or ue not in site.ues:
            return self.gain(number, ue)
        return float(site.known_hz(self.block_of(number))[list(site.ues).index(ue)])

    def share(self, number: int) -> None:
        """Ask the policy of a cell."""
        site, server, at_events = self.inputs.sites[number], self.server_of[number], self.inputs.shares_at_events
        inside = [self.serving[ue] == number and self.is_here[ue] and ue not in self.inputs.uplinks for ue in site.ues]
        jobs = [self.work[ue] if there else None for ue, there in zip(site.ues, inside, strict=True)]
        if at_events:
            jobs = [job if job is not None and job.compute_left == 0 else None for job in jobs]
        planned = None
        if server.plan is not None:
            planned = np.array([any(ue in group for group in server.plan) for ue in site.ues])
            if at_events and not any(job is not None and on for job, on in zip(jobs, planned, strict=True)):
                planned = None
        uplink = Uplink(
            server.round,
            site.bandwidth_hz * self.band_left,
            np.array([self.known_gain(number, ue) for ue in site.ues]),
            np.array([0.0 if job is None else job.compute_left for job in jobs]),
            np.array([0.0 if job is None else max(job.bits_left, 1e-300) for job in jobs]),
            np.full(len(site.ues), 1 / len(site.ues)),
            planned,
            site.cap,
        )
        if site.cpu_hz is None:
            self.bands[number] = dict(zip(site.ues, np.asarray(site.policy(uplink)).tolist(), strict=True))
            return
        new = [0.0 if job is None or not job.is_new else job.left["computing"] for job in jobs]
        elapsed_s, power_w = self.env.now - server.begun_s, np.broadcast_to(site.power_w, len(site.ues))
        more = {"cycles": np.array(new) * site.cpu_hz, "cpu_hz": site.cpu_hz, "power_w": site.power_w}
        chosen: Any = site.policy(replace(uplink, **more, elapsed_s=elapsed_s))
        self.bands[number] = dict(zip(site.ues, chosen.bandwidth_hz.tolist(), strict=True))
        for own, (ue, job) in enumerate(zip(site.ues, jobs, strict=True)):
            if job is not None and job.is_new:
                job.left["computing"] *= float(site.cpu_hz[own] / chosen.cpu_hz[own])
            if inside[own]:
                self.power[ue] = float(chosen.power_w[own] / power_w[own])

    def set_rates(self) -> None:
        """Tell every job its rate, over the noise of what is sent in other cells now. Drop jobs in outage."""
        given = self.inputs
        sends = [work for work in self.work if work is not None and work.phase == "sending" and self.is_here[work.ue]]
        if given.loses:  # who would begin too slowly does not begin, and is no noise
            begin = [] if given.shares_at_events else [work for work in sends if work.is_new_upload]
            noise = self.noise([work for work in sends if work not in begin])
            sends = [work for work in sends if not (work in begin and self.rate(work, noise) < 0 and self.drop(work))]
        noise = self.noise(sends)
        for work in sends:
            work.is_new_upload = False
        for work in [work for work in self.work if work is not None]:
            rate = self.rate(work, noise)
            work.go(self.is_here[work.ue], max(rate, 0.0))
            if given.loses and work in sends and rate < 0:
                self.drop(work)

    def noise(self, sends: Sequence[Job]) -> list[float]:
        """By base station, relative to that without interference."""
        sites, serving = self.inputs.sites, self.serving
        noise = [1.0] * len(sites)
        for ue in [work.ue for work in sends if work.ue not in self.inputs.uplinks]:
            at = serving[ue]
            for site, others in enumerate(self.inputs.co_channel):
                if others[at] and self.bands[at].get(ue, 0.0) > 0:
                    noise[site] += self.gain(site, ue) * self.power[ue] / (sites[at].bandwidth_hz * self.band_left)
        return noise

    def rate(self, work: Job, noise: list[float]) -> float:
        """The rate of an upload, below 0 if it is in outage."""
        ue, at = work.ue, self.serving[work.ue]
        if ue in self.inputs.uplinks:
            return self.own_rate[ue] * work.ease
        band = self.bands[at].get(ue, 0.0)
        rate = self.inputs.sites[at].rate(band, self.gain(at, ue) * self.power[ue] / noise[at])
        return -1.0 if band > 0 and rate < self.inputs.least_bps else rate

    def drop(self, work: Job) -> bool:
        work.seat.clear()
        self.ring({self.serving[work.ue]})
        return True

    def has_energy(self, ue: int) -> bool:
        battery = self.inputs.battery
        return battery is None or self.spent_j[ue] < battery.joules_of(ue) * (1 - 1e-9)

    # ---- The cloud

    def exchange(self, edge: Server):
        """Bring an edge's model to the cloud."""
        yield self.env.timeout(edge.place.transfer_s)
        edge.arrived_s = self.env.now
        self.inbox.put(edge.number)

    def merge_edges(self, rules: RoundRules):
        """A server whose UEs are the edges."""
        k = 0
        while True:
            while (merged := who_closes(self.servers, k, rules, None)) is None:  # type: ignore[arg-type]
                yield self.inbox.get()
                yield self.env.timeout(0)
            merged.sort(key=lambda edge: (edge.arrived_s, edge.number))
            numbers = tuple(edge.number for edge in merged)
            self.merges.append(Round(self.env.now, numbers, tuple(k - edge.version for edge in merged)))
            k += 1
            for edge in map(self.servers.__getitem__, numbers):
                edge.merged_in, edge.version, edge.arrived_s = k - 1, k, math.inf
                self.env.process(self.come_back(edge))

    def come_back(self, edge: Server):
        """Bring the cloud's model to an edge, which opens its next round."""
        yield self.env.timeout(edge.place.transfer_s)
        edge.has_model = edge.hands_out_first = True
        edge.begun_s = self.env.now
        self.ring(set(edge.place.sites))


def play_network(inputs: Inputs, until_s: float) -> tuple[list[list[Round]], list[Round]]:
    """Return the rounds of every server, and those of the cloud, until a time."""
    network = Network(inputs)
    network.env.run(until=until_s)
    return [server.history for server in network.servers], network.merges


def assert_agrees(timeline: Timeline, servers: list[list[Round]], merges: list[Round]) -> None:
    """Compare a timeline with the rounds of the twin."""
    cloud = timeline.cloud
    if cloud is None:
        _assert_same(timeline.time_s, timeline.ues, timeline.staleness, servers[0])
        return
    for edge, history in enumerate(servers):
        rows = np.flatnonzero(cloud.cell == edge)
        versions = np.searchsorted(np.append(0, rows + 1), timeline.versions[rows])  # by this edge's rounds
        _assert_same(timeline.time_s[rows], timeline.ues[rows], np.arange(rows.size)[:, None] - versions, history)
    _assert_same(cloud.time_s, cloud.cells, cloud.staleness, merges)


def _assert_same(times_s: np.ndarray, ues: np.ndarray, staleness: np.ndarray, history: list[Round]) -> None:
    shorter = min(len(times_s), len(history))
    np.testing.assert_allclose(times_s[:shorter], [one.time_s for one in history[:shorter]], rtol=0, atol=1e-9)
    assert len(times_s) == len(history)
    np.testing.assert_array_equal(ues, np.reshape([one.ues for one in history], ues.shape))
    np.testing.assert_array_equal(staleness, np.reshape([one.staleness for one in history], ues.shape))
