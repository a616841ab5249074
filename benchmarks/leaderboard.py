"""Run a benchmark whose settings never change, and merge the results that others submit::

    python -m benchmarks.leaderboard run OUT --tasks digits --mine mine.py:Cautious --submit results/cautious.json
    python -m benchmarks.leaderboard merge results

A suite is an arena's request without methods, in suite_NAME.toml. A submission is one method's results in a JSON file, signed with
the key of the person who ran it. The signature shows that the file was not changed, not that the results are true: for
that, run the method again.
"""

import argparse
import csv
import hashlib
import json
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pydantic
import typer
from pydantic import Field

from perfeds2 import __version__
from perfeds2.errors import InputError, did_you_mean, need_extra
from perfeds2.files import read_json, write_atomically, write_text
from perfeds2.report.arena import write_arena
from perfeds2.report.live import progress
from perfeds2.runs.costs import IN_ARENA, SECONDS
from perfeds2.runs.pool import PROCESSES, WorkerChoice
from perfeds2.runs.session import Execution
from perfeds2.runs.store import Row
from perfeds2.spec.hashes import hashed
from perfeds2.spec.names import Values
from perfeds2.spec.resolve import read_toml
from perfeds2.spec.values import read_list
from perfeds2.studies.arena import AT_END, MethodOutcome, run_arena, write_bouts
from perfeds2.studies.arena_plan import ArenaPlan, Bout, make_arena

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

PLACE = Path(__file__).parent
MOST_BYTES = 2_000_000  # of a submission
DIGITS = 7  # of a number in a submission
FREE = ("data_dir",)  # settings of a task that a suite leaves to the user

Text = Annotated[str, Field(min_length=1, max_length=100)]
Hash = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Measured = Annotated[float, Field(allow_inf_nan=False, ge=-1e15, le=1e15)]


# ---- the benchmark


def plan_suite(
    name: str, values: Values, *, tasks: Sequence[str] = (), methods: Sequence[object] = (), mine: Sequence[object] = ()
) -> ArenaPlan:
    """Plan a suite, or those of its tasks that are named.

    With ``mine`` and no ``methods``, only the user's own methods run.

    Raises:
        InputError: If there is no such suite or task, or ``values`` has a setting that the suite fixes.
    """
    request = read_suite(name)
    free = {key: value for key, value in values.get("task", {}).items() if key in FREE}
    if values != ({"task": free} if free else {}):
        raise InputError(f"--suite {name} fixes all settings; give only --tasks, --methods, --mine and --data-dir.")
    known = request.pop("tasks")
    for task in tasks:
        if task not in known:
            raise InputError(f"--tasks {task}: --suite {name} has only {', '.join(known)}.")
    base = request.pop("base") | ({"task": free} if free else {})
    if mine and not methods:
        methods, mine = mine, ()
    return make_arena(base, tasks=tasks or known, methods=methods, mine=mine, suite=name, **request)


def read_suite(name: str) -> Values:
    """Return a suite's request, with the paths of its fleets."""
    names = sorted(path.stem.removeprefix("suite_") for path in PLACE.glob("suite_*.toml"))
    if name not in names:
        raise InputError(f"--suite {name} is not known. {did_you_mean(name, names)}")
    request = read_toml(PLACE / f"suite_{name}.toml")
    for own in request["cells"].values():
        if "kind" in own.get("cell", {}):
            own["cell"]["kind"] = str(PLACE / own["cell"]["kind"])
    return request


def fingerprint(plan: ArenaPlan, bout: Bout) -> str:
    """Return a hash over a bout's settings, its fleet and the tuning budget, without methods and folders."""
    values = hashed(bout.spec.model_dump(mode="json", exclude_none=True, exclude={"methods", "own"}))
    values["run"].pop("algorithms", None)
    for key in FREE:
        values["task"].pop(key, None)
    if values["energy"].get("model") == "yang":  # what a setting that is not given meant when suites began
        del values["energy"]["model"]
    if bout.spec.cell.kind is not None and bout.spec.cell.kind.digest:
        values["cell"]["kind"] = bout.spec.cell.kind.digest  # a file: its content, not its place
    values["tuning"] = [plan.tries, plan.tuning_seeds, plan.rungs]
    return hashlib.sha256(_canonical(values)).hexdigest()


