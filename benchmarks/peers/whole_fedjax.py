"""FedAvg-SYN of the paper's exp_1 on MNIST in FedJAX, from its imports to a picture; ``whole.py`` says what it is told."""

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
        clients, test = shards(work, seed)
        algorithm = fedjax.algorithms.fed_avg.federated_averaging(
            jax.grad(mean_loss),
            fedjax.optimizers.sgd(beta),
            fedjax.optimizers.sgd(1.0),
            fedjax.ShuffleRepeatBatchHParams(batch_size=int(work["batch"]), num_epochs=None, num_steps=1),
        )
        sampler = fedjax.client_samplers.UniformGetClientSampler(clients, len(test), seed)  # all of them, every round
        state, done, accuracies = algorithm.init(initial(seed)), 0, []
        for rounds in work[f"rounds{seed}"].tolist():
            for _ in range(rounds - done):
                state, _ = algorithm.apply(state, sampler.sample())
            done = rounds
            looked = [personal_accuracy(state.params, clients.get_client(i).all_examples(), t, alpha) for i, t in test]
            accuracies.append(float(np.mean(jax.device_get(looked))))
        curves.append((work[f"seconds{seed}"].tolist(), accuracies))
    draw(curves, picture)


def shards(work, seed):
    """The training parts as FedJAX's clients, and each one's test part."""
    x, y = work[f"x{seed}"].astype(np.float32) / PIXELS, work[f"y{seed}"].astype(np.int32)
    clients, test = {}, []
    for ue, (start, train, more) in enumerate(
        zip(*(work[f"{n}{seed}"] for n in ("start", "train", "test")), strict=True)
    ):
        name, end = str(ue).encode(), start + train
        clients[name] = {"x": x[start:end], "y": y[start:end]}
        test.append((name, {"x": x[end : end + more], "y": y[end : end + more]}))
    return fedjax.InMemoryFederatedData(clients), test


@jax.jit
def personal_accuracy(params, own, test, alpha):
    """After one step on the UE's own training samples, on its test samples."""
    weight1, bias1, weight2, bias2 = jax.tree_util.tree_map(
        lambda w, g: w - alpha * g, params, jax.grad(mean_loss)(params, own, None)
    )
    logits = jax.nn.relu(test["x"] @ weight1 + bias1) @ weight2 + bias2
    return (jnp.argmax(logits, axis=1) == test["y"]).mean()


if __name__ == "__main__":
    main()
