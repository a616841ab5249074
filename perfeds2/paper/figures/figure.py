"""What is varied, what is fixed, and for how long: a figure of the paper as data."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from perfeds2.spec.fields import Spec
from perfeds2.spec.resolve import resolve

Scale = Literal["quick", "paper"]
Values = Mapping[str, Mapping[str, Any]]  # nested settings of a spec
Tuned = Mapping[str, Mapping[str, Any]]  # learning settings by algorithm


@dataclass(frozen=True)
class PanelLine:
    """One curve of a panel: an algorithm in a setting."""

    label: str
    algorithm: str
    settings: Values


@dataclass(frozen=True)
class Panel:
    """One data set in one setting: drawn as training loss and test accuracy over simulated time."""

    title: str
    task: str
    lines: tuple[PanelLine, ...]
    settings: Values


@dataclass(frozen=True)
class Figure:
    name: str  # the paper's label
    caption: str  # in our words
    panels: tuple[Panel, ...]

    @property
    def lines(self) -> Iterator[tuple[Panel, PanelLine]]:
        """Every line with its panel, in order."""
        return ((panel, line) for panel in self.panels for line in panel.lines)


# The paper's Section VI-A. It gives neither the labels a UE has in most figures nor S: ours are in the middle of the range
# it varies them over. All UEs have the same processor, as it says; what it costs to compute is ours (docs/design.md).
PAPER: Values = {
    "cell": {"cpu_hz": (6.3e8, 6.3e8)},
    "protocol": {"quorum": 5, "max_staleness": 5, "schedule": "deficit", "bandwidth": "equal_finish"},
    "learning": {"batch": 40},
}
EQUAL: Values = {"cell": {"layout": "equal"}, "protocol": {"shares": "equal"}}
DISTANCE: Values = {"cell": {"layout": "uniform"}, "protocol": {"shares": "distance"}}
TASK: dict[str, Values] = {  # with the task's own defaults: Table I's step sizes, 188 speaking roles
    "mnist": {"task": {"name": "mnist", "labels_per_ue": 4}},
    "cifar100": {"task": {"name": "cifar100", "labels_per_ue": 5}},
    "shakespeare": {"task": {"name": "shakespeare"}, "protocol": {"quorum": 50}},
}
TARGET = {"mnist": 0.9, "cifar100": 0.5, "shakespeare": 0.3}  # the accuracy whose time is shown
HORIZON_S: dict[Scale, dict[str, float]] = {
    "quick": {"mnist": 150.0, "cifar100": 20.0, "shakespeare": 10.0},
    "paper": {"mnist": 600.0, "cifar100": 2000.0, "shakespeare": 2000.0},
}
# What two processor cores manage in minutes. It shows that everything runs, and how MNIST goes; the other two learn little.
QUICK: dict[str, Values] = {
    "mnist": {"run": {"eval_every_s": 10.0}},
    "cifar100": {"learning": {"batch": 10}, "run": {"eval_every_s": 10.0}},
    "shakespeare": {
        "cell": {"ues": 10},
        "protocol": {"quorum": 3},
        "learning": {"batch": 10},
        "run": {"eval_every_s": 5.0},
    },
}
SIX = ("PerFedS2", "FedAvgS2", "FedAvg-SYN", "PerFed-SYN", "FedAvg-ASY", "PerFed-ASY")


def merged(*parts: Values) -> dict[str, dict[str, Any]]:
    """Nested settings, later ones over earlier ones."""
    result: dict[str, dict[str, Any]] = {}
    for part in parts:
        for section, values in part.items():
            result.setdefault(section, {}).update(values)
    return result


def algorithms(names: Iterable[str]) -> tuple[PanelLine, ...]:
    """A line for each algorithm."""
    return tuple(PanelLine(name, name, {}) for name in names)


def varied(symbol: str, section: str, key: str, values: Iterable[Any]) -> tuple[PanelLine, ...]:
    """PerFedS2 with one setting varied."""
    return tuple(PanelLine(f"{symbol} = {value}", "PerFedS2", {section: {key: value}}) for value in values)


def base_of(panel: Panel, scale: Scale) -> dict[str, dict[str, Any]]:
    """What all curves of a panel have in common."""
    run = {"horizon_s": HORIZON_S[scale][panel.task], "target_accuracy": TARGET[panel.task]}
    quick = QUICK.get(panel.task, {}) if scale == "quick" else {}
    return merged(PAPER, TASK[panel.task], panel.settings, {"run": run}, quick)


def spec_of(
    panel: Panel,
    line: PanelLine,
    seeds: tuple[int, ...],
    scale: Scale,
    changes: Values | None = None,
    tuned: Mapping[str, Tuned] | None = None,
) -> Spec:
    """Everything that decides one curve. What was tuned goes over the paper's step sizes, ``changes`` come last."""
    run = {"algorithms": (line.algorithm,), "seeds": seeds}
    steps = (tuned or {}).get(panel.task, {}).get(line.algorithm, {})
    own: Values = {"run": run, "learning": steps}
    return resolve(merged(base_of(panel, scale), line.settings, own, changes or {}))
