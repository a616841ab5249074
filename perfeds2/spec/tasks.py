"""Whose samples are they, and how is a model judged on them, as a spec says it?"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import jax
import numpy as np

from perfeds2.errors import InputError
from perfeds2.learning.files.own_file import OwnFile, in_words
from perfeds2.learning.models.model import Judged, Model, bare
from perfeds2.learning.partition import ByLabel, Given, Samples, Split
from perfeds2.learning.target import Targets, judged
from perfeds2.learning.task import Recipe, Task, logits
from perfeds2.spec.fields import Spec
from perfeds2.spec.names import Named, call, user_errors


@contextmanager
def task_errors(named: Named) -> Iterator[None]:
    """What is wrong with data is said in a sentence that names them."""
    try:
        yield
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"--task {named}: {error}".replace("labels_per_ue", "--labels-per-ue")) from None


def recipe_of(spec: Spec) -> Recipe | None:
    """How a built-in task, or one in a file, is made; None for a task that is the user's own in Python."""
    task, value = spec.task, spec.task.name.value
    if isinstance(value, OwnFile):
        loss = task.loss.text if task.loss is not None and not task.loss.source else None
        with task_errors(task.name):
            return Recipe.of_file(value, task.target or (), task.ue_column, loss)
    for flag, given in (("--target", task.target), ("--ue-column", task.ue_column)):
        if given is not None:
            raise InputError(f"{flag} is for a CSV file, and --task is {task.name}; leave it out.")
    return value if isinstance(value, Recipe) else None


def told_with_a_model(spec: Spec, seed: int) -> dict[str, str]:
    """What one must know to use a model that was trained on a file of one's own; nothing of other tasks."""
    file, task = spec.task.name.value, spec.task
    if not isinstance(file, OwnFile):
        return {}
    loss = task.loss.text if task.loss is not None and not task.loss.source else None
    split = split_of(task.split) or ByLabel(task.labels_per_ue or 1)
    with task_errors(task.name):
        return in_words(file.table(task.target or (), task.ue_column, loss), spec.cell.ues, split, seed)


def split_of(named: Named | None) -> Split | None:
    """Who gets which samples; None: by labels per UE."""
    if named is None or not named.source:
        return None if named is None else named.value

    def ask(samples: Samples, ues: int, seed: int) -> Any:
        known = {"labels": samples.labels, "owners": samples.owners, "ues": ues, "seed": seed}
        return call(named.value, f"--split {named}", known)

    return Given(named.text, ask)


def judged_as_told(spec: Spec, task: Recipe | Task, model: Model) -> Model:
    """A model for a task with the loss and the metric that were chosen; where none was, with the task's own."""
    loss, metric = spec.task.loss, spec.task.metric
    before = task.model if isinstance(task.model, Judged) else None
    if loss is None and metric is None:
        return model if before is None or model is before else replace(before, model=bare(model))
    if isinstance(task, Recipe):
        target = task.learned
    else:
        target = (
            Targets(0, before.shift, before.unit)
            if before and before.unit
            else Targets(max(2, *logits(model, task.sample)))
        )
    own = [None if one is None else one.value if one.source else one.text for one in (loss, metric)]
    own = [
        one or usual for one, usual in zip(own, (before.loss, before.metric) if before else (None, None), strict=True)
    ]
    with task_errors(spec.task.name):
        model = judged(model, target, *own)
    if isinstance(model, Judged):
        _check_judged(model, target, task.sample, f"--loss {loss}", f"--metric {metric}")
    return model


@lru_cache(maxsize=64)
def _check_judged(model: Judged, target: Targets, sample: jax.ShapeDtypeStruct, loss: str, metric: str) -> None:
    """Refuse a loss that does not give one number a sample, and a metric that does not give one number."""
    x, mask = jax.ShapeDtypeStruct((3, *sample.shape), sample.dtype), jax.ShapeDtypeStruct((3,), bool)
    y = jax.ShapeDtypeStruct((3,), np.int32) if target.labels else jax.ShapeDtypeStruct((3, target.outputs), np.float32)

    def judge(by: Any, x: Any, *rest: Any) -> Any:
        return by(model(model.init(jax.random.key(0)), x), *rest)

    for flag, function, given, expected, words in (
        (loss, model.loss, (y,), (3,), "a number a sample"),
        (metric, model.metric, (y, mask), (), "one number"),
    ):
        with user_errors(flag, function):
            found = jax.eval_shape(partial(judge, function), x, *given)
        shape = getattr(found, "shape", None)
        if shape != expected:
            raise InputError(
                f"{flag} gives {'no array' if shape is None else f'shape {shape}'} for 3 samples; expected {words}."
            )
