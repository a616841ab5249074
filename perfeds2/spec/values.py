"""Types of settings' values: names, numbers in ranges, lists. Each accepts text as well as values."""

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import pydantic
from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer

from perfeds2.spec.names import Kind, Named, Value, Values

# ---- kinds of names


def is_data_path(text: str) -> bool:
    """Return whether a task's text is the path of a data file or folder."""
    return text.endswith((".csv", ".npz")) or os.path.isdir(text)


TASK = Kind(
    "task",
    "perfeds2.learning.datasets:TASKS",
    is_called=False,
    file="perfeds2.learning.files.own_file:OwnFile",
    is_path=is_data_path,
    files="FILE.csv, FILE.npz, a folder of npz files",
    page="docs/how-to/data.md converts other data sets",
)
MODEL = Kind("model", "perfeds2.learning.models:MODELS", has_settings=True)
INIT = Kind(
    "file of weights",
    is_called=False,
    file="perfeds2.learning.models.adapter:WeightsFile",
    is_path=lambda text: text.endswith(".safetensors"),
    files="FILE.safetensors",
)
SPLIT = Kind("split", "perfeds2.learning.partition:SPLITS")
LOSS = Kind("loss", "perfeds2.learning.losses:LOSSES")
METRIC = Kind("metric", "perfeds2.learning.losses:MEASURES")
CELL = Kind(
    "cell",
    "perfeds2.network.cell_kinds:CELLS",
    is_called=False,
    file="perfeds2.network.fleet_file:FleetFile",
    is_path=lambda text: text.endswith(".csv"),
    files="FILE.csv",
)
SITES = Kind(
    "network",
    is_called=False,
    file="perfeds2.network.sites:Sites",
    is_path=lambda text: text.endswith(".csv"),
    files="FILE.csv",
)
MOBILITY = Kind(
    "mobility model",
    "perfeds2.network.mobility:MOBILITY",
    file="perfeds2.network.trajectories:Trajectories",
    is_path=lambda text: text.endswith((".csv", ".xml")),
    files="FILE.csv, FILE.xml",
)
RADIO = Kind("radio", "perfeds2.network.radios:RADIOS", is_called=False)
SCHEDULE = Kind("schedule", "perfeds2.allocation.schedule:SCHEDULES")
SHARES = Kind("shares rule", "perfeds2.allocation.shares:SHARES")
POLICY = Kind("bandwidth policy", "perfeds2.allocation.policies:POLICIES")
OBJECTIVE = Kind("objective", "perfeds2.learning.objectives:OBJECTIVES")
METHOD = Kind("method", "perfeds2.learning.methods:LISTED")
ALGORITHM = Kind(
    "algorithm", "perfeds2.spec.methods:ALGORITHMS", is_called=False
)  # objectives in every mode, and methods
MERGE = Kind("merge", "perfeds2.learning.methods:MERGES", is_called=False)
COMPRESSION = Kind("compression", "perfeds2.learning.transforms:COMPRESSIONS")
ATTACK = Kind("attack", "perfeds2.learning.attacks:ATTACKS", is_called=False)


# ---- values


def _within(low: float, high: float, value: float) -> float:
    if not low <= value <= high:
        raise ValueError(f"is out of range; expected from {low:g} to {high:g}")
    return value


def within(low: float, high: float) -> AfterValidator:
    return AfterValidator(partial(_within, low, high))


def read_list(value: Value) -> Value:
    """Parse ``1,2,5`` or ``[1, 2, 5]`` as a list."""
    if not isinstance(value, str):
        return value
    inner = value.strip()
    if inner.startswith("[") and inner.endswith("]"):
        inner = inner[1:-1]
    return [part.strip().strip("'\"") for part in inner.split(",") if part.strip()]


def read_shares(value: Value) -> Value:
    """Read a rule by its name, or one number per UE."""
    if isinstance(value, str) and not ("," in value or value.strip().startswith("[")):
        return SHARES.find(value)
    if isinstance(value, Named) or callable(value):
        return SHARES.find(value)
    return read_list(value)


def read_sites(value: Value) -> Value:
    """Read a number of cells, or a file of base stations."""
    value = read_whole(value)
    if isinstance(value, str) and not value.endswith(".csv"):
        raise ValueError("is neither a number of cells nor a FILE.csv of base stations")
    return SITES.find(value) if isinstance(value, str) else value


def written(value: Value) -> Value:
    """Return a value as a spec file has it: names as text, tuples as lists."""
    if isinstance(value, Mapping):
        return {name: written(inner) for name, inner in value.items()}
    return value.text if isinstance(value, Named) else list(value) if isinstance(value, tuple) else value


WRITTEN = PlainSerializer(written)


def read_seeds(value: Value) -> Value:
    """Parse seeds: ``5`` is 0 to 4, ``3,7`` those two, ``0..9`` a range."""
    if not isinstance(value, str) or value.strip().startswith("["):
        return range(value) if isinstance(value, int) and 0 < value < MOST_SEEDS else read_list(value)
    seeds: list[Value] = []
    parts = read_list(value)
    for part in parts:
        first, dots, last = part.partition("..")
        if dots and first.strip().isdecimal() and last.strip().isdecimal() and int(last) - int(first) < MOST_SEEDS:
            seeds += range(int(first), int(last) + 1)
        elif len(parts) == 1 and part.isdecimal() and int(part) < MOST_SEEDS:
            seeds += range(int(part))
        else:
            seeds.append(part)
    return seeds


