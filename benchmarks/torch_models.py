"""Compare the cost of a network written in PyTorch with the same one written in JAX.

    python benchmarks/torch_models.py                 # all networks
    python benchmarks/torch_models.py --only lenet5   # one of them
    python benchmarks/torch_models.py --torch         # … and PyTorch itself, with torch.func

Times the exact meta-gradient of PerFed (three batches of 40), for one UE and for five in parallel, each with its own
weights. The two take turns; the ratio is that of their medians. Needs ``pip install '.[torch]'``.
"""

import argparse
import statistics
import time
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch  # type: ignore[import-not-found]  # an extra
from torch import nn  # type: ignore[import-not-found]

from perfeds2.learning.gradients import MeanLoss
from perfeds2.learning.models.from_torch import from_torch
from perfeds2.learning.models.lenet import LENET, LENET_RELU
from perfeds2.learning.models.lstm import LSTM
from perfeds2.learning.models.mlp import MLP

BATCH, ALPHA, LETTERS, WINDOW, WIDTH, HEADS = 40, 0.03, 80, 80, 32, 4


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 10))

    def forward(self, x):
        return self.layers(x.float() / 255)


class LeNet(nn.Module):
    def __init__(self, squash: type[nn.Module] = nn.Tanh, pool: type[nn.Module] = nn.AvgPool2d):
        super().__init__()
        one, other = (nn.Conv2d(3, 6, 5), squash(), pool(2)), (nn.Conv2d(6, 16, 5), squash(), pool(2))
        dense = (nn.Linear(400, 120), squash(), nn.Linear(120, 84), squash(), nn.Linear(84, 100))
        self.layers = nn.Sequential(*one, *other, nn.Flatten(), *dense)
        self.register_buffer("mean", torch.tensor(LENET.mean).view(3, 1, 1))
        self.register_buffer("deviation", torch.tensor(LENET.deviation).view(3, 1, 1))

    def forward(self, x):
        return self.layers((x.float().view(-1, 3, 32, 32) / 255 - self.mean) / self.deviation)


class Lstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.letters, self.recurrent = nn.Embedding(LETTERS, 8), nn.LSTM(8, 128, batch_first=True)
        self.out = nn.Linear(128, LETTERS)

    def forward(self, x):
        return self.out(self.recurrent(self.letters(x.long()))[0][:, -1])


class Transformer(nn.Module):
    """One encoder layer: attention and two dense layers, each with a residual connection and layer norm."""

    def __init__(self):
        super().__init__()
        self.letters, self.place = nn.Embedding(LETTERS, WIDTH), nn.Parameter(torch.randn(WINDOW, WIDTH))
        self.layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 64, dropout=0.0, batch_first=True)
        self.out = nn.Linear(WIDTH, LETTERS)

    def forward(self, x):
        return self.out(self.layer(self.letters(x.long()) + self.place).mean(1))


