"""Define the figures of the paper's Section VI as data. To add a figure, define it here and list it in ``FIGURES``.

The paper states neither S nor, for most figures, the labels per UE; we take the middle of the range over which it
varies them. As in the paper, all UEs have the same processor; the cost of computing is our choice
(docs/explanation/design.md).
"""

import json
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from perfeds2.errors import InputError
from perfeds2.files import read_table
from perfeds2.spec.names import Values
from perfeds2.spec.resolve import flattened, read_toml
from perfeds2.studies.figure import SETTINGS_FILE, Figure, Panel, PanelLine, Scale, merged, tuned_file

if TYPE_CHECKING:
    import pandas as pd

PAPER: Values = {
    "cell": {"cpu_hz": (6.3e8, 6.3e8), "cycles": "per-parameter"},  # our results are older than counted operations
    "protocol": {"quorum": 5, "max_staleness": 5, "schedule": "deficit", "bandwidth": "equal_finish"},
    "learning": {"batch": 40},
}
EQUAL: Values = {"cell": {"layout": "equal"}, "protocol": {"shares": "equal"}}
DISTANCE: Values = {"cell": {"layout": "uniform"}, "protocol": {"shares": "distance"}}
TASK: dict[str, Values] = {  # uses the task's defaults: Table I's step sizes, 188 speaking roles
    "mnist": {"task": {"name": "mnist", "labels_per_ue": 4}},
    "cifar100": {"task": {"name": "cifar100", "labels_per_ue": 5}},
    "shakespeare": {"task": {"name": "shakespeare"}, "protocol": {"quorum": 50}},
}
TARGET = {"mnist": 0.9, "cifar100": 0.5, "shakespeare": 0.3}  # accuracy of the reported time to target
HORIZON_S: dict[Scale, dict[str, float]] = {
    "quick": {"mnist": 150.0, "cifar100": 20.0, "shakespeare": 10.0},
    "paper": {"mnist": 600.0, "cifar100": 2000.0, "shakespeare": 2000.0},
}
# Finishes in minutes on two CPU cores: everything runs and MNIST learns; the other two learn little.
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
S2 = ("PerFedS2", "FedAvgS2", "FedProxS2")
# Section VI explains that a round waits for UEs that would become too stale, so rounds close on first arrivals.
WAITING = merged(EQUAL, {"protocol": {"stale": "wait", "schedule": "first", "bandwidth": "equal_share"}})


def panel_of(title: str, task: str, lines: tuple[PanelLine, ...], settings: Values) -> Panel:
    """Return a panel with the paper's settings on both scales."""
    common: dict[Scale, Values] = {}
    for scale, horizon_s in HORIZON_S.items():
        run = {"horizon_s": horizon_s[task], "target_accuracy": TARGET[task]}
        quick = QUICK[task] if scale == "quick" else {}
        common[scale] = merged(PAPER, TASK[task], settings, {"run": run}, quick)
    return Panel(title, task, lines, common)


def algorithms(names: Iterable[str]) -> tuple[PanelLine, ...]:
    """Return a line for each algorithm."""
    return tuple(PanelLine(name, name, {}) for name in names)


def varied(symbol: str, section: str, key: str, values: Iterable[object]) -> tuple[PanelLine, ...]:
    """Return lines of PerFedS2 with one setting varied."""
    return tuple(PanelLine(f"{symbol} = {value}", "PerFedS2", {section: {key: value}}) for value in values)


def mnist_and_cifar(
    mnist: tuple[PanelLine, ...], settings: Values, cifar: tuple[PanelLine, ...] | None = None
) -> tuple[Panel, ...]:
    return panel_of("MNIST", "mnist", mnist, settings), panel_of("CIFAR-100", "cifar100", cifar or mnist, settings)


def equal_and_distance(name: str, lines: tuple[PanelLine, ...]) -> tuple[Panel, ...]:
    return (
        panel_of(f"{name}, equal shares", name.lower(), lines, EQUAL),
        panel_of(f"{name}, random distances", name.lower(), lines, DISTANCE),
    )


