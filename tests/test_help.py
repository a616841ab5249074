"""Does the help fit on a screen, and does it name everything?"""

import re
import shlex
from typing import Any

import pytest
from command_line import commands, told

from perfeds2.commands.common import BASIC, nested_values
from perfeds2.spec.fields import settings
from perfeds2.spec.resolve import resolve

WITH_SETTINGS = ("compare", "run", "simulate", "sweep", "arena", "plan", "tune", "play", "federate local")


def every(words: tuple[str, ...] = (), group: Any = None):
    """Yield each command with the words that call it."""
    command = group or commands()
    yield words, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from every((*words, name), inner)


COMMANDS = dict(every())


def shown(*words: str, columns: int = 100) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("typer.rich_utils.MAX_WIDTH", columns)
        status, out, _ = told(*words)
    assert status == 0
    return out


def words_of(text: str) -> int:
    """Count the words of a help text, without the default behind it."""
    return len(re.sub(r" \(default: .*\)$", "", text).split())


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_no_help_text_is_longer_than_12_words(words):
    command = COMMANDS[words]
    assert words_of((command.help or "").split("\n\n")[0]) <= 12
    own = {each.name: getattr(each, "help", None) or "" for each in command.params}
    assert {name: text for name, text in own.items() if words_of(text) > 12 and name != "show_completion"} == {}


def test_every_command_is_in_a_group():
    text = shown("--help")
    found = [text.find(f"─ {group} ─") for group in ("Experiment", "Plan", "Look", "Deploy", "Data")]
    assert -1 not in found
    assert found == sorted(found)
    assert "─ Commands ─" not in text


@pytest.mark.parametrize("columns", [80, 100])
def test_the_help_of_compare_fits(columns):
    text = shown("compare", "--help", columns=columns)
    assert len(text.strip().splitlines()) < 90
    assert 20 <= len(re.findall(r"^│ --", text, re.MULTILINE)) <= 30


@pytest.mark.parametrize("command", WITH_SETTINGS)
def test_help_all_shows_every_flag_and_help_only_the_basic_ones(command):
    words = tuple(command.split())
    flags = {flag for each in COMMANDS[words].params for flag in each.opts if flag.startswith("--")}
    short, full = shown(*words, "--help"), shown(*words, "--help-all")
    assert {flag for flag in flags if not re.search(rf"^│ (\*  )?(--[\w-]+,)?{flag}\b", full, re.MULTILINE)} == set()
    assert "--help-all" in short
    assert len(short.splitlines()) < 0.85 * len(full.splitlines())
    assert "--personal-steps" not in short


def test_a_federations_help_names_its_own_settings():
    text = shown("federate", "local", "--help")
    assert all(flag in text for flag in ("--devices", "--algorithm", "--rounds", "--quorum", "--gather-s"))
    assert "for example --devices 10" in text


def test_help_leaves_the_flags_as_they_are():
    before = [dict(vars(each)) for each in COMMANDS["compare",].params]
    shown("compare", "--help")
    assert [vars(each) for each in COMMANDS["compare",].params] == before


def test_every_example_of_a_group_can_be_typed():
    text = shown("compare", "--help")
    known = {each.flag: each.keyword for each in settings()}
    examples = [shlex.split(line) for line in re.findall(r"for example (.*?) ─", text)]
    assert len(examples) == sum(any(group.values()) for group in BASIC.values()) >= 6
    for words in examples:
        flags = {known[flag]: value for flag, value in zip(words[::2], words[1::2], strict=True)}
        resolve(nested_values(None, flags, (), {}))
