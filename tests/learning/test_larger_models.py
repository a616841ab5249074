"""Are ResNet-18 and the transformer what their papers define? By loops in NumPy, and by PyTorch."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from needs import needs

from perfeds2.deployment.setup import Setup
from perfeds2.errors import InputError
from perfeds2.learning.models.lenet import CNN
from perfeds2.learning.models.resnet import ResNet, resnet18_gn
from perfeds2.learning.models.transformer import Transformer, transformer
from perfeds2.learning.task import parameters
from perfeds2.spec.resolve import spec_from
from perfeds2.spec.tasks import model_of

pytestmark = pytest.mark.slow
RANDOM = np.random.default_rng(0)
SMALL = ResNet(side=8, channels=1, classes=3, groups=2, width=2, blocks=(1, 1), mean=(0.5,), deviation=(0.25,))
TINY = Transformer(letters=5, window=4, width=4, heads=2, layers=2)


def drawn(model):
    """Weights of a model, all different, none zero."""
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    return {name: jnp.asarray(RANDOM.normal(0, 0.5, each.shape), jnp.float32) for name, each in shapes.items()}


def test_resnet_18_has_the_published_number_of_parameters():
    assert parameters(resnet18_gn(3072, 10, np.dtype(np.uint8))) == 11_173_962


def test_the_transformer_has_the_parameters_of_its_layers():
    per_layer = 12 * 128**2 + 13 * 128
    assert parameters(transformer(80, 80, np.dtype(np.uint8))) == 2 * per_layer + 160 * 128 + 2 * 128 + 129 * 80


# ---- twins


def convolved_by_loops(weight, maps, stride):
    """Weights' rows are (row, column, channel); maps are (channel, row, column)."""
    channels, height, width = maps.shape
    weight = weight.reshape(3, 3, channels, -1)
    out = np.zeros((weight.shape[-1], height // stride, width // stride))
    for i in range(out.shape[1]):
        for j in range(out.shape[2]):
            for di in range(3):
                for dj in range(3):
                    row, column = i * stride + di - 1, j * stride + dj - 1
                    if 0 <= row < height and 0 <= column < width:
                        out[:, i, j] += maps[:, row, column] @ weight[di, dj]
    return out


def normalised_by_loops(w, name, maps, groups):
    parts = [(part - part.mean()) / np.sqrt(part.var() + 1e-5) for part in np.split(maps, groups)]
    return np.concatenate(parts) * w[f"{name}.scale"][:, None, None] + w[f"{name}.shift"][:, None, None]


def test_resnet_agrees_with_loops():
    params = drawn(SMALL)
    w = {name: np.asarray(value, float) for name, value in params.items()}
    x = RANDOM.integers(0, 256, (2, 64), dtype=np.uint8)
    expected = []
    for image in x:
        maps = (image.reshape(1, 8, 8) / 255 - 0.5) / 0.25
        maps = np.maximum(normalised_by_loops(w, "first", convolved_by_loops(w["first.weight"], maps, 1), 2), 0)
        for name, stride in (("stage1.block1", 1), ("stage2.block1", 2)):
            inner = convolved_by_loops(w[f"{name}.conv1.weight"], maps, stride)
            inner = np.maximum(normalised_by_loops(w, f"{name}.norm1", inner, 2), 0)
            inner = convolved_by_loops(w[f"{name}.conv2.weight"], inner, 1)
            inner = normalised_by_loops(w, f"{name}.norm2", inner, 2)
            if stride == 2:
                maps = np.einsum("cij,co->oij", maps[:, ::2, ::2], w[f"{name}.skip.weight"])
                maps = normalised_by_loops(w, f"{name}.skip", maps, 2)
            maps = np.maximum(maps + inner, 0)
        expected.append(maps.mean(axis=(1, 2)) @ w["dense.weight"] + w["dense.bias"])
    np.testing.assert_allclose(jax.jit(SMALL)(params, x), expected, rtol=1e-4, atol=1e-5)


def gelu(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def test_the_transformer_agrees_with_one_letter_after_the_other():
    params = drawn(TINY)
    w = {name: np.asarray(value, float) for name, value in params.items()}
    x = RANDOM.integers(0, 5, (3, 4), dtype=np.uint8)

    def dense(name, state):
        return state @ w[f"{name}.weight"] + w[f"{name}.bias"]

    def normalised(name, state):
        return (state - state.mean()) / np.sqrt(state.var() + 1e-5) * w[f"{name}.scale"] + w[f"{name}.shift"]

    expected = []
    for text in x:
        states = [w["letters"][letter] + w["places"][place] for place, letter in enumerate(text)]
        for layer in ("layer1", "layer2"):
            mixed = [dense(f"{layer}.queries_keys_values", normalised(f"{layer}.norm1", state)) for state in states]
            for place in range(4):
                read = []
                for head in (slice(0, 2), slice(2, 4)):
                    query = mixed[place][:4][head]
                    scores = np.array([query @ mixed[other][4:8][head] for other in range(place + 1)]) / math.sqrt(2)
                    weights = np.exp(scores) / np.exp(scores).sum()
                    read.append(sum(a * mixed[other][8:][head] for other, a in enumerate(weights)))
                states[place] = states[place] + dense(f"{layer}.attended", np.concatenate(read))
            inner = [gelu(dense(f"{layer}.inner", normalised(f"{layer}.norm2", state))) for state in states]
            states = [state + dense(f"{layer}.outer", each) for state, each in zip(states, inner, strict=True)]
        expected.append(dense("dense", normalised("norm", states[-1])))
    np.testing.assert_allclose(jax.jit(TINY)(params, x), expected, rtol=1e-4, atol=1e-5)


def test_at_first_no_letter_is_likely_and_a_block_of_resnet_adds_nothing():
    logits = TINY(TINY.init(jax.random.key(0)), jnp.zeros((1, 4), jnp.uint8))
    assert float(jnp.abs(logits).max()) < 0.5
    ends = {name: value for name, value in SMALL.init(jax.random.key(0)).items() if "norm2" in name}
    assert len(ends) == 4
    assert all(float(jnp.abs(value).max()) == 0 for value in ends.values())


# ---- PyTorch


@needs("torch")
def test_the_cnn_agrees_with_pytorch():
    import torch  # type: ignore[import-not-found]  # an extra

    params = CNN.init(jax.random.key(2))
    w = {name: torch.tensor(np.asarray(value)) for name, value in params.items()}
    layers = []
    for number, (inputs, outputs) in ((1, (3, 32)), (2, (32, 64))):
        layer = torch.nn.Conv2d(inputs, outputs, 5)
        kernel = w[f"conv{number}.weight"].reshape(5, 5, inputs, outputs).permute(3, 2, 0, 1)
        layer.load_state_dict({"weight": kernel, "bias": w[f"conv{number}.bias"]})
        layers += [layer, torch.nn.ReLU(), torch.nn.MaxPool2d(2)]
    layers.append(torch.nn.Flatten())
    for number, (inputs, outputs) in ((1, (1600, 512)), (2, (512, 100))):
        layer = torch.nn.Linear(inputs, outputs)
        layer.load_state_dict({"weight": w[f"dense{number}.weight"].T, "bias": w[f"dense{number}.bias"]})
        layers += [layer, torch.nn.ReLU()]
    x = np.random.default_rng(5).integers(0, 256, (4, 3072)).astype(np.uint8)
    mean, deviation = (torch.tensor(a)[None, :, None, None] for a in (CNN.mean, CNN.deviation))
    with torch.no_grad():
        theirs = torch.nn.Sequential(*layers[:-1])((torch.tensor(x).reshape(4, 3, 32, 32) / 255 - mean) / deviation)
    np.testing.assert_allclose(CNN(params, jnp.asarray(x)), theirs.numpy(), atol=1e-5)


@needs("torch")
def test_resnet_18_agrees_with_pytorch():
    import torch  # type: ignore[import-not-found]  # an extra
    from torch.nn import functional as f  # type: ignore[import-not-found]

    model = resnet18_gn(3072, 10, np.dtype(np.uint8), groups=4, width=8)
    params = drawn(model)
    w = {name: torch.tensor(np.asarray(value)) for name, value in params.items()}
    x = RANDOM.integers(0, 256, (2, 3072), dtype=np.uint8)

    def kernel(name):
        weight = w[f"{name}.weight"]
        side = 1 if name.endswith("skip") else 3
        return weight.reshape(side, side, -1, weight.shape[-1]).permute(3, 2, 0, 1)

    def normalised(name, maps):
        return f.group_norm(maps, 4, w[f"{name}.scale"], w[f"{name}.shift"])

    mean, deviation = (torch.tensor(a)[None, :, None, None] for a in (model.mean, model.deviation))
    maps = (torch.tensor(x).reshape(2, 3, 32, 32) / 255 - mean) / deviation
    maps = f.relu(normalised("first", f.conv2d(maps, kernel("first"), padding=1)))
    for stage in range(1, 5):
        for block in (1, 2):
            name, stride = f"stage{stage}.block{block}", 2 if stage > 1 and block == 1 else 1
            inner = f.conv2d(maps, kernel(f"{name}.conv1"), stride=stride, padding=1)
            inner = f.conv2d(f.relu(normalised(f"{name}.norm1", inner)), kernel(f"{name}.conv2"), padding=1)
            inner = normalised(f"{name}.norm2", inner)
            if stride == 2:
                maps = normalised(f"{name}.skip", f.conv2d(maps, kernel(f"{name}.skip"), stride=2))
            maps = f.relu(maps + inner)
    logits = maps.mean(dim=(2, 3)) @ w["dense.weight"] + w["dense.bias"]
    ours = np.asarray(jax.jit(model)(params, x))
    np.testing.assert_allclose(ours, logits.numpy(), rtol=1e-5, atol=1e-5 * np.abs(ours).max())


@needs("torch")
def test_the_transformer_agrees_with_pytorch():
    import torch  # type: ignore[import-not-found]  # an extra
    from torch import nn  # type: ignore[import-not-found]

    model = transformer(80, 80, np.dtype(np.uint8), width=32, heads=4, layers=2)
    params = drawn(model)
    w = {name: torch.tensor(np.asarray(value)) for name, value in params.items()}
    x = RANDOM.integers(0, 80, (2, 80), dtype=np.uint8)
    states = w["letters"][torch.tensor(x).long()] + w["places"]
    mask = nn.Transformer.generate_square_subsequent_mask(80)
    for number in (1, 2):
        name = f"layer{number}"
        layer = nn.TransformerEncoderLayer(
            32, 4, 128, 0.0, lambda z: nn.functional.gelu(z, approximate="tanh"), batch_first=True, norm_first=True
        )
        layer.load_state_dict(
            {
                "self_attn.in_proj_weight": w[f"{name}.queries_keys_values.weight"].T,
                "self_attn.in_proj_bias": w[f"{name}.queries_keys_values.bias"],
                "self_attn.out_proj.weight": w[f"{name}.attended.weight"].T,
                "self_attn.out_proj.bias": w[f"{name}.attended.bias"],
                "linear1.weight": w[f"{name}.inner.weight"].T,
                "linear1.bias": w[f"{name}.inner.bias"],
                "linear2.weight": w[f"{name}.outer.weight"].T,
                "linear2.bias": w[f"{name}.outer.bias"],
                "norm1.weight": w[f"{name}.norm1.scale"],
                "norm1.bias": w[f"{name}.norm1.shift"],
                "norm2.weight": w[f"{name}.norm2.scale"],
                "norm2.bias": w[f"{name}.norm2.shift"],
            }
        )
        states = layer(states, mask)
    last = nn.functional.layer_norm(states[:, -1], (32,), w["norm.scale"], w["norm.shift"])
    logits = (last @ w["dense.weight"] + w["dense.bias"]).detach().numpy()
    ours = np.asarray(jax.jit(model)(params, x))
    np.testing.assert_allclose(ours, logits, rtol=1e-5, atol=1e-5 * np.abs(ours).max())


# ---- by name, with settings


@pytest.mark.parametrize(
    ("task", "name", "model"),
    [
        ("cifar10", "resnet18-gn", ResNet()),
        ("cifar100", "resnet18-gn:groups=8,width=16", ResNet(classes=100, groups=8, width=16)),
        ("shakespeare", "transformer", Transformer()),
        ("shakespeare", "transformer:layers=4", Transformer(layers=4)),
    ],
)
def test_a_name_with_settings_is_a_model(task, name, model):
    assert model_of(spec_from(task=task, model=name)) == model


@pytest.mark.parametrize(
    ("task", "name", "sentence"),
    [
        ("shakespeare", "transformer:depth=4", "has no setting 'depth'; its settings are width, heads, layers"),
        ("shakespeare", "transformer:layers=two", "needs a number as in transformer:layers=2"),
        ("shakespeare", "transformer:heads=3", "its width must be a multiple of its heads, got 128 and 3"),
        ("cifar10", "resnet18-gn:groups=0", "its width must be a multiple of its groups, got 64 and 0"),
        ("shakespeare", "lstm:hidden=3", "has no setting 'hidden'; it has none"),
        ("digits", "transformer", "it needs letters, as whole numbers"),
        ("digits", "resnet18-gn", "it needs square images"),
    ],
)
def test_settings_that_do_not_fit_are_one_sentence(task, name, sentence):
    with pytest.raises(InputError) as refused:
        model_of(spec_from(task=task, model=name))
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    ("task", "model"),
    [("cifar10", "cnn"), ("cifar10", "resnet18-gn:width=8"), ("shakespeare", "transformer:layers=1,width=16")],
)
def test_a_federation_takes_the_model_by_its_name(task, model):
    """All its machines read the same text."""
    text = Setup.from_texts({"task": task, "model": model, "algorithm": "FedAvgS2", "rounds": 2}).to_toml()
    assert model_of(Setup.from_toml(text).spec) == model_of(spec_from(task=task, model=model))
