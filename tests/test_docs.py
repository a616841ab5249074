"""Do the documents' examples and commands run, and do their links lead somewhere?"""

import re
import runpy
import shlex
from pathlib import Path

import numpy as np
import pytest
import typer
from command_line import commands as commands_of_ours
from command_line import perfeds2, train_here
from in_numpy import train_in_numpy
from needs import needs
from safetensors.numpy import save_file
from typer.core import TyperGroup

from examples import import_links
from perfeds2 import Objective
from perfeds2.api import compare
from perfeds2.commands.common import SettingsCommand, nested_values, take_settings
from perfeds2.learning.datasets import digits
from perfeds2.learning.task import weight_shapes
from perfeds2.spec.build import check
from perfeds2.spec.methods import listed_methods
from perfeds2.spec.resolve import resolve

ROOT = Path(__file__).parent.parent
DOCS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
HOUR = sorted(
    (ROOT / "docs" / "tutorial").glob("*.md")
)  # each begins where the one before ended; tests/test_first_hour.py types them
TARGETS = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
WHOLE = {  # what is cheap, and with what
    "perfeds2 --help": [],
    "perfeds2 errata": [],
    "perfeds2 simulate": ["--algorithms", "PerFedS2"],
}


def blocks(path, languages):
    return re.findall(rf"^```(?:{languages})\n(.*?)^```", path.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def python_blocks(path):
    return [block for block in blocks(path, "python") if not file_of(block)]


def file_of(block):
    """A block that begins with ``# NAME.py`` is that file."""
    named = re.match(r"# ([\w/]+\.py)\n", block)
    return named and named[1]


UsageError = typer.BadParameter.__mro__[1]  # click's, or the one of a typer that brings its own click
STUDY = ROOT / "docs/how-to/study.md"  # tests/test_study.py runs it
TORCH = ROOT / "docs/how-to/torch.md"


@pytest.mark.slow
@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.name, marks=[needs("torch")] * (path == TORCH))
        for path in DOCS
        if python_blocks(path) and path != STUDY
    ],
)
def test_the_examples_of_a_document_run(path, capsys, tmp_path, monkeypatch):
    """One after the other, in one namespace, as a reader would. What they train is traced, not compiled."""
    monkeypatch.chdir(tmp_path)
    train_here(monkeypatch)
    train_in_numpy(monkeypatch.setattr, traced=True)
    write_files(path, tmp_path)
    namespace = {}
    for block in python_blocks(path):
        exec(compile(block, path.name, "exec"), namespace)
    assert capsys.readouterr().out


@pytest.mark.slow
def test_a_mistake_in_what_an_example_trains_is_noticed(monkeypatch):
    class Mistaken(Objective):
        def gradient(self, *_):
            raise ValueError("a mistake in an objective")

    train_here(monkeypatch)
    train_in_numpy(monkeypatch.setattr, traced=True)
    with pytest.raises(Exception, match="a mistake in an objective"):
        compare(task="synthetic", ues=4, algorithms=[Mistaken], seeds=[0], rounds=2)


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)
def test_links_between_documents_lead_somewhere(path):
    for target in re.findall(r"\]\(([\w./-]+\.\w+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
        if not target.removeprefix("../").startswith(
            "reference/"
        ):  # made with the site, which tests/test_site.py builds
            assert (path.parent / target).exists(), target


# ---- what a reader meets first


def test_the_readme_is_a_front_door_and_no_catalogue():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert text.count("\n") < 130
    assert len(python_blocks(ROOT / "README.md")) == 1


@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "reports").glob("*.md")), ids=lambda path: path.name)
def test_a_report_opens_with_its_answer_and_a_figure(path):
    opening = path.read_text(encoding="utf-8").partition("\n## ")[0]
    assert opening.split("\n\n")[1].startswith("**In short.**")
    assert "![" in opening


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)
def test_a_long_page_opens_with_a_summary(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.split()) < 2500 or "In short" in text.partition("\n## ")[0]


MOST_WORDS = 2_000  # on a page
MOST_WORDS_IN_ALL = 65_000
LONGER = {"ledger.md": 4_000}  # the ledger has a table of 44 claims


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_a_page_can_be_read_in_ten_minutes(path):
    assert len(path.read_text(encoding="utf-8").split()) < LONGER.get(path.name, MOST_WORDS)


def test_the_documents_are_short():
    assert sum(len(path.read_text(encoding="utf-8").split()) for path in PAGES) < MOST_WORDS_IN_ALL