class TransformerInJax:
    """The same network in plain JAX."""

    def init(self, key: Any) -> dict[str, Any]:
        sizes = {
            "letters": (LETTERS, WIDTH),
            "place": (WINDOW, WIDTH),
            "qkv": (WIDTH, 3 * WIDTH),
            "mix": (WIDTH, WIDTH),
        }
        sizes |= {"in": (WIDTH, 64), "back": (64, WIDTH), "out": (WIDTH, LETTERS)}
        keys = jax.random.split(key, len(sizes))
        params = {name: 0.1 * jax.random.normal(k, sizes[name]) for name, k in zip(sizes, keys, strict=True)}
        params |= {f"{name}.bias": jnp.zeros(sizes[name][1]) for name in ("qkv", "mix", "in", "back", "out")}
        return params | {f"norm{n}": jnp.stack([jnp.ones(WIDTH), jnp.zeros(WIDTH)]) for n in (1, 2)}

    def __call__(self, params: dict[str, Any], x: Any) -> Any:
        def dense(name: str, x: Any) -> Any:
            return x @ params[name] + params[f"{name}.bias"]

        def norm(name: str, x: Any) -> Any:
            centred = x - x.mean(-1, keepdims=True)
            return (
                centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * params[name][0] + params[name][1]
            )

        x = jax.nn.one_hot(x, LETTERS) @ params["letters"] + params["place"]
        heads = dense("qkv", x).reshape(*x.shape[:-1], 3, HEADS, -1)
        q, k, v = (heads[..., n, :, :].swapaxes(-2, -3) for n in range(3))
        weights = jax.nn.softmax(q @ k.swapaxes(-1, -2) / (WIDTH // HEADS) ** 0.5)
        x = norm("norm1", x + dense("mix", (weights @ v).swapaxes(-2, -3).reshape(x.shape)))
        x = norm("norm2", x + dense("back", jax.nn.relu(dense("in", x))))
        return dense("out", x.mean(-2))


NETWORKS = {  # in JAX, in PyTorch, values per sample, distinct values
    "mlp": (MLP((784, 100, 10), input_scale=255), Mlp, 784, 256),
    "lenet5": (LENET, LeNet, 3072, 256),
    "lenet5-relu": (LENET_RELU, partial(LeNet, nn.ReLU, nn.MaxPool2d), 3072, 256),
    "transformer": (TransformerInJax(), Transformer, WINDOW, LETTERS),
    "lstm": (LSTM(), Lstm, WINDOW, LETTERS),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=NETWORKS, help="one network")
    parser.add_argument("--times", type=int, default=30)
    parser.add_argument("--ues", type=int, nargs="+", default=[1, 5], help="UEs side by side")
    parser.add_argument("--torch", action="store_true", help="PyTorch itself too")
    given = parser.parse_args()
    print(f"{jax.devices()[0].device_kind}, JAX {jax.__version__}, PyTorch {torch.__version__}")
    print(f"{'network':12} UEs  JAX ms  from PyTorch ms  ratio" + "  torch.func ms" * given.torch)
    for name in [given.only] if given.only else NETWORKS:
        ours, make, inputs, values = NETWORKS[name]
        theirs = from_torch(make, jax.ShapeDtypeStruct((inputs,), np.uint8))
        for ues in given.ues:
            random = np.random.default_rng(0)
            x, y = random.integers(0, values, (ues, 3, BATCH, inputs)), random.integers(0, 10, (ues, 3, BATCH))
            calls = [ready(model, x.astype(np.uint8), y) for model in (ours, theirs)]
            calls += [in_torch(make(), x[0].astype(np.uint8), y[0])] if given.torch and ues == 1 else []
            times = [[timed(call) for call in calls] for _ in range(given.times)]
            first, second, *third = (1e3 * statistics.median(column) for column in zip(*times, strict=True))
            more = f"{third[0]:15.2f}" if third else ""
            print(f"{name:12} {ues:3} {first:7.2f} {second:16.2f} {second / first:6.2f}{more}", flush=True)


def timed(call: Any) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def ready(model: Any, x: np.ndarray, y: np.ndarray) -> Any:
    """Return a function that computes the compiled meta-gradient of every UE."""

    def gradient(params: Any, x: Any, y: Any) -> Any:
        return MeanLoss(model).meta_gradient(params, (x, y), ALPHA)

    params = jax.vmap(model.init)(jax.random.split(jax.random.key(0), len(x)))
    given, compiled = (params, jnp.asarray(x), jnp.asarray(y)), jax.jit(jax.vmap(gradient))
    if len(x) == 1:  # a single UE needs no vmap
        given, compiled = jax.tree.map(lambda a: a[0], given), jax.jit(gradient)
    jax.block_until_ready(compiled(*given))
    return lambda: jax.block_until_ready(compiled(*given))


def in_torch(module: Any, x: np.ndarray, y: np.ndarray) -> Any:
    """Return the same for one UE with torch.func."""
    from torch.func import functional_call, grad, vjp  # type: ignore[import-not-found]
    from torch.nn.attention import SDPBackend, sdpa_kernel  # type: ignore[import-not-found]

    params, batches = {n: p.detach() for n, p in module.named_parameters()}, (torch.from_numpy(x), torch.from_numpy(y))

    def loss(w: Any, at: int) -> Any:
        return nn.functional.cross_entropy(functional_call(module, w, (batches[0][at],)), batches[1][at])

    def call() -> Any:
        with sdpa_kernel(SDPBackend.MATH):
            inner = grad(loss)(params, 0)
            outer = grad(loss)({name: params[name] - ALPHA * inner[name] for name in params}, 1)
            (bent,) = vjp(lambda w: grad(loss)(w, 2), params)[1](outer)
        return {name: outer[name] - ALPHA * bent[name] for name in params}

    return call


if __name__ == "__main__":
    main()
