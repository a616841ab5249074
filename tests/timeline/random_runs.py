"""Random cells, protocols, schedules and bandwidth policies for the properties of a timeline."""

import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from functools import cache
from unittest.mock import patch

import numpy as np
from hypothesis import strategies as st

from perfeds2.allocation.bandwidth import Policy, Uplink, equal_share
from perfeds2.network.cell import Cell
from perfeds2.network.link import bandwidth_for_rate
from perfeds2.timeline.fast import loading
from perfeds2.timeline.protocol import Protocol, Stale
from perfeds2.timeline.record import Timeline
from perfeds2.timeline.simulate import simulate
from perfeds2.timeline.state import Conditions, Schedule

STALE: tuple[Stale, ...] = ("restart", "wait", "ignore")


def only(which: str) -> AbstractContextManager[object]:
    """Force one clock: numpy or compiled."""
    if which == "compiled":
        wait_for_the_loops()
    return patch.dict(os.environ, {loading.VARIABLE: which})


@cache
def wait_for_the_loops() -> None:
    """Wait for the process that compiles the loops for all workers (``conftest.py``): compiling them again takes longer."""
    folder, compiler = loading._folder(), os.environ.get("PERFEDS2_TEST_COMPILER")
    if folder is None or compiler is None:
        return
    until_s = time.monotonic() + 300.0
    with suppress(OSError):  # it has ended
        while not all(loading._ready(folder, each).exists() for each in (True, False)) and time.monotonic() < until_s:
            os.kill(int(compiler), 0)
            time.sleep(0.1)


@dataclass(frozen=True)
class Run:
    """Everything ``simulate`` takes but the number of rounds."""

    cell: Cell
    protocol: Protocol
    payload_bits: np.ndarray | float
    samples: float
    bandwidth: Policy
    schedule: Schedule | None

    def simulate(self, rounds: int, watch: Callable | None = None) -> Timeline:
        return simulate(
            self.cell,
            self.protocol,
            payload_bits=self.payload_bits,
            samples=self.samples,
            rounds=rounds,
            bandwidth=self.bandwidth,
            schedule=self.schedule,
            watch=watch,
        )

    @property
    def setting(self) -> Conditions:
        n = self.cell.ues
        compute_s = self.cell.compute_s(self.samples)
        return Conditions(
            self.cell, self.protocol, self.payload_bits, compute_s, np.full(n, 1 / n), self.bandwidth, self.schedule
        )


@st.composite
def runs(draw: st.DrawFn, max_ues: int = 20, scheduled: bool | None = None) -> Run:
    """Any legal run: synchronous, asynchronous or between; every stale policy; planned or first come, first merged."""
    seed = draw(st.integers(0, 2**32 - 1), label="seed")
    n = draw(st.integers(1, max_ues), label="n")
    quorum = draw(st.one_of(st.integers(1, n), st.just(1), st.just(n)), label="A")
    bound = draw(st.one_of(st.none(), st.integers(0, 6)), label="S")
    stale = draw(st.sampled_from(STALE), label="stale")
    cell = Cell.draw(n, seed, layout=draw(st.sampled_from(["disc", "uniform", "equal"])))
    if scheduled is None:
        scheduled = draw(st.booleans(), label="scheduled")
    schedule = None
    if scheduled:
        in_turn = draw(st.booleans(), label="in turn") or (stale != "restart" and bound is not None)
        if in_turn and stale != "restart" and bound is not None:
            bound = max(bound, -(-n // quorum) - 1)  # or a planned update is too stale to be merged
        schedule = round_robin(n, quorum, seed) if in_turn else drawn_by_lot(n, quorum, seed)
    return Run(
        cell,
        Protocol(quorum, bound, stale),
        payload_bits=draw(st.sampled_from([1e4, 1e5, 1e6])),
        samples=draw(st.sampled_from([0.0, 10.0, 100.0])),
        bandwidth=draw(st.sampled_from([equal_share, uneven_share(seed)])),
        schedule=schedule,
    )


def uneven(run: Run) -> Run:
    """The same run with uploads of different sizes."""
    factor = np.random.default_rng([run.cell.seed, 8]).choice([0.1, 0.25, 1.0], run.cell.ues)
    return replace(run, payload_bits=run.payload_bits * factor)


def round_robin(n: int, quorum: int, seed: int) -> Schedule:
    order = np.random.default_rng([seed, 5]).permutation(n)
    return lambda k: order[(quorum * k + np.arange(quorum)) % n]


def drawn_by_lot(n: int, quorum: int, seed: int) -> Schedule:
    return lambda k: np.random.default_rng([seed, 6, k]).choice(n, quorum, replace=False)


def uneven_share(seed: int) -> Policy:
    """A legal policy that favours other UEs every round and leaves some of the band unused."""

    def policy(uplink: Uplink) -> np.ndarray:
        rng = np.random.default_rng([seed, 7, uplink.round])
        weight = np.where(uplink.bits > 0, rng.uniform(0.01, 1, uplink.bits.size) ** 2, 0.0)
        return uplink.bandwidth_hz * rng.uniform(0.5, 1) * weight / max(weight.sum(), 1e-300)

    return policy


def finish_together(uplink: Uplink) -> np.ndarray:
    """All who have something to send end at the same time, up to rounding: the hardest case for ties."""
    sends = uplink.bits > 0
    if not sends.any():
        return np.zeros(sends.size)
    bits, compute_s, signal_hz = uplink.bits[sends], uplink.compute_s[sends], uplink.signal_hz[sends]

    def needed(wait_s: float) -> np.ndarray:
        return bandwidth_for_rate(bits / (compute_s.max() - compute_s + wait_s), signal_hz)

    low, high = 0.0, 1e-6
    while needed(high).sum() > uplink.bandwidth_hz:
        low, high = high, 2 * high
    for _ in range(48):
        middle = (low + high) / 2
        low, high = (middle, high) if needed(middle).sum() > uplink.bandwidth_hz else (low, middle)
    bandwidth = np.zeros(sends.size)
    bandwidth[sends] = needed(high)
    return bandwidth


def assert_same(one: Timeline, other: Timeline) -> None:
    """Equal in every field, bit for bit."""
    assert one.columns.keys() == other.columns.keys()
    for name, ours in one.columns.items():
        assert ours.dtype == other.columns[name].dtype, name
        np.testing.assert_array_equal(ours, other.columns[name], err_msg=name)
