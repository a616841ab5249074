"""What survives the death of a server, and what does it do when too few devices are left?"""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from in_process import InProcess, made_up
from test_federation_by_hand import SETUP, federation, ones, play

from perfeds2.deployment import server as serving
from perfeds2.deployment.checkpoint import Checkpoints
from perfeds2.deployment.server import serve, status_of
from perfeds2.deployment.status import STOPPED, NewLines, draw, read_status
from perfeds2.deployment.supervisor import claim_run
from perfeds2.deployment.transport import Reply
from perfeds2.errors import InputError
from perfeds2.report.terminal import open_console
from perfeds2.runs.folder import Folder, alone
from perfeds2.timeline.protocol import Protocol


def fails(ues):
    """Some devices always crash, the others are as they should be."""
    return lambda job, params: (
        Reply(job.ue, job.ticket, job.version, error="crashed") if job.ue in ues else ones(job, params)
    )


def facts(server):
    """Everything that a resume must bring back."""
    devices = [(d.merged_in, d.merges, d.held, d.refused, d.set_aside_s) for d in server.devices]
    votes = list(server.uploads.norms.votes.items())
    return server.round, server.opened_s, server.params["w"].tobytes(), server.record, devices, votes


def saved_federation(tmp_path, rounds=6, answer=None):
    """Plays rounds with a checkpoint each; returns the folder, the server and copies of its files after each save."""
    folder, copies = Folder(tmp_path / "run"), []
    folder.parts.mkdir(parents=True)
    net = InProcess(answer or fails({3}), lambda job: 1.0 + job.ue, 4)
    server, checkpoints = federation(net, Protocol(2), 4), Checkpoints(folder)

    def save(state):
        checkpoints.save(state, 7.0)
        files = {path.name: path.read_bytes() for path in folder.parts.iterdir()}
        copies.append((files, json.dumps(facts(state)[3].since({})), facts(state)[:3], facts(state)[4:]))

    server.save = save
    play(server, rounds)
    return folder, copies


def loaded(folder):
    server = federation(InProcess(ones, lambda _: 1.0, 4), Protocol(2), 4)
    assert Checkpoints(folder).load(server) == 7.0
    return server


@pytest.mark.slow
def test_a_server_killed_at_any_byte_of_a_save_goes_on_from_the_save_before(tmp_path):
    folder, copies = saved_federation(tmp_path)
    (before, record, state, rest), (after, *_) = copies[-2:]
    old, new = before[JOURNAL], after[JOURNAL]
    assert new.startswith(old)
    assert len(new) > len(old)
    for cut in range(len(old), len(new) + 1):  # the line is being written; the model is still the old one
        put(folder, before | {JOURNAL: new[:cut]})
        server = loaded(folder)
        assert json.dumps(server.record.since({})) == record, cut
        assert facts(server)[:3] == state
        assert facts(server)[4:] == rest
    assert loaded(folder).round == server.round  # what the resume itself wrote is in order too


JOURNAL = "federation-000000000000.jsonl"


def put(folder, files):
    """Make these the files of a federation's state."""
    shutil.rmtree(folder.parts)
    folder.parts.mkdir()
    for name, data in files.items():
        (folder.parts / name).write_bytes(data)


def killed(*_):
    raise KeyboardInterrupt


def models(files):
    """The names of its checkpoints, newest first."""
    return sorted((name for name in files if name.endswith(".safetensors")), reverse=True)


