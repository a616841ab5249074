"""Does a person who types only what docs/tutorial says, from an empty folder, get what its pages show? And who runs a notebook?

In a page's order, a block that begins with ``# NAME.py`` is saved, a block of ``sh`` is typed, and a block of ``text`` is what came: every
line of it must be a line of the last output, in that order, up to ``…``. Numbers must be the same. Where ``<!-- numbers: about -->`` stands
before it they may differ a little (what is learned differs between processors), after ``any`` at will (what real time decides).

The notebooks of examples/notebooks run here too, because they train the same ten UEs with the same compiled programs.
"""

import ast
import contextlib
import io
import json
import re
import runpy
import shlex
import subprocess
import sys
import types
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
from command_line import compiled_as_users_do, told
from matplotlib import pyplot

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs" / "tutorial").glob("[1-9]-*.md"))
INDEX = ROOT / "docs" / "tutorial" / "index.md"
FENCE = re.compile(r"(?:<!-- numbers: (\w+) -->\n)?^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?")
HOW = ("same", "about", "any")
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))
SHOWN = {  # what must be among the lines of each notebook
    "collapse": [r"<Timeline: 10 UEs, 199 rounds of 3", r"before the step: [0-6]?\d%, after it: (9\d|8\d|100)%"],
    "first_hour": [
        r"<Cell: 10 UEs, .* seed 0>",
        r"34 rounds of 10 in 9.863 s",
        r"133 rounds of 3 in 9.986 s",
        r"<Comparison: digits, .* PerFedS2 ends highest",
        r"\{'PerFedS2': .*'Mine'",
    ],
    "own_scheduler": [
        r"^patient +19.1\d+ +0.00\d",
        r"^fair +19.0\d+ +0.07\d",
        r"^round_robin +23\d\.\d+ +1\d\.\d+ +0\.9\d",
        r"^fair +24\d\.\d+ +1\d\.\d+ +0\.9\d",
    ],
    "planning": [
        r"old meter",
        r"<Plan: digits, 10 UEs, 80 % personalised test accuracy after .* on fresh seeds",
        r"<Comparison: .* PerFedS2 ends highest",
    ],
}


@dataclass(frozen=True)
class Quote:
    """What a page shows, and what came."""

    page: str
    how: str
    shown: str
    came: str


@dataclass(frozen=True)
class Hour:
    """The folder after the last page, what was quoted, and what each page's commands printed."""

    folder: Path
    quotes: list[Quote]
    printed: dict[str, str]


def type_pages(pages: list[Path], folder: Path) -> Hour:
    """Save and type everything, in order. Raises where a command fails."""
    quotes: list[Quote] = []
    printed: dict[str, str] = {}
    for page in pages:
        came = ""
        for how, language, text in FENCE.findall(page.read_text(encoding="utf-8")):
            if language == "python":
                (folder / file_of(text)).write_text(text, encoding="utf-8")
            elif language == "sh":
                lines = text.replace("\\\n", " ").splitlines()
                came = "".join(type_line(shlex.split(line)) for line in lines)
                printed[page.name] = printed.get(page.name, "") + came
            elif language == "text":
                quotes.append(Quote(page.name, how or "same", text, came))
    return Hour(folder, quotes, printed)


def type_line(words: list[str]) -> str:
    """What a command prints. Ours and Python's files run in this process: they start at once, and compile once."""
    if words[0] == "perfeds2":
        status, out, err = told(*words[1:])
        assert status == 0, f"{words}: {err}"
        return out
    if words[0] == "python":
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            runpy.run_path(words[1], run_name="__main__")
        return printed.getvalue()
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def file_of(text: str) -> str:
    named = re.match(r"# ([\w]+\.py)\n", text)
    assert named, f"a block of Python that is no file cannot be typed: {text[:60]}"
    return named[1]


def missing(shown: str, came: str, how: str) -> str | None:
    """The first line of what is shown that did not come; None if all did."""
    lines = iter(came.splitlines())
    for line in filter(str.strip, shown.splitlines()):
        if line.strip() != "…" and not any(agree(line, other, how) for other in lines):
            return line
    return None


