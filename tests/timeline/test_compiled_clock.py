"""The compiled clock and the NumPy clock show the same, to the last bit, and what the one does not know the other plays."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import perfeds2
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from needs import needs
from random_runs import STALE, Run, assert_same, drawn_by_lot, only, round_robin, runs, uneven, uneven_share
from test_agrees_with_processes import assert_agrees

from perfeds2.allocation import bandwidth
from perfeds2.allocation.schedulers import best_channel
from perfeds2.network.cell import Cell
from perfeds2.network.channel import Channel, Fading
from perfeds2.network.link import Downlink
from perfeds2.network.radios import RADIOS
from perfeds2.timeline.clock import Clock
from perfeds2.timeline.fast import loading
from perfeds2.timeline.fast import play as compiled
from perfeds2.timeline.protocol import Protocol
from perfeds2.timeline.simulate import play, start_clock
from perfeds2.timeline.state import FOREVER, Conditions

pytestmark = pytest.mark.filterwarnings("ignore::numba.core.errors.NumbaWarning")
POLICIES = compiled.POLICIES
PROPERTY = settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # a clock to load is slow to shrink
)


@contextmanager
def counting(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Which rounds the NumPy clock plays."""
    rounds: list[int] = []
    close = Clock._close
    with monkeypatch.context() as patched:
        patched.setattr(Clock, "_close", lambda now, number: (rounds.append(now.server.round), close(now, number))[1])
        yield rounds


def assert_both_show_the_same(run: Run, rounds: int, horizon_s: float | None = None) -> None:
    limits = {"rounds": rounds, "horizon_s": horizon_s}
    setting = run.setting
    with only("numpy"):
        then = start_clock(setting)
        slow = play(then, **limits)
    with only("compiled"):
        now = start_clock(setting)
        fast = play(now, **limits)
    assert_same(fast, slow)
    assert (now.time_s, now.server.round, now.server.opened_s) == (then.time_s, then.server.round, then.server.opened_s)
    for one, other in zip(standing(now), standing(then), strict=True):
        np.testing.assert_array_equal(one, other)


def standing(now):
    return now.compute_s, now.bits, now.servers[0].arrived_s, now.server.versions, now.server.merged_in


@st.composite
def settings_of_all_kinds(draw: st.DrawFn) -> Run:
    """Known to the compiled clock or not: every policy, every radio, schedules, resting, drafts, coherence."""
    run = draw(runs(max_ues=40))
    cell = replace(
        run.cell,
        radio=draw(st.sampled_from([None, None, RADIOS["umi"]])),
        rician_k=draw(st.sampled_from([0.0, 0.0, 3.0, np.inf])),
        most_bits_per_s_hz=draw(st.sampled_from([None, 20.0, 4.0])),
        coherence_s=draw(st.sampled_from([None, None, None, 0.5])),
        downlink=draw(st.sampled_from([None, Downlink("unicast", 20.0, 1e5)])),
    )
    policy = draw(st.sampled_from([*POLICIES, bandwidth.max_throughput, uneven_share(cell.seed)]))
    protocol, schedule = run.protocol, run.schedule
    kind = draw(st.sampled_from(["as it is"] * 6 + ["rests", "drafts", "looks"]))
    if kind == "rests":
        protocol = Protocol(protocol.quorum, rests=True)
        schedule = schedule or round_robin(cell.ues, protocol.quorum, cell.seed)
    elif kind == "drafts":
        protocol, schedule = Protocol(protocol.quorum, protocol.max_staleness, drafts=True), None
    elif kind == "looks":
        protocol, schedule = Protocol(protocol.quorum, protocol.max_staleness), best_channel
    run = replace(run, cell=cell, bandwidth=policy, protocol=protocol, schedule=schedule)
    return uneven(run) if draw(st.booleans()) else run


@pytest.mark.slow
@given(settings_of_all_kinds(), st.integers(1, 80), st.one_of(st.none(), st.floats(0.0, 30.0)))
@PROPERTY
def test_both_clocks_show_the_same_on_random_settings(run: Run, rounds: int, horizon_s: float | None):
    if (
        horizon_s is None and run.cell.coherence_s is not None
    ):  # a link may be so weak that a round takes weeks of blocks
        horizon_s = 1000 * run.cell.coherence_s
    assert_both_show_the_same(run, rounds, horizon_s)


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.__name__)
@pytest.mark.parametrize("stale", STALE)
@pytest.mark.parametrize("planned", [False, True])
def test_every_policy_and_rule_is_known_and_the_same(policy, stale, planned, monkeypatch):
    schedule = round_robin(30, 4, 0) if planned else None
    run = Run(Cell.draw(30, 1, cpu_hz=(2e7, 2e9)), Protocol(4, 7, stale), 1e6, 100.0, policy, schedule)
    assert_both_show_the_same(run, 40)
    assert_both_show_the_same(uneven(run), 40)
    with only("compiled"), counting(monkeypatch) as by_numpy:
        uneven(run).simulate(40)
    assert by_numpy == []


