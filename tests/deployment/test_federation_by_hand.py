"""Does a server keep its rounds with real arrivals? By hand, with devices that are functions."""

import io
import json
from contextlib import nullcontext
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from in_process import InProcess
from rich.console import Console

from perfeds2.deployment.device import do_job, evaluate_here
from perfeds2.deployment.federation import Federation
from perfeds2.deployment.fields import DeploymentSpec
from perfeds2.deployment.merging import StartModel, merged
from perfeds2.deployment.replay_run import replay_run
from perfeds2.deployment.server import end_training, request_evaluations, serve, status_of
from perfeds2.deployment.setup import Setup
from perfeds2.deployment.status import NewLines, draw
from perfeds2.deployment.transport import Reply
from perfeds2.errors import InputError
from perfeds2.learning.evaluate import evaluate
from perfeds2.learning.learner import Learner
from perfeds2.learning.merges import Optax
from perfeds2.learning.metrics import METRICS
from perfeds2.learning.objectives import FedAvg
from perfeds2.learning.replay import replay
from perfeds2.runs.folder import alone
from perfeds2.runs.store import load_arrays
from perfeds2.timeline.jobs import LOST
from perfeds2.timeline.protocol import Protocol
from perfeds2.timeline.record import Timeline

SETUP = Setup.from_texts({"devices": 4, "quorum": 2, "max-staleness": 2, "rounds": 6, "seed": 3})
TASK = SETUP.task(0)


def ones(job, params):  # noqa: ARG001 (what a device is given)
    return Reply(job.ue, job.ticket, job.version, {"w": np.ones(2, np.float32)})


def federation(net, protocol=None, ues=3, **own):
    log = own.pop("log", lambda _: None)
    params, learner = {"w": np.zeros(2, np.float32)}, Learner(FedAvg(), beta=0.5)
    return Federation(protocol or Protocol(2), learner, params, net, ues, 0, DeploymentSpec(**own), log)


def play(server, rounds, steps=100):
    server.rounds = rounds
    for _ in range(steps):
        if server.round >= rounds:
            return
        server.step(wait_s=1.0)


def honest(job, params):
    return do_job(SETUP, TASK, job, StartModel(params))[0]


def test_a_round_closes_on_the_first_arrivals_and_the_surplus_is_carried():
    net = InProcess(ones, lambda job: [1.0, 2.0, 2.0][job.ue], 3)
    server = federation(net)
    play(server, 2)
    assert server.timeline().ues.tolist() == [[0, 1], [2, 0]]
    assert server.timeline().time_s.tolist() == [2.0, 3.0]
    assert np.allclose(server.params["w"], -1.0)


def test_who_is_merged_and_when_is_what_the_simulator_says():
    from perfeds2.network.cell import Cell
    from perfeds2.timeline.simulate import simulate

    cell = replace(Cell.draw(5, 1), cycles_per_sample=1e9)
    compute_s = cell.compute_s(1.0)
    # Not restart: a running job cannot be called back from a real device, so there the two differ.
    resting = (Protocol(2, rest_rounds=2), Protocol(1, 4, "wait", rest_rounds=4), Protocol(1, rest_rounds=5))
    for protocol in (Protocol(2), Protocol(2, 3, "wait"), Protocol(3, 2, "ignore"), Protocol(5), *resting):
        simulated = simulate(cell, protocol, payload_bits=1e-6, samples=1.0, rounds=12)
        net = InProcess(ones, lambda job: float(compute_s[job.ue]), 5)
        server = federation(net, protocol, 5)
        play(server, 12)
        assert server.timeline().ues.tolist() == simulated.ues.tolist(), protocol
        assert np.allclose(server.timeline().time_s, simulated.time_s, rtol=1e-6), protocol


def test_a_device_that_leaves_is_not_waited_for_and_comes_back_with_the_newest_model():
    net = InProcess(ones, lambda _: 1.0, 3)
    server = federation(net, Protocol(2), 3)
    net.present.discard(2)
    play(server, 4)
    assert set(server.timeline().ues.ravel().tolist()) == {0, 1}
    net.present.add(2)
    play(server, 6)
    back = [merge for merge in server.record.merges if merge.ue == 2]
    assert back
    assert back[0].version >= 4


