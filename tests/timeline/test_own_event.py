"""The event of one class that docs/how-to/extending.md shows, by hand."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hand_made import hand_made_cell, one_hz_each

from perfeds2.timeline.jobs import MERGED
from perfeds2.timeline.protocol import Protocol
from perfeds2.timeline.simulate import simulate

LOAD: dict[str, Any] = {"payload_bits": 8, "samples": 1, "bandwidth": one_hz_each}


def slows_down() -> Any:
    page = Path(__file__).parents[2] / "docs/how-to/extending.md"
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    (code,) = (block for block in blocks if "class SlowsDown" in block)
    code, namespace = code[: code.index("\ncell, hot = ")], {}
    assert code[code.index("class ") :].strip().count("\n") < 40
    exec(compile(code, page.name, "exec"), namespace)
    return namespace["SlowsDown"]


def test_a_processor_that_slows_down_by_hand():
    """UEs compute 2 s and 4 s and send 2 s. At 5 s UE 0 computes half as fast: a second is left of its second job.

    Its jobs end at 4, 9, 15 and 21 s instead of 4, 8, 12 and 16 s. UE 1's end at 6, 12 and 18 s.
    """
    cell = hand_made_cell([2.0, 4.0])
    timeline = simulate(cell, Protocol(1), **LOAD, rounds=7, events=[slows_down()(0, 5.0, 2.0)])
    np.testing.assert_allclose(timeline.time_s, [4, 6, 9, 12, 15, 18, 21])
    assert timeline.ues.ravel().tolist() == [0, 1, 0, 1, 0, 1, 0]
    jobs = timeline.jobs(range(1))
    computed_s = [(jobs.sending_s - jobs.start_s)[jobs.version == version].sum() for version in (0, 1, 3, 5)]
    np.testing.assert_allclose(computed_s, [2, 3, 4, 4])
    np.testing.assert_allclose(jobs.end_s[(jobs.version == 1) & (jobs.round < 0)], [5.0])  # its first part
    seconds = timeline.seconds()
    assert seconds["computing"] == pytest.approx(2 + 3 + 4 + 4 + 3 * 4 + 3)
    merged = timeline.rows(MERGED)
    assert np.unique(np.stack([merged.ue, merged.version]), axis=1).shape[1] == 7


def test_an_event_that_comes_too_late_changes_nothing():
    cell = hand_made_cell([2.0, 4.0])
    with_event = simulate(cell, Protocol(1), **LOAD, rounds=7, events=[slows_down()(0, 100.0, 2.0)])
    without = simulate(cell, Protocol(1), **LOAD, rounds=7)
    assert with_event.columns.keys() == without.columns.keys()
    for name, column in without.columns.items():
        np.testing.assert_allclose(with_event.columns[name], column, err_msg=name)
