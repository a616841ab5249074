"""What can a device do to a federation by what it sends? One whose certificate is in order, and whose updates are well-formed."""

from dataclasses import replace

import numpy as np
import pytest
from command_line import perfeds2
from in_process import InProcess
from test_federation_by_hand import federation, ones, play

from perfeds2.deployment.device import compute_job, do_job
from perfeds2.deployment.federation import Federation
from perfeds2.deployment.merging import StartModel
from perfeds2.deployment.server import destroyable, status_of
from perfeds2.deployment.setup import Setup
from perfeds2.deployment.transport import Reply
from perfeds2.deployment.validate import LARGEST, VOTES, Norms, in_words, norm_of, wrong_metrics
from perfeds2.learning.metrics import METRICS
from perfeds2.timeline.protocol import Protocol

GOOD = dict(zip(METRICS, (2.0, 1.0, 0.5, 0.75), strict=True))


def sends(number, among=lambda _: True):
    """Every device sends ones, except that the chosen jobs are answered with this number everywhere."""

    def answered(job, params):
        update = {"w": np.full(2, number, np.float32)}
        return replace(ones(job, params), update=update) if among(job) else ones(job, params)

    return answered


@pytest.mark.parametrize("factor", [10.0, 0.0], ids=["usual", "off"])
@pytest.mark.parametrize("first", [True, False], ids=["first", "later"])
def test_one_finite_update_of_3e38_is_never_merged(factor, first):
    attack = lambda job: job.ue == 0 and (first or job.version > 3)  # noqa: E731
    net = InProcess(sends(3e38, attack), lambda job: 0.5 if job.ue == 0 else 1.0 + job.ue / 10, 4)
    server = federation(net, Protocol(2), 4, norm_factor=factor)
    play(server, 20)
    assert server.round == 20
    assert np.abs(server.params["w"]).max() < 20
    assert server.devices[0].refused >= 3
    assert server.devices[0].set_aside


def test_who_comes_first_moves_the_model_by_no_more_than_its_own_length():
    log, largest = [], 1.0 / 0.5 / np.sqrt(2)  # the model is shorter than 1, which counts as 1; β is 0.5
    for size in (0.5, 0.99, 1.01, 1e6):
        server = federation(InProcess(sends(size * largest), lambda _: 1.0, 1), Protocol(1), 1, log=log.append)
        play(server, 1, steps=1)
        assert np.linalg.norm(server.params["w"]) == pytest.approx(min(size, 1.0), rel=1e-6)
    assert [line for line in log if "clipped" in line] == [
        "clipped: UE 0 ticket 0 from norm 2.02 to 2",
        "clipped: UE 0 ticket 0 from norm 2e+06 to 2",
    ]


def test_a_hostile_device_moves_the_model_no_further_than_the_others():
    net = InProcess(sends(-1e4, lambda job: job.ue == 0), lambda job: 1.0 + job.ue / 10, 6)
    server = federation(net, Protocol(3), 6, norm_factor=1.0)
    play(server, 40, steps=1000)
    assert server.round == 40  # no one is refused
    assert [device.refused for device in server.devices] == [0] * 6
    assert (server.params["w"] < -5).all()  # the honest five, who send ones, outvote it


def test_a_fast_device_is_merged_no_more_often_than_its_share():
    merges = {}
    for share in (1.0, 0.25):
        net = InProcess(ones, lambda job: 0.1 if job.ue == 0 else 1.0 + job.ue / 10, 6)
        server = federation(net, Protocol(2), 6, max_share=share)
        play(server, 60, steps=10_000)
        assert server.round == 60
        merges[share] = server.devices[0].merges
    assert merges[1.0] > 50
    assert merges[0.25] <= 0.25 * 120 + 1


@pytest.mark.parametrize("protocol", [Protocol(2), Protocol(2, 3, "wait")], ids=["first", "wait"])
def test_shares_that_too_few_devices_can_keep_do_not_stall_a_round(protocol):
    server = federation(InProcess(ones, lambda job: 1.0 + job.ue / 10, 3), protocol, 3, max_share=0.01)
    play(server, 30, steps=1000)
    assert server.round == 30
    assert {device.merges for device in server.devices} == {20}  # those with the fewest merges first


@pytest.mark.parametrize(
    ("given", "flag"),
    [
        ({}, "model; --merge trimmed-mean prevents that"),
        ({"secure-aggregation": True, "clip": 1.0}, "leave out --secure-aggregation and add --merge trimmed-mean"),
        ({"merge": "median"}, None),
        ({"quorum": 2}, None),  # no merge would help, which another note says
    ],
)
def test_a_run_that_one_device_can_destroy_says_so(given, flag):
    note = destroyable(Setup.from_texts({"devices": 6, "quorum": 5, "algorithm": "FedAvgS2"} | given))
    assert (note is None) == (flag is None)
    assert flag is None or flag in str(note)


