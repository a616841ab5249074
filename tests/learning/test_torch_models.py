"""Is a PyTorch module, computed by JAX, still the same network, with the same gradients?"""

import copy
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from needs import is_present, needs

from perfeds2 import Cell, FedAvg, Learner, Protocol, Task, compare, evaluate, replay, simulate
from perfeds2.errors import InputError
from perfeds2.learning.data import Shards
from perfeds2.learning.gradients import MeanLoss
from perfeds2.learning.models import aten
from perfeds2.learning.models import from_torch as conversion
from perfeds2.learning.models.aten import ATEN
from perfeds2.learning.models.from_torch import from_torch, is_torch
from perfeds2.learning.models.lstm import recur
from perfeds2.learning.objectives import PerFed

if not is_present("torch"):
    pytest.skip("needs torch", allow_module_level=True)

import torch  # type: ignore[import-not-found]
import torch._export.utils as torch_utils  # type: ignore[import-not-found]
import torch_nets as nets
from contexts import context
from in_numpy import train_in_numpy
from torch import nn  # type: ignore[import-not-found]
from torch.func import functional_call, grad, vjp  # type: ignore[import-not-found]
from torch.nn.attention import SDPBackend, sdpa_kernel  # type: ignore[import-not-found]

pytestmark = [pytest.mark.slow, needs("torch")]  # conftest.py does not even import it for the quick tests
FLOATS, LETTERS = np.float32, np.uint8
TWELVE = jax.ShapeDtypeStruct((12,), FLOATS)
PIXELS = jax.ShapeDtypeStruct((144,), FLOATS)
TWO = jax.ShapeDtypeStruct((2,), LETTERS)


def samples(sample, *shape):
    random = np.random.default_rng(1)
    if np.issubdtype(sample.dtype, np.floating):
        return random.standard_normal((*shape, *sample.shape)).astype(sample.dtype)
    return random.integers(0, 20, (*shape, *sample.shape)).astype(sample.dtype)


@pytest.fixture(scope="module", autouse=True)
def lists_operations_once():
    """PyTorch lists all operations it has 50 times per export, because libraries might have been loaded meanwhile."""
    with pytest.MonkeyPatch.context() as patch:
        if hasattr(torch_utils, "_materialize_cpp_cia_ops"):
            patch.setattr(torch_utils, "_materialize_cpp_cia_ops", cache(torch_utils._materialize_cpp_cia_ops))
        yield


@cache
def exported(net, sample):
    torch.manual_seed(3)
    module = net()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conversion, "_check_same", lambda *_: None)  # the tests below do, and compile once
        return module, from_torch(module, sample)


def converted(net, sample):
    """A user's module, and its model. PyTorch exports it once, which takes most of a test's time."""
    module, model = exported(net, sample)
    return copy.deepcopy(module), model


# ---- the exact meta-gradient

seen: set[str] = set()  # operations, by the tests below


def meta_gradient_of_torch(module, x, y, alpha):
    """(I − α∇²f(w; D_h)) ∇f(w − α∇f(w; D_in); D_o) in PyTorch, with 64 bits."""
    module = module.double()
    params = {name: tensor.detach() for name, tensor in module.named_parameters()}
    rest = dict(module.named_buffers())

    def loss(w, batch):
        x, y = (torch.from_numpy(each[batch]) for each in (x_all, y_all))
        buffers = {name: tensor.clone() for name, tensor in rest.items()}  # BatchNorm writes into them
        return nn.functional.cross_entropy(functional_call(module, {**w, **buffers}, (x,)), y)

    x_all, y_all = (x.astype(np.float64) if x.dtype == np.float32 else x), y
    moved = {name: w - alpha * g for (name, w), g in zip(params.items(), grad(loss)(params, 0).values(), strict=True)}
    outer = grad(loss)(moved, 1)
    product = vjp(lambda w: grad(loss)(w, 2), params)[1]  # the Hessian is symmetric
    (bent,) = product(outer)
    return {name: (outer[name] - alpha * bent[name]).numpy() for name in params}


