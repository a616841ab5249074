"""Check the tests: break the code in small ways, one at a time. Each time a test must fail.

``make mutate`` applies the mutants of ``mutants.toml``, and those that Cosmic Ray makes of the lines changed since ``BASE``.
Before a file of tests is tried on a mutant, it runs with nothing broken. What is broken are copies of the tree. A mutant that
makes tests run four times as long counts as killed. To measure the score of folders, draw a sample (``--dump`` saves it;
``--load`` runs it where Cosmic Ray is missing):

    python tests/mutate.py --sample 70 timeline allocation --csv mutants.csv
"""

import argparse
import ast
import contextlib
import csv
import itertools
import json
import os
import queue
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
CODE, TESTS = ROOT / "perfeds2", ROOT / "tests"
LISTED = "listed"  # the operator of a hand-typed mutant
MARKS = ("not slow", "slow")  # most mutants need no slow test
NO_TESTS, STOPPED = 5, -1  # pytest's exit status if it finds no test, and ours if it takes too long
MOST_FILES = 10  # of tests for a mutant
STAMPS = itertools.count(10**9)  # times of change of mutated files
OPERATORS = {  # Cosmic Ray's, one or two for each place
    "ReplaceBinaryOperator_": "Add_Sub Sub_Add Mul_Div Div_Mul FloorDiv_Mul Mod_Add Pow_Mul BitAnd_BitOr BitOr_BitAnd",
    "ReplaceComparisonOperator_": "Lt_LtE LtE_Lt Gt_GtE GtE_Gt Lt_Gt LtE_GtE Gt_Lt GtE_LtE Eq_NotEq NotEq_Eq Is_IsNot IsNot_Is",
    "ReplaceUnaryOperator_Delete_": "USub Not Invert",
    "Replace": "TrueWithFalse FalseWithTrue AndWithOr OrWithAnd BreakWithContinue ContinueWithBreak",
    "": "AddNot ExceptionReplacer NumberReplacer ZeroIterationForLoop",
}


@dataclass(frozen=True)
class Mutant:
    """One change to one file, and the tests that may notice."""

    file: str  # below perfeds2/
    line: int
    operator: str
    start: int  # where ``old`` stands in the file's text
    old: str
    new: str
    tests: tuple[str, ...]  # files below tests/, the likeliest to fail first

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.old.strip()} -> {self.new.strip()}"


def main() -> int:
    parser = argparse.ArgumentParser(description="Break the code in small ways; each time a test must fail.")
    parser.add_argument("areas", nargs="*", help="paths to sample, below perfeds2/, or how they start")
    parser.add_argument("--base", default="HEAD~1", metavar="REVISION", help="mutate the lines changed since then")
    parser.add_argument("--sample", type=int, metavar="N", help="draw N mutants of each area instead")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="draw other mutants")
    parser.add_argument("--dump", type=Path, metavar="FILE", help="save the mutants and stop")
    parser.add_argument("--load", type=Path, metavar="FILE", help="run saved mutants")
    parser.add_argument("--csv", default=os.devnull, metavar="FILE", help="save the verdicts")
    parser.add_argument("--budget-s", type=float, default=60.0, help="seconds of tests for a mutant, of each mark")
    parser.add_argument("--skip-failing", action="store_true", help="succeed even if tests fail with nothing broken")
    parser.add_argument("-j", "--jobs", type=int, default=2, metavar="N")
    given = parser.parse_args()
    if given.load:
        mutants = [Mutant(**each) for each in json.loads(given.load.read_text("utf-8"))]
    elif given.sample:
        mutants = [each for area in given.areas for each in sample(area, given.sample, given.seed)]
    else:
        mutants = [*listed(), *changed(given.base)]
    if given.dump:
        given.dump.write_text(json.dumps([asdict(each) for each in mutants], indent=0), "utf-8")
        return 0
    return test_all(mutants, given)


def listed() -> list[Mutant]:
    """Return the hand-typed mutants. Raise ValueError where a text does not occur exactly once."""
    mutants = []
    for file, tests, old, new in tomllib.loads((TESTS / "mutants.toml").read_text("utf-8"))["mutants"]:
        text = (CODE / file).read_text("utf-8")
        if text.count(old) != 1:
            raise ValueError(f"{file} has {old!r} {text.count(old)} times. The text of a mutant must occur once.")
        start = text.index(old)
        mutants.append(Mutant(file, text.count("\n", 0, start) + 1, LISTED, start, old, new, (tests,)))
    return mutants


