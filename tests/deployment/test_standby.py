"""Does a standby wait for its turn, and can an old server do no harm when it wakes? ``test_killed_processes.py`` kills real ones."""

import threading
import time

import pytest
from in_process import InProcess, made_up
from raw_mqtt import wait_for
from test_federation_by_hand import SETUP

from perfeds2.deployment import lease as leases
from perfeds2.deployment.audit import verify_log
from perfeds2.deployment.lease import FREE, Lease, LeaseLostError, leased, owner
from perfeds2.deployment.server import serve
from perfeds2.errors import InputError


def another_host(monkeypatch):
    monkeypatch.setattr(leases.socket, "gethostname", lambda: "another")


@pytest.mark.slow
def test_a_second_server_is_refused_and_a_standby_waits_until_the_first_has_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(leases, "RENEW_S", 0.02)
    monkeypatch.setattr(leases, "EXPIRE_S", 60.0)
    took_over = threading.Event()

    def stand_by():
        with leased(tmp_path, standby=True):
            took_over.set()

    with leased(tmp_path) as first:
        wait_for(lambda: owner(tmp_path) != "")
        another_host(monkeypatch)
        with pytest.raises(InputError, match="another server uses"), leased(tmp_path):
            pass
        waiting = threading.Thread(target=stand_by)
        waiting.start()
        assert not took_over.wait(0.5)
        first.check()
    waiting.join(60)
    assert took_over.is_set()
    assert owner(tmp_path) == FREE
    with pytest.raises(LeaseLostError, match="another server has taken over"):
        first.check()


@pytest.mark.slow
def test_a_lease_that_is_not_renewed_expires_and_is_taken_by_one_standby_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(leases, "RENEW_S", 0.02)
    monkeypatch.setattr(leases, "EXPIRE_S", 0.3)
    old = Lease(tmp_path, 0)
    old.file.touch()
    old.write("another 1 7")  # a machine that was cut off
    found = []
    standbys = [threading.Thread(target=lambda: found.append(leases._take(tmp_path, True))) for _ in range(3)]
    began_s = time.monotonic()
    for standby in standbys:
        standby.start()
    for standby in standbys:
        standby.join(60)
    assert time.monotonic() - began_s > 3 * 0.3  # none is renewed, so each expires
    assert sorted((lease.number, lease.stolen) for lease in found) == [(1, True), (2, True), (3, True)]
    old.write("it wakes")
    assert [path.name for path in tmp_path.iterdir()] == ["lease-3"]


def test_a_server_that_was_stopped_writes_nothing_once_another_has_taken_over(tmp_path):
    out, state = tmp_path / "run", tmp_path / "state"
    state.mkdir()
    old, new = Lease(state, 0), Lease(state, 1, stolen=True)
    old.file.touch()
    before = {}

    def answer(job, params):
        if job.version == 3 and not new.file.exists():
            new.file.touch()
            before.update({path: path.read_bytes() for path in out.rglob("*") if path.is_file()})
        return made_up(job, params)

    first, second = (InProcess(answer, lambda job: 1.0 + job.ue, 4) for _ in range(2))
    with pytest.raises(LeaseLostError):
        serve(SETUP, first, out, lease=old)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    assert serve(SETUP, second, out, lease=new).finished
    SETUP.write(out)
    assert "6 rounds, each merged once" in verify_log(out)
    assert not {job.ticket for job in first.sent} & {job.ticket for job in second.sent}


def test_odd_files_beside_the_lease_are_ignored(tmp_path):
    for name in ("lease-", "lease-old", "lease-1.bak", "lease-²"):
        (tmp_path / name).touch()
    with leased(tmp_path) as lease:
        assert lease.number == 0
        lease.check()


@pytest.mark.parametrize("content", [None, b"\xff\xfe", b"a b c", b"host 99999999999999999999 1", b"host -1 1", b""])
def test_a_damaged_lease_expires_as_any_other(tmp_path, monkeypatch, content):
    monkeypatch.setattr(leases, "EXPIRE_S", 0.3)
    monkeypatch.setattr(leases, "RENEW_S", 0.02)
    old = tmp_path / "lease-3"
    old.mkdir() if content is None else old.write_bytes(content)
    with leased(tmp_path) as lease:
        assert lease.number == 4
        lease.check()
