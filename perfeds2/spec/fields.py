"""What exactly is to be run? One validated object, the same from flags, from a TOML file and back."""

import difflib
import tomllib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pydantic
import tomli_w
from pydantic import AfterValidator, Field

if TYPE_CHECKING:
    from perfeds2.timeline.rounds import Protocol

OBJECTIVES = ("FedAvg", "FedProx", "PerFed")
MODES = ("SYN", "S2", "ASY")
TASKS = ("digits", "synthetic", "mnist", "cifar100", "shakespeare")
SCHEDULES = ("first", "deficit", "printed", "printed_fixed")
SHARES = ("equal", "distance")
POLICIES = ("equal_share", "equal_finish", "weighted_rate", "max_throughput", "proportional_fair", "between:THETA")

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


def within(low: float, high: float) -> AfterValidator:
    return AfterValidator(partial(_within, low, high))


def _within(low: float, high: float, value: float) -> float:
    if not low <= value <= high:
        raise ValueError(f"is out of range; expected from {low:g} to {high:g}")
    return value


# Wide enough for any radio and any machine, narrow enough that no product of them leaves the range of a number.
Usual = Annotated[Positive, within(1e-9, 1e9)]
Large = Annotated[Positive, within(1e-9, 1e18)]
Seconds = Annotated[NotNegative, within(0, 1e9)]
Metres = Annotated[NotNegative, within(0, 1e9)]
StepSize = Annotated[NotNegative, within(0, 1e38)]  # of single precision
Count = Annotated[int, Field(ge=1, le=1_000_000_000)]
Population = Annotated[int, Field(ge=1, le=10_000_000)]  # beyond, the clock alone takes all of a machine's memory


def algorithm_name(objective: str, mode: str) -> str:
    """As users of the paper know it: PerFedS2, PerFed-SYN, PerFed-ASY."""
    return f"{objective}S2" if mode == "S2" else f"{objective}-{mode}"


ALGORITHMS = {algorithm_name(objective, mode): (objective, mode) for mode in MODES for objective in OBJECTIVES}


class InputError(ValueError):
    """Something the user gave cannot be used; the message is one sentence that says what to do."""


def one_of(names: tuple[str, ...]) -> AfterValidator:
    return AfterValidator(partial(_known, names))


def _known(names: tuple[str, ...], value: str) -> str:
    if value not in names:
        near = difflib.get_close_matches(value, names, 1, cutoff=0.4)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ValueError(f"is not known; {hint}expected one of {', '.join(names)}")
    return value


def _policy(value: str) -> str:
    """A policy's name; ``between:0.3`` carries its number."""
    name, colon, number = value.partition(":")
    if name == "between":
        try:
            if colon and 0 <= float(number) <= 1:
                return value
        except ValueError:
            pass
        raise ValueError("needs a number from 0 to 1, as in between:0.5")
    return _known(POLICIES, value)


class Section(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)


class TaskSpec(Section):
    """What is learned."""

    name: Annotated[str, one_of(TASKS)] = "digits"
    labels_per_ue: Count = 3
    data_dir: str | None = None


class CellSpec(Section):
    """The cell: Table I of the paper where it says something."""

    ues: Population = 20
    layout: Literal["disc", "uniform", "equal"] = "disc"
    radius_m: Usual = 200.0
    distance_m: tuple[Metres, ...] | None = None  # given distances stand in for the layout
    bandwidth_hz: Large = 1e6
    power_w: Usual = 0.01
    path_loss_exponent: Annotated[Positive, within(0, 10)] = 3.8
    noise_dbm_per_hz: Annotated[float, Field(allow_inf_nan=False), within(-300, 300)] = -174.0
    fading_scale: Usual = 40.0
    cpu_hz: tuple[Large, Large] = (2e8, 2e9)  # log-uniform between the two
    cycles_per_sample: Large | None = None  # None: 100 a parameter
    payload_bits: Large | None = None  # None: 32 a parameter
    downlink_s: Seconds = 0.0


class ProtocolSpec(Section):
    """The semi-synchronous rounds. SYN and ASY follow from them: A = n, and A = 1 without a bound."""

    quorum: Count | None = None  # None: a quarter of the UEs
    max_staleness: Annotated[int, Field(ge=0, le=1_000_000_000)] | Literal["unbounded"] = 5
    stale: Literal["restart", "wait", "ignore"] = "restart"
    schedule: Annotated[str, one_of(SCHEDULES)] = "first"
    shares: Annotated[str, one_of(SHARES)] | tuple[NotNegative, ...] = "equal"  # or one number per UE
    bandwidth: Annotated[str, AfterValidator(_policy)] = "equal_share"


