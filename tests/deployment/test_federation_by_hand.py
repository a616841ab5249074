"""Does a server keep its rounds with real arrivals? By hand, with devices that are functions."""

import json
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from perfeds2.deployment.device import look, work
from perfeds2.deployment.federation import Federation, merged
from perfeds2.deployment.flower.local import write_settings
from perfeds2.deployment.in_process import InProcess
from perfeds2.deployment.replay_run import replay_run
from perfeds2.deployment.serve import serve
from perfeds2.deployment.settings import Settings
from perfeds2.deployment.transport import Reply
from perfeds2.deployment.validate import Rules
from perfeds2.errors import InputError
from perfeds2.learning.evaluate import evaluate
from perfeds2.learning.metrics import METRICS
from perfeds2.learning.objectives import FedAvg
from perfeds2.learning.replay import Learner
from perfeds2.runs.folder import alone, load_arrays
from perfeds2.timeline.rounds import Protocol
from perfeds2.timeline.timeline import Timeline

SETTINGS = Settings.from_run_config({"devices": 4, "quorum": 2, "max-staleness": 2, "rounds": 6, "seed": 3})
TASK = SETTINGS.task(0)


def ones(job, params):  # noqa: ARG001 (what a device is given)
    return Reply(job.ue, 0.0, job.ticket, job.version, {"w": np.ones(2, np.float32)})


def federation(protocol=None, ues=3, **more):
    return Federation(ues, protocol or Protocol(2), Learner(FedAvg(), beta=0.5), {"w": np.zeros(2, np.float32)}, **more)


def play(server, net, rounds, steps=100):
    for _ in range(steps):
        if server.round >= rounds:
            return
        server.step(net, 0.0, rounds, wait_s=1.0)


def honest(job, params):
    if job.kind == "evaluate":
        metrics = look(TASK, params, alpha=SETTINGS.spec.learning.alpha, ue=job.ue)
        return Reply(job.ue, 0.0, job.ticket, job.version, metrics=metrics)
    done = work(
        TASK, SETTINGS.algorithm.learner, params,
        alpha=SETTINGS.spec.learning.alpha, seed=SETTINGS.seed, ue=job.ue, version=job.version,
    )  # fmt: skip
    return Reply(job.ue, 0.0, job.ticket, job.version, done.update, done.metrics, done.compute_s)


def test_a_round_closes_on_the_first_arrivals_and_the_surplus_is_carried():
    server, net = federation(), InProcess(ones, lambda job: [1.0, 2.0, 2.0][job.ue], 3)
    play(server, net, 2)
    assert server.timeline().ues.tolist() == [[0, 1], [2, 0]]
    assert server.timeline().time_s.tolist() == [2.0, 3.0]
    assert np.allclose(server.params["w"], -1.0)


def test_who_is_merged_and_when_is_what_the_simulator_says():
    from perfeds2.network.cell import Cell
    from perfeds2.timeline.simulate import simulate

    cell = replace(Cell.draw(5, 1), cycles_per_sample=1e9)
    compute_s = cell.compute_s(1.0)
    # Not restart: a running job cannot be called back from a real device, so there the two differ.
    for protocol in (Protocol(2), Protocol(2, 3, "wait"), Protocol(3, 2, "ignore"), Protocol(5)):
        simulated = simulate(cell, protocol, payload_bits=1e-6, samples=1.0, rounds=12)
        server, net = federation(protocol, 5), InProcess(ones, lambda job: float(compute_s[job.ue]), 5)
        play(server, net, 12)
        assert server.timeline().ues.tolist() == simulated.ues.tolist(), protocol
        assert np.allclose(server.timeline().time_s, simulated.time_s, rtol=1e-6), protocol


def test_a_device_that_leaves_is_not_waited_for_and_comes_back_with_the_newest_model():
    server, net = federation(Protocol(2), 3), InProcess(ones, lambda _: 1.0, 3)
    net.present.discard(2)
    play(server, net, 4)
    assert set(server.timeline().ues.ravel().tolist()) == {0, 1}
    net.present.add(2)
    play(server, net, 6)
    back = [merge for merge in server.record.merges if merge.ue == 2]
    assert back
    assert back[0].version >= 4


def test_a_round_of_which_a_device_is_lost_closes_when_it_returns():
    server, net = federation(Protocol(3), 3), InProcess(ones, lambda _: 1.0, 3)
    net.present.discard(0)
    play(server, net, 1, steps=5)
    assert server.round == 0
    net.present.add(0)
    play(server, net, 1, steps=5)
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
        ({"w": np.full(2, 9e9, np.float32)}, "above the bound"),
        (None, "has no update"),
    ],
    ids=["nan", "infinite", "shape", "dtype", "name", "huge", "norm", "nothing"],
)
def test_an_update_that_is_not_as_it_must_be_is_refused_and_the_model_stays(update, why):
    log = []
    server = federation(Protocol(1), 1, log=log.append, rules=Rules(norm_bound=10.0))
    net = InProcess(lambda job, _: Reply(job.ue, 0.0, job.ticket, job.version, update), lambda _: 1.0, 1)
    play(server, net, 1, steps=1)
    assert server.round == 0
    assert not server.params["w"].any()
    assert why in log[0]
    assert server.devices[0].refused == 1


def test_an_update_for_another_version_or_another_ticket_is_refused():
    for change in ({"version": 7}, {"ticket": 99}):
        server = federation(Protocol(1), 1)
        net = InProcess(lambda job, params, change=change: replace(ones(job, params), **change), lambda _: 1.0, 1)
        play(server, net, 1, steps=3)
        assert server.round == 0
        assert server.devices[0].refused


