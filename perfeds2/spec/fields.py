"""What exactly is to be run? Every setting, once: its type, range, unit, default, help and flag.

Flags of the command line, keys of a TOML spec, ``--set``, grids of a sweep, keywords in Python and the configuration of a
federation all come from the fields below.
"""

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import pydantic
import tomli_w
from pydantic import BeforeValidator, Field, PlainSerializer

from perfeds2.errors import InputError, did_you_mean
from perfeds2.spec.names import Kind, Named
from perfeds2.spec.values import (
    ALGORITHM,
    CELL,
    MODEL,
    POLICY,
    SCHEDULE,
    SHARES,
    TASK,
    AlgorithmName,
    CellName,
    Count,
    HessianName,
    Large,
    Length,
    List,
    Metres,
    ModelName,
    NotNegative,
    PolicyName,
    Population,
    Positive,
    ScheduleName,
    Seconds,
    Seed,
    SharesName,
    StepSize,
    TaskName,
    Usual,
    read_seeds,
    read_shares,
    within,
    write_shares,
)

MODES = ("SYN", "S2", "ASY")


# ---- the settings


def setting(default: Any, look: str, help_: str, *, flag: str = "", shown: str = "", kind: Kind | None = None) -> Any:
    """A field. ``look`` is how its value looks in the help; ``shown`` its default in words, where the value says little.

    The flag is the field's name unless another is given. ``{names}`` in the help stands for what the kind lists.
    """
    known = {"look": look, "flag": flag, "shown": shown, "kind": kind}
    factory = {"default_factory": default} if callable(default) else {"default": default}
    return Field(**factory, description=help_, json_schema_extra=known)  # type: ignore[arg-type]  # ours to read


