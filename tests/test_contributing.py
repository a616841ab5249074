"""CONTRIBUTING's table "a new … goes where" is right: in a scratch copy each thing is added there and used by its name.

Files and tables are read from the table itself. All additions are made in one copy and tried in one process.
"""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Addition:
    """The smallest example of one row: its code, its line in the table of names, and what must work then."""

    code: str
    line: str
    check: str
    file: str = ""  # what the new file is called, where the row names a folder
    table: str = ""  # where the row names none
    besides: tuple[str, str] = ("", "")  # a second file, and what is appended to it


ADDITIONS = {
    "setting": Addition(
        "",
        'scratch_hz: Positive = setting("HZ", "A number.", 7.0)',
        """
        from perfeds2.spec.resolve import spec_from
        assert spec_from().protocol.scratch_hz == 7.0
        assert spec_from(scratch_hz="5e3").protocol.scratch_hz == 5000.0
        assert "--scratch-hz" in command_line("compare", "--help-all")
        """,
        table="ProtocolSpec",
    ),
    "bandwidth policy": Addition(
        "import numpy as np\n\n\ndef scratch_policy(uplink):\n    return np.full(uplink.bits.size, uplink.bandwidth_hz / uplink.bits.size)\n",
        '"scratch": scratch_policy,',
        "played(bandwidth='scratch')",
    ),
    "schedule": Addition(
        "def scratch_schedule(cell, quorum):\n    return lambda round_: np.arange(quorum)\n",
        '"scratch": scratch_schedule,',
        "assert set(played(schedule='scratch').ues.ravel().tolist()) == {0, 1}",
    ),
    "rule for shares": Addition(
        "def scratch_shares(cell):\n    return np.linspace(1, 2, cell.ues) / np.linspace(1, 2, cell.ues).sum()\n",
        '"scratch": scratch_shares,',
        "played(schedule='deficit', shares='scratch', max_staleness=9)",
    ),
    "cell": Addition(
        """
        from perfeds2.network.cell import Cell

        def scratch(ues, seed):
            return Cell.draw(ues, seed, layout="equal")
        """,
        '"scratch": scratch,',
        "assert played(cell='scratch').population == 4",
        file="scratch_cell.py",
    ),
    "column of a fleet file": Addition(
        "",
        '"scratch": (0.0, 1.0),',
        """
        from perfeds2.network.fleet_file import read_fleet
        (row,) = read_fleet(b"rate_bps,scratch\\n1e6,0.5\\n")
        assert row.numbers["scratch"] == 0.5
        """,
    ),
    "radio": Addition(
        "def scratch_loss(radio, where):\n    return np.full(where.x_m.size, 100.0)\n",
        '"scratch": Radio("scratch", scratch_loss),',
        "played(radio='scratch')",
    ),
    "objective": Addition(
        """
        @traced
        class Scratch(Objective):
            def gradient(self, params, start, batches, context):
                return context.loss.gradient(params, pick(batches, 0))
        """,
        '"Scratch": Scratch,',
        "assert algorithm(algorithms=['Scratch-ASY']).name == 'Scratch-ASY'",
    ),
    "method": Addition(
        """
        import jax
        from perfeds2.learning.merges import Merge
        from perfeds2.learning.settings import StepSize, setting, traced

        @traced
        class scratch(Merge):
            '''Do nothing.'''

            paper = "none"
            pull: StepSize = setting("A number.", default=1.0)

            def step(self, params, arrived, state):
                return params, state
        """,
        '"Scratch-M": scratch,',
        """
        assert algorithm(algorithms=["Scratch-M"]).name == "Scratch-M"
        assert "pull" in command_line("methods", "Scratch-M")
        """,
        file="scratch.py",
    ),
    "setting of a method": Addition(
        "",
        'scratch_pull: StepSize = setting("A number.", default=0.5)',
        "assert 'scratch_pull' in command_line('methods', 'Ditto')",
        table="Ditto",
    ),
    "task": Addition(
        """
        from dataclasses import replace
        from perfeds2.learning.datasets.synthetic import synthetic

        scratch = replace(synthetic, name="scratch")
        """,
        '"scratch": scratch,',
        """
        from perfeds2.spec.tasks import make_task
        from perfeds2.spec.resolve import spec_from
        assert make_task(spec_from(task="scratch", ues=4), 0).name == "scratch"
        """,
        file="scratch.py",
    ),
    "split": Addition(
        "",
        '"scratch": Quantity(2.0),',
        """
        from perfeds2.spec.tasks import make_task
        from perfeds2.spec.resolve import spec_from
        assert make_task(spec_from(ues=4, split="scratch"), 0).ues == 4
        """,
    ),
    "loss": Addition(
        "def scratch_loss(outputs, y):\n    return 2 * cross_entropy(outputs, y)\n",
        '"scratch": scratch_loss,',
        """
        from perfeds2.spec.resolve import spec_from
        assert spec_from(loss="scratch").task.loss.value.__name__ == "scratch_loss"
        """,
    ),
    "metric": Addition(
        "def scratch_metric(outputs, y, mask):\n    return accuracy(outputs, y, mask)\n",
        '"scratch": scratch_metric,',
        """
        from perfeds2.spec.resolve import spec_from
        assert spec_from(metric="scratch").task.metric.value.__name__ == "scratch_metric"
        """,
    ),
    "model": Addition(
        """
        from perfeds2.learning.models.mlp import MLP

        def scratch(inputs, classes):
            return MLP((inputs, 3, classes))
        """,
        '"scratch": scratch,',
        """
        from perfeds2.spec.tasks import model_of
        from perfeds2.spec.resolve import spec_from
        assert model_of(spec_from(model="scratch")).sizes == (64, 3, 10)
        """,
        file="scratch.py",
    ),
    "figure of the paper": Addition(
        "",
        'Figure("scratch", "A figure.", mnist_and_cifar(algorithms(SIX), EQUAL)),',
        """
        from perfeds2.paper.figures import FIGURES
        assert FIGURES["scratch"].panels
        assert "scratch" in command_line("reproduce", "nothing")
        """,
    ),
    "erratum": Addition(
        "def scratch() -> Numbers:\n    return [('two', 2)]\n",
        "99: scratch,",
        "assert 'two  2' in command_line('errata', '99')",
        besides=(
            "paper/errata/errata.toml",
            '[99]\nwhere = "here"\nprinted = "p"\nwrong = "w"\nours = "o"\ncode = []\ntests = []\nnumbers = [["two", 2]]\n',
        ),
    ),
    "study": Addition(
        """
        from perfeds2.runs.pool import run_all
        from perfeds2.runs.store import Store
        from perfeds2.runs.training import trainings_of
        from perfeds2.spec.resolve import spec_from

        def scratch(**settings):
            trainings = trainings_of(spec_from(**settings))
            results = run_all(trainings, Store(None))
            return {each.seed: results[each].rows[-1]["round"] for each in trainings}
        """,
        "from perfeds2.studies.scratch import scratch as scratch",
        """
        import perfeds2
        assert perfeds2.scratch(ues=4, quorum=2, rounds=3, seeds=2, algorithms=["FedAvgS2"]) == {0: 3, 1: 3}
        """,
        file="scratch.py",
    ),
    "benchmark": Addition(
        """
        from benchmarks.speed.timing import Measurement

        def scratch(repeats, seed, announce):
            yield Measurement("scratch/two", "two", 2.0, "s")
        """,
        '"scratch": scratch,',
        """
        from benchmarks.__main__ import measure
        assert measure(["scratch"])[0].value == 2.0
        """,
        file="scratch.py",
    ),
    "command": Addition(
        "def scratch() -> None:\n    '''Say hello.'''\n    print('hello')\n",
        'scratch: "Look",',
        "assert command_line('scratch').strip() == 'hello'",
        file="scratch.py",
    ),
}
HELPERS = """
import gc, json, sys, textwrap, traceback

gc.disable()  # imports and tracing make hardly any garbage
from in_numpy import train_in_numpy
train_in_numpy(setattr)

def command_line(*words):
    from command_line import told
    return "".join(told(*words)[1:])

def algorithm(**settings):
    from perfeds2.spec.build import Stage, make_algorithms
    from perfeds2.spec.resolve import spec_from
    spec = spec_from(**{"ues": 4, "quorum": 2, "rounds": 3, "seeds": 1, "algorithms": ["FedAvgS2"]} | settings)
    stage = Stage.of(spec, 0)
    (made,) = make_algorithms(spec, stage)
    played.spec, played.stage = spec, stage
    return made

def played(**settings):
    from perfeds2.spec.build import make_timelines
    made = algorithm(**settings)
    (line,) = make_timelines(played.spec, played.stage, [made])
    assert line.rounds == 3
    return line

failures = {}
for row, check in json.load(sys.stdin).items():
    try:
        exec(textwrap.dedent(check), globals())
    except BaseException:
        failures[row] = traceback.format_exc()
print(json.dumps(failures))
"""


