"""Does an adapter train exactly what it says: a low-rank change of matrices, or one layer?"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contexts import context
from jax.flatten_util import ravel_pytree
from needs import needs
from safetensors.numpy import save_file

from perfeds2 import InputError, compare
from perfeds2.learning.datasets import digits
from perfeds2.learning.models.adapter import Adapted, Adapter, WeightsFile, adapt, folded
from perfeds2.learning.models.lenet import CNN
from perfeds2.learning.models.mlp import MLP
from perfeds2.learning.models.model import mean_loss
from perfeds2.learning.models.transformer import Transformer
from perfeds2.learning.objectives import FedAvg, PerFed
from perfeds2.runs.export import export
from perfeds2.spec.build import Stage, make_algorithms
from perfeds2.spec.cells import cycles_per_sample, model_bits, upload_bits
from perfeds2.spec.resolve import spec_from
from perfeds2.spec.tasks import make_task, model_of

NET = MLP((64, 7, 10), activation=jnp.tanh)
BODY = {name: np.asarray(values) for name, values in NET.init(jax.random.key(5)).items()}
LORA = adapt(NET, "lora:2,alpha=6", BODY)


def batches(count, seed=0):
    task = digits(4, 3, seed)
    return task.data.batches(jax.random.key(seed), jnp.int32(1), (count, 12))


def moved(model, seed=3):
    """Parameters away from the start, where B = 0 hides half of the gradient."""
    first = model.init(jax.random.key(seed))
    keys = jax.random.split(jax.random.key(seed + 1), len(first))
    return {name: w + 0.3 * jax.random.normal(key, w.shape) for key, (name, w) in zip(keys, first.items(), strict=True)}


def dense(params, scale=3.0):
    """The body with W + (α/r)·BA, by hand in NumPy."""
    whole = dict(BODY)
    for name in ("dense1.weight", "dense2.weight"):
        up, down = (np.asarray(params[name + end], float) for end in (".lora_b", ".lora_a"))
        whole[name] = BODY[name] + scale * up @ down
    return whole


def test_outputs_are_those_of_the_merged_matrices():
    params, (x, _) = moved(LORA), batches(1)
    whole = dense(params)
    ours = np.tanh(x[0] @ whole["dense1.weight"] + whole["dense1.bias"]) @ whole["dense2.weight"] + whole["dense2.bias"]
    np.testing.assert_allclose(LORA(params, x[0]), ours, rtol=1e-4, atol=1e-5)


def test_training_starts_at_the_outputs_of_the_body():
    x = batches(1)[0][0]
    expected = NET({name: jnp.asarray(values) for name, values in BODY.items()}, x)
    for model in (LORA, adapt(NET, "head", BODY), adapt(NET, None, BODY)):
        np.testing.assert_allclose(model(model.init(jax.random.key(8)), x), expected, rtol=1e-6)


def test_the_gradient_is_that_of_the_dense_model_through_both_factors():
    params, (x, y) = moved(LORA), batches(1)
    ours = jax.grad(lambda w: mean_loss(LORA, w, x[0], y[0]))(params)
    slopes = jax.grad(lambda w: mean_loss(NET, w, x[0], y[0]))(
        {k: jnp.asarray(v, jnp.float32) for k, v in dense(params).items()}
    )
    assert set(ours) == {f"dense{n}.weight.lora_{which}" for n in (1, 2) for which in "ab"}
    for name in ("dense1.weight", "dense2.weight"):
        slope, up, down = (
            np.asarray(slopes[name]),
            np.asarray(params[name + ".lora_b"]),
            np.asarray(params[name + ".lora_a"]),
        )
        np.testing.assert_allclose(ours[name + ".lora_b"], 3.0 * slope @ down.T, rtol=2e-4, atol=1e-6)
        np.testing.assert_allclose(ours[name + ".lora_a"], 3.0 * up.T @ slope, rtol=2e-4, atol=1e-6)


@pytest.mark.parametrize("how", ["lora:2,alpha=6", "head"])
def test_perfeds_gradient_through_an_adapter_is_exact(how):
    """Along random directions, it is the finite difference of w ↦ f(w − α∇f(w; D_in); D_o) in float64."""
    with jax.enable_x64():
        body = {name: values.astype(np.float64) for name, values in BODY.items()}
        model = adapt(NET, how, body)
        params = jax.tree.map(lambda w: w.astype(jnp.float64), moved(model))
        x, y = batches(2)
        x = x.astype(jnp.float64)

        def loss(w, batch):
            return mean_loss(model, w, *batch)

        ours = PerFed(0.5, hessian_batch="inner").gradient(params, params, (x, y), context(loss))
        flat, back = ravel_pytree(params)

        def after_a_step(at):
            w = back(at)
            g = jax.grad(loss)(w, (x[0], y[0]))
            return loss(jax.tree.map(lambda a, b: a - 0.5 * b, w, g), (x[1], y[1]))

        for seed in range(3):
            direction = jax.random.normal(jax.random.key(seed), flat.shape)
            step = 1e-5 * direction
            difference = (after_a_step(flat + step) - after_a_step(flat - step)) / 2e-5
            assert float(jnp.vdot(ravel_pytree(ours)[0], direction)) == pytest.approx(float(difference), rel=1e-6)
        first_order = PerFed(0.5, hessian="fo").gradient(params, params, (x, y), context(loss))
        assert float(jnp.abs(ravel_pytree(ours)[0] - ravel_pytree(first_order)[0]).max()) > 1e-3  # the Hessian counts


@pytest.mark.parametrize(
    ("model", "how", "names"),
    [
        (NET, "lora:1,layers=dense2", {"dense2.weight.lora_a", "dense2.weight.lora_b"}),
        (NET, "head", {"dense2.weight", "dense2.bias"}),
        (NET, "head:layers=dense1", {"dense1.weight", "dense1.bias"}),
        (Transformer(12, 8, 4, 2, 1), "head", {"dense.weight", "dense.bias"}),
    ],
)
def test_an_adapter_has_only_its_own_parameters(model, how, names):
    body = model.init(jax.random.key(0))
    assert set(adapt(model, how, body).init(jax.random.key(1))) == names


def test_a_rank_has_as_many_numbers_as_its_factors_and_never_more_than_the_matrix_has_ranks():
    assert [sum(w.size for w in adapt(NET, f"lora:{rank}", BODY).init(jax.random.key(0)).values()) for rank in (1, 2, 99)] == [
        64 + 7 + 7 + 10, 2 * (64 + 7 + 7 + 10), 7 * (64 + 7 + 7 + 10)
    ]  # fmt: skip
    assert folded((5, 5, 3, 16)) == (75, 16)
    assert folded((8, 3, 3, 3)) == (8, 27)


def test_convolutions_and_embeddings_are_adapted_too():
    for model, x in [
        (CNN.fitting(3072, 10, np.dtype(np.uint8)), jnp.zeros((2, 3072), jnp.uint8)),
        (Transformer(12, 8, 4, 2, 1), jnp.zeros((2, 8), jnp.uint8)),
    ]:
        body = model.init(jax.random.key(0))
        adapted = adapt(model, "lora:2", body)
        params = moved(adapted)
        assert jax.eval_shape(adapted, params, x).shape == jax.eval_shape(model, body, x).shape
        slopes = jax.eval_shape(jax.grad(lambda w, a=adapted, x=x: a(w, x)[0, 0]), params)
        matrices = [name for name, w in body.items() if w.ndim > 1]
        assert set(slopes) == {name + end for name in matrices for end in (".lora_a", ".lora_b")}


@pytest.mark.slow
@needs("torch")
def test_a_pytorch_module_is_adapted_from_its_own_weights():
    import torch  # type: ignore[import-not-found]  # not a dependency

    from perfeds2.learning.models.from_torch import from_torch

    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))
    adapted = adapt(from_torch(module, jax.ShapeDtypeStruct((6,), np.float32)), "lora:2,alpha=4")
    params = moved(adapted)
    with torch.no_grad():
        for number in (0, 2):
            up, down = (torch.tensor(np.asarray(params[f"{number}.weight.lora_{which}"])) for which in "ba")
            module.get_parameter(f"{number}.weight").add_(2.0 * up @ down)
        x = torch.randn(4, 6)
        np.testing.assert_allclose(adapted(params, jnp.asarray(x.numpy())), module(x).numpy(), rtol=1e-4, atol=1e-5)
    assert set(adapt(from_torch(module, jax.ShapeDtypeStruct((6,), np.float32)), "head").init(jax.random.key(0))) == {
        "2.weight", "2.bias"
    }  # fmt: skip


@pytest.mark.parametrize(
    "text", ["lora", "lora:0", "lora:x", "rank:8", "lora:8,alpha=-1", "lora:8,beta=2", "head:alpha=2"]
)
def test_other_texts_are_refused(text):
    with pytest.raises(ValueError, match=r"is not an adapter|unknown or invalid setting"):
        Adapter.parse(text)
    with pytest.raises(InputError, match="--adapter"):
        spec_from(task="digits", adapter=text)


def test_a_body_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match=r"whose dense1.bias has shape \(7,\); the file has no such array"):
        adapt(NET, "lora:2", {name: w for name, w in BODY.items() if name != "dense1.bias"})
    with pytest.raises(ValueError, match=r"whose dense1.bias has shape \(7,\); the file has shape \(8,\)"):
        adapt(NET, "lora:2", BODY | {"dense1.bias": np.zeros(8)})
    with pytest.raises(ValueError, match="has no third"):
        adapt(NET, "lora:2", BODY | {"third": np.zeros(8)})
    with pytest.raises(ValueError, match="draws its weights at random; add --init"):
        adapt(NET, "lora:2")
    with pytest.raises(ValueError, match="finds no array named dense9"):
        adapt(NET, "lora:2,layers=dense9", BODY)


# The command line's settings


@pytest.fixture
def body(tmp_path):
    """Weights of the task's usual model."""
    save_file(
        {name: np.asarray(w) for name, w in digits.model.init(jax.random.key(5)).items()}, tmp_path / "body.safetensors"
    )
    return tmp_path / "body.safetensors"