class Section(pydantic.BaseModel):
    """Settings that belong together. Its title is their panel in the help."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, validate_default=True, title="")


class TaskSpec(Section, title="Task"):
    """What is learned."""

    name: TaskName = setting("digits", "NAME", "What is learned: {names} (real data sets: see perfeds2 data), or your own.", flag="task", kind=TASK)  # fmt: skip
    model: ModelName | None = setting(None, "NAME", "What is trained: {names}, or your own.", shown="the task's own", kind=MODEL)  # fmt: skip
    labels_per_ue: Count = setting(3, "N", "How many of the labels each UE has: fewer is more different.")
    data_dir: str | None = setting(None, "DIR", "Where real data sets are.", shown="$PERFEDS2_DATA, then the user's cache")  # fmt: skip
    held_out: bool | None = setting(None, "", "Evaluate on a part held out of the UEs' training data, as tune does; the test part is not touched.")  # fmt: skip


class CellSpec(Section, title="Cell"):
    """The cell: Table I of the paper where it says something."""

    kind: CellName | None = setting(None, "NAME", "What the cell is: {names}, or your own.", flag="cell", shown="paper", kind=CELL)  # fmt: skip
    ues: Population = setting(20, "N", "How many UEs are in the cell.")
    layout: Literal["disc", "uniform", "equal"] = setting("disc", "RULE", "Where UEs are: over the disc, uniform in distance, or all equally far.")  # fmt: skip
    radius_m: Usual = setting(200.0, "M", "Radius of the cell.")
    distance_m: Annotated[tuple[Metres, ...], List] | None = setting(None, "M,M", "A distance per UE, instead of a layout.")  # fmt: skip
    bandwidth_hz: Large = setting(1e6, "HZ", "The uplink band all UEs share.")
    power_w: Usual = setting(0.01, "W", "What a UE sends with.")
    path_loss_exponent: Annotated[Positive, within(0, 10)] = setting(3.8, "KAPPA", "The gain falls with distance to this power.")  # fmt: skip
    noise_dbm_per_hz: Annotated[float, Field(allow_inf_nan=False), within(-300, 300)] = setting(-174.0, "DBM", "Noise density.")  # fmt: skip
    fading_scale: Usual = setting(40.0, "SCALE", "Rayleigh scale of the fading coefficient.")
    cpu_hz: Annotated[tuple[Large, Large], List] = setting((2e8, 2e9), "HZ,HZ", "Slowest and fastest processor; log-uniform between them.")  # fmt: skip
    cycles_per_sample: Large | None = setting(None, "N", "Processor cycles for one sample.", shown="100 a parameter")
    payload_bits: Large | None = setting(None, "BITS", "What one upload takes.", shown="32 a parameter")
    downlink_s: Seconds = setting(0.0, "SECONDS", "Until a UE has a new model.")


class ProtocolSpec(Section, title="Rounds"):
    """The semi-synchronous rounds. SYN and ASY follow from them: A = n, and A = 1 without a bound."""

    quorum: Count | None = setting(None, "A", "A round of the S2 algorithms closes on so many updates.", shown="a quarter of the UEs")  # fmt: skip
    max_staleness: Annotated[int, Field(ge=0, le=1_000_000_000)] | Literal["unbounded"] = setting(5, "S", "No merged update is older than so many rounds; or 'unbounded'.")  # fmt: skip
    stale: Literal["restart", "wait", "ignore"] = setting("restart", "RULE", "A UE that would exceed the bound: restart it, wait for it, or ignore its update.")  # fmt: skip
    schedule: ScheduleName = setting("first", "RULE", "What closes an S2 round: the first A arrivals (first), or those who are planned: {names}, or your own.", kind=SCHEDULE)  # fmt: skip
    shares: Annotated[tuple[NotNegative, ...] | SharesName, BeforeValidator(read_shares), PlainSerializer(write_shares)] = setting("equal", "RULE", "Participation targets of a schedule: {names}, your own, or one number per UE, comma-separated.", kind=SHARES)  # fmt: skip
    bandwidth: PolicyName = setting("equal_share", "POLICY", "How the band is shared: {names}, or your own.", kind=POLICY)  # fmt: skip


class LearningSpec(Section, title="Learning"):
    """How a UE computes and the server merges."""

    alpha: StepSize | Literal["auto"] = setting(0.03, "STEP", "Step size of the personal gradient step; 'auto': the task's, or 1/L where that is shorter.")  # fmt: skip
    beta: Annotated[Positive, within(0, 1e38)] = setting(0.07, "STEP", "Step size of the server.")
    batch: Annotated[int, Field(ge=1, le=1_000_000)] = setting(40, "N", "Samples a batch; PerFed draws three batches a step.")  # fmt: skip
    local_steps: Annotated[int, Field(ge=1, le=100_000)] = setting(1, "N", "Gradient steps of one job.")
    proximal: StepSize = setting(0.1, "MU", "How strongly FedProx is held near its start.")
    hessian: HessianName = setting("exact", "HOW", "PerFed's Hessian term: exact, left out (fo), by differences of gradients (hf), or left out in the first K rounds (anneal:K).")  # fmt: skip
    hessian_batch: Literal["own", "inner"] | None = setting(None, "WHICH", "PerFed's Hessian is on a batch of its own, or on the inner one.", shown="own")  # fmt: skip
    clip: Length | None = setting(None, "NORM", "The largest norm of an upload: a longer one is shortened.")
    inner_clip: Length | None = setting(None, "NORM", "The largest norm of PerFed's inner gradient, differentiated through.")  # fmt: skip
    moreau: Length | None = setting(None, "LAMBDA", "How strongly Moreau's personal model is held near the global one.", shown="15")  # fmt: skip


class RunSpec(Section, title="Run"):
    """What is run, how long, how often."""

    algorithms: Annotated[tuple[AlgorithmName, ...], List, Field(min_length=1)] | None = setting(None, "NAMES", "Comma-separated: {names}, or your own.", shown="PerFed and FedAvg in all three modes, and FedProx with more than one local step", kind=ALGORITHM)  # fmt: skip
    seeds: Annotated[tuple[Seed, ...], BeforeValidator(read_seeds), Field(min_length=1)] = setting((0, 1, 2, 3, 4), "SEEDS", "How many (5 is 0..4), or which: 0,3,7 or 0..9.", shown="5")  # fmt: skip
    horizon_s: Positive | None = setting(None, "SECONDS", "Simulated time everybody gets.", shown="30")
    rounds: Count | None = setting(None, "K", "So many rounds, instead of a horizon.")
    eval_every_s: Positive | None = setting(None, "SECONDS", "Evaluate after so many simulated seconds.", shown="horizon / 60")  # fmt: skip
    target_accuracy: Annotated[float, Field(gt=0, le=1)] = setting(0.9, "SHARE", "Time-to-target looks for this personalised accuracy.")  # fmt: skip
    stop_when_diverged: bool | None = setting(None, "", "Train no further with a seed whose loss is no number any more.")  # fmt: skip


class Spec(Section):
    """Everything that decides a run's numbers."""

    task: TaskSpec = Field(default_factory=TaskSpec)
    cell: CellSpec = Field(default_factory=CellSpec)
    protocol: ProtocolSpec = Field(default_factory=ProtocolSpec)
    learning: LearningSpec = Field(default_factory=LearningSpec)
    run: RunSpec = Field(default_factory=RunSpec)
    each: dict[str, dict[str, Any]] = Field(default_factory=dict)  # learning settings that one algorithm has otherwise
    own: dict[str, str] = Field(default_factory=dict)  # sha256 of every file that something of the user's is in

    @property
    def algorithms(self) -> tuple[Named, ...]:
        """Those that are run."""
        assert self.run.algorithms is not None  # ``resolve`` says which, where nobody did
        return self.run.algorithms

    @property
    def given(self) -> list[Named]:
        """What is the user's own."""
        shares = self.protocol.shares if isinstance(self.protocol.shares, Named) else None
        every = (
            self.task.name,
            self.task.model,
            self.cell.kind,
            self.protocol.schedule,
            shares,
            self.protocol.bandwidth,
        )
        return [one for one in (*every, *(self.run.algorithms or ())) if one is not None and one.source]

    @property
    def unwritten(self) -> list[str]:
        """What was given from Python and cannot be written down."""
        return [one.text for one in self.given if not one.is_written]

    def learning_of(self, algorithm: str) -> LearningSpec:
        """How an algorithm learns: the general settings, and its own over them."""
        own = self.each.get(algorithm)
        return self.learning if own is None else self.learning.model_copy(update=own)

    def values(self) -> dict[str, Any]:
        """Nested values, as a TOML file has them."""
        dumped = self.model_dump(mode="json", exclude_none=True)
        return {section: inner for section, inner in dumped.items() if inner or section not in ("each", "own")}

    def to_toml(self) -> str:
        return tomli_w.dumps(self.values())