def test_a_round_of_which_a_device_is_lost_closes_when_it_returns():
    net = InProcess(ones, lambda _: 1.0, 3)
    server = federation(net, Protocol(3), 3)
    net.present.discard(0)
    play(server, 1, steps=5)
    assert server.round == 0
    net.present.add(0)
    play(server, 1, steps=5)
    assert server.round == 1


@pytest.mark.parametrize(
    ("update", "why"),
    [
        ({"w": np.array([1, np.nan], np.float32)}, "not finite"),
        ({"w": np.array([1, np.inf], np.float32)}, "not finite"),
        ({"w": np.ones(3, np.float32)}, "expected float32[2]"),
        ({"w": np.ones(2)}, "has w as float64"),
        ({"v": np.ones(2, np.float32)}, "lacks arrays ['w']"),
        ({"w": np.ones(2, np.float32), "v": np.ones(10**6, np.float32)}, "extra ['v']"),
        ({"w": np.full(2, 9e18, np.float32)}, "above the bound"),
        (None, "has no update"),
    ],
    ids=["nan", "infinite", "shape", "dtype", "name", "huge", "norm", "nothing"],
)
def test_an_update_that_is_not_as_it_must_be_is_refused_and_the_model_stays(update, why):
    log = []
    net = InProcess(lambda job, _: Reply(job.ue, job.ticket, job.version, update), lambda _: 1.0, 1)
    server = federation(net, Protocol(1), 1, log=log.append, norm_bound=10.0)
    play(server, 1, steps=1)
    assert server.round == 0
    assert not server.params["w"].any()
    assert why in log[0]
    assert server.devices[0].refused == 1


@pytest.mark.parametrize("scale", [0.5, 1.0, 1.01, 1e9])
def test_an_update_beyond_the_norm_bound_is_clipped_to_it(scale):
    update = {"w": np.float32(scale) * np.array([3, 4], np.float32)}
    net = InProcess(lambda job, _: Reply(job.ue, job.ticket, job.version, update), lambda _: 1.0, 1)
    server = federation(net, Protocol(1), 1, norm_bound=5.0, norm_factor=0)
    play(server, 1, steps=1)
    assert server.round == 1
    assert np.linalg.norm(server.params["w"]) == pytest.approx(0.5 * min(5 * scale, 5), rel=1e-6)  # β is 0.5
    assert server.record.laps[0].scale == pytest.approx(min(1, 1 / scale), rel=1e-6)


def test_a_late_answer_to_a_job_that_was_given_up_is_dropped_and_its_device_is_handed_the_newest_model():
    """UE 1 takes 4.5 s a job, and UE 0 closes a round every second: with S = 1 what UE 1 began is given up in round 2."""
    log = []
    net = InProcess(ones, lambda job: [1.0, 4.5][job.ue], 2)
    server = federation(net, Protocol(1, 1, "restart"), 2, log=log.append)
    play(server, 6)
    assert [line for line in log if line.startswith("late")] == [
        "late: UE 1 ticket 1 on version 0, which has been given up"
    ]
    assert [(job.version, job.ticket) for job in net.sent if job.ue == 1] == [(0, 1), (4, 6)]
    assert server.timeline().merges.tolist() == [6, 0]
    assert [lap.ue for lap in server.record.laps] == [0] * 6
    lost = server.timeline().rows(LOST)
    assert (lost.ue.tolist(), lost.version.tolist(), lost.arrived.tolist()) == ([1], [0], [False])


def test_what_devices_say_of_a_model_is_in_the_row_of_that_model():
    """Everybody is waited for and says the model's version as its loss; the last model is looked at after the rounds."""

    def answer(job, params):
        return replace(ones(job, params), metrics=dict.fromkeys(METRICS, 0.5) | {"train_loss": float(job.version)})

    net = InProcess(answer, lambda job: 1.0 + job.ue, 3)
    server = federation(net, Protocol(3), 3)
    play(server, 4)
    rows = server.record.metric_rows("PerFedS2", 7)
    assert [(row["round"], row["time_s"], row["train_loss"]) for row in rows] == [
        (0, 0.0, 0.0),
        (1, 3.0, 1.0),
        (2, 6.0, 2.0),
        (3, 9.0, 3.0),
        (4, 12.0, 3.0),
    ]
    end_training(server)
    asked = set()
    while request_evaluations(server, asked):
        for reply in net.poll(1.0):
            server.take(reply)
    assert server.record.metric_rows("PerFedS2", 7)[-1]["train_loss"] == 4.0
    assert [row["train_loss"] for row in server.record.ue_rows("PerFedS2", 7, 3)] == [4.0] * 3