@pytest.mark.parametrize("n", [1_000, 40_000])
def test_long_sums_are_added_up_in_the_same_order(n):
    run = Run(Cell.draw(n, 3), Protocol(n // 3, 2), 1e6, 100.0, bandwidth.equal_finish, None)
    assert_both_show_the_same(run, 2 if n > 9_999 else 8)


@pytest.mark.parametrize("stale", STALE)
def test_the_compiled_clock_agrees_with_processes(stale):
    with only("compiled"):
        assert_agrees(
            Run(Cell.draw(30, 4, cpu_hz=(2e7, 2e9)), Protocol(7, 2, stale), 1e5, 100.0, bandwidth.equal_share, None), 30
        )


@pytest.mark.slow
@given(runs(), st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["numpy", "compiled"])), min_size=1, max_size=6))
@PROPERTY
def test_they_may_take_turns(run: Run, chunks: list[tuple[int, Any]]):
    run = replace(run, bandwidth=bandwidth.equal_share)
    setting, past = run.setting, None
    now = start_clock(setting)
    for rounds, which in chunks:
        with only(which):
            past = play(now, rounds=rounds)
    assert past is not None
    with only("numpy"):
        assert_same(past, run.simulate(sum(rounds for rounds, _ in chunks)))


@pytest.mark.parametrize("rows", [1, 7, 4_096])
def test_many_lost_jobs_are_written_down_in_the_same_rows(rows, monkeypatch):
    monkeypatch.setattr(compiled, "LOST_ROWS", rows)  # the paper runs out, and the round is played again on more
    run = Run(Cell.draw(700, 5), Protocol(3, 1), 1e6, 10.0, bandwidth.equal_share, None)
    assert_both_show_the_same(run, 30)
    assert_both_show_the_same(replace(run, protocol=Protocol(3, 1, "ignore")), 30)


@pytest.mark.parametrize(("hopeful", "proved"), [(2_400, True), (70, False)])
def test_a_crowd_is_the_same_followed_or_not(hopeful, proved):
    cell, protocol = Cell.draw(20_000, 2), Protocol(60, 4)
    setting = Conditions(cell, protocol, 1e6, cell.job_s(50.0, 60), np.full(20_000, 1 / 20_000))
    with only("compiled"):
        assert compiled.supports(setting)
        fast = compiled.play_crowd(setting, compiled.split_crowd(setting, hopeful), 40, None, None)
    assert (fast is not None) == proved
    if fast is not None:
        with only("numpy"):
            assert_same(fast, play(start_clock(setting), rounds=40))


@dataclass(frozen=True)
class Newer(Protocol):
    """A protocol of tomorrow."""

    patience_s: float | None = None


def test_what_is_unknown_is_not_played():
    cell, protocol = Cell.draw(6), Protocol(2, 3)
    known = Run(cell, protocol, 1e5, 10.0, bandwidth.equal_share, None).setting
    assert compiled.supports(known)
    assert compiled.supports(replace(known, schedule=drawn_by_lot(6, 2, 0), protocol=Newer(2, 3)))
    for changed in (
        {"protocol": Newer(2, 3, patience_s=1.0)},
        {"protocol": Protocol(2, drafts=True)},
        {"cell": replace(cell, coherence_s=1.0)},
        {"cell": replace(cell, power_w=1e-300)},
        {"bandwidth": uneven_share(0)},
        {"bandwidth": bandwidth.proportional_fair},
        {"bandwidth": bandwidth.between(0.3)},
        {"bandwidth": lambda uplink: bandwidth.equal_share(uplink)},
        {"schedule": best_channel},
    ):
        assert not compiled.supports(replace(known, **changed)), changed
    own = type("Own", (Cell,), {"channel": type("OwnChannel", (Channel,), {})(cell.mean_signal_hz, Fading(), 0)})
    assert not compiled.supports(replace(known, cell=own(cell.distance_m, cell.cpu_hz)))