def sections_of(model: type[Section]) -> dict[str, type[Section]]:
    """The sections a model is made of, by their names."""
    fields: dict[str, Any] = {name: field.annotation for name, field in model.model_fields.items()}
    return {name: kind for name, kind in fields.items() if isinstance(kind, type) and issubclass(kind, Section)}


SECTIONS = sections_of(Spec)


# ---- the doors


@dataclass(frozen=True)
class Setting:
    """A field as its users see it."""

    section: str
    key: str
    name: str  # without dashes before it, as the flag has it: labels-per-ue
    panel: str
    look: str  # empty for a switch
    description: str
    default: str
    kind: Kind | None

    @property
    def flag(self) -> str:
        return f"--{self.name}"

    @property
    def keyword(self) -> str:
        return self.name.replace("-", "_")

    def help(self, own_default: str | None = None) -> str:
        """What it is for, with the names there are and the default; a command and tasks may have their own."""
        text = self.description
        if self.kind is not None:
            text = text.replace("{names}", ", ".join(self.kind.table()))
        of_tasks = {name: getattr(task, "defaults", {}).get(self.section, {}) for name, task in TASK.table().items()}
        others = ", ".join(f"{name}: {own[self.key]}" for name, own in of_tasks.items() if self.key in own)
        default = own_default or (f"{self.default}; {others}" if others else self.default)
        return f"{text} (default: {default})" if default else text


def settings_of(sections: Mapping[str, type[Section]]) -> Iterator[Setting]:
    for section, model in sections.items():
        for key, info in model.model_fields.items():
            extra: Any = info.json_schema_extra
            default = info.default
            plain = ",".join(f"{v:g}" for v in default) if isinstance(default, tuple) else default
            shown = extra["shown"] or ("" if plain is None or info.default_factory else str(plain))
            name = extra["flag"] or key.replace("_", "-")
            panel = str(model.model_config.get("title"))
            yield Setting(section, key, name, panel, extra["look"], str(info.description), shown, extra["kind"])


@cache
def settings() -> tuple[Setting, ...]:
    """Every setting of a spec, in the order of the fields."""
    return tuple(settings_of(SECTIONS))


