"""When does the compiled clock play, and what is it given?

It shows what ``simulate``'s NumPy clock shows, to the last bit, fifty times as fast. So it may take over in the middle of a run and hand
back, and nobody can tell from the timeline which of the two played: what the compiled clock does not know (``knows``), the
NumPy clock plays; without Numba it plays everything; while the loops are compiled, once, in a process of their own, it plays on.

``$PERFEDS2_CLOCK`` may say ``numpy`` (never compiled) or ``compiled`` (at once, even if that means to wait for the compiler).
"""

import hashlib
import math
import os
import platform
import subprocess  # only ever starts this very Python
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Literal

import numpy as np
from jaxtyping import Float, Int

from perfeds2.allocation import bandwidth as policies
from perfeds2.network.cell import Cell
from perfeds2.network.link import LN2
from perfeds2.timeline.crowd import Crowd
from perfeds2.timeline.protocol import Protocol, most_at_work
from perfeds2.timeline.record import Timeline
from perfeds2.timeline.recorder import Recorder, nothing_yet
from perfeds2.timeline.state import Clock, Conditions

Tell = Callable[[int, float], None]  # gets the number of closed rounds and the second reached
VARIABLE, FOLDER = "PERFEDS2_CLOCK", "PERFEDS2_COMPILE_CACHE"
LOAD_S, COMPILE_S = 1.0, 20.0  # what loading and compiling take, about: less work than that is sooner done by NumPy
COMPILE_PAYS_S = 1.5  # from so much work on the next run should find it compiled
ROUND_S, UE_S = 2.5e-4, 1e-7  # what a round takes the NumPy clock, and for each UE
SOMEBODY_COMPILES_S = 300.0  # so long nobody else begins to
AT_A_TIME = 65_536  # signals drawn for rounds to come: as many as the processor's cache holds
FEW_ROUNDS = 64  # drawn at first, where nobody knows how many will be played
LOST_ROWS = 4_096

KNOWN_CONDITIONS = ["cell", "protocol", "payload_bits", "compute_s", "shares", "bandwidth", "schedule"]
KNOWN_RULES = ["quorum", "max_staleness", "stale"]
KNOWN_CELL = [
    "distance_m",
    "cpu_hz",
    "cycles_per_sample",
    "power_w",
    "bandwidth_hz",
    "path_loss_exponent",
    "noise_dbm_per_hz",
    "fading_scale",
    "downlink_s",
    "seed",
    "radio",
    "rician_k",
    "most_bits_per_s_hz",
    "angle_rad",
]
POLICIES: dict[Any, int] = {  # by their numbers in ``kernel`` and ``kernel_search``
    policies.equal_share: 0,
    policies.planned_share: 1,
    policies.equal_finish: 2,
    policies.weighted_rate: 3,
    policies.max_throughput: 5,
    policies.proportional_fair: 6,
}
BETWEEN = 4
STALE = {"restart": 0, "wait": 1, "ignore": 2}


def knows(conditions: Conditions) -> bool:
    """Whether the compiled clock can play this. Whatever it has never heard of it cannot, however it is called."""
    cell, schedule = conditions.cell, conditions.schedule
    own = type(cell)
    return (
        _nothing_else(conditions, KNOWN_CONDITIONS)
        and _nothing_else(conditions.protocol, KNOWN_RULES)
        and _nothing_else(cell, KNOWN_CELL)
        and own.signal_hz is Cell.signal_hz
        and own.signal_at is Cell.signal_at
        and own.changes_s is Cell.changes_s
        and own.signal_of_amplitude is Cell.signal_of_amplitude
        and _policy(conditions.bandwidth) is not None
        and (schedule is None or not conditions.looks)
        and bool(1e-200 < cell.mean_signal_hz.min() <= cell.mean_signal_hz.max() < 1e200)  # none is nothing or infinite
    )


def _nothing_else(record: Any, known: list[str]) -> bool:
    """Whether all that is not known is as if it were not there."""
    return all(getattr(record, f.name) is f.default or f.name in known for f in fields(record))


