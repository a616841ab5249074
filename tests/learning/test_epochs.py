"""Does every UE take as many local steps as its own samples fill batches, in training and on the clock?"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from perfeds2.deployment.setup import Setup
from perfeds2.errors import InputError
from perfeds2.learning.epochs import LocalEpochs, steps_of
from perfeds2.learning.job import Known, Program, local_update
from perfeds2.learning.learner import Learner
from perfeds2.learning.models.model import mean_loss
from perfeds2.learning.objectives import FedAvg
from perfeds2.spec.build import Stage, make_algorithms, make_timelines
from perfeds2.spec.resolve import spec_from
from perfeds2.spec.tasks import make_task

GIVEN: dict[str, Any] = {"task": "digits", "ues": 6, "batch": 8, "beta": 0.1, "schedule": "first", "shares": "equal"}


def algorithms_of(names, **more):
    spec = spec_from(**GIVEN | more, algorithms=names, bandwidth="equal_share")
    stage = Stage.of(spec, 0)
    return spec, stage, make_algorithms(spec, stage)


def test_steps_follow_the_number_of_samples():
    assert steps_of(np.array([80, 20, 3]), epochs=2, batch=10).tolist() == [16, 4, 1]


def test_a_job_is_as_many_plain_steps_as_its_ue_has_batches():
    spec, _, (algorithm,) = algorithms_of(["FedAvgS2"], local_epochs=0.5)
    task, learner = make_task(spec, 0), algorithm.learner
    counts = np.asarray(task.data.train_count)
    assert isinstance(learner.objective, LocalEpochs)
    assert learner.local_steps == max(np.maximum(np.round(counts / 16), 1))
    first = task.model.init(jax.random.key(3))
    for ue in (int(counts.argmin()), int(counts.argmax())):
        found, _ = local_update(
            Program.of(task.model, learner), Known.of(task, learner, 0), first, jnp.int32(ue), jnp.int32(0)
        )
        key = jax.random.fold_in(jax.random.fold_in(Known.of(task, learner, 0).key, ue), 0)
        x, y = task.data.batches(key, jnp.int32(ue), (learner.local_steps, 1, 8))
        w, total = first, jax.tree.map(jnp.zeros_like, first)
        for step in range(max(1, round(counts[ue] / 16))):
            gradient = jax.grad(lambda w: mean_loss(task.model, w, x[step, 0], y[step, 0]))(w)  # noqa: B023 (called at once)
            w = jax.tree.map(lambda a, g: a - 0.1 * g, w, gradient)
            total = jax.tree.map(jnp.add, total, gradient)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), found, total)


def test_the_clock_computes_on_as_many_samples():
    spec, stage, algorithms = algorithms_of(["FedAvg-SYN"], local_epochs=2, rounds=1, cell={"layout": "equal"})
    (timeline,) = make_timelines(spec, stage, algorithms)
    steps = steps_of(np.asarray(make_task(spec, 0).data.train_count), 2, 8)
    compute_s = 8 * steps * stage.cell.cycles_per_sample / stage.cell.cpu_hz
    assert timeline.end_s > compute_s.max()
    np.testing.assert_allclose(timeline.compute_s, compute_s, rtol=1e-6)


def test_one_step_for_everybody_is_no_epochs():
    few, _, (plain,) = algorithms_of(["FedAvgS2"])
    counts = np.asarray(make_task(few, 0).data.train_count)
    _, _, (tiny,) = algorithms_of(["FedAvgS2"], local_epochs=1e-3)
    assert tiny.learner.local_steps == 1 < counts.min()
    assert isinstance(plain.learner, Learner)
    assert isinstance(plain.learner.objective, FedAvg)


@pytest.mark.parametrize(
    ("names", "more", "sentence"),
    [
        (["FedAvgS2"], {"local_steps": 3}, "--local-epochs 1 and --local-steps 3 were both given"),
        (["FedAvgS2"], {"task": "synthetic"}, "has no effect on --task synthetic"),
        (["Ditto"], {}, "cannot be combined with Ditto"),
    ],
)
def test_what_cannot_take_epochs_says_so(names, more, sentence):
    with pytest.raises(InputError, match=sentence):
        algorithms_of(names, local_epochs=1, **more)


@pytest.mark.parametrize("name", ["local_epochs", "FedAvg.local_epochs"])
def test_a_federation_refuses_epochs(name):
    """Its server does not know every UE's number of samples."""
    with pytest.raises(InputError, match=f"{name} is not a setting of a federation"):
        Setup.from_texts({name: 1, "algorithm": "FedAvgS2", "rounds": 3})