@dataclass(frozen=True)
class Row:
    """A line of the table, with the paths it names."""

    what: str
    goes_into: str
    table: str
    table_file: str

    @classmethod
    def read(cls, line: str) -> "Row":
        what, place, beside = (cell.strip() for cell in line.strip("| \n").split(" | "))
        paths = re.findall(r"`([^`]+)`", place)
        named = re.match(r"`(\w+)`(?: in `([^`]+)`)?", beside)
        place = paths[0] if paths else ""
        return cls(what, place, named[1] if named else "", (named and named[2]) or place)


def rows() -> dict[str, Row]:
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8").split("|---|---|---|\n")[1].split("\n\n")[0]
    return {row.what: row for row in map(Row.read, text.splitlines())}


def add(scratch: Path, row: Row, addition: Addition) -> None:
    """Write the code and the line where the row says."""
    code, where = textwrap.dedent(addition.code), path_in(scratch, row.goes_into)
    if addition.file:
        assert where.is_dir()
        (where / addition.file).write_text(code)
    home = path_in(scratch, row.table_file) if not where.is_dir() or row.table else where
    text = home.read_text("utf-8")
    table = addition.table or row.table
    if home.suffix == ".pyi":  # the names of the package are imports
        home.write_text(f"{text}{addition.line}\n", "utf-8")
        return
    if addition.file:
        module = ".".join((where / addition.file).with_suffix("").relative_to(scratch).parts)
        code = f"from {module} import scratch\n"
    home.write_text(with_line(text, table, code, addition.line), "utf-8")
    path, more = addition.besides
    if path:
        assert path in (ROOT / "CONTRIBUTING.md").read_text("utf-8")
        with path_in(scratch, path).open("a") as file:
            file.write("\n" + more)


