"""Time edges below a cloud against a single cell with the same UEs, clock and training together."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any
from unittest.mock import patch

import jax

from benchmarks.speed.timing import BATCH, BETA, STALENESS, Announce, Measurement, measured, take_turns
from perfeds2.learning.datasets import digits
from perfeds2.learning.learner import Learner
from perfeds2.learning.objectives import FedAvg, Objective, PerFed
from perfeds2.learning.replay import replay
from perfeds2.learning.task import Task
from perfeds2.network.cell import Cell
from perfeds2.network.cells import make_cells
from perfeds2.network.sites import Sites
from perfeds2.timeline.cells import simulate_cells
from perfeds2.timeline.fast.loading import VARIABLE
from perfeds2.timeline.protocol import Protocol
from perfeds2.timeline.record import Timeline
from perfeds2.timeline.simulate import simulate

PER_CELL, EDGE_ROUNDS = 6, (1, 5)


def cells_group(
    repeats: int,
    seed: int,
    announce: Announce,
    *,
    cells: int = 4,
    rounds: int = 4_000,
    objectives: Sequence[Objective] = (FedAvg(), PerFed(0.03)),
) -> Iterator[Measurement]:
    """Measure CPU seconds of the same number of rounds; A = 2, and the cloud merges all edges."""
    ues = PER_CELL * cells
    announce(f"cells: {rounds:,} rounds of {ues} UEs in {cells} cells and in one, {repeats} turns …")
    drawn, task = Cell.draw(ues, seed), digits(ues=ues, labels_per_ue=3, seed=seed)
    network, protocol = make_cells(drawn, Sites.grid(cells, 200.0), 200.0, backhaul_s=0.01), Protocol(2, STALENESS)
    for learner in (Learner(objective, BETA, BATCH) for objective in objectives):
        load: dict[str, Any] = {"payload_bits": task.payload_bits, "samples": learner.samples, "rounds": rounds}
        clocks: dict[str, Callable[[], Timeline]] = {"one": partial(simulate, drawn, protocol, **load)}
        for each in EDGE_ROUNDS:
            above = {"model_bits": task.payload_bits, "edge_rounds": each}
            clocks[str(each)] = partial(simulate_cells, network, protocol, Protocol(cells), **load, **above)
        rivals: dict[str, Callable[[], object]] = {}
        for name, play in clocks.items():
            rivals[f"clock {name}"] = play
            rivals[f"replay {name}"] = partial(_train, task, play(), learner)
        with patch.dict(os.environ, {VARIABLE: "compiled"}):
            seconds = take_turns(rivals, repeats, time.process_time)
        objective = type(learner.objective).__name__
        for each in EDGE_ROUNDS:
            clock, training = seconds[f"clock {each}"], seconds[f"replay {each}"]
            alone = seconds["clock one"] + seconds["replay one"]
            what = f"{objective} in {cells} cells, exchange after {each} rounds, of one cell: "
            name = f"cells/{objective}-{each}"
            yield measured(name, f"{what}clock and training", (clock + training) / alone, "×", at_most=1.3)
            yield measured(f"{name}-training", f"{what}training", training / seconds["replay one"], "×")


def _train(task: Task, timeline: Timeline, learner: Learner) -> None:
    jax.block_until_ready(replay(task, timeline, learner))
