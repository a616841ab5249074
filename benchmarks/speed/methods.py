"""Measure the overhead of a method beyond its own arithmetic, with a merge and a memory that do nothing."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from benchmarks.speed.replay import NETWORK, bench_timeline, random_tasks
from benchmarks.speed.timing import BATCH, BETA, Announce, Measurement, measured, take_turns
from perfeds2.learning.learner import Learner
from perfeds2.learning.merges import Arrived, Merge, mean_of
from perfeds2.learning.methods.ca2fl import CA2FL
from perfeds2.learning.methods.ditto import Ditto
from perfeds2.learning.methods.fedbuff import FedBuff
from perfeds2.learning.methods.scaffold import ControlVariates, Scaffold
from perfeds2.learning.models.mlp import MLP
from perfeds2.learning.objectives import FedAvg, Objective
from perfeds2.learning.replay import Prepared, advance, start
from perfeds2.learning.script import Script
from perfeds2.learning.trees import stepped

DIGITS = MLP((64, 32, 10))  # so small that overhead dominates a round


@dataclass(frozen=True)
class Remembering(Objective):
    """FedAvg whose UEs keep a whole model between jobs without using it."""

    def init(self, params: Any) -> Any:
        return params

    def job(self, start: Any, broadcast: Any, kept: Any, batches: Any, context: Any) -> tuple[Any, Any]:  # noqa: ARG002
        return jax.grad(context.loss)(start, jax.tree.map(lambda b: b[0, 0], batches)), kept


@dataclass(frozen=True)
class Looking(Merge):
    """The mean, of uploads that are looked at one by one."""

    needs = frozenset({"uploads"})

    def step(self, params: Any, arrived: Arrived, state: Any) -> tuple[Any, Any]:
        return stepped(params, arrived.beta, mean_of(arrived.uploads)), state


LEARNERS = {
    "plain": Learner(FedAvg(), BETA, BATCH),
    "merge": Learner(FedAvg(), BETA, BATCH, merge=Looking()),
    "memory": Learner(Remembering(), BETA, BATCH),
    "FedBuff": Learner(FedAvg(), BETA, BATCH, merge=FedBuff()),
    "CA2FL": Learner(FedAvg(), BETA, BATCH, merge=CA2FL()),
    "SCAFFOLD": Learner(Scaffold(), BETA, BATCH, merge=ControlVariates()),
    "Ditto": Learner(Ditto(), BETA, BATCH),
}
IDLE = {"merge": "a merge that sees every upload and takes their mean", "memory": "a whole model kept for nothing"}


def methods_group(
    repeats: int,
    seed: int,
    announce: Announce,
    *,
    rounds: int = 200,
    samples: int = 6_000,
    models: Sequence[MLP] = (DIGITS, NETWORK),
) -> Iterator[Measurement]:
    """Measure each method's time relative to FedAvg's, for 20 UEs at A = 5 and batch 40, without evaluations."""
    announce(f"methods: {rounds} rounds for each of {len(models) * len(LEARNERS)} loops, {repeats} turns …")
    for model in models:
        (task,), line = random_tasks(model, samples, (20,), seed), bench_timeline(model, 20, rounds, seed)
        script = Script.of(line)

        def rounds_of(learner: Learner, task: Any = task, script: Script = script) -> Callable[[], object]:
            prepared = Prepared.of(task, script, learner, seed)
            return lambda: jax.block_until_ready(
                advance(prepared, start(task, script, learner, seed), 0, rounds).params
            )

        seconds = take_turns({name: rounds_of(learner) for name, learner in LEARNERS.items()}, repeats)
        size = "-".join(map(str, model.sizes))
        for name in list(LEARNERS)[1:]:
            what = f"{IDLE.get(name, name)}, {size} network: times the seconds of FedAvg's rounds"
            most = 1.1 if name in IDLE else None
            yield measured(f"methods/{name}-{size}", what, seconds[name] / seconds["plain"], "×", at_most=most)
