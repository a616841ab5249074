"""Which method is best, on equal terms?

In every bout each method is tuned with the same number of settings, on data held out of the UEs' training part and on seeds of
their own; then all are trained with fresh seeds, in the settings that were found. What comes out of one method and
seed is one file, written atomically as soon as it is there, so an arena that is interrupted or killed goes on where it was. Its
tables are made of those files alone.
"""

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfeds2.errors import InputError
from perfeds2.files import clear_unfinished, write_text
from perfeds2.runs.crew import Assignment, Crew, Failure, StandingWatch, check_work, crew_for, do_all, with_seeds
from perfeds2.runs.folder import alone, claim_folder
from perfeds2.runs.live import Follower, Live, open_live
from perfeds2.runs.trackers import trackers
from perfeds2.runs.worker import Result
from perfeds2.spec.fields import Spec
from perfeds2.spec.names import refuse_while_loading
from perfeds2.spec.resolve import nested, read_toml
from perfeds2.studies.arena_plan import Bout, Plan, make_plan, read_plan
from perfeds2.studies.arena_tables import Outcome, write_tables
from perfeds2.studies.tune import run_search
from perfeds2.studies.tune_space import KEPT, Search, Settings

if TYPE_CHECKING:
    import pandas as pd

On = str | Callable[[Path], Crew]


@dataclass(frozen=True)
class Arena:
    """What came out of an arena."""

    path: Path
    plan: Plan
    failures: tuple[Failure, ...]

    @cached_property
    def table(self) -> "pd.DataFrame":
        """A row per task, cell, method and seed."""
        import pandas as pd

        return pd.read_csv(self.path / "arena.csv")

    @cached_property
    def summary(self) -> dict[str, Any]:
        """What arena.json says: per bout each method with its intervals, and who is better than whom."""
        return json.loads((self.path / "arena.json").read_text(encoding="utf-8"))


def arena(
    base: Mapping[str, Any] | Path | str = "",
    *,
    out: Path | str,
    on: str = "processes",
    workers: int | None = None,
    retries: int = 2,
    watch: StandingWatch | None = None,
    yes: bool = False,
    track: Any = None,
    **asked: Any,
) -> Arena:
    """Let methods meet: ``arena({"horizon_s": 30}, methods=["PerFedS2", "FedBuff"], tasks=["digits"], out="runs/a")``.

    The base is a spec file, or settings as ``compare`` takes them. ``methods``, ``mine``, ``tasks``, ``cells``, ``tries``,
    ``tuning_seeds``, ``rungs`` and ``search`` are those of ``make_plan``, ``track`` that of ``compare``. A folder that holds part of
    this arena is completed.
    """
    refuse_while_loading("arena")
    values = (read_toml(Path(base)) if base else {}) if isinstance(base, Path | str) else nested(base)
    plan = make_plan(values, **asked)
    how = {"on": on, "workers": workers, "retries": retries, "watch": watch, "yes": yes}
    return run_arena(plan, Path(out), followers=trackers(track, out), **how)


def run_arena(
    plan: Plan,
    path: Path,
    *,
    on: On = "processes",
    workers: int | None = None,
    retries: int = 2,
    watch: StandingWatch | None = None,
    yes: bool = False,
    followers: Sequence[Follower] = (),
) -> Arena:
    """Do what the folder does not have yet, bout by bout, and write the tables."""
    check_work([bout.spec for bout in plan.bouts], on, workers, retries, yes=yes)
    claim_folder(path, "arena", plan.to_toml(), lambda: read_plan(path).to_toml(), plan.unwritten)
    failures: list[Failure] = []
    with alone(path), open_live(path, "arena", followers) as live:
        clear_unfinished(path)
        total = sum(runs_of_search(bout.search) + len(bout.methods) * len(plan.seeds) for bout in plan.bouts)
        whole = _Whole(live.standing(watch), total)
        for bout in plan.bouts:
            home = path / "bouts" / bout.folder
            home.mkdir(parents=True, exist_ok=True)
            clear_unfinished(home)
            found = _tuned(path, home, bout, on, workers, retries, whole.part(runs_of_search(bout.search)), yes, live)
            watch_it = whole.part(len(bout.methods) * len(plan.seeds))
            failures += _evaluate(home, plan, bout, found, on, workers, retries, watch_it, live)
        write_tables(path, plan, list(outcomes(plan, path)))
    return Arena(path, plan, tuple(failures))


class _Whole:
    """How far the whole is, told by its parts one after the other. A part that tells nothing was there before."""

    def __init__(self, watch: StandingWatch | None, total: int) -> None:
        self._watch, self._total, self._began_s = watch, total, time.monotonic()
        self._before = self._found = 0

    def part(self, runs: int) -> StandingWatch | None:
        """For the next part, which has so many runs."""
        watch, before, found = self._watch, self._before, self._found
        self._before, self._found = before + runs, found + runs
        if watch is None:
            return None

        def tell(now: Any) -> None:
            self._found = found + now.found
            elapsed_s = time.monotonic() - self._began_s
            done, known = before + now.done, found + now.found
            watch(replace(now, total=self._total, done=done, found=known, elapsed_s=elapsed_s))

        return tell


