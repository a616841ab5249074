"""Build the task of a spec: how samples are split among UEs, the model, its loss and its metric."""

import inspect
import math
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial

import jax
import numpy as np

from perfeds2.errors import InputError, input_errors
from perfeds2.learning.data import Divisible
from perfeds2.learning.files.own_file import OwnFile, in_words
from perfeds2.learning.losses import MEASURES
from perfeds2.learning.models.adapter import adapt
from perfeds2.learning.models.from_torch import from_torch, is_torch, weights_of
from perfeds2.learning.models.model import DoesNotFit, Model, ModelWithLoss, bare
from perfeds2.learning.partition import ByLabel, Given, Samples, Split
from perfeds2.learning.target import Targets, with_loss
from perfeds2.learning.task import Recipe, Task, logits
from perfeds2.spec.fields import Spec, TaskSpec
from perfeds2.spec.names import Named, Value, Values, call, expect, user_errors
from perfeds2.spec.ranks import ranks_of


def make_task(spec: Spec, seed: int) -> Task:
    """Make the task of a seed: the data of each UE, and the model."""
    named, new = spec.task.name, new_ues(spec)
    ues = spec.cell.ues + new
    recipe, where = recipe_of(spec), (ues, spec.task.labels_per_ue, seed, spec.task.data_dir)
    with input_errors(f"--task {named}"):
        if recipe is None:
            task = _own_task(named, *where, spec.task.split)
        else:
            task = recipe(*where, split=split_of(spec.task.split))
    if spec.task.held_out:  # part of the training data replaces the test data
        if not isinstance(task.data, Divisible):
            raise InputError(f"--task {named} has data without held_out(), which validation needs; add that method.")
        task = replace(task, data=task.data.held_out())
    if task.ues != ues:
        more = f" and {new} new ones (--new-ues)" if new else ""
        raise InputError(f"--task {named} is for {task.ues} UEs, but there are {spec.cell.ues} (--ues){more}.")
    task = task.with_new_ues(new, seed) if new else task
    model = network_of(spec, recipe or task)
    return task if model is task.model else replace(task, model=model)


def new_ues(spec: Spec) -> int:
    """Return how many UEs never train, so that they are the share ``--new-ues`` of all UEs."""
    share = spec.task.new_ues
    return 0 if share is None else max(1, round(spec.cell.ues * share / (1 - share)))


@lru_cache(maxsize=1)  # asked for twice: for the clock, then for training
def _own_task(
    named: Named, ues: int, labels_per_ue: int | None, seed: int, data_dir: str | None, split: Named | None
) -> Task:
    asks = callable(named.value) and "split" in inspect.signature(named.value).parameters
    if split is not None and not asks:
        raise InputError(f"--task {named} has no parameter split, so --split {split} has no effect; leave it out.")
    if not callable(named.value):
        return expect(named.value, Task, "--task", named)
    known: Values = {"ues": ues, "labels_per_ue": labels_per_ue, "seed": seed, "data_dir": data_dir}
    known["split"] = split_of(split)
    return expect(call(named.value, f"--task {named}", known), Task, "--task", named)


def model_of(spec: Spec) -> Model:
    """Return the model to train; for a built-in task no data is read."""
    recipe = recipe_of(spec)
    return make_task(spec, spec.run.seeds[0]).model if recipe is None else network_of(spec, recipe)


def sample_of(spec: Spec) -> jax.ShapeDtypeStruct:
    """Return the shape and type of one sample."""
    return (recipe_of(spec) or make_task(spec, spec.run.seeds[0])).sample


def check_model(spec: Spec) -> None:
    """Refuse a chosen model, loss or metric that does not fit the task."""
    task = spec.task
    if (task.model, task.loss, task.metric, task.adapter, task.init) != (None,) * 5:
        model_of(spec)


