"""Time rounds in FedJAX: ``fed_avg`` with one local step, its client sampler and its default (jit) backend.

FedJAX 0.0.17 calls ``jax.tree_map``, which JAX has since removed; it is restored here under its old name.
"""

from itertools import pairwise

import fedjax
import jax
import jax.numpy as jnp
import numpy as np
import workload as work

Params = list[jax.Array]
SHIM = "jax.tree_map put back"

jax.tree_map = jax.tree_util.tree_map


def mean_loss(params: Params, batch: dict[str, jax.Array], _: jax.Array) -> jax.Array:
    weight1, bias1, weight2, bias2 = params
    logits = jax.nn.relu(batch["x"] @ weight1 + bias1) @ weight2 + bias2
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), batch["y"][:, None], axis=1).mean()


def initial(seed: int) -> Params:
    random, sizes = np.random.default_rng(seed), (work.FEATURES, work.HIDDEN, work.CLASSES)
    layers = [random.uniform(-1, 1, (n + 1, m)) / np.sqrt(n) for n, m in pairwise(sizes)]
    return [jnp.asarray(w, jnp.float32) for layer in layers for w in (layer[:-1], layer[-1])]


def main() -> None:
    given = work.options()
    x, y = work.data(given.seed)
    clients = fedjax.InMemoryFederatedData(
        {str(ue).encode(): {"x": x[ue], "y": y[ue].astype(np.int32)} for ue in range(work.UES)}
    )
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        jax.grad(mean_loss),
        fedjax.optimizers.sgd(work.BETA),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(batch_size=work.BATCH, num_epochs=None, num_steps=1),
    )
    sampler = fedjax.client_samplers.UniformGetClientSampler(clients, work.QUORUM, given.seed)
    state = algorithm.init(initial(given.seed))

    def play(rounds: int) -> None:
        nonlocal state
        for _ in range(rounds):
            state, _ = algorithm.apply(state, sampler.sample())
        jax.block_until_ready(state.params)

    def weights() -> list[np.ndarray]:
        return [np.asarray(w) for w in state.params]

    work.measure("FedJAX", ["fedjax", "jax"], play, weights, given.rounds, given.seed, SHIM)


if __name__ == "__main__":
    main()
