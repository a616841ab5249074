"""Small timelines whose every number is worked out by hand."""

import numpy as np
import pytest
from hand_made import hand_made_cell, one_hz_each

from perfeds2.timeline.jobs import LOST, OPEN
from perfeds2.timeline.protocol import (
    IDLE,
    NO_UES,
    Closing,
    Protocol,
    Server,
    assign_model,
    close_round,
    end_jobs,
    open_server,
)
from perfeds2.timeline.simulate import simulate

NEVER = np.inf


def play(compute_s, protocol, rounds, payload_bits=4.0, odd=None, schedule=None, watch=None):
    cell = hand_made_cell(compute_s, odd=odd)
    return simulate(
        cell,
        protocol,
        payload_bits=payload_bits,
        samples=1.0,
        rounds=rounds,
        bandwidth=one_hz_each,
        schedule=schedule,
        watch=watch,
    )


def test_the_papers_example_of_four_ues_gives_its_matrix():
    """Fig. 2 and the matrix Π of Section III-B: A = 2, four UEs, five rounds.

    The UEs compute 2, 1, 2.5 and 3 s on a job; an upload is 4 bits at 4 bit/s, so 1 s; only in the second round UE 4
    is in a fade and sends 1 bit/s. (Some such change of the radio is needed: no four job times that stay the same give
    this matrix.) Then, with the arrivals of UE 1 to 4 and the two that close the round in brackets:

    round 1 from 0:   [3]    [2]    3.5    4 or later     closes at 3
    round 2 from 3:    6     [5]   [3.5]   7              closes at 5    (UE 4 has sent 2 of its bits, 3 s to 5 s)
    round 3 from 5:   [6]     7    8.5    [5.5]           closes at 6    (UE 4 sends the other 2 in half a second)
    round 4 from 6:    9     [7]   [8.5]   10             closes at 8.5
    round 5 from 8.5: [9]   10.5   12     [10]            closes at 10
    """
    timeline = play([2, 1, 2.5, 3], Protocol(quorum=2), rounds=5, odd={(1, 3): 1})
    matrix = np.zeros((5, 4), int)
    for k, ues in enumerate(timeline.ues):
        matrix[k, ues] = 1
    np.testing.assert_array_equal(
        matrix,
        [
            [1, 1, 0, 0],
            [0, 1, 1, 0],
            [1, 0, 0, 1],
            [0, 1, 1, 0],
            [1, 0, 0, 1],
        ],
    )
    np.testing.assert_allclose(timeline.time_s, [3, 5, 6, 8.5, 10], rtol=1e-14)
    np.testing.assert_allclose(timeline.arrival_s, [[2, 3], [3.5, 5], [5.5, 6], [7, 8.5], [9, 10]], rtol=1e-14)
    np.testing.assert_array_equal(timeline.staleness, [[0, 0], [1, 0], [2, 1], [1, 1], [1, 1]])
    np.testing.assert_allclose(timeline.shares, [0.3, 0.3, 0.2, 0.2])  # η of eq. (15): 3, 3, 2 and 2 of A·K = 10


def test_a_restarted_job_starts_over_and_counts_as_wasted():
    # Jobs of 2 s and 11 s, S = 0: UE 1 is handed every new model and never gets anything in.
    timeline = play([1, 10], Protocol(1, 0, "restart"), rounds=4)
    np.testing.assert_allclose(timeline.time_s, [2, 4, 6, 8])
    assert timeline.ues.ravel().tolist() == [0, 0, 0, 0]
    assert timeline.starved.tolist() == [1]
    assert timeline.rows(LOST).round.tolist() == [0, 1, 2, 3]
    assert timeline.wasted_share == pytest.approx(0.5)  # 4 jobs of 2 s each beside 4 merged ones of 2 s
    assert timeline.seconds() == pytest.approx({"computing": 4 + 8, "sending": 4, "waiting": 0, "idle": 0})


def test_a_refused_update_counts_as_wasted_and_its_ue_gets_the_next_model():
    # UE 0's jobs take 2 s, UE 1's 5 s; A = 1, S = 1. UE 1 arrives at 5 s in round 2, with w_0: too stale, refused
    # when the round closes at 6 s, and handed w_3.
    timeline = play([1, 4], Protocol(1, 1, "ignore"), rounds=3)
    np.testing.assert_allclose(timeline.time_s, [2, 4, 6])
    lost = timeline.rows(LOST)
    assert (lost.ue.tolist(), lost.version.tolist(), lost.round.tolist()) == ([1], [0], [2])
    assert lost.arrived.all()
    assert lost.arrival_s == pytest.approx([5])
    assert timeline.open_version.tolist() == [3, 3]
    assert timeline.wasted_share == pytest.approx(5 / 11)
    assert timeline.activity(1) == [
        ("computing", 0.0, pytest.approx(4)),
        ("sending", pytest.approx(4), pytest.approx(5)),
        ("waiting", pytest.approx(5), pytest.approx(6)),
    ]


