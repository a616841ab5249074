"""Is a federation's log complete, in order and protected against changes, also after kills and lost checkpoints?"""

import hashlib
import json
import re
import shutil

import pytest
from command_line import perfeds2
from in_process import InProcess, made_up
from test_federation_by_hand import SETUP

from perfeds2.deployment.audit import HEAD, LogError, rounds_in, verify_log
from perfeds2.deployment.checkpoint import Checkpoints
from perfeds2.deployment.server import serve
from perfeds2.errors import InputError
from perfeds2.runs.folder import LINK, Folder, alone, chain


class Killed(BaseException):
    """The end of a server process, here an exception that nothing may catch."""


def run(out, dies_at=None):
    """Serve a run; ``dies_at`` is a round whose line is not written any more."""

    def log(self, event, **facts):
        if event.startswith(f"round {dies_at} closed"):
            raise Killed
        return wrote(self, event, **facts)

    wrote = Folder.log
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Folder, "log", log)
        try:
            serve(SETUP, InProcess(made_up, lambda job: 1.0 + job.ue, 4), out)
        except Killed:
            assert dies_at is not None
    SETUP.write(out)
    return out


def test_a_round_that_could_not_be_saved_is_not_logged(tmp_path):
    def save(self, federation, started_unix):
        if federation.round == 4:
            raise Killed
        return saved(self, federation, started_unix)

    saved = Checkpoints.save
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoints, "save", save)
        with pytest.raises(Killed):
            serve(SETUP, InProcess(made_up, lambda job: 1.0 + job.ue, 4), tmp_path / "run")
    assert round_lines(tmp_path / "run") == [0, 1, 2]


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A federation that was killed between a save and its line, and finished."""
    out = run(tmp_path_factory.mktemp("done") / "run", dies_at=3)
    assert "6 rounds" not in verify_log(out)
    return run(out)


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    return run(tmp_path_factory.mktemp("killed") / "run", dies_at=4)


@pytest.fixture
def copied(tmp_path):
    def copy(out):
        return shutil.copytree(out, tmp_path / "run")

    return copy


def lines_of(out):
    return (out / "events.log").read_text().splitlines()


def rewrite(out, lines):
    (out / "events.log").write_text("".join(f"{line}\n" for line in lines))


def round_lines(out):
    return [int(number) for number in re.findall(r"round (\d+) closed at", (out / "events.log").read_text())]


def test_after_a_kill_between_save_and_log_every_round_is_logged_once(done, killed):
    assert round_lines(done) == list(range(6))
    assert "6 rounds, each merged once" in verify_log(done)
    assert round_lines(killed) == list(range(4))
    assert "4 rounds" in verify_log(killed)  # the fifth is saved; its line is written by the next server


@pytest.mark.parametrize("which", ["done", "killed"])
def test_a_changed_removed_inserted_or_cut_line_is_found(which, copied, request):
    out = copied(request.getfixturevalue(which))
    good = lines_of(out)
    for place in range(len(good)):
        text = good[place][: -LINK - 1]
        changed = f"{text[:-1]}{'8' if text[-1] != '8' else '9'} {good[place][-LINK:]}"
        for lines in ([*good[:place], changed, *good[place + 1 :]], [*good[:place], good[0], *good[place:]]):
            if lines != good and place:
                rewrite(out, lines)
                with pytest.raises(LogError, match=f"line {place + 1} "):
                    verify_log(out)
        if place + 1 < len(good):
            rewrite(out, [*good[:place], *good[place + 1 :]])
            with pytest.raises(LogError, match=f"line {place + 1} "):
                verify_log(out)
    for kept in range(len(good)):
        rewrite(out, good[:kept])
        if which == "done" or not re.search(r" round 3 ", "".join(good[:kept])):
            with pytest.raises(LogError, match=f"line {kept + 1} is missing"):
                verify_log(out)
    rewrite(out, good)
    verify_log(out)


def forged(out, change):
    """Change the lines and compute every hash again, as one would who knows how."""
    lines, head = [], ""
    for text in change([line[: -LINK - 1] for line in lines_of(out)]):
        head = chain(head, text)
        lines.append(f"{text} {head}")
    rewrite(out, lines)


@pytest.mark.parametrize("which", ["done", "killed"])
@pytest.mark.parametrize(
    "change",
    [
        lambda lines: [line.replace("UE 1 (", "UE 3 (") for line in lines],
        lambda lines: [line for line in lines if "round 2 closed" not in line],
        lambda lines: [line for line in lines for _ in range(1 + ("round 2 closed" in line))],
        lambda lines: lines[:-3],
    ],
    ids=["changed", "removed", "doubled", "cut"],
)
def test_hashes_that_were_computed_again_do_not_help(which, change, copied, request):
    out = copied(request.getfixturevalue(which))
    forged(out, change)
    with pytest.raises(LogError):
        verify_log(out)


def test_a_ticket_is_merged_once():
    lines = [
        f"now round {k} closed at 1 s: merged UE 0 (version {k}, ticket {ticket})" for k, ticket in ((0, 7), (1, 8))
    ]
    assert rounds_in(lines) == [[(0, 0)], [(0, 1)]]
    with pytest.raises(LogError, match="line 2 merges a ticket that was merged before"):
        rounds_in([lines[0], lines[1].replace("ticket 8", "ticket 7")])


def test_the_last_round_of_a_finished_log_may_not_be_missing(done, copied):
    """Not even if every hash was computed again, also that in summary.json."""
    out = copied(done)
    forged(out, lambda lines: [line for line in lines if "round 5 closed" not in line])
    finished = next(number for number, line in enumerate(lines_of(out)) if " finished " in line)
    facts = json.loads((out / "summary.json").read_text())
    (out / "summary.json").write_text(json.dumps(facts | {HEAD: lines_of(out)[finished - 1][-LINK:]}))
    digest = hashlib.sha256((out / "summary.json").read_bytes()).hexdigest()
    forged(out, lambda lines: [re.sub("summary.json [0-9a-f]{64}", f"summary.json {digest}", line) for line in lines])
    with pytest.raises(LogError, match="6 rounds closed, the log has 5"):
        verify_log(out)


@pytest.mark.parametrize("name", ["model.safetensors", "metrics.csv", "ue_metrics.csv", "laps.csv"])
def test_a_changed_or_missing_result_is_found(name, done, copied):
    out = copied(done)
    data = (out / name).read_bytes()
    (out / name).write_bytes(data[:-2] + bytes([data[-2] ^ 1]) + data[-1:])
    with pytest.raises(LogError, match=f"{name} is not what the federation wrote"):
        verify_log(out)
    (out / name).unlink()
    with pytest.raises(LogError, match=f"{name} is not what the federation wrote"):
        verify_log(out)


def test_a_changed_summary_is_found(done, copied):
    out = copied(done)
    facts = json.loads((out / "summary.json").read_text())
    facts["algorithms"][0]["rounds"] = 5
    (out / "summary.json").write_text(json.dumps(facts))
    with pytest.raises(LogError, match=r"summary\.json is not what the federation wrote"):
        verify_log(out)


def test_what_follows_the_last_line_is_found(done, copied):
    out = copied(done)
    with (out / "events.log").open("a") as log:
        log.write("2026-01-01T00:00:00+0000 half a line")
    with pytest.raises(LogError, match="was added: the run has finished"):
        verify_log(out)


def test_a_server_killed_before_it_logged_its_results_does_so_when_it_is_back(done, copied):
    out = copied(done)
    rewrite(out, [line for line in lines_of(out) if " results: " not in line])
    with pytest.raises(LogError, match="does not name the results"):
        verify_log(out)
    run(out)
    verify_log(out)


def test_rounds_of_a_lost_checkpoint_are_run_again_and_the_log_says_so(killed, copied):
    out = copied(killed)
    parts = out / "parts"
    sorted(parts.glob("*.safetensors"))[-1].unlink()
    sorted(parts.glob("*.safetensors"))[-1].write_bytes(b"cut")
    run(out)
    assert round_lines(out) == [0, 1, 2, 3, 3, 4, 5]
    assert "warning: 1 of 3 checkpoints are intact" in (out / "events.log").read_text()
    assert "resumed: rounds 0 to 2 are in the checkpoint" in (out / "events.log").read_text()
    assert "6 rounds" in verify_log(out)


def test_a_run_whose_checkpoints_are_all_lost_is_refused_and_not_started_again(killed, copied):
    out = copied(killed)
    before = lines_of(out)
    shutil.rmtree(out / "parts")
    with pytest.raises(InputError, match=r"no intact checkpoint, but .* has started\. Restore that folder"):
        run(out)
    assert lines_of(out)[: len(before)] == before
    assert round_lines(out) == round_lines(killed)
    with pytest.raises(InputError, match="has no checkpoint"):
        verify_log(out)


def test_an_unfinished_line_is_dropped_before_the_next(tmp_path):
    folder = Folder(tmp_path, chained=True)
    folder.log("one")
    whole = (tmp_path / "events.log").read_bytes()
    for torn in (b"2026-01-01T00:00:00+0000 tw", b"x" * 5000):
        (tmp_path / "events.log").write_bytes(whole + torn)
        folder.log("three")
        assert (tmp_path / "events.log").read_bytes().startswith(whole)
        assert [line[: -LINK - 1].split(" ")[1] for line in lines_of(tmp_path)] == ["one", "three"]
    assert Checkpoints(folder).intact() == []


def test_a_stopped_servers_lock_does_not_stop_the_next_server_and_what_it_writes_later_is_not_in_the_log(tmp_path):
    folder = Folder(tmp_path, chained=True)
    folder.log("one")
    with alone(tmp_path / "events.log"), (tmp_path / "events.log").open("ab") as stopped:
        folder.free_logs()
        folder.log("two")
        stopped.write(b"late\n")
    first, second = lines_of(tmp_path)
    assert [line.split(" ")[1] for line in (first, second)] == ["one", "two"]
    assert second.endswith(chain(first[-LINK:], second[: -LINK - 1]))


def test_the_command_says_what_it_found_by_its_exit_status(done, copied):
    out = copied(done)
    assert perfeds2("federate", "verify", str(out)) == (0, "")
    rewrite(out, [*lines_of(out)[:4], *lines_of(out)[5:]])
    status, said = perfeds2("federate", "verify", str(out))
    assert status == 1
    assert "line 5 was changed or added, or lines before it were removed" in said
    (out / "summary.json").write_text("{}")
    status, said = perfeds2("federate", "verify", str(out))
    assert status == 1
    assert "does not name the end of the log" in said
    assert perfeds2("federate", "verify", str(out / "nothing"))[0] == 2
