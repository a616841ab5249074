"""Run FedAvg-SYN of the paper's exp_1 on MNIST in FedJAX, from imports to figure; ``whole.py`` describes its inputs."""

import sys

import fedjax
import jax
import jax.numpy as jnp
import numpy as np
from on_fedjax import initial, mean_loss
from whole_curve import draw

PIXELS = 255.0


def main() -> None:
    work, picture = np.load(sys.argv[1]), sys.argv[2]
    beta, alpha = work["steps"].tolist()
    curves = []
    for seed in range(sum(name.startswith("rounds") for name in work)):
        clients, own, test = shards(work, seed)
        algorithm = fedjax.algorithms.fed_avg.federated_averaging(
            jax.grad(mean_loss),
            fedjax.optimizers.sgd(beta),
            fedjax.optimizers.sgd(1.0),
            fedjax.ShuffleRepeatBatchHParams(batch_size=int(work["batch"]), num_epochs=None, num_steps=1),
        )
        sampler = fedjax.client_samplers.UniformGetClientSampler(
            clients, clients.num_clients(), seed
        )  # all clients in every round
        state, done, accuracies = algorithm.init(initial(seed)), 0, []
        for rounds in work[f"rounds{seed}"].tolist():
            for _ in range(rounds - done):
                state, _ = algorithm.apply(state, sampler.sample())
            done = rounds
            accuracies.append(float(personal_accuracy(state.params, own, test, alpha)))
        curves.append((work[f"seconds{seed}"].tolist(), accuracies))
    draw(curves, picture)


def shards(work, seed):
    """Return the training parts as FedJAX clients, and the train and test samples that perfeds2 evaluates as arrays."""
    x, y = work[f"x{seed}"].astype(np.float32) / PIXELS, work[f"y{seed}"].astype(np.int32)
    start, train, test = (work[f"{name}{seed}"] for name in ("start", "train", "test"))
    clients = {
        str(ue).encode(): {"x": x[a : a + n], "y": y[a : a + n]}
        for ue, (a, n) in enumerate(zip(start, train, strict=True))
    }
    parts = []
    for begin, counts, most in zip((start, start + train), (train, test), work[f"looked{seed}"], strict=True):
        at = begin[:, None] + np.minimum(np.arange(most), counts[:, None] - 1)
        parts.append(jax.device_put((x[at], y[at], np.arange(most) < counts[:, None])))
    return fedjax.InMemoryFederatedData(clients), *parts


@jax.jit
def personal_accuracy(params, own, test, alpha):
    """Return the mean accuracy over UEs on their test samples, each after one step on its own training samples."""

    def one(own, test):
        gradient = jax.grad(masked_loss)(params, *own)
        x, y, counts = test
        said = logits(jax.tree_util.tree_map(lambda w, g: w - alpha * g, params, gradient), x).argmax(axis=1)
        return jnp.where(counts, said == y, False).sum() / counts.sum()

    return jax.vmap(one)(own, test).mean()


def masked_loss(params, x, y, counts):
    each = -jnp.take_along_axis(jax.nn.log_softmax(logits(params, x)), y[:, None], axis=1)[:, 0]
    return jnp.where(counts, each, 0.0).sum() / counts.sum()


def logits(params, x):
    weight1, bias1, weight2, bias2 = params
    return jax.nn.relu(x @ weight1 + bias1) @ weight2 + bias2


if __name__ == "__main__":
    main()