def changed(base: str) -> list[Mutant]:
    """Return the tool's mutants of the lines that differ from a revision."""
    command = ["git", "diff", "--unified=0", "--no-color", "--diff-filter=d", base, "--", "perfeds2/*.py"]
    lines: dict[str, set[int]] = {}
    now = set[int]()
    for line in subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines():
        if line.startswith("+++ b/perfeds2/"):
            now = lines.setdefault(line.removeprefix("+++ b/perfeds2/"), set())
        elif found := re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", line):
            now.update(range(int(found[1]), int(found[1]) + int(found[2] or 1)))
    return [made for file in sorted(lines) for place in places(file, lines[file]) if (made := mutant(*place))]


def sample(area: str, count: int, seed: int = 0) -> list[Mutant]:
    """Draw mutants of the files whose path starts with ``area``: the same ones for a seed."""
    files = sorted(str(path.relative_to(CODE)) for path in CODE.rglob("*.py"))
    found = [place for file in files if file.startswith(area) for place in places(file)]
    random.Random(seed).shuffle(found)
    return list(itertools.islice(filter(None, itertools.starmap(mutant, found)), count))


@cache
def operators() -> dict[str, Any]:
    from cosmic_ray.plugins import get_operator

    names = (f"{prefix}{name}" for prefix, listed in OPERATORS.items() for name in listed.split())
    return {name: get_operator(f"core/{name}")() for name in names}


def places(file: str, lines: set[int] | None = None) -> Iterator[tuple[str, str, int]]:
    """Find what can change in a file, outside annotations and decorators: file, operator, which of its occurrences."""
    from cosmic_ray.ast import ast_nodes, get_ast

    text = (CODE / file).read_text("utf-8")
    left_out = [
        (node.lineno, node.col_offset, node.end_lineno, node.end_col_offset)
        for holder in ast.walk(ast.parse(text))
        for name, value in ast.iter_fields(holder)
        if name in ("annotation", "returns", "decorator_list")
        for node in (value if isinstance(value, list) else [value])
        if node is not None
    ]
    nodes = list(ast_nodes(get_ast(text)))
    for name, operator in operators().items():
        found = (at for node in nodes for at in operator.mutation_positions(node))
        for occurrence, (at, (last, _)) in enumerate(found):
            is_wanted = lines is None or not lines.isdisjoint(range(at[0], last + 1))
            if is_wanted and not any(each[:2] <= at < each[2:] for each in left_out):
                yield file, name, occurrence


def mutant(file: str, name: str, occurrence: int) -> Mutant | None:
    from cosmic_ray.mutating import mutate_code

    sound = (CODE / file).read_text("utf-8")
    broken = mutate_code(sound, operators()[name], occurrence)
    if not broken or broken == sound:
        return None
    before, after = sound.splitlines(keepends=True), broken.splitlines(keepends=True)
    differ = [number for number, (one, other) in enumerate(zip(before, after, strict=True)) if one != other]
    first, end = differ[0], differ[-1] + 1
    start, old, new = len("".join(before[:first])), "".join(before[first:end]), "".join(after[first:end])
    return Mutant(file, first + 1, name, start, old, new, tests_of(file))


@cache
def tests_of(file: str) -> tuple[str, ...]:
    """Return the tests named after a module, those that import it, and those of its folder."""
    *folders, name = file.removesuffix(".py").split("/")
    module = ".".join(
        folders if len(folders) > 1 else [*folders, name]
    )  # a package inside a folder exports for its files
    ranked = []
    for path in TESTS.rglob("test_*.py"):
        is_near = path.parent.name == (folders or ["tests"])[0]
        is_imported = re.search(rf"(from|import) perfeds2\.{module}\b", path.read_text("utf-8")) is not None
        if is_near or is_imported:
            is_named = is_near and path.stem.startswith(f"test_{name}")
            ranked.append((not is_named, not is_imported, not is_near, str(path.relative_to(TESTS))))
    return tuple(each[-1] for each in sorted(ranked)[:MOST_FILES])


@dataclass(frozen=True)
class Ended:
    status: int
    seconds: float
    output: str


def run_tests(copy: Path, mark: str, test: str, limit_s: float, *options: str) -> Ended:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-rfE",
        "-p",
        "no:cacheprovider",
        "-m",
        mark,
        *options,
        f"tests/{test}",
    ]
    path = os.pathsep.join(filter(None, [str(copy), os.environ.get("PYTHONPATH")]))
    environment = os.environ | {"PYTHONPATH": path, "JAX_PLATFORMS": "cpu"}
    began = time.monotonic()
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
        process = subprocess.Popen(
            command, cwd=copy, env=environment, stdout=output, stderr=output, start_new_session=True
        )
        try:
            status = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            status = STOPPED
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # and what the tests have started
        process.wait()
        output.seek(0)
        return Ended(status, time.monotonic() - began, output.read())


