"""What do the paper's figures look like when they are run again, with seeds?

A figure is a few runs, one for each curve. Curves that two figures share are run once: a run's folder is named after
its spec. Where the data lie is not part of it.
"""

import hashlib
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tomli_w

from perfeds2.errors import InputError
from perfeds2.files import clear_unfinished, write_text
from perfeds2.paper.figures import FIGURES
from perfeds2.paper.figures.figure import TASK, Figure, Panel, PanelLine, Scale, Tuned, Values, spec_of
from perfeds2.runs.folder import Folder, alone, open_folder
from perfeds2.spec.fields import Spec
from perfeds2.spec.resolve import as_it_was, read_toml, resolve
from perfeds2.spec.values import ALGORITHM

if TYPE_CHECKING:
    import pandas as pd

    from perfeds2.runs.execute import Progress, ProgressWatch
    from perfeds2.runs.live import Follower


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


def load_figures(names: Sequence[str]) -> list[Figure]:
    """The figures by name; all of them for ``all``."""
    chosen = tuple(FIGURES) if "all" in names else tuple(dict.fromkeys(names))
    for name in chosen:
        if name not in FIGURES:
            raise InputError(f"{name!r} is not a figure; expected {', '.join(FIGURES)} or all.")
    return [FIGURES[name] for name in chosen]


def plan_runs(
    figures: Sequence[Figure],
    seeds: tuple[int, ...],
    scale: Scale,
    tasks: Sequence[str] | None = None,
    changes: Values | None = None,
    tuned: Mapping[str, Tuned] | None = None,
) -> list[FigureRun]:
    """The runs behind figures, each once. ``tuned``, by task, and ``changes`` are settings instead of the paper's."""
    unknown = [task for task in tasks or () if task not in TASK]
    if unknown:
        raise InputError(f"--task {unknown[0]} is in no figure; expected one of {', '.join(TASK)}.")
    shared: dict[str, tuple[Spec, list[tuple[str, Panel, PanelLine]]]] = {}
    for figure in figures:
        for panel, line in figure.lines:
            if tasks is None or panel.task in tasks:
                spec = spec_of(panel, line, seeds, scale, changes, tuned)
                shared.setdefault(spec.to_toml(), (spec, []))[1].append((figure.name, panel, line))
    if not shared and tasks is not None:
        raise InputError(f"no panel of {', '.join(figure.name for figure in figures)} is on {', '.join(tasks)}.")
    return [FigureRun(spec, tuple(curves)) for spec, curves in shared.values()]


def read_tuned(files: Sequence[Path]) -> dict[str, Tuned]:
    """How each algorithm learns, by task, as spec files say it (``perfeds2 tune`` writes such)."""
    found: dict[str, Tuned] = {}
    for file in files:
        values = read_toml(file)
        spec = resolve(values)
        task = spec.task.name.text
        if task not in TASK:
            raise InputError(f"--spec {file} is for {task}, which is in no figure; expected one of {', '.join(TASK)}.")
        if task in found:
            raise InputError(f"--spec {file} is for {task}, and so is another one; give one for each task.")
        common = {key: spec.values()["learning"][key] for key in values.get("learning", {})}
        found[task] = {name: common | spec.values().get("each", {}).get(name, {}) for name in ALGORITHM.table()}
    return found


def open_set(out: Path, scale: Scale, changes: Values, tuned: Mapping[str, Tuned] | None = None) -> None:
    """Say in a folder what its figures are made with, once. Refuses to mix them with figures made otherwise.

    What was tuned may come task by task.
    """
    path, known = out / "reproduce.toml", {"scale": scale, "changes": changes}
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
        write_text(out / _tuned_file(task), tomli_w.dumps({"task": {"name": task}, "each": each}))


def _tuned_file(task: str) -> str:
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

    done = _finished_runs(out)
    _check([run for run in runs if run.spec.to_toml() not in done], data_dir)
    out.mkdir(parents=True, exist_ok=True)
    with alone(out), open_live(out, "reproduce", followers) as live:
        clear_unfinished(out)
        watch = live.progress(watch)
        missing = [run for run in runs if run.spec.to_toml() not in done]
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
            home = done.get(run.spec.to_toml())
            if home is None:
                folder = open_folder(out / "runs" / run.name, run.spec)
                if not folder.finished:
                    watch_it, spec = _part_of(watch, number, len(runs)), _with_data(run.spec, data_dir)
                    execute(spec, "reproduce", folder, watch=watch_it, live=live, label=run.label)
                home = folder.path
            for row in _curve_rows(run, home):
                rows[str(row["figure"])].append(row)
            for figure in figures:
                if last.get(figure.name) == number:
                    yield figure, _write_curves(figure, rows[figure.name], out)


def _finished_runs(out: Path) -> dict[str, Path]:
    """By spec, as it is written today: an older version may have written, and so named, the same settings otherwise."""
    done: dict[str, Path] = {}
    for path in sorted(out.glob("runs/*/spec.toml")):
        if Folder(path.parent).finished:
            try:
                done[resolve(as_it_was(read_toml(path))).to_toml()] = path.parent
            except InputError:  # no settings of ours: whatever it is, it is none of these runs
                continue
    return done


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


def load_curves(folder: Path | str) -> "pd.DataFrame":
    """Every curve that was reproduced into a folder, tidy: figure, panel, line, algorithm, seed, round, time_s, metrics."""
    import pandas as pd

    paths = [path for name in FIGURES if (path := Path(folder) / f"{name}.csv").exists()]
    if not paths:
        raise InputError(f"{folder} holds no reproduced figures; run perfeds2 reproduce all --out {folder} first.")
    return pd.concat([pd.read_csv(path) for path in paths], ignore_index=True)


def command_of(folder: Path) -> str:
    """The command that makes the figures of a folder."""
    made, curves = read_toml(folder / "reproduce.toml"), load_curves(folder)
    names = [name for name in FIGURES if name in set(curves["figure"])]
    tasks = [task for task in TASK if task in set(curves["task"])]
    some = {panel.task for name in names for panel in FIGURES[name].panels} != set(tasks)
    seeds = sorted(set(curves["seed"].tolist()))
    words = ["perfeds2", "reproduce", *(["all"] if len(names) == len(FIGURES) else names), "--scale", made["scale"]]
    words += ["--seeds", str(len(seeds)) if seeds == list(range(len(seeds))) else ",".join(map(str, seeds))]
    for task in tasks if some else ():
        words += ["--task", task]
    for task in made.get("tuned", ()):
        words += ["--spec", str(folder / _tuned_file(task))]
    for name, value in _leaves(made["changes"]):
        words += ["--set", f"{name}={value if isinstance(value, str) else json.dumps(value)}"]
    return shlex.join([*words, "--out", str(folder)])


def _leaves(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Nested values as section.key, and each.PerFed-ASY.beta."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value
