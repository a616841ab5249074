"""Does a run in progress go on while its keys, certificates and authorities are replaced?"""

import contextlib

import pytest

pytest.importorskip("paho")

from live import Live

from perfeds2.deployment.credentials import BROKER

pytestmark = pytest.mark.usefixtures("forking")


@pytest.fixture
def live(tmp_path):
    with contextlib.ExitStack() as stack:
        yield Live(tmp_path, stack)


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
