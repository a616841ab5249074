"""How are several points of a sweep trained at once?

A GPU has little to do with one small model, and points often differ only in numbers: a step size, a bound, a band.
Their trainings are sorted by shape, and those of equal shape become one compiled loop.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from perfeds2.spec.build import Algorithm, paper_algorithms
from perfeds2.runs.execute import make_cell, make_task, make_timelines, upload_bits
from perfeds2.spec.fields import Spec
from perfeds2.runs.summary import Row, summarise
from perfeds2.learning.task import Task
from perfeds2.learning.train_many import Trial, group_trials, train_together
from perfeds2.learning.train import evaluation_points

Which = tuple[int, str, int]  # (number of the spec, algorithm, seed)


def train_points(
    specs: Sequence[Spec], watch: Callable[[float], None] | None = None
) -> Iterator[tuple[Spec, dict[str, Any], list[Row]]]:
    """Train several specs. Yields each one with its summary and metrics."""
    if len({spec.run.stop_when_diverged for spec in specs}) > 1:
        raise ValueError("the specs differ in run.stop_when_diverged, so they cannot go together.")
    trials, algorithms = _trials(specs)
    names = list(trials)
    values: dict[Which, list[dict[str, float]]] = {}
    for numbers in group_trials(list(trials.values())):
        group = {names[number]: trials[names[number]] for number in numbers}
        done = len(values)
        for ended in _train(group, specs[0], lambda part, done=done: watch and watch((done + part) / len(trials))):
            values |= ended
    for number, spec in enumerate(specs):
        own = {(name, seed): values[number, name, seed] for _, name, seed in names if (number, name, seed) in values}
        rows = {
            (name, seed): [
                {"algorithm": name, "seed": seed, "round": point.round, "time_s": point.time_s, **measured}
                for point, measured in zip(trials[number, name, seed].points, found, strict=True)
            ]
            for (name, seed), found in own.items()
        }
        timelines = {which: trials[number, *which].timeline for which in rows}
        summary = summarise(spec, "sweep", algorithms[number], timelines, rows)
        yield spec, summary, [row for which in rows for row in rows[which]]


def _trials(specs: Sequence[Spec]) -> tuple[dict[Which, Trial], list[list[Algorithm]]]:
    """Every training of every spec. Specs that agree in the data share them."""
    trials: dict[Which, Trial] = {}
    algorithms: list[list[Algorithm]] = []
    tasks: dict[Any, Task] = {}
    for number, spec in enumerate(specs):
        own: list[Algorithm] = []
        for seed in spec.run.seeds:
            data = (spec.task, spec.cell.ues, seed)
            task = tasks[data] = tasks.get(data) or make_task(spec, seed)
            cell = make_cell(spec, seed)
            own = paper_algorithms(spec, cell, upload_bits(spec))
            for algorithm, timeline in zip(own, make_timelines(spec, cell, own), strict=True):
                points = evaluation_points(timeline, horizon_s=spec.run.horizon_s, every_s=spec.run.eval_every_s)
                trials[number, algorithm.name, seed] = Trial(task, timeline, algorithm.learner, points, seed)
        algorithms.append(own)
    return trials, algorithms


def _train(
    group: dict[Which, Trial], spec: Spec, tell: Callable[[float], Any]
) -> Iterator[dict[Which, list[dict[str, float]]]]:
    """Train a group of equal shape; half of it at a time if memory is short."""
    total, values = sum(len(trial.points) for trial in group.values()), None
    try:
        for stand in train_together(
            list(group.values()),
            stop_when_diverged=bool(spec.run.stop_when_diverged),
        ):
            values = stand.values
            tell(len(group) * sum(map(len, values)) / total)
        assert values is not None
        yield dict(zip(group, values, strict=True))
        return
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error) or len(group) == 1:
            raise
    names = list(group)
    for part in (names[: len(names) // 2], names[len(names) // 2 :]):
        yield from _train({name: group[name] for name in part}, spec, tell)