def path_in(scratch: Path, place: str) -> Path:
    path = scratch / place if place.startswith("benchmarks/") else scratch / "perfeds2" / place
    assert path.exists(), f"{place} is not there"
    return path


def with_line(text: str, table: str, code: str, line: str) -> str:
    """Put the code before a table, and the line into it: behind its first bracket, or at the end of a class."""
    lines = text.splitlines(keepends=True)
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef) and node.name == table:
            lines.insert(node.end_lineno or 0, f"    {line}\n")
            return "".join(lines)
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(each, ast.Name) and each.id == table for each in targets):
            value = node.value  # type: ignore[union-attr]  # of an assignment
            value = value.generators[0].iter if isinstance(value, ast.DictComp) else value
            at, row = value.col_offset + 1, value.lineno - 1
            lines[row] = f"{lines[row][:at]}{line} {lines[row][at:]}"
            lines.insert(node.lineno - 1, f"{code}\n\n")
            return "".join(lines)
    raise AssertionError(f"no table {table}")


@pytest.fixture(scope="module")
def failures(tmp_path_factory) -> dict[str, str]:
    """What does not work, by row, where everything has been added."""
    scratch = tmp_path_factory.mktemp("scratch")
    for name in ("perfeds2", "benchmarks"):
        shutil.copytree(ROOT / name, scratch / name, ignore=shutil.ignore_patterns("*.opt-*.pyc", "peers"))
    known, wrong = rows(), {}
    for what, addition in ADDITIONS.items():
        try:
            add(scratch, known[what], addition)
        except Exception as error:
            wrong[what] = f"{type(error).__name__}: {error}"
    checks = {what: addition.check for what, addition in ADDITIONS.items() if what not in wrong}
    environment = os.environ | {"PYTHONPATH": f"{scratch}{os.pathsep}{Path(__file__).parent}", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", HELPERS],
        input=json.dumps(checks),
        capture_output=True,
        text=True,
        cwd=scratch,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return wrong | json.loads(done.stdout.splitlines()[-1])


def test_every_row_of_the_table_is_tried():
    assert rows().keys() == ADDITIONS.keys()


@pytest.mark.parametrize("what", ADDITIONS)
def test_a_new_thing_goes_where_the_table_says(what, failures):
    assert what not in failures, failures[what]
