"""The slow twin of the clock: what would the protocol do if every UE were a process of its own?

A second model, written from the protocol's description alone: one SimPy process per UE that computes, sends, is
interrupted whenever a round closes (its rate changes) and waits; and one server process. It is slow and plain. It
shares with ``simulate`` only what it is given: the gains of a round, the policy and the schedule, and what these look at
(``Uplink``, ``Moment``). It needs
SimPy, which only development installs: nothing else in the package imports this file, but the benchmark when asked.
"""

import contextlib
import inspect
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import simpy
from twin_inputs import Battery, Mast, Radio, Round, RoundRules

from perfeds2.allocation.bandwidth import Uplink
from perfeds2.allocation.schedulers import Moment

OUT = -1  # the version of a phone without a job


class Air:
    """The base station's own band: it sends one model after the other."""

    def __init__(self, mast: Mast | None, radio: Radio):
        self.mast, self.radio, self.free_s = mast, radio, 0.0

    def hand(self, phones: list["Phone"], version: int) -> None:
        """Give all of these the model, as soon as the air is free."""
        phones = [phone for phone in phones if phone.takes_one()]
        if self.mast is None or not phones:
            for phone in phones:
                phone.begin(version, 0.0)
            return
        now_s = phones[0].env.now
        begin_s = now_s if self.free_s < now_s else self.free_s
        gains = [float(self.mast.heard_hz(begin_s)[phone.number]) for phone in phones]
        if self.mast.way == "multicast":
            rates = [self.radio.rate(self.radio.bandwidth_hz, min(gains)) for _ in phones]
        else:  # part of the band, and of the power
            many = len(phones)
            rates = [self.radio.rate(self.radio.bandwidth_hz / many, gain / many) for gain in gains]
        for phone, rate in zip(phones, rates, strict=True):
            phone.begin(version, begin_s - now_s + self.mast.model_bits / rate)
            self.free_s = max(self.free_s, begin_s + self.mast.model_bits / rate)


@dataclass
class Weather:
    """Which block of time it is, and whether a UE has come or gone since the bands were shared out."""

    block: int = 0
    moved: bool = False
    share: float = 1.0  # of the band that others leave