@pytest.mark.parametrize("plan", [[0, 0], [0, 9], [0], [0.5, 1.0], None])
def test_a_schedule_that_goes_wrong_is_told_of_when_its_round_comes(plan):
    def schedule(round_):
        if round_ < 70:
            return np.array([1, 0])
        if plan is None:
            raise KeyError("no such round")
        return np.array(plan)

    run = Run(Cell.draw(3), Protocol(2), 1e5, 10.0, bandwidth.equal_share, schedule)
    assert_both_show_the_same(run, 70)
    said = []
    for which in ("numpy", "compiled"):
        with only(which), pytest.raises((ValueError, KeyError)) as told:
            run.simulate(75)
        said.append(str(told.value))
    assert said[0] == said[1]


def test_a_round_that_never_closes_is_told_of_in_the_same_words():
    plan = lambda round_: np.array([int(round_ == 5)])  # noqa: E731
    run = Run(Cell.draw(2, cpu_hz=(1e6, 1e6)), Protocol(1, 1, "ignore"), 1e5, 10.0, bandwidth.planned_share, plan)
    for which in ("numpy", "compiled"):
        with only(which), pytest.raises(ValueError, match="round 5 never closes: the schedule plans UE 1"):
            run.simulate(8)


def test_without_numba_the_numpy_clock_plays(monkeypatch):
    monkeypatch.setattr(loading, "_installed", lambda: False)
    run = Run(Cell.draw(5), Protocol(2, 3), 1e5, 10.0, bandwidth.equal_share, None)
    with only("compiled"), counting(monkeypatch) as by_numpy:
        run.simulate(20)
    assert by_numpy == list(range(20))


LAZY = """
import sys
import perfeds2.cli
from perfeds2 import Cell, Protocol, simulate
simulate(Cell.draw(20), Protocol(5, 5), payload_bits=1e6, samples=10, rounds=200)
print("numba" in sys.modules)
"""


@pytest.mark.slow
def test_numba_is_not_loaded_for_little():
    environment = {name: value for name, value in os.environ.items() if name != loading.VARIABLE}
    said = subprocess.run([sys.executable, "-c", LAZY], env=environment, capture_output=True, text=True, check=True)
    assert said.stdout.split() == ["False"]


@pytest.fixture
def nothing_loaded(monkeypatch, tmp_path) -> Path:
    """As in a fresh process, with an empty folder."""
    monkeypatch.setattr(loading.Loaded, "kernels", {})
    monkeypatch.setattr(loading.Loaded, "broken", False)
    monkeypatch.setattr(loading.Loaded, "spent_s", 0.0)
    monkeypatch.setattr(loading.Loaded, "next_look_s", {})
    monkeypatch.setattr(loading, "_folder", lambda: tmp_path)
    return tmp_path


def test_it_is_compiled_once_the_numpy_clock_has_worked_longer_than_that_takes(nothing_loaded, monkeypatch):
    found: list[Path | None] = []
    monkeypatch.setattr(loading, "_load", lambda _, folder: found.append(folder))
    run = Run(Cell.draw(5), Protocol(2, 3), 1e5, 10.0, bandwidth.equal_share, None)
    setting = run.setting
    with counting(monkeypatch) as by_numpy:
        for _ in range(3):
            play(start_clock(setting), rounds=100)
        assert found == []
        monkeypatch.setattr(loading, "LOAD_S", 0.0)
        monkeypatch.setattr(loading, "COMPILE_S", {False: 0.05, True: 99.0})  # less than was spent
        play(start_clock(setting), rounds=100)
    assert len(by_numpy) == 400
    assert set(found) == {nothing_loaded}


@pytest.mark.parametrize(
    ("searching", "work_s", "folder", "ready", "done"),
    [
        (False, 0.9, True, True, []),
        (False, 1.1, True, True, ["load"]),
        (False, 19.0, True, False, []),
        (False, 21.0, True, False, ["load"]),
        (True, 39.0, True, False, []),
        (True, 41.0, True, False, ["load"]),
        (False, 19.0, False, False, []),
        (False, 21.0, False, False, ["load"]),
    ],
)
def test_it_is_loaded_or_compiled_where_that_saves_time(
    nothing_loaded, monkeypatch, searching, work_s, folder, ready, done
):
    monkeypatch.delenv(loading.VARIABLE, raising=False)
    found: list[str] = []
    monkeypatch.setattr(loading, "_load", lambda *_: found.append("load"))
    if not folder:
        monkeypatch.setattr(loading, "_folder", lambda: None)
    if ready:
        loading._ready(nothing_loaded, searching).touch()
    assert loading.loaded(searching, work_s) is None
    assert found == done


