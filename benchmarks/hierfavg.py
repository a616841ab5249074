"""Repeat HierFAVG's MNIST experiment: 50 UEs below 5 edges, with 60 local steps between two cloud rounds.

    python -m benchmarks.hierfavg --out hierfavg
    python -m benchmarks.hierfavg --out hierfavg --data-dir data --seeds 10 --cloud-rounds 100

An edge merges all of its UEs after κ₁ local steps, and the cloud merges all edges after κ₂ rounds of each: (κ₁, κ₂) is
(60, 1), (30, 2), (15, 4) and (6, 10). Every UE has samples of one label. With the split edge-iid an edge has all ten labels;
with edge-niid it has five. Batch 20 and step size 0.01·0.995^t, t in cloud rounds, as in the authors' code; the network is
the package's, 784-100-10, not their convolutional one. Curves are accuracies of the cloud's model, the mean
over UEs, against local steps and against simulated time. Every finished seed is added to hierfavg.json, and running the same
command again trains only what is missing. The tables are written to hierfavg.md.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from perfeds2.files import write_text
from perfeds2.learning import on_gpu
from perfeds2.learning.datasets import digits, mnist
from perfeds2.learning.lanes import Lane
from perfeds2.learning.learner import Learner
from perfeds2.learning.objectives import Context, FedAvg, Objective
from perfeds2.learning.partition import Partition, Samples, to_partition
from perfeds2.learning.points import EvaluationPoint
from perfeds2.learning.settings import setting, traced
from perfeds2.learning.train import train, train_together
from perfeds2.network.cell import Cell
from perfeds2.network.cells import Cells, make_cells
from perfeds2.network.sites import Sites
from perfeds2.runs.statistics import mean_and_interval
from perfeds2.timeline.cells import simulate_cells
from perfeds2.timeline.protocol import Protocol
from perfeds2.timeline.record import Timeline

UES, EDGES, BATCH, STEP, DECAY = 50, 5, 20, 0.01, 0.995
KAPPAS = ((60, 1), (30, 2), (15, 4), (6, 10))
TASKS = {"mnist": mnist, "digits": digits}
RADIUS_M = 200.0
Curve = list[dict[str, float]]  # a row per evaluation


@traced
class DecayedAvg(Objective):
    """The gradient on one batch, with a factor that shrinks from cloud round to cloud round."""

    factor: float | jax.Array = 1.0
    edge_rounds: int = setting(default=1, static=True)

    def gradient(self, params: Any, start: Any, batches: Any, context: Context) -> Any:
        factor = self.factor * DECAY ** (context.version // self.edge_rounds).astype(jnp.float32)
        return jax.tree.map(lambda g: factor * g, FedAvg().gradient(params, start, batches, context))


@dataclass(frozen=True)
class OneLabel:
    """A split that gives each UE samples of one label; UEs of the same label share them equally."""

    labels: tuple[int, ...]

    def __call__(self, samples: Samples, ues: int, seed: int) -> Partition:
        owners, random = np.full(samples.labels.size, -1), np.random.default_rng(seed)
        for label in set(self.labels):
            holders = np.flatnonzero(np.array(self.labels) == label)
            for half in (False, True):
                own = np.flatnonzero((samples.labels == label) & (samples.is_test == half))
                owners[random.permutation(own)] = holders[np.arange(own.size) % holders.size]
        return to_partition(owners, samples.is_test, ues, random)


def split_of(cells: Cells, name: str) -> OneLabel:
    """Return the labels of all UEs: of each edge all ten, or five that begin at another one for each edge."""
    labels = np.zeros(cells.population, int)
    for edge, own in enumerate(cells.ues):
        labels[own] = (2 * edge + np.arange(own.size) % 5 if name == "edge-niid" else np.arange(own.size)) % 10
    return OneLabel(tuple(labels.tolist()))


def after_cloud_rounds(timeline: Timeline) -> list[EvaluationPoint]:
    """Return the moments at which the cloud has a new model, and the start."""
    assert timeline.cloud is not None
    closed = zip(timeline.cloud.rows.tolist(), timeline.cloud.time_s.tolist(), strict=True)
    return [EvaluationPoint(0, 0.0), *(EvaluationPoint(rows, time_s) for rows, time_s in closed)]


def train_all(lanes: Sequence[Lane]) -> list[Curve]:
    """Train lanes of equal shape, side by side on a GPU, and return their curves."""
    if on_gpu.is_there():
        *_, end = train_together(lanes)
        values = end.values
    else:
        values = []
        for lane in lanes:
            *_, last = train(lane.task, lane.timeline, lane.learner, lane.points, seed=lane.seed)
            values.append(last.values)
    return [
        [{"time_s": point.time_s, **row} for point, row in zip(lane.points, rows, strict=True)]
        for lane, rows in zip(lanes, values, strict=True)
    ]


@dataclass(frozen=True)
class Kept:
    """Curves in a JSON file, by name and seed."""

    path: Path

    def curves(self, name: str, seeds: int, missing: Callable[[list[int]], list[Curve]], at_once: int) -> list[Curve]:
        """Return the curves of all seeds; compute those that are missing, ``at_once`` at a time."""
        known: dict[str, dict[str, Curve]] = json.loads(self.path.read_text("utf-8")) if self.path.exists() else {}
        own = known.setdefault(name, {})
        wanted = [seed for seed in range(seeds) if str(seed) not in own]
        for first in range(0, len(wanted), at_once):
            some = wanted[first : first + at_once]
            own |= {str(seed): curve for seed, curve in zip(some, missing(some), strict=True)}
            write_text(self.path, json.dumps(known))
            print(f"{name}: seeds {some} done", flush=True)
        return [own[str(seed)] for seed in range(seeds)]


def seeds_at_once() -> int:
    return 32 if on_gpu.is_there() else 1


def hierarchy(given: argparse.Namespace, split: str, kappa: tuple[int, int], seeds: list[int]) -> list[Curve]:
    """Train some seeds with (κ₁, κ₂)."""
    local_steps, edge_rounds = kappa
    recipe, lanes = TASKS[given.task], []
    learner = Learner(DecayedAvg(edge_rounds=edge_rounds), beta=STEP, batch=BATCH, local_steps=local_steps)
    for seed in seeds:
        drawn = Cell.draw(UES, seed, radius_m=RADIUS_M)
        cells = make_cells(drawn, Sites.grid(EDGES, RADIUS_M), RADIUS_M, backhaul_s=given.backhaul_s)
        task = recipe(UES, None, seed, given.data_dir, split=split_of(cells, split))
        timeline = simulate_cells(
            cells,
            Protocol(UES // EDGES),
            Protocol(EDGES),
            payload_bits=task.payload_bits,
            samples=learner.samples,
            model_bits=task.payload_bits,
            edge_rounds=edge_rounds,
            rounds=given.cloud_rounds * edge_rounds * EDGES,
        )
        lanes.append(Lane(task, timeline, learner, after_cloud_rounds(timeline), seed))
    per_round = local_steps * edge_rounds
    return [
        [{"local_steps": float(number * per_round), **row} for number, row in enumerate(curve)]
        for curve in train_all(lanes)
    ]


def first_reached(curve: Curve, target: float, what: str) -> float | None:
    """Return when the accuracy first reaches the target; None if it does not."""
    return next((row[what] for row in curve if row["test_accuracy"] >= target), None)


def with_interval(values: Sequence[float], digits_: int = 1) -> str:
    """Return the mean of the seeds and half the width of its 95 % interval."""
    mean, low, _ = mean_and_interval(np.array(values))
    return f"{mean:.{digits_}f}" if low is None else f"{mean:.{digits_}f} ± {mean - low:.{digits_}f}"


def row_of(name: str, curves: list[Curve], target: float) -> list[str]:
    cells = [name]
    for share in (0.25, 0.5, 1.0):
        cells.append(with_interval([100 * curve[round(share * (len(curve) - 1))]["test_accuracy"] for curve in curves]))
    for what in ("local_steps", "time_s"):
        reached = [at for curve in curves if (at := first_reached(curve, target, what)) is not None]
        cells.append(
            with_interval(reached, 0) if len(reached) == len(curves) else f"{len(reached)}/{len(curves)} seeds"
        )
    return cells


def markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rows = [head, ["---", *("---:" for _ in head[1:])], *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=list(TASKS), default="mnist")
    parser.add_argument("--data-dir", type=Path, help="Folder with the folder mnist; by default $PERFEDS2_DATA.")
    parser.add_argument("--splits", nargs="+", default=["edge-iid", "edge-niid"], choices=["edge-iid", "edge-niid"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--cloud-rounds", type=int, default=20)
    parser.add_argument("--backhaul-s", type=float, default=1.0, help="Delay between an edge and the cloud.")
    parser.add_argument("--target", type=float, default=0.8, help="Accuracy whose steps and seconds are shown.")
    parser.add_argument("--out", type=Path, default=Path("hierfavg"))
    given = parser.parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    kept, tables = Kept(given.out / "hierfavg.json"), []
    for split in given.splits:
        lines = []
        for kappa in KAPPAS:
            name = f"{given.task}, {split}, {kappa}, {given.cloud_rounds} cloud rounds, backhaul {given.backhaul_s} s"
            curves = kept.curves(
                name,
                given.seeds,
                lambda seeds, split=split, kappa=kappa: hierarchy(given, split, kappa, seeds),
                seeds_at_once(),
            )
            lines.append(row_of(f"κ₁ = {kappa[0]}, κ₂ = {kappa[1]}", curves, given.target))
        steps = 60 * given.cloud_rounds
        at = [f"% after {round(share * steps)} steps" for share in (0.25, 0.5, 1.0)]
        head = [split, *at, f"steps to {given.target:.0%}", f"s to {given.target:.0%}"]
        tables.append(markdown(head, lines))
    text = f"{given.task}, {given.seeds} seeds, means with 95 % intervals.\n\n" + "\n".join(tables)
    write_text(given.out / "hierfavg.md", text)
    print(text)


if __name__ == "__main__":
    main()
