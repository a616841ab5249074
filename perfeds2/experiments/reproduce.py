"""What do the paper's figures look like when they are run again, with seeds?

A figure is a few runs. Runs that two figures share are done once: a run's folder is named after its spec.
"""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from perfeds2.experiments.compare import Progress, Watch, check, execute
from perfeds2.experiments.figures.figure import TASK, Figure, Line, Panel, Scale, spec_of
from perfeds2.experiments.folder import Folder, open_folder
from perfeds2.experiments.spec import InputError, Spec
from perfeds2.files import write_text

if TYPE_CHECKING:
    import pandas as pd

FIGURES = tuple(f"exp_{number}" for number in range(1, 9))


@dataclass(frozen=True)
class Run:
    """One run of a figure: which curves it gives."""

    spec: Spec
    curves: tuple[tuple[str, Panel, Line], ...]  # (figure, panel, line)

    @property
    def name(self) -> str:
        digest = hashlib.sha256(self.spec.to_toml().encode()).hexdigest()[:10]
        return f"{self.spec.task.name}-{digest}"


def load_figures(names: Sequence[str]) -> list[Figure]:
    """The figures by name; all of them for ``all``."""
    chosen = FIGURES if "all" in names else tuple(dict.fromkeys(names))
    for name in chosen:
        if name not in FIGURES:
            raise InputError(f"{name!r} is not a figure; expected {', '.join(FIGURES)} or all.")
    return [import_module(f"perfeds2.experiments.figures.{name}").FIGURE for name in chosen]


def plan_runs(
    figures: Sequence[Figure],
    seeds: tuple[int, ...],
    scale: Scale,
    data_dir: str | None,
    tasks: Sequence[str] | None = None,
) -> list[Run]:
    """The runs behind figures. Curves that differ only in the algorithm are one run, whichever figures they are in."""
    unknown = [task for task in tasks or () if task not in TASK]
    if unknown:
        raise InputError(f"--task {unknown[0]} is in no figure; expected one of {', '.join(TASK)}.")
    together: dict[str, tuple[Spec, list[str], list[tuple[str, Panel, Line]]]] = {}
    for figure in figures:
        for panel in figure.panels:
            if tasks is not None and panel.task not in tasks:
                continue
            for line in panel.lines:
                spec = spec_of(panel, line, seeds, scale, data_dir)
                same = spec.model_copy(update={"run": spec.run.model_copy(update={"algorithms": ()})}).to_toml()
                _, algorithms, curves = together.setdefault(same, (spec, [], []))
                curves.append((figure.name, panel, line))
                if line.algorithm not in algorithms:
                    algorithms.append(line.algorithm)
    if not together and tasks is not None:
        raise InputError(f"no panel of {', '.join(figure.name for figure in figures)} is on {', '.join(tasks)}.")
    return [
        Run(spec.model_copy(update={"run": spec.run.model_copy(update={"algorithms": tuple(names)})}), tuple(curves))
        for spec, names, curves in together.values()
    ]


def reproduce(
    figures: Sequence[Figure], runs: Sequence[Run], out: Path, watch: Watch | None = None
) -> Iterator[tuple[Figure, Path]]:
    """Do the runs (those that are not done), and write each figure's numbers. Yields them as they are complete."""
    for run in runs:
        if not Folder(out / "runs" / run.name).finished:
            check(run.spec, "reproduce")  # before anything is written
    rows: dict[str, list[dict[str, object]]] = defaultdict(list)
    last = {name: number for number, run in enumerate(runs) for name, _, _ in run.curves}
    for number, run in enumerate(runs):
        folder = open_folder(out / "runs" / run.name, run.spec)
        if not folder.finished:
            execute(run.spec, "reproduce", folder, watch=_part_of(watch, number, len(runs)))
        for row in _curve_rows(run, out):
            rows[str(row["figure"])].append(row)
        for figure in figures:
            if last.get(figure.name) == number:
                yield figure, _write_curves(figure, rows[figure.name], out)


def _write_curves(figure: Figure, rows: Sequence[dict[str, object]], out: Path) -> Path:
    """A figure's numbers in its own order. Panels that were not asked for this time stay as they are."""
    import pandas as pd

    path, table = out / f"{figure.name}.csv", pd.DataFrame(rows)
    if path.exists():
        known = pd.read_csv(path)
        table = pd.concat([table, known[~known.panel.isin(table.panel)]], ignore_index=True)
    order = {(panel.title, line.label): place for place, (panel, line) in enumerate(_lines(figure))}
    places = [order.get(key, len(order)) for key in zip(table.panel, table.line, strict=True)]
    table = table.iloc[np.argsort(places, kind="stable")]
    write_text(path, table.to_csv(index=False, lineterminator="\n"))
    return path


def _lines(figure: Figure) -> Iterator[tuple[Panel, Line]]:
    for panel in figure.panels:
        for line in panel.lines:
            yield panel, line


def load_curves(folder: Path | str) -> "pd.DataFrame":
    """Every curve that was reproduced into a folder, tidy: figure, panel, line, algorithm, seed, round, time_s, metrics."""
    import pandas as pd

    paths = [path for name in FIGURES if (path := Path(folder) / f"{name}.csv").exists()]
    if not paths:
        raise InputError(f"{folder} holds no reproduced figures; run perfeds2 reproduce all --out {folder} first.")
    return pd.concat([pd.read_csv(path) for path in paths], ignore_index=True)


def _part_of(watch: Watch | None, number: int, total: int) -> Watch | None:
    if watch is None:
        return None

    def tell(progress: Progress, watch: Callable[[Progress], None] = watch) -> None:
        watch(replace(progress, share=(number + progress.share) / total))

    return tell


def _curve_rows(run: Run, out: Path) -> Iterator[dict[str, object]]:
    import pandas as pd

    metrics = pd.read_csv(out / "runs" / run.name / "metrics.csv")
    for figure, panel, line in run.curves:
        for record in pd.DataFrame(metrics[metrics.algorithm == line.algorithm]).to_dict("records"):
            yield {"figure": figure, "panel": panel.title, "task": panel.task, "line": line.label, **record}