def test_the_round_waits_for_the_ue_that_would_be_too_stale():
    # Jobs of 2 s and 7 s, A = 1, S = 1. Round 0 closes at 2 s. In round 1 UE 1's w_0 is due: though UE 0 is there at
    # 4 s, the round stays open until 7 s, and the stalest goes first. UE 0's update of w_1 is merged in round 2, at once.
    timeline = play([1, 6], Protocol(1, 1, "wait"), rounds=3)
    np.testing.assert_allclose(timeline.time_s, [2, 7, 7])
    assert timeline.ues.ravel().tolist() == [0, 1, 0]
    assert timeline.staleness.ravel().tolist() == [0, 1, 1]
    assert timeline.seconds()["waiting"] == pytest.approx(3)  # UE 0, from 4 s to 7 s


def test_where_rounds_wait_no_more_ues_work_than_can_be_served():
    # A = 1, S = 1: two at work, the third waits for its turn, and gets it before the one just merged.
    timeline = play([1, 1.5, 1], Protocol(1, 1, "wait"), rounds=1)
    assert timeline.time_s == pytest.approx([2])
    assert timeline.ues.tolist() == [[0]]
    assert timeline.open_version.tolist() == [IDLE, 0, 1]
    assert timeline.activity(2) == [("idle", 0.0, pytest.approx(2))]


def test_ties_go_to_the_smaller_number():
    timeline = play([1, 1, 1, 1], Protocol(2, None), rounds=2)
    assert timeline.time_s.tolist() == [2.0, 2.0]  # the other two have arrived too: they close round 1 at once
    assert timeline.arrival_s.tolist() == [[2.0, 2.0], [2.0, 2.0]]
    assert timeline.ues.tolist() == [[0, 1], [2, 3]]
    assert timeline.staleness.tolist() == [[0, 0], [1, 1]]
    planned = play([1, 1, 1, 1], Protocol(2, None), rounds=1, schedule=lambda _: np.array([3, 1]))
    assert planned.ues.tolist() == [[1, 3]]


def test_who_arrives_as_the_round_closes_has_arrived():
    # All four are there at 2 s, and two are merged then; UEs 2 and 3 have nothing left to do.
    first = play([1, 1, 1, 1], Protocol(2, None), rounds=1)
    assert first.rows(OPEN).arrived.tolist() == [False, False, True, True]
    assert first.rows(OPEN).arrival_s.tolist() == [2.0] * 4
    two = play([1, 1, 1, 1], Protocol(2, None), rounds=2)
    assert two.prefix(1).rows(OPEN).arrived.tolist() == [False, False, True, True]
    assert (two.until(1.9), two.until(2.0)) == (0, 2)
    # S = 0: UE 1 is there as well, but w_1 exists: its job is lost, after it had arrived.
    lost = play([1, 1], Protocol(1, 0, "restart"), rounds=1).rows(LOST)
    assert (lost.arrived.tolist(), lost.arrival_s.tolist()) == ([True], [2.0])


def test_an_update_that_is_too_stale_is_refused_in_the_round_that_closes_as_it_arrives():
    # UE 0 closes rounds at 2, 4 and 6 s. UE 1 is there at 6 s, with w_0, where S = 1: refused at once, not a round later.
    timeline = play([1, 5], Protocol(1, 1, "ignore"), rounds=3)
    assert timeline.time_s.tolist() == [2.0, 4.0, 6.0]
    lost = timeline.rows(LOST)
    assert (lost.ue.tolist(), lost.round.tolist(), lost.arrival_s.tolist()) == ([1], [2], [6.0])
    assert lost.arrived.all()
    assert timeline.open_version.tolist() == [3, 3]


def test_synchronous_rounds_last_as_long_as_the_slowest():
    timeline = play([1, 2, 3], Protocol(3, 0), rounds=2)
    np.testing.assert_allclose(timeline.time_s, [4, 8])
    assert timeline.ues.tolist() == [[0, 1, 2], [0, 1, 2]]


def test_a_ue_that_is_ready_before_its_turn_waits_at_the_server():
    # Round 0 is planned for UE 1 (5 s), round 1 for UE 0, which has been there since 2 s.
    timeline = play([1, 4], Protocol(1), rounds=2, schedule=lambda k: np.array([1 - k]))
    np.testing.assert_allclose(timeline.time_s, [5, 5])
    np.testing.assert_allclose(timeline.arrival_s, [[5], [2]])
    assert timeline.seconds()["waiting"] == pytest.approx(3)


