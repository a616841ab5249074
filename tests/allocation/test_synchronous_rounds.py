"""How long does a synchronous round of the default cell take, by how its band is shared? docs/explanation/schedulers.md says so."""

import numpy as np
import pytest

from perfeds2.allocation.bandwidth import Uplink, equal_finish, equal_share
from perfeds2.network.link import rate_bps
from perfeds2.spec.build import Stage
from perfeds2.spec.resolve import spec_from

SAMPLES = 40  # of a job of FedAvg


def shared_by_those_who_send_s(uplink):
    """The same round with equal parts for the UEs that send, from each start or end of an upload to the next."""
    now_s, left = 0.0, uplink.bits.copy()
    while left.any():
        starts = uplink.compute_s[uplink.compute_s > now_s]
        next_s = starts.min() if starts.size else np.inf
        sends = (uplink.compute_s <= now_s) & (left > 0)
        if not sends.any():
            now_s = next_s
            continue
        rate = rate_bps(uplink.bandwidth_hz / sends.sum(), uplink.signal_hz[sends], None)
        until_s = min(next_s, now_s + (left[sends] / rate).min())
        left[sends] = np.maximum(left[sends] - rate * (until_s - now_s), 0.0)
        left[left < 1e-6] = 0.0
        now_s = until_s
    return now_s


def seconds_of(policy, uplink):
    return (uplink.compute_s + uplink.bits / rate_bps(policy(uplink), uplink.signal_hz, None)).max()


def test_a_synchronous_round_takes_as_long_as_its_page_says():
    found = []
    for seed in range(5):
        cell = Stage.of(spec_from(seeds=[seed]), seed).cell
        equal = np.full(cell.ues, 1 / cell.ues)
        for round_ in range(30):
            bits = np.full(cell.ues, 77_120.0)
            signal_hz = cell.signal_hz(round_)
            uplink = Uplink(round_, cell.bandwidth_hz, signal_hz, cell.compute_s(SAMPLES), bits, equal, None)
            lasts = [seconds_of(policy, uplink) for policy in (equal_share, equal_finish)]
            found.append([*lasts, shared_by_those_who_send_s(uplink)])
    assert np.mean(found, axis=0) == pytest.approx([0.112, 0.086, 0.071], abs=7e-4)
