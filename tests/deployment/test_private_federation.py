"""Does a federation keep what it promises about privacy: noise, clipping, and a budget that no kill resets?"""

import json
import random
import re
import shutil
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fake_broker import FakeBroker
from in_process import InProcess
from test_federation_by_hand import ones
from worlds import check, survive_kills, world

from perfeds2.deployment import noise_ledger
from perfeds2.deployment.checkpoint import Checkpoints
from perfeds2.deployment.device import do_job
from perfeds2.deployment.federation import Federation
from perfeds2.deployment.fields import DeploymentSpec
from perfeds2.deployment.merging import StartModel, merged, noise_on
from perfeds2.deployment.metrics import Metrics
from perfeds2.deployment.replay_run import replay_run
from perfeds2.deployment.server import serve, status_of
from perfeds2.deployment.setup import Setup
from perfeds2.deployment.status import draw
from perfeds2.deployment.transport import Arrays
from perfeds2.errors import InputError
from perfeds2.learning.learner import Learner
from perfeds2.learning.methods import FedBuff
from perfeds2.learning.objectives import FedAvg
from perfeds2.privacy.accounting import privacy_loss
from perfeds2.report.terminal import open_console
from perfeds2.runs.folder import Folder
from perfeds2.timeline.protocol import Protocol

PRIVATE = {"devices": 4, "quorum": 2, "max-staleness": 3, "clip": 1, "dp-noise": 2.0}
LOSSES = np.array([0.0, 2.0, 3.0, 4.0, 5.0])  # of tiny federations: three merges cost 4
TINY = Learner(FedAvg(), beta=0.5, clip=1.0, noise=1.0, noise_seed=7)


def tiny(net, protocol, ues, learner=TINY, **own):
    params = {"w": np.zeros(2, np.float32)}
    return Federation(protocol, learner, params, net, ues, 50, DeploymentSpec(**own), losses=LOSSES)


def play(server, steps=200):
    for _ in range(steps):
        if server.round >= server.rounds:
            return
        server.step(wait_s=1.0)


def merges(server):
    return np.bincount([merge.ue for merge in server.record.merges], minlength=server.ues).tolist()


