"""Does a federation over a broker merge every update once, whichever process dies? In memory: the broker loses what a real one can."""

import pytest
from worlds import check, survive_kills, world

from perfeds2.deployment.mqtt import transport as mqtt_transport


@pytest.mark.slow
def test_devices_train_and_the_simulator_agrees(tmp_path):
    made = world(tmp_path)
    made.run()
    check(made)
    assert not [line for line in made.log if "refused" in line or "failed" in line]
    assert all(device.evaluated >= 0 for device in map(made.federation.devices.__getitem__, range(4)))


@pytest.mark.slow
def test_a_model_is_published_once_and_cleared_when_no_one_works_on_it(tmp_path):
    made = world(tmp_path)
    published = []
    take = made.broker.take
    made.broker.take = lambda topic, data, retain: (published.append((topic, bool(data))), take(topic, data, retain))
    while made.federation.round < made.setup.rounds:
        made.step()
        held = {device.job.version for device in map(made.federation.devices.__getitem__, range(4)) if device.job}
        there = {int(topic.split("/")[2]) for topic in made.broker.retained if topic.startswith("perfeds2/model/")}
        assert there >= held
        assert len(there) <= len(held) + 1  # and the newest, for the next device
    models = [topic for topic, full in published if full and topic.startswith("perfeds2/model/")]
    assert len(models) == len(set(models))
    made.transport.__exit__()
    made.broker.pump()
    assert not [topic for topic in made.broker.retained if not topic.startswith("perfeds2/here/")]


@pytest.mark.slow
def test_a_broker_that_dies_with_jobs_and_answers_loses_nothing(tmp_path):
    made = world(tmp_path, rounds=12)
    for messages in (5, 9, 14, 23, 31):  # it has taken more than it delivered
        made.step(messages=messages)
        made.broker.die()
        made.step()
        made.broker.live()
        for _ in range(4):
            made.step()
    made.run()
    check(made)
    assert not [line for line in made.log if "refused" in line or "lost" in line]


@pytest.mark.slow
def test_a_device_that_comes_back_answers_the_job_it_had(tmp_path):
    made = world(tmp_path, quorum=4, rounds=2)
    while not made.federation.record.merges:
        made.step()
    made.broker.die()  # with everything it knew, while everybody has a job
    made.devices.pop(2)
    made.broker.links = [
        link for link in made.broker.links if link.listener is not None and getattr(link.listener, "number", 0) != 2
    ]
    made.broker.live()
    made.start_device(2)  # and device 2 has died, too
    made.run()
    check(made)


@pytest.mark.slow
def test_whoever_does_not_come_back_with_the_broker_is_missed(tmp_path):
    made = world(tmp_path, rounds=6, quorum=3, devices=4)
    made.step()
    made.step()
    made.broker.die()
    made.broker.links.remove(made.devices[3].link)
    made.broker.live()
    made.step()
    assert 3 in made.transport._presence.here
    made.clock_s += mqtt_transport.CONFIRM_WITHIN_S
    made.run()
    assert 3 not in made.transport._presence.here
    check(made)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_fifty_kills_of_devices_server_and_broker_lose_and_double_nothing(tmp_path, seed):
    made = world(tmp_path, rounds=60)
    survive_kills(made, seed, 50)
    check(made)
