"""Does a run in progress go on while its keys, certificates and authorities are replaced?"""

import contextlib

import pytest
from live import Live

from perfeds2.deployment.credentials import BROKER, Credentials
from perfeds2.deployment.enrolment import enrol, enrolling, make_tokens

pytestmark = pytest.mark.usefixtures("forking")


@pytest.fixture
def live(tmp_path):
    with contextlib.ExitStack() as stack:
        yield Live(tmp_path, stack)


@pytest.fixture
def port(live):
    with enrolling(live.credentials, ("127.0.0.1", 0)) as port:
        yield port


def check(live):
    """No round was lost and no ticket merged twice."""
    merges = live.federation.record.merges
    assert [merge.round for merge in merges] == [k for k in range(live.federation.round) for _ in range(2)]
    assert len({merge.ticket for merge in merges}) == len(merges)


@pytest.mark.parametrize("party", [None, 0, BROKER], ids=["server", "device", "broker"])
def test_a_run_goes_on_when_a_key_is_rotated(live, party):
    live.play()
    restarts = live.broker.restarts
    live.credentials.rotate(party)
    live.play_until(lambda: live.broker.restarts > restarts)
    live.play()
    live.play_until(lambda: live.federation.crew.usable == 3)
    check(live)


def test_a_run_goes_on_through_a_rollover(live):
    live.play()
    for finish in (False, True):
        restarts = live.broker.restarts
        live.credentials.roll(finish)
        for number in range(3):  # as they do within a day
            live.credentials.issue(number)
        live.play_until(lambda before=restarts: live.broker.restarts > before)
        live.play()
    live.play_until(lambda: live.federation.crew.usable == 3)
    check(live)


def test_a_revoked_device_comes_back_with_a_new_token_and_without_a_restart(live, port, tmp_path):
    own, where = Credentials(tmp_path / "own"), ("127.0.0.1", port)
    live.devices[0].close()
    enrol(own, where, make_tokens(live.credentials, [0], days=1)[0])
    with live.device(0, own):
        live.play_until(lambda: live.federation.crew.usable == 3)
        live.credentials.revoke(0)
        live.play_until(lambda: live.federation.crew.usable == 2)
        live.play()
        enrol(own, where, make_tokens(live.credentials, [0], days=1)[0])
        live.play_until(lambda: live.federation.crew.usable == 3)
        check(live)
