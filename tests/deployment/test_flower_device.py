"""What can a server make a device on Flower do? Train, on what its owner said, and nothing else."""

import warnings

import numpy as np
import pytest

pytest.importorskip("flwr")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Flower's dependencies have their own
    from flwr.app import ConfigRecord, Message, RecordDict
    from flwr.supercore.run import Run
    from flwr.supercore.task_identity import TaskIdentity

    from perfeds2.deployment.flower.device import Owned, Worker, own_setup
    from perfeds2.deployment.flower.transport import read_reply, to_records

from perfeds2.deployment.credentials import Credentials
from perfeds2.deployment.flower.site import Site
from perfeds2.deployment.setup import Setup
from perfeds2.deployment.transport import Request
from perfeds2.errors import InputError

OWN = """
from pathlib import Path
Path({marker!r}).touch()
class Model:
    def init(self, key): ...
    def __call__(self, params, x): ...
model = Model()
def load_data(folder, device):
    raise ValueError("a secret of this device's data")
"""


@pytest.fixture(autouse=True)
def as_in_a_run(monkeypatch):
    """Flower makes messages only where it runs an app."""
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


def module(folder, name):
    path, marker = folder / f"{name}.py", folder / f"{name}-ran"
    path.write_text(OWN.format(marker=str(marker)))
    return path, marker


def owned(folder, **more):
    return Owned("x:1", folder / "ca.crt", folder / "device-0.key", **more)


def asked(settings, params, kind="train"):
    """A worker that has been told these settings, and a job for it."""
    job = ConfigRecord({"ticket": 7, "ue": 0, "version": 4})
    content = RecordDict({"job": job, **to_records("model", params)})
    message = Message(content, dst_node_id=1, message_type=kind)
    message.metadata.__dict__["_message_id"] = "1"
    run = Run.create_empty(1)
    run.override_config = {"settings": settings}
    return lambda _: run, message


def test_the_files_a_server_names_are_not_the_devices(tmp_path):
    theirs, mine = tmp_path / "theirs.py", tmp_path / "mine.py"
    told = {"devices": 2, "quorum": 1, "app-module": str(theirs), "data-dir": "/etc", "out": "/etc/cron.d"}
    settings = Setup.from_texts(told).to_toml()
    setup = own_setup(settings, owned(tmp_path, app_module=mine))
    assert setup.own.app_module == mine
    assert setup.own.out is None
    assert setup.spec.task.data_dir is None
    with pytest.raises(InputError, match="--app-module FILE"):
        own_setup(settings, owned(tmp_path))
    built_in = Setup.from_texts({"devices": 2, "quorum": 1}).to_toml()
    assert own_setup(built_in, owned(tmp_path, app_module=mine)).own.app_module is None


def test_a_server_cannot_make_a_device_load_a_file_of_its_choice(tmp_path, capsys):
    path, marker = module(tmp_path, "theirs")
    settings = Setup.from_texts({"devices": 2, "quorum": 1, "app-module": str(path)}).to_toml()
    get_run, message = asked(settings, {"w": np.zeros(2, np.float32)})
    reply = Worker(owned(tmp_path), get_run).answer(message)
    assert reply.has_error()
    assert not marker.exists()
    assert "--app-module FILE" in capsys.readouterr().err


def test_the_server_hears_that_a_job_failed_and_not_what_the_data_look_like(tmp_path, capsys):
    path, marker = module(tmp_path, "mine")
    settings = Setup.from_texts({"devices": 2, "quorum": 1, "app-module": "/theirs.py"}).to_toml()
    get_run, message = asked(settings, {"w": np.zeros(2, np.float32)})
    reply = Worker(owned(tmp_path, app_module=path), get_run).answer(message)
    assert marker.exists()
    assert "secret" not in str(reply.error)
    assert "secret" in capsys.readouterr().err


def test_a_device_answers_and_keeps_what_it_has_loaded(tmp_path):
    setup = Setup.from_texts({"devices": 2, "quorum": 1, "task": "digits"})
    get_run, message = asked(setup.to_toml(), setup.first_params())
    worker = Worker(owned(tmp_path), get_run)
    reply = read_reply(worker.answer(message), Request(7, 0, 4), 1.0)
    assert (reply.ticket, reply.version, reply.error) == (7, 4, None)
    assert reply.update is not None
    assert reply.update.keys() == setup.first_params().keys()
    (task,) = worker.tasks.values()
    worker.answer(message)
    assert list(worker.tasks.values()) == [task]


def test_what_the_owner_said_reaches_the_device(tmp_path):
    site = Site("fl.example.org:9443", Credentials(tmp_path), tmp_path / "state")
    said = Owned.from_json(site.device(3, data_folder=tmp_path / "data")[-1])
    assert said.server == "fl.example.org:9443"
    assert said.key == (tmp_path / "devices" / "device-3.key").resolve()
    assert said.data == (tmp_path / "data").resolve()
    assert said.app_module is None
