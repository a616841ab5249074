"""Does a device keep between jobs what the simulator's UE keeps, whichever process dies and whatever is lost?"""

import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from worlds import check, survive_kills, world

from perfeds2.deployment.device import MOST_RUNS, Memory, compute_job, kept_at_first
from perfeds2.deployment.merging import StartModel
from perfeds2.deployment.preparation import Owner, prepare, travelling
from perfeds2.deployment.setup import Setup
from perfeds2.deployment.worker import DeviceWorker
from perfeds2.errors import InputError
from perfeds2.learning.replay import Prepared, advance, start
from perfeds2.learning.script import Script
from perfeds2.runs.store import load_arrays, save_arrays

FIRST = {"v": np.zeros(3, np.float32), "share": np.float32(0.5)}
SMALL = {"batch": 4, "local-steps": 2, "devices": 4, "rounds": 7}


def kept(number):
    return {"v": np.full(3, number, np.float32), "share": np.float32(number / 10)}


def same(one, other):
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(np.array_equal(a, b) for a, b in pairs)


# ---- one device's file


def test_what_a_job_left_counts_when_the_next_job_names_it(tmp_path):
    memory = Memory(tmp_path / "device-0", "run", FIRST)
    assert same(memory.after(None), FIRST)
    memory.keep(None, FIRST, 4, kept(1))
    assert same(memory.after(4), kept(1))
    memory.keep(4, kept(1), 9, kept(2))
    assert same(memory.after(4), kept(1))  # ticket 9 was lost
    memory.keep(4, kept(1), 11, kept(3))
    assert same(memory.after(11), kept(3))
    with pytest.raises(InputError, match="does not have the state of this device after ticket 9"):
        memory.after(9)


def test_a_server_that_lost_its_newest_checkpoints_finds_the_state_of_up_to_two_merges_before(tmp_path):
    memory = Memory(tmp_path, "run", FIRST)
    for ticket in range(1, 8):
        memory.keep(ticket - 1 or None, kept(ticket - 1) if ticket > 1 else FIRST, ticket, kept(ticket))
    for ticket in (7, 6, 5, 4):
        assert same(memory.after(ticket), kept(ticket))
    with pytest.raises(InputError, match="after ticket 3"):
        memory.after(3)
    memory.keep(4, kept(4), 10**12, kept(9))  # the server went back
    assert same(memory.after(10**12), kept(9))
    with pytest.raises(InputError, match="after ticket 6"):
        memory.after(6)


@pytest.mark.parametrize(
    "spoil", [lambda file: file.write_bytes(b"cut"), lambda file: file.unlink()], ids=["cut", "gone"]
)
def test_the_advice_about_a_lost_memory_lets_the_device_take_part_again(tmp_path, spoil):
    memory = Memory(tmp_path, "run", FIRST)
    memory.keep(3, kept(1), 4, kept(2))
    spoil(memory.file)
    with pytest.raises(InputError) as told:
        memory.after(4)
    advised = re.search(r"create (\S+\.lost) to continue with fresh state", str(told.value))
    assert advised is not None
    Path(advised[1]).touch()
    assert same(memory.after(4), FIRST)
    memory.keep(4, FIRST, 5, kept(5))
    assert not memory.lost.exists()  # it counts once
    assert same(memory.after(5), kept(5))
    assert same(memory.after(4), FIRST)


def test_a_server_that_has_merged_nothing_finds_a_device_that_has_kept_nothing(tmp_path):
    memory = Memory(tmp_path, "run", FIRST)
    memory.keep(None, FIRST, 4, kept(1))
    assert same(memory.after(None), FIRST)


def test_runs_do_not_mix_and_are_not_kept_for_ever(tmp_path):
    for number in range(MOST_RUNS + 3):
        Memory(tmp_path, f"run-{number}", FIRST).keep(None, FIRST, 0, kept(number))
    assert len(list(tmp_path.iterdir())) == MOST_RUNS
    newest = f"run-{MOST_RUNS + 2}"
    assert same(Memory(tmp_path, newest, FIRST).after(0), kept(MOST_RUNS + 2))
    with pytest.raises(InputError, match="does not have the state"):
        Memory(tmp_path, "another", FIRST).after(0)


def test_a_file_that_is_not_what_was_written_is_not_believed(tmp_path):
    memory = Memory(tmp_path, "run", FIRST)
    memory.keep(3, kept(1), 4, kept(2))
    good = memory.file.read_bytes()
    arrays, facts = load_arrays(memory.file)
    for spoiled in (good[:-1], good[:40], b"", good[:-1] + bytes([good[-1] ^ 1])):
        memory.file.write_bytes(spoiled)
        with pytest.raises(InputError, match="corrupt"):
            memory.after(4)
    memory.file.write_bytes(good + b"\0" * 10**6)
    with pytest.raises(InputError, match="more than this device can have stored"):
        memory.after(4)
    for wrong in (
        {name: values.astype(np.float64) for name, values in arrays.items()},
        {name: values for name, values in arrays.items() if name != "left/0001"},
        arrays | {"left/0001": np.zeros(4, np.float32)},
    ):
        save_arrays(memory.file, wrong, facts)
        with pytest.raises(InputError, match="does not fit the state"):
            memory.after(4)
    save_arrays(memory.file, arrays, facts | {"left": "4"})
    with pytest.raises(InputError, match="does not fit the state"):
        memory.after(4)