def test_an_update_for_another_version_or_another_ticket_is_refused():
    for change in ({"version": 7}, {"ticket": 99}):
        net = InProcess(lambda job, params, change=change: replace(ones(job, params), **change), lambda _: 1.0, 1)
        server = federation(net, Protocol(1), 1)
        play(server, 1, steps=3)
        assert server.round == 0
        assert server.devices[0].refused


def test_a_reply_that_comes_twice_is_merged_once():
    net = InProcess(ones, lambda _: 1.0, 1)
    server = federation(net, Protocol(1), 1)
    server.rounds = 10
    server.step(wait_s=0.0)
    net.deliver(ones(net.sent[0], None), 0.5)
    net.deliver(ones(net.sent[0], None), 0.5)
    play(server, 2, steps=3)
    assert len({merge.ticket for merge in server.record.merges}) == len(server.record.merges) == server.round
    assert server.devices[0].refused == 2  # the second copy, and the answer that had come too early


def test_a_device_that_keeps_failing_is_set_aside_and_the_others_go_on():
    def answer(job, params):
        return ones(job, params) if job.ue else Reply(0, job.ticket, job.version, error="crashed")

    net = InProcess(answer, lambda _: 1.0, 2)
    server = federation(net, Protocol(1), 2, set_aside_after=3)
    play(server, 10)
    assert server.devices[0].set_aside
    assert sum(job.ue == 0 for job in net.sent) == 3
    assert server.round == 10


def test_a_device_that_went_away_did_not_fail():
    class Leaving(InProcess):
        def dispatch(self, request, params):
            super().dispatch(request, params)
            if request.ue == 0 and request.ticket < 8:
                self.present.discard(0)
                self.present.add(0)

    server = federation(Leaving(ones, lambda _: 1.0, 2), Protocol(1), 2)
    play(server, 20)
    assert not server.devices[0].set_aside
    assert server.timeline().merges[0] > 0


def test_an_optimiser_stands_in_for_the_plain_step():
    adam = optax.adam(0.1)
    learner = Learner(FedAvg(), merge=Optax(adam))
    params = {"w": np.zeros(2, np.float32)}
    model, state = merged(params, [{"w": np.ones(2, np.float32)}], learner, adam.init(params))
    assert np.allclose(model["w"], -0.1, atol=1e-6)
    assert state is not None


@pytest.mark.slow
def test_a_device_sees_what_the_evaluation_of_all_sees():
    params = dict(SETUP.first_params())
    everybody = evaluate(TASK, {name: jnp.asarray(values) for name, values in params.items()}, 0.03)
    for ue in range(4):
        mine = evaluate_here(SETUP, TASK, params, ue)
        assert [mine[name] for name in METRICS] == pytest.approx(
            [float(everybody[name][ue]) for name in METRICS], abs=1e-6
        )


class Killed(BaseException):
    """The server process, here an exception that nothing may catch."""


@pytest.mark.slow
def test_a_federation_leaves_the_folder_of_a_simulation_and_replays_to_the_same_weights(tmp_path):
    """Killed twice on the way: before its first round, and after its third."""
    out = tmp_path / "run"

    class Fragile(InProcess):
        dies_after = 0

        def dispatch(self, request, params):
            if len(self.sent) >= self.dies_after:
                raise Killed
            return super().dispatch(request, params)

    for dies_after in (2, 9, 10**9):
        net = Fragile(honest, lambda job: 1.0 + job.ue**2, 4)
        net.dies_after = dies_after
        try:
            serve(SETUP, net, out)
        except Killed:
            continue
    SETUP.write(out)
    for name in ("spec.toml", "metrics.csv", "summary.json", "report.html", "events.log", "ue_metrics.csv"):
        assert (out / name).exists(), name
    assert not (out / "parts").exists()
    assert (out / "events.log").read_text().count("resumed") == 2
    agreement = replay_run(out)
    assert agreement.rounds == 6
    assert agreement.relative <= 1e-5
    assert not agreement.job_by_job
    assert Timeline.load(out / "timeline.npz").staleness.max() <= 2
    summary = json.loads((out / "summary.json").read_text())
    assert summary["algorithms"][0]["rounds"]["mean"] == 6
    weights, _ = load_arrays(out / "model.safetensors")
    assert weights.keys() == SETUP.first_params().keys()
    alpha = SETUP.algorithm.learner.personal_step
    everybody = evaluate(TASK, {name: jnp.asarray(values) for name, values in weights.items()}, alpha)
    first, *_, last = [line.split(",") for line in (out / "metrics.csv").read_text().splitlines()]
    said = dict(zip(first, last, strict=True))
    assert [float(said[name]) for name in METRICS] == pytest.approx(
        [float(everybody[name].mean()) for name in METRICS], abs=1e-6
    )