def test_only_the_adapter_is_uploaded_and_counts_for_privacy(body):
    sizes = {"lora:2": 2 * (64 + 32) + 2 * (32 + 10), "head": 32 * 10 + 10, None: 65 * 32 + 33 * 10}
    for adapter, numbers in sizes.items():
        spec = spec_from(
            task="digits", adapter=adapter, init=str(body), clip=1.0, dp_noise=1.0, algorithms=["FedAvgS2"]
        )
        assert upload_bits(spec, FedAvg()) == model_bits(spec) == 32 * numbers
        run = {"task": "digits", "adapter": adapter, "init": str(body), "clip": 1.0, "dp_noise": 1.0}
        found = compare(**run, algorithms=["FedAvgS2"], seeds=[0], horizon_s=0.2, eval_every_s=0.2)
        row = found.summary["algorithms"][0]
        assert row["noise_to_clip"]["mean"] == pytest.approx(np.sqrt(numbers) / spec.protocol.quorum)


def test_frozen_layers_are_not_computed_for_free(body):
    """The forward pass and the way back through the upper layer cost the same whatever is trained."""
    costs = {how: cycles_per_sample(spec_from(task="digits", adapter=how, init=str(body))) for how in (None, "lora:2")}
    assert 0.7 * costs[None] < costs["lora:2"] < 1.2 * costs[None]


