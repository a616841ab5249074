"""Define every setting once: its type, range, unit, default, help and flag.

Command-line flags, keys of a TOML spec, ``--set``, sweep grids, Python keywords and the configuration of a federation
all derive from the fields below.
"""

import inspect
from collections.abc import Callable
from functools import cache
from typing import Annotated, Literal

import tomli_w
from pydantic import AfterValidator, BeforeValidator, Field

from perfeds2.privacy import DELTA
from perfeds2.spec.cell_fields import CellSpec, CellsSpec, EnergySpec, RadioSpec
from perfeds2.spec.names import Named, Values, method_name
from perfeds2.spec.settings import Setting, settings_of
from perfeds2.spec.values import (
    ALGORITHM,
    ATTACK,
    INIT,
    LOSS,
    MERGE,
    METRIC,
    MODEL,
    POLICY,
    SCHEDULE,
    SHARES,
    SPLIT,
    TASK,
    WRITTEN,
    Count,
    Length,
    List,
    NotNegative,
    Positive,
    Section,
    Seed,
    Steps,
    StepSize,
    read_adapter,
    read_seeds,
    read_shares,
    setting,
    within,
)
from perfeds2.theory.constants import ALPHA

# ---- settings


class TaskSpec(Section, title="Task"):
    """What is learned."""

    name: Annotated[Named, TASK] = setting(
        "NAME", "What is learned; also FILE.csv, FILE.npz or a folder.", "digits", flag="task"
    )
    model: Annotated[Named, MODEL] | None = setting("NAME", "The model.", shown="the task's own")
    adapter: Annotated[str, AfterValidator(read_adapter)] | None = setting(
        "lora:RANK|head", "Train only low-rank adapters, or the last layer.", shown="none: all weights"
    )
    init: Annotated[Named, INIT] | None = setting(
        "FILE.safetensors", "Weights that every seed starts from.", shown="drawn from the seed"
    )
    labels_per_ue: Count | None = setting("N", "Labels each UE has.", 3)
    split: Annotated[Named, SPLIT] | None = setting(
        "RULE",
        "Split of samples, instead of --labels-per-ue.",
        shown="labels:K; for files: natural, dirichlet:0.5 or quantity:0.6",
    )
    target: Annotated[tuple[str, ...], List, Field(min_length=1)] | None = setting(
        "COLUMN", "Columns of a CSV file to learn, comma-separated.", shown="label, target or y"
    )
    ue_column: str | None = setting(
        "COLUMN", "Column of a CSV file with each line's UE.", shown="ue or client, where there is one"
    )
    loss: Annotated[Named, LOSS] | None = setting(
        "NAME",
        "The training loss.",
        shown="cross-entropy; for files: binary for 2 labels, mse for numbers",
    )
    metric: Annotated[Named, METRIC] | None = setting(
        "NAME",
        "The metric; larger is better, so rmse and mae are negated.",
        shown="accuracy; r2 for numbers",
    )
    data_dir: str | None = setting("DIR", "Folder of real data sets.", shown="$PERFEDS2_DATA, then the user's cache")
    new_ues: Annotated[Positive, within(0, 0.9)] | None = setting(
        "SHARE", "Share of all UEs that never train, in addition to --ues.", shown="none"
    )
    held_out: bool | None = setting("", "Evaluate on held-out training data, as tune does.")


class ProtocolSpec(Section, title="Rounds"):
    """The semi-synchronous rounds. SYN and ASY follow from them: A = n, and A = 1 without a bound."""

    quorum: Count | None = setting(
        "A", "Updates needed to close a semi-synchronous round.", shown="a quarter of the UEs"
    )
    max_staleness: Annotated[int, Field(ge=0, le=1_000_000_000)] | Literal["unbounded"] = setting(
        "S", "Largest staleness of a merged update in rounds, or 'unbounded'.", 5
    )
    stale: Literal["restart", "wait", "ignore"] = setting(
        "RULE", "An update beyond the bound: restart, wait, or ignore.", "restart"
    )
    schedule: Annotated[Named, SCHEDULE] = setting(
        "RULE", "What closes a semi-synchronous round.", "deficit", shown="deficit; first where no plan is possible"
    )
    unplanned: Literal["work", "rest"] | None = setting(
        "WHAT", "UEs that are not planned for a round work or rest.", shown="work"
    )
    rest_rounds: Count | None = setting("B", "Merge a UE at most once in B rounds.", shown="1: every round")
    feedback_rounds: Count | None = setting("C", "Rounds between reports to a schedule that asks for them.", shown="20")
    tiers: Count | None = setting("M", "Number of tiers of FedAT and TiFL.", shown="5")
    shares: Annotated[tuple[NotNegative, ...] | Annotated[Named, SHARES], BeforeValidator(read_shares), WRITTEN] = (
        setting(
            "RULE",
            "Participation targets: a rule, or one number per UE.",
            "distance",
            shown="distance; equal where no plan is possible",
        )
    )
    bandwidth: Annotated[Named, POLICY] = setting(
        "POLICY",
        "How the uplink bandwidth is divided.",
        "equal_finish",
        shown="equal_finish; first: equal_share",
    )
    reshare: Literal["round", "events"] | None = setting(
        "WHEN", "When bandwidth is shared: per round, or whenever uploads start or end.", shown="round"
    )