class Phone:
    """A UE: waits for a model, computes, sends at whatever rate it has, and rings the server."""

    def __init__(
        self,
        env: simpy.Environment,
        number: int,
        compute_s: float,
        payload_bits: float,
        bell: simpy.Store,
        battery: Battery | None = None,
    ):
        self.battery, self.spent_j = battery, 0.0  # for jobs that are over
        self.env, self.number, self.bell = env, number, bell
        self.compute_s, self.payload_bits = compute_s, payload_bits
        self.inbox = simpy.Store(env)
        self.merged_in = -1  # the round
        self.version = OUT  # of the model it works on, or whose update lies at the server
        self.arrived_s = math.inf
        self.ready_s = 0.0  # when computing ends
        self.sending = False
        self.rate, self.rate_since_s, self.bits_then = 0.0, 0.0, 0.0
        self.band = 0.0
        self.here, self.has_own = True, False
        self.computing_s = 0.0  # left, while it is away
        self.job: Callable[[int, int], tuple[float, float]] | None = None
        self.own_rate, self.ease = 0.0, 1.0
        self.since_s, self.waits_s, self.bits_before = 0.0, 0.0, 0.0  # the stretch: its start, its wait, its bits
        self.speed, self.power, self.is_new = 1.0, 1.0, False  # fractions of the highest; whether its job begins now
        self.tries: Callable[[int, int, int], tuple[int, bool]] | None = None  # of (phone, version, jobs on it before)
        self.on_failure: Callable[[], None] = lambda: None
        self.fails, self.last_version, self.attempt = False, OUT, 0
        self.is_weak, self.loses = False, False  # its rate is too low; whether it then loses its job
        self.process = env.process(self.live())

    @property
    def busy(self) -> bool:
        return self.version != OUT and self.arrived_s == math.inf

    def takes_one(self) -> bool:
        """Before it is given a model: a job it still has is dropped. With an empty battery it takes none."""
        if self.busy:
            self.process.interrupt("drop")
        if self.version != OUT:
            self.rest()
        return not self.is_empty

    def begin(self, version: int, model_s: float) -> None:
        """A new job; its model is there after this many seconds."""
        self.version, self.arrived_s = version, math.inf
        seconds, self.ease = (self.compute_s, 1.0) if self.job is None else self.job(self.number, version)
        self.ready_s, self.bits_then = self.env.now + model_s + seconds, self.payload_bits
        if self.tries is not None:
            self.attempt = self.attempt + 1 if self.last_version == version else 0
            self.last_version = version
            sent, self.fails = self.tries(self.number, version, self.attempt)
            self.bits_then = sent * self.payload_bits
        self.waits_s = model_s + (0.0 if self.battery is None else self.battery.model_s)
        self.since_s, self.bits_before = self.env.now, self.bits_then
        self.sending, self.speed, self.is_new = False, 1.0, True
        if self.has_own:
            self.rate = self.own_rate * self.ease
        self.inbox.put(model_s)

    def tune(self, speed: float, power: float) -> None:
        """Its job, if it begins now, computes at this fraction of the frequency; from now on it sends with this power."""
        self.spent_j += self.job_joules()
        self.waits_s = max(self.since_s + self.waits_s - self.env.now, 0.0)
        self.since_s, self.bits_before, self.power = self.env.now, self.bits_left(), power
        if self.is_new:
            self.speed = speed
            seconds = self.ready_s - self.env.now - self.waits_s
            self.ready_s = self.env.now + self.waits_s + seconds / speed
            self.process.interrupt("another speed")

    def drop(self) -> None:
        """Its job is over, and it is not there to be handed another."""
        if self.busy:
            self.process.interrupt("drop")
        self.rest()

    def rest(self) -> None:
        self.spent_j += self.job_joules()
        self.version, self.arrived_s = OUT, math.inf
        self.sending = False

    @property
    def is_empty(self) -> bool:
        return self.battery is not None and self.spent_j >= self.battery.joules_of(self.number) * (1 - 1e-9)

    def job_joules(self) -> float:
        """What its job has taken since it began, or went on."""
        if self.battery is None or self.version == OUT or (not self.here and self.busy):
            return 0.0
        computed_s = max(min(self.env.now, self.ready_s) - self.since_s - self.waits_s, 0.0)
        sent_s = max(min(self.env.now, self.arrived_s) - max(self.ready_s, self.since_s), 0.0)
        bits = self.bits_before - self.bits_left()
        watts = [float(each[self.number]) for each in (self.battery.computing_w, self.battery.sending_w)]
        watts = [watts[0] * self.speed**3, watts[1] * self.power]
        return watts[0] * computed_s + watts[1] * sent_s + self.battery.joules_per_bit * bits

    def leave(self, keeps: bool) -> None:
        """It goes; its job goes on when it is back, or is dropped."""
        if self.busy and not keeps:
            self.drop()
        elif self.busy:
            self.spent_j += self.job_joules()
            self.waits_s = max(self.since_s + self.waits_s - self.env.now, 0.0)
            self.computing_s = max(self.ready_s - self.env.now, 0.0)
            self.bits_then, self.rate_since_s = self.bits_left(), self.env.now
            self.process.interrupt("gone")
        self.here = False

    def come(self) -> None:
        self.here = True
        if self.busy:
            self.ready_s, self.rate_since_s = self.env.now + self.computing_s, self.env.now
            self.since_s, self.bits_before = self.env.now, self.bits_then
            self.process.interrupt("back")

    def compute_left(self) -> float:
        if not self.here:
            return self.computing_s if self.busy else 0.0
        return max(self.ready_s - self.env.now, 0.0) if self.busy else 0.0

    def bits_left(self) -> float:
        if not self.busy:
            return 0.0
        sent = self.rate * (self.env.now - self.rate_since_s) if self.sending and self.here else 0.0
        return max(self.bits_then - sent, sys.float_info.min)

    def of_one_transmission(self) -> float:
        """The bits left of the transmission that is under way."""
        left = self.bits_left()
        while left > self.payload_bits:
            left -= self.payload_bits
        return left

    def set_rate(self, rate: float) -> None:
        if self.sending and self.here:
            self.bits_then, self.rate_since_s = self.bits_left(), self.env.now
            self.process.interrupt("new rate")
        self.rate = rate

    def live(self):
        while True:
            model = self.inbox.get()
            while not model.processed:
                with contextlib.suppress(simpy.Interrupt):  # news for a job that is over
                    yield model
            try:
                yield from self.compute()
                self.sending, self.rate_since_s = True, self.env.now
                yield from self.send()
                self.sending, self.arrived_s = False, self.env.now
                if self.fails or (self.loses and self.is_weak):
                    self.rest()
                    self.on_failure()
                self.bell.put(self.number)
            except simpy.Interrupt as dropped:
                if dropped.cause != "drop":
                    raise

    def compute(self):
        while True:
            try:
                yield self.env.timeout(max(self.ready_s - self.env.now, 0.0)) if self.here else self.env.event()
                return
            except simpy.Interrupt as news:
                if news.cause == "drop":
                    raise

    def send(self):
        while True:
            if self.loses and self.is_weak and self.here:
                return
            try:
                sends = self.rate > 0 and self.here
                yield self.env.timeout(self.bits_then / self.rate) if sends else self.env.event()
                return
            except simpy.Interrupt as news:
                if news.cause == "drop":
                    raise