def _canonical(values: Values) -> bytes:
    return json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


# ---- submissions


class Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", strict=True, frozen=True)


class SubmittedBout(Strict):
    """One method's results in one bout."""

    task: Text
    cell: Text
    fingerprint: Hash
    tried: Annotated[int, Field(ge=0, le=10_000)]
    settings: Annotated[dict[Text, Measured], Field(max_length=20)]
    edges: Annotated[list[Text], Field(max_length=20)]
    mode: Text
    columns: dict[Text, Annotated[list[Measured | None], Field(max_length=1000)]]  # of arena.csv, a value per seed


class Submission(Strict):
    """One method's results in a suite."""

    suite: Text
    perfeds2: Text
    method: Text
    source: Hash | Literal[""]  # sha256 of the user's own file
    bouts: Annotated[list[SubmittedBout], Field(min_length=1, max_length=100)]
    key: Hash  # the public Ed25519 key
    signature: Annotated[str, Field(pattern="^[0-9a-f]{128}$")]


MEASURES = (*IN_ARENA, *AT_END, "diverged")
SHARES = ("accuracy", "accuracy_global", "accuracy_over_time", "worst_decile", "jain", "diverged")


def write_submissions(plan: ArenaPlan, folder: Path, place: Path) -> list[Path]:
    """Sign and write the results of a suite: one file if ``place`` ends with .json, else a file per method in that folder.

    Args:
        plan: The suite's plan.
        folder: The folder of the finished arena.
        place: Where to write. One file takes the user's own method, or the only one.
    """
    said = read_json(folder / "arena.json")
    names: list[str] = said["mine"] or said["methods"]
    single = place.suffix == ".json"
    if single and len(names) > 1:
        raise InputError(f"--submit {place} is one file, but there are {len(names)} methods; give a folder.")
    missing = [(bout["task"], name) for bout in said["bouts"] for name in names if name in bout["missing"]]
    if missing:
        raise InputError(
            f"{missing[0][1]} has no results on {missing[0][0]}; repeat failed trainings by the same command."
        )
    key = _signing_key()
    place.parent.mkdir(parents=True, exist_ok=True)
    if not single:
        place.mkdir(exist_ok=True)
    written = [place if single else place / f"{name}.json" for name in names]
    for path, name in zip(written, names, strict=True):
        write_text(path, json.dumps(_signed(_results(plan, folder, said, name), key)) + "\n")
    return written


