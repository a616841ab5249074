"""What can be set for edge servers below a cloud, and which run does an edge take part in?"""

import pytest
from fake_broker import FakeBroker

from perfeds2.deployment.mqtt.backhaul import CloudLink
from perfeds2.deployment.mqtt.wire import Topics
from perfeds2.deployment.preparation import travelling
from perfeds2.deployment.setup import Setup
from perfeds2.errors import InputError

TOLD = {"devices": 4, "cells": 2, "edge-rounds": 2, "quorum": 1}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"devices": 5}, "must be a multiple of the number of cells, 2"),
        ({"edge": 2}, "--edge 2 must be below the number of edges, 2"),
        ({"quorum": 3}, "--quorum must be from 1 to the number of UEs of a cell, 2"),
        ({"cloud-quorum": 3}, "--cloud-quorum must be from 1 to the number of cells, 2"),
        ({"cloud-quorum": 1, "cloud-staleness": 0}, "must be at least the number of cells, 2"),
        (
            {"secure-aggregation": True, "clip": 1.0, "devices": 6, "quorum": 3},
            "--secure-aggregation does not work with --cells",
        ),
        ({"dp-noise": 1.0, "clip": 1.0}, "noise .* does not work with --cells"),
        ({"algorithm": "FedAdam"}, "the merge of FedAdam does not work with --cells"),
        ({"cells": None, "edge": 0}, "--edge 0 must be below the number of edges, 0"),
    ],
)
def test_what_does_not_fit_cells_is_refused_in_a_sentence(given, said):
    with pytest.raises(InputError, match=said):
        Setup.from_texts(TOLD | given)


def test_devices_rest_below_a_cloud_whose_edges_do_not_rest():
    cloud = Setup.from_texts(TOLD | {"rest-rounds": 2, "quorum": 1})
    assert cloud.algorithm.protocol.rest_rounds == 1
    assert cloud.edges[0].algorithm.protocol.rest_rounds == 2


def test_rounds_count_those_of_all_edges_as_in_the_simulator():
    """κ₂ = 2: a cloud round of one or two edges merges two or four of their rounds."""
    assert Setup.from_texts(TOLD | {"rounds": 24}).rounds == 6
    assert Setup.from_texts(TOLD | {"rounds": 25}).rounds == 7
    assert Setup.from_texts(TOLD | {"rounds": 24, "cloud-quorum": 1, "cloud-staleness": 3}).rounds == 12
    assert Setup.from_texts(TOLD | {"rounds": 24, "cells": None, "edge-rounds": None}).rounds == 24


def test_each_edge_has_its_own_part_of_the_devices():
    cloud = Setup.from_texts(TOLD | {"slow": "1=2,3=4", "quorum": 2, "cloud-quorum": 1, "cloud-staleness": 3})
    assert (cloud.ues, [edge.ues for edge in cloud.edges]) == (2, [2, 2])
    assert [edge.ue_of(device) for edge in cloud.edges for device in range(2)] == [0, 1, 2, 3]
    assert [edge.own.slow for edge in cloud.edges] == [{1: 2.0}, {1: 4.0}]
    above, below = cloud.algorithm, cloud.edges[1].algorithm
    assert (above.protocol.quorum, above.protocol.max_staleness, above.protocol.stale) == (1, 3, "wait")
    assert (below.protocol.quorum, above.learner.beta) == (2, 1.0)
    assert Setup.from_toml(cloud.edges[1].to_toml()) == cloud.edges[1]


def test_an_edge_takes_part_only_in_the_run_it_belongs_to(tmp_path):
    cloud, broker = Setup.from_texts(TOLD), FakeBroker()
    link = CloudLink(cloud.edges[1], broker.link(), tmp_path, Topics())
    with link:
        for settings, run, error in (
            (cloud, "a", None),
            (cloud, "b", "belongs to an earlier one"),
            (Setup.from_texts(TOLD | {"beta": 0.5}), "a", "the cloud has beta = 0.5, this edge 0.07"),
        ):
            broker.take(Topics().run, travelling(settings, run).to_bytes(), True)
            broker.pump()
            assert link.newest() is None
            said = link._device.state.error
            assert said is None if error is None else error in (said or "")