def test_all_seeds_share_one_model_and_a_changed_file_is_another_training(body):
    spec = spec_from(task="digits", adapter="lora:2", init=str(body))
    assert make_task(spec, 0).model is make_task(spec, 1).model is model_of(spec)
    assert isinstance(model_of(spec), Adapted)
    opened = WeightsFile.open(body)
    save_file({name: w + 1 for name, w in opened.weights().items()}, body)
    assert spec_from(task="digits", adapter="lora:2", init=str(body)).own != spec.own
    with pytest.raises(ValueError, match="has changed"):
        opened.weights()


def test_a_random_body_and_broken_files_are_refused(tmp_path):
    for settings, said in [
        ({"adapter": "lora:2"}, "draws its weights at random; add --init"),
        ({"init": str(tmp_path / "none.safetensors")}, "was not found"),
    ]:
        with pytest.raises(InputError, match=said):
            model_of(spec_from(task="digits", **settings))
    (tmp_path / "bad.safetensors").write_bytes(b"no tensors")
    with pytest.raises(InputError, match="is not a safetensors file"):
        model_of(spec_from(task="digits", init=str(tmp_path / "bad.safetensors")))
    save_file({"PerFedS2/0/dense1.bias": np.zeros(3)}, tmp_path / "several.safetensors")
    with pytest.raises(InputError, match=r"holds several models .*perfeds2 export"):
        model_of(spec_from(task="digits", init=str(tmp_path / "several.safetensors")))


def test_a_run_is_adapted_exported_and_adapted_again(body, tmp_path):
    """An export has the merged weights, so that it may be the next run's body."""
    run = {"task": "digits", "ues": 4, "seeds": [0], "horizon_s": 0.3, "eval_every_s": 0.3, "algorithms": ["PerFedS2"]}
    found = compare(**run, adapter="lora:2", init=str(body), out=tmp_path / "run")
    (params,) = found.models.values()
    assert all(name.endswith((".lora_a", ".lora_b")) for name in params)
    export(tmp_path / "run", None, None, tmp_path / "merged.safetensors")
    merged, before = (WeightsFile.open(path).weights() for path in (tmp_path / "merged.safetensors", body))
    assert merged.keys() == before.keys()
    assert (merged["dense1.weight"] != before["dense1.weight"]).any()
    assert (merged["dense1.bias"] == before["dense1.bias"]).all()
    again = compare(**run, init=str(tmp_path / "merged.safetensors"))
    assert again.rows[0]["test_accuracy"] == pytest.approx(found.rows[-1]["test_accuracy"], abs=1e-6)


def test_stages_and_methods_with_heads_work_through_an_adapter(body):
    spec = spec_from(task="digits", adapter="lora:2", init=str(body), algorithms=["FedRep", "Ditto", "FedBABU"])
    stage = Stage.of(spec, 0)
    sent = {one.name: upload_bits(spec, one.learner.objective) / 32 for one in make_algorithms(spec, stage)}
    assert sent == {"FedRep": 2 * (64 + 32), "Ditto": 2 * (64 + 32 + 32 + 10), "FedBABU": 2 * (64 + 32)}