SEEDS = ("run", "seeds")
EACH = "each"  # the section of what one algorithm has otherwise: [each.PerFed-ASY]


def place_of(name: str, what: str = "a setting") -> tuple[str, str]:
    """Section and key of a setting, by its flag, as a keyword, or as section.key."""
    plain, places = name.replace("-", "_"), {each.keyword: (each.section, each.key) for each in settings()}
    if plain == "seed":
        return SEEDS
    if plain in places:
        return places[plain]
    section, _, key = name.partition(".")
    if section in SECTIONS and key in SECTIONS[section].model_fields:
        return section, key
    algorithm, _, key = name.removeprefix(f"{EACH}.").rpartition(".")
    if algorithm and key.replace("-", "_") in LearningSpec.model_fields:
        return EACH, f"{algorithm}.{key.replace('-', '_')}"
    known = ["seed", *(each.name for each in settings()), *(f"{each.section}.{each.key}" for each in settings())]
    hint = did_you_mean(name, known)
    raise InputError(
        f"{name} is not {what}; {hint if hint.endswith('?') else 'expected the name of a flag, such as quorum, or section.key.'}"
    )


def name_of(place: tuple[str, str]) -> str:
    """What a setting is called in tables and as a keyword; one algorithm's: PerFed-ASY.beta."""
    if place[0] == EACH:
        return place[1]
    return next(each.keyword for each in settings() if (each.section, each.key) == place)


def put(values: dict[str, Any], section: str, key: str, value: Any) -> None:
    """Set one value in nested values."""
    inner = values.setdefault(section, {})
    if not isinstance(inner, dict):
        raise InputError(f"{section} must be a section, [{section}], got {inner!r}.")
    algorithm, dot, own = key.rpartition(".")
    if section == EACH and dot:
        put(inner, algorithm, own, value)
    else:
        inner[key] = value


def take(values: Mapping[str, Any], section: str, key: str) -> Any:
    """One value of nested values."""
    algorithm, dot, own = key.rpartition(".")
    return values[section][algorithm][own] if section == EACH and dot else values[section][key]


def put_flags(values: dict[str, Any], flags: Mapping[str, Any]) -> None:
    """Set what flags or keywords say. ``seed`` is a single seed, so it cannot stand beside ``seeds``."""
    if flags.get("seed") is not None and flags.get("seeds") is not None:
        raise InputError(f"--seed {flags['seed']} and --seeds {flags['seeds']} were both given; give one of them.")
    for name, value in flags.items():
        section, key = place_of(name)
        if section == "learning":
            for algorithm, own in _by_algorithm(name, value):
                put(values, *((EACH, f"{algorithm}.{key}") if algorithm else (section, key)), own)
        else:
            put(values, section, key, [value] if name == "seed" else value)


def _by_algorithm(flag: str, value: Any) -> Iterable[tuple[str, Any]]:
    """What a learning setting is for whom: ``0.07,PerFed-ASY=0.02``, or a dictionary; nobody's name is everybody's."""
    if isinstance(value, Mapping):
        return [("" if name == "*" else str(name), own) for name, own in value.items()]
    if not isinstance(value, str) or "=" not in value:
        return [("", value)]
    parts = [part.strip().rpartition("=") for part in value.split(",")]
    found = [(algorithm.strip(), own.strip()) for algorithm, _, own in parts]
    if len({algorithm for algorithm, _ in found}) < len(found):
        raise InputError(f"--{flag.replace('_', '-')} {value} has a value for the same algorithm twice; give one.")
    return found


def put_text(values: dict[str, Any], assignment: str) -> None:
    """Set one value from ``section.key=value``, the value as a flag takes it or as TOML writes it."""
    path, equals, text = assignment.partition("=")
    section, dot, key = path.strip().partition(".")
    if not (equals and dot and section and key):
        raise InputError(f"--set takes section.key=value, got {assignment!r}.")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (ValueError, KeyError, RecursionError):
        value = text.strip()
    put(values, section, key, value)


def nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Python's keywords as nested values: settings by flag or section.key, whole sections as dictionaries."""
    sections = {name for name, value in settings.items() if isinstance(value, Mapping) and name in Spec.model_fields}
    values: dict[str, Any] = {name: deepcopy(dict(settings[name])) for name in sections}
    put_flags(values, {name: _as_list(value) for name, value in settings.items() if name not in sections})
    return values