def _results(plan: ArenaPlan, folder: Path, said: Row, name: str) -> Values:
    with (folder / "arena.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["method"] == name]
    bouts = []
    for bout, found in zip(plan.bouts, said["bouts"], strict=True):
        about = next(each for each in found["methods"] if each["method"] == name)
        own = [row for row in rows if (row["task"], row["cell"]) == (bout.task, bout.cell)]
        bouts.append(
            {"task": bout.task, "cell": bout.cell, "fingerprint": fingerprint(plan, bout), "mode": about["mode"]}
            | {"tried": about["tried"], "edges": about["edges"]}
            | {"settings": {key: float(value) for key, value in about["settings"].items()}}
            | {"columns": {key: [_number(row[key]) for row in own] for key in ("seed", *MEASURES)}}
        )
    source = plan.bouts[0].methods[name].digest
    return {"suite": plan.suite, "perfeds2": __version__, "method": name, "source": source, "bouts": bouts}


def _number(text: str) -> float | None:
    return float(f"{float(text):.{DIGITS}g}") if text else None


def _signing_key() -> "Ed25519PrivateKey":
    """Return the user's key; make one at the first use."""
    need_cryptography()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    path = Path(typer.get_app_dir("perfeds2")) / "signing.key"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with write_atomically(path, 0o600) as file:
            file.write(os.urandom(32).hex().encode())
    try:
        return Ed25519PrivateKey.from_private_bytes(bytes.fromhex(path.read_text("ascii").strip()))
    except ValueError:
        raise InputError(f"{path} holds no signing key; delete it, and a new one is made.") from None


def need_cryptography() -> None:
    """Raise InputError if the package that signs and checks signatures is missing."""
    need_extra("a signature", "mqtt", "cryptography")


def _signed(values: Values, key: "Ed25519PrivateKey") -> Values:
    values = values | {"key": key.public_key().public_bytes_raw().hex()}
    return values | {"signature": key.sign(_canonical(values)).hex()}


def read_submission(path: Path) -> Submission:
    """Read a submission and check its form and signature.

    Raises:
        InputError: If it is not a valid submission; names the file.
    """
    need_cryptography()
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    if path.stat().st_size > MOST_BYTES:
        raise InputError(f"{path} is larger than {MOST_BYTES:,} bytes; a submission is not.")
    try:
        text = path.read_bytes()
        values: Any = json.loads(text)
        found = Submission.model_validate_json(text)
    except (ValueError, RecursionError) as error:
        first = error.errors()[0] if isinstance(error, pydantic.ValidationError) else None
        said = str(error) if first is None else f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise InputError(f"{path} is not a submission ({said}).") from None
    if not found.method.isprintable():
        raise InputError(f"{path} is not a submission (its method's name is not printable).")
    signature = bytes.fromhex(values.pop("signature"))
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(found.key)).verify(signature, _canonical(values))
    except (InvalidSignature, ValueError):
        raise InputError(f"{path} was changed after it was signed, or its signature is wrong.") from None
    return found


# ---- the leaderboard


def merge_submissions(folder: Path, out: Path) -> None:
    """Check all submissions in a folder, and write them as one arena, ready to be drawn.

    Raises:
        InputError: If a file is invalid, belongs to another suite or other settings, or two have the same method.
    """
    files = sorted(folder.glob("*.json"))
    if not files:
        raise InputError(
            f"{folder} holds no submissions; expected files that python -m benchmarks.leaderboard run --submit wrote."
        )
    found = {path: read_submission(path) for path in files}
    names: dict[str, Path] = {}
    for path, one in found.items():
        if one.suite != (first := found[files[0]].suite):
            raise InputError(f"{path} is of suite {one.suite}, {files[0]} of suite {first}; merge one suite at a time.")
        if (other := names.setdefault(one.method, path)) != path:
            raise InputError(f"{other} and {path} both have {one.method}; give each method its own name.")
    try:
        plan = plan_suite(found[files[0]].suite, {}, methods=["PerFedS2"])
    except InputError as error:
        raise InputError(f"{files[0]}: {error}") from None
    outcomes = [
        MethodOutcome(
            bout,
            one.method,
            own.model_dump(include={"tried", "settings", "edges"}),
            _rows(plan, bout, own, one, path),
        )
        for bout in plan.bouts
        for path, one in found.items()
        for own in one.bouts
        if (own.task, own.cell) == (bout.task, bout.cell)
    ]
    known = [(bout.task, bout.cell) for bout in plan.bouts]
    for path, one in found.items():
        places = [(own.task, own.cell) for own in one.bouts]
        wrong = next((place for place in places if place not in known or places.count(place) > 1), None)
        if wrong is not None:
            raise InputError(f"{path} has {wrong[0]} on {wrong[1]} twice, or suite {one.suite} does not have it.")
    out.mkdir(parents=True, exist_ok=True)
    submissions = [one.model_dump(include={"method", "perfeds2", "source", "key"}) for one in found.values()]
    methods = {one.method: bool(one.source) for one in found.values()}
    write_bouts(out, plan, outcomes, methods, submissions=submissions)


