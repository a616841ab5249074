"""What exactly is to be run? Every setting, once: its type, range, unit, default, help and flag.

Flags of the command line, keys of a TOML spec, ``--set``, grids of a sweep, keywords in Python and the configuration of a
federation all come from the fields below.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin

import pydantic
import tomli_w
from pydantic import BeforeValidator, Field, PlainSerializer

from perfeds2.spec.names import Kind, Named, method_name
from perfeds2.spec.values import (
    ALGORITHM,
    CELL,
    LOSS,
    MERGE,
    METRIC,
    MODEL,
    POLICY,
    RADIO,
    SCHEDULE,
    SHARES,
    SPLIT,
    TASK,
    AlgorithmName,
    Bits,
    CellName,
    Count,
    Decibels,
    FadingName,
    HessianName,
    Large,
    Length,
    List,
    LossName,
    MergeName,
    Metres,
    MetricName,
    ModelName,
    NotNegative,
    PolicyName,
    Population,
    Positive,
    RadioName,
    ScheduleName,
    Seconds,
    Seed,
    SharesName,
    SplitName,
    StepSize,
    TaskName,
    Usual,
    read_seeds,
    read_shares,
    within,
    write_methods,
    write_shares,
)

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

    name: TaskName = setting("digits", "NAME", "What is learned: {names} (real data sets: see perfeds2 data), FILE.csv, FILE.npz, a folder of npz files, one a UE (docs/data.md), or your own.", flag="task", kind=TASK)  # fmt: skip
    model: ModelName | None = setting(None, "NAME", "What is trained: {names}, or your own.", shown="the task's own", kind=MODEL)  # fmt: skip
    labels_per_ue: Count | None = setting(3, "N", "How many of the labels each UE has: fewer is more different.")
    split: SplitName | None = setting(None, "RULE", "Who has which samples, instead of --labels-per-ue: {names}, or your own.", shown="labels:K by --labels-per-ue; of your own file natural, dirichlet:0.5 or quantity:0.6", kind=SPLIT)  # fmt: skip
    target: Annotated[tuple[str, ...], List, Field(min_length=1)] | None = setting(None, "COLUMN", "What is learned of a CSV file: a column, or several of numbers, comma-separated.", shown="label, target or y")  # fmt: skip
    ue_column: str | None = setting(None, "COLUMN", "The column of a CSV file that says whose a line is.", shown="ue or client, where there is one")  # fmt: skip
    loss: LossName | None = setting(None, "NAME", "What training makes small: {names}, or your own.", shown="cross-entropy; of your own file binary for 2 labels, mse for numbers", kind=LOSS)  # fmt: skip
    metric: MetricName | None = setting(None, "NAME", "What stands for the accuracy, more being better: {names} (rmse and mae with a minus), or your own.", shown="accuracy; r2 for numbers", kind=METRIC)  # fmt: skip
    data_dir: str | None = setting(None, "DIR", "Where real data sets are.", shown="$PERFEDS2_DATA, then the user's cache")  # fmt: skip
    held_out: bool | None = setting(None, "", "Evaluate on a part held out of the UEs' training data, as tune does; the test part is not touched.")  # fmt: skip


class CellSpec(Section, title="Cell"):
    """The cell: Table I of the paper where it says something."""

    kind: CellName | None = setting(None, "NAME", "What the cell is: {names}, FILE.csv with a row for each device (docs/fleets.md), or your own.", flag="cell", shown="paper", kind=CELL)  # fmt: skip
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
    trace_end: Literal["repeat", "hold"] | None = setting(None, "RULE", "Where the traces of a fleet end: begin again, or hold the last rate.", shown="repeat")  # fmt: skip
    on_leave: Literal["lose", "keep"] | None = setting(None, "RULE", "A UE of a fleet that leaves: loses its job, or keeps it and goes on when it is back.", shown="lose")  # fmt: skip


class RadioSpec(Section, title="Radio"):
    """How signals get weaker on their way. Nothing said: the paper's Table I."""

    name: RadioName | None = setting(None, "NAME", "How signals get weaker on their way: {names} (TR 38.901), or your own.", flag="radio", shown="paper: Table I's, far better than a real one", kind=RADIO)  # fmt: skip
    carrier_hz: Annotated[Positive, within(5e8, 1e11)] | None = setting(None, "HZ", "Carrier frequency.", shown="3.5 GHz; rma: 0.7 GHz")  # fmt: skip
    bs_height_m: Annotated[Positive, within(1.5, 150)] | None = setting(None, "M", "Height of the base station's antenna.", shown="umi: 10; uma: 25; rma: 35")  # fmt: skip
    ue_height_m: Annotated[Positive, within(1.01, 13)] | None = setting(None, "M", "Height of the UEs.", shown="1.5")
    noise_figure_db: Decibels | None = setting(None, "DB", "What the base station's receiver adds to the noise.", shown="5; paper: 0")  # fmt: skip
    shadowing_db: Annotated[NotNegative, within(0, 100)] | None = setting(None, "DB", "Standard deviation of the shadowing; 0 is none.", shown="TR 38.901's")  # fmt: skip
    power_control: Annotated[tuple[Decibels, Annotated[float, Field(ge=0, le=1)]], List] | None = setting(None, "DBM,ALPHA", "P0 a resource block and α: a UE sends with min(its power, P0 + α·path loss + 10·lg(blocks)).", shown="full power")  # fmt: skip
    efficiency_cap: Usual | None = setting(None, "BIT/S/HZ", "No link carries more, whatever its SNR.", shown="7.4, 256-QAM; paper: none")  # fmt: skip
    fading: FadingName | None = setting(None, "LAW", "Fast fading: none, rayleigh, or rician:K (K: steady over scattered power).", shown="rayleigh")  # fmt: skip
    coherence_s: Annotated[Positive, within(1e-6, 1e9)] | None = setting(None, "SECONDS", "Fading is redrawn after so many seconds, also inside rounds.", shown="from the speed; without one, every round")  # fmt: skip
    speed_mps: Annotated[Positive, within(1e-3, 1e3)] | None = setting(None, "M/S", "How fast UEs, or what is around them, move: fading is redrawn every 0.423·c/(v·f_c).")  # fmt: skip
    mobility: Literal["none", "waypoint", "gauss-markov"] | None = setting(None, "LAW", "How UEs move, at --speed-mps: random waypoint or Gauss-Markov.", shown="none: they stay where they are")  # fmt: skip
    bits: Bits | None = setting(None, "N", "Bits for each number of an upload, 16, 8 or 4: rounded at random, as in QSGD; the upload is that much shorter.", shown="32: all of them")  # fmt: skip
    top_k: Annotated[float, Field(gt=0, le=1)] | None = setting(None, "SHARE", "Upload only this share of the numbers, the largest; the UE keeps the rest and adds it to its next upload.", shown="1: all of them")  # fmt: skip
    downlink: Literal["free", "multicast", "unicast"] | None = setting(None, "WAY", "How models reach UEs: at once, all at the rate of the weakest, or each on its part of the band.", shown="free: at once, as in the paper")  # fmt: skip
    bs_power_dbm: Decibels | None = setting(None, "DBM", "What the base station sends with.", shown="44; uma, rma: 49")