# ---- tuning


def runs_of_search(search: Search | None) -> int:
    """How many trainings a search has, over all its rungs."""
    runs = 0
    for name in search.axes if search is not None else ():
        assert search is not None
        count = len(search.candidates(name))
        for _ in range(search.rungs):
            runs, count = runs + count * len(search.seeds), -(-count // KEPT)
    return runs


def _tuned(
    path: Path,
    home: Path,
    bout: Bout,
    on: On,
    workers: int | None,
    retries: int,
    watch: StandingWatch | None,
    yes: bool,
    live: Live,
) -> dict[str, Settings]:
    """What suits each method; nothing of one that was not tuned."""
    if bout.search is None:
        return {}
    place = home / "tuning"
    how = {"on": on, "workers": workers, "retries": retries, "watch": watch, "yes": yes}
    try:
        tuning = run_search(bout.search, place, **how, live=live, label=f"{bout.task}, {bout.cell}: tuning ")
    except InputError as error:
        raise InputError(str(error).replace(str(place), str(path))) from None  # whose folder the user knows
    found = {best.algorithm: best for best in tuning.best}
    said = {
        name: {"settings": best.settings, "validation": best.score, "before": best.before, "edges": list(best.edges)}
        for name, best in found.items()
    }
    write_text(home / "tuned.json", json.dumps(said, indent=1) + "\n")
    return {name: best.settings for name, best in found.items()}


# ---- evaluation


def _evaluate(
    home: Path,
    plan: Plan,
    bout: Bout,
    found: Mapping[str, Settings],
    on: On,
    workers: int | None,
    retries: int,
    watch: StandingWatch | None,
    live: Live,
) -> list[Failure]:
    """Train every method with every seed that is missing. Returns what was given up."""
    methods = list(bout.methods)
    specs = {name: bout.spec_of(name, found.get(name, {})) for name in methods}
    for name in methods:
        clear_unfinished(_file(home, name, 0).parent)
    missing = {name: [s for s in plan.seeds if _load(home, name, specs[name], s) is None] for name in methods}
    if not any(missing.values()):
        return []
    log = home / "workers.log"
    crew = crew_for(bout.spec.unwritten, on, workers, log)
    jobs: list[Assignment] = []
    for number, name in enumerate(methods):
        parts: list[Sequence[int]] = [(seed,) for seed in missing[name]]
        if crew.together and parts:  # company changes the last digits: all seeds go together, whichever is missing
            parts = [plan.seeds]
        for seeds in parts:
            said = f"{len(seeds)} seeds" if len(seeds) > 1 else f"seed {seeds[0]}"
            label = f"{bout.task}, {bout.cell}: {name}, {said}"
            spec = with_seeds(specs[name], seeds)
            shown = live.place([f"{bout.task}, {bout.cell}"])
            jobs.append(Assignment(len(jobs), (number,), len(seeds), label, name, [spec], crew.together, live=shown))

    def keep(job: Assignment, results: Sequence[Sequence[Result]]) -> None:
        name = methods[job.points[0]]
        for result in results[0]:
            (outcome,) = result["algorithms"]
            kept = {"seed": result["seed"], "spec": _digest(specs[name]), **outcome}
            file = _file(home, name, result["seed"])
            file.parent.mkdir(parents=True, exist_ok=True)
            write_text(file, json.dumps(kept) + "\n")

    failures = do_all(jobs, crew, len(methods) * len(plan.seeds), retries, keep, watch)
    if log.exists() and log.stat().st_size == 0:
        log.unlink()
    return failures


def _file(home: Path, method: str, seed: int) -> Path:
    return home / "runs" / method.replace("/", "_") / f"seed-{seed}.json"


def _digest(spec: Spec) -> str:
    """What a result was made with, whichever seeds went together."""
    return hashlib.sha256(with_seeds(spec, (0,)).to_toml().encode()).hexdigest()


def _load(home: Path, method: str, spec: Spec, seed: int) -> dict[str, Any] | None:
    """What came out of one method and seed; None if it has not been run in these settings, or its file is damaged."""
    try:
        result = json.loads(_file(home, method, seed).read_text(encoding="utf-8"))
        is_it = result["seed"] == seed and result["spec"] == _digest(spec) and bool(result["metrics"])
        return result if is_it else None
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None


# ---- what is there


def outcomes(plan: Plan, path: Path) -> Iterator[Outcome]:
    for bout in plan.bouts:
        home = path / "bouts" / bout.folder
        file = home / "tuned.json"
        tuned = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        for name in bout.methods:
            settings = tuned.get(name, {}).get("settings", {})
            spec = bout.spec_of(name, settings)
            results = [each for seed in plan.seeds if (each := _load(home, name, spec, seed)) is not None]
            yield Outcome(bout, name, settings, tuned.get(name, {}), results)
