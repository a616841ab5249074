"""Which network is trained: the task's own, or the one that --model names, made for the task's samples?"""

import inspect
import math
from functools import lru_cache, partial
from typing import Any

import jax

from perfeds2.errors import InputError
from perfeds2.learning.models.from_torch import from_torch, is_torch, weights_of
from perfeds2.learning.models.model import DoesNotFit, Model
from perfeds2.learning.task import Recipe, Task, logits
from perfeds2.spec.fields import Spec
from perfeds2.spec.names import Named, call, expect, user_errors
from perfeds2.spec.tasks import judged_as_told


def network_of(spec: Spec, task: Recipe | Task) -> Model:
    """The task's own model or the one that was chosen, with the loss and the metric that were."""
    return judged_as_told(spec, task, task.model if spec.task.model is None else _chosen(spec, task))


def _chosen(spec: Spec, task: Recipe | Task) -> Model:
    """The model that --model names, for a task's samples and as many classes as the task's own model tells apart."""
    assert spec.task.model is not None
    with user_errors(f"--task {spec.task.name}", type(task.model)):
        (classes,) = logits(task.model, task.sample)
    return _fitting(spec.task.model, str(spec.task.name), task.sample, classes, weights_of(spec.task.model.value))


@lru_cache(maxsize=64)  # one object for all seeds: programs are compiled for a model
def _fitting(named: Named, task: str, sample: jax.ShapeDtypeStruct, classes: int, weights: str) -> Model:  # noqa: ARG001 (other weights, another model)
    inputs, given, flag = math.prod(sample.shape), named.value, f"--model {named}"
    known = {"inputs": inputs, "classes": classes, "dtype": sample.dtype}
    is_made = inspect.isclass(given) or not (isinstance(given, Model) or is_torch(given))
    make = partial(call, given, flag, known) if is_made else None
    unfit = f"{flag} does not fit --task {task}, whose samples have {inputs} numbers ({sample.dtype}) and are of {classes} classes"
    try:
        given = given if make is None else make()
    except DoesNotFit as error:
        raise InputError(f"{unfit}: {error}.") from None
    model = expect(_of_torch(make or given, sample, flag) if is_torch(given) else given, Model, "--model", named)
    try:
        hash(model)
    except TypeError as error:
        raise InputError(
            f"{flag} cannot be compiled for ({error}); make it a frozen dataclass, with tuples for lists."
        ) from None
    try:
        shape, named_arrays = logits(model, sample), jax.eval_shape(lambda: model.init(jax.random.key(0)))
        why = "" if shape == (classes,) else f"it gives {' × '.join(map(str, shape))} logits a sample"
        why = why if isinstance(named_arrays, dict) else f"its init gives a {type(named_arrays).__name__}, not a dict"
    except Exception as error:  # whatever a model does with samples it was not made for
        why = f"{type(error).__name__}: {' '.join(str(error).split())[:160].removesuffix('.')}"
    if why:
        raise InputError(f"{unfit}: {why}.")
    return model


def _of_torch(given: Any, sample: jax.ShapeDtypeStruct, flag: str) -> Model:
    """A module, or what makes a new one for each seed, as a model."""
    try:
        return from_torch(given, sample)
    except InputError as error:
        raise InputError(f"{flag}: {error}") from error