class EnergySpec(Section, title="Energy"):
    """What computing and sending take of a battery."""

    model: Literal["yang", "chen", "lte", "5g-low", "5g-mmwave"] | None = setting(None, "NAME", "What a job takes: κ·cycles·f² + p·t with the κ of a paper (yang, chen), or a whole phone's measured uplink (lte, 5g-low, 5g-mmwave).", flag="energy", shown="yang")  # fmt: skip
    kappa: Annotated[NotNegative, within(0, 1e-20)] | None = setting(None, "KAPPA", "κ: a cycle at f Hz takes κ·f² joules.", shown="1e-28; chen: 1e-27")  # fmt: skip
    budget: Annotated[Positive, within(0, 1e12)] | None = setting(None, "JOULES", "What each UE may spend: who has spent it is handed nothing any more, and a run ends when fewer than A are left.", flag="energy-budget", shown="no limit")  # fmt: skip


class ProtocolSpec(Section, title="Rounds"):
    """The semi-synchronous rounds. SYN and ASY follow from them: A = n, and A = 1 without a bound."""

    quorum: Count | None = setting(None, "A", "A round of the S2 algorithms closes on so many updates.", shown="a quarter of the UEs")  # fmt: skip
    max_staleness: Annotated[int, Field(ge=0, le=1_000_000_000)] | Literal["unbounded"] = setting(5, "S", "No merged update is older than so many rounds; or 'unbounded'.")  # fmt: skip
    stale: Literal["restart", "wait", "ignore"] = setting("restart", "RULE", "A UE that would exceed the bound: restart it, wait for it, or ignore its update.")  # fmt: skip
    schedule: ScheduleName = setting("first", "RULE", "What closes an S2 round: the first A arrivals (first), or those who are planned: {names}, or your own.", kind=SCHEDULE)  # fmt: skip
    unplanned: Literal["work", "rest"] | None = setting(None, "WHAT", "Who is not planned for a round: works on, or rests until it is and then begins with the newest model.", shown="work")  # fmt: skip
    tiers: Count | None = setting(None, "M", "How many tiers FedAT and TiFL sort the UEs into.", shown="5")
    shares: Annotated[tuple[NotNegative, ...] | SharesName, BeforeValidator(read_shares), PlainSerializer(write_shares)] = setting("equal", "RULE", "Participation targets of a schedule: {names}, your own, or one number per UE, comma-separated.", kind=SHARES)  # fmt: skip
    bandwidth: PolicyName = setting("equal_share", "POLICY", "How the band is shared: {names}, or your own.", kind=POLICY)  # fmt: skip


