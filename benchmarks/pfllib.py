"""Do the work of PFLlib's table for CIFAR-100: 20 clients, its CNN, batches of 10, steps of 0.005, one local epoch.

    python benchmarks/pfllib.py --seconds 25 --out pfllib.json
    python benchmarks/pfllib.py --split dirichlet --methods "FedAvg;Ditto, μ = 0.1" --seeds 3 --out pfllib.json

As in PFLlib's code (github.com/TsingZ0/PFLlib, read at commit d832e76; none of it is copied):

- Training and test images are joined and divided among clients, and then a quarter of each client's images is for tests.
- A local epoch goes through a client's images in a new order, without the last, incomplete batch. Models are averaged
  with the numbers of training images as weights. Everybody takes part in every round.
- A model is evaluated before each round on all test images, and the best round counts. Per-FedAvg is evaluated after
  one step on one batch. If clients have models of their own, the better of these and the global model counts.
- Ditto: with μ = 0, the default of PFLlib's program, the own models are trained alone; with μ = 0.1 they are held near
  the global model.
- A step of Per-FedAvg takes two batches, and a round has two passes over the images.

Unlike PFLlib's code: APFL mixes weights in each step (its paper's algorithm 1) and not once a round; a step of pFedMe
looks for θ from w and not from the last θ; FedALA learns its shares in one epoch on other batches, in the first round
too, and is evaluated with the shares of the last round.

PFLlib plays 2,000 rounds; with --seconds, a row ends after that time, and its number of rounds is written beside it.
"""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from perfeds2.files import write_text
from perfeds2.learning.data import Shards
from perfeds2.learning.datasets.cifar import CIFAR100, read_cifar100
from perfeds2.learning.files.sources import find
from perfeds2.learning.learner import Learner
from perfeds2.learning.losses import accuracy, cross_entropy
from perfeds2.learning.methods.apfl import APFL
from perfeds2.learning.methods.fedala import FedALA
from perfeds2.learning.methods.pfedme import PFedMe
from perfeds2.learning.models.lenet import CNN
from perfeds2.learning.models.model import Model, ModelWithLoss, Params
from perfeds2.learning.objectives import Context, FedAvg, FedProx, KeepsModel, Objective, PerFed, descend, plain
from perfeds2.learning.partition import to_partition
from perfeds2.learning.replay import Prepared, advance, start
from perfeds2.learning.script import Script
from perfeds2.learning.settings import traced
from perfeds2.learning.task import Task
from perfeds2.learning.trees import rows_of
from perfeds2.network.cell import Cell
from perfeds2.timeline.protocol import Protocol
from perfeds2.timeline.simulate import simulate

CLIENTS, CLASSES, BATCH, STEP = 20, 100, 10, 0.005
FEWEST = 40  # images of a client, so that a quarter of them fills a batch
NONE = -1  # the label of a sample that does not count
ROWS = ("FedAvg", "FedProx", "Per-FedAvg", "Ditto", "APFL", "pFedMe", "FedALA")
PUBLISHED = {  # PFLlib's benchmark page, in percent
    "pathological": dict(zip(ROWS, (25.98, 25.94, 56.80, 67.23, 64.26, 58.20, 67.83), strict=True)),
    "dirichlet": dict(zip(ROWS, (31.89, 31.99, 44.28, 52.87, 46.74, 47.34, 55.92), strict=True)),
}


# ---- the split


def pathological(labels: np.ndarray, clients: int, per_client: int, random: np.random.Generator) -> np.ndarray:
    """Return the client of each image: every client has a few classes, and unequal numbers of images of each."""
    owners, left = np.full(labels.size, -1), np.full(clients, per_client)
    classes = int(labels.max()) + 1
    sharing = int(np.ceil(clients / classes * per_client))
    for label in range(classes):
        takers, images = np.flatnonzero(left > 0)[:sharing], np.flatnonzero(labels == label)
        if takers.size == 0:
            break
        fair = images.size / takers.size
        sizes = random.integers(int(max(fair / 10, FEWEST / classes)), int(fair), takers.size - 1)
        owners[images] = np.repeat(takers, [*sizes, images.size - sizes.sum()])
        left[takers] -= 1
    return owners