def test_bits_and_cycles_carry_over_rounds():
    # UE 0 closes a round every 2 s; UE 1 computes 3 s, then sends 4 bits: 1 in round 1 (at 1 bit/s), none in round 2
    # (it hears nothing), 2 in round 3 (1 bit/s) and the last in the first quarter second of round 4 (4 bit/s).
    odd = {(1, 1): 1, (2, 1): 0, (3, 1): 1}
    timeline = play([1, 3], Protocol(1), rounds=5, odd=odd)
    np.testing.assert_allclose(timeline.time_s, [2, 4, 6, 8, 8.25])
    assert timeline.ues.ravel().tolist() == [0, 0, 0, 0, 1]


def test_a_schedule_that_cannot_be_met_says_which_ue_and_why():
    with pytest.raises(ValueError, match=r"round 2 never closes: the schedule plans UE 1, .* staler than"):
        play([1, 10], Protocol(1, 1, "ignore"), rounds=3, schedule=lambda k: np.array([int(k == 2)]))
    with pytest.raises(ValueError, match="round 0 never closes: the schedule plans UE 2, which waits for its turn"):
        play([1, 1, 1], Protocol(1, 1, "wait"), rounds=3, schedule=lambda _: np.array([2]))


@pytest.mark.parametrize("plan", [[0], [0, 0], [0, 3], [-1, 0], [0.0, 1.0], [[[0, 1]]], [[0, 1], [1, 2]]])
def test_a_schedule_must_plan_a_different_ues(plan):
    with pytest.raises(ValueError, match="expected 2 different UEs from 0 to 2"):
        play([1, 1, 1], Protocol(2), rounds=1, schedule=lambda _: np.array(plan))


def test_a_policy_that_serves_no_ue_is_told_so():
    cell = hand_made_cell([1, 1])
    with pytest.raises(ValueError, match="round 0 never closes: UE 0 gets no bandwidth"):
        simulate(cell, Protocol(1), payload_bits=4.0, samples=1.0, rounds=1, bandwidth=lambda _: np.zeros(2))


def test_a_policy_that_does_not_serve_the_planned_ue_is_told_so():
    cell = hand_made_cell([1, 1])
    with pytest.raises(ValueError, match="round 0 never closes: UE 1 gets no bandwidth"):
        simulate(
            cell,
            Protocol(1),
            payload_bits=4.0,
            samples=1.0,
            rounds=1,
            schedule=lambda _: np.array([1]),
            bandwidth=lambda _: np.zeros(2),
        )


def test_an_update_that_is_late_under_a_plan_with_wait_is_lost_once():
    # UE 0's update of w_0 arrives at 2 s but is not planned while S = 1 allows: lost at the close of round 2, once.
    lost = []
    play(
        [1, 1],
        Protocol(1, 1, "wait"),
        5,
        schedule=lambda _: np.array([1]),
        watch=lambda info: lost.append(info.lost.tolist()),
    )
    assert lost == [[], [], [0], [], []]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rounds": None}, "rounds or horizon_s, got neither"),
        ({"rounds": -1}, "rounds must be at least 0"),
        ({"horizon_s": np.nan}, "horizon_s must be"),
        ({"rounds": None, "horizon_s": np.inf}, "horizon_s must be"),
        ({"horizon_s": -1.0}, "horizon_s must be"),
        ({"payload_bits": 0.0}, "payload_bits must be"),
        ({"payload_bits": np.nan}, "payload_bits must be"),
        ({"payload_bits": np.ones(99)}, "or one for each of"),
        ({"samples": -1.0}, "samples must be"),
        ({"samples": np.nan}, "samples must be"),
        ({"shares": np.ones(3)}, "shares must hold one number for each of 2 UEs"),
    ],
)
def test_simulate_refuses_what_makes_no_sense(changes, words):
    wanted = {"payload_bits": 4.0, "samples": 1.0, "rounds": 1} | changes
    with pytest.raises(ValueError, match=words):
        simulate(hand_made_cell([1, 1]), Protocol(1), **wanted)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"quorum": 0}, "quorum must be at least 1"),
        ({"quorum": 1, "max_staleness": -1}, "max_staleness must be at least 0"),
    ],
)
def test_a_protocol_refuses_what_makes_no_sense(wrong, words):
    with pytest.raises(ValueError, match=words):
        Protocol(**wrong)


def test_a_quorum_above_the_number_of_ues_is_refused():
    with pytest.raises(ValueError, match="at most the number of UEs, 2, got 3"):
        play([1, 1], Protocol(3), rounds=1)


