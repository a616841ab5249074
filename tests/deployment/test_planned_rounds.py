"""A federation keeps to a schedule: its rounds are those of the simulator, and devices that leave are replaced."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from in_process import InProcess
from worlds import check, world

from perfeds2.deployment.crew import memory_of
from perfeds2.deployment.federation import Federation
from perfeds2.deployment.fields import DeploymentSpec
from perfeds2.deployment.setup import Setup
from perfeds2.deployment.transport import Reply
from perfeds2.errors import InputError
from perfeds2.learning.learner import Learner
from perfeds2.learning.objectives import FedAvg
from perfeds2.network.cell import Cell
from perfeds2.timeline.protocol import Protocol
from perfeds2.timeline.simulate import simulate

PLANNED = {"devices": 5, "quorum": 2, "rounds": 6, "algorithm": "FedAvgS2"}


def ones(job, params):  # noqa: ARG001 (what a device is given)
    return Reply(job.ue, job.ticket, job.version, {"w": np.ones(2, np.float32)})


def planned(net, schedule, rounds, protocol=None, **own):
    params, learner = {"w": np.zeros(2, np.float32)}, Learner(FedAvg(), beta=0.5)
    protocol = protocol or Protocol(2, rests=True)
    return Federation(protocol, learner, params, net, 5, rounds, DeploymentSpec(**own), schedule=schedule)


def play(server, steps=100):
    for _ in range(steps):
        if server.round < server.rounds:
            server.step(wait_s=1.0)


@pytest.mark.parametrize("name", ["deficit", "printed", "printed_fixed", "round_robin", "random"])
def test_who_is_merged_and_when_is_what_the_simulator_says(name):
    schedule = Setup.from_texts(PLANNED | {"schedule": name, "rounds": 12}).schedule
    assert schedule is not None
    cell, protocol = Cell.draw(5, 1), Protocol(2, rests=True)
    simulated = simulate(cell, protocol, payload_bits=1e-6, samples=1e3, rounds=12, schedule=schedule)
    compute_s = cell.compute_s(1e3)
    server = planned(InProcess(ones, lambda job: float(compute_s[job.ue]), 5), schedule, 12, protocol)
    play(server)
    assert server.timeline().ues.tolist() == simulated.ues.tolist()
    assert np.allclose(server.timeline().time_s, simulated.time_s, rtol=1e-6)


def test_only_planned_devices_get_a_job():
    net = InProcess(ones, lambda _: 1.0, 5)
    play(planned(net, lambda round_: np.array([[0, 3], [1, 4]][round_]), 2))
    assert [job.ue for job in net.sent] == [0, 3, 1, 4]


def test_a_planned_device_that_leaves_is_replaced_by_the_one_merged_longest_ago():
    net = InProcess(ones, lambda job: 1.0 + job.ue, 5)
    server = planned(net, lambda round_: np.array([[0, 2], [0, 3]][round_]), 2)
    net.present.discard(2)
    play(server, 1)
    net.present.add(2)  # too late for round 0
    play(server)
    assert server.timeline().ues.tolist() == [[0, 1], [0, 3]]
    assert [job.ue for job in net.sent] == [0, 1, 0, 3]


def test_a_round_waits_for_a_planned_device_if_there_is_no_other():
    net = InProcess(ones, lambda _: 1.0, 5)
    server = planned(net, lambda _: np.arange(5), 1, Protocol(5, rests=True))
    net.present.discard(2)
    play(server, 5)
    assert server.round == 0
    net.present.add(2)
    play(server, 5)
    assert server.timeline().ues.tolist() == [[0, 1, 3, 4, 2]]


LOSSES = [0.1, 0.5, 0.3, 0.9, 0.7]


def by_loss(candidates=5):
    schedule = Setup.from_texts(PLANNED | {"schedule": f"power_of_choice:{candidates}"}).schedule
    assert schedule is not None
    return schedule


def reporting(losses):
    """Devices that report these training losses, falling a little with every model."""

    def answer(job, params):
        loss = losses[job.ue] / (1 + 0.01 * job.version)
        metrics = {"train_loss": loss, "train_loss_personal": 0.0, "test_accuracy": 0.5, "test_accuracy_personal": 0.5}
        return replace(ones(job, params), metrics=metrics)

    return answer


def test_devices_with_the_highest_reported_losses_are_chosen_once_all_have_reported():
    net = InProcess(reporting(LOSSES), lambda _: 1.0, 5)
    server = planned(net, by_loss(), 5)
    play(server)
    chosen = np.sort(server.timeline().ues).tolist()
    assert {ue for row in chosen[:3] for ue in row} == {0, 1, 2, 3, 4}  # those without a report come first
    assert chosen[3:] == [[3, 4], [3, 4]]
    assert [device.loss for device in server.devices] == [pytest.approx(loss, rel=0.1) for loss in LOSSES]


def test_false_losses_win_a_device_at_most_twice_its_even_share():
    log, shares = [], {}
    for share in (1.0, 0.25):
        server = planned(InProcess(reporting([1e5, *LOSSES[1:]]), lambda _: 1.0, 5), by_loss(), 40, max_share=share)
        server.log = log.append
        play(server, 400)
        assert server.round == 40
        shares[share] = server.devices[0].merges / 80
    assert shares[1.0] <= 2 / 5 + 1 / 40
    assert shares[0.25] <= 0.25 + 1 / 40
    alarms = [line for line in log if line.startswith("alarm: UE 0 ")]
    assert alarms[0] == "alarm: UE 0 has more than 40% of all merges; the losses it reports may be false (--max-share)"
    assert len(alarms) == 2  # one in each run


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 2e6, -1.0])
def test_a_loss_that_a_schedule_cannot_use_is_refused_and_its_device_named(bad):
    net = InProcess(reporting([bad, *LOSSES[1:]]), lambda _: 1.0, 5)
    server = planned(net, by_loss(), 6)
    lines = []
    server.log = lines.append
    play(server)
    assert server.round == 6
    assert 0 not in server.timeline().ues
    assert np.isnan(server.devices[0].loss)
    assert sum("refused: UE 0 ticket" in line and "reports train_loss = " in line for line in lines) == 3
    assert server.devices[0].refused == 3
    assert server.devices[0].set_aside


class Recording:
    """A schedule that asks for losses, remembers every moment and chooses devices in turn."""

    feedback = "loss"

    def __init__(self):
        self.moments = []

    def __call__(self, moment):
        self.moments.append(moment)
        return np.array([2 * moment.round, 2 * moment.round + 1]) % 5


def test_a_schedule_sees_the_seconds_that_the_last_job_of_each_device_took():
    schedule = Recording()
    play(planned(InProcess(reporting(LOSSES), lambda job: 1.0 + job.ue + 0.25 * job.version, 5), schedule, 4))
    first, second, third, fourth = (moment.job_s.tolist() for moment in schedule.moments)
    assert first == [1.0] * 5  # nothing is known yet
    assert second == [1.0, 2.0, 1.5, 1.5, 1.5]  # the others as the median
    assert third == [1.0, 2.0, 3.25, 4.25, 2.625]
    assert fourth == [1.5, 2.0, 3.25, 4.25, 5.5]


def merged_by(name):
    """Which devices each of 24 rounds merges. All report the same loss; 1 and 4 are a thousand times faster."""
    schedule = Setup.from_texts(PLANNED | {"schedule": name, "rounds": 24}).schedule
    net = InProcess(reporting([0.5] * 5), lambda job: 0.001 if job.ue in (1, 4) else 1.0 + job.ue, 5)
    server = planned(net, schedule, 24)
    play(server, 200)
    return server.timeline().ues


def test_oort_prefers_devices_that_were_fast_to_those_that_a_simulated_cell_makes_fast():
    assert np.bincount(merged_by("oort").ravel(), minlength=5)[[1, 4]].min() >= 16


def test_tiers_are_made_of_devices_that_were_equally_fast():
    rows = merged_by("tifl_adaptive")
    together = {frozenset(row) for row in rows[12:].tolist()}  # once all have had a job
    assert together <= {frozenset(pair) for pair in ([1, 4], [0, 1], [0, 4], [2, 3])}


def test_a_loss_does_not_matter_to_other_schedules():
    net = InProcess(reporting([float("inf"), *LOSSES[1:]]), lambda _: 1.0, 5)
    server = planned(net, lambda _: np.array([0, 1]), 2)
    play(server)
    assert server.timeline().ues.tolist() == [[0, 1], [0, 1]]


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["power_of_choice:5", "oort", "tifl_adaptive"])
def test_what_a_schedule_looks_at_and_remembers_survives_a_killed_server_and_the_replay_agrees(tmp_path, schedule):
    made = world(tmp_path, **PLANNED | {"schedule": schedule})
    while made.federation.round < 4 or made.federation.selection.plan is None:
        made.step()
    made.federation.save(made.federation)  # as after a device was set aside
    before = known(made.federation)
    assert sum(map(np.isfinite, before[0])) >= 2
    killed: Any = made.transport.link
    killed.kill()
    made.start_server()
    assert str(known(made.federation)) == str(before)
    made.run()
    check(made)
    assert str(known(made.federation)[2]) != str(before[2]) or schedule == "power_of_choice:5"


def known(server):
    """What the schedule of a server knows: losses, seconds, its own memory, and the devices of the open round."""
    losses, took_s = zip(*((device.loss, device.took_s) for device in server.devices), strict=True)
    return losses, took_s, memory_of(server.schedule), server.selection.plan


@pytest.mark.slow
def test_a_replay_comes_to_the_same_weights(tmp_path):
    made = world(tmp_path, **PLANNED | {"schedule": "round_robin"})
    made.run()
    check(made)
    assert np.sort(made.federation.timeline().ues).tolist() == [[0, 1], [2, 3], [0, 4], [1, 2], [3, 4], [0, 1]]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (
            {"schedule": "best_channel"},
            "channels or hours, which the server of a federation does not know; use first, ",
        ),
        ({"schedule": "refl"}, "channels or hours"),
        ({"schedule": "power_of_choice:9"}, "D must be from the quorum, 2, to the number of UEs, 5"),
        ({"schedule": "power_of_choice:3", "clip": 1.0, "dp-noise": 1.0}, "which noise on uploads does not hide"),
        ({"schedule": "random", "algorithm": "FedAvg-SYN"}, "--schedule random has no effect on FedAvg-SYN"),
    ],
)
def test_what_a_federation_cannot_plan_is_refused(given, why):
    with pytest.raises(InputError, match=why):
        _ = Setup.from_texts(PLANNED | given).schedule
