"""Reproduce figures: train every curve with several seeds and write one tidy table per figure.

A figure is a few runs, one for each curve. Curves that two figures share are trained once.
"""

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import tomli_w

from perfeds2.errors import InputError
from perfeds2.files import clear_unfinished, write_text
from perfeds2.runs.folder import Folder, alone, open_folder
from perfeds2.spec.fields import Spec
from perfeds2.spec.resolve import read_toml, resolve
from perfeds2.spec.values import ALGORITHM

if TYPE_CHECKING:
    from perfeds2.runs.execute import Progress, ProgressWatch
    from perfeds2.runs.live import Follower

Scale = Literal["quick", "paper"]
Values = Mapping[str, Mapping[str, Any]]  # nested settings of a spec
Tuned = Mapping[str, Mapping[str, Any]]  # learning settings by algorithm
SETTINGS_FILE = "reproduce.toml"


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
    settings: Mapping[Scale, Values]  # what its curves have in common

    def spec_of(
        self, line: PanelLine, seeds: tuple[int, ...], scale: Scale, changes: Values, tuned: Mapping[str, Tuned]
    ) -> Spec:
        """Return the spec of one curve. Tuned settings override the panel's, ``changes`` override both."""
        own: Values = {
            "run": {"algorithms": (line.algorithm,), "seeds": seeds},
            "learning": tuned.get(self.task, {}).get(line.algorithm, {}),
        }
        return resolve(merged(self.settings[scale], line.settings, own, changes))


@dataclass(frozen=True)
class Figure:
    """Panels that belong together."""

    name: str
    caption: str
    panels: tuple[Panel, ...]

    @property
    def lines(self) -> Iterator[tuple[Panel, PanelLine]]:
        """Every line with its panel, in order."""
        return ((panel, line) for panel in self.panels for line in panel.lines)


def merged(*parts: Values) -> dict[str, dict[str, Any]]:
    """Merge nested settings; later ones override earlier ones."""
    result: dict[str, dict[str, Any]] = {}
    for part in parts:
        for section, values in part.items():
            result.setdefault(section, {}).update(values)
    return result


@dataclass(frozen=True)
class FigureRun:
    """One algorithm in one setting, with all seeds, and the curves it gives."""

    spec: Spec
    curves: tuple[tuple[str, Panel, PanelLine], ...]  # (figure, panel, line)

    @property
    def name(self) -> str:
        digest = hashlib.sha256(self.spec.to_toml().encode()).hexdigest()[:10]
        return f"{self.spec.task.name}-{digest}"

    @property
    def label(self) -> str:
        """For those who follow: the first of its curves."""
        figure, panel, line = self.curves[0]
        return f"{figure} {panel.title}" + ("" if line.label == line.algorithm else f": {line.label}")


def plan_runs(
    figures: Sequence[Figure],
    seeds: tuple[int, ...],
    scale: Scale,
    tasks: Sequence[str] | None = None,
    changes: Values | None = None,
    tuned: Mapping[str, Tuned] | None = None,
) -> list[FigureRun]:
    """Return the runs behind figures, each once. ``tuned``, by task, and ``changes`` replace the figures' settings."""
    known = {panel.task for figure in figures for panel in figure.panels}
    for task in tasks or ():
        if task not in known:
            names = ", ".join(figure.name for figure in figures)
            raise InputError(f"--task {task}: no panel of {names} is on it; expected {' or '.join(sorted(known))}.")
    shared: dict[str, tuple[Spec, list[tuple[str, Panel, PanelLine]]]] = {}
    for figure in figures:
        for panel, line in figure.lines:
            if tasks is None or panel.task in tasks:
                spec = panel.spec_of(line, seeds, scale, changes or {}, tuned or {})
                shared.setdefault(spec.to_toml(), (spec, []))[1].append((figure.name, panel, line))
    return [FigureRun(spec, tuple(curves)) for spec, curves in shared.values()]