class ListeningBroker(FakeBroker):
    """Remembers everything that anybody publishes."""

    def __init__(self):
        super().__init__()
        self.heard = []

    def take(self, topic, data, retain):
        self.heard.append((topic, data))
        super().take(topic, data, retain)


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A federation with a budget of three merges for each device, whose server and devices die again and again."""
    budget = float(Setup.from_texts(PRIVATE).losses[3]) + 1e-6  # type: ignore[index]
    made: Any = world(tmp_path_factory.mktemp("killed"), **PRIVATE, rounds=40, **{"epsilon-budget": budget})
    made.broker.__class__ = ListeningBroker
    made.broker.heard = []
    made.transport.link.kill()
    made.start_server()  # published again, to the broker that listens
    chance, kills = random.Random(5), [0] * 5
    for _ in range(3000):
        if made.federation.round >= made.federation.rounds:
            assert min(kills) > 0  # every device, and the server
            return made, budget
        made.step(messages=chance.choice([1, 3, 100]), jobs=chance.choice([0, 1, 5]))
        if chance.random() < 0.3:
            number = chance.randrange(5)
            kills[number] += 1
            link: Any = made.transport.link if number == 4 else made.devices[number].link
            link.kill()
            made.start_server() if number == 4 else made.start_device(number)
    raise AssertionError(made.log[-5:])


@pytest.mark.slow
def test_no_device_exceeds_its_budget_however_often_server_and_devices_are_killed(killed):
    made, budget = killed
    counts = merges(made.federation)
    assert max(counts) == 3
    assert sum(count < 3 for count in counts) < 2  # a round needs two devices
    assert f"The run ended after {made.federation.round} of 40 rounds" in made.federation.ended
    assert sum("ended: " in line for line in made.log) == 1
    assert max(each.epsilon for each in made.federation.devices) <= budget


@pytest.mark.slow
def test_the_ledger_is_what_accounting_says_about_the_recorded_timeline(killed):
    made, _ = killed
    federation = made.federation
    expected = privacy_loss(federation.timeline(), sigma=2.0)
    assert [device.epsilon for device in federation.devices] == pytest.approx(expected.tolist(), rel=1e-9)
    status = status_of(federation, "training")
    assert status.epsilon_worst == pytest.approx(expected.max())
    assert status.epsilon_median == pytest.approx(np.median(expected))
    assert [each.epsilon for each in status.devices] == pytest.approx(expected.tolist())


@pytest.mark.slow
def test_a_server_that_starts_again_knows_who_has_spent_the_budget(killed):
    made, _ = killed
    before = merges(made.federation)
    made.transport.link.kill()
    made.start_server()
    for number in range(4):
        made.devices[number].link.kill()
        made.start_device(number)  # the same certificate, another connection
    made.run()
    assert merges(made.federation) == before
    spent = [ue for ue, count in enumerate(before) if count == 3]
    assert not [device.ue for device in made.federation.devices if device.ue in spent and device.job is not None]


@pytest.mark.slow
def test_the_record_replays_to_the_same_weights_with_the_servers_noise(killed):
    made, _ = killed
    check(made)  # to 1e-6
    made.federation.learner = replace(made.federation.learner, noise_seed=1)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        check(made)


@pytest.mark.slow
def test_fifty_kills_with_noise_lose_and_double_nothing(tmp_path):
    made = world(tmp_path, **PRIVATE | {"rounds": 60})
    survive_kills(made, 3, 50)
    check(made)
    assert len(noise_ledger.read(made.folder.path).seeds) > 3  # the server died as often


def test_the_noise_seed_is_in_no_message_and_in_no_other_file(killed):
    made, _ = killed
    file = noise_ledger.file_of(made.folder.path)
    seeds = [seed for _, seed in noise_ledger.read(made.folder.path).seeds]
    assert file.parent == made.folder.path.parent  # people share the folder
    assert file.stat().st_mode & 0o777 == 0o600
    assert len(set(seeds)) == len(seeds) > 1  # another one for every start of the server
    secrets = [f"{seed:032x}".encode() for seed in seeds] + [str(seed).encode() for seed in seeds]
    secrets += [seed.to_bytes(16, order) for seed in seeds for order in ("little", "big")]
    others = [path.read_bytes() for path in made.folder.path.rglob("*") if path.is_file()]
    sent = [data for _, data in made.broker.heard]
    assert len(sent) > 50
    assert any(b"dp-noise" in data for data in sent)  # the settings travelled, and the budget stayed
    assert not any(b"epsilon-budget" in data for data in sent)
    for secret in secrets:
        assert not any(secret in data for data in [*sent, *others])


@pytest.mark.slow
def test_a_run_ends_well_when_the_budget_is_spent_and_is_replayed_from_its_folder(tmp_path):
    budget = 1.001 * float(Setup.from_texts(PRIVATE).losses[2])  # type: ignore[index]
    setup = Setup.from_texts(PRIVATE | {"rounds": 30, "epsilon-budget": budget, "dp-bands": 1})
    task = setup.task(0)
    net = InProcess(lambda job, params: do_job(setup, task, job, StartModel(params))[0], lambda job: 1.0 + job.ue, 4)
    folder = serve(setup, net, tmp_path / "run")
    setup.write(folder.path)
    assert folder.finished
    first_note = json.loads((folder.path / "summary.json").read_text())["notes"][0]
    assert first_note.endswith("have privacy budget for another round (--epsilon-budget), and it needs 2.")
    assert re.search(r"ended: The run ended after \d of 30 rounds", (folder.path / "events.log").read_text())
    assert sum(job.kind == "evaluate" for job in net.sent) == 4  # also those without budget
    by_device = (folder.path / "ue_metrics.csv").read_text().split("\n")
    assert by_device[0].endswith("epsilon")
    assert float(by_device[1].split(",")[-1]) == pytest.approx(budget, rel=2e-3)
    assert (folder.path / "metrics.csv").read_text().split("\n")[0].endswith("epsilon")
    agreement = replay_run(folder.path)
    assert agreement.rounds < 30
    assert agreement.relative < 1e-6
    file = noise_ledger.file_of(folder.path)
    ledger = noise_ledger.read(folder.path)
    noise_ledger._write(folder.path, ledger._replace(seeds=((0, ledger.seeds[0][1] ^ 1),)))
    assert not replay_run(folder.path).holds
    file.unlink()
    with pytest.raises(InputError, match="has the secret seeds of the noise, is missing or damaged"):
        replay_run(folder.path)


def test_a_folder_restored_from_an_older_copy_is_refused_and_no_noise_is_drawn_twice(tmp_path):
    """Its ε would be too low, and the same noise under other updates would reveal them."""
    run, older, learner = tmp_path / "run", tmp_path / "older", replace(TINY, noise_seed=None)
    run.mkdir()
    first = noise_ledger.start(learner, run, 0, new=True)
    noise_ledger.reach(learner, run, 3)
    shutil.copytree(run, older)
    second = noise_ledger.start(learner, run, 3, new=False)
    noise_ledger.reach(learner, run, 9)
    shutil.rmtree(run)
    shutil.copytree(older, run)
    with pytest.raises(InputError, match="is open in round 3, but round 8 was closed before"):
        noise_ledger.start(learner, run, 3, new=False)
    params = {"w": np.zeros(4, np.float32)}
    drawn = {k: [noise_on(params, each, k) for each in (first, second)] for k in (2, 3)}
    np.testing.assert_array_equal(*[each["w"] for each in drawn[2]])  # type: ignore[index]
    assert not np.isclose(*[each["w"] for each in drawn[3]]).any()  # type: ignore[index]


@pytest.mark.parametrize("protocol", [Protocol(2), Protocol(2, 1, "wait"), Protocol(1, rest_rounds=4)])
def test_a_device_that_has_spent_its_budget_gets_no_job_and_does_not_hold_up_others(protocol):
    net = InProcess(ones, lambda job: 1.0 + 3.0 * job.ue, 6)
    server = tiny(net, protocol, 6, epsilon_budget=4.5)
    play(server)
    assert server.ended
    assert max(merges(server)) == 3
    handed = [sum(job.ue == ue for job in net.sent) for ue in range(6)]
    assert all(jobs >= count for jobs, count in zip(handed, merges(server), strict=True))
    last = {ue: max(merge.ticket for merge in server.record.merges if merge.ue == ue) for ue in range(6)}
    assert not [job for job in net.sent if merges(server)[job.ue] == 3 and job.ticket > last[job.ue]]


def test_resting_devices_are_counted_and_waited_for():
    net = InProcess(ones, lambda _: 1.0, 4)
    server = tiny(net, Protocol(2, rest_rounds=2), 4, wait_s=20.0)
    net.present.discard(3)
    with pytest.raises(
        InputError, match=r"1 of 4 devices can be used and a round needs 2: 1 away, 0 set aside, 2 resting"
    ):
        play(server)
    assert server.round == 1


def test_an_update_is_clipped_to_the_norm_that_the_noise_hides_whatever_others_send():
    def long(job, params):  # of norm 100·√2, 0.1·√2, 0.1·√2
        return replace(ones(job, params), update={"w": np.full(2, 100.0 if job.ue == 0 else 0.1, np.float32)})

    net = InProcess(long, lambda _: 1.0, 3)
    server = tiny(net, Protocol(3), 3, learner=replace(TINY, noise=1e-6), norm_factor=1.0)
    server.rounds = 3
    play(server)
    assert server.uploads.norm_bound == pytest.approx(1.0, abs=2e-6)  # the median is 0.14
    moved = -3 * 0.5 / 3 * (np.sqrt(0.5) + 0.1 + 0.1)
    np.testing.assert_allclose(server.params["w"], moved, rtol=1e-4)


@pytest.mark.slow
def test_noise_is_added_once_to_the_sum_weighted_or_not():
    params = {"w": np.zeros(40_000, np.float32)}
    updates: list[Arrays] = [{"w": np.zeros(40_000, np.float32)}] * 5
    noisy = replace(TINY, clip=2.0, noise=3.0)
    noise = noise_on(params, noisy, 4)
    assert noise is not None
    assert noise["w"].std() == pytest.approx(6.0, rel=0.02)
    senders = [(ue, 2 * ue) for ue in range(5)]  # FedBuff gives stale updates smaller weights
    for learner in (noisy, replace(noisy, merge=FedBuff())):
        model, _ = merged(params, updates, learner, None, senders, noise=noise)
        np.testing.assert_allclose(model["w"], -0.5 * noise["w"] / 5, rtol=1e-4, atol=1e-6)
    other = noise_on(params, replace(noisy, noise_seed=8), 4)
    assert other is not None
    assert abs(np.corrcoef(noise["w"], other["w"])[0, 1]) < 0.03


def test_a_lost_checkpoint_is_not_played_again_with_the_same_noise(tmp_path):
    folder = Folder(tmp_path / "run")
    folder.parts.mkdir(parents=True)
    server, checkpoints = tiny(InProcess(ones, lambda _: 1.0, 3), Protocol(2), 3), Checkpoints(folder)
    server.save = lambda state: checkpoints.save(state, 7.0)
    play(server, 4)
    again = tiny(InProcess(ones, lambda _: 1.0, 3), Protocol(2), 3)
    Checkpoints(folder).load(again)
    assert (again.round, merges(again)) == (server.round, merges(server))
    max(folder.parts.glob("*.safetensors")).unlink()
    with pytest.raises(InputError, match=r"only 2 of 3 checkpoints .* To repeat them with the same noise would reveal"):
        Checkpoints(folder).load(tiny(InProcess(ones, lambda _: 1.0, 3), Protocol(2), 3))


def test_the_table_and_the_metrics_show_every_devices_loss():
    server = tiny(InProcess(ones, lambda job: 1.0 + job.ue, 3), Protocol(1), 3, epsilon_budget=4.0)
    play(server, 2)
    status = status_of(server, "training")
    shown = open_console()
    shown.width = 150
    with shown.capture() as captured:
        shown.print(draw(status))
    assert status.line == "training, round 3 of 50, ε 3 (worst device), 2 (median)"
    assert re.search(r"accuracy +ε\s+0 .* 3 ?\n", captured.get())
    metrics = Metrics(8)
    metrics.tell(status, server.record)
    found = {
        (sample.name, sample.labels.get("device")): sample.value
        for each in metrics.collect()
        for sample in each.samples
    }
    assert found["perfeds2_epsilon_worst", None] == 3.0
    assert found["perfeds2_epsilon_median", None] == 2.0
    assert [found["perfeds2_epsilon", str(ue)] for ue in range(3)] == [3.0, 2.0, 0.0]


def test_epsilon_decides_noise_that_suffices_for_every_timeline():
    told = {name: value for name, value in PRIVATE.items() if name != "dp-noise"} | {"rounds": 12, "epsilon": 2.0}
    for more in ({}, {"rest-rounds": 2}, {"rest-rounds": 2, "dp-bands": 4}, {"algorithm": "FedAvg-SYN"}):
        losses = Setup.from_texts(told | more).losses
        assert losses is not None
        assert losses[-1] == pytest.approx(2.0, rel=1e-6)
        assert len(losses) == (7 if "rest-rounds" in more else 13)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"epsilon-budget": 1}, "--epsilon-budget has no effect without noise; add --dp-noise or --epsilon"),
        ({"epsilon-budget": 0.1, "dp-noise": 1, "clip": 1}, "allows no merge: the first costs ε = "),
        ({"dp-noise": 1}, "--dp-noise needs --clip"),
        ({"dp-noise": 1, "clip": 1, "bits": 8}, "--bits may lengthen an upload"),
        ({"dp-noise": 1, "clip": 1, "algorithm": "SCAFFOLD"}, "SCAFFOLD cannot be combined with"),
        ({"rest-rounds": 3, "quorum": 2}, "--quorum 2 times --rest-rounds 3 must be at most"),
    ],
)
def test_what_does_not_fit_together_is_refused_in_a_sentence(given, sentence):
    with pytest.raises(InputError) as refused:
        _ = Setup.from_texts({"devices": 4} | given).losses
    assert sentence in str(refused.value)
