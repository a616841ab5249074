"""How fast is the clock, against a model with a process for every UE?"""

from collections.abc import Callable, Iterator
from importlib.util import find_spec

from perfeds2.allocation.bandwidth import equal_share
from perfeds2.bench.timing import STALENESS, Hear, Result, left_out, measured, take_turns
from perfeds2.network.cell import Cell
from perfeds2.timeline.rounds import Protocol
from perfeds2.timeline.simulate import simulate


def clock_group(repeats: int, seed: int, tell: Hear, *, ues: int = 188, rounds: int = 2_000) -> Iterator[Result]:
    """Seconds for a timeline, and a round's seconds against the slow twin's (which plays a fiftieth of the rounds)."""
    tell(f"clock: {rounds:,} rounds of {ues} UEs, {repeats} turns …")
    cell, payload, samples, few = Cell.draw(ues, seed), 1e6, 120.0, max(rounds // 50, 1)
    quarter, everybody = Protocol(max(ues // 4, 1), STALENESS), Protocol(ues)

    def ours(protocol: Protocol) -> Callable[[], object]:
        return lambda: simulate(cell, protocol, payload_bits=payload, samples=samples, rounds=rounds)

    rivals = {"quarter": ours(quarter), "everybody": ours(everybody)}
    if with_twin := find_spec("simpy") is not None:
        from perfeds2.timeline.twin import Radio, RoundRules, play_with_processes

        def slowly(protocol: Protocol) -> Callable[[], object]:
            radio = Radio(cell.signal_hz, cell.bandwidth_hz, equal_share)
            rules = RoundRules(protocol.quorum, protocol.max_staleness, protocol.stale)
            return lambda: play_with_processes(radio, rules, cell.compute_s(samples), payload, few)

        rivals |= {"slow quarter": slowly(quarter), "slow everybody": slowly(everybody)}
    seconds = take_turns(rivals, repeats)
    what = f"{ues} UEs × {rounds:,} rounds, A = {quarter.quorum}, S = {STALENESS}"
    yield measured("clock/simulate", what, seconds["quarter"], "s", at_most=1)
    for name, protocol in (("quarter", quarter), ("everybody", everybody)):
        what = f"times as fast as SimPy, a process per UE, A = {protocol.quorum}"
        if with_twin:
            ratio = seconds[f"slow {name}"] / few / (seconds[name] / rounds)
            yield measured(f"clock/simpy-{name}", what, ratio, "×", at_least=50)
        else:
            yield left_out(f"clock/simpy-{name}", what, "simpy")