@pytest.mark.parametrize(
    ("net", "sample"),
    [
        (nets.LeNet, PIXELS),
        (nets.Normed, PIXELS),
        (nets.Transformer, TWO),
        (nets.Letters, TWO),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_the_exact_meta_gradient_is_pytorchs(net, sample):
    (module, model), x = converted(net, sample), samples(sample, 3, 8)
    seen.update(step.operation for step in model.module.steps)
    y = np.random.default_rng(2).integers(0, 4, (3, 8))
    params = model.init(jax.random.key(0))
    perfed = jax.jit(lambda w, batches: PerFed(alpha=0.3).gradient(w, w, batches, context(MeanLoss(model))))
    ours = perfed(params, (jnp.asarray(x), jnp.asarray(y)))
    with sdpa_kernel(SDPBackend.MATH):  # the one that PyTorch can differentiate twice
        theirs = meta_gradient_of_torch(module, x, y, 0.3)
    assert ours.keys() == theirs.keys()
    largest = max(np.abs(values).max() for values in theirs.values())
    for name, values in theirs.items():
        np.testing.assert_allclose(ours[name], values, rtol=0, atol=1e-5 * largest, err_msg=name)


# ---- every operation

ALL = {
    nets.Numbers: jax.ShapeDtypeStruct((24,), FLOATS),
    nets.Images: TWELVE,
    nets.Sequences: TWO,
}


@pytest.mark.parametrize("net", ALL, ids=lambda net: net.__name__)
def test_every_operation_has_pytorchs_values_and_gradients(net):
    (module, model), x = converted(net, ALL[net]), samples(ALL[net], 5)
    seen.update(step.operation for step in model.module.steps)
    mix = np.random.default_rng(3).standard_normal(module(torch.from_numpy(x)).shape).astype(np.float32)

    def mixed(params, x):
        return (jnp.sin(model(params, x)) * mix).sum()

    value, ours = jax.jit(jax.value_and_grad(mixed))({**model.module.weights}, jnp.asarray(x))
    theirs = (torch.sin(module(torch.from_numpy(x))) * torch.from_numpy(mix)).sum()
    theirs.backward()
    assert float(value) == pytest.approx(theirs.item(), rel=1e-4)
    for name, tensor in module.named_parameters():
        wanted = tensor.grad.numpy()
        np.testing.assert_allclose(
            ours[name], wanted, rtol=1e-3, atol=1e-4 * max(1.0, np.abs(wanted).max()), err_msg=name
        )


def normal(*shape):
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


DECOMPOSED = {  # operations that only PyTorch's decompositions give, with arguments
    "convolution": (normal(2, 3, 6, 6), normal(4, 3, 3, 3), normal(4), [2, 1], [1, 0], [1, 1], False, [0, 0], 1),
    "lift_fresh_copy": (normal(3),),
    "mm": (normal(2, 3), normal(3, 4)),
    "mv": (normal(2, 3), normal(3)),
    "dot": (normal(3), normal(3)),
    "alias": (normal(3),),
}
OF_PYTHON = {"floordiv", "mod", "truediv"}  # nothing to get wrong


@pytest.mark.parametrize("name", DECOMPOSED)
def test_what_pytorch_decomposes_into_is_the_same(name):
    args = DECOMPOSED[name]
    operation: Any = getattr(torch.ops.aten, name)
    theirs = operation(*(torch.from_numpy(arg) if isinstance(arg, np.ndarray) else arg for arg in args))
    arrays = [arg for arg in args if isinstance(arg, np.ndarray)]
    ours = jax.jit(lambda *arrays: ATEN[name](*arrays, *args[len(arrays) :]))(*arrays)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_no_operation_of_the_table_is_untried():
    if len(seen) < 90:
        return  # only some of the tests above were selected
    assert not set(ATEN) - seen - set(DECOMPOSED) - OF_PYTHON


numbers = st.integers(1, 3)


@settings(max_examples=12)
@given(
    numbers, numbers, st.sampled_from([0, 1, 2]), st.sampled_from([1, 2]), st.sampled_from([1, 2]), st.integers(5, 8)
)
def test_a_convolution_of_any_kind_is_pytorchs(kernel, stride, padding, dilation, groups, side):
    random = np.random.default_rng(kernel + stride)
    x, weight = random.standard_normal((2, 4, side, side + 1)), random.standard_normal((6, 4 // groups, kernel, kernel))
    x, weight = x.astype(np.float32), weight.astype(np.float32)
    how = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    theirs = nn.functional.conv2d(torch.from_numpy(x), torch.from_numpy(weight), **how)
    each = ([stride] * 2, [padding] * 2, [dilation] * 2)
    ours = jax.jit(lambda x, weight: aten.convolution(x, weight, None, *each, False, [0, 0], groups))(x, weight)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@settings(max_examples=12)
@given(numbers, numbers, st.booleans(), st.integers(5, 8), st.booleans())
def test_pooling_of_any_kind_is_pytorchs(kernel, stride, padded, side, is_largest):
    x = np.random.default_rng(kernel).standard_normal((2, 3, side, side + 1)).astype(np.float32)
    padding = kernel // 2 if padded else 0
    theirs = (nn.functional.max_pool2d if is_largest else nn.functional.avg_pool2d)(
        torch.from_numpy(x), kernel, stride, padding
    )
    each = ([kernel] * 2, [stride] * 2, [padding] * 2)
    ours = jax.jit(lambda x: (aten.largest if is_largest else aten.average)(x, *each))(x)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_any_number_of_samples_in_any_shape_is_taken():
    model = converted(nets.Mlp, TWELVE)[1]
    params, x = model.init(jax.random.key(0)), samples(TWELVE, 2, 3)
    ours = jax.jit(lambda x: (model(params, x.reshape(6, 12)), model(params, x), model(params, x[0, 0])))
    flat, shaped, single = map(np.asarray, ours(x))
    np.testing.assert_allclose(shaped, flat.reshape(2, 3, 4), rtol=1e-6)
    np.testing.assert_allclose(single, flat[0], rtol=1e-5)
    each = jax.jit(jax.vmap(model, (None, 0)))(params, x)
    np.testing.assert_allclose(each, flat.reshape(2, 3, 4), rtol=1e-5)


@pytest.mark.parametrize(("net", "times"), [(nets.Letters, 1), (nets.Sequences, 2)])
def test_an_lstm_that_starts_from_zero_is_our_own_recurrence(net, times, monkeypatch):
    """A GRU, or an LSTM from a state of its own, is not."""
    model, called = converted(net, TWO)[1], []
    monkeypatch.setattr(aten, "recur", lambda *args: called.append(args) or recur(*args))
    jax.eval_shape(model, model.init(jax.random.key(0)), jnp.zeros((3, 2), jnp.uint8))
    assert len(called) == times


# ---- where the weights start


def test_a_class_draws_other_weights_for_each_seed_and_the_same_ones_again():
    before = torch.random.get_rng_state()
    model = from_torch(nets.Mlp, TWELVE)
    first, again, other = (model.init(jax.random.key(seed))["layers.0.weight"] for seed in (0, 0, 1))
    assert (first == again).all()
    assert not (first == other).any()
    traced = jax.jit(model.init)(jax.random.key(1))["layers.0.weight"]
    assert (traced == other).all()
    both = jax.vmap(model.init)(jax.random.split(jax.random.key(2)))["layers.0.weight"]
    assert both.shape == (2, 8, 12)
    assert not (both[0] == both[1]).any()
    assert torch.equal(torch.random.get_rng_state(), before)  # the user's generator is the user's


def test_a_modules_weights_are_where_every_seed_starts():
    module = nets.Mlp()
    model = from_torch(module, TWELVE)
    weight = module.get_parameter("layers.0.weight").detach().clone()
    with torch.no_grad():
        module.get_parameter("layers.0.weight").zero_()  # what was taken stays
    for seed in (0, 1):
        np.testing.assert_array_equal(model.init(jax.random.key(seed))["layers.0.weight"], weight)


def test_models_are_equal_where_a_program_for_one_is_one_for_the_other():
    drawn, (module, model) = from_torch(nets.Mlp, TWELVE), converted(nets.Mlp, TWELVE)
    assert drawn == from_torch(nets.Mlp, TWELVE)
    again = from_torch(module, TWELVE)
    assert (again, hash(again)) == (model, hash(model))
    assert model != from_torch(nets.Mlp(), TWELVE) != drawn


def test_what_requires_no_gradient_is_not_trained():
    module = nets.Mlp()
    module.layers[0].requires_grad_(False)
    model = from_torch(module, TWELVE)
    assert set(model.init(jax.random.key(0))) == {"layers.2.weight", "layers.2.bias"}


# ---- what is refused


class Dropping(nets.Mlp):
    def __init__(self):
        super().__init__()
        self.layers.insert(2, nn.Dropout(0.3))


class Counting(nets.Mlp):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.seen += 1
        return super().forward(x)


class OfSeven(nets.Mlp):
    def forward(self, x):
        return super().forward(x).view(7, 4)


class Twice(nets.Mlp):
    def forward(self, x):
        return super().forward(x), x


class Joined(nets.Mlp):
    def forward(self, x):
        return super().forward(x).sum(0)


class Spectrum(nets.Mlp):
    def forward(self, x):
        return super().forward(torch.fft.fft(x).real)


class Choosing(nets.Mlp):
    def forward(self, x):
        return super().forward(x) if x.sum() > 0 else super().forward(-x)


class DrawnBuffer(nets.Mlp):
    def __init__(self):
        super().__init__()
        self.register_buffer("noise", torch.randn(12))

    def forward(self, x):
        return super().forward(x + self.noise)


class ByNumpy(nets.Mlp):
    def __init__(self):
        super().__init__()
        self.layers[0].weight.data = torch.from_numpy(np.random.default_rng().standard_normal((8, 12), np.float32))


def frozen():
    return nets.Mlp().requires_grad_(False)


@pytest.mark.parametrize(
    ("net", "sentence"),
    [
        (
            Dropping,
            " in layers.2 (Dropout): random numbers in forward are not supported; call .eval() on the module to switch dropout off.",
        ),
        (
            Counting,
            "the PyTorch model Counting changes its buffer seen while it computes, which no UE uploads; call .eval() on it",
        ),
        (OfSeven, "the PyTorch model OfSeven accepts only a fixed number of samples; use x.shape"),
        (Twice, "the PyTorch model Twice gives a tuple for 7 samples; expected a tensor with a row for each."),
        (Joined, "the PyTorch model Joined gives shape [4] for 7 samples; expected a tensor with a row for each."),
        (
            Spectrum,
            "in the PyTorch model Spectrum is not supported (docs/how-to/torch.md)",
        ),
        (Choosing, "the PyTorch model Choosing cannot be exported by PyTorch ("),
        (
            DrawnBuffer,
            "the PyTorch model DrawnBuffer draws noise, which is not trained; give it fixed numbers, or make it a Parameter.",
        ),
        (ByNumpy, "the PyTorch model ByNumpy draws layers.0.weight differently after the same torch.manual_seed"),
        (frozen, "the PyTorch model Mlp has nothing to train: no parameter requires a gradient."),
        (partial(nets.Mlp, 9), "the PyTorch model Mlp does not take samples of 12 numbers (float32): RuntimeError: "),
        (lambda: 3, "expected a PyTorch module, or a callable that returns one; got a int."),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_what_cannot_be_done_is_said_in_a_sentence(net, sentence):
    with pytest.raises(InputError) as refused:
        from_torch(net, TWELVE)
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


def test_eval_says_that_dropout_is_off_and_that_statistics_stay():
    model = from_torch(lambda: nn.Sequential(Dropping(), nn.BatchNorm1d(4)).eval(), TWELVE)
    weights = jax.eval_shape(model.init, jax.random.key(0))
    assert not [name for name in weights if "running" in name]
    fitted = jax.eval_shape(model.with_statistics, weights, jnp.zeros((5, 12)))
    assert fitted.keys() == weights.keys()


# ---- BatchNorm in training mode


def fit(module, x):
    """Let a module take its statistics from these samples, and compute with them from now on."""
    for layer in module.modules():
        layer.momentum = 1.0  # the running statistics are those of the last batch
    module.train()
    module(torch.from_numpy(x))
    return module.eval()


def test_a_batch_is_normalised_by_itself_and_later_ones_by_its_statistics():
    (module, model), (x, other) = converted(nets.Normed, PIXELS), samples(PIXELS, 2, 9)
    weights, ours = model.init(jax.random.key(0)), jax.jit(model)
    close = partial(np.testing.assert_allclose, rtol=0, atol=1e-5)
    close(ours(weights, jnp.asarray(x)), module(torch.from_numpy(x)).detach())
    fitted, module = jax.jit(model.with_statistics)(weights, jnp.asarray(x)), fit(module, x)
    buffers = {name: tensor for name, tensor in module.named_buffers() if "running" in name}
    assert fitted.keys() - weights.keys() == buffers.keys()
    for name, tensor in buffers.items():
        close(fitted[name], tensor, err_msg=name)
    close(ours(fitted, jnp.asarray(other)), module(torch.from_numpy(other)).detach())
    slope = jax.jit(jax.grad(lambda w: (model(w, jnp.asarray(other)) ** 2).sum()))(fitted)
    assert not any(np.any(slope[name]) for name in buffers)  # a personal step leaves them


def test_rounds_and_evaluations_with_batchnorm_are_those_of_a_pytorch_loop():
    """Three UEs in synchronous rounds, α = 0.2; a UE's statistics are those of its training samples."""
    random, beta, rounds = np.random.default_rng(5), 0.3, 12
    y = random.integers(0, 4, 150)
    x = random.standard_normal((150, 144)).astype(FLOATS)
    x[np.arange(150), y] += 4.0
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(144, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 4))
    task = Task.from_torch(module, x, y, ues=3, labels_per_ue=2, seed=0)
    data = task.data
    assert isinstance(data, Shards)
    timeline = simulate(Cell.draw(3, seed=0), Protocol(3), rounds=rounds, payload_bits=1e4, samples=8)
    weights = replay(task, timeline, Learner(FedAvg(), beta, batch=8), seed=0)
    ours, optimiser = evaluate(task, weights, alpha=0.2), torch.optim.SGD(module.parameters(), beta)

    @jax.jit
    def batch(ue, version):
        key = jax.random.fold_in(jax.random.fold_in(jax.random.fold_in(jax.random.key(0), 1), ue), version)
        return data.batches(key, ue, (1, 1, 8))

    for version in range(rounds):
        optimiser.zero_grad()
        for ue in range(3):
            inputs, labels = (np.array(each[0, 0]) for each in batch(np.int32(ue), version))
            loss = nn.functional.cross_entropy(module(torch.from_numpy(inputs)), torch.from_numpy(labels).long())
            (loss / 3).backward()
        optimiser.step()
    for name, tensor in module.named_parameters():
        np.testing.assert_allclose(weights[name], tensor.detach(), rtol=0, atol=2e-5, err_msg=name)
    starts, trains, tests = (np.asarray(each) for each in (data.start, data.train_count, data.test_count))
    for ue in range(3):
        first, middle = starts[ue], starts[ue] + trains[ue]
        (train, labels), (test, right) = (
            (np.array(data.x)[part], np.array(data.y)[part])
            for part in (slice(first, middle), slice(middle, middle + tests[ue]))
        )
        told = np.resize(train, (data.lengths()[0], 144))  # as often as it fits
        mine = fit(copy.deepcopy(module), told)
        for name, again in (("", False), ("_personal", True)):
            loss = nn.functional.cross_entropy(mine(torch.from_numpy(train)), torch.from_numpy(labels).long())
            accuracy = (mine(torch.from_numpy(test)).argmax(1).numpy() == right).mean()
            assert ours[f"train_loss{name}"][ue] == pytest.approx(loss.item(), abs=1e-4)
            assert ours[f"test_accuracy{name}"][ue] == pytest.approx(accuracy)
            if not again:
                mine.zero_grad()
                loss.backward()
                torch.optim.SGD(mine.parameters(), 0.2).step()
                mine = fit(mine, told)
    assert ours["test_accuracy_personal"].mean() > 0.6


def test_bytes_are_the_modules_own_affair_and_the_sentence_says_so():
    with pytest.raises(
        InputError, match=r"does not take samples of 12 numbers \(uint8\): .*; begin with x.float\(\) / 255"
    ):
        from_torch(nets.Mlp, jax.ShapeDtypeStruct((12,), LETTERS))


def test_a_wrong_counterpart_is_noticed(monkeypatch):
    monkeypatch.setitem(ATEN, "relu", jnp.tanh)  # type: ignore[arg-type]  # a dict, whatever it is announced as
    with pytest.raises(InputError, match="gives different results in JAX and in PyTorch"):
        from_torch(nets.Mlp, TWELVE)


# ---- in a run

SMALL = {"ues": 4, "quorum": 2, "batch": 4, "rounds": 3, "seeds": [0, 1], "algorithms": ["PerFedS2"]}
DIGITS = {"task": "digits", "labels_per_ue": 2}


def test_only_modules_are_pytorchs():
    assert is_torch(nets.Mlp)
    assert is_torch(nets.Mlp())
    assert not any(map(is_torch, (int, 3, torch, torch.zeros(1), nn.functional.relu)))


def test_a_task_of_ones_own_samples_takes_a_module(monkeypatch):
    train_in_numpy(monkeypatch.setattr, traced=True)
    x = np.random.default_rng(0).standard_normal((200, 3, 4))
    y = (x[:, 0, 0] > 0).astype(int) + 2 * (x[:, 1, 1] > 0)

    def net():
        return nn.Sequential(nn.Flatten(), nets.Mlp())

    task = Task.from_torch(net, torch.from_numpy(x), y, ues=4, labels_per_ue=2, seed=0)
    result = compare(**SMALL, task=task)
    first, second = (result.models["PerFedS2", seed]["1.layers.0.weight"] for seed in (0, 1))
    assert first.shape == (8, 12)
    assert not np.array_equal(first, second)


def test_another_weight_is_another_model_though_the_module_is_the_same():
    from perfeds2.spec.build import model_of
    from perfeds2.spec.resolve import spec_from

    module = nets.Mlp(64, 10)
    one = model_of(spec_from(**DIGITS, model=module))
    assert model_of(spec_from(**DIGITS, model=module)) is one
    with torch.no_grad():
        module.get_parameter("layers.0.weight").zero_()
    other = model_of(spec_from(**DIGITS, model=module))
    assert other is not model_of(spec_from(**DIGITS, model=module.eval()))
    assert not np.asarray(other.init(jax.random.key(0))["layers.0.weight"]).any()


def test_the_samples_of_a_file_reach_the_module_in_their_shape(tmp_path):
    from perfeds2.spec.build import model_of
    from perfeds2.spec.resolve import spec_from

    x, y = np.random.default_rng(0).random((60, 4, 4, 3)).astype(np.float32), np.arange(60) % 3

    class Net(nets.Mlp):
        def forward(self, x):
            return super().forward(x[:, :, 1].mean(2) + x[:, :, :, 2].mean(2))  # a row and a column of each colour

    def net():
        return Net(3, 3)

    np.savez(tmp_path / "photos.npz", x=x, y=y)  # colours come first, as PyTorch has them
    model = model_of(spec_from(task=str(tmp_path / "photos.npz"), model=net))
    params = model.init(jax.random.key(0))
    ours = jax.jit(model)(params, jnp.asarray(x.transpose(0, 3, 1, 2).reshape(60, -1)))
    module = net()
    module.load_state_dict({name: torch.from_numpy(np.array(values)) for name, values in params.items()})
    theirs = module(torch.from_numpy(x.transpose(0, 3, 1, 2).copy()))
    np.testing.assert_allclose(ours, theirs.detach(), rtol=1e-4, atol=1e-5)
