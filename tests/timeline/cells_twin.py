"""The slow twin of many cells: what would edges and a cloud do if every UE, edge and transfer were a process of its own?

As ``twin``, it is written from the description alone and shares no function with the package. An edge is a server with
phones of its own; the cloud closes its rounds by the same rule as a server, on edges instead of phones.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import simpy
from twin import OUT, Phone, Weather, change_weather, gains_now, in_turn, open_the_air, overdue, who_closes
from twin_inputs import Radio, Round, RoundRules

MEASURES_S, BETTER_DB = 0.16, 3.0  # event A3: a neighbour is 3 dB better at two measurements in a row


@dataclass(frozen=True)
class EdgeInputs:
    """What an edge is told."""

    radio: Radio
    compute_s: Sequence[float]
    transfer_s: float  # of a model over the backhaul
    upload_s: float = 0.0  # of an update over the backhaul


@dataclass(frozen=True)
class Moving:
    """Which UEs go from cell to cell: what each would measure at a second, in dB for every edge."""

    level_db: Callable[[float], Sequence[Sequence[float]]]  # by UE and edge
    first: Sequence[int]  # the edge each UE begins in
    keeps: bool = False  # who is handed over takes its job along
    co_channel: Sequence[Sequence[bool]] = ()  # by edge: whose uploads are noise to it


@dataclass
class CloudRound:
    time_s: float
    edges: tuple[int, ...]
    staleness: tuple[int, ...]


@dataclass
class Edge:
    """An edge as the cloud sees it has a version and an arrival, just as a phone has for a server."""

    number: int
    inputs: EdgeInputs
    phones: list[Phone]
    bell: simpy.Store
    weather: Weather = field(default_factory=Weather)
    history: list[Round] = field(default_factory=list)
    version: int = 0  # of the cloud's model that it works from
    arrived_s: float = math.inf  # when its model was at the cloud
    merged_in: int = -1
    has_model: bool = True
    is_empty: bool = False
    here: bool = True
    freed: bool = False  # a UE that works for another edge has done so
    round: int = 0

    @property
    def heard(self) -> list[Phone]:
        """Who may send to it: all of its phones. ``Roamer`` says more."""
        return list(self.phones)

    def reaches(self, phone: Phone) -> bool:
        """Whether it can give a phone a model now; an edge that waits for the cloud has none."""
        return self.has_model and phone.here

    def __iter__(self) -> Iterator[Phone]:
        return iter(self.heard)

    def give(self, phones: list[Phone], version: int) -> None:
        """Give phones a model."""
        for phone in phones:
            if phone.takes_one():
                phone.begin(version, 0.0)

    def receive(self) -> None:
        """The cloud's model is here: the next round opens with it."""
        self.has_model = self.weather.moved = True
        self.bell.put(-1)


class Silence(Phone):
    """In the place of a UE that is in another cell: it never has a job."""

    def __init__(self, number: int):
        self.number, self.version, self.band = number, OUT, 0.0
        self.here = self.has_own = self.sending = False


class MetroEdge(Edge):
    """An edge whose UEs take their jobs along. It hears who is in its cell, for whomever they work."""

    everywhere: "list[MetroEdge]"
    serving: list[int]  # the cell of each UE
    din: simpy.Store  # rung when a UE anywhere begins or ends to send, or gets another rate

    def at_work(self, ue: int) -> "Roamer | None":
        """The UE's job that is not sent yet, of whatever edge."""
        phones = [edge.phones[ue] for edge in self.everywhere]
        return next((phone for phone in phones if isinstance(phone, Roamer) and phone.works), None)

    @property
    def heard(self) -> list[Phone]:
        numbers = range(len(self.phones))
        mine = [self.serving[ue] == self.number for ue in numbers]
        return [(self.at_work(ue) or self.phones[ue]) if mine[ue] else Silence(ue) for ue in numbers]

    def reaches(self, phone: Phone) -> bool:
        if not self.has_model or self.serving[phone.number] != self.number:
            return False
        return self.at_work(phone.number) in (None, phone)