def dirichlet(labels: np.ndarray, clients: int, alpha: float, random: np.random.Generator) -> np.ndarray:
    """Return the client of each image: shares of a class are drawn, and full clients get no more classes."""
    owners = np.full(labels.size, -1)
    while np.bincount(owners + 1, minlength=clients + 1)[1:].min() < min(FEWEST, labels.size / clients / 2):
        owners[:] = -1
        for label in range(int(labels.max()) + 1):
            images = random.permutation(np.flatnonzero(labels == label))
            is_full = np.bincount(owners + 1, minlength=clients + 1)[1:] >= labels.size / clients
            shares = np.where(is_full, 0.0, random.dirichlet(np.full(clients, alpha)))
            ends = (np.cumsum(shares / shares.sum()) * images.size).astype(int)[:-1]
            for client, own in enumerate(np.split(images, ends)):
                owners[own] = client
    return owners


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Epochs(Shards):
    """Images whose batches of a job go through a client's images in a random order, instead of being drawn."""

    def batches(self, key: jax.Array, ue: jax.Array, shape: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
        steps, several, size = shape
        place, count = jnp.arange(steps * several * size), self.train_count[ue]
        order = jnp.argsort(place // count + jax.random.uniform(key, place.shape))  # pass after pass, each shuffled
        at = self.start[ue] + (order % count).reshape(shape)
        return self.x[at], self.y[at]


def loss_of_some(outputs: jax.Array, y: jax.Array) -> jax.Array:
    """Return the cross-entropy of samples that have a label, and 0 for others."""
    return jnp.where(y == NONE, 0.0, cross_entropy(outputs, y))


def make_task(x: np.ndarray, y: np.ndarray, split: str, model: Model, seed: int, clients: int = CLIENTS) -> Task:
    """Return the task of a seed."""
    random = np.random.default_rng(seed)
    share: Callable[..., np.ndarray] = partial(pathological, per_client=10)
    if split == "dirichlet":
        share = partial(dirichlet, alpha=0.1)
    owners, is_test = share(y, clients, random=random), np.zeros(y.size, bool)
    for client in range(clients):
        own = random.permutation(np.flatnonzero(owners == client))
        is_test[own[: -(-own.size // 4)]] = True
    data = Epochs.of(x, y, to_partition(owners, is_test, clients, random))
    return Task(split, ModelWithLoss(model, loss_of_some, accuracy), data)


# ---- the methods


@traced
class Epoch(Objective):
    """A local epoch: each client takes as many steps as it has batches, and counts as it has images.

    All clients have as many steps as the one with most images. The labels of steps that a client does not take are
    ``NONE``, whose loss is zero; only FedProx's weak pull acts in them.
    """

    inner: Objective
    steps: Any  # of every client
    weight: Any  # of every client

    @property
    def batches(self) -> int:
        return self.inner.batches

    def init(self, params: Params) -> Any:
        return self.inner.init(params)

    def job(
        self, start: Params, broadcast: None, client_state: Any, batches: Any, context: Context
    ) -> tuple[Params, Any]:
        x, y = batches
        steps, weight = (jnp.asarray(each)[context.ue] for each in (self.steps, self.weight))
        number, last = jnp.arange(rows_of(batches)), rows_of(batches) - 1
        taken = (number < steps - 1) | (number == last)  # the first and the last step count for everybody
        own = x, jnp.where(taken[:, None, None], y.astype(jnp.int32), NONE)
        total, client_state = self.inner.job(start, broadcast, client_state, own, context)
        return jax.tree.map(lambda g: weight * g, total), client_state


@traced
class Ditto(KeepsModel):
    """PFLlib's Ditto: each client's own model takes steps on the batches of the global one, held near it by μ."""

    pull: float = 0.0

    def job(
        self,
        start: Params,
        broadcast: None,  # noqa: ARG002 (the interface)
        client_state: Params,
        batches: Any,
        context: Context,
    ) -> tuple[Params, Params]:
        def held(v: Params, own: Any) -> Params:
            pull = jnp.where((own[1] == NONE).all(), 0.0, self.pull)
            return jax.tree.map(lambda g, a, w: g + pull * (a - w), plain(context.loss)(v, own), v, start)

        _, total = descend(plain(context.loss), start, batches, context.beta)
        return total, descend(held, client_state, batches, context.beta)[0]


PULL_OF_PFEDME = 15.0  # its λ, and the steps to θ: 5 of 0.01, as in PFLlib's program
METHODS: dict[str, tuple[Objective, int]] = {  # objective, passes over the images
    "FedAvg": (FedAvg(), 1),
    "FedProx": (FedProx(0.001), 1),
    "Per-FedAvg": (PerFed(STEP, hessian="fo"), 2),
    "Per-FedAvg exact": (PerFed(STEP, hessian="exact", hessian_batch="inner"), 2),
    "Ditto": (Ditto(0.0), 1),
    "Ditto, μ = 0.1": (Ditto(0.1), 1),
    "APFL": (APFL(), 1),
    "pFedMe": (PFedMe(0.01 / (1 - 0.01 * PULL_OF_PFEDME), PULL_OF_PFEDME), 1),
    "FedALA": (FedALA(), 2),
}


def make_learner(name: str, task: Task) -> Learner:
    """Return a method's learner. The mean of weighted uploads is the weighted mean of models."""
    objective, passes = METHODS[name]
    count = np.asarray(task.data.train_count)
    steps = passes * (count // (BATCH * objective.batches))
    epoch = Epoch(objective, steps.astype(np.float32), (count / count.mean()).astype(np.float32))
    return Learner(epoch, beta=STEP, batch=BATCH, local_steps=int(steps.max()), alpha=STEP)


# ---- the evaluation


@partial(jax.jit, static_argnames=("model", "length", "adapts"))
def share_right(model: Model, params: Params, data: Any, own: Any, *, length: int, adapts: bool) -> jax.Array:
    """Return the share of all clients' test images that are classified rightly."""

    def look(ue: jax.Array) -> tuple[jax.Array, jax.Array]:
        w = params if own is None else jax.tree.map(lambda rows: rows[ue], own)
        if adapts:
            x, y, _ = data.train_part(ue, BATCH)
            gradient = jax.grad(lambda w: -jax.nn.log_softmax(model(w, x))[jnp.arange(BATCH), y].mean())(w)
            w = jax.tree.map(lambda a, g: a - STEP * g, w, gradient)
        x, y, mask = data.test_part(ue, length)
        return ((model(w, x).argmax(axis=-1) == y) & mask).sum(), mask.sum()

    right, images = jax.lax.map(look, jnp.arange(data.ues))
    return right.sum() / images.sum()


def play(name: str, task: Task, seed: int, rounds: int, seconds: float, every: int, tell: Callable) -> None:
    """Train until the rounds or the seconds are over, and tell every evaluation. Compiling takes no seconds."""
    learner = make_learner(name, task)
    load: dict[str, Any] = {"payload_bits": task.payload_bits, "samples": learner.samples}
    timeline = simulate(Cell.draw(task.ues, seed), Protocol(task.ues), **load, rounds=rounds)
    script = Script.of(timeline, learner.merge)
    prepared, state = Prepared.of(task, script, learner, seed), start(task, script, learner, seed)
    data: Any = task.data
    length = int(np.asarray(data.test_count).max())
    look = partial(share_right, task.model, length=length, adapts=name.startswith("Per-FedAvg"))
    curve: list[tuple[int, float]] = []
    done, used_s = 0, 0.0
    while True:
        shares = [float(look(state.params, data, None))]
        if jax.tree.leaves(state.client_state):
            own = jax.vmap(METHODS[name][0].personal, in_axes=(None, 0))(state.params, state.client_state)
            shares.append(float(look(state.params, data, own)))
        curve.append((done, max(shares)))
        tell(curve, used_s)
        if done >= rounds or (used_s > seconds and done > 0):
            return
        began_s = time.perf_counter()
        state = jax.block_until_ready(advance(prepared, state, done, min(done + every, rounds)))
        if done:  # the first piece includes compiling
            used_s += time.perf_counter() - began_s
        done = min(done + every, rounds)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default=";".join(METHODS), help="separated by semicolons")
    parser.add_argument("--split", default="pathological", choices=list(PUBLISHED))
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="of training per row, without compiling")
    parser.add_argument("--every", type=int, default=5, help="rounds between evaluations; PFLlib: 1")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--images", type=int, help="number of images to use, to try it")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--out", type=Path, default=Path("pfllib.json"))
    given = parser.parse_args(arguments)
    images = read_cifar100(find(CIFAR100, given.data_dir).files)
    x, y = np.concatenate([images.x, images.test_x]), np.concatenate([images.y, images.test_y]).astype(int)
    some = np.sort(np.random.default_rng(0).permutation(y.size)[: given.images])
    x, y = (x[some], y[some]) if given.images else (x, y)
    model = replace(CNN, mean=(0.5,) * 3, deviation=(0.5,) * 3)
    rows: list[dict[str, Any]] = []
    for seed in range(given.seeds):
        task = make_task(x, y, given.split, model, seed)
        for name in given.methods.split(";"):
            row = {"method": name, "split": given.split, "seed": seed, "device": jax.devices()[0].device_kind}
            row["published"] = PUBLISHED[given.split].get(name.partition(",")[0])
            rows.append(row)

            def tell(curve: list[tuple[int, float]], used_s: float, row: dict[str, Any] = row) -> None:
                best_round, best = max(curve, key=lambda point: point[1])
                row |= {"rounds": curve[-1][0], "best": 100 * best, "best_round": best_round, "seconds": used_s}
                row["curve"] = [[done, round(100 * share, 3)] for done, share in curve]
                write_text(given.out, json.dumps(rows, indent=1))

            play(name, task, seed, given.rounds, given.seconds, given.every, tell)
            print(
                f"{given.split:<13}{name:<18} seed {seed}  {row['best']:6.2f} % (PFLlib {row['published']}), "
                f"best of {row['rounds']} rounds",
                flush=True,
            )


if __name__ == "__main__":
    main()
