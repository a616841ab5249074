"""Reproduce figures: train every curve with several seeds and write one tidy table per figure.

Curves that two figures share are trained once.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import tomli_w

from perfeds2.errors import InputError
from perfeds2.files import clear_unfinished, read_table, write_text
from perfeds2.runs.folder import REPRODUCTION, FolderKind
from perfeds2.runs.pool import WorkerChoice
from perfeds2.runs.session import Execution, Session
from perfeds2.runs.store import TRAININGS, Store
from perfeds2.runs.training import Training, trainings_of
from perfeds2.spec.build import check
from perfeds2.spec.fields import Spec
from perfeds2.spec.names import Values
from perfeds2.spec.resolve import read_toml, resolve
from perfeds2.spec.values import ALGORITHM
from perfeds2.studies.figure import SETTINGS_FILE, Figure, Panel, PanelLine, Scale, Tuned, tuned_file


@dataclass(frozen=True)
class FigureCurve:
    """One curve of a figure, and the spec of its trainings."""

    figure: str
    panel: Panel
    line: PanelLine
    spec: Spec  # one algorithm, all seeds

    @cached_property
    def trainings(self) -> list[Training]:
        """Return one training per seed; curves that two figures share have the same trainings."""
        label = f"{self.figure} {self.panel.title}"
        label += "" if self.line.label == self.line.algorithm else f": {self.line.label}"
        return trainings_of(self.spec, label)


def plan_curves(
    figures: Sequence[Figure],
    seeds: tuple[int, ...],
    scale: Scale,
    tasks: Sequence[str] | None = None,
    changes: Values | None = None,
    tuned: Mapping[str, Tuned] | None = None,
) -> list[FigureCurve]:
    """Return the curves of figures. ``tuned`` (by task) and ``changes`` override the figures' settings."""
    known = {panel.task for figure in figures for panel in figure.panels}
    for task in tasks or ():
        if task not in known:
            names = ", ".join(figure.name for figure in figures)
            raise InputError(f"--task {task}: no panel of {names} is on it; expected {' or '.join(sorted(known))}.")
    return [
        FigureCurve(figure.name, panel, line, panel.spec_of(line, seeds, scale, changes or {}, tuned or {}))
        for figure in figures
        for panel, line in figure.lines
        if tasks is None or panel.task in tasks
    ]


def read_tuned(files: Sequence[Path], tasks: Collection[str]) -> dict[str, Tuned]:
    """Read each algorithm's learning settings by task, from spec files written by ``perfeds2 tune``."""
    found: dict[str, Tuned] = {}
    for file in files:
        values = read_toml(file)
        spec = resolve(values)
        task = spec.task.name.text
        if task not in tasks:
            raise InputError(f"--spec {file} is for {task}, which is in no figure; expected one of {', '.join(tasks)}.")
        if task in found:
            raise InputError(f"--spec {file} is for {task}, and so is another one; give one for each task.")
        common = {key: spec.values()["learning"][key] for key in values.get("learning", {})}
        found[task] = {name: common | spec.values().get("methods", {}).get(name, {}) for name in ALGORITHM.table()}
    return found


def open_set(out: Path, scale: Scale, changes: Values, tuned: Mapping[str, Tuned] | None = None) -> None:
    """Record the settings of a folder's figures, and refuse to mix them with figures of other settings.

    Tuned settings may be added task by task.
    """
    path, known = out / SETTINGS_FILE, {"scale": scale, "changes": changes}
    own = {
        task: {name: settings for name, settings in each.items() if settings} for task, each in (tuned or {}).items()
    }
    there = read_toml(path) if path.exists() else known
    before = there.pop("tuned", {})
    same = all(before.get(task, settings) == settings for task, settings in own.items())
    if there != known or not same or bool(before) != bool(own and path.exists()):
        raise InputError(f"--out {out} holds figures of another scale or other settings (see {path}); choose another.")
    out.mkdir(parents=True, exist_ok=True)
    more = {"tuned": before | own} if own else {}
    write_text(path, tomli_w.dumps(known | more))
    for task, each in own.items():
        write_text(out / tuned_file(task), tomli_w.dumps({"task": {"name": task}, "methods": each}))


def reproduce(
    figures: Sequence[Figure],
    curves: Sequence[FigureCurve],
    out: Path,
    execution: Execution = Execution(WorkerChoice()),  # noqa: B008 (frozen)
    claims: Callable[[Path], None] = lambda _: None,
) -> Iterator[tuple[Figure, Path]]:
    """Train what is missing, write a table per figure, and yield each figure and its file when it is complete.

    ``claims`` records in the locked folder what is asked for, such as ``open_set``.
    """
    _check(out, curves)
    total = len({one.key for curve in curves for one in curve.trainings})

    def claim(_: FolderKind, path: Path, *__: object) -> None:
        claims(path)
        clear_unfinished(path)

    with Session.open(REPRODUCTION, None, out, execution, total=total, claims=claim) as session:
        for figure in figures:
            own = [curve for curve in curves if curve.figure == figure.name]
            results = session.train([one for curve in own for one in curve.trainings], strict=True)
            rows = [
                {"figure": curve.figure, "panel": curve.panel.title, "task": curve.panel.task, "line": curve.line.label}
                | row
                for curve in own
                for one in curve.trainings
                for row in results[one].rows
            ]
            if rows:
                yield figure, _write_curves(figure, rows, out)


def _check(out: Path, curves: Sequence[FigureCurve]) -> None:
    """Raise InputError for settings that cannot work, before anything is written. Data are loaded once per task."""
    store = Store(out / TRAININGS if (out / TRAININGS).exists() else None)
    seen: set[str] = set()
    for curve in curves:
        if any(store.get(one.key) is None for one in curve.trainings):
            data = f"{curve.spec.task} {curve.spec.cell.ues}"
            check(curve.spec, trains=data not in seen)
            seen.add(data)


def _write_curves(figure: Figure, rows: Sequence[Mapping[str, object]], out: Path) -> Path:
    """Write a figure's table in its own order. Panels that were not requested stay as they are."""
    import pandas as pd

    path, table = out / f"{figure.name}.csv", pd.DataFrame(rows)
    if path.exists():
        known = read_table(path)
        table = pd.concat([table, known[~known.panel.isin(table.panel)]], ignore_index=True)
    order = {(panel.title, line.label): place for place, (panel, line) in enumerate(figure.lines)}
    places = [order.get(key, len(order)) for key in zip(table.panel, table.line, strict=True)]
    table = table.iloc[np.argsort(places, kind="stable")]
    write_text(path, table.to_csv(index=False, lineterminator="\n"))
    return path