class Roamer(Phone):
    """What a UE does for one edge. It may send to the cell of another, from where the update takes the backhaul."""

    edge: MetroEdge
    on_backhaul = False

    @property
    def works(self) -> bool:
        return self.busy and not self.on_backhaul

    @property
    def here(self) -> bool:
        return self.works or self.edge.reaches(self)

    @here.setter
    def here(self, _: bool) -> None:
        """It is where its UE is."""

    def compute_left(self) -> float:
        return super().compute_left() if self.works else 0.0

    def bits_left(self) -> float:
        return super().bits_left() if self.works else 0.0

    def begin(self, version: int, model_s: float) -> None:
        self.on_backhaul = False
        super().begin(version, model_s)

    def drop(self) -> None:
        super().drop()
        self.release()

    def release(self) -> None:
        """The UE is free: its cell may give it a model."""
        cell = self.edge.everywhere[self.edge.serving[self.number]]
        cell.freed = True
        cell.bell.put(-1)

    def rest(self) -> None:
        super().rest()
        self.edge.din.put(-1)

    def set_rate(self, rate: float) -> None:
        super().set_rate(rate)
        self.edge.din.put(-1)

    def send(self):
        self.edge.din.put(-1)
        yield from super().send()
        self.edge.din.put(-1)
        at = self.edge.serving[self.number]
        if at != self.edge.number:
            self.sending, self.on_backhaul = False, True
            self.release()
            yield self.env.timeout(self.edge.inputs.upload_s + self.edge.everywhere[at].inputs.upload_s)


def play_cells(
    edges: Sequence[EdgeInputs],
    rules: RoundRules,
    cloud_rules: RoundRules,
    payload_bits: float,
    edge_rounds: int,
    until_s: float,
    moving: Moving | None = None,
) -> tuple[list[list[Round]], list[CloudRound]]:
    """All rounds of the edges and of the cloud until a time."""
    env = simpy.Environment()
    living, inbox, cloud_history = [], simpy.Store(env), []
    keeps = moving is not None and moving.keeps
    serving, din = [] if moving is None else list(moving.first), simpy.Store(env)
    for number, inputs in enumerate(edges):
        bell, kind = simpy.Store(env), Roamer if keeps else Phone
        phones = [kind(env, ue, float(s), payload_bits, bell) for ue, s in enumerate(inputs.compute_s)]
        edge = (MetroEdge if keeps else Edge)(number, inputs, phones, bell)
        living.append(edge)
        if isinstance(edge, MetroEdge):
            edge.everywhere, edge.serving, edge.din = living, serving, din
            for phone in phones:
                assert isinstance(phone, Roamer)
                phone.edge = edge
        elif moving is not None:
            for phone in phones:
                phone.here = moving.first[phone.number] == number
        if inputs.radio.coherence_s < math.inf:
            env.process(change_weather(env, edge, inputs.radio, edge.weather))
    if moving is not None:
        env.process(hand_over(env, living, moving, serving))
        if moving.co_channel:
            env.process(hear_each_other(env, living, serving, moving.co_channel, din))
    for edge in living:
        env.process(serve(env, edge, rules, edge_rounds, inbox))
    env.process(merge_edges(env, living, cloud_rules, inbox, cloud_history))
    env.run(until=until_s)
    return [edge.history for edge in living], cloud_history


def serve(env, edge: Edge, rules: RoundRules, edge_rounds: int, inbox: simpy.Store):
    """An edge's server: round after round, and after some of them its model goes to the cloud."""
    phones, places, k = edge.phones, len(edge.phones), 0
    if rules.stale == "wait" and rules.max_staleness is not None:
        places = rules.quorum * (rules.max_staleness + 1)
    edge.give([phone for phone in phones if phone.here][:places], 0)
    yield env.timeout(0)  # all edges have begun
    while True:
        edge.round = k
        open_the_air(edge.heard, edge.inputs.radio, k, None, edge.weather)
        while not edge.has_model or (merged := who_closes(phones, k, rules, None)) is None:
            yield edge.bell.get()
            yield env.timeout(0)  # UEs that arrive at this very instant count too
            freed, edge.freed = edge.freed, False
            if edge.weather.moved:
                edge.weather.moved = False
                edge.give([phone for phone in in_turn(phones, places) if edge.reaches(phone)], k)
                yield env.timeout(0)
                open_the_air(edge.heard, edge.inputs.radio, k, None, edge.weather)
            elif freed and (free := in_turn(phones, places)):
                edge.give(free, k)
                yield env.timeout(0)
                open_the_air(edge.heard, edge.inputs.radio, k, None, edge.weather)
        merged.sort(key=lambda phone: (phone.arrived_s, phone.number))
        edge.history.append(Round(env.now, tuple(p.number for p in merged), tuple(k - p.version for p in merged)))
        refused = [p for p in phones if p.arrived_s < math.inf and overdue(p, k, rules)]
        for phone in merged:
            phone.rest()
            phone.merged_in = k
        if (k + 1) % edge_rounds == 0:
            edge.has_model = False
            env.process(upload(env, edge, inbox))
        if rules.stale == "wait" and rules.max_staleness is not None:
            next_ = in_turn(phones, places)
        else:
            too_old = [phone for phone in phones if rules.stale == "restart" and overdue(phone, k + 1, rules)]
            idle = [phone for phone in phones if phone.version == OUT and phone not in merged]
            next_ = list(dict.fromkeys([*merged, *refused, *too_old, *idle]))
            for phone in next_:
                if not edge.reaches(phone):
                    phone.drop()
        k += 1
        edge.give([phone for phone in next_ if edge.reaches(phone)], k)
        yield env.timeout(0)  # a dropped job must be over before the new rates are announced