def play_with_processes(
    radio: Radio,
    rules: RoundRules,
    compute_s,
    payload_bits: np.ndarray | float,
    rounds: int,
    battery: Battery | None = None,
    mast: Mast | None = None,
    joules: list[float] | None = None,
) -> list[Round]:
    """The first rounds of the protocol on these devices; with batteries, until too few of them are left."""
    env = simpy.Environment()
    bell = simpy.Store(env)
    bits = np.broadcast_to(payload_bits, len(compute_s)).tolist()
    phones = [Phone(env, i, float(seconds), bits[i], bell, battery) for i, seconds in enumerate(compute_s)]
    history: list[Round] = []
    weather = Weather()
    env.process(change_band(env, radio.band, weather, bell))
    if radio.coherence_s < math.inf:
        env.process(change_weather(env, phones, radio, weather))
    for phone in phones:
        phone.loses = radio.loses
        phone.job, phone.on_failure = radio.job, lambda: setattr(weather, "moved", True)
        if radio.tries is not None:
            phone.tries = lambda *job: radio.tries(*job, gains_now(radio, job[1], weather))  # type: ignore[misc]
    for number, (steps, period_s) in radio.own.items():
        phones[number].has_own = True
        env.process(follow(env, phones[number], steps, period_s))
    for number, (intervals, period_s) in radio.hours.items():
        phones[number].here = intervals[0][0] == 0
        env.process(come_and_go(env, phones[number], intervals, period_s, radio.keeps, weather, bell))
    air = Air(mast, radio)
    env.run(until=env.process(close_rounds(env, phones, bell, air, rules, rounds, history, weather)))
    if joules is not None:  # what each has spent
        joules += [phone.spent_j + phone.job_joules() for phone in phones]
    return history


def change_weather(env, phones: Iterable[Phone], radio: Radio, weather: Weather):
    """Block after block: new gains, with unchanged bands."""
    while True:
        yield env.timeout((weather.block + 1) * radio.coherence_s - env.now)
        weather.block += 1
        for phone, gain in zip(phones, radio.signal_hz(weather.block).tolist(), strict=True):
            if not phone.has_own:
                radio.give(phone, phone.band, gain * phone.power)


def change_band(env, steps: Sequence[tuple[float, float]], weather: Weather, bell: simpy.Store):
    """Others use more or less of the band, which is then shared again."""
    for at_s, share in steps:
        if at_s > 0:
            yield env.timeout(at_s - env.now)
            weather.share, weather.moved = share, True
            bell.put(0)


def follow(env, phone: Phone, steps: Sequence[tuple[float, float]], period_s: float):
    """A UE's own uplink: step after step, repeated if it has a period."""
    start_s = 0.0
    while start_s < math.inf:
        for at_s, rate in steps:
            if start_s + at_s > env.now:
                yield env.timeout(start_s + at_s - env.now)
            phone.own_rate = rate
            phone.set_rate(rate * phone.ease)
        start_s += period_s


def come_and_go(
    env,
    phone: Phone,
    intervals: Sequence[tuple[float, float]],
    period_s: float,
    keeps: bool,
    weather: Weather,
    bell: simpy.Store,
):
    """A phone's hours: when it leaves or returns, the band is shared again."""
    start_s = 0.0
    while start_s < math.inf:
        for comes_s, goes_s in intervals:
            for at_s, comes in ((comes_s, True), (goes_s, False)):
                if start_s + at_s == math.inf:
                    return
                if start_s + at_s > env.now:
                    yield env.timeout(start_s + at_s - env.now)
                if comes != phone.here:
                    phone.come() if comes else phone.leave(keeps)
                    weather.moved = True
                    bell.put(phone.number)
        start_s += period_s