def read_tuned(files: Sequence[Path], tasks: Collection[str]) -> dict[str, Tuned]:
    """Read how each algorithm learns, by task, from spec files that ``perfeds2 tune`` writes."""
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
    """Say in a folder what its figures are made with, once. Refuses to mix them with figures made otherwise.

    What was tuned may come task by task.
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


def tuned_file(task: str) -> str:
    return f"tuned-{task}.toml"


def reproduce(
    figures: Sequence[Figure],
    runs: Sequence[FigureRun],
    out: Path,
    watch: "ProgressWatch | None" = None,
    data_dir: Path | str | None = None,
    jobs: int | None = 1,
    followers: "Sequence[Follower]" = (),
) -> Iterator[tuple[Figure, Path]]:
    """Do the runs (those that are not done), and write each figure's numbers. Yields them as they are complete."""
    from perfeds2.learning import on_gpu
    from perfeds2.runs.execute import execute, execute_all
    from perfeds2.runs.jobs import count_jobs
    from perfeds2.runs.live import open_live

    missing = [run for run in runs if not Folder(out / "runs" / run.name).finished]
    _check(missing, data_dir)
    out.mkdir(parents=True, exist_ok=True)
    with alone(out), open_live(out, "reproduce", followers) as live:
        clear_unfinished(out)
        watch = live.progress(watch)
        processes = jobs if on_gpu.is_there() else count_jobs([_with_data(run.spec, data_dir) for run in missing], jobs)
        if on_gpu.is_there() or processes != 1:  # what is trained at once may be for several figures
            opened = [(run, open_folder(out / "runs" / run.name, run.spec)) for run in missing]
            left = [(run, folder) for run, folder in opened if not folder.finished]
            specs = [_with_data(run.spec, data_dir) for run, _ in left]
            folders, labels = [folder for _, folder in left], [run.label for run, _ in left]
            execute_all(specs, "reproduce", folders, watch=watch, jobs=processes, live=live, labels=labels)
        rows: dict[str, list[dict[str, object]]] = {figure.name: [] for figure in figures}
        last = {name: number for number, run in enumerate(runs) for name, _, _ in run.curves}
        for number, run in enumerate(runs):
            folder = open_folder(out / "runs" / run.name, run.spec)
            if not folder.finished:
                watch_it, spec = _part_of(watch, number, len(runs)), _with_data(run.spec, data_dir)
                execute(spec, "reproduce", folder, watch=watch_it, live=live, label=run.label)
            for row in _curve_rows(run, folder.path):
                rows[str(row["figure"])].append(row)
            for figure in figures:
                if last.get(figure.name) == number:
                    yield figure, _write_curves(figure, rows[figure.name], out)


def _check(runs: Sequence[FigureRun], data_dir: Path | str | None) -> None:
    """Find out what cannot work before anything is written. The same data are looked into once: that takes seconds."""
    from perfeds2.spec.build import check

    seen: set[str] = set()
    for run in runs:
        data = f"{run.spec.task} {run.spec.cell.ues}"
        check(_with_data(run.spec, data_dir), trains=data not in seen)
        seen.add(data)


def _with_data(spec: Spec, data_dir: Path | str | None) -> Spec:
    if data_dir is None:
        return spec
    return spec.model_copy(update={"task": spec.task.model_copy(update={"data_dir": str(data_dir)})})


def _part_of(watch: "ProgressWatch | None", number: int, total: int) -> "ProgressWatch | None":
    if watch is None:
        return None

    def tell(progress: "Progress") -> None:
        watch(replace(progress, share=(number + progress.share) / total))

    return tell


def _curve_rows(run: FigureRun, home: Path) -> Iterator[dict[str, object]]:
    import pandas as pd

    metrics = pd.read_csv(home / "metrics.csv").to_dict("records")
    for figure, panel, line in run.curves:
        for record in metrics:
            yield {"figure": figure, "panel": panel.title, "task": panel.task, "line": line.label, **record}


def _write_curves(figure: Figure, rows: Sequence[dict[str, object]], out: Path) -> Path:
    """A figure's numbers in its own order. Panels that were not asked for this time stay as they are."""
    import pandas as pd

    path, table = out / f"{figure.name}.csv", pd.DataFrame(rows)
    if path.exists():
        known = pd.read_csv(path)
        table = pd.concat([table, known[~known.panel.isin(table.panel)]], ignore_index=True)
    order = {(panel.title, line.label): place for place, (panel, line) in enumerate(figure.lines)}
    places = [order.get(key, len(order)) for key in zip(table.panel, table.line, strict=True)]
    table = table.iloc[np.argsort(places, kind="stable")]
    write_text(path, table.to_csv(index=False, lineterminator="\n"))
    return path