def hear_each_other(env, edges: list[Edge], serving: list[int], co_channel: Sequence[Sequence[bool]], din: simpy.Store):
    """Whenever anything changes anywhere, tell every UE that sends its rate over the din of the other cells.

    A UE sends on its part of the band of its cell. On average over this band, its power per hertz is its whole power
    over the width of the band.
    """
    while True:
        yield din.get()
        yield env.timeout(0)
        din.items.clear()
        phones = [phone for edge in edges for phone in edge.phones if phone.sending and phone.band > 0]
        for edge in edges:
            radio, noise = edge.inputs.radio, 1.0
            gains = gains_now(radio, edge.round, edge.weather).tolist()
            for phone in phones:
                cell = serving[phone.number]
                if co_channel[edge.number][cell]:
                    noise += gains[phone.number] / edges[cell].inputs.radio.bandwidth_hz
            for phone in phones:
                if serving[phone.number] == edge.number:
                    Phone.set_rate(phone, radio.rate(phone.band, gains[phone.number] / noise))


def upload(env, edge: Edge, inbox: simpy.Store):
    yield env.timeout(edge.inputs.transfer_s)
    edge.arrived_s = env.now
    inbox.put(edge.number)


def merge_edges(env, edges: list[Edge], rules: RoundRules, inbox: simpy.Store, history: list[CloudRound]):
    """The cloud: a server whose phones are the edges."""
    k = 0
    while True:
        while (merged := who_closes(edges, k, rules, None)) is None:  # type: ignore[arg-type]  # an edge is like a phone
            yield inbox.get()
            yield env.timeout(0)
        merged.sort(key=lambda edge: (edge.arrived_s, edge.number))
        numbers = tuple(edge.number for edge in merged)
        history.append(CloudRound(env.now, numbers, tuple(k - edge.version for edge in merged)))
        k += 1
        for number in numbers:
            edges[number].merged_in, edges[number].version, edges[number].arrived_s = k - 1, k, math.inf
            env.process(download(env, edges[number]))


def download(env, edge: Edge):
    yield env.timeout(edge.inputs.transfer_s)
    edge.receive()


def hand_over(env, edges: list[Edge], moving: Moving, serving: list[int]):
    """Event A3: a UE goes to the best of the edges that were 3 dB better than its own, now and one measurement ago."""
    better = [set[int]() for _ in moving.first]
    count = 0
    while True:
        levels, touched = moving.level_db(count * MEASURES_S), set[int]()
        for ue, own in enumerate(levels):
            now_better = {e for e, level in enumerate(own) if level > own[serving[ue]] + BETTER_DB}
            still = better[ue] & now_better
            better[ue] = now_better
            if still:
                target = max(still, key=lambda e, own=own: (own[e], -e))
                for edge, comes in ((serving[ue], False), (target, True)):
                    phone = edges[edge].phones[ue]
                    if not moving.keeps:
                        phone.come() if comes else phone.leave(False)
                    touched.add(edge)
                serving[ue], better[ue] = target, set()
        for edge in touched:
            edges[edge].weather.moved = True
            edges[edge].bell.put(-1)
        count += 1
        yield env.timeout(count * MEASURES_S - env.now)