class LearningSpec(Section):
    """How a UE computes and the server merges."""

    alpha: StepSize = 0.03
    beta: Annotated[Positive, within(0, 1e38)] = 0.07
    batch: Annotated[int, Field(ge=1, le=1_000_000)] = 40
    local_steps: Annotated[int, Field(ge=1, le=100_000)] = 1
    proximal: StepSize = 0.1
    hessian: Literal["exact", "fo", "hf"] = "exact"


class RunSpec(Section):
    """What is run, how long, how often."""

    algorithms: Annotated[tuple[Annotated[str, one_of(tuple(ALGORITHMS))], ...], Field(min_length=1)] = tuple(
        ALGORITHMS
    )
    seeds: Annotated[tuple[Annotated[int, Field(ge=0, lt=2**32)], ...], Field(min_length=1)] = (0, 1, 2, 3, 4)
    horizon_s: Positive | None = None
    rounds: Count | None = None
    eval_every_s: Positive | None = None
    target_accuracy: Annotated[float, Field(gt=0, le=1)] = 0.9
    stop_when_diverged: bool | None = None  # None: train on, though nothing comes of it


class Spec(Section):
    """Everything that decides a run's numbers."""

    task: TaskSpec = TaskSpec()
    cell: CellSpec = CellSpec()
    protocol: ProtocolSpec = ProtocolSpec()
    learning: LearningSpec = LearningSpec()
    run: RunSpec = RunSpec()

    def protocol_of(self, mode: str) -> "Protocol":
        """The rounds of one mode on this cell."""
        from perfeds2.timeline.rounds import Protocol

        if mode == "SYN":
            return Protocol(self.cell.ues)
        if mode == "ASY":
            return Protocol(1)
        assert self.protocol.quorum is not None
        bound = None if self.protocol.max_staleness == "unbounded" else self.protocol.max_staleness
        return Protocol(self.protocol.quorum, bound, self.protocol.stale)

    def to_toml(self) -> str:
        return tomli_w.dumps(self.model_dump(mode="json", exclude_none=True))


# What a task has for defaults where it differs from the digits: Table I's step sizes, the paper's number of UEs, and how
# long in simulated seconds, and to which accuracy, is worth looking.
TASK_DEFAULTS: dict[str, dict[str, dict[str, Any]]] = {
    "synthetic": {"run": {"target_accuracy": 0.7}},
    "mnist": {"run": {"horizon_s": 600.0}},
    "cifar100": {
        "task": {"labels_per_ue": 5},
        "learning": {"alpha": 0.02, "beta": 0.06},
        "run": {"horizon_s": 2000.0, "target_accuracy": 0.5},
    },
    "shakespeare": {"cell": {"ues": 188}, "run": {"horizon_s": 2000.0, "target_accuracy": 0.3}},
}
HORIZON_S = 30.0
MOST_EVALUATIONS = 1_000_000


def with_task_defaults(values: dict[str, Any]) -> dict[str, Any]:
    """The values, over the defaults of the task they name."""
    task = values.get("task")
    name = task.get("name") if isinstance(task, dict) else None
    defaults = TASK_DEFAULTS.get(name, {}) if isinstance(name, str) else {}
    filled = dict(values)
    for section, own in defaults.items():
        given = values.get(section, {})
        if isinstance(given, dict):
            limited = section == "run" and given.get("rounds") is not None
            filled[section] = {k: v for k, v in own.items() if not (limited and k == "horizon_s")} | given
    return filled


def resolve(values: dict[str, Any]) -> Spec:
    """Validate nested values and fill in what follows from them. Errors are one sentence naming the flag."""
    try:
        spec = Spec.model_validate(with_task_defaults(values))
    except pydantic.ValidationError as error:
        raise InputError(_sentence(error.errors()[0])) from None
    ues, protocol, run, cell = spec.cell.ues, spec.protocol, spec.run, spec.cell
    if cell.distance_m is not None and len(cell.distance_m) != ues:
        raise InputError(
            f"--set cell.distance_m has {len(cell.distance_m)} distances, but there are {ues} UEs (--ues)."
        )
    quorum = max(1, round(ues / 4)) if protocol.quorum is None else protocol.quorum
    if quorum > ues:
        raise InputError(f"--quorum must be from 1 to the number of UEs, {ues} (--ues), got {quorum}.")
    if not isinstance(protocol.shares, str) and len(protocol.shares) != ues:
        raise InputError(f"--shares has {len(protocol.shares)} numbers, but there are {ues} UEs (--ues).")
    if run.rounds is not None and run.horizon_s is not None:
        raise InputError(f"--horizon-s {run.horizon_s:g} and --rounds {run.rounds} were both given; give one of them.")
    horizon_s = HORIZON_S if run.rounds is None and run.horizon_s is None else run.horizon_s
    if horizon_s is not None and run.eval_every_s is not None and horizon_s / run.eval_every_s > MOST_EVALUATIONS:
        raise InputError(
            f"--eval-every-s {run.eval_every_s:g} over {horizon_s:g} s (--horizon-s) is more than {MOST_EVALUATIONS} "
            f"evaluations; evaluate less often."
        )
    if horizon_s is not None and run.eval_every_s is None:
        run = run.model_copy(update={"eval_every_s": horizon_s / 60})
    return spec.model_copy(
        update={
            "protocol": protocol.model_copy(update={"quorum": quorum}),
            "run": run.model_copy(update={"horizon_s": horizon_s, "seeds": tuple(dict.fromkeys(run.seeds))}),
        }
    )