def _policy(policy: policies.Policy) -> tuple[int, float] | None:
    """Which one it is, and the θ of ``between``."""
    try:
        if policy in POLICIES:
            return POLICIES[policy], 0.0
        if policy in policies.THETAS:
            return BETWEEN, policies.THETAS[policy]
    except TypeError:  # one's own, without a hash or not to be referred to weakly
        pass
    return None


def searches(policy: policies.Policy) -> bool:
    """Whether it looks for a number: such policies are compiled apart."""
    return policy not in (policies.equal_share, policies.planned_share)


# ---- rounds


@dataclass(frozen=True)
class Kernel:
    """What is compiled."""

    names: ModuleType  # of its records, and of why it ended
    play: Callable[..., tuple[int, int, int, float]]
    draw: Callable[..., None]
    loops: tuple[Any, ...]  # NumPy's logarithms


class Hurry:
    """Takes a clock further, as far as the compiled clock can and if it is worth it."""

    def __init__(self, conditions: Conditions) -> None:
        self._conditions, self._known = conditions, allowed() and knows(conditions)
        self._searching = self._known and searches(conditions.bandwidth)

    def __call__(
        self, clock: Clock, record: Recorder, last: int | None, horizon_s: float | None, tell: Tell | None
    ) -> Clock:
        """Rounds up to the last wanted, written into the record. Returns the clock behind them: the same, if there were none."""
        if not self._known or (last is not None and clock.server.round >= last):
            return clock
        kernel = loaded(self._searching, _seconds_left(clock, last, horizon_s))
        if kernel is None:
            return clock
        conditions, server, n = self._conditions, clock.server, self._conditions.cell.ues
        state = [a.copy() for a in (clock.compute_s, clock.bits, clock.arrived_s, server.versions, server.merged_in)]
        people = kernel.names.People(np.arange(n), conditions.compute_s, conditions.shares, *state)
        rules = _rules(kernel, conditions, horizon_s)
        played = _play(kernel, conditions, rules, people, server.round, clock.time_s, record, last, tell)
        if played is None or played[0] == server.round:
            return clock
        round_, time_s = played
        later = replace(server, round=round_, versions=people.versions, merged_in=people.merged_in, opened_s=time_s)
        return replace(
            clock, time_s=time_s, server=later, compute_s=people.compute_s, bits=people.bits, arrived_s=people.arrived_s
        )


def hurry_through_crowd(
    conditions: Conditions, crowd: Crowd, *, rounds: int | None, horizon_s: float | None, tell: Tell | None
) -> Timeline | None:
    """What ``play_crowd`` says, which proves in every round that nobody else could have arrived; None if it cannot."""
    n, ues = conditions.cell.ues, crowd.hopeful
    kernel = loaded(searching=False, work_s=math.inf)
    assert kernel is not None  # ``crowd_pays`` has seen to it
    few, never = ues.size, np.full(ues.size, np.inf)
    if few < conditions.protocol.quorum:
        return None
    job_s = conditions.compute_s[ues]
    state = (job_s.copy(), np.full(few, conditions.payload_bits), never, np.zeros(few, np.int64), np.full(few, -1))
    people = kernel.names.People(ues, job_s, conditions.shares[ues], *state)
    rules = _rules(kernel, conditions, horizon_s)._replace(
        others=n - few, others_hz=crowd.strongest_hz, others_s=crowd.least_s
    )
    record = Recorder(nothing_yet(conditions.compute_s, conditions.protocol.quorum))
    played = _play(kernel, conditions, rules, people, 0, 0.0, record, rounds, tell)
    if played is None:
        return None
    assert conditions.protocol.max_staleness is not None
    round_, arrived_s = played[0], np.full(n, np.inf)
    versions = np.full(n, round_ - round_ % (conditions.protocol.max_staleness + 1))
    versions[ues], arrived_s[ues] = people.versions, people.arrived_s
    return record.timeline(versions, arrived_s)