def test_a_job_that_was_answered_with_an_old_ticket_is_over_and_the_device_is_not_waited_for():
    def answer(job, params):
        return replace(ones(job, params), ticket=-5 if job.ue else job.ticket, on=job.ticket)

    server, net = federation(Protocol(1), 2), InProcess(answer, lambda _: 1.0, 2)
    play(server, net, 6)
    assert server.devices[1].set_aside
    assert server.timeline().merges.tolist() == [6, 0]


def test_a_reply_that_comes_twice_is_merged_once():
    server, net = federation(Protocol(1), 1), InProcess(ones, lambda _: 1.0, 1)
    server.step(net, 0.0, 10, wait_s=0.0)
    net.deliver(ones(net.sent[0], None), 0.5)
    net.deliver(ones(net.sent[0], None), 0.5)
    play(server, net, 2, steps=3)
    assert len({merge.ticket for merge in server.record.merges}) == len(server.record.merges) == server.round
    assert server.devices[0].refused == 2  # the second copy, and the answer that had come too early


def test_a_device_that_keeps_failing_is_set_aside_and_the_others_go_on():
    def answer(job, params):
        return ones(job, params) if job.ue else Reply(0, 0.0, job.ticket, job.version, error="crashed")

    server, net = federation(Protocol(1), 2, rules=Rules(set_aside_after=3)), InProcess(answer, lambda _: 1.0, 2)
    play(server, net, 10)
    assert server.devices[0].set_aside
    assert sum(job.ue == 0 for job in net.sent) == 3
    assert server.round == 10


def test_a_device_that_went_away_did_not_fail():
    def answer(job, params):
        gone = job.ue == 0 and job.ticket < 8
        return Reply(0, 0.0, job.ticket, job.version, error="went away", gone=True) if gone else ones(job, params)

    server, net = federation(Protocol(1), 2), InProcess(answer, lambda _: 1.0, 2)
    play(server, net, 20)
    assert not server.devices[0].set_aside
    assert server.timeline().merges[0] > 0


def test_an_optimiser_stands_in_for_the_plain_step():
    adam = optax.adam(0.1)
    learner = Learner(FedAvg(), optimiser=adam)
    params = {"w": np.zeros(2, np.float32)}
    model, state = merged(params, [{"w": np.ones(2, np.float32)}], learner, adam.init(params))
    assert np.allclose(model["w"], -0.1, atol=1e-6)
    assert state is not None


def test_a_device_sees_what_the_evaluation_of_all_sees():
    params = dict(SETTINGS.first_params())
    everybody = evaluate(TASK, {name: jnp.asarray(values) for name, values in params.items()}, 0.03)
    for ue in range(4):
        mine = look(TASK, params, alpha=0.03, ue=ue)
        assert [mine[name] for name in METRICS] == pytest.approx(
            [float(everybody[name][ue]) for name in METRICS], abs=1e-6
        )


def test_settings_travel_as_a_run_configuration():
    settings = Settings.from_run_config({"devices": 5, "slow": "1=2.5", "norm-bound": 3, "stale": "wait", "out": "/x"})
    assert Settings.from_run_config(settings.to_run_config()) == settings
    with pytest.raises(InputError, match="quorums is not a setting"):
        Settings.from_run_config({"quorums": 3})
    with pytest.raises(InputError, match="--quorum must be from 1 to the number of UEs, 4"):
        Settings.from_run_config({"devices": 4, "quorum": 9})


class Killed(BaseException):
    """The server process, here an exception that nothing may catch."""


def test_a_federation_leaves_the_folder_of_a_simulation_and_replays_to_the_same_weights(tmp_path):
    """Killed twice on the way: before its first round, and after its third."""
    out = tmp_path / "run"

    class Fragile(InProcess):
        dies_after = 0

        def dispatch(self, job, params):
            if len(self.sent) >= self.dies_after:
                raise Killed
            return super().dispatch(job, params)

    for dies_after in (2, 9, 10**9):
        net = Fragile(honest, lambda job: 1.0 + job.ue**2, 4)
        net.dies_after = dies_after
        try:
            serve(SETTINGS, net, out)
        except Killed:
            continue
    write_settings(out, SETTINGS)
    for name in ("spec.toml", "metrics.csv", "summary.json", "report.html", "events.log", "ue_metrics.csv"):
        assert (out / name).exists(), name
    assert not (out / "parts").exists()
    assert (out / "events.log").read_text().count("resumed") == 1
    agreement = replay_run(out)
    assert agreement.rounds == 6
    assert agreement.relative <= 1e-5
    assert Timeline.load(out / "timeline.npz").staleness.max() <= 2
    summary = json.loads((out / "summary.json").read_text())
    assert summary["algorithms"][0]["rounds"]["mean"] == 6
    weights, _ = load_arrays(out / "model.safetensors")
    assert weights.keys() == SETTINGS.first_params().keys()


def test_a_replay_notices_weights_that_are_not_the_runs(tmp_path):
    from perfeds2.runs.folder import save_arrays

    out = tmp_path / "run"
    serve(SETTINGS, InProcess(honest, lambda job: 1.0 + job.ue, 4), out)
    write_settings(out, SETTINGS)
    weights, _ = load_arrays(out / "model.safetensors")
    name = sorted(weights)[0]
    save_arrays(out / "model.safetensors", weights | {name: weights[name] * np.float32(1.001)})
    assert not replay_run(out).holds


def test_two_servers_do_not_share_a_folder(tmp_path):
    with alone(tmp_path), pytest.raises(InputError, match="another process"):
        serve(SETTINGS, InProcess(honest, lambda job: 1.0 + job.ue, 4), tmp_path)