def agree(shown: str, came: str, how: str) -> bool:
    """Whether two lines have the same words, and numbers as near as they must be. An ``…`` at the end stands for the rest."""
    if shown.rstrip().endswith("…"):
        shown = shown.rstrip().removesuffix("…").rstrip()
        words = len(shown.split())
        came = " ".join(came.split()[:words])
    if NUMBER.sub("#", " ".join(shown.split())) != NUMBER.sub("#", " ".join(came.split())):
        return False
    pairs = zip(NUMBER.findall(shown), NUMBER.findall(came), strict=True)
    return all(near(mine, theirs, how) for mine, theirs in pairs)


def near(mine: str, theirs: str, how: str) -> bool:
    if how == "any" or mine == theirs:
        return True
    first, second = (float(text.replace(",", "")) for text in (mine, theirs))
    return how == "about" and abs(first - second) <= max(0.3 * max(first, second), 8 if first > 8 else 1)


# ---- what a page shows, by hand


@pytest.mark.parametrize(
    ("shown", "came", "how", "what"),
    [
        ("A = 3: 133 rounds", "A =  3: 133 rounds", "same", None),
        ("133 rounds", "134 rounds", "same", "133 rounds"),
        ("133 rounds", "134 rounds", "about", None),
        ("differ by 2e-07, relative 3", "differ by 0, relative 0", "any", None),
        ("133 rounds", "434 rounds", "about", "133 rounds"),
        ("133 rounds", "9 rounds", "any", None),
        ("133 rounds", "133 merges", "any", "133 rounds"),
        ("a\n…\nc", "a\nb\nc", "same", None),
        ("c\na", "a\nb\nc", "same", "a"),
        ("Take A = …", "Take A = 4, S = 10", "same", None),
        ("Take S = …", "Take A = 4, S = 10", "same", "Take S = …"),
        ("x\nx", "x\ny", "same", "x"),
    ],
)
def test_a_line_that_did_not_come_is_noticed(shown, came, how, what):
    assert missing(shown, came, how) == what


def test_the_pages_have_one_order_and_lead_on():
    assert [page.name[0] for page in PAGES] == [*"12345678"]
    index = INDEX.read_text(encoding="utf-8")
    listed = re.findall(r"^\| (\d) \| \[[\w ]+\]\((\S+)\)", index, re.MULTILINE)
    assert [name for _, name in listed] == [page.name for page in PAGES]
    for page, following in pairwise(PAGES):
        assert f"({following.name})" in page.read_text(encoding="utf-8")
    assert f"({PAGES[0].name})" in index.splitlines()[-1]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_page_has_the_same_parts_and_is_short(page):
    text = page.read_text(encoding="utf-8")
    parts = ["**What you will see:**", "## Type this", "## The output", "## What it means", "## One thing to try"]
    places = [text.index(part) for part in parts]
    assert places == sorted(places)
    assert len(text.split()) < 900
    for how, language, block in FENCE.findall(text):
        assert how in ("", *HOW)
        assert language in ("python", "sh", "text")
        assert language != "text" or block.strip()


def test_what_is_installed_is_there():
    text = INDEX.read_text(encoding="utf-8")
    assert "-c constraints.txt -e '.[mqtt]'" in text
    assert (ROOT / "constraints.txt").exists()
    assert "\nmqtt = [" in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


# ---- what comes


@pytest.fixture(scope="module")
def hour(tmp_path_factory: pytest.TempPathFactory) -> Hour:
    folder = tmp_path_factory.mktemp("hour")
    with contextlib.chdir(folder), compiled_as_users_do():
        return type_pages(PAGES, folder)


