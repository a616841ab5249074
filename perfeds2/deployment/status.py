"""What does an operator see while a federation runs? A table that follows status.json, or lines where there is no terminal."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Literal

from pydantic import BaseModel
from rich.console import Group
from rich.table import Table
from rich.text import Text

from perfeds2.files import write_text
from perfeds2.report.terminal import live

DeviceState = Literal["working", "arrived", "finishing", "idle", "away", "set aside"]
COLOURS: dict[str, str] = {
    "working": "cyan",
    "arrived": "green",
    "finishing": "yellow",
    "idle": "white",
    "away": "red",
    "set aside": "bold red",
}


class DeviceStatus(BaseModel):
    """One line of the table."""

    ue: int
    state: DeviceState
    version: int | None
    staleness: int | None
    seen_s: float | None
    merges: int
    refused: int


class ClosedRound(BaseModel):
    """One of the last rounds."""

    round: int
    time_s: float
    took_s: float
    ues: list[int]

    @property
    def devices(self) -> str:
        return ", ".join(map(str, self.ues))


class Status(BaseModel):
    """Where a federation stands."""

    process: int  # the one that has the model
    phase: str
    round: int
    rounds: int
    time_s: float
    devices: list[DeviceStatus]
    recent: list[ClosedRound]

    def write(self, folder: Path) -> None:
        write_text(folder / "status.json", self.model_dump_json())


def read_status(folder: Path) -> Status | None:
    try:
        return Status.model_validate_json((folder / "status.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None


ShowStatus = Callable[[Status], None]


def live_table(quiet: bool) -> AbstractContextManager[ShowStatus | None]:
    """A function that is given every new status; None where nobody looks."""
    return live(quiet, lambda status, _: draw(status), NewLines(), stays=True)


def draw(status: Status) -> Group:
    """Devices above, the last rounds below."""
    head = Text(f"{status.phase}: round {status.round} of {status.rounds}, {status.time_s:.0f} s")
    devices = Table("device", "state", "version", "staleness", "last seen", "merges", "refused", box=None)
    for line in status.devices:
        seen = "never" if line.seen_s is None else f"{max(status.time_s - line.seen_s, 0.0):.0f} s ago"
        version, staleness = ("–" if value is None else str(value) for value in (line.version, line.staleness))
        state = Text(line.state, COLOURS[line.state])
        devices.add_row(str(line.ue), state, version, staleness, seen, str(line.merges), str(line.refused))
    rounds = Table("round", "closed at", "took", "devices", box=None)
    for closed in status.recent[::-1]:
        rounds.add_row(str(closed.round), f"{closed.time_s:.1f} s", f"{closed.took_s:.1f} s", closed.devices)
    return Group(head, devices, Text(), rounds)


class NewLines:
    """What has happened since, a line each."""

    def __init__(self) -> None:
        self._round, self._phase = -1, ""

    def __call__(self, status: Status) -> Iterator[str]:
        for closed in status.recent:
            if closed.round > self._round:
                self._round = closed.round
                yield f"round {closed.round} closed at {closed.time_s:.1f} s (took {closed.took_s:.1f} s): devices {closed.devices}"
        if status.phase != self._phase:
            self._phase = status.phase
            yield status.phase
