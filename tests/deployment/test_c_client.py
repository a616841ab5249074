"""Is the wire protocol open? A client in C takes part, and both clients keep every point of docs/explanation/wire.md."""

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from needs import needs
from raw_mqtt import wait_for

from benchmarks import conform
from perfeds2.deployment.credentials import make_credentials
from perfeds2.deployment.federation import Federation
from perfeds2.deployment.mqtt.broker import running_broker
from perfeds2.deployment.mqtt.link import Link
from perfeds2.deployment.mqtt.transport import MqttTransport
from perfeds2.deployment.preparation import travelling
from perfeds2.deployment.setup import Setup
from perfeds2.deployment.site import Site

FOLDER = Path(__file__).parents[2] / "examples" / "c-client"
WHERE = ["{host}", "{port}", "{ca}", "{certificate}", "{key}", "{number}"]


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    program = tmp_path_factory.mktemp("c") / "client"
    words = ["-O2", "-Wall", "-Wextra", "-Werror", "-o", str(program), str(FOLDER / "client.c")]
    subprocess.run(["gcc", *words, "-lmosquitto", "-lcrypto", "-lm"], check=True)
    return str(program)


def write_data(path, x, y):
    np.savetxt(path, np.column_stack([y, x]), delimiter=",", fmt="%.9g")
    return str(path)


def test_the_client_is_short():
    assert len((FOLDER / "client.c").read_text(encoding="utf-8").splitlines()) < 500


@pytest.mark.slow
@needs("gcc")
def test_the_c_client_keeps_every_point_of_the_protocol(client, tmp_path):
    x = np.random.default_rng(0).normal(size=(40, 64))
    data = write_data(tmp_path / "mine.csv", x, np.arange(40) % 10)
    with conform.playing([client, *WHERE, data], tmp_path) as (play, reconnect):
        held = dict(conform.points(play, reconnect))
    assert len(held) > 15
    assert [what for what, holds in held.items() if not holds] == []


@pytest.mark.slow
def test_our_own_device_keeps_every_point_of_the_protocol(tmp_path):
    words = [
        sys.executable,
        "-m",
        "perfeds2",
        "federate",
        "device",
        "--number",
        "{number}",
        "--server",
        "{host}:{port}",
    ]
    words += [
        "--credentials",
        "{folder}",
        "--app-module",
        str(FOLDER / "logistic.py"),
        "--state",
        str(tmp_path / "state"),
    ]
    with conform.playing(words, tmp_path) as (play, reconnect):
        held = dict(conform.points(play, reconnect))
    assert [what for what, holds in held.items() if not holds] == []


@pytest.mark.slow
@needs("gcc")
def test_the_c_client_computes_the_gradient_and_the_metrics(client, tmp_path):
    """All samples are the same, so every batch is the same."""
    x = np.random.default_rng(1).normal(size=64)
    data = write_data(tmp_path / "mine.csv", np.tile(x, (8, 1)), np.full(8, 4))
    with conform.playing([client, *WHERE, data], tmp_path) as (play, _):
        play.announce("first")
        assert play.here()["here"]
        play.publish(0)
        play.job(0)
        answer = play.answer(0)
    assert answer is not None
    head, update, _ = answer
    assert update is not None
    weight, bias = play.model["dense1.weight"].astype(float), play.model["dense1.bias"].astype(float)

    def loss_and_slope(weight, bias):
        logits = x @ weight + bias
        p = np.exp(logits) / np.exp(logits).sum()
        return -np.log(p[4]), p - np.eye(10)[4]

    loss, slope = loss_and_slope(weight, bias)
    np.testing.assert_allclose(update["dense1.bias"], slope, atol=1e-5)
    np.testing.assert_allclose(update["dense1.weight"], np.outer(x, slope), atol=1e-5)
    personal, _ = loss_and_slope(weight - 0.1 * np.outer(x, slope), bias - 0.1 * slope)
    assert head.metrics["train_loss"] == pytest.approx(loss, rel=1e-4)
    assert head.metrics["train_loss_personal"] == pytest.approx(personal, rel=1e-4)


@pytest.mark.slow
@needs("gcc")
def test_a_federation_of_c_clients_learns(client, tmp_path):
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    texts = {"devices": 3, "quorum": 2, "rounds": 60, "beta": 0.5, "algorithm": "FedAvgS2"}
    setup = Setup.from_texts(texts | {"app-module": str(FOLDER / "logistic.py")})
    credentials, log = make_credentials(tmp_path / "credentials", 3), list[str]()
    started = []
    with running_broker(credentials, ("127.0.0.1", 0), tmp_path / "broker") as broker:
        site = Site(broker.host, broker.port, credentials)
        try:
            for number in range(3):
                mine = np.arange(len(labels)) % 3 == number
                data = write_data(tmp_path / f"{number}.csv", pixels[mine] / 16, labels[mine])
                files = [str(path) for path in (credentials.authority, *credentials.own_files(number))]
                started.append(subprocess.Popen([client, broker.host, str(broker.port), *files, str(number), data]))
            with MqttTransport(Link(site), travelling(setup, "run"), 3) as transport:
                algorithm, first = setup.algorithm, dict(setup.first_params())
                federation = Federation(
                    algorithm.protocol, algorithm.learner, first, transport, 3, setup.rounds, setup.own, log.append
                )
                federation.origin_s = transport.now()
                wait_for(lambda: federation.look() or federation.crew.usable == 3, 60.0)
                ends_s = time.monotonic() + 60.0
                while federation.round < setup.rounds:
                    federation.step()
                    assert time.monotonic() < ends_s, log[-5:]
        finally:
            for process in started:
                process.kill()
                process.wait()
    assert not [line for line in log if "refused" in line or "failed" in line]
    assert {merge.ue for merge in federation.record.merges} == {0, 1, 2}
    assert federation.watch.mean is not None
    assert federation.watch.mean > 0.7  # chance is 0.1