def close_rounds(
    env,
    phones: list[Phone],
    bell: simpy.Store,
    air: Air,
    rules: RoundRules,
    rounds: int,
    history: list[Round],
    weather: Weather,
):
    """The server: hears the bell, decides when a round is over, and hands out the new model."""
    places = len(phones)
    if rules.stale == "wait" and rules.max_staleness is not None:
        places = rules.quorum * (rules.max_staleness + 1)
    if not rules.rests:
        air.hand([phone for phone in phones if phone.here][:places], 0)
    for k in range(rounds):
        if too_few(phones, k, rules, air.radio):
            return
        plan = None if rules.schedule is None else ask(phones, air, k, rules, weather)
        if rules.rests and plan is not None:
            idle = [phone for phone in phones if phone.version == OUT and phone.here]
            air.hand([phone for phone in idle if any(phone.number in group for group in plan)], k)
        open_the_air(phones, air.radio, k, plan, weather)
        while (merged := who_closes(phones, k, rules, plan)) is None:
            yield bell.get()
            yield env.timeout(0)  # UEs that arrive at this very instant count too
            if weather.moved:
                weather.moved = False
                may = [p for p in in_turn(phones, places) if not rules.rests or any(p.number in g for g in plan or [])]
                air.hand(may, k)
                yield env.timeout(0)
                if too_few(phones, k, rules, air.radio):
                    return
                open_the_air(phones, air.radio, k, plan, weather)
        merged.sort(key=lambda phone: (phone.arrived_s, phone.number))
        history.append(Round(env.now, tuple(p.number for p in merged), tuple(k - p.version for p in merged)))
        refused = [p for p in phones if p.arrived_s < math.inf and overdue(p, k, rules)]
        if rules.drafts:
            refused = [p for p in phones if p.arrived_s < math.inf and 0 <= p.merged_in == k - 1 and p not in merged]
        for phone in merged:
            phone.rest()
            phone.merged_in = k
        if rules.rests:
            continue
        if rules.stale == "wait" and rules.max_staleness is not None:
            next_ = in_turn([p for p in phones if p.version != OUT or has_rested(p, k + 1, rules)], places)
        else:
            too_old = [phone for phone in phones if rules.stale == "restart" and overdue(phone, k + 1, rules)]
            tired = [p for p in phones if p.version == OUT and p not in merged]
            next_ = [p for p in dict.fromkeys([*merged, *refused, *too_old, *tired]) if has_rested(p, k + 1, rules)]
            for phone in next_:
                if not phone.here:
                    phone.drop()
        air.hand([phone for phone in next_ if phone.here], k + 1)
        yield env.timeout(0)  # a dropped job must be over before the new rates are announced


def too_few(phones: list[Phone], k: int, rules: RoundRules, radio: Radio) -> bool:
    """Whether too few batteries are left."""
    able = [p for p in phones if p.version != OUT and not overdue(p, k, rules)]
    able += [p for p in phones if p.version == OUT and radio.hours and not p.is_empty]  # they may come, and get a job
    return len(able) < rules.quorum and phones[0].battery is not None


def has_rested(phone: Phone, k: int, rules: RoundRules) -> bool:
    """Whether a phone may be handed the model of round k."""
    return phone.merged_in < 0 or k - phone.merged_in >= rules.rest_rounds


def in_turn(phones: list[Phone], places: int) -> list[Phone]:
    """Who is there without a job and may have one: longest out first."""
    free = places - sum(phone.version != OUT for phone in phones)
    idle = [phone for phone in phones if phone.version == OUT and phone.here and not phone.is_empty]
    return sorted(idle, key=lambda phone: (phone.merged_in, phone.number))[:free]


def ask(phones: list[Phone], air: Air, k: int, rules: RoundRules, weather: Weather) -> list[list[int]]:
    """Whom the round is to close on: groups of phones, the first complete one of which does it; mostly there is one."""
    assert rules.schedule is not None
    radio, usual_s = air.radio, [0.0 if air.mast is None else float(air.mast.usual_s[p.number]) for p in phones]
    if "moment" not in inspect.signature(rules.schedule).parameters:
        planned = rules.schedule(k)
    else:
        out = [phone.version == OUT for phone in phones]
        planned = rules.schedule(
            Moment(
                k,
                phones[0].env.now,
                rules.quorum,
                radio.bandwidth_hz * weather.share,
                gains_now(radio, k, weather),
                np.array(
                    [s + p.compute_s if o else p.compute_left() for p, o, s in zip(phones, out, usual_s, strict=True)]
                ),
                np.array([p.payload_bits if o else p.bits_left() for p, o in zip(phones, out, strict=True)]),
                np.array([phone.version for phone in phones]),
                np.array([phone.merged_in for phone in phones]),
                None if radio.cap == math.inf else radio.cap,
                radio.own_bps,
                np.array([phone.here for phone in phones]) if radio.hours else None,
            )
        )
    return [[int(ue) for ue in group] for group in np.atleast_2d(planned)]


