"""Show a running federation: a table that follows status.json, or lines if there is no terminal."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Literal, get_args

from pydantic import BaseModel
from rich.console import Group
from rich.table import Table
from rich.text import Text

from perfeds2.files import FULL, write_text
from perfeds2.report.terminal import redrawn
from perfeds2.timeline.protocol import IDLE

DeviceState = Literal["set aside", "away", "finishing", "arrived", "working", "idle", "spent"]
STATES: tuple[DeviceState, ...] = get_args(DeviceState)
UNUSABLE: tuple[DeviceState, ...] = ("away", "set aside", "spent")  # it cannot be handed a job
STOPPED = "stopped"  # phase of a federation that gave up; its warning says why
PAUSED = "paused"  # phase of a federation whose disk is full
SHOWN = 28  # devices in the table; if there are more, some of each state
NAMED = 12  # devices named per round
COLOURS: dict[str, str] = {
    "working": "cyan",
    "arrived": "green",
    "finishing": "yellow",
    "idle": "white",
    "away": "red",
    "spent": "yellow",
    "set aside": "bold red",
}


class DeviceStatus(BaseModel, from_attributes=True):
    """A row of the table of devices."""

    ue: int
    state: DeviceState
    version: int  # of the model it works from; IDLE if it has none
    seen_s: float | None
    merges: int
    refused: int
    accuracy: float | None = None  # personal accuracy of the newest model it evaluated
    epsilon: float | None = None  # its privacy loss so far; None without noise


class ClosedRound(BaseModel):
    """A row of the table of recent rounds."""

    round: int
    time_s: float
    took_s: float
    ues: list[int]
    accuracy: float | None = None  # mean of the latest personal accuracies by then

    @property
    def devices(self) -> str:
        first = ", ".join(map(str, self.ues[:NAMED]))
        return first if len(self.ues) <= NAMED else f"{first} and {len(self.ues) - NAMED} more"


class Status(BaseModel):
    """The state of a federation. Its size is bounded for any number of devices."""

    process: int  # process ID of the server
    phase: str
    round: int
    rounds: int
    time_s: float
    quorum: int
    ues: int  # number of devices
    states: dict[DeviceState, int]  # number of devices in each state
    devices: list[DeviceStatus]  # all; if more than SHOWN, those longest in their state
    recent: list[ClosedRound]
    jobs: int = 0  # handed out since this server started
    refused: int = 0  # replies of all devices that failed validation
    reasons: dict[str, int] = {}  # refused since this server started, by reason
    accuracy: float | None = None  # mean of the latest personal accuracies
    epsilon_worst: float | None = None  # largest privacy loss of a device so far; None without noise
    epsilon_median: float | None = None
    broker: str | None = None  # why the broker cannot be used
    broker_failures: int = 0  # since this server started
    fall: float = 0.0  # of the personal accuracy, below its best
    warning: str | None = None  # what an operator should look at
    troubles: list[str] = []  # why some or all devices cannot take part

    @property
    def line(self) -> str:
        """Return phase, round and, with noise, the privacy loss of devices."""
        said = f"{self.phase}, round {self.round} of {self.rounds}"
        if self.epsilon_worst is None:
            return said
        return f"{said}, ε {self.epsilon_worst:.3g} (worst device), {self.epsilon_median:.3g} (median)"

    def write(self, folder: Path) -> None:
        path, text = folder / "status.json", self.model_dump_json()
        try:
            write_text(path, text)
        except OSError as error:
            if error.errno not in FULL:
                raise
            with suppress(OSError), path.open("r+", encoding="utf-8") as file:  # within its block there is room
                file.write(text)
                file.truncate()


def read_status(folder: Path) -> Status | None:
    try:
        return Status.model_validate_json((folder / "status.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):  # not written yet, or by an older version
        return None


ShowStatus = Callable[[Status], None]


def live_table(quiet: bool) -> AbstractContextManager[ShowStatus | None]:
    """Return a context that yields a function to call with every new status; None if nothing is shown."""
    return redrawn(quiet, draw, NewLines(), stays=True)


def draw(status: Status) -> Group:
    """Draw the number of devices in each state, the devices, and the recent rounds."""
    head = Text(f"{status.line}, {status.time_s:.0f} s")
    if status.accuracy is not None:
        head.append(f", personal accuracy {status.accuracy:.1%}")
    counts = Text(f"{status.ues} devices:")
    for state, count in status.states.items():
        if count:
            counts.append(f" {count} {state}", COLOURS[state])
    warning = [] if status.warning is None else [Text(f"warning: {status.warning}", "bold red")]
    warning += [Text(trouble, "red") for trouble in status.troubles]
    names = ("device", "state", "version", "staleness", "last seen", "merges", "refused", "accuracy")
    devices = Table(*names, *([] if status.epsilon_worst is None else ["ε"]), box=None)
    for line in status.devices:
        seen = "never" if line.seen_s is None else f"{max(status.time_s - line.seen_s, 0.0):.0f} s ago"
        version, staleness = (line.version, status.round - line.version) if line.version != IDLE else ("–", "–")
        state = Text(line.state, COLOURS[line.state])
        numbers = (str(version), str(staleness), seen, str(line.merges), str(line.refused), _share(line.accuracy))
        loss = [] if line.epsilon is None else [f"{line.epsilon:.3g}"]
        devices.add_row(str(line.ue), state, *numbers, *loss)
    rounds = Table("round", "closed at", "took", "accuracy", "devices", box=None)
    for closed in status.recent[::-1]:
        times = (f"{closed.time_s:.1f} s", f"{closed.took_s:.1f} s")
        rounds.add_row(str(closed.round), *times, _share(closed.accuracy), closed.devices)
    return Group(head, counts, *warning, devices, Text(), rounds)


def _share(accuracy: float | None) -> str:
    return "–" if accuracy is None else f"{accuracy:.1%}"


class NewLines:
    """Turns each status into lines about what has happened since the previous one."""

    def __init__(self) -> None:
        self._round, self._phase, self._warned = -1, "", False
        self._troubles = set[str]()

    def __call__(self, status: Status) -> Iterator[str]:
        for closed in status.recent:
            if closed.round > self._round:
                self._round = closed.round
                accuracy = "" if closed.accuracy is None else f", personal accuracy {closed.accuracy:.1%}"
                yield f"round {closed.round} closed at {closed.time_s:.1f} s (took {closed.took_s:.1f} s{accuracy}): devices {closed.devices}"
        if status.warning is not None and not self._warned:
            yield f"warning: {status.warning}"
        self._warned = status.warning is not None
        yield from (trouble for trouble in status.troubles if trouble not in self._troubles)
        self._troubles = set(status.troubles)
        if status.phase != self._phase:
            self._phase = status.phase
            yield status.phase