def _rows(plan: ArenaPlan, bout: Bout, own: SubmittedBout, of: Submission, path: Path) -> list[Row]:
    """Return a row per seed, as arena.csv has them, after checking that they fit the suite."""
    what = f"{path}: {own.task} on {own.cell}"
    if own.fingerprint != fingerprint(plan, bout):
        raise InputError(f"{what} was run with other settings than suite {plan.suite} has.")
    columns = own.columns
    if set(columns) != {"seed", *MEASURES} or {len(each) for each in columns.values()} != {len(plan.seeds)}:
        raise InputError(f"{what} does not have exactly the measures of an arena for every seed.")
    if columns["seed"] != list(plan.seeds):
        raise InputError(f"{what} does not have exactly the seeds of suite {plan.suite}.")
    for name in MEASURES:
        most = 1 if name in SHARES else bout.spec.run.horizon_s if IN_ARENA.get(name) is SECONDS else None
        for value in columns[name]:
            if (value is None and name not in IN_ARENA) or not 0 <= (value or 0) <= (most or math.inf):
                raise InputError(f"{what} has {value} as {name}, which is impossible.")
    where: Row = {"task": own.task, "cell": own.cell, "method": of.method, "mode": own.mode}
    where["target_accuracy"] = bout.spec.run.target_accuracy
    return [
        where | {"seed": seed} | {name: columns[name][at] for name in MEASURES} for at, seed in enumerate(plan.seeds)
    ]


# ---- the command line


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.leaderboard", description="Run a suite, or merge results."
    )
    commands = parser.add_subparsers(required=True)
    run = commands.add_parser("run", help="Run a suite; the same command continues it.")
    run.add_argument("out", type=Path, help="Folder of the results.")
    run.add_argument("--suite", default="v1", help="Name of the suite. (default: v1)")
    run.add_argument("--tasks", default="", help="Only these tasks, comma-separated.")
    run.add_argument("--methods", default="", help="Methods, comma-separated, or all.")
    run.add_argument("--mine", action="append", default=[], help="Add your own method, FILE.py:NAME. Repeatable.")
    run.add_argument("--data-dir", help="Folder of real data sets.")
    run.add_argument("--workers", type=int, help="Trainings at a time.")
    run.add_argument("--submit", type=Path, help="Write signed results: FILE.json or DIR.")
    run.set_defaults(do=_run)
    merge = commands.add_parser("merge", help="Check and merge the submissions in a folder.")
    merge.add_argument("folder", type=Path)
    merge.add_argument("--out", type=Path, help="Where to write. (default: leaderboard in the folder)")
    merge.set_defaults(do=_merge)
    given = parser.parse_args(arguments)
    try:
        given.do(given)
    except InputError as error:
        sys.exit(f"{parser.prog}: {error}")


def _run(given: argparse.Namespace) -> None:
    values = {} if given.data_dir is None else {"task": {"data_dir": given.data_dir}}
    lists = {"tasks": read_list(given.tasks), "methods": read_list(given.methods), "mine": given.mine}
    plan = plan_suite(given.suite, values, **lists)
    if given.submit is not None:
        need_cryptography()  # before hours of training
    how = Execution(WorkerChoice(given.workers, PROCESSES), page=write_arena)
    with progress(quiet=False, command="arena") as watch:
        met = run_arena(plan, given.out, replace(how, watch=watch))
    if met.failures:
        sys.exit(f"{len(met.failures)} trainings failed; repeat the command to train them again.")
    if given.submit is not None:
        for path in write_submissions(plan, given.out, given.submit):
            print(f"Wrote: {path}")


def _merge(given: argparse.Namespace) -> None:
    place = given.out or given.folder / "leaderboard"
    merge_submissions(given.folder, place)
    print(f"Report: {write_arena(place)[0]}")


if __name__ == "__main__":
    main()
