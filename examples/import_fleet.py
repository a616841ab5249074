"""Convert device files of FedScale, FLASH and FLHetBench to a fleet file for ``--cell``::

    python examples/import_fleet.py fedscale client_device_capacity client_behave_trace --out phones

FedScale's files are pickles, which could run any code when loaded. They are never loaded. Their operations are read one
by one, and a file is refused if an operation does more than build plain data.

- FedScale (also REFL), ``client_device_capacity``: samples_per_s = 1000/(3 · computation), rate_bps = 1000 · communication;
  ``client_behave_trace``: available from each active to the next inactive second, repeated after finish_time.
- FLASH, ``speed_distri.json``: rate_bps and rate_spread, log-normal with the mean up_u and deviation up_sigma, in KiB/s.
- FLHetBench, ``training_latency.json``: compute_s and compute_spread, from the milliseconds of ResNet;
  ``cached_timers.json``: available, the seconds in which a phone was ready. Phones that were never ready are left out.
"""

import argparse
import csv
import io
import json
import math
import pickletools
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from perfeds2 import InputError, spec_from

COLUMNS = ("samples_per_s", "compute_s", "compute_spread", "rate_bps", "rate_spread", "available", "name")
MAX_SPREAD = 3.0  # that a fleet file may have
MAX_BYTES = 100_000_000
MAX_OPERATIONS = 30_000_000
MAX_WAITING = 100_000  # values that wait to be put into a list or dict; this also bounds the depth
MAX_TEXT = 200_000_000  # characters of the fleet file
VALUES = {  # pickle operations that are a number or a text
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
    *("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "STRING", "BINSTRING", "SHORT_BINSTRING"),
}
Columns = dict[str, float | str]


def import_fleet(kind: str, files: Sequence[Path], folder: Path, most: int) -> tuple[Path, int]:
    """Write fleet.csv with the devices of one or more files; device i has the i-th entry of each, in turn.

    Returns:
        The fleet file and its number of devices: those of the first file, at most ``most``.

    Raises:
        InputError: A file is not of this kind, or its values are not allowed in a fleet.
    """
    if kind not in KINDS:
        raise InputError(f"--from {kind} is unknown; expected {', '.join(KINDS)}.")
    parts = []
    for path in files:
        try:
            parts.append(_devices(kind, path, most))
        except (ValueError, OSError) as error:
            raise InputError(f"{path} {str(error).removesuffix('.')}; expected a device file of {kind}.") from None
    count = len(parts[0])
    rows = [{key: value for part in parts for key, value in part[ue % len(part)].items()} for ue in range(count)]
    if sum(len(str(value)) for row in rows for value in row.values()) > MAX_TEXT:
        raise InputError(f"{files[0]} gives a fleet of more than {MAX_TEXT:,} characters; take fewer --devices.")
    table = io.StringIO()
    writer = csv.DictWriter(table, [name for name in COLUMNS if any(name in row for row in rows)])
    writer.writeheader()
    writer.writerows(rows)
    with TemporaryDirectory() as place:
        made = Path(place) / "fleet.csv"
        made.write_text(table.getvalue(), encoding="utf-8")
        try:
            spec_from(cell=str(made))
        except InputError as error:
            raise InputError(f"{files[0]} gives a fleet that cannot be used: {error}") from None
        folder.mkdir(parents=True, exist_ok=True)
        return Path(shutil.copy(made, folder)), count


def _devices(kind: str, path: Path, most: int) -> list[Columns]:
    """Return the columns of the first devices that are ever present."""
    if path.stat().st_size > MAX_BYTES:
        raise ValueError(f"has more than {MAX_BYTES:,} bytes")
    data = path.read_bytes()
    try:
        whole = json.loads(data) if data.lstrip()[:1] in (b"{", b"[") else read_pickle(data)
        entries = map(KINDS[kind], whole.values() if isinstance(whole, dict) else whole)
        found = list(islice(filter(None, entries), most))
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError):
        raise ValueError("has an entry that is not a device") from None
    if not found:
        raise ValueError("has no devices")
    return found


