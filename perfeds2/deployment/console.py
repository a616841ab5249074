"""What does an operator see while a federation runs? A table that follows status.json, or lines where there is no terminal."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

COLOURS = {
    "working": "cyan",
    "arrived": "green",
    "finishing": "yellow",
    "idle": "white",
    "away": "red",
    "set aside": "bold red",
}


@contextmanager
def live(quiet: bool) -> Iterator[Callable[[dict[str, Any]], None] | None]:
    """A function that is given every new status."""
    console = Console(stderr=True)
    if quiet:
        yield None
    elif console.is_terminal:
        with Live(console=console, refresh_per_second=4, transient=False) as display:
            yield lambda status: display.update(draw(status))
    else:
        told: list[Any] = [None]

        def tell(status: dict[str, Any]) -> None:
            for line in new_lines(told[0], status):
                console.print(line, soft_wrap=True, highlight=False)
            told[0] = status

        yield tell


def draw(status: dict[str, Any]) -> Group:
    """Devices above, the last rounds below."""
    head = Text(f"{status['phase']}: round {status['round']} of {status['rounds']}, {status['time_s']:.0f} s")
    devices = Table("device", "state", "version", "staleness", "last seen", "merges", "refused", box=None)
    for line in status["devices"]:
        seen = "never" if line["seen_s"] is None else f"{max(status['time_s'] - line['seen_s'], 0.0):.0f} s ago"
        devices.add_row(
            str(line["ue"]),
            Text(line["state"], COLOURS.get(line["state"], "white")),
            _or_dash(line["version"]),
            _or_dash(line["staleness"]),
            seen,
            str(line["merges"]),
            str(line["refused"]),
        )
    rounds = Table("round", "closed at", "took", "devices", box=None)
    for row in status["recent"][::-1]:
        rounds.add_row(
            str(row["round"]), f"{row['time_s']:.1f} s", f"{row['took_s']:.1f} s", ", ".join(map(str, row["ues"]))
        )
    return Group(head, devices, Text(), rounds)


def new_lines(before: dict[str, Any] | None, status: dict[str, Any]) -> list[str]:
    """What has happened since, a line each."""
    known = -1 if before is None or not before["recent"] else before["recent"][-1]["round"]
    lines = [
        f"round {row['round']} closed at {row['time_s']:.1f} s (took {row['took_s']:.1f} s): devices {', '.join(map(str, row['ues']))}"
        for row in status["recent"]
        if row["round"] > known
    ]
    if before is None or before["phase"] != status["phase"]:
        lines.append(status["phase"])
    return lines


def _or_dash(value: int | None) -> str:
    return "–" if value is None else str(value)