def metric_of(spec: Spec) -> str:
    """Return the name of the metric that is reported as accuracy."""
    if spec.task.metric is not None:
        return _plain(spec.task.metric.label)
    model = None if recipe_of(spec) is not None else model_of(spec)
    if not isinstance(model, ModelWithLoss):
        return "accuracy"
    metric: object = model.metric
    ours = (name for name, each in MEASURES.items() if metric is each or type(metric) is each)
    return next(ours, None) or _plain(getattr(metric, "__name__", type(metric).__name__))


def _plain(name: str) -> str:
    return name if name.isidentifier() else "metric"  # a lambda has no usable name


def recipe_of(spec: Spec) -> Recipe | None:
    """Return the recipe of a built-in task or a data file; None for a user's own task in Python."""
    task, value = spec.task, spec.task.name.value
    if isinstance(value, OwnFile):
        with input_errors(f"--task {task.name}"):
            return Recipe.of_file(value, task.target or (), task.ue_column, _known_loss(task))
    for flag, given in (("--target", task.target), ("--ue-column", task.ue_column)):
        if given is not None:
            raise InputError(f"{flag} is for a CSV file, and --task is {task.name}; leave it out.")
    return value if isinstance(value, Recipe) else None


def model_metadata(spec: Spec, seed: int) -> dict[str, str]:
    """Return what is needed to use a model trained on a user's data file, as text; empty for other tasks."""
    file, task = spec.task.name.value, spec.task
    if not isinstance(file, OwnFile):
        return {}
    split = split_of(task.split) or ByLabel(task.labels_per_ue or 1)
    with input_errors(f"--task {task.name}"):
        return in_words(
            file.table(task.target or (), task.ue_column, _known_loss(task)), spec.cell.ues + new_ues(spec), split, seed
        )


def _known_loss(task: TaskSpec) -> str | None:
    return task.loss.text if task.loss is not None and not task.loss.source else None


def split_of(named: Named | None) -> Split | None:
    """Return the split of samples among UEs; None splits by labels per UE."""
    if named is None or not named.source:
        return None if named is None else named.value

    def ask(samples: Samples, ues: int, seed: int) -> Value:
        known = {
            "labels": samples.labels,
            "owners": samples.owners,
            "is_test": samples.is_test,
            "ues": ues,
            "seed": seed,
        }
        return call(named.value, f"--split {named}", known)

    return Given(named.text, ask)


def with_loss_and_metric(spec: Spec, task: Recipe | Task, model: Model) -> Model:
    """Return a model with the chosen loss and metric, or else with the task's own."""
    loss, metric = spec.task.loss, spec.task.metric
    before = task.model if isinstance(task.model, ModelWithLoss) else None
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
    usual = (before.loss, before.metric) if before else (None, None)
    own = [
        task_own if one is None else one.value if one.source else one.text
        for one, task_own in zip((loss, metric), usual, strict=True)
    ]
    with input_errors(f"--task {spec.task.name}"):
        model = with_loss(model, target, *own)
    if isinstance(model, ModelWithLoss):
        _check_loss(model, target, task.sample, f"--loss {loss}", f"--metric {metric}")
    return model


@lru_cache(maxsize=64)
def _check_loss(model: ModelWithLoss, target: Targets, sample: jax.ShapeDtypeStruct, loss: str, metric: str) -> None:
    """Refuse a loss that does not return one number per sample, and a metric that does not return one number."""
    x, mask = jax.ShapeDtypeStruct((3, *sample.shape), sample.dtype), jax.ShapeDtypeStruct((3,), bool)
    y = jax.ShapeDtypeStruct((3,), np.int32) if target.labels else jax.ShapeDtypeStruct((3, target.outputs), np.float32)

    def judge(by: Callable[..., jax.Array], x: jax.Array, *rest: jax.Array) -> jax.Array:
        return by(model(model.init(jax.random.key(0)), x), *rest)

    for flag, function, given, expected, words in (
        (loss, model.loss, (y,), (3,), "a number per sample"),
        (metric, model.metric, (y, mask), (), "one number"),
    ):
        with user_errors(flag, function):
            found = jax.eval_shape(partial(judge, function), x, *given)
        shape = getattr(found, "shape", None)
        if shape != expected:
            raise InputError(
                f"{flag} gives {'no array' if shape is None else f'shape {shape}'} for 3 samples; expected {words}."
            )