def _as_list(value: Any) -> Any:
    """Ranges, arrays and generators as lists; NumPy's numbers as Python's own."""
    if hasattr(value, "tolist"):
        return value.tolist()
    many = isinstance(value, Iterable) and not isinstance(value, str | Mapping) and not callable(value)
    return [_as_list(each) for each in value] if many else value


def spec_from(**settings: Any) -> Spec:
    """A spec from Python: ``spec_from(task="digits", ues=20, cell={"layout": "equal"}, bandwidth=my_policy)``."""
    return resolve(nested(settings))


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


def as_it_was(written: Mapping[str, Any]) -> dict[str, Any]:
    """The nested values that a run wrote into its folder, with what went without saying then.

    Models have names since cifar100 is learned with LeNet-5 as published. It names its model; a run that does not is
    older, and its network had ReLU and max-pooling.
    """
    task = written.get("task")
    if not isinstance(task, Mapping) or task.get("name") != "cifar100":
        return dict(written)
    return {**written, "task": {"model": "lenet5-relu", **task}}


# ---- from values to a spec

HORIZON_S = 30.0
MOST_EVALUATIONS = 1_000_000


Sections = TypeVar("Sections", bound=Section)


def validated(model: type[Sections], values: Mapping[str, Any]) -> Sections:
    """Nested values as a model that is made of sections. Errors are one sentence naming the flag."""
    try:
        return model.model_validate(values)
    except pydantic.ValidationError as error:
        raise InputError(_sentence(error.errors()[0], sections_of(model))) from None


def resolve(values: Mapping[str, Any]) -> Spec:
    """Validate nested values and fill in what follows from them. Errors are one sentence naming the flag."""
    spec = validated(Spec, _with_defaults(values))
    ues, protocol, run, cell = spec.cell.ues, spec.protocol, spec.run, spec.cell
    if cell.distance_m is not None and len(cell.distance_m) != ues:
        raise InputError(f"--distance-m has {len(cell.distance_m)} distances, but there are {ues} UEs (--ues).")
    quorum = max(1, round(ues / 4)) if protocol.quorum is None else protocol.quorum
    if quorum > ues:
        raise InputError(f"--quorum must be from 1 to the number of UEs, {ues} (--ues), got {quorum}.")
    if isinstance(protocol.shares, tuple) and len(protocol.shares) != ues:
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
    spec = spec.model_copy(update={"each": {name: own for name in spec.each if (own := _own_settings(spec, name))}})
    filled = {
        "algorithms": run.algorithms or usual_algorithms(spec),
        "horizon_s": horizon_s,
        "seeds": tuple(dict.fromkeys(run.seeds)),
    }
    return spec.model_copy(
        update={
            "protocol": protocol.model_copy(update={"quorum": quorum}),
            "run": run.model_copy(update=filled),
            "own": _own_files(spec),
        }
    )


def usual_algorithms(spec: Spec) -> tuple[Named, ...]:
    """What is compared where nobody says: PerFed and FedAvg in every mode, and FedProx where it differs from FedAvg."""

    def is_usual(name: str) -> bool:
        several_steps = spec.learning_of(name).local_steps > 1
        return name.startswith(("FedAvg", "PerFed")) or (name.startswith("FedProx") and several_steps)

    return tuple(ALGORITHM.find(name) for name in ALGORITHM.table() if is_usual(name))


def _own_settings(spec: Spec, algorithm: str) -> dict[str, Any]:
    """What an algorithm has otherwise, checked. Somebody's own may have any name; that is known when they are made."""
    known = ALGORITHM.table()
    if algorithm not in known and not any(named.source for named in spec.run.algorithms or ()):
        hint = did_you_mean(algorithm, known)
        raise InputError(
            f"settings for {algorithm} were given, which is no algorithm; {hint}{'' if hint.endswith('?') else '.'}"
        )
    given = spec.each[algorithm]
    if nothing := [key for key, value in given.items() if value is None]:  # which no file could say
        raise InputError(f"for {algorithm}: {nothing[0]} is None; give a value, or leave it to the others.")
    try:
        learning = validated(Spec, {"learning": dict(spec.learning) | given}).learning
    except InputError as error:
        raise InputError(f"for {algorithm}: {error}") from None
    return {key: value for key, value in dict(learning).items() if key in given}