@pytest.mark.parametrize(
    ("given", "merge"),
    [
        ({}, "clipped-mean"),
        ({"algorithm": "Ditto"}, "clipped-mean"),
        ({"devices": 10, "cells": 2}, "clipped-mean"),
        ({"merge": "mean"}, "mean"),
        ({"quorum": 2}, None),
        ({"algorithm": "SCAFFOLD"}, None),  # it has a merge of its own
        ({"secure-aggregation": True, "clip": 1.0}, None),
        ({"dp-noise": 2.0, "clip": 1.0}, None),
    ],
)
def test_federate_merges_by_a_clipped_mean_where_it_can(given, merge):
    setup = Setup.from_texts({"devices": 6, "quorum": 3, "algorithm": "FedAvgS2"} | given).with_robust_merge()
    chosen = setup.spec.learning.merge
    assert (None if chosen is None else chosen.text) == merge
    assert Setup.from_toml(setup.to_toml()) == setup == setup.with_robust_merge()
    _ = setup.algorithm  # which it fits


def test_a_submitted_run_names_its_merge(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, flags in (("robust", ()), ("mean", ("--merge", "mean"))):
        status, said = perfeds2("federate", "submit", f"runs/{name}", "--quorum", "3", *flags)
        assert status == 0, said
    assert 'merge = "clipped-mean"' in (tmp_path / "runs/robust/federation.toml").read_text()
    assert 'merge = "mean"' in (tmp_path / "runs/mean/federation.toml").read_text()


def test_an_alarm_is_raised_when_the_accuracy_falls_and_ends_when_it_is_back():
    log, accuracy = [], {"now": 0.9}

    def honest(job, params):
        return replace(ones(job, params), metrics=GOOD | {"test_accuracy_personal": accuracy["now"]})

    net = InProcess(honest, lambda job: 1.0 + job.ue / 10, 3)
    server = federation(net, Protocol(3), 3, log=log.append, alarm_fall=0.3)
    for rounds, now, fall in ((2, 0.9, 0.0), (4, 0.65, 0.25), (6, 0.5, 0.4), (8, 0.7, 0.2)):
        accuracy["now"] = now
        play(server, rounds)
        status = status_of(server, "training")
        assert status.fall == pytest.approx(fall)
        assert (status.warning is not None) == (fall > 0.3)
    assert [line for line in log if line.startswith("alarm")] == [
        "alarm: personal accuracy fell to 50.0% from 90.0% at best (--alarm-fall)"
    ]


def test_an_alarm_is_raised_when_every_model_has_diverged():
    diverged = {"train_loss_personal": np.nan, "test_accuracy_personal": np.nan}
    net = InProcess(
        lambda job, params: replace(ones(job, params), metrics=GOOD | (diverged if job.version > 2 else {})),
        lambda _: 1.0,
        1,
    )
    server = federation(net, Protocol(1), 1)
    play(server, 6)
    assert "fell to 0.0% from 75.0%" in str(status_of(server, "training").warning)


def test_a_fast_device_does_not_move_the_median():
    norms = Norms(10, [(ue, 1.0) for ue in range(10)])
    for size in (2.0, 8.0, *[512.0] * 40):
        norms.add(3, size)
    assert norms.median == 1.0
    assert norms.bound(10.0, 0.0, 1.0) == 10.0
    assert Norms(10).bound(10.0, 50.0, 0.1) == pytest.approx(50 / 0.1)  # while no one has voted
    assert Norms(10, [(ue, 1e30) for ue in range(10)]).bound(10.0, 1.0, 1.0) == LARGEST


def test_so_many_votes_count_and_the_oldest_go_first():
    norms = Norms(10**4, [(ue, float(ue)) for ue in range(1, 3 * VOTES)])
    assert list(norms.votes) == list(range(2 * VOTES, 3 * VOTES))
    assert norms.median == np.median(list(norms.votes.values()))
    assert Norms(10**4, norms.votes.items()).median == norms.median
    assert Norms(6, [(0, 1.0), (1, 1.0)]).median is None
    norms.add(5, 0.0)
    assert 5 not in norms.votes


def test_a_norm_that_overflows_is_infinite():
    assert norm_of({"w": np.full(3, 1e300)}) == np.inf
    assert norm_of({"w": np.full(4, 3e38, np.float32)}) == pytest.approx(6e38, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "factor"),
    [
        ("PerFedS2", 1),
        ("PerFedS2", 10),
        ("PerFed-SYN", 1),
        ("PerFed-ASY", 1),
        ("FedAvgS2", 1),
        ("FedAvg-SYN", 1),
        ("FedAvg-ASY", 1),
    ],
)
def test_honest_devices_are_never_refused(name, factor):
    """The digits, two labels a device: the norms of PerFedS2 spread over more than ten times their median here."""
    rounds = 10 if "SYN" in name else 30
    told = {"devices": 10, "quorum": 4, "algorithm": name, "rounds": rounds, "labels-per-ue": 2, "max-staleness": 8}
    setup = Setup.from_texts(told | {"norm-factor": factor})
    task, rng = setup.task(0), np.random.default_rng(0)
    pace_s = rng.uniform(1, 4, 10)

    def honest(job, params):
        return Reply(
            job.ue, job.ticket, job.version, compute_job(setup, task, StartModel(params), job.ue, job.version)[0]
        )

    net = InProcess(honest, lambda job: float(pace_s[job.ue] * rng.uniform(0.8, 1.2)), 10)
    algorithm = setup.algorithm
    server = Federation(algorithm.protocol, algorithm.learner, dict(setup.first_params()), net, 10, rounds, setup.own)
    while server.round < rounds:
        server.step(1.0)
    assert [device.refused for device in server.devices] == [0] * 10


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"test_accuracy": 1.5}, "expected from 0 to 1"),
        ({"test_accuracy_personal": -0.1}, "expected from 0 to 1"),
        ({"test_accuracy": np.nan}, "expected from 0 to 1"),
        ({"test_accuracy": np.inf, "train_loss": np.inf}, "expected from 0 to 1"),
        ({"test_accuracy_personal": np.nan, "train_loss": np.nan}, "expected from 0 to 1"),  # the other's loss
        ({"train_loss": -1.0}, "at least 0"),
        ({"train_loss": -np.inf}, "at least 0"),
        ({"train_loss": True}, "reports train_loss = True"),
        ({"gold": 1.0}, "reports gold"),
        ({}, None),
        ({"train_loss": np.nan, "test_accuracy": np.nan}, None),  # a model that has diverged
        ({"train_loss_personal": np.inf, "test_accuracy_personal": np.nan}, None),
    ],
)
def test_metrics_are_what_a_model_can_have(change, why):
    said = wrong_metrics(GOOD | change)
    assert said is None if why is None else why in (said or "")