@pytest.mark.slow
class TestTyped:
    """All of it typed, once."""

    def test_what_the_pages_show_is_what_came(self, hour: Hour):
        assert {quote.page for quote in hour.quotes} == {page.name for page in PAGES}
        wrong = {quote.page: line for quote in hour.quotes if (line := missing(quote.shown, quote.came, quote.how))}
        assert wrong == {}

    def test_pictures_are_made(self, hour: Hour):
        for name in ("cell.png", "rounds.png", "personal/figures/test-accuracy-personal.png"):
            assert (hour.folder / name).read_bytes()[:4] == b"\x89PNG", name

    def test_the_personal_step_is_what_perfed_is_for_and_its_global_model_falls(self, hour: Hour):
        ends = rows(hour, "personal")
        assert personal(ends["PerFedS2"]) > personal(ends["FedAvgS2"]) + 0.02
        assert ends["PerFedS2"]["test_accuracy"]["mean"] < 0.5 < ends["FedAvgS2"]["test_accuracy"]["mean"]

    def test_the_readers_policy_stands_beside_perfeds2_and_closes_more_rounds(self, hour: Hour):
        """The comparison that the hour is for."""
        ends = rows(hour, "own")
        assert list(ends) == ["PerFedS2", "Mine"]
        assert ends["Mine"]["rounds"]["mean"] > 1.3 * ends["PerFedS2"]["rounds"]["mean"]
        assert ends["Mine"]["train_loss_personal"]["mean"] < ends["PerFedS2"]["train_loss_personal"]["mean"]
        assert all(3 < row["time_to_target_s"]["median"] < 15 for row in ends.values())
        assert (hour.folder / "own" / "report.html").stat().st_size > 10_000
        spec = (hour.folder / "own" / "spec.toml").read_text(encoding="utf-8")
        assert "mine.py:mine" in spec

    def test_the_readers_table_needs_a_personal_step_that_perfed_prepares(self, hour: Hour):
        ends = rows(hour, "arms")
        assert all(0.5 < row["test_accuracy"]["mean"] < 0.7 for row in ends.values())
        assert personal(ends["PerFedS2"]) > personal(ends["FedAvgS2"]) + 0.1
        assert personal(ends["PerFedS2"]) > 0.8

    def test_the_plan_recommends_something_and_it_runs(self, hour: Hour):
        plan = json.loads((hour.folder / "planned" / "plan.json").read_text(encoding="utf-8"))
        assert plan["sentence"].startswith("Take A = ")
        assert personal(rows(hour, "adopted")["PerFedS2"]) > 0.9

    def test_the_federation_learns_and_replays_to_the_same_weights(self, hour: Hour):
        assert personal(rows(hour, "federation")["PerFedS2"]) >= 0.8
        assert rows(hour, "federation")["PerFedS2"]["rounds"]["mean"] == 150
        (difference,) = re.findall(r"largest weight difference (\S+),", hour.printed["8-federation.md"])
        assert float(difference) < 1e-6


def rows(hour: Hour, run: str) -> dict[str, dict]:
    """A run's summary, by algorithm."""
    summary = json.loads((hour.folder / run / "summary.json").read_text(encoding="utf-8"))
    return {row["algorithm"]: row for row in summary["algorithms"]}


def personal(row: dict) -> float:
    return row["test_accuracy_personal"]["mean"]


# ---- notebooks


def test_every_notebook_has_lines_to_show():
    assert {path.stem for path in NOTEBOOKS} == SHOWN.keys()


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_what_it_says(path, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "__main__", types.ModuleType("__main__"))  # a kernel's has no file
    with compiled_as_users_do(), pyplot.rc_context({"backend": "agg"}):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            if cell["cell_type"] == "code":
                run_cell("".join(cell["source"]), cell["id"])
    pyplot.close("all")
    out = capsys.readouterr().out
    for shown in SHOWN[path.stem]:
        assert re.search(shown, out, re.MULTILINE), f"{shown} is not in\n{out}"
    assert list(tmp_path.iterdir()) == []  # nothing is left lying about


def run_cell(source: str, name: str) -> None:
    """As a kernel does: what the last line names is shown."""
    names = vars(sys.modules["__main__"])
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec"), names)
    if isinstance(last, ast.Expr):
        show(eval(compile(ast.Expression(last.value), name, "eval"), names))


def show(value: object) -> None:
    """As a notebook: by its own HTML, if it has any, and here in a line too."""
    if value is not None:
        page = getattr(value, "_repr_html_", lambda: "plain")()
        assert page is None or page  # None: by something else, such as a table of pandas that is told to
        print(repr(value))