TWICE = {  # what several pages state, each in its words: the numbers in brackets are the same, up to rounding
    "PerFedS2 by default": {
        "README.md": r"PerFedS2 \|.*\*\*([\d.]+) ± ([\d.]+)\*\*.*\n(?:.*\n)+?.*useless on this task\]\S+ \((\d+) %\)",
        "docs/explanation/personalisation.md": r"\| PerFedS2 \|.*\| (?=[\d.]+ ±.*\| ([\d.]+) ± ([\d.]+) \|)([\d.]+) ±",
    },
    "FedAvgS2 by default": {
        "README.md": r"\| FedAvgS2 \|.*\| ([\d.]+) ± ([\d.]+) \|",
        "docs/explanation/personalisation.md": r"\| FedAvgS2 \| 0.*\| ([\d.]+) ± ([\d.]+) \|\n",
    },
    "tuned on CIFAR-100": {
        "docs/reports/ledger.md": r"\| 15 \|.*undecided \| (\+[\d.]+) ± ([\d.]+)",
        "docs/reports/reproduction.md": r"(\+0\.25) ± ([\d.]+) on CIFAR-100",
        "docs/reports/arena.md": r"over the horizon, (\+[\d.]+) ± ([\d.]+) points",
    },
    "tuned on MNIST": {
        "docs/reports/ledger.md": r"\| 13 \|.*\*\*holds\*\* \| (\+[\d.]+) ± ([\d.]+)",
        "docs/reports/reproduction.md": r"(\+[\d.]+) ± ([\d.]+) points on MNIST",
    },
    "against synchronous training": {
        "docs/reports/ledger.md": r"\| 1 \| PerFedS2 saves.*? \| \+([\d.]+)",
        "docs/reports/reproduction.md": r"over the horizon is ([\d.]+) points above",
    },
    "tuned on Shakespeare": {
        "docs/reports/reproduction.md": r"(−2\.\d+) ± (\d+\.\d+) on Shakespeare",
        "docs/reports/arena.md": r"on Shakespeare PerFedS2 is behind, (−[\d.]+) ± (\d+\.\d+)",
    },
    "verdicts on MNIST": {
        "docs/reports/ledger.md": r"\| Table I's step sizes \| (\d+) / (\d+) / (\d+) \|(?:.*\n)+?\| each algorithm tuned \| (\d+) / (\d+) / (\d+)",
        "docs/reports/reproduction.md": r"\| MNIST \| 19 \| (\d+) / (\d+) / (\d+) \| (\d+) / (\d+) / (\d+)",
    },
    "verdicts on CIFAR-100": {
        "docs/reports/ledger.md": r"\| Table I's step sizes \|[^|]*\| (\d+) / (\d+) / (\d+) \|(?:.*\n)+?\| each algorithm tuned \|[^|]*\| (\d+) / (\d+) / (\d+)",
        "docs/reports/reproduction.md": r"\| CIFAR-100 \| 15 \| (\d+) / (\d+) / (\d+) \| (\d+) / (\d+) / (\d+)",
    },
    "the SNR of the radios": {
        "docs/explanation/radio.md": r"SNR [\d.]+ \(([\d.]+) to ([\d.]+)\) dB(?:.*\n)+?.*SNR of [\d.]+ dB \(([\d.]+) to ([\d.]+)\)",
        "docs/reports/ledger.md": r"\[(\d+) to (\d+) dB of SNR, where links of `umi` have (\d+) to (\d+)\]",
    },
    "cycles of a multiply-add": {
        "docs/reports/computing.md": r"charges about (\d+) cycles per multiply-add",
        "docs/explanation/design.md": r"about (\d+) per multiply-add",
    },
    "a federation on one machine": {
        "docs/reports/federation.md": r"it takes (\d+) to (\d+) s, and",
        "docs/how-to/deploy.md": r"the run takes \[(\d+) to (\d+) s\]",
    },
    "messages of a device": {
        "docs/explanation/wire.md": r"A device may send (\S+) messages and (\d+) GiB per minute",
        "docs/explanation/federation.md": r"(\S+) messages and (\d+) GiB per minute",
    },
    "UEs that are evaluated": {
        "docs/how-to/results.md": r"a sample of (\S+) is evaluated",
        "docs/reports/scale.md": r"a sample of (\S+) UEs",
    },
    "good plans": {
        "docs/how-to/planning.md": r"within (\d+) % of the best recommendable choice in (\d) of 10 cells",
        "docs/reports/plans.md": r"within (\d+) % of the best choice that may be recommended in (\d) of 10 cells",
    },
}


@pytest.mark.parametrize("what", TWICE)
def test_a_number_that_stands_twice_is_the_same(what):
    stated = {}
    for page, pattern in TWICE[what].items():
        found = re.search(pattern, (ROOT / page).read_text(encoding="utf-8"))
        assert found, f"{page} no longer states {what} as {pattern}"
        stated[page] = found.groups()
    for one, *others in zip(*stated.values(), strict=True):
        assert all(agree(one, other) for other in others), stated


def agree(one, other):
    """Whether two numbers are equal when written with the digits of the shorter."""
    first, second = (text.strip(",").replace(",", "").replace("−", "-") for text in (one, other))
    digits = min(len(text.partition(".")[2]) for text in (first, second))
    return abs(float(first) - float(second)) <= 0.5 * 10**-digits + 1e-9


@pytest.mark.parametrize(
    ("one", "other", "same"), [("7.68", "7.7", True), ("7.68", "7.6", False), ("1,024", "1024", True)]
)
def test_numbers_agree_up_to_rounding(one, other, same):
    assert agree(one, other) is same


@pytest.mark.parametrize("page", ["README.md", "CHANGELOG.md"])
def test_the_number_of_methods_is_that_of_the_list(page):
    (number,) = re.findall(r"(\d+) other methods", (ROOT / page).read_text(encoding="utf-8"))
    assert int(number) == len(listed_methods()) - 1


