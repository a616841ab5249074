"""Compare algorithms on the same cell, data, fading and initial weights, over the same simulated time."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from perfeds2.runs.comparison import Comparison, Which, load_comparison, write_results
from perfeds2.runs.estimate import evaluations_worth, refuse_days
from perfeds2.runs.folder import RUN, evaluated_every, read_run
from perfeds2.runs.pool import WorkerChoice
from perfeds2.runs.progress import Reporter
from perfeds2.runs.session import Execution, Session
from perfeds2.runs.store import Facts, Result
from perfeds2.runs.table import summarise
from perfeds2.runs.trainer import facts_of
from perfeds2.runs.training import Training, trainings_of
from perfeds2.spec.build import Algorithm, Stage, check, clock_key, make_algorithms, make_timelines
from perfeds2.spec.fields import Spec
from perfeds2.spec.privacy import with_noise
from perfeds2.timeline.record import Timeline


def prepare(
    spec: Spec, *, yes: bool = True, trains: bool = True, thin_out: bool = False
) -> tuple[Spec, list[Training]]:
    """Check a spec and estimate its work, before anything is written.

    Args:
        spec: The settings.
        yes: Accept work that takes more than a day, and do not estimate it.
        trains: Trainings follow, not only simulations.
        thin_out: Evaluate less often if evaluations would take longer than training.

    Returns:
        The spec with the interval between evaluations, and its trainings. Those of the first seed have the stage and the
        algorithm that were made for the check. The estimate plays others: what it guesses is not passed on.
    """
    (stage, algorithms), first, clock = check(spec, trains=trains), spec.run.seeds[0], clock_key(spec)
    made = dict(zip(spec.algorithms, algorithms, strict=True))
    trainings = [
        replace(one, stage=stage, made=made[one.named]) if one.seed == first and clock_key(one.spec) == clock else one
        for one in trainings_of(spec)
    ]
    refuse_days(trainings, yes=yes, trains=trains)
    if not thin_out or spec.run.horizon_s is None:
        return spec, trainings
    every_s = max(spec.run.horizon_s / evaluations_worth(trainings), spec.run.eval_every_s or 0.0)
    thinned = [replace(one, spec=evaluated_every(every_s, one.spec)) for one in trainings]
    return evaluated_every(every_s, spec), thinned


def train_spec(
    spec: Spec,
    command: str,
    path: Path | None,
    how: Execution = Execution(WorkerChoice()),  # noqa: B008 (frozen)
    trainings: Sequence[Training] | None = None,
) -> Comparison:
    """Train every algorithm and seed of a spec that its folder lacks; load a finished run.

    ``trainings`` are those that ``prepare`` returned; None prepares them.
    """

    def train(session: Session) -> tuple[Comparison, list[tuple[str, Result]]]:
        every = prepare(spec)[1] if trainings is None else trainings
        results = session.train(every, strict=True)
        in_order = sorted(every, key=lambda one: spec.algorithms.index(one.named))  # of tables: by algorithm
        trained = [(one.key, results[one]) for one in in_order]
        return comparison_of(spec, command, [result for _, result in trained]), trained

    return _in_folder(spec, command, path, how, train)


def _in_folder(
    spec: Spec,
    command: str,
    path: Path | None,
    how: Execution,
    make: Callable[[Session], tuple[Comparison, list[tuple[str, Result]]]],
) -> Comparison:
    """Make a comparison and write it to its folder; load a finished run."""
    with Session.open(RUN, spec, path, how, read_run, command=command) as session:
        if session.folder is not None and session.folder.finished:
            return load_comparison(spec, session.folder)
        comparison, trained = make(session)
        if session.folder is not None:
            write_results(comparison, session.folder, trained)
    return comparison


def comparison_of(spec: Spec, command: str, results: Sequence[Result]) -> Comparison:
    """Combine the results of all trainings of a spec."""
    of: dict[Which, Result] = {(one.facts["algorithm"], one.facts["seed"]): one for one in results}
    facts = {which: one.facts for which, one in of.items()}
    rows, ue_rows = ({which: vars(one)[name] for which, one in of.items()} for name in ("rows", "ue_rows"))
    return Comparison(
        spec,
        summarise(spec, command, facts, rows, ue_rows),
        {which: one.timeline for which, one in of.items() if one.timeline is not None},
        [row for one in results for row in one.rows],
        [row for one in results for row in one.ue_rows],
        {which: one.weights for which, one in of.items()},
        facts,
    )


def simulate_spec(
    spec: Spec,
    command: str,
    path: Path | None,
    how: Execution = Execution(),  # noqa: B008 (frozen)
) -> Comparison:
    """Simulate the timelines of a spec without training anything; load a finished run."""
    return _in_folder(spec, command, path, how, lambda session: (_play(spec, command, session.reporter), []))


def _play(spec: Spec, command: str, reporter: Reporter) -> Comparison:
    timelines: dict[Which, Timeline] = {}
    facts: dict[Which, Facts] = {}
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
            private = replace(algorithm, learner=with_noise(spec.privacy, algorithm.learner, timeline))
            timelines[which], facts[which] = timeline, facts_of(spec, private, timeline, seed, stage.cell)
            rounds += timeline.rounds
            reporter.step(f"{algorithm.name} seed {seed}", len(timelines) / total, timeline.end_s, rounds)
    return Comparison(spec, summarise(spec, command, facts, None), timelines, [], [], {}, facts)
