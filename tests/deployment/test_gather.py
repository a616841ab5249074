"""Does a federation start with the devices it should, and say how many it covers?"""

import io
import json
import sys

import numpy as np
import pytest
from in_process import InProcess

from perfeds2.deployment.credentials import Credentials
from perfeds2.deployment.mqtt import many
from perfeds2.deployment.preparation import Owner
from perfeds2.deployment.server import serve
from perfeds2.deployment.setup import Setup
from perfeds2.deployment.site import Site
from perfeds2.deployment.transport import Presence, Reply
from perfeds2.errors import InputError
from perfeds2.learning.metrics import METRICS
from perfeds2.report.run import print_summary

TEXTS = {"devices": 3, "quorum": 1, "rounds": 3, "gather-s": 0, "max-staleness": 5}


def answer(job, params):
    update = {name: np.zeros_like(values) for name, values in params.items()} if job.kind == "train" else None
    return Reply(job.ue, job.ticket, job.version, update, dict.fromkeys(METRICS, 0.97))


class Late(InProcess):
    """Device 0 is there; the others come or report trouble after 3 seconds, on the virtual clock."""

    def __init__(self, trouble=None):
        super().__init__(answer, lambda _: 1.0, 3)
        self.present, self._told = Presence([0]), trouble

    def poll(self, wait_s):
        if self.time_s > 3 and self._told is not None:
            self.trouble = {2: self._told}
        elif self.time_s > 3 and self.present.here == {0}:
            self.present.add(1)
            self.present.add(2)
        return super().poll(wait_s)


@pytest.fixture(scope="module")
def with_one(tmp_path_factory):
    """The folder of a federation that did not wait."""
    out = tmp_path_factory.mktemp("one") / "run"
    serve(Setup.from_texts(TEXTS), InProcess(answer, lambda job: 1.0 + 1e6 * (job.ue > 0), 3), out)
    return out


def test_every_headline_says_how_many_devices_it_covers(with_one, capsys):
    assert json.loads((with_one / "summary.json").read_text())["took_part"] == 1
    page = (with_one / "report.html").read_text()
    assert "digits · 1 of 3 devices" in page
    assert "on 1 of 3 devices.</h1>" in page
    print_summary(with_one)
    said = " ".join(capsys.readouterr().out.split())
    assert "digits: 1 of 3 devices, 3 rounds" in said
    assert "on 1 of 3 devices." in said


def test_a_server_whose_devices_are_all_its_own_waits_for_all(tmp_path):
    serve(Setup.from_texts(TEXTS), Late(), tmp_path / "run", wait_for_all=True)
    assert "started with 3 of 3 devices" in (tmp_path / "run" / "events.log").read_text()
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["took_part"] == 3


def test_a_server_whose_devices_are_all_its_own_says_at_once_which_cannot_take_part(tmp_path):
    why = "FileNotFoundError; see this device's log"
    with pytest.raises(InputError, match=r"device 2 cannot take part: FileNotFoundError; see logs/devices\.log"):
        serve(Setup.from_texts(TEXTS), Late(why), tmp_path / "run", wait_for_all=True)


def test_the_parent_of_devices_imports_no_library_that_they_do_not_use(monkeypatch, tmp_path):
    """Scikit-learn takes longer than all else together, and the digits are read without it."""
    for name in ("sklearn", "pandas", "matplotlib"):
        monkeypatch.setitem(sys.modules, name, None)  # importing it raises ImportError

    def started(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(many, "_fork", started)
    monkeypatch.setattr(Credentials, "tls", lambda *_: None)
    monkeypatch.setattr(many.tempfile, "TemporaryFile", io.BytesIO)  # locks, which are not taken
    with pytest.raises(KeyboardInterrupt):
        many.run_apart(Site("127.0.0.1", 1, Credentials(tmp_path)), [0], lambda _: Owner())
