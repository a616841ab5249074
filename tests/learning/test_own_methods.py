"""Does a method of a user's own do what the how-to page says, and is a wrong return said in a sentence?"""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from perfeds2.errors import InputError
from perfeds2.learning.datasets import digits
from perfeds2.learning.models.mlp import MLP
from perfeds2.learning.objectives import FedAvg
from perfeds2.learning.replay import Learner, first_weights, replay
from perfeds2.network.cell import Cell
from perfeds2.timeline.protocol import Protocol
from perfeds2.timeline.simulate import simulate

PAGE = Path(__file__).resolve().parents[2] / "docs/how-to/own-methods.md"
TASK = digits(4, 3, 0)


def replayed(objective, merge, task=TASK):
    """After one round with all UEs."""
    line = simulate(Cell.draw(4, 0), Protocol(4), payload_bits=1e5, samples=24, rounds=1)
    return replay(task, line, Learner(objective, beta=0.1, batch=8, merge=merge))


@pytest.fixture(scope="module")
def feddyn() -> Any:
    block = re.search(r"^```python\n# feddyn.py\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert block
    namespace: dict[str, Any] = {}
    exec(compile(block[1], "feddyn.py", "exec"), namespace)
    return namespace["FedDyn"]


def test_feddyn_takes_about_forty_lines():
    block = re.search(r"^```python\n# feddyn.py\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert block
    assert len([line for line in block[1].splitlines() if line.strip()]) <= 45


@pytest.mark.slow
def test_in_its_first_round_feddyn_goes_twice_as_far_as_fedavg(feddyn):
    """g and h are zero at first. One step with all UEs: h/μ is the mean move, and the mean model has moved by it too."""
    task = replace(TASK, model=MLP((64, 10)))
    first = first_weights(task.model, np.int32(0))
    plain, ours = replayed(FedAvg(), Learner(FedAvg()).merge, task), replayed(feddyn(0.2), feddyn(0.2).merge, task)
    for name, start in first.items():
        np.testing.assert_allclose(ours[name] - start, 2 * (plain[name] - start), rtol=1e-3, atol=1e-6)


def test_feddyn_remembers_what_the_page_says(feddyn):
    """A job by hand, on f = c·w with the gradient c: g grows by μβ(c − g) in one step."""
    method, start = feddyn(0.5), {"w": jnp.array([1.0, 2.0])}
    slope = jnp.array([3.0, -1.0])
    batches = (jnp.zeros((1, 1, 4, 2)), jnp.zeros((1, 1, 4)))
    kept = {"w": jnp.array([1.0, 1.0])}
    upload, now = method.job(lambda w, _: slope @ w["w"], start, None, kept, batches, 0.1)
    np.testing.assert_allclose(upload["w"], [2.0, -2.0])
    np.testing.assert_allclose(now["w"], [1.1, 0.9])


@dataclass(frozen=True)
class Returning:
    """An objective that keeps state and returns whatever it is told to."""

    what: Any
    batches = 1

    def first(self, params):
        return params["dense1.bias"]

    def job(self, loss, start, told, kept, batches, beta):  # noqa: ARG002 (the interface)
        return self.what(start, kept)


@dataclass(frozen=True)
class Merging:
    """A merge that returns whatever it is told to."""

    what: Any

    def init(self, params, ues):  # noqa: ARG002 (the interface)
        return None

    def __call__(self, params, arrived, state):
        return self.what(params, arrived, state)


@dataclass(frozen=True)
class OnlyABias:
    batches = 1

    def __call__(self, loss, params, start, batches):  # noqa: ARG002 (the interface)
        return {"dense1.bias": params["dense1.bias"]}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("objective", "merge", "sentence"),
    [
        (
            OnlyABias(),
            None,
            "the objective OnlyABias returned the upload with nothing as dense1.weight; expected float32 of shape [64, 32].",
        ),
        (
            Returning(lambda start, _: start),
            None,
            "the objective Returning returned a dict; expected two values: the upload and what the UE keeps.",
        ),
        (
            Returning(lambda start, kept: (start, kept[:3])),
            None,
            "the objective Returning returned what the UE keeps with float32 of shape [3]; expected float32 of shape [32].",
        ),
        (
            None,
            Merging(lambda params, _, state: (params, state, 1)),
            "the merge Merging returned 3 values; expected two values: the next model and the next state.",
        ),
        (
            None,
            Merging(lambda _, arrived, state: (arrived.models, state)),
            "the merge Merging returned the next model with float32 of shape [4, 32] as dense1.bias; expected float32 of "
            "shape [32].",
        ),
        (
            None,
            Merging(lambda params, *_: (params, "round 1")),
            "the merge Merging returned the next state with a str; expected nothing.",
        ),
    ],
)
def test_a_wrong_return_is_said_in_a_sentence(objective, merge, sentence):
    with pytest.raises(InputError) as error:
        replayed(objective or FedAvg(), merge or Learner(FedAvg()).merge)
    assert str(error.value) == sentence
