"""Time rounds in perfeds2: the timeline of a radio cell (A = 5 of 20 UEs, S = 5) and its replay.

With --replay the timeline is made beforehand and only the replay is timed.
"""

from collections.abc import Sequence

import jax
import numpy as np
import workload as work

from perfeds2 import Cell, FedAvg, Learner, PerFed, Protocol, Timeline, replay, simulate
from perfeds2.learning.data import Shards
from perfeds2.learning.models.mlp import MLP
from perfeds2.learning.partition import Partition
from perfeds2.learning.task import Task, payload_bits


def make_task(seed: int) -> Task:
    x, y = work.data(seed)
    start = np.arange(work.UES) * work.SAMPLES
    parts = Partition(np.arange(y.size), start, np.full(work.UES, work.SAMPLES), np.zeros(work.UES, int))
    model = MLP((work.FEATURES, work.HIDDEN, work.CLASSES))
    return Task("pictures", model, Shards.of(x.reshape(-1, work.FEATURES), y.ravel(), parts))


def main() -> None:
    given = work.options()
    task, objective = make_task(given.seed), PerFed(work.ALPHA) if given.exact else FedAvg()
    learner = Learner(objective, work.BETA, work.BATCH)
    cell, protocol, bits = Cell.draw(work.UES, given.seed), Protocol(work.QUORUM, 5), payload_bits(task.model)
    done: list[dict[str, jax.Array]] = []

    def timeline(rounds: int) -> Timeline:
        return simulate(cell, protocol, payload_bits=bits, samples=learner.samples, rounds=rounds)

    known = {rounds: timeline(rounds) for rounds in (work.WARM_UP, given.rounds)} if given.replay else {}

    def play(rounds: int) -> None:
        line = known[rounds] if given.replay else timeline(rounds)
        done.append(jax.block_until_ready(replay(task, line, learner, given.seed)))

    def weights() -> Sequence[np.ndarray]:
        names = ("dense1.weight", "dense1.bias", "dense2.weight", "dense2.bias")
        return [np.asarray(done[-1][name]) for name in names]

    name = "perfeds2" + (", replay alone" if given.replay else "") + (", exact Hessian" if given.exact else "")
    if jax.default_backend() != "cpu":
        play(given.rounds)  # on a GPU, many rounds are a different program than few; compile it before the clock starts
    work.measure(name, ["perfeds2", "jax"], play, weights, given.rounds, given.seed)


if __name__ == "__main__":
    main()