def crowd_pays(conditions: Conditions, rounds: int | None) -> bool:
    """Whether a crowd should be played compiled, even if it has to be compiled first."""
    work_s = math.inf if rounds is None else rounds * 0.3 * UE_S * conditions.cell.ues
    return allowed() and knows(conditions) and loaded(searching=False, work_s=work_s, wait=True) is not None


def _rules(kernel: Kernel, conditions: Conditions, horizon_s: float | None) -> Any:
    protocol, cell = conditions.protocol, conditions.cell
    policy = _policy(conditions.bandwidth)
    assert policy is not None
    bound, cap = protocol.max_staleness, cell.cap_bits_per_s_hz
    return kernel.names.Rules(
        quorum=int(protocol.quorum),
        bound=-1 if bound is None else int(bound),
        stale=STALE[protocol.stale],
        policy=policy[0],
        theta=policy[1],
        planned=conditions.schedule is not None,
        at_work=most_at_work(cell.ues, protocol),
        payload_bits=float(conditions.payload_bits),
        bandwidth_hz=float(cell.bandwidth_hz),
        most_nats=math.inf if cap is None else float(cap) * LN2,
        horizon_s=math.inf if horizon_s is None else float(horizon_s),
        others=0,
        others_hz=0.0,
        others_s=0.0,
    )


