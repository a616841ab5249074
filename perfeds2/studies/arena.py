"""Compare methods on equal terms.

In every bout, which is one task on one cell, each method is tuned with the same number of settings, on held-out data and seeds of its own;
then all are trained with fresh seeds in the settings that were found.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfeds2.runs.folder import alone, claim_folder
from perfeds2.runs.pool import PROCESSES, Failure, Workers, check_work, run_all
from perfeds2.runs.progress import Follower, Reporter, Watch, open_live
from perfeds2.runs.store import TRAININGS, Reuse, Store, open_others
from perfeds2.runs.trackers import trackers
from perfeds2.runs.training import trainings_of
from perfeds2.spec.names import refuse_while_loading
from perfeds2.spec.resolve import nested, read_toml
from perfeds2.studies.arena_plan import ArenaPlan, make_plan, read_plan
from perfeds2.studies.arena_tables import MethodOutcome, write_tables
from perfeds2.studies.tune import best_of, climb, train_or_refuse

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Arena:
    """What came out of an arena."""

    path: Path
    plan: ArenaPlan
    failures: tuple[Failure, ...]

    @cached_property
    def table(self) -> "pd.DataFrame":
        """A row per task, cell, method and seed."""
        import pandas as pd

        return pd.read_csv(self.path / "arena.csv")

    @cached_property
    def summary(self) -> dict[str, Any]:
        """What arena.json says: per bout each method with its intervals, and which is better than which."""
        return json.loads((self.path / "arena.json").read_text(encoding="utf-8"))


def arena(
    base: Mapping[str, Any] | Path | str = "",
    *,
    out: Path | str,
    on: str = PROCESSES,
    workers: int | None = None,
    retries: int = 2,
    reuse: Reuse = (),
    watch: Watch | None = None,
    yes: bool = False,
    track: Any = None,
    **asked: Any,
) -> Arena:
    """Compare methods: ``arena({"horizon_s": 30}, methods=["PerFedS2", "FedBuff"], tasks=["digits"], out="runs/a")``.

    Args:
        base: A spec file, or settings as ``compare`` takes them.
        out: The folder of the results. Part of this arena that it holds is completed.
        on: Where to train: processes, ray or ray://HOST:PORT.
        workers: How many trainings at a time.
        retries: How often a failed training is tried again.
        reuse: Folders of other studies whose trainings are taken.
        watch: Called with a ``Progress`` as the work goes on.
        yes: Run even if the estimate exceeds one day.
        track: Trackers that get every evaluation, such as "tensorboard" (docs/how-to/live.md).
        **asked: ``methods``, ``mine``, ``tasks``, ``cells``, ``tries``, ``tuning_seeds``, ``rungs`` and ``search`` of
            ``make_plan``.
    """
    refuse_while_loading("arena")
    values = (read_toml(Path(base)) if base else {}) if isinstance(base, Path | str) else nested(base)
    plan, how = make_plan(values, **asked), Workers(workers, on, retries)
    return run_arena(plan, Path(out), how, reuse=reuse, watch=watch, yes=yes, followers=trackers(track, out))


def run_arena(
    plan: ArenaPlan,
    path: Path,
    workers: Workers = Workers(None, PROCESSES),  # noqa: B008 (frozen)
    *,
    reuse: Reuse = (),
    watch: Watch | None = None,
    yes: bool = False,
    followers: Sequence[Follower] = (),
) -> Arena:
    """Train what the folder does not have yet, bout by bout, and write the tables."""
    check_work([one for bout in plan.bouts for one in trainings_of(bout.spec)], workers, yes=yes)
    others = open_others(reuse)
    claim_folder(path, "arena", plan.to_toml(), lambda: read_plan(path).to_toml(), plan.unwritten)
    failures: list[Failure] = []
    outcomes: list[MethodOutcome] = []
    with alone(path), open_live(path, "arena", followers) as live:
        store, reporter = Store(path / TRAININGS, reuse=others), Reporter(watch, live, plan.trainings)
        for bout in plan.bouts:
            where, best = f"{bout.task}, {bout.cell}", {}
            if bout.search is not None:
                scores = climb(
                    bout.search,
                    lambda trainings: train_or_refuse(trainings, store, workers, reporter, path),
                    f"{where}: tuning ",
                )
                best = {each.algorithm: each for each in best_of(bout.search, scores)}
            settings = {name: best[name].settings if name in best else {} for name in bout.methods}
            trainings = {name: trainings_of(bout.spec_of(name, settings[name]), where) for name in bout.methods}
            results = run_all([one for own in trainings.values() for one in own], store, workers, reporter)
            failures += results.failures
            for name, own in trainings.items():
                found = [result for one in own if (result := results.get(one)) is not None]
                outcomes.append(MethodOutcome(bout, name, best.get(name), found))
        write_tables(path, plan, outcomes)
    return Arena(path, plan, tuple(failures))
