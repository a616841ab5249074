"""Does Tab know what may follow, without waiting for JAX?"""

import os
import shlex
import subprocess
import sys

import pytest
from command_line import told

from perfeds2.commands.completion import names
from perfeds2.learning import datasets
from perfeds2.learning.methods import LISTED
from perfeds2.learning.objectives import OBJECTIVES
from perfeds2.paper.figures import FIGURES
from perfeds2.spec.fields import settings
from perfeds2.spec.values import ALGORITHM, METHOD, OBJECTIVE, RADIO

KINDS = [each.kind for each in settings() if each.kind is not None]


def offered(*words):
    """What is offered for the last of these words, asked as bash asks."""
    asked = {"_PERFEDS2_COMPLETE": "complete_bash", "COMP_WORDS": shlex.join(["perfeds2", *words])}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (asked | {"COMP_CWORD": str(len(words))}).items():
            patch.setenv(name, value)
        status, out, err = told()
    assert (status, err) == (0, "")
    return out.split()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.what)
def test_names_read_from_the_source_are_those_of_the_table(kind):
    assert names(kind) == list(kind.table())


def test_algorithms_are_made_of_two_tables():
    assert names(OBJECTIVE) == list(OBJECTIVES)
    assert names(METHOD) == list(LISTED)


def test_only_data_sets_that_can_be_downloaded_are_offered_to_fetch():
    assert offered("data", "fetch", "") == list(datasets.sources())


def test_a_table_that_cannot_be_read_offers_nothing(monkeypatch):
    monkeypatch.setattr("pathlib.Path.read_bytes", lambda _: b"(")
    assert names(RADIO) == names(ALGORITHM) == []


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["compa"], ["compare"]),
        (["compare", "--labels"], ["--labels-per-ue"]),
        (["compare", "--stale", ""], ["restart", "wait", "ignore"]),
        (["run", "--radio", "u"], ["umi", "uma"]),
        (["compare", "--algorithms", "PerFedS2,PerFed"], ["PerFedS2,PerFed-SYN", "PerFedS2,PerFed-ASY"]),
        (["arena", "--methods", "FedA"], [name for name in names(ALGORITHM) if name.startswith("FedA")]),
        (["simulate", "--bandwidth", "be"], ["between:"]),  # and then a number
        (["compare", "--merge", "FedB"], ["FedBuff"]),
        (["compare", "--set", "protocol.q"], ["protocol.quorum="]),
        (["data", "fetch", "mnist", "c"], ["cifar10", "cifar100"]),
        (["reproduce", "exp"], list(FIGURES)),
        (["compare", "--spec", "py"], []),  # files are the shell's
        (["compare", "--beta", ""], []),  # a number
        (["compare", "--nonsense", ""], []),
    ],
    ids=lambda value: " ".join(value),
)
def test_tab_offers(words, expected):
    assert offered(*words) == expected


@pytest.mark.slow
def test_bash_completes_with_what_was_installed_and_loads_nothing_heavy(tmp_path):
    """The script that is installed is sourced by a real bash and asked as it would be."""
    command = tmp_path / "bin" / "perfeds2"
    command.parent.mkdir()
    command.write_text(
        f"#!{sys.executable}\nimport sys\nfrom perfeds2.cli import main\n"
        "try:\n    main()\nfinally:\n"
        "    heavy = {'jax', 'numpy', 'pandas', 'scipy'} & set(sys.modules)\n"
        "    assert not heavy, heavy\n"
    )
    command.chmod(0o755)
    environment = os.environ | {"HOME": str(tmp_path), "PATH": f"{command.parent}:{os.environ['PATH']}"}

    def bash(script):
        done = subprocess.run(["bash", "-c", f"{script}; exit"], capture_output=True, text=True, env=environment)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    assert "bash completion installed" in bash("perfeds2 --install-completion")
    assert ".bash_completions/perfeds2.sh" in (tmp_path / ".bashrc").read_text()
    assert bash("perfeds2 --show-completion").strip() == (tmp_path / ".bash_completions/perfeds2.sh").read_text()
    ask = ". ~/.bashrc; COMP_WORDS=(perfeds2 compare --stale w); COMP_CWORD=3; _perfeds2_completion perfeds2"
    assert bash(f'{ask}; echo "${{COMPREPLY[@]}}"').strip() == "wait"


@pytest.mark.parametrize(("shell", "word"), [("zsh", "compdef"), ("fish", "--command perfeds2")])
def test_other_shells_get_a_script_too(monkeypatch, shell, word):
    monkeypatch.setenv("_PERFEDS2_COMPLETE", f"source_{shell}")
    assert word in told()[1]