def read_whole(value: Value) -> Value:
    """Convert text to a whole number if it is one."""
    return int(value) if isinstance(value, str) and value.strip().isdecimal() else value


def read_adapter(text: str) -> str:
    """Validate an adapter, such as ``lora:8`` or ``head``."""
    from perfeds2.learning.models.adapter import Adapter  # imports JAX

    Adapter.parse(text)
    return text


def _ruled(text: str, rules: Sequence[str], low: float, high: float, usual: str = "") -> bool:
    """Return whether a text is RULE:NUMBER, with a number in a range; ``usual`` is the number of RULE alone."""
    rule, _, number = text.partition(":")
    try:
        return rule in rules and low <= float(number or usual) <= high
    except ValueError:
        return False


def read_fading(value: object) -> str:
    """Validate ``none``, ``rayleigh`` or ``rician:K``."""
    if str(value) in ("none", "rayleigh") or _ruled(str(value), ("rician",), 0, 1e6):
        return str(value)
    raise ValueError("is not known; expected none, rayleigh or rician:K with K from 0, such as rician:6")


def read_errors(value: object) -> str:
    """Validate ``discard``, ``repeat`` or ``harq``, with a margin in dB as in ``harq:3``."""
    if _ruled(str(value), ("discard", "repeat", "harq"), -100, 100, "0"):
        return str(value)
    raise ValueError("is not known; expected discard, repeat or harq, with a margin in dB if you like, as in harq:3")


def read_outage(value: object) -> str:
    """Validate ``wait:RATE`` or ``lose:RATE``."""
    if _ruled(str(value), ("wait", "lose"), 5e-324, 1e18):
        return str(value)
    raise ValueError("is not known; expected wait or lose and a rate in bit/s, such as wait:1e5")


def read_profile(value: object) -> str:
    """Validate shares of the band by second of the day, as a text or as a CSV file with columns time_s and share."""
    from perfeds2.network.profile import Profile

    text = str(value)
    if text.endswith(".csv"):
        try:
            head, *rows = [
                line.replace(" ", "") for line in Path(text).read_text("utf-8-sig").splitlines() if line.strip()
            ]
        except (OSError, ValueError) as error:
            raise ValueError(f"cannot be read ({error})") from None
        if head != "time_s,share":
            raise ValueError(f"has columns {head!r:.80}; expected time_s,share")
        text = ",".join(row.replace(",", ":") for row in rows)
    try:
        Profile.of(text)
    except ValueError as error:
        raise ValueError(
            f"is no profile ({error}); expected FILE.csv, or seconds and shares as in 0:1,28800:0.7"
        ) from None
    return text


MOST_SEEDS = 1_000_000
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
# Wide enough for any radio and any machine, narrow enough that no product of them overflows.
Usual = Annotated[Positive, within(1e-9, 1e9)]
Large = Annotated[Positive, within(1e-9, 1e18)]
Seconds = Annotated[NotNegative, within(0, 1e9)]
Metres = Annotated[NotNegative, within(0, 1e9)]
StepSize = Annotated[NotNegative, within(0, 1e38)]  # range of single precision
Length = Annotated[Positive, within(1e-30, 1e30)]
FadingName = Annotated[str, BeforeValidator(read_fading)]
ErrorsName = Annotated[str, BeforeValidator(read_errors)]
OutageName = Annotated[str, BeforeValidator(read_outage)]
ProfileText = Annotated[str, BeforeValidator(read_profile)]
Bits = Annotated[Literal[32, 16, 8, 4], BeforeValidator(read_whole)]
Decibels = Annotated[float, Field(allow_inf_nan=False), within(-300, 300)]
Count = Annotated[int, Field(ge=1, le=1_000_000_000)]
Steps = Annotated[int, Field(ge=1, le=100_000)]
Population = Annotated[int, Field(ge=1, le=10_000_000)]  # above this the clock alone exhausts a machine's memory
Seed = Annotated[int, Field(ge=0, lt=2**32)]
List = BeforeValidator(read_list)


# ---- settings and their sections


def setting(look: str, help_: str, default: Value = None, *, flag: str = "", shown: str = "") -> Value:
    """Return a field of a spec.

    Args:
        look: Placeholder of the value in the help.
        help_: The help, at most 12 words; the names of its kind and the default are added.
        default: The default, or a function that makes it.
        flag: The flag, if it is not the field's name.
        shown: The default in words, if its value says little.
    """
    known: Values = {"look": look, "flag": flag, "shown": shown}
    factory: Values = {"default_factory": default} if callable(default) else {"default": default}
    return Field(**factory, description=help_, json_schema_extra=known)  # read by settings_of


AnySection = TypeVar("AnySection", bound=pydantic.BaseModel)


class Section(pydantic.BaseModel):
    """Settings that belong together. Its title is their panel in the help."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, validate_default=True, title="")

    def with_(self: AnySection, **changed: Value) -> AnySection:
        """Return a copy with other values, which are not validated."""
        return self.model_copy(update=changed)