def _play(
    kernel: Kernel,
    conditions: Conditions,
    rules: Any,
    people: Any,
    round_: int,
    time_s: float,
    record: Recorder,
    last: int | None,
    tell: Tell | None,
) -> tuple[int, float] | None:
    """Block after block of rounds. Returns the open round and the second it opened; None if somebody not followed might arrive."""
    hope = np.array([0.0, rules.others_s])
    loops, most, rounds, lost_rows = kernel.loops, max(AT_A_TIME // people.ues.size, 1), FEW_ROUNDS, LOST_ROWS
    while last is None or round_ < last:
        rounds = min(rounds, most, most if last is None else last - round_)
        rows = _rows(conditions, round_, rounds)
        signals = _signals(kernel, conditions.cell, people.ues, round_, rows.shape[0])
        at, why = 0, kernel.names.DONE
        while at < signals.shape[0]:
            written = _paper(kernel, signals.shape[0] - at, rules.quorum, lost_rows)
            why, played, lost, time_s = kernel.play(
                loops, rules, people, signals[at:], rows[at:], round_, time_s, hope, written
            )
            record.add_rounds([field[:played] for field in written[:4]], [field[:lost].copy() for field in written[4:]])
            at, round_ = at + played, round_ + played
            if why == kernel.names.FULL and not played:
                lost_rows *= 2
            elif why != kernel.names.FULL:
                break
        if tell is not None and at:
            tell(round_, time_s)
        if why == kernel.names.LOST_HOPE or (why == kernel.names.ASK and rules.others):
            return None
        if why != kernel.names.DONE or not at:
            break
        rounds *= 2
    return round_, time_s


def _paper(kernel: Kernel, rounds: int, quorum: int, lost_rows: int) -> Any:
    """Where rounds are written down."""
    table, whole = (rounds, quorum), np.int64
    return kernel.names.Record(
        *(np.empty(table, whole), np.empty(table, whole), np.empty(table), np.empty(rounds)),
        *(np.empty(lost_rows, whole), np.empty(lost_rows, whole), np.empty(lost_rows, whole)),
        *(np.empty(lost_rows), np.empty(lost_rows, whole)),
    )


def _rows(conditions: Conditions, first: int, rounds: int) -> Int[np.ndarray, "rounds A"]:
    """Whom the coming rounds are planned for, in rising order: as many rounds as the schedule plans well."""
    if conditions.schedule is None:
        return np.empty((rounds, 0), np.int64)
    quorum, n = conditions.protocol.quorum, conditions.cell.ues
    rows = np.empty((rounds, quorum), np.int64)
    for row in range(rounds):
        try:
            planned = np.asarray(conditions.schedule(first + row))
        except Exception:  # if the round is ever reached, the NumPy clock asks again and it is told
            rounds = row
            break
        if planned.shape != (quorum,) or planned.dtype.kind not in "iu":
            rounds = row
            break
        rows[row] = planned
    rows = np.sort(rows[:rounds], axis=1)
    good = (rows[:, 0] >= 0) & (rows[:, -1] < n) & (np.diff(rows, axis=1) > 0).all(axis=1)
    return rows if good.all() else rows[: int(good.argmin())]


def _signals(
    kernel: Kernel, cell: Cell, ues: Int[np.ndarray, " f"], first: int, rounds: int
) -> Float[np.ndarray, "rounds f"]:
    """The signals of UEs in successive rounds: what ``Cell.signal_hz`` says of each."""
    mean_hz, k = cell.mean_signal_hz, cell.rician_k
    mean_hz = mean_hz if ues.size == mean_hz.size else mean_hz[ues]
    if k == math.inf:
        return np.broadcast_to(mean_hz * cell.signal_of_amplitude(1.0), (rounds, ues.size)).copy()
    fading = np.empty((rounds, ues.size))
    kernel.draw(fading, np.uint64(cell.seed), first, 0, ues)
    np.subtract(1.0, fading, out=fading)
    np.minimum(fading, 1 - 2.0**-53, out=fading)
    np.log(fading, out=fading)
    if k > 0:
        angle = np.empty_like(fading)
        kernel.draw(angle, np.uint64(cell.seed), first, 1, ues)
        angle *= 2 * np.pi
        steady, rest = math.sqrt(k / (1 + k)), np.sqrt(fading / -(1 + k))
        fading = -np.maximum((steady + rest * np.cos(angle)) ** 2 + (rest * np.sin(angle)) ** 2, 2.0**-53)
    if cell.radio is None:
        fading *= -2 * cell.fading_scale**2
        np.sqrt(fading, out=fading)
    else:
        np.negative(fading, out=fading)
    fading *= mean_hz
    return fading


# ---- is it there, and is it worth loading or compiling it?


@contextmanager
def only(which: Literal["numpy", "compiled"]) -> Iterator[None]:
    """Let one of the clocks play, as far as it can, whatever is worth it."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = which
    try:
        yield
    finally:
        os.environ.pop(VARIABLE)
        if before is not None:
            os.environ[VARIABLE] = before


def allowed() -> bool:
    return os.environ.get(VARIABLE) != "numpy" and find_spec("numba") is not None


class _Here:
    """What this process has of the compiled clock."""

    kernels: ClassVar[dict[bool, Kernel]] = {}  # with policies that search, and without
    broken = False  # it cannot be loaded; the NumPy clock can always play
    spent_s = 0.0  # what the NumPy clock has spent, about, on what the compiled one could have played
    compiling: "ClassVar[subprocess.Popen[bytes] | None]" = None


def _seconds_left(clock: Clock, last: int | None, horizon_s: float | None) -> float:
    """What the NumPy clock would spend on the rest, about."""
    round_, rounds = clock.server.round, math.inf if last is None else last - clock.server.round
    if horizon_s is not None:
        by_then = (horizon_s - clock.time_s) * round_ / clock.time_s if clock.time_s > 0 else 0.0
        rounds = min(rounds, by_then)
    round_s = ROUND_S + UE_S * clock.bits.size
    _Here.spent_s += round_s
    return rounds * round_s


def loaded(searching: bool, work_s: float, *, wait: bool = False) -> Kernel | None:
    """The compiled loops, if they are there or soon loaded, and worth it for so much work of the NumPy clock."""
    if searching in _Here.kernels or _Here.broken:
        return _Here.kernels.get(searching)
    at_once = os.environ.get(VARIABLE) == "compiled"
    if not at_once and work_s + _Here.spent_s < LOAD_S:
        return None
    folder = _folder()
    if at_once or (wait and work_s > COMPILE_S) or (folder is not None and _ready(folder, searching).exists()):
        _load(searching, folder)
    elif folder is None:
        if work_s > 2 * COMPILE_S:
            _load(searching, None)
    elif work_s + _Here.spent_s > COMPILE_PAYS_S and (_Here.compiling is None or _Here.compiling.poll() is not None):
        _start_compiling(folder)
    return _Here.kernels.get(searching)


def _load(searching: bool, folder: Path | None) -> None:
    """Import it and play a round, so that everything is read, or else compiled."""
    import numba.core.config

    config: Any = numba.core.config
    before, config.CACHE_DIR = config.CACHE_DIR, "" if folder is None else str(folder)
    try:
        from perfeds2.timeline import kernel
        from perfeds2.timeline.kernel_numbers import draw, loops

        play, policy = kernel.play_rounds, policies.equal_share
        if searching:
            from perfeds2.timeline.kernel_search import play_searching

            play, policy = play_searching, policies.equal_finish
        new = Kernel(kernel, play, draw, loops())
        conditions = Conditions(Cell.draw(2), Protocol(1, 1), 1.0, np.ones(2), np.full(2, 0.5), policy)
        state = (np.ones(2), np.ones(2), np.full(2, np.inf), np.zeros(2, np.int64), np.full(2, -1))
        people = kernel.People(np.arange(2), conditions.compute_s, conditions.shares, *state)
        record = Recorder(nothing_yet(conditions.compute_s, conditions.protocol.quorum))
        _play(new, conditions, _rules(new, conditions, None), people, 0, 0.0, record, 1, None)
        _Here.kernels[searching] = new
    except Exception:  # an odd NumPy, a broken file in the folder: the NumPy clock shows the same
        _Here.broken = True
        if folder is not None:
            _ready(folder, searching).unlink(missing_ok=True)
    finally:
        config.CACHE_DIR = before


@cache
def _folder() -> Path | None:
    """Where compiled loops wait for the next process: a folder for these very sources, versions and processor; None: nowhere.

    What lies there is run, so it must be ours alone.
    """
    chosen = os.environ.get(FOLDER) or None
    if str(chosen).lower() == "off":
        return None
    if chosen is None:
        import pooch

        chosen = pooch.os_cache("perfeds2")
    here = Path(__file__).parent
    what = hashlib.sha256(f"{sys.version} {platform.machine()} {version('numba')} {version('llvmlite')}".encode())
    for source in (here / name for name in ("kernel.py", "kernel_numbers.py", "kernel_search.py")):
        what.update(f"{source} {source.stat().st_mtime_ns}".encode() + source.read_bytes())
    folder = Path(chosen).expanduser() / "clock" / what.hexdigest()[:16]
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        status = folder.stat()
        if hasattr(os, "getuid") and (status.st_uid != os.getuid() or status.st_mode & 0o022):
            return None
        return folder if os.access(folder, os.W_OK) else None
    except OSError:
        return None


def _ready(folder: Path, searching: bool) -> Path:
    return folder / ("searching-ready" if searching else "ready")


def _start_compiling(folder: Path) -> None:
    """Let another process fill the folder, unless one is at it."""
    lock = folder / "compiling"
    try:
        if lock.exists() and time.time() - lock.stat().st_mtime > SOMEBODY_COMPILES_S:
            lock.unlink()
        lock.touch(exist_ok=False)
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), VARIABLE: "compiled"}
        _Here.compiling = subprocess.Popen(
            [sys.executable, "-m", "perfeds2.timeline.compiled"],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError:
        pass


def compile_for_others() -> None:
    """Fill the folder, politely: first what most runs need."""
    if hasattr(os, "nice"):
        os.nice(10)
    folder = _folder()
    for searching in (False, True):
        if folder is not None and loaded(searching, math.inf) is not None:
            _ready(folder, searching).touch()


if __name__ == "__main__":
    compile_for_others()