@pytest.mark.parametrize("lost", [1, 2], ids=["newest", "newest two"])
@pytest.mark.parametrize(
    "spoil", [lambda _: None, lambda data: data[: len(data) // 2], lambda _: b""], ids=["gone", "cut", "empty"]
)
def test_a_checkpoint_that_is_lost_or_cut_is_replaced_by_an_older_one_and_no_ticket_is_used_again(
    tmp_path, lost, spoil
):
    folder, copies = saved_federation(tmp_path)
    files, spoiled = copies[-1][0], {}
    assert len(models(files)) == 3
    for name in models(files)[:lost]:
        spoiled[name] = spoil(files[name])
    put(folder, {name: data for name, data in (files | spoiled).items() if data is not None})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("perfeds2.deployment.checkpoint.save_arrays", killed)
        with pytest.raises(KeyboardInterrupt):
            loaded(folder)
    server = loaded(folder)
    _, record, state, rest = copies[-1 - lost]
    assert json.dumps(server.record.since({})) == record
    assert facts(server)[:3] == state
    assert facts(server)[4:] == rest
    assert server.dispatcher.next_ticket > 10**12
    assert loaded(folder).dispatcher.next_ticket < 2 * 10**12  # three again, so the next resume counts on as usual


def test_a_loss_after_several_resumes_uses_no_ticket_of_theirs_again(tmp_path):
    folder, _ = saved_federation(tmp_path, rounds=2)
    kept = {path.name: path.read_bytes() for path in folder.parts.iterdir()}
    used = [loaded(folder).dispatcher.next_ticket for _ in range(4)][-1]
    put(folder, {name: kept[name] for name in (JOURNAL, models(kept)[-1])})
    assert loaded(folder).dispatcher.next_ticket > used + 10**6


def test_a_journal_that_was_changed_or_cut_takes_the_run_back_or_is_refused(tmp_path):
    folder, copies = saved_federation(tmp_path)
    files, _, state, _ = copies[-2]
    put(folder, copies[-1][0] | {JOURNAL: copies[-1][0][JOURNAL][:-1]})  # only the last line is lost
    assert facts(loaded(folder))[:3] == state
    text = files[JOURNAL]
    for wrong in (text[:10] + b"7" + text[11:], b"", None):
        put(folder, {name: data for name, data in (files | {JOURNAL: wrong}).items() if data is not None})
        with pytest.raises(InputError, match="has no intact checkpoint, but this federation has started"):
            loaded(folder)


def test_what_a_stopped_server_still_writes_is_not_read(tmp_path):
    """It was stopped in the middle of a save and goes on after another one has taken over."""
    folder = Folder(tmp_path / "run")
    folder.parts.mkdir(parents=True)
    old, checkpoints = federation(InProcess(ones, lambda job: 1.0 + job.ue, 4), Protocol(2), 4), Checkpoints(folder)
    old.save = lambda state: checkpoints.save(state, 7.0)
    play(old, 3)
    new, theirs = federation(InProcess(ones, lambda job: 1.0 + job.ue, 4), Protocol(2), 4), Checkpoints(folder)
    theirs.load(new)
    new.save = lambda state: theirs.save(state, 7.0)
    play(new, 5)
    with pytest.raises(FileNotFoundError):
        play(old, 9)  # its journal has been copied and deleted
    play(new, 6)
    again = loaded(folder)
    assert facts(again)[:4] == facts(new)[:4]


def test_a_save_writes_what_is_new_and_no_more(tmp_path):
    _, copies = saved_federation(tmp_path, rounds=60, answer=ones)
    lengths = np.diff([len(files[JOURNAL]) for files, *_ in copies])
    sizes = [len(files[models(files)[0]]) for files, *_ in copies]
    assert lengths[-20:].max() < 1.5 * lengths[5:25].max()
    assert max(sizes[-20:]) - max(sizes[5:25]) < 50  # longer numbers
    assert max(len(files) for files, *_ in copies) == 4


def test_a_kill_during_a_save_does_not_count_as_a_lost_checkpoint(tmp_path):
    folder, copies = saved_federation(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("perfeds2.deployment.checkpoint.save_arrays", killed)
        with pytest.raises(KeyboardInterrupt):
            loaded(folder)
    assert loaded(folder).dispatcher.next_ticket < 10**9
    assert copies


def test_who_was_set_aside_stays_so_after_a_resume_even_if_no_round_closed_since(tmp_path):
    folder, copies = saved_federation(tmp_path, rounds=1, answer=fails({1, 2, 3}))
    server = loaded(folder)
    assert [device.set_aside for device in server.devices] == [False, True, True, True]
    assert server.crew.states["set aside"].keys() == {1, 2, 3}
    play(server, 2, steps=3)
    assert isinstance(server.transport, InProcess)
    assert not [job for job in server.transport.sent if job.ue]
    assert copies


def test_who_was_set_aside_gets_one_more_chance_after_a_while():
    log = []
    net = InProcess(fails({0}), lambda _: 1.0, 2)
    server = federation(net, Protocol(1), 2, log=log.append, readmit_s=10.0)
    play(server, 30)
    said = [line.split(":")[0] for line in log if "UE 0" in line]
    assert said == [
        *["failed"] * 3,
        "set aside",
        "readmitted",
        "failed",
        "set aside",
        "readmitted",
        "failed",
        "set aside",
    ]
    assert sum(job.ue == 0 for job in net.sent) == 5
    never = InProcess(fails({0}), lambda _: 1.0, 2)
    play(federation(never, Protocol(1), 2, readmit_s=0.0), 30)
    assert sum(job.ue == 0 for job in never.sent) == 3


def test_too_few_devices_are_said_at_once_and_not_waited_for_for_ever():
    log = []
    net = InProcess(fails({0}), lambda _: 1.0, 3)
    server = federation(net, Protocol(2), 3, log=log.append, wait_s=20.0, readmit_s=0.0)
    net.present.discard(1)
    server.rounds = 5
    for _ in range(4):
        server.step(1.0)
    said = "1 of 3 devices can be used and a round needs 2: 1 away, 1 set aside"
    assert [line for line in log if "warning" in line] == [f"warning: {said}"]
    assert status_of(server, "training").warning == said
    assert f"warning: {said}" in list(NewLines()(status_of(server, "training")))
    net.present.add(1)
    server.step(1.0)
    assert status_of(server, "training").warning is None
    assert "enough devices again: 2 of 3" in log
    net.present.discard(1)
    with pytest.raises(InputError, match=r"after 20 s \(--wait-s\) still only 1 of 3 .* 1 away, 1 set aside"):
        play(server, 5)


def test_a_federation_that_stops_keeps_what_was_merged_and_goes_on_when_resumed(tmp_path):
    out, setup = tmp_path / "run", replace(SETUP, own=SETUP.own.model_copy(update={"wait_s": 5.0, "gather_s": 0.0}))

    class Leaving(InProcess):
        def dispatch(self, request, params):
            if request.version == 3:
                for ue in range(1, 4):
                    self.present.discard(ue)
            return super().dispatch(request, params)

    with pytest.raises(InputError, match="still only 1 of 4 devices"):
        serve(setup, Leaving(made_up, lambda job: 1.0 + job.ue, 4), out)
    status = read_status(out)
    assert status is not None
    assert (status.phase, status.round) == (STOPPED, 3)
    assert "still only 1 of 4" in (status.warning or "")
    assert "stopped: after 5 s" in (out / "events.log").read_text()
    assert serve(setup, InProcess(made_up, lambda job: 1.0 + job.ue, 4), out).finished
    silent = InProcess(made_up, lambda _: 1.0, 0)
    with pytest.raises(InputError, match="0 of 4 devices came within"):
        serve(setup, silent, tmp_path / "silent")


def test_a_server_killed_in_round_0_uses_no_ticket_again(tmp_path):
    class Dying(InProcess):
        def poll(self, wait_s):  # noqa: ARG002 (the interface)
            raise KeyboardInterrupt

    out, first, second = tmp_path / "run", Dying(made_up, lambda _: 1.0, 4), InProcess(made_up, lambda _: 1.0, 4)
    with pytest.raises(KeyboardInterrupt):
        serve(SETUP, first, out)
    assert serve(SETUP, second, out).finished
    assert len(first.sent) == 4
    assert not {job.ticket for job in first.sent} & {job.ticket for job in second.sent}
    assert "resumed: no round is in the checkpoint" in (out / "events.log").read_text()


def test_a_second_server_or_starter_touches_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(serving, "CLAIM_WITHIN_S", 0.2)
    out = tmp_path / "run"
    with claim_run(out, SETUP) as folder:
        assert not folder.finished
        (out / "run-id").write_text("the first")
        before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
        with pytest.raises(InputError, match="a federation runs there: follow it with perfeds2 federate watch"):
            claim_run(out, SETUP).__enter__()
        with alone(out):  # its server
            with pytest.raises(InputError, match="another process is writing"):
                serve(SETUP, InProcess(made_up, lambda _: 1.0, 4), out)
            with pytest.raises(InputError, match="a federation runs there"):
                claim_run(out, SETUP).__enter__()
        assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before
    shutil.rmtree(out)


def test_the_table_shows_counts_accuracies_and_warnings():
    net = InProcess(ones, lambda job: 1.0 + job.ue, 200)
    server = federation(net, Protocol(150, 4, "wait"), 200)
    play(server, 1, steps=300)
    server.warning = "look here"
    shown = open_console()
    shown.width = 150
    with shown.capture() as captured:
        shown.print(draw(status_of(server, "training")))
    text = captured.get()
    assert "200 devices:" in text
    assert "warning: look here" in text
    assert "and 138 more" in text
    assert text.count("\n") < 40
