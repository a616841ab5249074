"""Does a server pause while its disk is full, say so, and go on when there is room, with nothing lost?"""

import errno
import json
import os
from dataclasses import replace
from types import SimpleNamespace

import pytest
from command_line import perfeds2
from in_process import InProcess, made_up
from test_federation_by_hand import SETUP

from perfeds2 import files
from perfeds2.deployment.audit import verify_log
from perfeds2.deployment.metrics import Metrics
from perfeds2.deployment.mqtt.runs import _run_id
from perfeds2.deployment.record import Record
from perfeds2.deployment.server import serve
from perfeds2.deployment.setup import FILE, Setup
from perfeds2.deployment.status import Status
from perfeds2.errors import InputError
from perfeds2.runs import folder as folders
from perfeds2.runs.folder import claimed


class Disk:
    """Full at every ``often``-th write, for three attempts; every other time it is a quota that is used up."""

    def __init__(self, monkeypatch, often):
        self.often, self.writes, self.waits = often, 0, list[float]()
        for place, name in ((os, "fsync"), (folders, "_append")):
            monkeypatch.setattr(place, name, self.failing(getattr(place, name)))
        monkeypatch.setattr(files, "time", SimpleNamespace(sleep=self.waits.append))

    def failing(self, write):
        def attempt(*given):
            self.writes += 1
            if self.writes % self.often < 3 and self.writes > 3:
                number = errno.ENOSPC if self.writes // self.often % 2 else errno.EDQUOT
                raise OSError(number, os.strerror(number))
            return write(*given)

        return attempt


def test_a_server_goes_on_when_there_is_room_again(tmp_path, monkeypatch, capsys):
    out = tmp_path / "run"
    setup = replace(SETUP, own=SETUP.own.model_copy(update={"log": "json"}))
    disk, net = Disk(monkeypatch, 17), InProcess(made_up, lambda job: 1.0 + job.ue, 4)
    assert serve(setup, net, out).finished
    monkeypatch.undo()
    setup.write(out)
    assert len(disk.waits) >= 6
    assert disk.waits.count(files.ROOM_EVERY_S) == len(disk.waits)
    assert "6 rounds, each merged once" in verify_log(out)
    lines = (out / "events.log").read_text().splitlines()
    assert any("paused for " in line for line in lines)
    assert len((out / "events.jsonl").read_text().splitlines()) == len(lines)
    said = capsys.readouterr().err
    assert f"the disk is full: {out}" in said
    assert len(said.splitlines()) < len(disk.waits)  # once for each pause
    assert len({job.ticket for job in net.sent}) == len(net.sent)


def test_the_status_says_so_even_then(tmp_path, monkeypatch):
    out = tmp_path / "run"
    seen = []

    def wait(_):
        seen.append(json.loads((out / "status.json").read_text()))
        monkeypatch.undo()

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    def answer(job, params):
        if job.version == 2 and not seen:
            monkeypatch.setattr(os, "fsync", full)
            monkeypatch.setattr(files, "time", SimpleNamespace(sleep=wait))
        return made_up(job, params)

    serve(SETUP, InProcess(answer, lambda job: 1.0 + job.ue, 4), out)
    assert seen[0]["phase"] == "paused"
    assert seen[0]["warning"].startswith(f"the disk is full: {out / 'parts'}")
    metrics = Metrics(0)
    metrics.tell(Status.model_validate(seen[0]), Record())
    assert metrics.health() == (503, seen[0]["warning"])


def test_other_errors_are_not_waited_for(tmp_path, monkeypatch):
    def broken(*_):
        raise OSError(errno.EIO, "Input/output error")

    def answer(job, params):
        monkeypatch.setattr(os, "fsync", broken)
        return made_up(job, params)

    with pytest.raises(OSError, match="Input/output"):
        serve(SETUP, InProcess(answer, lambda _: 1.0, 4), tmp_path / "run")


@pytest.mark.parametrize("share", [0.0, 0.3, 0.5, 0.9, 0.999])
def test_settings_that_were_cut_are_an_error_in_a_sentence(tmp_path, share):
    SETUP.write(tmp_path)
    text = (tmp_path / FILE).read_bytes()
    assert Setup.read(tmp_path) == SETUP
    cut = text[: int(share * len(text))]
    for wrong in (cut, cut[: cut.rfind(b"\n") + 1], cut + b"\xff\x00"):
        (tmp_path / FILE).write_bytes(wrong)
        with pytest.raises(InputError, match=r"federation\.toml is damaged"):
            Setup.read(tmp_path)


@pytest.mark.parametrize("name", ["federation.toml", "spec.toml", "run-id"])
def test_a_run_with_a_file_that_was_cut_is_refused_in_a_sentence(tmp_path, name):
    out = tmp_path / "run"
    with claimed(out, SETUP.spec):
        SETUP.write(out)
    (out / "run-id").write_text("0" * 32)
    text = (out / name).read_bytes()
    for wrong in (text[: len(text) // 2], text[:9] + b"\xff\x00"):
        (out / name).write_bytes(wrong)
        with pytest.raises(InputError, match=f"{name}|a different run"):
            resumed(out)


def resumed(out):
    """What a server does with a run's folder before it connects."""
    setup = Setup.read(out)
    _run_id(out)
    with claimed(out, setup.spec):
        pass


def test_the_command_ends_with_status_2_and_without_a_traceback(tmp_path):
    (tmp_path / FILE).write_text("devices = ")
    status, said = perfeds2("federate", "resume", str(tmp_path))
    assert status == 2
    assert "federation.toml is damaged" in said
    assert "Traceback" not in said