def network_of(spec: Spec, task: Recipe | Task) -> Model:
    """Return the task's model, or the one named by --model, with the chosen loss, metric, body and adapter."""
    return with_adapter(spec, _whole_network(spec, task))


def with_adapter(spec: Spec, model: Model) -> Model:
    """Return a model with the body and the adapter of a spec."""
    chosen = spec.task
    if chosen.adapter is None and chosen.init is None:
        return model
    return _adapted(model, chosen.adapter, chosen.init, ranks_of(spec))


@lru_cache(maxsize=64)  # one object for all seeds, since programs are compiled per model
def _adapted(model: Model, adapter: str | None, init: Named | None, ranks: tuple[int, ...] | None) -> Model:
    with input_errors(f"--adapter {adapter}" if init is None else f"--init {init}"):
        return adapt(model, adapter, None if init is None else init.value.weights(), ranks)


def _whole_network(spec: Spec, task: Recipe | Task) -> Model:
    """Return the model of which an adapter may train a part."""
    if spec.task.model is None:
        return with_loss_and_metric(spec, task, task.model)
    with user_errors(f"--task {spec.task.name}", type(task.model)):
        (classes,) = logits(task.model, task.sample)
    shape = task.shape if isinstance(task, Recipe) else ()
    weights = weights_of(spec.task.model.value)
    model = _fitting(spec.task.model, str(spec.task.name), task.sample, shape, classes, weights)
    return with_loss_and_metric(spec, task, model)


@lru_cache(maxsize=64)  # one object for all seeds, since programs are compiled per model
def _fitting(
    named: Named,
    task: str,
    sample: jax.ShapeDtypeStruct,
    shape: tuple[int, ...],  # in which a PyTorch module gets a sample; empty: that of ``sample``
    classes: int,
    weights: str,  # noqa: ARG001 (other weights, another model)
) -> Model:
    inputs, given, flag = math.prod(sample.shape), named.value, f"--model {named}"
    known = {"inputs": inputs, "classes": classes, "dtype": sample.dtype}
    is_made = inspect.isclass(given) or not (isinstance(given, Model) or is_torch(given))
    make = partial(call, given, flag, known) if is_made else None
    unfit = (
        f"{flag} does not fit --task {task}, whose samples have {inputs} numbers ({sample.dtype}) and {classes} classes"
    )
    try:
        given = given if make is None else make()
    except DoesNotFit as error:
        raise InputError(f"{unfit}: {error}.") from None
    in_shape = jax.ShapeDtypeStruct(shape or sample.shape, sample.dtype)
    model = expect(of_torch(make or given, in_shape, flag) if is_torch(given) else given, Model, "--model", named)
    try:
        hash(model)
    except TypeError as error:
        raise InputError(
            f"{flag} cannot be compiled ({error}); make it a frozen dataclass with tuples instead of lists."
        ) from None
    try:
        shape, named_arrays = logits(model, sample), jax.eval_shape(lambda: model.init(jax.random.key(0)))
        why = "" if shape == (classes,) else f"it gives {' × '.join(map(str, shape))} logits per sample"
        why = why if isinstance(named_arrays, dict) else f"its init gives a {type(named_arrays).__name__}, not a dict"
    except Exception as error:  # a model may raise anything on samples it was not made for
        why = f"{type(error).__name__}: {' '.join(str(error).split())[:160].removesuffix('.')}"
    if why:
        raise InputError(f"{unfit}: {why}.")
    return model


def of_torch(given: Value, sample: jax.ShapeDtypeStruct, flag: str) -> Model:
    """Convert a PyTorch module, or a function that makes one per seed, to a model."""
    try:
        return from_torch(given, sample)
    except InputError as error:
        raise InputError(f"{flag}: {error}") from error