def gains_now(radio: Radio, k: int, weather: Weather) -> np.ndarray:
    return radio.signal_hz(k if radio.coherence_s == math.inf else weather.block)


def open_the_air(phones: list[Phone], radio: Radio, k: int, plan: list[list[int]] | None, weather: Weather) -> None:
    """A round opens: new gains, new shares of the band, new rates."""
    gains = gains_now(radio, k, weather)
    served = [phone.here and not phone.has_own for phone in phones]
    uplink = Uplink(
        k,
        radio.bandwidth_hz * weather.share,
        gains,
        np.array([phone.compute_left() * on for phone, on in zip(phones, served, strict=True)]),
        np.array([phone.of_one_transmission() * on for phone, on in zip(phones, served, strict=True)]),
        np.full(len(phones), 1 / len(phones)),
        None if plan is None else np.array([any(phone.number in group for group in plan) for phone in phones]),
        None if radio.cap == math.inf else radio.cap,
    )
    bands = radio.policy(uplink) if radio.cpu_hz is None else tuned(phones, radio, uplink, gains)
    for phone, gain, band in zip(phones, gains.tolist(), bands.tolist(), strict=True):
        phone.band = band
        if not phone.has_own:
            radio.give(phone, band, gain)


def tuned(phones: list[Phone], radio: Radio, uplink: Uplink, gains: np.ndarray) -> np.ndarray:
    """Phones take the speeds and powers that a policy chooses; gains, in place, those of these powers. Return the bands."""
    assert radio.cpu_hz is not None
    cycles = [phone.is_new * phone.compute_s * hz for phone, hz in zip(phones, radio.cpu_hz, strict=True)]
    chosen = radio.policy(
        replace(uplink, signal_hz=gains.copy(), cycles=np.array(cycles), cpu_hz=radio.cpu_hz, power_w=radio.power_w)
    )
    for phone, hz, watts in zip(phones, chosen.cpu_hz / radio.cpu_hz, chosen.power_w / radio.power_w, strict=True):
        sends = chosen.bandwidth_hz[phone.number] > 0
        phone.tune(float(hz), float(watts) if sends else 0.0)
        gains[phone.number] *= watts
        phone.is_new = False
    return chosen.bandwidth_hz


def overdue(phone: Phone, k: int, rules: RoundRules) -> bool:
    return phone.version != OUT and rules.max_staleness is not None and k - phone.version > rules.max_staleness


def who_closes(phones: list[Phone], k: int, rules: RoundRules, plan: list[list[int]] | None) -> list[Phone] | None:
    """The updates this round merges if it can close now, else None."""
    here = [p for p in phones if p.arrived_s < math.inf and not overdue(p, k, rules)]
    here.sort(key=lambda phone: (phone.arrived_s, phone.number))
    if plan is not None:
        complete = [group for group in plan if all(any(p.number == ue for p in here) for ue in group)]
        done = [[phone for phone in here if phone.number in group] for group in complete]
        return min(done, key=lambda group: group[-1].arrived_s, default=None)
    if rules.drafts:
        prior = [phone for phone in here if not 0 <= phone.merged_in == k - 1]
        if len(prior) >= rules.quorum:
            return prior[: rules.quorum]
        rest = [phone for phone in here if phone not in prior]
        at_work = [phone for phone in phones if phone.version != OUT]
        waits = len(at_work) < rules.quorum or any(phone not in here for phone in at_work)
        return None if waits else [*prior, *rest][: rules.quorum]
    if len(here) < rules.quorum:
        return None
    if rules.stale != "wait" or rules.max_staleness is None:
        return here[: rules.quorum]
    return close_in_time(phones, here, k, rules.quorum, rules.max_staleness)


def close_in_time(phones: list[Phone], here: list[Phone], k: int, quorum: int, bound: int) -> list[Phone] | None:
    """Merge the most urgent of the updates that are here, if closing now is allowed.

    Closing is allowed when all the other jobs, arrived or not, could still be merged in time: put them into the coming
    rounds, ``quorum`` a round, earliest deadline first, and see whether anybody misses its own.
    """
    urgent = sorted(here, key=lambda p: (p.version, p.arrived_s, p.number))[:quorum]
    deadlines = sorted(p.version + bound for p in phones if p.version != OUT and p not in urgent)
    in_time = all(k + 1 + place // quorum <= deadline for place, deadline in enumerate(deadlines))
    return urgent if in_time else None
