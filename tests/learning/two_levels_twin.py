"""The slow twin of a replay with many cells, and timelines of many cells made by a plain loop."""

import heapq
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from replay_twin import upload

from perfeds2.learning.learner import Learner
from perfeds2.learning.task import Task
from perfeds2.network.cell import Cell
from perfeds2.timeline.cloud import Cloud
from perfeds2.timeline.edges import joined
from perfeds2.timeline.protocol import Protocol
from perfeds2.timeline.record import Timeline
from perfeds2.timeline.simulate import simulate


def many_cells(
    round_s: list[float],
    protocol: Protocol,
    ues_each: int,
    *,
    edge_rounds: int = 2,
    cloud_quorum: int | None = None,
    cloud_rounds: int = 6,
    backhaul_s: float = 0.25,
) -> Timeline:
    """Edges whose rounds take this many seconds each, and a cloud that merges the first edges to arrive."""
    count = len(round_s)
    quorum = count if cloud_quorum is None else cloud_quorum
    times: list[list[float]] = [[] for _ in round_s]
    versions = [0] * count
    arriving: list[tuple[float, int]] = []

    def play_segment(edge: int, now_s: float) -> None:
        times[edge] += [now_s + round_s[edge] * (number + 1) for number in range(edge_rounds)]
        heapq.heappush(arriving, (times[edge][-1] + backhaul_s, edge))

    for edge in range(count):
        play_segment(edge, 0.0)
    merged, staleness, arrival_s, time_s = [], [], [], []
    for number in range(cloud_rounds):
        first = [heapq.heappop(arriving) for _ in range(quorum)]
        merged.append([edge for _, edge in first])
        arrival_s.append([at_s for at_s, _ in first])
        time_s.append(max(max(arrival_s[-1]), time_s[-1] if time_s else 0.0))
        staleness.append([number - versions[edge] for edge in merged[-1]])
        for edge in merged[-1]:
            versions[edge] = number + 1
            play_segment(edge, time_s[-1] + backhaul_s)
    edges = []
    for edge, closed_s in enumerate(times):
        played = simulate(Cell.draw(ues_each, edge), protocol, payload_bits=1e5, samples=60, rounds=len(closed_s))
        edges.append(replace(played, time_s=np.array(closed_s)))
    handed = np.zeros((cloud_rounds, count), bool)
    np.put_along_axis(handed, np.array(merged), True, axis=1)
    return joined(
        edges,
        [np.arange(edge, count * ues_each, count) for edge in range(count)],
        edge_rounds,
        cells=np.array(merged),
        staleness=np.array(staleness),
        arrival_s=np.array(arrival_s),
        time_s=np.array(time_s),
        handed=handed,
    )


def cloud_of(timeline: Timeline) -> Cloud:
    assert timeline.cloud is not None
    return timeline.cloud


def replay_cells_slowly(task: Task, timeline: Timeline, learner: Learner, seed: int = 0) -> dict[str, np.ndarray]:
    """Return the cloud's model after the last row, for merges by the mean. Keeps every model there ever was."""
    first, key = (jax.random.fold_in(jax.random.key(seed), use) for use in (0, 1))
    cloud = cloud_of(timeline)
    top = {name: np.asarray(values, np.float64) for name, values in jax.jit(task.model.init)(first).items()}
    models = {0: top}
    newest = dict.fromkeys(range(cloud.sizes.size), 0)  # version of each edge
    handed = dict.fromkeys(newest, top)
    done = 0
    for row, edge in enumerate(cloud.cell.tolist()):
        total = {name: np.zeros(values.shape) for name, values in top.items()}
        for ue, version in zip(timeline.ues[row].tolist(), timeline.versions[row].tolist(), strict=True):
            own = sum(1 for earlier in range(version) if cloud.cell[earlier] == edge)
            start = {name: jnp.asarray(values, jnp.float32) for name, values in models[version].items()}
            sent = upload(task.model, learner, task.data, key, start, jnp.int32(ue), jnp.int32(own))
            for name, values in sent.items():
                total[name] = total[name] + np.asarray(values, np.float64)
        before = models[newest[edge]]
        newest[edge] = row + 1
        models[row + 1] = {name: before[name] - learner.beta * total[name] / timeline.quorum for name in top}
        while done < cloud.rows.size and cloud.rows[done] == row + 1:
            moved = {name: np.zeros(values.shape) for name, values in top.items()}
            for each in cloud.cells[done].tolist():
                for name in top:
                    learned = handed[each][name] - models[newest[each]][name]
                    moved[name] = moved[name] + cloud.sizes[each] / cloud.sizes.mean() * learned
            top = {name: values - moved[name] / cloud.cells.shape[1] for name, values in top.items()}
            for each in np.flatnonzero(cloud.handed[done]).tolist():
                models[newest[each]] = handed[each] = top
            done += 1
    return top
