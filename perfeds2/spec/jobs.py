"""Say how long the jobs of a spec are: local epochs, and the samples whose computing they cost."""

from dataclasses import replace

import numpy as np

from perfeds2.errors import InputError
from perfeds2.learning.epochs import LocalEpochs, steps_of
from perfeds2.learning.learner import Learner
from perfeds2.learning.objectives import keeps_state
from perfeds2.learning.operations import hessian_product_cost
from perfeds2.learning.settings import as_tree
from perfeds2.learning.task import weight_shapes
from perfeds2.spec.fields import Spec
from perfeds2.spec.tasks import make_task, model_of, sample_of


def job_samples(spec: Spec, learner: Learner) -> float:
    """Return the samples of the longest job, which determine its computing time; with --count-hessian, maybe a fraction."""
    if not spec.cell.count_hessian:
        return learner.samples
    product = hessian_product_cost(model_of(spec), sample_of(spec))
    return learner.local_steps * learner.batch * learner.objective.passes_with(product)


def in_epochs(spec: Spec, seed: int, algorithm: str, learner: Learner) -> Learner:
    """Return a learner whose UEs take the steps of their own epochs, if --local-epochs is set."""
    learning, objective = spec.learning_of(algorithm), learner.objective
    if learning.local_epochs is None or not objective.trains:
        return learner
    flag, why = f"--local-epochs {learning.local_epochs:g}", ""
    counts = np.asarray(make_task(spec, seed).data.train_count)
    if learning.local_steps > 1:
        why = f"and --local-steps {learning.local_steps} were both given; give one of them"
    elif not counts.all():
        why = f"has no effect on --task {spec.task.name}, whose UEs have no number of samples"
    elif objective.chooses_steps or keeps_state(objective, weight_shapes(model_of(spec))):
        why = f"cannot be combined with {algorithm}, whose jobs choose their own steps; use --local-steps"
    if why:
        raise InputError(f"{flag} {why}.")
    steps = steps_of(counts, learning.local_epochs, learner.batch * objective.batches)
    return replace(learner, objective=LocalEpochs(as_tree(objective), steps), local_steps=int(steps.max()))