# ---- a whole federation


def check_memory(made):
    """Every device keeps what its UE keeps in the simulator at the end."""
    federation, setup = made.federation, made.setup
    line, learner = federation.timeline(), setup.algorithm.learner
    script, task = Script.of(line), setup.task(0)
    state = advance(
        Prepared.of(task, script, learner, setup.seed), start(task, script, learner, setup.seed), 0, line.rounds
    )
    first = kept_at_first(learner, setup.first_params())
    for ue, device in enumerate(federation.devices):
        mine = Memory(made.folder.path / "devices" / str(ue), "a-run", first).after(device.merged_ticket)
        for a, b in zip(jax.tree.leaves(mine), jax.tree.leaves((state.client_state, state.unsent)), strict=True):
            np.testing.assert_allclose(a, b[ue], rtol=0, atol=2e-6 * max(np.abs(a).max(), 1e-3))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SCAFFOLD", "Ditto", "FedRep"])
def test_devices_keep_what_the_simulators_ues_keep(tmp_path, name):
    made = world(tmp_path, algorithm=name, **SMALL)
    made.run()
    check(made)
    check_memory(made)
    assert made.federation.timeline().staleness.max() > 0
    assert not [line for line in made.log if "refused" in line or "failed" in line]
    assert (len(made.federation.shelf) > 0) == (name == "SCAFFOLD")


@pytest.mark.slow
def test_a_server_has_the_models_that_updates_began_with_and_no_others(tmp_path):
    made = world(tmp_path, algorithm="FedAsync", **SMALL | {"rounds": 15})
    while made.federation.round < made.setup.rounds:
        made.step()
        assert len(made.federation.shelf) <= made.setup.ues + 1
    check(made)
    assert made.federation.timeline().staleness.max() > 0


@pytest.mark.slow
@pytest.mark.parametrize(("name", "seed"), [("SCAFFOLD", 0), ("FedAsync", 2)])
def test_memories_survive_kills_of_devices_server_and_broker(tmp_path, name, seed):
    made = world(tmp_path, algorithm=name, **SMALL | {"rounds": 24})
    survive_kills(made, seed, 18)
    check(made)
    if name != "FedAsync":
        check_memory(made)


@pytest.mark.slow
def test_devices_that_keep_state_go_on_with_a_server_that_lost_its_newest_checkpoints(tmp_path):
    made = world(tmp_path, algorithm="SCAFFOLD", **SMALL | {"rounds": 20})
    while made.federation.round < 10:
        made.step()
    killed: Any = made.transport.link
    killed.kill()
    for file in sorted(made.folder.parts.glob("*.safetensors"))[-2:]:
        file.unlink()
    made.start_server()
    assert made.federation.round == 8
    made.run()
    check(made)
    check_memory(made)
    assert not [line for line in made.log if "failed" in line]


@pytest.mark.slow
def test_a_device_whose_memory_is_gone_fails_its_jobs_and_the_others_go_on(tmp_path):
    made = world(
        tmp_path,
        algorithm="SCAFFOLD",
        **SMALL | {"set-aside-after": 2, "quorum": 1, "max-staleness": "unbounded", "rounds": 40},
    )
    while made.federation.devices[0].merges == 0:
        made.step()
    made.worker.owner = lambda number: Owner(
        state=tmp_path / "moved" if number == 0 else made.folder.path / "devices" / str(number)
    )
    while not made.federation.devices[0].set_aside:
        made.step()
    assert any(
        "failed: UE 0" in line and "this device cannot do the job; its own log says why" in line for line in made.log
    )
    merges = made.federation.devices[0].merges
    (tmp_path / "moved").mkdir()
    (tmp_path / "moved" / "a-run.lost").touch()  # as it was advised
    made.federation.devices[0].set_aside_s = -1e9
    made.run()
    assert made.federation.devices[0].merges > merges


@pytest.mark.slow
def test_the_head_stays_at_the_device_and_is_not_taken_from_one_that_sends_it():
    setup = Setup.from_texts({"algorithm": "FedRep", **SMALL})
    task, params = setup.task(0), setup.first_params()
    first = kept_at_first(setup.algorithm.learner, params)
    update, left = compute_job(setup, task, StartModel(params), 1, 0, first)
    assert first is not None
    assert update.keys() == params.keys() - first[0].keys()
    assert first[0].keys() == left[0].keys()
    assert not same(first, left)


def test_a_device_that_has_no_place_to_keep_anything_says_so():
    setup = Setup.from_texts({"algorithm": "FedPer", **SMALL})
    with pytest.raises(InputError, match="start this device with --state DIR"):
        prepare(travelling(setup, "a-run"), Owner(), 0)
    assert DeviceWorker(lambda _: Owner()) is not None