@dataclass
class Sound:
    """How the tests end with nothing broken; each file runs when a mutant first needs it."""

    limit_s: float
    ended: dict[tuple[str, str], Ended] = field(default_factory=dict)  # by mark and test file
    failing: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, mark: str, test: str) -> Ended | None:
        """Return how a file ends, or None if it has no test with this mark or cannot run."""
        with self.lock:
            if (mark, test) not in self.ended:
                self.ended[mark, test] = ended = run_tests(ROOT, mark, test, self.limit_s)
                self.failing += re.findall(r"^(?:FAILED|ERROR) (\S+)", ended.output, re.M)
                if ended.status not in (0, NO_TESTS):
                    print(f"{test} ({mark}) fails with nothing broken:\n{ended.output[-2000:]}", flush=True)
            ended = self.ended[mark, test]
        return ended if ended.status in (0, 1) else None


def copy_tree(copy: Path) -> Path:
    for name in ("perfeds2", "tests", "benchmarks", "examples"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", copy)
    if (compiled := ROOT / ".pytest_cache" / "compiled").exists():
        shutil.copytree(compiled, copy / ".pytest_cache" / "compiled")
    return copy


def test_mutant(mutant: Mutant, copy: Path, sound: Sound, budget_s: float) -> str:
    """Return the verdict on a mutant. Files of tests run one at a time until one fails; slow tests run last."""
    verdict, path, end = "untested", copy / "perfeds2" / mutant.file, mutant.start + len(mutant.old)
    text, status = path.read_text("utf-8"), path.stat()
    if text[mutant.start : end] != mutant.old:
        raise ValueError(f"The file has changed since the mutant was made. {mutant}")
    path.write_text(text[: mutant.start] + mutant.new + text[end:], "utf-8")
    os.utime(path, (0, next(STAMPS)))  # Python compiles a file anew if its second or its size differs
    for mark in MARKS:
        left_s = budget_s
        for test in mutant.tests:
            if verdict not in ("untested", "survived") or left_s <= 0:
                break
            if (whole := sound.run(mark, test)) is not None:
                left_s -= whole.seconds
                leave_out = (f"--deselect={each}" for each in sound.failing)
                ended = run_tests(copy, mark, test, 30 + 4 * whole.seconds, "-x", *leave_out)
                verdict = {0: "survived", NO_TESTS: verdict, STOPPED: "stopped"}.get(ended.status, "killed")
    path.write_text(text, "utf-8")
    os.utime(path, (status.st_atime, status.st_mtime))
    return verdict


def test_all(mutants: list[Mutant], given: argparse.Namespace) -> int:
    """Test every mutant and print the scores. Return 1 if a hand-typed mutant survives, or a test fails with none."""
    total, killed = Counter[str](), Counter[str]()
    free = queue.Queue[Path]()
    with (
        tempfile.TemporaryDirectory(prefix="perfeds2-mutants-") as scratch,
        ThreadPoolExecutor(given.jobs) as pool,
        open(given.csv, "w", encoding="utf-8", newline="", buffering=1) as file,
    ):
        sound = Sound(10 * given.budget_s)
        for number in range(given.jobs):
            free.put(copy_tree(Path(scratch) / str(number)))
        rows = csv.writer(file)
        rows.writerow(["file", "line", "operator", "verdict", "seconds", "old", "new"])

        def test(mutant: Mutant) -> None:
            copy, began = free.get(), time.monotonic()
            verdict = test_mutant(mutant, copy, sound, given.budget_s)
            free.put(copy)
            seconds = round(time.monotonic() - began, 1)
            rows.writerow([mutant.file, mutant.line, mutant.operator, verdict, seconds, mutant.old, mutant.new])
            print(f"{verdict} in {seconds} s: {mutant}", flush=True)
            group = LISTED if mutant.operator == LISTED else mutant.file.partition("/")[0]
            total[group] += 1
            killed[group] += verdict in ("killed", "stopped")

        list(pool.map(test, mutants))
    for group, count in total.items():
        print(f"{group}: {killed[group]} of {count} mutants killed ({killed[group] / count:.0%})")
    return 1 if killed[LISTED] < total[LISTED] or (sound.failing and not given.skip_failing) else 0


if __name__ == "__main__":
    sys.exit(main())
