"""Compare algorithms on the same cell, data, fading and initial weights, over the same simulated time."""

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from perfeds2.runs.comparison import Comparison, Which, load_comparison, write_results
from perfeds2.runs.estimate import refuse_days
from perfeds2.runs.folder import Folder, alone, open_folder
from perfeds2.runs.pool import Workers, run_all
from perfeds2.runs.progress import Follower, Reporter, Watch, open_live
from perfeds2.runs.store import Result, Store
from perfeds2.runs.table import summarise
from perfeds2.runs.trackers import trackers
from perfeds2.runs.trainer import facts_of
from perfeds2.runs.training import Training, trainings_of
from perfeds2.spec.build import Algorithm, Stage, make_algorithms, make_timelines
from perfeds2.spec.fields import Spec
from perfeds2.spec.names import refuse_while_loading
from perfeds2.spec.resolve import spec_from
from perfeds2.timeline.record import Timeline


def compare(
    *,
    out: Path | str | None = None,
    watch: Watch | None = None,
    together: bool | None = None,
    jobs: int | None = 1,
    yes: bool = False,
    track: Any = None,
    **settings: Any,
) -> Comparison:
    """Run algorithms side by side: ``compare(task="digits", ues=20, quorum=5, seeds=range(3), horizon_s=30)``.

    Settings are command-line flags as keywords, or whole sections (``cell={"layout": "equal"}``). Wherever a name is
    accepted, so is your own object: ``task`` takes a ``Task`` or a function of the seed, ``cell`` a ``Cell``, a
    subclass or a function, ``algorithms`` names and ``Algorithm`` objects. ``perfeds2.spec.build`` lists the
    arguments that each function may take.

    Args:
        out: The folder of the results; None writes nothing. A finished run there is loaded, an interrupted one
            resumed.
        watch: Called with a ``Progress`` while the run proceeds.
        together: Train seeds of equal shape in one batch; None does so on a GPU only.
        jobs: Number of training processes; None derives it from cores, memory and work. Results do not depend on it.
        yes: Run even if the estimate exceeds one day.
        track: Trackers that receive every evaluation, such as "tensorboard" (docs/how-to/live.md).
        **settings: Settings of the run.

    Returns:
        The summary, timelines, metrics and models of all algorithms and seeds.

    Raises:
        InputError: If a setting is invalid, the run would take over a day, or the folder holds something else.

    Example:
        >>> from perfeds2 import compare
        >>> found = compare(task="synthetic", ues=4, algorithms=["PerFedS2", "FedAvg-SYN"], seeds=[0], rounds=2)
        >>> [row["algorithm"] for row in found.summary["algorithms"]]
        ['PerFedS2', 'FedAvg-SYN']
    """
    refuse_while_loading("compare")
    spec = spec_from(**settings)
    refuse_days(trainings_of(spec), yes=yes)
    followers, workers = trackers(track, out), Workers(jobs, together=together)
    if out is None:
        return train_spec(spec, "compare", None, workers, watch)
    folder = open_folder(Path(out), spec)
    with alone(folder.path):
        if folder.finished:
            return load_comparison(spec, folder)
        return train_spec(spec, "compare", folder, workers, watch, followers)


def train_spec(
    spec: Spec,
    command: str,
    folder: Folder | None,
    workers: Workers = Workers(),  # noqa: B008 (frozen)
    watch: Watch | None = None,
    followers: Sequence[Follower] = (),
) -> Comparison:
    """Train every algorithm and seed of a spec, resuming from its folder."""
    make_algorithms(spec, Stage.of(spec, spec.run.seeds[0]))  # checks that the algorithms can be combined
    trainings = trainings_of(spec)
    store = Store(None if folder is None else folder.parts, whole=True)
    with nullcontext() if folder is None else open_live(folder.path, command, followers) as live:
        log = None if folder is None else folder.log
        results = run_all(trainings, store, workers, Reporter(watch, live), strict=True, log=log)
        trained = [(one.key, results[one]) for one in in_order(spec, trainings)]
        comparison = comparison_of(spec, command, [result for _, result in trained])
        if folder is not None:
            write_results(comparison, folder, trained)
    return comparison


def in_order(spec: Spec, trainings: Sequence[Training]) -> list[Training]:
    """Return trainings in the order of tables: algorithm by algorithm."""
    return sorted(trainings, key=lambda one: spec.algorithms.index(one.named))


def comparison_of(spec: Spec, command: str, results: Sequence[Result]) -> Comparison:
    """Combine the results of all trainings of a spec."""
    of: dict[Which, Result] = {(one.facts["algorithm"], one.facts["seed"]): one for one in results}
    facts, rows = ({which: one.facts for which, one in of.items()}, {which: one.rows for which, one in of.items()})
    return Comparison(
        spec,
        summarise(spec, command, facts, rows),
        {which: one.timeline for which, one in of.items() if one.timeline is not None},
        [row for one in results for row in one.rows],
        [row for one in results for row in one.ue_rows],
        {which: one.weights for which, one in of.items()},
    )


def simulate_spec(
    spec: Spec, command: str, folder: Folder | None, watch: Watch | None = None, followers: Sequence[Follower] = ()
) -> Comparison:
    """Simulate the timelines of a spec without training anything."""
    with nullcontext() if folder is None else open_live(folder.path, command, followers) as live:
        comparison = _play(spec, command, Reporter(watch, live))
        if folder is not None and not folder.finished:
            write_results(comparison, folder)
    return comparison


def _play(spec: Spec, command: str, reporter: Reporter) -> Comparison:
    timelines: dict[Which, Timeline] = {}
    facts: dict[Which, dict[str, Any]] = {}
    total, rounds = len(spec.algorithms) * len(spec.run.seeds), 0

    def tell(algorithm: Algorithm, closed: int, time_s: float) -> None:
        length, done = (spec.run.horizon_s, time_s) if spec.run.rounds is None else (spec.run.rounds, closed)
        share = (len(timelines) + min(done / (length or 1), 1.0)) / total
        reporter.step(f"{algorithm.name} seed {seed}", share, time_s, rounds + closed)

    for seed in spec.run.seeds:
        stage = Stage.of(spec, seed)
        algorithms = make_algorithms(spec, stage)
        for algorithm, timeline in zip(algorithms, make_timelines(spec, stage, algorithms, tell), strict=True):
            which = algorithm.name, seed
            timelines[which], facts[which] = timeline, facts_of(spec, algorithm, timeline, seed, stage.cell)
            rounds += timeline.rounds
            reporter.step(f"{algorithm.name} seed {seed}", len(timelines) / total, timeline.end_s, rounds)
    return Comparison(spec, summarise(spec, command, facts, None), timelines, [], [], {})