@pytest.mark.slow
@pytest.mark.parametrize("told", [{"algorithm": "CA2FL"}, {"algorithm": "PerFedS2", "merge": "FedBuff"}], ids=str)
def test_the_merge_of_a_simulation_merges_in_a_federation_also_one_that_died(told, tmp_path):
    setup = Setup.from_texts({"devices": 4, "quorum": 2, "max-staleness": 2, "rounds": 6, "seed": 3} | told)
    out = tmp_path / "run"

    def honestly(job, params):
        if len(net.sent) == dies_after:
            raise KeyboardInterrupt
        return do_job(setup, TASK, job, StartModel(params))[0]

    for dies_after in (11, -1):
        net = InProcess(honestly, lambda job: 1.0 + job.ue**2, 4)
        try:
            serve(setup, net, out)
        except KeyboardInterrupt:
            assert dies_after > 0
    setup.write(out)
    assert (out / "events.log").read_text().count("resumed") == 1
    assert Timeline.load(out / "timeline.npz").staleness.max() > 0
    agreement = replay_run(out)
    assert agreement.holds
    assert not agreement.job_by_job


@pytest.mark.slow
def test_weights_that_rounding_drove_apart_are_computed_again_as_the_devices_did(tmp_path, monkeypatch):
    def apart(*run):
        return {name: values + 1e-3 for name, values in replay(*run).items()}

    out = tmp_path / "run"
    serve(SETUP, InProcess(honest, lambda job: 1.0 + job.ue, 4), out)
    SETUP.write(out)
    monkeypatch.setattr("perfeds2.deployment.replay_run.replay", apart)
    agreement = replay_run(out)
    assert agreement.holds
    assert agreement.job_by_job


@pytest.mark.slow
def test_a_run_whose_updates_were_clipped_replays_to_the_same_weights(tmp_path):
    out, setup = tmp_path / "run", SETUP.with_own(norm_factor=1.0)
    serve(setup, InProcess(honest, lambda job: 1.0 + job.ue, 4), out)
    setup.write(out)
    events = (out / "events.log").read_text()
    assert "clipped: UE" in events
    assert "with A = 2 no merge can tell" in events
    agreement = replay_run(out)
    assert agreement.largest == 0.0
    assert agreement.job_by_job


@pytest.mark.slow
def test_a_replay_notices_weights_that_are_not_the_runs(tmp_path):
    from perfeds2.runs.store import save_arrays

    out = tmp_path / "run"
    serve(SETUP, InProcess(honest, lambda job: 1.0 + job.ue, 4), out)
    SETUP.write(out)
    weights, _ = load_arrays(out / "model.safetensors")
    name = sorted(weights)[0]
    save_arrays(out / "model.safetensors", weights | {name: weights[name] * np.float32(1.001)})
    assert not replay_run(out).holds


def test_two_servers_do_not_share_a_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("perfeds2.deployment.server.CLAIM_WITHIN_S", 0.3)
    with alone(tmp_path), pytest.raises(InputError, match="another process"):
        serve(SETUP, InProcess(honest, lambda job: 1.0 + job.ue, 4), tmp_path)


def silent(ue, after=0):
    """Everybody answers, but one device stays silent from a ticket on."""
    return lambda job: 1e9 if job.ue == ue and job.ticket >= after else 1.0


@pytest.mark.parametrize("protocol", [Protocol(3), Protocol(2, 1, "wait")], ids=["SYN", "wait"])
def test_a_device_that_is_here_and_never_answers_is_given_up_and_set_aside(protocol):
    log = []
    net = InProcess(ones, silent(2, after=3), 3)
    server = federation(net, protocol, log=log.append, job_s=10, set_aside_after=2, readmit_s=0, wait_s=30)
    with pytest.raises(InputError, match="2 of 3 devices can be used") if protocol.quorum == 3 else nullcontext():
        play(server, 20, steps=500)
    assert sum("given up: UE 2 did not answer ticket" in line for line in log) == 2
    assert "set aside: UE 2 after 2 failures in a row" in log
    assert (server.crew[0].failures, server.crew[2].set_aside) == (0, True)
    assert protocol.quorum == 3 or server.round == 20