def read_pickle(data: bytes) -> Any:
    """Return the dicts, lists, texts and numbers of a pickle, without running anything in it.

    Raises:
        ValueError: It is broken, too large, or has an operation that does not build these.
    """
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[Any, Any] = {}

    def since_mark() -> list[Any]:
        start = marks.pop()
        items = stack[start:]
        del stack[start:]
        return items

    for number, (operation, value, _) in enumerate(pickletools.genops(data)):
        if number > MAX_OPERATIONS or len(stack) > MAX_WAITING:
            raise ValueError("is too large or too deeply nested")
        match operation.name:
            case name if name in VALUES:
                stack.append(value)
            case "MARK":
                marks.append(len(stack))
            case "EMPTY_LIST":
                stack.append([])
            case "EMPTY_DICT":
                stack.append({})
            case "LIST":
                stack.append(since_mark())
            case "DICT":
                items = since_mark()
                stack.append(dict(zip(items[::2], items[1::2], strict=True)))
            case "APPEND":
                item = stack.pop()
                stack[-1].append(item)
            case "APPENDS":
                items = since_mark()
                stack[-1].extend(items)
            case "SETITEM":
                key, item = stack.pop(-2), stack.pop()
                stack[-1].update({key: item})
            case "SETITEMS":
                items = since_mark()
                stack[-1].update(zip(items[::2], items[1::2], strict=True))
            case "MEMOIZE":
                memo[len(memo)] = stack[-1]
            case "PUT" | "BINPUT" | "LONG_BINPUT":
                memo[value] = stack[-1]
            case "GET" | "BINGET" | "LONG_BINGET":
                stack.append(memo[value])
            case name if name not in ("PROTO", "FRAME", "STOP"):
                raise ValueError(f"has the pickle operation {name}, which a device file does not need")
    (whole,) = stack
    return whole


# ---- how each kind of file describes a device


def _fedscale(device: Mapping[str, Any]) -> Columns:
    """computation is in milliseconds per sample, three times for training; communication is in kbit/s."""
    if "active" in device:
        return _hours(zip(device["active"], device["inactive"], strict=False), 0, device["finish_time"])
    return {
        "samples_per_s": 1000 / (3 * float(device["computation"])),
        "rate_bps": 1000 * float(device["communication"]),
    }


def _flash(device: Mapping[str, Any]) -> Columns:
    """up_u and up_sigma are the mean and the deviation of the uplink in kilobytes of 1024 bytes per second."""
    return _log_normal("rate_bps", "rate_spread", 8192 * float(device["up_u"]), 8192 * float(device["up_sigma"]))


def _flhetbench(device: Mapping[str, Any]) -> Columns:
    """Either the seconds in which a phone was ready, or its milliseconds per training step."""
    if "ready_time" in device:
        start, end = device["trace_start"], device["trace_end"]
        return _hours(device["ready_time"], start, end) if device["isSuccess"] else {}
    mean_s, deviation_s = float(device["ResNet Latency"]) / 1000, float(device["ResNet STD"]) / 1000
    name = "".join(letter for letter in str(device["Phone Model"])[:80] if letter.isprintable())
    return {"name": name} | _log_normal("compute_s", "compute_spread", mean_s, deviation_s)


KINDS = {"fedscale": _fedscale, "flash": _flash, "flhetbench": _flhetbench}


def _hours(stays: Iterable[Sequence[float]], start: float, end: float) -> Columns:
    inside = [(max(float(a), start) - start, min(float(b), end) - start) for a, b in stays]
    joined: list[list[float]] = []
    for begins, ends in sorted((a, b) for a, b in inside if a < b):
        if joined and begins <= joined[-1][1]:
            joined[-1][1] = max(joined[-1][1], ends)
        else:
            joined.append([begins, ends])
    texts = [f"{begins:.10g}-{ends:.10g}" for begins, ends in joined]
    return {"available": f"{';'.join(texts)}/{end - start:.10g}"} if texts else {}


def _log_normal(median: str, spread: str, mean: float, deviation: float) -> Columns:
    """Return the median and the spread of the log-normal distribution with this mean and deviation."""
    variance = math.log1p((deviation / mean) ** 2)
    return {median: mean * math.exp(-variance / 2), spread: min(math.sqrt(variance), MAX_SPREAD)}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Convert device files of other projects to a fleet file.")
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("files", type=Path, nargs="+", help="Device files; several are combined device by device.")
    parser.add_argument("--out", type=Path, required=True, help="Folder for fleet.csv.")
    parser.add_argument(
        "--devices", type=int, default=1000, help="Most devices to take, the first ones. (default: 1000)"
    )
    given = parser.parse_args(arguments)
    try:
        if (given.out / "fleet.csv").exists():
            raise InputError(f"--out {given.out} already has a fleet.csv; choose another folder, or delete it.")
        path, count = import_fleet(given.kind, given.files, given.out, given.devices)
    except InputError as error:
        sys.exit(f"{parser.prog}: {error}")
    print(f"{count} devices: {path}    Try: perfeds2 simulate --cell {path}")


if __name__ == "__main__":
    main()
