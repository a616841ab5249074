"""Is a shaped uplink as slow as it should be, and does the prediction agree with a run that keeps to its times?"""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from needs import needs

from perfeds2.deployment.setup import Setup
from perfeds2.learning.task import payload_bits

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import shaped_uplinks as shape  # type: ignore[import-not-found]  # in benchmarks/

SETUP = Setup.from_texts({"devices": 3, "quorum": 2, "rounds": 5})


def test_a_run_that_keeps_to_its_times_is_predicted_exactly():
    rates = shape.uplink_rates(SETUP, 2e4)
    job_s = 4.0 + payload_bits(SETUP.model()) / np.asarray(rates)
    shaped = shape.compare_with_prediction(SETUP, shape.predict(SETUP, job_s, 5), rates, [1e4] * 3)
    assert shaped.overhead_s == pytest.approx(4.0)
    assert shaped.measured_s == pytest.approx(shaped.predicted_s)
    assert shaped.gap == pytest.approx(0.0)


def test_with_everybody_waited_for_a_round_takes_as_long_as_the_slowest_job():
    setup = Setup.from_texts({"devices": 3, "algorithm": "PerFed-SYN", "rounds": 4})
    timeline = shape.predict(setup, np.array([1.0, 2.0, 5.0]), 4)
    assert timeline.time_s.tolist() == [5.0, 10.0, 15.0, 20.0]


def test_a_narrower_band_gives_slower_uplinks():
    assert all(np.array(shape.uplink_rates(SETUP, 2e4)) < np.array(shape.uplink_rates(SETUP, 1e6)))


def test_without_root_it_says_so(monkeypatch):
    monkeypatch.setattr(shape.os, "geteuid", lambda: 1000)
    assert "root" in (shape.why_not() or "")
    monkeypatch.setattr(shape.os, "geteuid", lambda: 0)
    monkeypatch.setattr(shape.shutil, "which", lambda _: None)
    assert "iproute2" in (shape.why_not() or "")


@pytest.mark.slow
@needs("namespaces")
def test_an_uplink_has_its_rate_and_nothing_is_left_behind():
    send = (
        "import socket, time\n"
        "s = socket.create_connection(('10.231.255.1', {port})); began = time.monotonic()\n"
        "s.sendall(bytes(250_000)); s.shutdown(socket.SHUT_WR); s.recv(1); print(time.monotonic() - began)"
    )
    import socket

    with shape.networks([1e6]) as names, socket.create_server(("10.231.255.1", 0)) as server:
        port = server.getsockname()[1]
        device = subprocess.Popen(
            ["ip", "netns", "exec", names[0], "python3", "-c", send.format(port=port)],
            stdout=subprocess.PIPE,
            text=True,
        )
        connection, _ = server.accept()
        with connection:
            while connection.recv(65536):
                pass
            connection.sendall(b"!")
        said, _ = device.communicate()
    # 2 Mbit at 1 Mbit/s, less the bucket of 64 kB
    assert 1.2 < float(said) < 4.0
    left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    assert names[0] not in left
