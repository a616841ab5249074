"""Time the clock against a process-per-UE model, its NumPy twin, and the arithmetic of fading and rates alone."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Literal
from unittest.mock import patch

import numpy as np

from benchmarks.speed.timing import QUORUM, STALENESS, Announce, Measurement, measured, not_installed, take_turns
from perfeds2.allocation.bandwidth import Policy, equal_finish, equal_share
from perfeds2.network.cell import Cell
from perfeds2.timeline.fast.loading import VARIABLE
from perfeds2.timeline.protocol import Protocol
from perfeds2.timeline.record import Timeline
from perfeds2.timeline.simulate import simulate

PAYLOAD, SAMPLES, FEW_UES = 1e6, 120.0, 20


def clock_group(
    repeats: int, seed: int, announce: Announce, *, ues: int = 188, rounds: int = 10_000, crowd: int = 1_000_000
) -> Iterator[Measurement]:
    """Measure rounds per CPU second on one core. Slow rivals play fewer rounds: NumPy a tenth, processes a 250th."""
    announce(f"clock: {rounds:,} rounds of {FEW_UES} and of {ues} UEs, {repeats} turns …")
    few, many = Cell.draw(FEW_UES, seed), Cell.draw(ues, seed)
    five, quarter, everybody = Protocol(QUORUM, STALENESS), Protocol(max(ues // 4, 1), STALENESS), Protocol(ues)
    with_numba, with_simpy = find_spec("numba") is not None, find_spec("simpy") is not None
    ours = "compiled" if with_numba else "numpy"
    by_numpy, by_simpy = max(rounds // 10, 1), max(rounds // 250, 1)
    rivals: dict[str, Callable[[], object]] = {
        "five": partial(_play, ours, few, five, rounds),
        "quarter": partial(_play, ours, many, quarter, rounds),
        "everybody": partial(_play, ours, many, everybody, rounds),
        "finish": partial(_play, ours, few, five, rounds, equal_finish),
        "numpy five": partial(_play, "numpy", few, five, by_numpy),
        "numpy quarter": partial(_play, "numpy", many, quarter, by_numpy),
        "logarithms": partial(_only_fading_and_rates, ues, rounds, np.random.default_rng(seed)),
    }
    if with_simpy:
        rivals |= {
            "simpy five": _processes(few, five, by_simpy),
            "simpy quarter": _processes(many, quarter, by_simpy),
            "simpy everybody": _processes(many, everybody, by_simpy),
        }
    seconds = take_turns(rivals, repeats, time.process_time)
    what = {
        "five": f"{FEW_UES} UEs, A = {QUORUM}",
        "quarter": f"{ues} UEs, A = {quarter.quorum}",
        "everybody": f"{ues} UEs, A = {ues}",
    }
    for name, least in (("five", 200_000), ("quarter", 40_000)):
        yield measured(f"clock/{name}", f"rounds, {what[name]}", rounds / seconds[name], "/s", at_least=least)
    yield measured(
        "clock/finish", f"the same with equal_finish, {what['five']}", rounds / seconds["finish"], "/s", at_least=20_000
    )
    share = 100 * seconds["logarithms"] / seconds["quarter"]
    yield measured(
        "clock/bound", f"of that is the fading's and the rates' arithmetic alone, by NumPy, {ues} UEs", share, "%"
    )
    for name in ("five", "quarter"):
        row, words = f"clock/numpy-{name}", f"times as fast as the NumPy clock, {what[name]}"
        ratio = seconds[f"numpy {name}"] / by_numpy / (seconds[name] / rounds)
        yield measured(row, words, ratio, "×") if with_numba else not_installed(row, words, "numba")
    for name, least in (("five", 1_000), ("quarter", 50), ("everybody", 50)):
        row, words = f"clock/simpy-{name}", f"times as fast as SimPy, a process per UE, {what[name]}"
        if with_simpy:
            ratio = seconds[f"simpy {name}"] / by_simpy / (seconds[name] / rounds)
            yield measured(row, words, ratio, "×", at_least=least)
        else:
            yield not_installed(row, words, "simpy")
    announce(f"clock: {crowd:,} UEs × 1,000 rounds, once …")
    place, protocol, begun = Cell.draw(crowd, seed), Protocol(min(1_000, crowd), STALENESS), time.process_time()
    _play(ours, place, protocol, 1_000)
    spent = np.array([time.process_time() - begun])
    yield measured("clock/crowd", f"{crowd:,} UEs × 1,000 rounds, A = {protocol.quorum:,}", spent, "s", at_most=10)


def _play(
    which: Literal["numpy", "compiled"], cell: Cell, protocol: Protocol, rounds: int, bandwidth: Policy = equal_share
) -> Timeline:
    with patch.dict(os.environ, {VARIABLE: which}):
        return simulate(cell, protocol, payload_bits=PAYLOAD, samples=SAMPLES, rounds=rounds, bandwidth=bandwidth)


def _only_fading_and_rates(ues: int, rounds: int, dice: np.random.Generator) -> None:
    """Compute what no exact clock avoids per UE and round: a random number, two logarithms, a root, two quotients."""
    at_once = max(65_536 // ues, 1)
    for _ in range(-(-rounds // at_once)):
        numbers = dice.random((at_once, ues))
        np.log(numbers, out=numbers)
        np.sqrt(np.negative(numbers, out=numbers), out=numbers)
        np.log1p(np.multiply(numbers, 1e4, out=numbers), out=numbers)
        np.divide(1e6, numbers, out=numbers)


def _processes(cell: Cell, protocol: Protocol, rounds: int) -> Callable[[], object]:
    sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "timeline"))
    from twin import Radio, RoundRules, play_with_processes  # type: ignore[import-not-found]  # in tests/

    radio = Radio(cell.signal_hz, cell.bandwidth_hz, equal_share)
    rules = RoundRules(protocol.quorum, protocol.max_staleness, protocol.stale)
    return lambda: play_with_processes(radio, rules, cell.compute_s(SAMPLES), PAYLOAD, rounds)