def test_what_another_process_compiles_meanwhile_is_found_and_seldom_looked_for(nothing_loaded, monkeypatch):
    """A look per round took a seventh of the NumPy clock's time."""
    found, ready, looks = [], loading._ready, []
    monkeypatch.delenv(loading.VARIABLE, raising=False)
    monkeypatch.setattr(loading, "_load", lambda *_: found.append("load"))
    monkeypatch.setattr(loading, "_ready", lambda *of: looks.append("look") or ready(*of))
    for round_ in range(1_000):
        loading.loaded(True, 2.0)  # these loops are never there, and looking for them delays no look for the others
        if round_ == 500:
            ready(nothing_loaded, False).touch()
        loading.loaded(False, 2.0)
        loading.Loaded.spent_s += 1e-3
    assert 5 <= len(found) <= len(looks) / 4 <= 6


LONG = """
from perfeds2 import Cell, Protocol, simulate
from perfeds2.timeline.fast.loading import Loaded
simulate(Cell.draw(20), Protocol(5, 5), payload_bits=1e6, samples=10, rounds=8_000)
print(Loaded.spent_s > 1.5, not Loaded.kernels)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs Linux to look for processes")
def test_nothing_outlives_a_simulation(tmp_path):
    """The NumPy clock plays, as nothing is compiled, and no process goes on that knows this folder."""
    environment = {name: value for name, value in os.environ.items() if name != loading.VARIABLE}
    environment |= {loading.FOLDER: str(tmp_path / "cache")}
    said = subprocess.run([sys.executable, "-c", LONG], env=environment, capture_output=True, text=True, check=True)
    assert said.stdout.split() == ["True", "True"]
    left = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # of another user, or just ended
            left += [path] * (os.fsencode(tmp_path) in path.read_bytes())
    assert left == []


def test_the_command_compiles_all_loops_ahead(nothing_loaded, monkeypatch):
    from perfeds2.timeline.fast import kernel

    compiled_for: list[bool] = []
    monkeypatch.setattr(kernel, "play_one_round", lambda _draw, _loops, searching: compiled_for.append(searching))
    assert perfeds2("compile") == (0, "")
    assert compiled_for == [True, False]
    assert all(loading._ready(nothing_loaded, searching).exists() for searching in (True, False))
    monkeypatch.setattr(loading.Loaded, "kernels", {})
    monkeypatch.setattr(kernel, "play_one_round", lambda *_: 1 / 0)
    status, said = perfeds2("compile")
    assert status == 2
    assert "that needs Numba, and a cache folder" in said


@pytest.mark.usefixtures("nothing_loaded")
def test_the_work_ahead_is_estimated_from_rounds_ues_and_seconds():
    """A round takes 0.25 ms and 0.1 us more for each UE."""
    setting = Run(Cell.draw(1_000), Protocol(2, 3), 1e5, 10.0, bandwidth.equal_share, None).setting
    clock = start_clock(setting)
    assert compiled._seconds_left(clock, 100, None) == pytest.approx(100 * 3.5e-4)
    assert loading.Loaded.spent_s == pytest.approx(3.5e-4)
    assert compiled._seconds_left(clock, 100, 6.0) == 0  # nothing is known about a round's length
    clock.time_s, clock.servers[0].server = 2.0, replace(clock.server, round=10)
    assert compiled._seconds_left(clock, FOREVER, 6.0) == pytest.approx(20 * 3.5e-4)
    assert compiled._seconds_left(clock, 5, 6.0) == pytest.approx(5 * 3.5e-4)


def test_what_cannot_be_loaded_is_done_without(nothing_loaded, monkeypatch):
    from perfeds2.timeline.fast import kernel

    monkeypatch.setattr(kernel, "play_one_round", lambda *_: 1 / 0)
    loading._ready(nothing_loaded, False).touch()
    assert loading.loaded(False, 100.0) is None
    assert not loading._ready(nothing_loaded, False).exists()  # the next process compiles it again
    assert loading.loaded(False, 100.0) is None


@needs("posix")
def test_a_folder_that_others_may_write_is_not_read(monkeypatch, tmp_path):
    folder_of = loading._folder.__wrapped__
    monkeypatch.setenv(loading.FOLDER, str(tmp_path))
    folder = folder_of()
    assert folder is not None
    folder.chmod(0o777)
    assert folder_of() is None
    monkeypatch.setenv(loading.FOLDER, "off")
    assert folder_of() is None
