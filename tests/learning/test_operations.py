"""Are the multiply-adds and the memory of a gradient those that can be counted by hand, and those of XLA?"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contexts import context
from needs import needs

from perfeds2.learning.datasets import TASKS
from perfeds2.learning.learner import Learner
from perfeds2.learning.models.from_torch import from_torch
from perfeds2.learning.models.lenet import LENET
from perfeds2.learning.models.lstm import LSTM
from perfeds2.learning.models.mlp import MLP
from perfeds2.learning.models.model import mean_loss
from perfeds2.learning.models.resnet import resnet18_gn
from perfeds2.learning.models.transformer import transformer
from perfeds2.learning.objectives import FedAvg, PerFed
from perfeds2.learning.operations import counted_cycles, hessian_product_cost, job_bytes, multiply_adds
from perfeds2.learning.task import cycles_of_parameters, parameters
from perfeds2.spec.build import Stage, make_algorithms, make_timelines
from perfeds2.spec.cells import cycles_per_sample
from perfeds2.spec.fleet_warnings import fleet_warnings
from perfeds2.spec.jobs import job_samples
from perfeds2.spec.resolve import read_toml, resolve, spec_from

BYTES, LETTERS = np.dtype(np.uint8), 12
MODELS: dict[str, tuple[Any, int]] = {  # and the length of a sample
    "mlp": (MLP((784, 100, 10), input_scale=255), 784),
    "lenet5": (LENET, 3072),
    "lstm": (LSTM(letters=80), LETTERS),
    "resnet18-gn": (resnet18_gn(768, 10, BYTES, width=16), 768),
    "transformer": (transformer(LETTERS, 80, BYTES), LETTERS),
}


def of_bytes(length: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((length,), np.uint8)


def test_the_papers_network_computes_as_long_as_before():
    mnist = TASKS["mnist"]
    forward = 784 * 100 + 100 * 10
    assert multiply_adds(mnist.model, mnist.sample) == 2 * forward + 100 * 10 == 159_800
    assert counted_cycles(mnist.model, mnist.sample) == cycles_of_parameters(mnist.model) == 7_951_000
    assert cycles_per_sample(spec_from(task="mnist")) == cycles_per_sample(
        spec_from(task="mnist", cycles="per-parameter")
    )


def unrolled(step, first, rows, *_, reverse=False, **__):
    """Do what ``jax.lax.scan`` does, but visibly: XLA counts the body of a loop only once."""
    state, made = first, []
    order = range(jax.tree.leaves(rows)[0].shape[0])
    for number in reversed(order) if reverse else order:
        state, out = step(state, jax.tree.map(lambda each: each[number], rows))  # noqa: B023 (called at once)
        made.append(out)
    return state, jax.tree.map(lambda *each: jnp.stack(each[::-1] if reverse else each), *made)


@pytest.mark.parametrize("name", MODELS)
def test_the_count_is_within_5_percent_of_xlas(name, monkeypatch):
    model, length = MODELS[name]
    ours, batch = multiply_adds(model, of_bytes(length)), 64
    monkeypatch.setattr(jax.lax, "scan", unrolled)
    params = jax.eval_shape(lambda: model.init(jax.random.key(0)))
    x = jax.ShapeDtypeStruct((batch, length), np.uint8)
    gradient = jax.jit(jax.grad(lambda w, x: jnp.square(model(w, x)).sum()))
    cost: Any = gradient.lower(params, x).cost_analysis()
    assert ours == pytest.approx(cost["flops"] / 2 / batch, rel=0.05)


def test_a_convolution_costs_more_than_its_parameters_say():
    sample, dense = of_bytes(3072), MLP((3072, 22, 100))
    assert parameters(dense) == pytest.approx(parameters(LENET), rel=0.01)
    assert multiply_adds(LENET, sample) > 8 * multiply_adds(dense, sample)


class Frozen:
    """The first layer of a network is frozen."""

    def init(self, _):
        return {"second": jnp.zeros((30, 5))}

    def __call__(self, params, x):
        return jnp.tanh(x @ jnp.ones((20, 30))) @ params["second"]


def test_frozen_layers_compute_too():
    assert multiply_adds(Frozen(), jax.ShapeDtypeStruct((20,), np.float32)) == 20 * 30 + 2 * 30 * 5


def test_a_loop_counts_every_step_and_a_product_of_weights_hardly_counts():
    class Loop:
        def init(self, _):
            return {"w": jnp.eye(8), "v": jnp.eye(8)}

        def __call__(self, params, x):
            weight = params["w"] @ params["v"]  # once a batch
            return jax.lax.scan(lambda h, _: (h @ weight, None), x, None, length=5)[0]

    forward, backward = 5 * 64, 5 * 64 + 4 * 64  # of weights, and of what entered each step but the first
    counted = multiply_adds(Loop(), jax.ShapeDtypeStruct((8,), np.float32))
    assert forward + backward <= counted <= forward + backward + 64 + 2  # a loop may derive by what entered first, too


@needs("torch")
def test_a_pytorch_model_is_counted_like_ours():
    from torch import nn  # type: ignore[import-not-found]

    module = nn.Sequential(nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(72, 5))
    sample = jax.ShapeDtypeStruct((64,), np.float32)
    convolution, dense = 2 * 6 * 6 * 9, 72 * 5
    assert multiply_adds(from_torch(module, sample), sample) == 2 * convolution + 3 * dense


def test_the_peak_of_memory_by_hand():
    model, batch = MLP((6, 4, 2)), 10
    weights, samples = parameters(model), batch * 6
    hidden, logits = batch * 4, batch * 2
    fewest = 4 * (2 * weights + samples + hidden)  # a gradient as large as the weights, and what it is made of
    sample = jax.ShapeDtypeStruct((6,), np.float32)
    peak = job_bytes(model, sample, Learner(FedAvg(), batch=batch))
    assert fewest <= peak <= fewest + 4 * (3 * (hidden + logits) + 2 * samples)  # and views of the samples
    wide = job_bytes(model, sample, Learner(FedAvg(), batch=10 * batch))
    assert 5 * peak < wide + 4 * 10 * 2 * weights < 12 * peak


@pytest.mark.slow
@pytest.mark.parametrize("objective", [FedAvg(), PerFed(0.03)])
@pytest.mark.parametrize("name", ["mlp", "lenet5", "transformer"])
def test_a_jobs_memory_is_about_xlas(name, objective):
    model, length = MODELS[name]
    params = jax.eval_shape(lambda: model.init(jax.random.key(0)))
    shape = (objective.batches, 20)
    batches = jax.ShapeDtypeStruct((*shape, length), np.uint8), jax.ShapeDtypeStruct(shape, np.int32)
    job = jax.jit(lambda w, b: objective.gradient(w, w, b, context(lambda w, b: mean_loss(model, w, *b))))
    used: Any = job.lower(params, batches).compile().memory_analysis()
    xlas = used.temp_size_in_bytes + used.argument_size_in_bytes + used.output_size_in_bytes
    assert 0.5 * xlas < job_bytes(model, of_bytes(length), Learner(objective, batch=20)) < 2 * xlas


def test_a_job_of_perfed_needs_more_memory_than_a_gradient(tmp_path):
    model, sample = MODELS["lenet5"][0], of_bytes(3072)
    needed = [job_bytes(model, sample, Learner(each, batch=40)) for each in (FedAvg(), PerFed(0.03))]
    assert needed[1] > 1.4 * needed[0]
    (tmp_path / "fleet.csv").write_text(f"name,memory_mb\nphone,{sum(needed) / 2e6}\n")
    run: dict[str, Any] = {"task": "cifar100", "model": "lenet5", "cell": str(tmp_path / "fleet.csv"), "quorum": 1}
    assert not any("memory" in line for line in fleet_warnings(spec_from(**run, algorithms=["FedAvgS2"])))
    (said,) = [line for line in fleet_warnings(spec_from(**run)) if "memory" in line]
    assert "a job of PerFed-SYN needs about" in said


def test_a_hessian_product_costs_two_gradients_of_a_small_network():
    mnist = TASKS["mnist"]
    forward, gradient = 79_400, 159_800
    # Its derivative has every product of the gradient twice, except that samples and the first layer's have one side.
    assert gradient + forward < hessian_product_cost(mnist.model, mnist.sample) * gradient < 3 * gradient


def test_counting_the_hessian_lengthens_jobs_of_perfed_only():
    given: dict[str, Any] = {
        "task": "digits",
        "algorithms": ["PerFedS2", "FedAvgS2"],
        "rounds": 20,
        "schedule": "first",
    }
    seconds = {}
    for counted in (None, True):
        spec = spec_from(**given, count_hessian=counted)
        stage = Stage.of(spec, 0)
        algorithms = make_algorithms(spec, stage)
        seconds[counted] = [played.end_s for played in make_timelines(spec, stage, algorithms)]
        samples = [job_samples(spec, each.learner) for each in algorithms]
    digits = TASKS["digits"]
    product = hessian_product_cost(digits.model, digits.sample)
    assert samples == [40 * (2 + product), 40]
    assert seconds[True][0] > seconds[None][0]
    assert seconds[True][1] == seconds[None][1]


def test_first_order_has_no_product_and_differences_have_two_gradients():
    for hessian, passes in (("fo", 2), ("hf", 4)):
        spec = spec_from(algorithms=["PerFedS2"], count_hessian=True, **{"PerFed.hessian": hessian})
        (algorithm,) = make_algorithms(spec, Stage.of(spec, 0))
        assert job_samples(spec, algorithm.learner) == 40 * passes


def test_a_runs_spec_from_before_the_count_keeps_its_clock(tmp_path):
    spec = spec_from(task="digits")
    before = {**spec.values(), "cell": {key: value for key, value in spec.values()["cell"].items() if key != "cycles"}}
    path = tmp_path / "spec.toml"
    path.write_text(resolve(before).to_toml().replace('cycles = "counted"\n', ""))
    assert "cycles" not in path.read_text().replace("cycles_", "")
    assert resolve(read_toml(path)).cell.cycles == "per-parameter"
    path.write_text('[task]\nname = "digits"\n[cell]\nues = 20\n')
    assert resolve(read_toml(path)).cell.cycles == "counted"
    assert cycles_per_sample(resolve(read_toml(path))) == 5056 * 7_951_000 / 159_800
    assert math.isclose(cycles_per_sample(spec_from(cycles="per-parameter")), 100 * 2410)
