"""What is varied, what is fixed, and for how long: a figure of the paper as data."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from perfeds2.experiments.spec import Spec, resolve

Scale = Literal["quick", "paper"]
Values = Mapping[str, Mapping[str, Any]]  # nested settings of a spec


@dataclass(frozen=True)
class Line:
    """One curve: an algorithm in a setting."""

    label: str
    algorithm: str
    settings: Values


@dataclass(frozen=True)
class Panel:
    """One data set in one setting: drawn as training loss and test accuracy over simulated time."""

    title: str
    task: str
    lines: tuple[Line, ...]
    settings: Values


@dataclass(frozen=True)
class Figure:
    name: str  # the paper's label
    caption: str  # in our words
    panels: tuple[Panel, ...]


# The paper's Section VI-A. It gives neither the labels a UE has in most figures nor S: ours are in the middle of the range
# it varies them over. All UEs have the same processor, as it says; what it costs to compute is ours (docs/design.md).
PAPER: Values = {
    "cell": {"ues": 20, "cpu_hz": (6.3e8, 6.3e8)},
    "protocol": {"quorum": 5, "max_staleness": 5, "schedule": "deficit", "bandwidth": "equal_finish"},
    "learning": {"batch": 40},
}
EQUAL: Values = {"cell": {"layout": "equal"}, "protocol": {"shares": "equal"}}
DISTANCE: Values = {"cell": {"layout": "uniform"}, "protocol": {"shares": "distance"}}
TASK: dict[str, Values] = {
    "mnist": {"task": {"name": "mnist", "labels_per_ue": 4}, "learning": {"alpha": 0.03, "beta": 0.07}},
    "cifar100": {"task": {"name": "cifar100", "labels_per_ue": 5}, "learning": {"alpha": 0.02, "beta": 0.06}},
    "shakespeare": {
        "task": {"name": "shakespeare"},
        "learning": {"alpha": 0.03, "beta": 0.07},
        "cell": {"ues": 188},
        "protocol": {"quorum": 50},
    },
}  # Table I
HORIZON_S: dict[Scale, dict[str, float]] = {
    "quick": {"mnist": 150.0, "cifar100": 100.0, "shakespeare": 100.0},
    "paper": {"mnist": 600.0, "cifar100": 2000.0, "shakespeare": 2000.0},
}
SIX = ("PerFedS2", "FedAvgS2", "FedAvg-SYN", "PerFed-SYN", "FedAvg-ASY", "PerFed-ASY")


def merged(*parts: Values) -> dict[str, dict[str, Any]]:
    """Nested settings, later ones over earlier ones."""
    result: dict[str, dict[str, Any]] = {}
    for part in parts:
        for section, values in part.items():
            result.setdefault(section, {}).update(values)
    return result


def algorithms(names: Iterable[str]) -> tuple[Line, ...]:
    """A line for each algorithm."""
    return tuple(Line(name, name, {}) for name in names)


def varied(symbol: str, section: str, key: str, values: Iterable[Any]) -> tuple[Line, ...]:
    """PerFedS2 with one setting varied."""
    return tuple(Line(f"{symbol} = {value}", "PerFedS2", {section: {key: value}}) for value in values)


def spec_of(panel: Panel, line: Line, seeds: tuple[int, ...], scale: Scale, data_dir: str | None) -> Spec:
    """Everything that decides one curve."""
    run = {"algorithms": (line.algorithm,), "seeds": seeds, "horizon_s": HORIZON_S[scale][panel.task]}
    return resolve(
        merged(
            PAPER,
            TASK[panel.task],
            panel.settings,
            line.settings,
            {"run": run | {"target_accuracy": TARGET[panel.task]}},
            {} if data_dir is None else {"task": {"data_dir": data_dir}},
        )
    )


TARGET = {"mnist": 0.9, "cifar100": 0.5, "shakespeare": 0.3}
