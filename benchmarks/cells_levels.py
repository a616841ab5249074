"""Does it help to close rounds early at the edge, at the cloud, or at both, and when?

    python -m benchmarks.cells_levels --out levels
    python -m benchmarks.cells_levels --out levels --equal-steps
    python -m benchmarks.cells_levels --out levels --equal-steps --schedules
    python -m benchmarks.cells_levels --out levels --task mnist --data-dir data --seeds 20 --horizon-s 120

Four cells below a cloud. An edge closes a round on all of its UEs (sync) or on a third of them (semi); the cloud merges
all edges or the first half to arrive. HPFL is "sync, semi" with UEs of an edge that finish together; --schedules compares
it for all numbers of edges in a cloud round. An edge sends its model after it has merged two uploads per UE, whatever its
quorum. Flat federations merge every upload at the cloud, on all UEs or a third of them. The backhaul is free or about as slow as
an edge round, and cells have equal bands or bands in the ratio 8 : 4 : 2 : 1. With the same step size, a model that merges fewer uploads per
round moves further per upload; --equal-steps scales the step sizes to undo this. Each number is the time to a target accuracy of
the cloud's model after a personal step, relative to sync at both levels with the same seed: the geometric mean with a
95 % interval. Every finished seed is added to levels.json, and running the same command again trains only what is
missing. The tables are written to levels.md.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.hierfavg import RADIUS_M, TASKS, Curve, Kept, markdown, seeds_at_once, train_all
from perfeds2.allocation.bandwidth import Policy, equal_finish, equal_share, in_each_cell
from perfeds2.files import write_text
from perfeds2.learning.lanes import Lane
from perfeds2.learning.learner import Learner
from perfeds2.learning.objectives import PerFed
from perfeds2.learning.points import evaluation_points
from perfeds2.network.cell import Cell
from perfeds2.network.cells import Cells, make_cells
from perfeds2.network.sites import Sites
from perfeds2.runs.statistics import mean_and_interval
from perfeds2.timeline.cells import simulate_cells
from perfeds2.timeline.protocol import Protocol
from perfeds2.timeline.record import Timeline
from perfeds2.timeline.simulate import simulate

UES, EDGES = 24, 4
EACH = UES // EDGES
HPFL = "HPFL"  # You et al., 2303.10580: the UEs of an edge finish together
LEVELS = {  # whether rounds of edges, or of a flat federation, close early, and the number of edges that the cloud merges
    "sync, sync": (False, EDGES),
    "semi, sync": (True, EDGES),
    "sync, semi": (False, EDGES // 2),
    HPFL: (False, EDGES // 2),
    "semi, semi": (True, EDGES // 2),
    "flat, sync": (False,),
    "flat, semi": (True,),
}
SCHEDULES = {f"{HPFL}, {number}": (False, number) for number in range(EDGES, 0, -1)}  # of edges in a cloud round
FIRST = next(iter(LEVELS))
ROUNDS = 20  # cloud rounds after which schedules are compared
UPLOADS = 2  # of each UE between two exchanges with the cloud, on average


def network(seed: int, equal: bool, backhaul_s: float) -> Cells:
    """Return the cells; their bands add up to the same whole."""
    sites, drawn = Sites.grid(EDGES, RADIUS_M), Cell.draw(UES, seed, radius_m=RADIUS_M)
    ratio = np.ones(EDGES) if equal else 2.0 ** np.arange(EDGES)[::-1]
    sites = replace(sites, bandwidth_hz=EDGES * drawn.bandwidth_hz * ratio / ratio.sum())
    return make_cells(drawn, sites, RADIUS_M, backhaul_s=backhaul_s)


def played(
    cells: Cells,
    levels: tuple[int, ...],
    bits: float,
    samples: int,
    horizon_s: float,
    bandwidth: Policy = equal_share,
) -> Timeline:
    """Return the timeline of one combination."""
    if len(levels) == 1:
        protocol = Protocol(UES // 3, 5) if levels[0] else Protocol(UES)
        # Each upload and each model crosses the backhaul, which is added to the time a job takes.
        whole = replace(cells.whole, downlink_s=cells.whole.downlink_s + 2 * float(cells.backhaul_s[0]))
        policy = in_each_cell(equal_share, cells.ues, [cell.bandwidth_hz for cell in cells.cells])
        return simulate(whole, protocol, payload_bits=bits, samples=samples, horizon_s=horizon_s, bandwidth=policy)
    edge, cloud = levels
    quorum = EACH // 3 if edge else EACH
    return simulate_cells(
        cells,
        Protocol(quorum, 5 if edge else None),
        Protocol(cloud, 3, "wait") if cloud < EDGES else Protocol(EDGES),
        payload_bits=bits,
        samples=samples,
        edge_rounds=UPLOADS * EACH // quorum,
        horizon_s=horizon_s,
        bandwidth=bandwidth,
    )


def step_size(given: argparse.Namespace, levels: tuple[int, ...]) -> float:
    """Return β. A model that closes early moves further per upload; ``--equal-steps`` scales β to undo this."""
    merged = (1 / 3 if levels[0] else 1.0) * (levels[1] / EDGES if len(levels) == 2 else 1.0)
    return given.beta * 6 * merged if given.equal_steps else given.beta


def train_level(given: argparse.Namespace, name: str, equal: bool, backhaul_s: float, seeds: list[int]) -> list[Curve]:
    """Train some seeds of one combination."""
    levels = (LEVELS | SCHEDULES)[name]
    learner, lanes = Learner(PerFed(0.03), beta=step_size(given, levels), batch=40), []
    for seed in seeds:
        task = TASKS[given.task](UES, given.labels_per_ue, seed, given.data_dir)
        cells = network(seed, equal, backhaul_s)
        policy = equal_finish if name.startswith(HPFL) else equal_share
        timeline = played(cells, levels, task.payload_bits, learner.samples, given.horizon_s, policy)
        points = evaluation_points(timeline, horizon_s=given.horizon_s, every_s=given.horizon_s / given.looks)
        lanes.append(Lane(task, timeline, learner, points, seed))
    return train_all(lanes)


def time_to(curve: Curve, target: float) -> float:
    """Return when the personal accuracy first reaches the target; infinite if it does not."""
    return next((row["time_s"] for row in curve if row["test_accuracy_personal"] >= target), np.inf)


def compared(times_s: np.ndarray, to_s: np.ndarray) -> list[str]:
    """Return the median time, and the ratio of the times seed by seed."""
    both = np.isfinite(times_s) & np.isfinite(to_s)
    reached = f"{np.count_nonzero(np.isfinite(times_s))}/{times_s.size}"
    if not both.any():
        return [reached, "", ""]
    mean, low, high = mean_and_interval(np.log(times_s[both] / to_s[both]))
    interval = "" if low is None or high is None else f" ({np.exp(low):.2f} to {np.exp(high):.2f})"
    middle = np.median(times_s)
    return [reached, f"{middle:.0f} s" if np.isfinite(middle) else "later", f"{np.exp(mean):.2f}{interval}"]


def kept_curves(given: argparse.Namespace, kept: Kept, name: str, equal: bool, backhaul_s: float) -> list[Curve]:
    """Return the curves of all seeds of one combination."""
    key = f"{given.task}, {name}, {'equal' if equal else 'unequal'}, {backhaul_s} s, {given.horizon_s} s"
    key += f", step {step_size(given, (LEVELS | SCHEDULES)[name]):.3g}"
    return kept.curves(
        key, given.seeds, lambda seeds: train_level(given, name, equal, backhaul_s, seeds), seeds_at_once()
    )


def levelled(given: argparse.Namespace, kept: Kept, equal: bool, backhaul_s: float, place: str) -> str:
    """Return the table of all levels in one network."""
    times, lines = {}, []
    for name in LEVELS:
        curves = kept_curves(given, kept, name, equal, backhaul_s)
        times[name] = np.array([time_to(curve, given.target) for curve in curves])
        last = 100 * np.mean([curve[-1]["test_accuracy_personal"] for curve in curves])
        lines.append([name, *compared(times[name], times[FIRST]), f"{last:.1f} %"])
    return markdown([f"edge, cloud {place}", "reached", "median", "ratio", "at the end"], lines)


def scheduled(given: argparse.Namespace, kept: Kept, equal: bool, backhaul_s: float, place: str) -> str:
    """Return the table of loss and latency of a cloud round, by the number of edges in it."""
    times, lines = {}, []
    for name in SCHEDULES:
        curves = kept_curves(given, kept, name, equal, backhaul_s)
        load = TASKS[given.task](UES, given.labels_per_ue, 0, given.data_dir).payload_bits, 120, given.horizon_s
        ends = [
            played(network(seed, equal, backhaul_s), SCHEDULES[name], *load, equal_finish)
            for seed in range(given.seeds)
        ]
        ends_s = [end.cloud.time_s for end in ends if end.cloud is not None]
        losses = [
            np.interp(
                end_s[ROUNDS - 1], [row["time_s"] for row in curve], [row["train_loss_personal"] for row in curve]
            )
            for curve, end_s in zip(curves, ends_s, strict=True)
        ]
        times[name] = np.array([time_to(curve, given.target) for curve in curves])
        cells = [within(np.array([end_s[ROUNDS - 1] / ROUNDS for end_s in ends_s])), within(np.array(losses))]
        lines.append([name, *cells, *compared(times[name], times[f"{HPFL}, {EDGES}"])[1:]])
    head = [f"edges {place}", "s per cloud round", f"loss after {ROUNDS}", "median", "ratio"]
    return markdown(head, lines)


def within(values: np.ndarray) -> str:
    mean, low, high = mean_and_interval(values)
    return f"{mean:.3g}" if low is None or high is None else f"{mean:.3g} ({low:.3g} to {high:.3g})"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=list(TASKS), default="digits")
    parser.add_argument("--data-dir", type=Path, help="Folder with the folder mnist; by default $PERFEDS2_DATA.")
    parser.add_argument("--labels-per-ue", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--horizon-s", type=float, default=60.0)
    parser.add_argument("--looks", type=int, default=100, help="Evaluations of a training.")
    parser.add_argument("--slow-s", type=float, default=0.2, help="Delay of the slow backhaul.")
    parser.add_argument("--beta", type=float, default=0.07)
    parser.add_argument("--equal-steps", action="store_true", help="Move equally far per upload in all combinations.")
    parser.add_argument("--target", type=float, default=0.8)
    parser.add_argument("--out", type=Path, default=Path("levels"))
    parser.add_argument("--schedules", action="store_true", help="HPFL with one edge in a cloud round, two, and so on.")
    given = parser.parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    kept, tables = Kept(given.out / "levels.json"), []
    for equal in (True, False):
        for backhaul_s in (0.0, given.slow_s):
            place = f"({'equal' if equal else 'unequal'} cells, backhaul {backhaul_s:g} s)"
            tables.append((scheduled if given.schedules else levelled)(given, kept, equal, backhaul_s, place))
    text = f"{given.task}, {given.seeds} seeds, time to {given.target:.0%}.\n\n" + "\n".join(tables)
    write_text(given.out / "levels.md", text)
    print(text)


if __name__ == "__main__":
    main()