def test_no_one_computes_longer_than_the_job_was_out():
    for compute_s, refused in ((2.0, 0), (2.5, 1), (np.nan, 1), (-1.0, 1), (np.inf, 1)):
        net = InProcess(ones, lambda _: 9.0, 1)
        server = federation(net, Protocol(1), 1)
        server.rounds = 5
        server.step(0.0)
        net.deliver(replace(ones(net.sent[0], None), compute_s=compute_s), 1.0)
        server.step(1.0)  # one second, and the clocks' second
        assert server.devices[0].refused == refused, compute_s


def test_what_a_device_says_stays_on_one_line_of_the_log():
    log = []
    lines = "x\n2026-01-01 round 9 closed\x1b[2J" + "y" * 10**4
    changes = [{"metrics": {lines: 1.0}}, {"error": lines}, {"update": {lines: np.ones(2, np.float32)}}]
    for change in changes:
        net = InProcess(lambda job, params, change=change: replace(ones(job, params), **change), lambda _: 1.0, 1)
        play(federation(net, Protocol(1), 1, log=log.append), 1, steps=2)
    assert len(log) >= len(changes)
    for line in log:
        assert line.isprintable()
        assert len(line) < 400
    assert in_words("ab\n") == "ab "


def test_a_flood_of_replies_no_one_asked_for_is_counted_and_does_not_flood_the_log():
    log = []
    net = InProcess(ones, lambda _: 1.0, 2)
    server = federation(net, Protocol(1), 2, log=log.append)
    for number in range(5000):
        server.take(Reply(1, 10**6 + number, 0))
    assert server.devices[1].refused == 5000
    assert len(log) < 40
    server.take(Reply(-1, 0, 0))  # nor is there anybody with this number
    server.take(Reply(2, 0, 0))
    play(server, 3)
    assert server.round == 3


@pytest.mark.slow
def test_an_answer_of_a_real_device_passes():
    setup = Setup.from_texts({"devices": 10, "quorum": 1, "rounds": 2, "labels-per-ue": 2})  # compiled already
    task = setup.task(0)
    net = InProcess(lambda job, params: do_job(setup, task, job, StartModel(params))[0], lambda _: 5.0, 10)
    algorithm = setup.algorithm
    server = Federation(algorithm.protocol, algorithm.learner, dict(setup.first_params()), net, 10, 2, setup.own)
    while server.round < 2:
        server.step(5.0)
    assert [device.refused for device in server.devices] == [0] * 10
    assert 0 <= (server.watch.mean or -1) <= 1
    assert status_of(server, "training").recent[-1].accuracy == server.record.accuracies[-1] is not None