def test_a_job_is_given_up_after_its_time_and_not_before_and_never_if_so_told():
    for job_s, given_up in ((10, [11.0]), (0, [])):
        log, net = [], InProcess(ones, lambda _: 1e9, 1)
        server = federation(
            net, Protocol(1), ues=1, job_s=job_s, log=lambda line, log=log, net=net: log.append((net.time_s, line))
        )
        server.rounds = 1
        for _ in range(15):
            server.step(wait_s=1.0)
        assert [time_s for time_s, line in log if line.startswith("given up")] == given_up


def test_a_late_answer_to_an_overdue_job_is_late_and_not_an_offence():
    log, net = [], InProcess(ones, lambda job: 14.0 if job.ticket == 0 else 1.0, 1)
    server = federation(net, Protocol(1), ues=1, job_s=10, log=log.append)
    play(server, 3)
    net.deliver(Reply(0, 0, 0, {"w": np.ones(2, np.float32)}), 0.0)
    play(server, 8)
    assert "late: UE 0 ticket 0, which has been given up" in log
    assert server.timeline().ues.tolist() == [[0]] * 8


def test_while_the_network_is_away_no_job_is_overdue():
    log, net = [], InProcess(ones, lambda job: 1e9 if job.ticket < 1 else 1.0, 1)
    server = federation(net, Protocol(1), ues=1, job_s=10, log=log.append)
    server.rounds, net.trouble = 5, {None: "the broker cannot be reached"}
    for _ in range(30):
        server.step(wait_s=1.0)
    assert log == ["trouble: network: the broker cannot be reached"]
    assert status_of(server, "training").troubles == ["the broker cannot be reached"]
    net.trouble = {None: None}
    for _ in range(8):
        server.step(wait_s=1.0)
    assert log[1:] == ["no more trouble: network"]
    play(server, 5)
    assert log[2].startswith("given up: UE 0 did not answer ticket 0")


def test_why_a_device_cannot_take_part_is_told_to_the_operator():
    log, net = [], InProcess(ones, lambda _: 1.0, 3)
    server = federation(net, log=log.append)
    for said in range(100):  # by one who says something else each time
        net.trouble = {1: f"no data {said}"}
        server.look()
    assert log[0] == "trouble: UE 1: no data 0"
    assert len(log) < 25
    status, lines = status_of(server, "training"), NewLines()
    assert status.troubles == ["device 1: no data 99"]
    assert "device 1: no data 99" in list(lines(status))
    assert "device 1: no data 99" not in list(lines(status))  # once
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(draw(status))
    assert "device 1: no data 99" in console.export_text()
    net.trouble = {1: None}
    server.look()
    assert status_of(server, "training").troubles == []


def test_jobs_that_fail_again_and_again_are_logged_ever_more_rarely():
    log: list[str] = []

    def fails(job, params):
        return Reply(job.ue, job.ticket, job.version, error="crashed") if job.ue == 0 else ones(job, params)

    net = InProcess(fails, lambda job: 0.01 if job.ue == 0 else 1.0, 3)
    play(federation(net, log=log.append, set_aside_after=10_000), 5, steps=1000)
    failed = [line for line in log if line.startswith("failed: UE 0")]
    assert 20 < len(failed) < 30
    assert failed[-1].endswith(" so far)")
    assert int(failed[-1].split("(")[1].split(" ")[0]) >= 128


def test_answers_to_jobs_of_the_server_before_blame_no_one():
    log: list[str] = []
    server = federation(InProcess(ones, lambda _: 1.0, 3), log=log.append)
    server.dispatcher.first_ticket = server.dispatcher.next_ticket = 1_000_000  # as after a resume
    server.step(wait_s=0.1)
    for ticket in (5, 6, 999_999):
        server.take(Reply(0, ticket))
    assert server.dispatcher.refused == 0
    server.take(Reply(0, 2_000_000))
    assert [line for line in log if "refused" in line] == [
        "refused: UE 0 answers ticket 2000000, which is not outstanding (1 so far)"
    ]
