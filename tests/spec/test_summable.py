"""Secure aggregation in the simulator: its bits and messages are on the clock, and what it cannot do is refused."""

import numpy as np
import pytest

from perfeds2.errors import InputError
from perfeds2.learning.points import EvaluationPoint
from perfeds2.privacy.sharing import extra_bits
from perfeds2.runs.trainer import costs_at, facts_of
from perfeds2.spec.build import Stage, make_algorithms, make_timelines
from perfeds2.spec.resolve import resolve

GIVEN = {"cell": {"ues": 8}, "protocol": {"quorum": 4, "schedule": "first"}, "learning": {"clip": 5.0}}


def timeline(name="FedAvgS2", *, secure, bits, downlink_s, planned=False):
    given = GIVEN | {"cell": {"ues": 8, "payload_bits": bits, "downlink_s": downlink_s}}
    if planned:
        given["protocol"] = {"quorum": 4, "schedule": "round_robin", "unplanned": "rest"}
    spec = resolve(given | {"run": {"algorithms": [name], "rounds": 6}, "privacy": {"secure_aggregation": secure}})
    stage = Stage.of(spec, 0)
    return next(make_timelines(spec, stage, make_algorithms(spec, stage)))


@pytest.mark.parametrize(("name", "members"), [("FedAvgS2", 4), ("FedAvg-SYN", 8)])
def test_shares_tokens_and_a_further_message_are_on_the_clock(name, members):
    secure = timeline(name, secure=True, bits=1e6, downlink_s=0.1)
    plain = timeline(name, secure=None, bits=1e6 + extra_bits(members), downlink_s=0.2)
    np.testing.assert_allclose(secure.time_s, plain.time_s, rtol=1e-12)
    np.testing.assert_array_equal(secure.ues, plain.ues)
    assert secure.time_s[0] > timeline(name, secure=None, bits=1e6, downlink_s=0.1).time_s[0] + 0.1


def test_a_planned_round_sends_as_many_bits_and_no_further_message():
    secure = timeline(secure=True, bits=1e6, downlink_s=0.1, planned=True)
    plain = timeline(secure=None, bits=1e6 + extra_bits(4), downlink_s=0.1, planned=True)
    np.testing.assert_allclose(secure.time_s, plain.time_s, rtol=1e-12)
    np.testing.assert_array_equal(secure.ues, plain.ues)


def test_shares_and_tokens_are_among_the_bits_and_joules_that_a_run_reports():
    reported = []
    for secure, bits in ((True, 1e6), (None, 1e6 + extra_bits(4))):
        cell = {"ues": 8, "payload_bits": bits}
        energy, run = {"model": "lte"}, {"algorithms": ["FedAvgS2"], "rounds": 6}
        spec = resolve(GIVEN | {"cell": cell, "run": run, "privacy": {"secure_aggregation": secure}, "energy": energy})
        stage = Stage.of(spec, 0)
        (algorithm,) = make_algorithms(spec, stage)
        (line,) = make_timelines(spec, stage, [algorithm])
        facts = facts_of(spec, algorithm, line, 0, stage.cell)
        (spent,) = costs_at(spec, stage.cell, algorithm, line, [EvaluationPoint(6, line.end_s)])
        reported.append([facts["upload_bits"], facts["joules"], *spent.values()])
    assert reported[0] == pytest.approx(reported[1], rel=1e-12)
    assert reported[0][0] == 1e6 + extra_bits(4)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"learning": {}}, "needs --clip"),
        ({"radio": {"top_k": 0.1}}, "--top-k: masks hide which numbers are sent"),
        ({"protocol": {"quorum": 2}}, "needs from 3 to 100 updates in a round, and FedAvgS2 has 2; set --quorum"),
        ({"run": {"algorithms": ["CA2FL"]}}, "keeps single uploads"),
        ({"run": {"algorithms": ["FedBuff"]}}, "FedBuff cannot be combined .* weighs"),
    ],
)
def test_what_needs_single_updates_is_refused(given, why):
    spec = resolve({"run": {"algorithms": ["FedAvgS2"]}, "privacy": {"secure_aggregation": True}} | GIVEN | given)
    with pytest.raises(InputError, match=why):
        make_algorithms(spec, Stage.of(spec, 0))
