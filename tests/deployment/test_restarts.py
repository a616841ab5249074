"""Are processes that die started again without end or haste, and is it said why they died?"""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("paho")

from perfeds2.deployment import processes, run_queue
from perfeds2.deployment.credentials import make_credentials
from perfeds2.deployment.lease import Lease
from perfeds2.deployment.mqtt import many
from perfeds2.deployment.mqtt.broker import Broker
from perfeds2.deployment.processes import Restarts
from perfeds2.deployment.run_queue import Queue, serve_queue
from perfeds2.deployment.site import Site
from perfeds2.errors import InputError
from perfeds2.files import write_text


def test_what_keeps_dying_is_started_ever_later(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(processes, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    restarts, delays = Restarts(), []
    for _ in range(12):
        delays.append(restarts.died("a"))
        assert restarts.waits("a")
        assert restarts.due() == (["a"] if delays[-1] == 0 else [])
        clock[0] += delays[-1]
        assert restarts.due() == ([] if delays[-1] == 0 else ["a"])
    assert delays[:6] == [0.0, 0.0, 0.0, 2.0, 4.0, 8.0]
    assert max(delays) <= 60.0
    clock[0] += 200.0
    assert restarts.died("a") == 0.0
    assert restarts.died("b") == 0.0


def test_a_device_that_fails_prints_its_traceback(monkeypatch, capfd):
    def fail(*_):
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr(many, "run_together", fail)
    site: Any = SimpleNamespace()
    assert os.waitpid(many._fork(site, 0, lambda _: many.Owner(), many.contextlib.nullcontext), 0)[1] != 0
    assert "RuntimeError: a mistake of ours" in capfd.readouterr().err


def test_a_run_whose_folder_was_deleted_is_given_up_and_the_next_one_served(tmp_path, monkeypatch):
    queue, said = Queue(tmp_path / "state"), list[str]()
    queue.open()
    for number, name in enumerate(("gone", "next")):
        (tmp_path / name).mkdir()
        write_text(queue.folder / f"{number}.run", str(tmp_path / name))
    (tmp_path / "gone").rmdir()
    (queue.state / "lease-0").touch()

    def supervised(_site, folder, *_):
        if not folder.path.exists():
            folder.log("the process serving died: starting it again")  # as it does, and fails
        return True

    def say(text):
        said.append(text)
        if text.endswith("next: done"):
            raise KeyboardInterrupt

    monkeypatch.setattr(run_queue, "supervise", supervised)
    site = Site("127.0.0.1", 1, make_credentials(tmp_path / "credentials", 0))
    with pytest.raises(KeyboardInterrupt):
        serve_queue(site, queue, Lease(queue.state, 0), say)
    assert [text.partition(":")[2].split(":")[0] for text in said if "given up" in text] == [" given up"]
    assert not (tmp_path / "gone").exists()
    assert list(map(Path, queue.runs().values())) == []


def test_a_broker_that_does_not_start_is_tried_ever_later(tmp_path, monkeypatch):
    (tmp_path / "broker.log").touch()
    dead: Any = SimpleNamespace(log=lambda name: tmp_path / f"{name}.log", runs=lambda _: False)
    site = Site("127.0.0.1", 1, make_credentials(tmp_path / "credentials", 0))
    dying, tried = Broker("embedded", site, [], dead), []

    def restart():
        tried.append(1)
        raise InputError("it did not start")

    monkeypatch.setattr(dying, "restart", restart)
    for _ in range(20):
        dying.look()
    assert len(tried) == 3  # the next is due after two seconds