def test_the_horizon_ends_the_timeline_with_the_last_round_that_closed_by_then():
    cell = hand_made_cell([1.0])
    assert simulate(cell, Protocol(1), payload_bits=4.0, samples=1.0, horizon_s=6.0).rounds == 3
    assert simulate(cell, Protocol(1), payload_bits=4.0, samples=1.0, horizon_s=5.9).rounds == 2
    assert simulate(cell, Protocol(1), payload_bits=4.0, samples=1.0, horizon_s=6.0, rounds=1).rounds == 1


def test_a_server_that_has_too_few_arrivals_keeps_the_round_open():
    server = open_server(3, Protocol(2))
    assert close_round(server, np.array([1.0, NEVER, NEVER]), Protocol(2)).time_s == NEVER
    closing = close_round(server, np.array([1.0, NEVER, 0.5]), Protocol(2))
    assert (closing.time_s, closing.merged.tolist(), closing.refused.tolist()) == (1.0, [2, 0], [])


def test_waiting_looks_ahead_more_than_one_round():
    # A = 1, S = 2. Round 0 merged UE 0, which works on w_1; UEs 1 and 2 still work on w_0, due in round 2. Rounds 1 and 2
    # merge one each, so round 1 must not close on UE 0, though no UE is over-stale yet: it takes UE 1 or UE 2.
    protocol = Protocol(1, 2, "wait")
    server = Server(1, np.array([1, 0, 0]), np.array([0, -1, -1]), 10.0)
    assert close_round(server, np.array([11.0, NEVER, NEVER]), protocol).time_s == NEVER
    closing = close_round(server, np.array([11.0, 13.0, NEVER]), protocol)
    assert (closing.time_s, closing.merged.tolist()) == (13.0, [1])


def test_a_round_merges_the_stalest_update_that_is_there_when_it_opens():
    # Both updates arrived while the model was on its way, the staler one last. So it is if UEs left at 1 s.
    protocol, arrival_s = Protocol(1, 5, "wait"), np.array([0.5, 0.9, NEVER])
    for opened_s, now_s in ((1.0, 0.0), (0.0, 1.0)):
        server = Server(4, np.array([1, 0, 2]), np.array([0, -1, 1]), opened_s)
        closing = close_round(server, arrival_s, protocol, now_s=now_s)
        assert (closing.time_s, closing.merged.tolist()) == (1.0, [1])


def test_longest_out_is_handed_first():
    protocol = Protocol(1, 0, "wait")  # one at work
    server = Server(3, np.array([IDLE, 3, IDLE, IDLE]), np.array([2, 1, -1, 0]), 0.0)
    later, handed = assign_model(end_jobs(server, Closing(1.0, np.array([1]), NO_UES), protocol)[0], protocol)
    assert handed.tolist() == [2]
    assert later.versions.tolist() == [IDLE, IDLE, 4, IDLE]
    assert later.merged_in.tolist() == [2, 3, -1, 0]


def test_a_ue_that_returns_gets_the_model_only_if_it_is_planned():
    protocol = Protocol(2, rests=True)
    server, here = open_server(4, protocol), np.array([True, True, False, True])
    assert assign_model(server, protocol, here)[1].size == 0
    after, handed = assign_model(server, protocol, here, np.array([1, 2]))
    assert (handed.tolist(), after.versions.tolist()) == ([1], [IDLE, 0, IDLE, IDLE])


def test_a_ue_is_handed_the_model_if_it_is_present_and_has_rested():
    """After round 4, UEs merged by round 2 have rested; UE 3 is away."""
    protocol, here = Protocol(1, rest_rounds=3), np.array([True, True, True, False])
    server = Server(4, np.array([4, IDLE, IDLE, IDLE]), np.array([-1, 1, 3, 0]), 0.0)
    later, handed = assign_model(end_jobs(server, Closing(1.0, np.array([0]), NO_UES), protocol)[0], protocol, here)
    assert (handed.tolist(), later.versions.tolist()) == ([1], [IDLE, 5, IDLE, IDLE])
    after, handed = assign_model(later, protocol, np.ones(4, bool))
    assert (handed.tolist(), after.versions.tolist()) == ([3], [IDLE, 5, IDLE, 5])


def test_a_draft_waits_until_enough_ues_are_at_work():
    """Quorum 2, but only UE 0 has a job: the round cannot merge an idle UE that has sent nothing."""
    protocol = Protocol(2, drafts=True)
    server = Server(0, np.array([0, IDLE, IDLE]), np.array([-1, -1, -1]), 0.0)
    assert close_round(server, np.array([1.0, NEVER, NEVER]), protocol).time_s == NEVER