class LearningSpec(Section, title="Learning"):
    """What all methods have in common. A method's own settings are fields of its dataclass."""

    alpha: StepSize = setting("STEP", "Step size of the personal step.", ALPHA)
    beta: Annotated[Positive, within(0, 1e38)] = setting("STEP", "Step size of the server.", 0.07)
    personal_steps: Steps | None = setting("K", "Personal gradient steps at an evaluation.", shown="1")
    batch: Annotated[int, Field(ge=1, le=1_000_000)] = setting("N", "Batch size; PerFed draws three.", 40)
    local_steps: Steps = setting("N", "Gradient steps per job.", 1)
    local_epochs: Annotated[Positive, within(1e-3, 1e4)] | None = setting(
        "E", "Steps per job by a UE's own samples, instead of --local-steps."
    )
    clip: Length | None = setting("NORM", "Largest norm of an upload.")
    merge: Annotated[Named, MERGE] | None = setting(
        "NAME", "How uploads are merged.", shown="the method's own, mean for most"
    )
    attack: Annotated[Named, ATTACK] | None = setting(
        "NAME:SHARE", "What a share of UEs, drawn from the seed, uploads instead.", shown="none"
    )


class PrivacySpec(Section, title="Privacy"):
    """Differential privacy of every UE: uploads are clipped (``--clip``), and noise hides them."""

    noise: Annotated[Positive, within(1e-6, 1e9)] | None = setting(
        "SIGMA", "Noise on a round's sum, relative to --clip.", flag="dp-noise", shown="no noise"
    )
    epsilon: Annotated[Positive, within(1e-6, 1e6)] | None = setting(
        "EPSILON", "Largest privacy loss of a UE; decides the noise."
    )
    delta: Annotated[float, Field(gt=0, lt=1)] | None = setting("DELTA", "δ of the privacy loss.", shown=f"{DELTA:g}")
    bands: Annotated[int, Field(ge=1, le=1000)] | None = setting(
        "B", "Rounds that share correlated noise.", flag="dp-bands", shown="1: independent"
    )
    secure_aggregation: bool | None = setting("", "Let the server see only sums of updates.")


class RunSpec(Section, title="Run"):
    """What is run, for how long, and how often."""

    algorithms: Annotated[tuple[Annotated[Named, ALGORITHM], ...], List, Field(min_length=1)] | None = setting(
        "NAMES",
        "Algorithms to run (see perfeds2 methods).",
        shown="PerFed and FedAvg in three modes",
    )
    seeds: Annotated[tuple[Seed, ...], BeforeValidator(read_seeds), Field(min_length=1)] = setting(
        "SEEDS", "How many (5 is 0..4), or which: 0,3,7 or 0..9.", (0, 1, 2, 3, 4), shown="5"
    )
    horizon_s: Positive | None = setting("SECONDS", "Simulated time.", shown="30")
    rounds: Count | None = setting("K", "Number of rounds, instead of a horizon.")
    eval_every_s: Positive | None = setting("SECONDS", "Simulated time between evaluations.", shown="horizon / 60")
    target_accuracy: Annotated[float, Field(allow_inf_nan=False)] = setting(
        "SHARE", "Personalised accuracy (or --metric) for time-to-target.", 0.9
    )
    stop_when_diverged: bool | None = setting("", "Stop a seed when its loss becomes NaN.")


