"""Claims about progress: a bar on a terminal, few lines in a log, nothing where it is quiet."""

import re
from types import SimpleNamespace

import pytest

from perfeds2 import console
from perfeds2.report import terminal


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that a log's pace goes by."""
    now = [0.0]
    monkeypatch.setattr(terminal, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def test_a_piped_command_says_a_line_every_ten_seconds_and_its_end(clock, capsys):
    with terminal.progress_bar(False, "compare") as tell:
        for clock[0] in (0.0, 1.0, 3.0, 5.0, 12.0, 14.0, 24.0, 33.0):
            tell(clock[0] / 40, "[b]Mine[/b] seed 1, simulated 4 s")
        clock[0] = 40.0
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.splitlines() == [
        "compare: 8%, [b]Mine[/b] seed 1, simulated 4 s, 0:00:03 so far, about 0:00:37 left",
        "compare: 35%, [b]Mine[/b] seed 1, simulated 4 s, 0:00:14 so far, about 0:00:26 left",
        "compare: 60%, [b]Mine[/b] seed 1, simulated 4 s, 0:00:24 so far, about 0:00:16 left",
        "compare: done in 0:00:40",
    ]


def test_a_short_command_leaves_no_line_and_a_day_leaves_few(clock, capsys):
    with terminal.progress_bar(False, "short") as tell:
        for clock[0] in (0.0, 1.0, 1.9):
            tell(clock[0] / 1.9, "")
    assert capsys.readouterr().err == ""
    with terminal.progress_bar(False, "long") as tell:
        for minute in range(24 * 60):
            clock[0] = 60.0 * minute
            tell(minute / 24 / 60, "")
    assert 30 < len(capsys.readouterr().err.splitlines()) < 150


def test_the_time_left_of_a_resumed_command_goes_by_what_it_did_itself(clock, capsys):
    with terminal.progress_bar(False, "compare") as tell:
        tell(0.5, "")
        clock[0] = 10.0
        tell(0.6, "")
    assert "about 0:00:40 left" in capsys.readouterr().err


def test_an_interrupted_command_is_not_said_to_be_done(clock, capsys):
    def interrupted() -> None:
        with terminal.progress_bar(False, "compare") as tell:
            clock[0] = 5.0
            tell(0.5, "")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert "done" not in capsys.readouterr().err


@pytest.mark.parametrize("quiet", [False, True])
@pytest.mark.parametrize("news", [(0.5, ""), ("file", 1, 2)])
def test_ctrl_c_is_heeded_at_every_step(quiet: bool, news: tuple):
    shows = terminal.download if isinstance(news[0], str) else terminal.progress_bar
    with shows(quiet, "compare") as tell:
        tell(*news)
        console._interrupted.set()
        try:
            with pytest.raises(KeyboardInterrupt):
                tell(*news)
        finally:
            console._interrupted.clear()


def test_quiet_shows_nothing(clock, capsys, on_a_terminal):
    on_a_terminal()
    with terminal.progress_bar(True, "compare") as tell, terminal.download(True, "mnist") as tell_bytes:
        clock[0] = 60.0
        tell(0.5, "PerFedS2")
        tell_bytes("file", 1, 2)
    with terminal.redrawn(True, lambda _: "picture", lambda _: ["line"]) as told:
        assert told is None
    assert capsys.readouterr() == ("", "")


def test_a_terminal_gets_a_bar_that_goes_and_a_picture_that_stays(capsys, on_a_terminal):
    on_a_terminal()
    with terminal.progress_bar(False, "compare") as tell:
        tell(0.25, "[b]Mine[/b] seed 1, simulated 4 s")
    with terminal.download(False, "mnist") as tell_bytes:
        tell_bytes("images", 5_000_000, 10_000_000)
    with terminal.redrawn(False, lambda told: f"picture of {told}", lambda _: ["line"], stays=True) as told:
        assert told is not None
        told("three")
    shown = capsys.readouterr()
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.err)
    assert shown.out == ""
    assert "compare: 25%, [b]Mine[/b] seed 1, simulated 4 s" in plain
    assert "mnist: 50%, images, 5.0 of 10.0 MB" in plain
    assert plain.rstrip().endswith("picture of three")


def test_a_piped_download_and_a_picture_become_lines(clock, capsys):
    with terminal.download(False, "mnist") as tell:
        clock[0] = 3.0
        tell("images", 5_000_000, 10_000_000)
        clock[0] = 20.0
        tell("labels", 6_000_000, 0)
    with terminal.redrawn(False, lambda _: "picture", lambda told: [f"{told} [b]"]) as told:
        assert told is not None
        told("three")
    assert capsys.readouterr().err.splitlines() == [
        "mnist: 50%, images, 5.0 of 10.0 MB, 0:00:03 so far",
        "mnist: 0%, labels, 6.0 MB, 0:00:20 so far",
        "mnist: done in 0:00:20",
        "three [b]",
    ]
