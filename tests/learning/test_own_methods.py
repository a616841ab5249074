"""Does a method of a user's own do what the how-to page says, and is a wrong return said in a sentence?"""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contexts import context

from perfeds2.errors import InputError
from perfeds2.learning.datasets import digits
from perfeds2.learning.job import Known, Program, local_update
from perfeds2.learning.learner import Learner, expect_part
from perfeds2.learning.merges import Merge
from perfeds2.learning.models.mlp import MLP
from perfeds2.learning.objectives import FedAvg, Objective
from perfeds2.learning.replay import first_weights, replay
from perfeds2.learning.transforms import OwnCompression, RandomK
from perfeds2.network.cell import Cell
from perfeds2.spec.build import Stage, check, make_algorithms, make_timelines
from perfeds2.spec.cells import upload_bits
from perfeds2.spec.resolve import spec_from
from perfeds2.timeline.protocol import Protocol
from perfeds2.timeline.simulate import simulate

PAGE = Path(__file__).resolve().parents[2] / "docs/how-to/own-methods.md"
TASK = digits(4, 3, 0)


def replayed(objective, merge, task=TASK):
    """After one round with all UEs."""
    line = simulate(Cell.draw(4, 0), Protocol(4), payload_bits=1e5, samples=24, rounds=1)
    return replay(task, line, Learner(objective, beta=0.1, batch=8, merge=merge))


FILES = dict(
    re.findall(r"^```python\n# (\w+)\.py\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
)


def names_in(file: str) -> dict[str, Any]:
    """The names that a file of the page defines."""
    namespace: dict[str, Any] = {"__name__": file}
    exec(compile(FILES[file], f"{file}.py", "exec"), namespace)
    return namespace


@pytest.fixture(scope="module")
def feddyn() -> Any:
    return names_in("feddyn")["FedDyn"]


def test_the_three_methods_take_less_than_seventy_lines():
    assert FILES.keys() == {"feddyn", "in_turn", "random_k"}
    assert sum(len([line for line in file.splitlines() if line.strip()]) for file in FILES.values()) < 70


def test_tiers_of_the_page_take_turns():
    spec = spec_from(ues=6, quorum=2, tiers=3, seeds=[0], rounds=7, algorithms=[names_in("in_turn")["InTurn"]])
    stage = Stage.of(spec, 0)
    (algorithm,) = make_algorithms(spec, stage)
    (line,) = make_timelines(spec, stage, [algorithm])
    assert algorithm.protocol == Protocol(2, rests=True)
    assert len({tuple(row) for row in line.ues.tolist()}) == 3
    assert line.ues[:3].tolist() == line.ues[3:6].tolist()


@pytest.mark.slow
def test_random_k_of_the_page_is_the_built_in_one_in_size_and_loses_nothing():
    """What is left out of one upload is in the next: after k jobs, sent and unsent together are the sum of all gradients."""
    function = names_in("random_k")["tenth"]
    numbers = upload_bits(spec_from()) / 32
    assert upload_bits(spec_from(compress=function)) == 32 * (numbers // 10)
    assert upload_bits(spec_from(compress="random-k:0.1")) == 32 * round(numbers / 10)
    for compress in (OwnCompression(function), RandomK(0.1)):
        learner = Learner(FedAvg(), beta=0.1, batch=8, compress=compress)
        program, known = Program.of(TASK.model, learner), Known.of(TASK, learner, 0)
        params = first_weights(TASK.model, np.int32(0))
        plain = Learner(FedAvg(), beta=0.1, batch=8)
        whole, _ = jax.jit(local_update, static_argnums=0)(program, Known.of(TASK, plain, 0), params, 1, 0)
        unsent = jax.tree.map(jnp.zeros_like, params)
        sent, (_, left) = jax.jit(local_update, static_argnums=0)(program, known, params, 1, 0, None, (None, unsent))
        flat = np.concatenate([np.ravel(each) for each in jax.tree.leaves(sent)])
        assert 0 < np.count_nonzero(flat) <= round(flat.size / 10)
        for name, gradient in whole.items():
            np.testing.assert_allclose(sent[name] + left[name], gradient, rtol=1e-6)


def test_an_own_compression_says_its_size_alone():
    with pytest.raises(InputError, match="leave out --bits and --top-k"):
        upload_bits(spec_from(compress=names_in("random_k")["tenth"], bits=8))
    with pytest.raises(InputError, match="--compress cannot be combined with SCAFFOLD"):
        check(spec_from(compress="random-k:0.1", algorithms=["SCAFFOLD"]), trains=False)


class Half:
    batches = 1

    def __call__(self, loss, params, start, batches):  # noqa: ARG002 (what was an objective once)
        return params


def test_a_class_that_is_not_derived_is_refused_with_the_line_that_mends_it():
    with pytest.raises(
        InputError, match=r"Half is not an objective. Write class Half\(Objective\): after from perfeds2 import"
    ):
        expect_part(Half(), Objective, "an objective")
    for own in (Half, Half()):
        with pytest.raises(InputError, match=r"Half is not a method. Write class Half\(Objective\)"):
            check(spec_from(algorithms=[own]), trains=False)


def test_an_unknown_need_is_refused():
    @dataclass(frozen=True)
    class Wanting(Merge):
        needs = frozenset({"everything"})  # pyright: ignore[reportAssignmentType]

    with pytest.raises(InputError, match="Wanting needs everything; use uploads, start_models, broadcast, undrafted"):
        Learner(FedAvg(), merge=Wanting())


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
    client_state = {"w": jnp.array([1.0, 1.0])}
    upload, now = method.job(start, None, client_state, batches, context(lambda w, _: slope @ w["w"], beta=0.1))
    np.testing.assert_allclose(upload["w"], [2.0, -2.0])
    np.testing.assert_allclose(now["w"], [1.1, 0.9])


@dataclass(frozen=True)
class Returning(Objective):
    """An objective that keeps state and returns whatever it is told to."""

    what: Any

    def init(self, params):
        return params["dense1.bias"]

    def job(self, start, broadcast, client_state, batches, context):  # noqa: ARG002 (the interface)
        return self.what(start, client_state)


@dataclass(frozen=True)
class Merging(Merge):
    """A merge that returns whatever it is told to."""

    what: Any
    needs = frozenset({"uploads", "start_models"})

    def step(self, params, arrived, state):
        return self.what(params, arrived, state)


@dataclass(frozen=True)
class OnlyABias(Objective):
    def gradient(self, params, start, batches, context):  # noqa: ARG002 (the interface)
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
            Returning(lambda start, client_state: (start, client_state[:3])),
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
