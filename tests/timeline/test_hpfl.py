"""Are synchronous edges below a semi-asynchronous cloud, with each edge's band divided best, HPFL (2303.10580)?"""

import itertools

import numpy as np
import pytest

from perfeds2.allocation.bandwidth import equal_finish
from perfeds2.network.cell import Cell
from perfeds2.network.cells import make_cells
from perfeds2.network.sites import Sites
from perfeds2.timeline.cells import simulate_cells
from perfeds2.timeline.protocol import Protocol

EDGES, BITS, SAMPLES = 4, 1e5, 100.0


@pytest.fixture(scope="module")
def cells():
    return make_cells(Cell.draw(2 * EDGES, seed=6, rician_k=np.inf), Sites.grid(EDGES, 200.0), 200.0)  # nothing fades


@pytest.fixture(scope="module")
def timeline(cells):
    load = {"payload_bits": BITS, "samples": SAMPLES, "bandwidth": equal_finish}
    return simulate_cells(cells, Protocol(2), Protocol(2), rounds=80, **load)


@pytest.fixture(scope="module")
def latency_s(cells):
    """The shortest time of each edge's round, over 100,000 divisions of its band between its two UEs."""
    part = np.linspace(0, 1, 100_001)[1:-1]
    shortest = []
    for cell in cells.cells:
        compute_s = cell.cycles_per_sample * SAMPLES / cell.cpu_hz
        ends = [
            compute_s[ue] + BITS / (band_hz * np.log2(1 + cell.signal_hz(0)[ue] / band_hz))
            for ue, band_hz in ((0, part * cell.bandwidth_hz), (1, (1 - part) * cell.bandwidth_hz))
        ]
        shortest.append(np.maximum(*ends).min())
    return np.array(shortest)


def test_no_division_of_its_band_closes_an_edge_round_earlier(timeline, latency_s):
    first_s = np.array([timeline.time_s[timeline.cloud.cell == edge][0] for edge in range(EDGES)])
    np.testing.assert_allclose(first_s, latency_s, rtol=1e-4)
    assert (first_s <= latency_s * (1 + 1e-9)).all()


def test_no_other_two_edges_close_a_cloud_round_earlier(timeline, latency_s):
    of_pairs = {pair: latency_s[list(pair)].max() for pair in itertools.combinations(range(EDGES), 2)}
    soonest = min(of_pairs, key=of_pairs.__getitem__)
    assert tuple(sorted(timeline.cloud.cells[0])) == soonest
    assert timeline.cloud.time_s[0] == pytest.approx(of_pairs[soonest], rel=1e-4)


def test_edges_go_on_with_the_model_of_the_round_that_merged_them(timeline):
    """The same rounds once more: the cloud takes the two that are ready first, and these begin again together."""
    cloud = timeline.cloud
    lasts_s = [timeline.time_s[cloud.cell == edge][0] for edge in range(EDGES)]  # nothing fades: always as long
    ready_s, began = list(lasts_s), [0] * EDGES
    for number in range(cloud.time_s.size):
        merged = sorted(range(EDGES), key=ready_s.__getitem__)[:2]
        close_s = max(ready_s[edge] for edge in merged)
        assert cloud.cells[number].tolist() == merged
        assert cloud.staleness[number].tolist() == [number - began[edge] for edge in merged]
        assert cloud.time_s[number] == pytest.approx(close_s, rel=1e-9)
        for edge in merged:
            ready_s[edge], began[edge] = close_s + lasts_s[edge], number + 1
    assert cloud.time_s.size > 20
    assert cloud.staleness.max() > 0