def read_toml(path: Path) -> dict[str, Any]:
    """The nested values of a spec file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"--spec {path} does not exist.") from None
    except IsADirectoryError:
        raise InputError(f"--spec {path} is a folder; expected a TOML file such as {path / 'spec.toml'}.") from None
    except (ValueError, OSError, RecursionError) as error:  # TOML's and Unicode's errors are ValueErrors
        raise InputError(f"--spec {path} is not readable TOML: {' '.join(str(error).split())[:200]}.") from None


def put(values: dict[str, Any], section: str, key: str, value: Any) -> None:
    """Set one value in nested values."""
    inner = values.setdefault(section, {})
    if not isinstance(inner, dict):
        raise InputError(f"{section} must be a section, [{section}], got {inner!r}.")
    inner[key] = value


def put_text(values: dict[str, Any], assignment: str) -> None:
    """Set one value from ``section.key=value``, the value in TOML (a bare word is text)."""
    path, equals, text = assignment.partition("=")
    section, dot, key = path.strip().partition(".")
    if not (equals and dot and section and key):
        raise InputError(f"--set takes section.key=value, got {assignment!r}.")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (ValueError, KeyError, RecursionError):
        value = text.strip()
    put(values, section, key, value)


def flag_of(location: tuple[str | int, ...]) -> str:
    """How a user names a value on the command line."""
    path = [
        str(part)
        for part in location
        if not isinstance(part, int) and "[" not in str(part) and part not in ("int", "literal")
    ]
    section, key = path[0], path[1] if len(path) > 1 else ""
    if (section, key) in OWN_FLAGS:
        return OWN_FLAGS[section, key]
    return f"--set {section}.{key}" if key else f"section [{section}]"


OWN_FLAGS = {
    ("task", "name"): "--task",
    ("task", "labels_per_ue"): "--labels-per-ue",
    ("task", "data_dir"): "--data-dir",
    ("cell", "ues"): "--ues",
    ("cell", "bandwidth_hz"): "--bandwidth-hz",
    ("protocol", "quorum"): "--quorum",
    ("protocol", "max_staleness"): "--max-staleness",
    ("protocol", "stale"): "--stale",
    ("protocol", "schedule"): "--schedule",
    ("protocol", "shares"): "--shares",
    ("protocol", "bandwidth"): "--bandwidth",
    ("learning", "alpha"): "--alpha",
    ("learning", "beta"): "--beta",
    ("learning", "batch"): "--batch",
    ("learning", "local_steps"): "--local-steps",
    ("run", "algorithms"): "--algorithms",
    ("run", "seeds"): "--seeds",
    ("run", "horizon_s"): "--horizon-s",
    ("run", "rounds"): "--rounds",
    ("run", "eval_every_s"): "--eval-every-s",
    ("run", "target_accuracy"): "--target-accuracy",
    ("run", "stop_when_diverged"): "--stop-when-diverged",
}


def _sentence(error: Any) -> str:
    """pydantic's first complaint as one sentence: the flag, what came, what was expected."""
    flag, came = flag_of(error["loc"]), error.get("input")
    match error["type"]:
        case "extra_forbidden":
            section, *rest = error["loc"]
            fields = Spec.model_fields if not rest else Spec.model_fields[str(section)].annotation.model_fields  # type: ignore[union-attr]  # sections are models
            name = str(rest[0] if rest else section)
            near = difflib.get_close_matches(name, list(fields), 1, cutoff=0.4)
            hint = f"; did you mean {near[0]}?" if near else f"; expected one of {', '.join(fields)}."
            path = ".".join(part if part.isprintable() else repr(part) for part in map(str, error["loc"]))
            return f"{path} is not a setting{hint}"
        case "value_error":
            return f"{flag} {came!r} {error['ctx']['error']}."
        case "too_short":
            return f"{flag} is empty; give at least one."
        case "finite_number" | "float_parsing" | "float_type":
            return f"{flag} must be a finite number, got {came!r}."
        case "int_parsing" | "int_type" | "int_from_float":
            return f"{flag} must be a whole number, got {came!r}."
        case _:
            expected = error["msg"].removeprefix("Input should be ").replace("greater than or equal to", "at least")
            return f"{flag} must be {expected}, got {came!r}."