OLD_PHRASES = re.compile(
    r"\b(so many|nobody|somebody|whoever|no number any more|is said to|what it is of|written down nowhere|unless told"
    r"|stands? for all|goes? over it|who is heard|never heard)\b",
    re.IGNORECASE,
)


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["perfeds2", "docs", "tests", "benchmarks", "examples", "deploy", ".ci", ".github"])
def test_the_text_of_a_folder_is_plain_english(folder):
    """None of a few phrases that this project once used, in code, help, errors or documents."""
    texts = {
        path for path in (ROOT / folder).rglob("*") if path.suffix in {".py", ".md", ".js", ".toml", ".yml", ".ipynb"}
    }
    texts -= {Path(__file__)}
    found = {path.name: OLD_PHRASES.findall(path.read_text(encoding="utf-8")) for path in sorted(texts)}
    assert {name: phrases for name, phrases in found.items() if phrases} == {}


def commands(path, *, in_a_line):
    """What a document says to type: in blocks, or in the middle of a line."""
    if in_a_line:
        return re.findall(r"`((?:perfeds2|make) [^`]+)`", path.read_text(encoding="utf-8"))
    lines = "".join(blocks(path, "sh|console|")).replace("\\\n", " ").splitlines()
    begin = r"(?:\$ |sudo |ExecStart=/\S*/)?((?:perfeds2|make) .+)"
    return [found[1] for line in lines if (found := re.fullmatch(begin, line))]


SAID = [
    pytest.param(
        path,
        command,
        id=f"{path.name}: {command}",
        marks=[pytest.mark.slow] * ("simulate" in command) + [needs("torch")] * (path == TORCH),
    )
    for path in DOCS
    if path != STUDY
    for in_a_line in (False, True)
    for command in dict.fromkeys(
        shlex.join(shlex.split(line, comments=True)) for line in commands(path, in_a_line=in_a_line)
    )
    if not (in_a_line and command.startswith("perfeds2 errata "))  # one for each erratum
]


def test_there_are_commands_to_try():
    assert len(SAID) > 30


@pytest.mark.parametrize(("path", "command"), SAID)
def test_a_command_of_a_document_is_one(path, command, tmp_path, monkeypatch):
    """Cheap ones run. Of the others every flag and argument is parsed, and of their settings a spec is made."""
    monkeypatch.chdir(tmp_path)
    write_files(path, tmp_path)
    program, *words = shlex.split(command)
    if "phones/fleet.csv" in words:  # made by the command before it
        assert perfeds2("fleet", "--devices", "50", "--out", "phones")[0] == 0
    if "satellites/fleet.csv" in words:  # and this, from the table before it
        (tmp_path / "plan.csv").write_text(blocks(path, "csv")[-1])
        import_links.main(["contacts", "plan.csv", "--out", "satellites", "--period-s", "5400"])
    if "body.safetensors" in words:  # so is this
        save_file({name: np.zeros(w.shape) for name, w in weight_shapes(digits.model).items()}, "body.safetensors")
    cheap = next((more for begin, more in WHOLE.items() if command.startswith(begin)), None)
    if program == "make":
        assert set(words) <= TARGETS
    elif cheap is not None:
        shorter = ["--horizon-s", "2"] if words[0] == "simulate" and "--rounds" not in words else []
        if words[0] == "simulate" and "--seed" not in words:
            shorter += ["--seeds", "1"]
        status, said = perfeds2(*words, *cheap, *shorter)
        assert status == 0, said
    else:
        parse(words)


def write_files(path, folder):
    pages = HOUR if path in HOUR else [path]
    for block in (block for page in pages for block in blocks(page, "python|py")):
        if name := file_of(block):
            (folder / name).write_text(block, encoding="utf-8")
            if name.startswith("make_"):  # what a page needs
                runpy.run_path(str(folder / name))


def parse(words):
    """As the command line does, up to where work would begin. Raises what a user would be told."""
    command, context = commands_of_ours(), None
    if words[0] in {flag for parameter in command.params for flag in parameter.opts}:
        return  # of perfeds2 itself: --version, or --install-completion, which must not happen here
    while words and isinstance(command, TyperGroup):
        context = command.make_context("perfeds2", words, parent=context)
        left = [*context._protected_args, *context.args]
        if not left:
            return  # a group that does something without a command: fleet
        _, command, words = command.resolve_command(context, left)
    if command is None or isinstance(command, TyperGroup) or not words:
        return  # by its name only
    given = command.make_context(command.name, words, parent=context).params
    if isinstance(command, SettingsCommand) and "spec" in given:
        if command.name == "arena":
            del given["cells"]  # names several single cells
        file, assignments, flags = take_settings(given)
        check(resolve(nested_values(file, flags, assignments, {})), trains=False)


@pytest.mark.parametrize("words", ["compare --quorun 3", "run --set learning.betta=1", "federate lokal", "errata two"])
def test_a_command_that_is_none_is_noticed(words):
    with pytest.raises((UsageError, ValueError)):
        parse(words.split())