def _own_files(spec: Spec) -> dict[str, str]:
    """The sha256 of every file that something of the user's is in. It must be what the spec says, if it says one."""
    files = {one.source: one.digest for one in spec.given}
    for source, digest in files.items():
        if spec.own.get(source, digest) != digest:
            raise InputError(
                f"{source} is not the file this spec was written with: it has changed since (another sha256); put the old "
                f"one back, or start anew."
            )
    return files


def _with_defaults(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values, over what the task they name has for defaults, and over its number of UEs."""
    filled = dict(values)
    for section, key, kind in (("task", "name", TASK), ("cell", "kind", CELL)):
        inner = values.get(section)
        given = inner.get(key) if isinstance(inner, Mapping) else None
        given = SECTIONS[section].model_fields[key].default if given is None else given
        if given is None:
            continue
        try:
            value = kind.find(given).value
        except ValueError:  # said by the validation, with its flag
            continue
        if not callable(value):  # a Task or a Cell is made for so many UEs
            _fill(filled, {"cell": {"ues": getattr(value, "ues", None)}})
        _fill(filled, getattr(value, "defaults", {}))
    return filled


def _fill(values: dict[str, Any], defaults: Mapping[str, Mapping[str, Any]]) -> None:
    for section, own in defaults.items():
        given = values.get(section, {})
        if isinstance(given, Mapping):
            limited = section == "run" and given.get("rounds") is not None
            said = {k: v for k, v in given.items() if v is not None or k not in own}
            values[section] = {k: v for k, v in own.items() if not (limited and k == "horizon_s")} | said


# ---- what is wrong, in a sentence


def _sentence(error: Any, sections: Mapping[str, type[Section]]) -> str:
    """pydantic's first complaint in our words: the flag, what came, what was expected."""
    location, came, limits = error["loc"], error.get("input"), error.get("ctx", {})
    if error["type"] == "extra_forbidden":
        section, *rest = map(str, location)
        fields = sections[section].model_fields if rest and section in sections else sections
        path = ".".join(part if part.isprintable() else repr(part) for part in map(str, location))
        hint = did_you_mean(rest[0] if rest else section, fields)
        return f"{path} is not a setting; {hint}{'' if hint.endswith('?') else '.'}"
    flag = _flag_at(location, sections)
    match error["type"]:
        case "value_error":
            return f"{flag} {_as_given(came)} {limits['error']}."
        case "too_short" | "missing":
            return f"{flag} is empty or too short; give at least {limits.get('min_length', 1) if limits else 'two'}."
        case kind:
            expected = EXPECTED.get(kind, "something else (see --help)").format(**limits)
            words = {("max_staleness", "a whole number"): "unbounded", ("alpha", "a finite number"): "auto"}
            word = next((word for (key, what), word in words.items() if key in location and what == expected), None)
            more = f" or '{word}'" if word else ""
            return f"{flag} must be {expected}{more}, got {came!r}."


def _as_given(came: Any) -> str:
    return repr(came) if isinstance(came, str | int | float) else str(getattr(came, "__name__", type(came).__name__))


EXPECTED = {  # by the kind of complaint
    **dict.fromkeys(("finite_number", "float_parsing", "float_type"), "a finite number"),
    **dict.fromkeys(("int_parsing", "int_type", "int_from_float", "int_parsing_size"), "a whole number"),
    **dict.fromkeys(("string_type", "string_unicode"), "a text"),
    **dict.fromkeys(("bool_parsing", "bool_type"), "true or false"),
    **dict.fromkeys(("model_type", "model_attributes_type", "dict_type"), "a table of settings"),
    "greater_than": "greater than {gt:.10g}",
    "greater_than_equal": "at least {ge:.10g}",
    "less_than": "less than {lt:.10g}",
    "less_than_equal": "at most {le:.10g}",
    "literal_error": "{expected}",
    "tuple_type": "a list",
    "too_long": "a list of {max_length}",
}


def _flag_at(location: tuple[str | int, ...], sections: Mapping[str, type[Section]]) -> str:
    """How a user names a value on the command line."""
    section, *rest = (str(part) for part in location if not isinstance(part, int))
    found = next((each for each in settings_of(sections) if [each.section, each.key] == [section, *rest[:1]]), None)
    return found.flag if found is not None else f"section [{section}]"