class LearningSpec(Section, title="Learning"):
    """How a UE computes and the server merges."""

    alpha: StepSize | Literal["auto"] = setting(0.03, "STEP", "Step size of the personal gradient step; 'auto': the task's, or 1/L where that is shorter.")  # fmt: skip
    beta: Annotated[Positive, within(0, 1e38)] = setting(0.07, "STEP", "Step size of the server.")
    personal_steps: Annotated[int, Field(ge=1, le=100_000)] | None = setting(None, "K", "Personal gradient steps at an evaluation, one after the other: fine-tuning, for every method whose UEs keep no model of their own.", shown="1")  # fmt: skip
    batch: Annotated[int, Field(ge=1, le=1_000_000)] = setting(40, "N", "Samples a batch; PerFed draws three batches a step.")  # fmt: skip
    local_steps: Annotated[int, Field(ge=1, le=100_000)] = setting(1, "N", "Gradient steps of one job.")
    hessian: HessianName = setting("exact", "HOW", "PerFed's Hessian term: exact, left out (fo), by differences of gradients (hf), or left out in the first K rounds (anneal:K).")  # fmt: skip
    hessian_batch: Literal["own", "inner"] | None = setting(None, "WHICH", "PerFed's Hessian is on a batch of its own, or on the inner one.", shown="own")  # fmt: skip
    clip: Length | None = setting(None, "NORM", "The largest norm of an upload: a longer one is shortened.")
    inner_clip: Length | None = setting(None, "NORM", "The largest norm of PerFed's inner gradient, differentiated through.")  # fmt: skip
    merge: MergeName | None = setting(None, "NAME", "How uploads become a model: {names}, or your own.", shown="the algorithm's own, mean for most", kind=MERGE)  # fmt: skip


class RunSpec(Section, title="Run"):
    """What is run, how long, how often."""

    algorithms: Annotated[tuple[AlgorithmName, ...], List, Field(min_length=1)] | None = setting(None, "NAMES", "Comma-separated: {names}, or your own.", shown="PerFed and FedAvg in all three modes, and FedProx with more than one local step", kind=ALGORITHM)  # fmt: skip
    seeds: Annotated[tuple[Seed, ...], BeforeValidator(read_seeds), Field(min_length=1)] = setting((0, 1, 2, 3, 4), "SEEDS", "How many (5 is 0..4), or which: 0,3,7 or 0..9.", shown="5")  # fmt: skip
    horizon_s: Positive | None = setting(None, "SECONDS", "Simulated time everybody gets.", shown="30")
    rounds: Count | None = setting(None, "K", "So many rounds, instead of a horizon.")
    eval_every_s: Positive | None = setting(None, "SECONDS", "Evaluate after so many simulated seconds.", shown="horizon / 60")  # fmt: skip
    target_accuracy: Annotated[float, Field(allow_inf_nan=False)] = setting(0.9, "SHARE", "Time-to-target looks for this personalised accuracy, or what stands for it (--metric).")  # fmt: skip
    stop_when_diverged: bool | None = setting(None, "", "Train no further with a seed whose loss is no number any more.")  # fmt: skip


