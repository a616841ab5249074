"""Check that a federation's events.log is complete, unchanged, and agrees with the rounds that were merged."""

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path

from perfeds2.deployment.checkpoint import Checkpoints
from perfeds2.deployment.record import LAPS
from perfeds2.deployment.setup import Setup, read_timeline
from perfeds2.errors import InputError
from perfeds2.runs.folder import LINK, LOG, Folder, chain

CLOSED = re.compile(r"\S+ round (\d+) closed at [^:]+: merged ")
MERGED = re.compile(r"UE (\d+) \(version (\d+), ticket (\d+)\)")
RESUMED = re.compile(r"\S+ resumed: (?:rounds 0 to (\d+) are|no round is) in the checkpoint")
RESULTS = re.compile(r"\S+ results: (.+) \w+")
FINISHED = re.compile(r"\S+ finished \w+")
# The log has the hashes of these results.
SEALED = ("timeline.npz", "model.safetensors", "metrics.csv", "ue_metrics.csv", "summary.json", LAPS)
HEAD = "log_head"  # key of summary.json: the hash of the log's last line before the run finished

Round = list[tuple[int, int]]  # UE and model version of each merged update


class LogError(Exception):
    """A log that is not what the federation wrote. The message names the first bad line."""


def verify_log(path: Path) -> str:
    """Check the log of a federation that is finished, running or interrupted.

    Args:
        path: The federation's run folder.

    Returns:
        What was checked, as a sentence.

    Raises:
        LogError: A line was changed, removed or added, or a round is missing, repeated or differs from the record.
        InputError: The folder has no federation that has started.
    """
    Setup.read(path)
    finished = Folder(path).finished
    head, rounds = _finished(path) if finished else _saved(path)  # first, because a running server goes on writing
    try:
        *lines, rest = (path / LOG).read_text(encoding="utf-8").split("\n")
    except (OSError, ValueError) as error:
        raise LogError(f"{path / LOG} cannot be read ({error}).") from None
    heads = _check_chain(lines)
    if rest and finished:
        raise LogError(f"line {len(lines) + 1} was added: the run has finished, and that line is not complete.")
    if head not in heads:
        raise LogError(f"line {len(lines) + 1} is missing: the log ends there, but {path} names a later line.")
    if finished and not any(map(FINISHED.fullmatch, lines[heads.index(head) :])):
        raise LogError(f"line {len(lines) + 1} is missing: the run has finished, but the log does not say so.")
    if finished:
        _check_results(path, lines)
    logged = rounds_in(lines)
    for number, (ours, theirs) in enumerate(zip(logged, rounds, strict=False)):
        if ours != theirs:
            raise LogError(f"round {number} has (UE, version) {ours} in the log, but {theirs} was merged.")
    if len(logged) < len(rounds) - (not finished):  # the last round may not have been logged yet
        raise LogError(f"line {len(lines) + 1} is missing: {len(rounds)} rounds closed, the log has {len(logged)}.")
    return f"{path / LOG} is intact: {len(lines)} lines, {len(logged)} rounds, each merged once."


def rounds_in(lines: Sequence[str]) -> list[Round]:
    """Return the rounds of a log. Those that a resumed server did not find in its checkpoint do not count."""
    rounds, tickets = list[Round](), set[int]()
    for number, line in enumerate(lines, 1):
        if closed := CLOSED.match(line):
            if int(closed[1]) != len(rounds):
                raise LogError(f"line {number} closes round {closed[1]}; expected round {len(rounds)}.")
            merges = [tuple(map(int, merge)) for merge in MERGED.findall(line)]
            expected = len(tickets) + len(merges)
            tickets.update(ticket for *_, ticket in merges)
            if len(tickets) < expected:
                raise LogError(f"line {number} merges a ticket that was merged before.")
            rounds.append([(ue, version) for ue, version, _ in merges])
        elif resumed := RESUMED.match(line):
            kept = int(resumed[1] or -1) + 1
            if kept > len(rounds):
                raise LogError(f"line {number} resumes after round {kept - 1}, which the log does not have.")
            del rounds[kept:]
    return rounds


def seal(folder: Folder) -> None:
    """Log the hashes of a finished run's results, once."""
    lines = (folder.path / LOG).read_text(encoding="utf-8").split("\n")
    if not any(map(RESULTS.fullmatch, lines)):
        folder.log(f"results: {_hashes(folder.path)}")


def _hashes(path: Path) -> str:
    files = [path / name for name in SEALED]
    return ", ".join(f"{file.name} {hashlib.sha256(file.read_bytes()).hexdigest()}" for file in files if file.exists())


def _check_results(path: Path, lines: Sequence[str]) -> None:
    sealed = next(filter(None, map(RESULTS.fullmatch, reversed(lines))), None)
    if sealed is None:
        raise LogError(f"line {len(lines) + 1} is missing: the log does not name the results of the finished run.")
    logged, found = (dict(each.split(" ") for each in text.split(", ")) for text in (sealed[1], _hashes(path)))
    for name, digest in logged.items():
        if found.get(name) != digest:
            raise LogError(f"{path / name} is not what the federation wrote; restore it from a backup.")


def _check_chain(lines: Sequence[str]) -> list[str]:
    """Return the hash of the log before each line, and after the last."""
    heads = [""]
    for number, line in enumerate(lines, 1):
        text, head = line[: -LINK - 1], line[-LINK:]
        if chain(heads[-1], text) != head:
            raise LogError(f"line {number} was changed or added, or lines before it were removed: {line[:200]}")
        heads.append(head)
    return heads


def _finished(path: Path) -> tuple[str, list[Round]]:
    timeline = read_timeline(path)
    rounds = [
        list(zip(*row, strict=True)) for row in zip(timeline.ues.tolist(), timeline.versions.tolist(), strict=True)
    ]
    try:
        return json.loads((path / "summary.json").read_text(encoding="utf-8"))[HEAD], rounds
    except (OSError, ValueError, LookupError):
        raise LogError(f"{path / 'summary.json'} does not name the end of the log ({HEAD}).") from None


def _saved(path: Path) -> tuple[str, list[Round]]:
    found = Checkpoints(Folder(path)).intact()
    if not found:
        raise InputError(f"{path} has no checkpoint, so there is nothing to compare its log with.")
    rounds: list[Round] = [[] for _ in range(found[-1].facts["round"])]
    for line in found[-1].lines:
        for number, ue, version, *_ in line["record"]["merges"]:
            rounds[number].append((ue, version))
    return found[-1].facts["head"], rounds