QUORUMS = varied("A", "protocol", "quorum", (5, 10, 15))
FIGURES = {
    figure.name: figure  # named after the paper's LaTeX labels
    for figure in (
        Figure(
            "exp_1",
            "Six algorithms on MNIST and CIFAR-100. Every UE has the same distance and the same share; A = 5 for the S2 algorithms.",
            mnist_and_cifar(algorithms(SIX), EQUAL),
        ),
        Figure(
            "exp_2",
            "Six algorithms on MNIST and CIFAR-100. Distances are uniform from 0 to 200 m and determine the shares; A = 5 for the S2 algorithms.",
            mnist_and_cifar(algorithms(SIX), DISTANCE),
        ),
        Figure(
            "exp_3",
            "PerFedS2 with different numbers of labels per UE. More labels make UEs more alike, and each UE's own task harder (erratum 13).",
            mnist_and_cifar(
                varied("l", "task", "labels_per_ue", (2, 4, 6, 8)),
                EQUAL,
                varied("l", "task", "labels_per_ue", (3, 5, 7, 9)),
            ),
        ),
        Figure(
            "exp_4",
            "PerFedS2 with A = 5, 10, 15 updates per round. Every UE has the same distance and the same share.",
            mnist_and_cifar(QUORUMS, EQUAL),
        ),
        Figure(
            "exp_5",
            "PerFedS2 with A = 5, 10, 15 updates per round. Distances are uniform from 0 to 200 m and determine the shares.",
            mnist_and_cifar(QUORUMS, DISTANCE),
        ),
        Figure(
            "exp_6",
            "PerFedS2 with staleness bounds S = 1 to 5; a round waits for UEs that would exceed them. Equal shares, A = 5.",
            mnist_and_cifar(varied("S", "protocol", "max_staleness", (1, 2, 3, 4, 5)), WAITING),
        ),
        Figure(
            "exp_7",
            "Six algorithms on LEAF's Shakespeare, 188 speaking roles as UEs, A = 50 for the S2 algorithms.",
            equal_and_distance("Shakespeare", algorithms(SIX)),
        ),
        Figure(
            "exp_8",
            "PerFedS2, FedAvgS2 and FedProxS2 on MNIST (A = 5) and Shakespeare (A = 50), with equal shares and random distances. "
            "With one local step FedProx's proximal term is zero, so its line coincides with FedAvg's.",
            equal_and_distance("MNIST", algorithms(S2)) + equal_and_distance("Shakespeare", algorithms(S2)),
        ),
    )
}


def load_figures(names: Sequence[str]) -> list[Figure]:
    """Return figures by name, each once; ``all`` is every figure."""
    chosen = tuple(FIGURES) if "all" in names else tuple(dict.fromkeys(names))
    for name in chosen:
        if name not in FIGURES:
            raise InputError(f"{name!r} is not a figure; expected {', '.join(FIGURES)} or all.")
    return [FIGURES[name] for name in chosen]


def load_curves(folder: Path | str) -> "pd.DataFrame":
    """Read every reproduced curve of a folder as a tidy table.

    Its columns are figure, panel, task, line, algorithm, seed, round, time_s and the metrics.
    """
    import pandas as pd

    paths = [path for name in FIGURES if (path := Path(folder) / f"{name}.csv").exists()]
    if not paths:
        raise InputError(f"{folder} holds no reproduced figures; run perfeds2 reproduce all --out {folder} first.")
    return pd.concat([read_table(path) for path in paths], ignore_index=True)


def command_of(folder: Path) -> str:
    """Return the command that reproduces the figures of a folder."""
    made, curves = read_toml(folder / SETTINGS_FILE), load_curves(folder)
    names = [name for name in FIGURES if name in set(curves["figure"])]
    of_figures = list(dict.fromkeys(panel.task for name in FIGURES for panel in FIGURES[name].panels))
    tasks = [task for task in of_figures if task in set(curves["task"])]
    some = {panel.task for name in names for panel in FIGURES[name].panels} != set(tasks)
    seeds = sorted(set(curves["seed"].tolist()))
    words = ["perfeds2", "reproduce", *(["all"] if len(names) == len(FIGURES) else names), "--scale", made["scale"]]
    words += ["--seeds", str(len(seeds)) if seeds == list(range(len(seeds))) else ",".join(map(str, seeds))]
    for task in tasks if some else ():
        words += ["--task", task]
    for task in made.get("tuned", ()):
        words += ["--spec", str(folder / tuned_file(task))]
    for name, value in flattened(made["changes"]).items():
        words += ["--set", f"{name}={value if isinstance(value, str) else json.dumps(value)}"]
    return shlex.join([*words, "--out", str(folder)])