class Spec(Section):
    """Everything that decides a run's numbers."""

    task: TaskSpec = Field(default_factory=TaskSpec)
    cell: CellSpec = Field(default_factory=CellSpec)
    radio: RadioSpec = Field(default_factory=RadioSpec)
    energy: EnergySpec = Field(default_factory=EnergySpec)
    protocol: ProtocolSpec = Field(default_factory=ProtocolSpec)
    learning: LearningSpec = Field(default_factory=LearningSpec)
    run: RunSpec = Field(default_factory=RunSpec)
    methods: Annotated[dict[str, dict[str, Any]], PlainSerializer(write_methods)] = Field(
        default_factory=dict
    )  # by method or algorithm: its own settings, and learning settings it has otherwise
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
            self.task.split,
            self.task.loss,
            self.task.metric,
            self.cell.kind,
            self.radio.name,
            self.protocol.schedule,
            shares,
            self.protocol.bandwidth,
        )
        named = (one for one in (*every, *self.merges, *(self.run.algorithms or ())) if isinstance(one, Named))
        return [one for one in named if one.source]

    @property
    def merges(self) -> list[Named]:
        """The merges that were chosen."""
        chosen = (self.learning.merge, *(own.get("merge") for own in self.methods.values()))
        return [one for one in chosen if isinstance(one, Named)]

    @property
    def unwritten(self) -> list[str]:
        """What was given from Python and cannot be written down."""
        return [one.text for one in self.given if not one.is_written]

    def learning_of(self, algorithm: str) -> LearningSpec:
        """How an algorithm learns: the general settings, and its own over them."""
        own = {key: value for key, value in self._given(algorithm).items() if key in LearningSpec.model_fields}
        return self.learning.model_copy(update=own) if own else self.learning

    def method_settings(self, algorithm: str) -> dict[str, Any]:
        """The settings that were given to a method and that only it has."""
        return {key: value for key, value in self._given(algorithm).items() if key not in LearningSpec.model_fields}

    def methods_of(self, algorithm: str) -> dict[str, dict[str, Any]]:
        """The part of [methods] that an algorithm uses: its own, its method's and its merge's."""
        merge = self.learning_of(algorithm).merge
        used = (algorithm, method_name(algorithm), None if merge is None else merge.label)
        return {name: own for name, own in self.methods.items() if name in used}

    def _given(self, algorithm: str) -> dict[str, Any]:
        return self.methods.get(method_name(algorithm), {}) | self.methods.get(algorithm, {})

    def values(self) -> dict[str, Any]:
        """Nested values, as a TOML file has them."""
        dumped = self.model_dump(mode="json", exclude_none=True)
        return {
            section: inner
            for section, inner in dumped.items()
            if inner or section not in ("radio", "energy", "methods", "own")
        }

    def to_toml(self) -> str:
        return tomli_w.dumps(self.values())


def sections_of(model: type[Section]) -> dict[str, type[Section]]:
    """The sections a model is made of, by their names."""
    fields: dict[str, Any] = {name: field.annotation for name, field in model.model_fields.items()}
    return {name: kind for name, kind in fields.items() if isinstance(kind, type) and issubclass(kind, Section)}


SECTIONS = sections_of(Spec)


# ---- the settings as users see them


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
    words: tuple[str, ...]  # that it may be, where these are few and known

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
            described = (extra["look"], str(info.description), shown, extra["kind"])
            yield Setting(section, key, name, panel, *described, tuple(_words(info.annotation)))


def _words(annotation: Any) -> list[str]:
    """The texts among a type's literals."""
    if get_origin(annotation) is Literal:
        return [word for word in get_args(annotation) if isinstance(word, str)]
    return [word for inner in get_args(annotation) for word in _words(inner)]


@cache
def settings() -> tuple[Setting, ...]:
    """Every setting of a spec, in the order of the fields."""
    return tuple(settings_of(SECTIONS))