class Spec(Section):
    """Everything that decides a run's numbers."""

    task: TaskSpec = Field(default_factory=TaskSpec)
    cell: CellSpec = Field(default_factory=CellSpec)
    cells: CellsSpec = Field(default_factory=CellsSpec)
    radio: RadioSpec = Field(default_factory=RadioSpec)
    energy: EnergySpec = Field(default_factory=EnergySpec)
    protocol: ProtocolSpec = Field(default_factory=ProtocolSpec)
    learning: LearningSpec = Field(default_factory=LearningSpec)
    privacy: PrivacySpec = Field(default_factory=PrivacySpec)
    run: RunSpec = Field(default_factory=RunSpec)
    methods: Annotated[dict[str, Values], WRITTEN] = Field(
        default_factory=dict
    )  # by method or algorithm: its own settings, and overrides of learning settings
    own: dict[str, str] = Field(default_factory=dict)  # sha256 of every file that defines one of the user's objects

    @property
    def algorithms(self) -> tuple[Named, ...]:
        """Return the algorithms to run."""
        assert self.run.algorithms is not None  # ``resolve`` fills in the default
        return self.run.algorithms

    @property
    def edges(self) -> int:
        """Return how many servers merge uploads: one in every cell, or a single one."""
        sites = self.cells.sites
        count = sites.value.count if isinstance(sites, Named) else sites or 1
        return 1 if self.cells.merge_at == "cloud" else count

    @property
    def given(self) -> list[Named]:
        """Return the user's own objects among all settings that have a kind."""
        values = [vars(vars(self)[each.section])[each.key] for each in settings() if each.kind is not None]
        listed = [one for value in values for one in (value if isinstance(value, tuple) else (value,))]
        return [one for one in (*listed, *self.merges) if isinstance(one, Named) and one.source]

    @property
    def merges(self) -> list[Named]:
        """Return the merges that were chosen."""
        chosen = (self.learning.merge, *(own.get("merge") for own in self.methods.values()))
        return [one for one in chosen if isinstance(one, Named)]

    @property
    def unwritten(self) -> list[str]:
        """Return the names of objects that were given from Python and cannot be saved."""
        return [one.text for one in self.given if one.identity]

    def learning_of(self, algorithm: str) -> LearningSpec:
        """Return the learning settings of an algorithm: the general ones with its overrides."""
        own = {key: value for key, value in self._given(algorithm).items() if key in LearningSpec.model_fields}
        return self.learning.with_(**own) if own else self.learning

    def method_settings(self, algorithm: str) -> Values:
        """Return the settings given to a method that only it has."""
        return {key: value for key, value in self._given(algorithm).items() if key not in LearningSpec.model_fields}

    def methods_of(self, algorithm: str) -> dict[str, Values]:
        """Return the part of [methods] that an algorithm uses: its own, its method's and its merge's."""
        merge = self.learning_of(algorithm).merge
        used = (algorithm, method_name(algorithm), None if merge is None else merge.label)
        return {name: own for name, own in self.methods.items() if name in used}

    def _given(self, algorithm: str) -> Values:
        return self.methods.get(method_name(algorithm), {}) | self.methods.get(algorithm, {})

    def values(self) -> Values:
        """Return nested values, as in a TOML file."""
        dumped = self.model_dump(mode="json", exclude_none=True)
        return {
            section: inner
            for section, inner in dumped.items()
            if inner or section not in ("cells", "radio", "energy", "privacy", "methods", "own")
        }

    def to_toml(self) -> str:
        return tomli_w.dumps(self.values())


def sections_of(model: type[Section]) -> dict[str, type[Section]]:
    """Return the sections of a model by name."""
    fields: dict[str, object] = {name: field.annotation for name, field in model.model_fields.items()}
    return {name: kind for name, kind in fields.items() if isinstance(kind, type) and issubclass(kind, Section)}


SECTIONS = sections_of(Spec)


def own_settings(make: Callable[..., object]) -> dict[str, inspect.Parameter]:
    """Return the settings that only a method or merge has: its parameters that are not shared learning settings."""
    try:
        parameters = inspect.signature(make, eval_str=True).parameters
    except (TypeError, ValueError, NameError):  # written in C, or with annotations that cannot be evaluated
        return {}
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {
        name: each for name, each in parameters.items() if name not in LearningSpec.model_fields and each.kind in kinds
    }


@cache
def settings() -> tuple[Setting, ...]:
    """Return every setting of a spec, in the order of the fields."""
    return tuple(settings_of(SECTIONS))
