"""Schedules that look at losses or hours, against plain twins written from the papers."""

import math
from dataclasses import replace

import numpy as np
import pytest

from perfeds2.allocation.by_loss import AdaptiveTiers, Oort, power_of_choice, refl
from perfeds2.allocation.schedulers import Moment
from perfeds2.allocation.shares import distance_shares
from perfeds2.allocation.tiers import tiers_by_latency
from perfeds2.network.availability import Availability, Hours
from perfeds2.network.cell import Cell

UES, QUORUM, SEED = 12, 3, 4
CELL = Cell.draw(UES, seed=1)
KNOWN = {"cell": CELL, "quorum": QUORUM, "seed": SEED, "payload_bits": 77_120.0, "samples": 40.0}
ROUNDS, CHUNK = 150, 4


def recorded_losses():
    """One row per round and UE: they fall, at another pace for each UE, and sometimes rise again."""
    rng = np.random.default_rng(9)
    falls = np.exp(-np.arange(ROUNDS)[:, None] * rng.uniform(0.005, 0.05, UES))
    return 2.3 * falls * rng.uniform(0.5, 1.5, (ROUNDS, UES)) + (np.arange(ROUNDS)[:, None] > 90) * 0.4


LOSSES = recorded_losses()


MEASURED = np.random.default_rng(2).uniform(1.0, 9.0, UES)  # seconds of a job
SOURCES = pytest.mark.parametrize("job_s", [None, MEASURED], ids=["expected", "measured"])


def played(schedule, here=None, job_s=None):
    """Choose round after round; UEs report when merged, and reports reach the schedule every CHUNK rounds."""
    merged_in, latest, told = np.full(UES, -1), np.full(UES, np.nan), np.full(UES, np.nan)
    for k in range(ROUNDS):
        if k % CHUNK == 0:
            told = latest.copy()
        empty = np.zeros(UES)
        now = Moment(k, 0.5 * k, QUORUM, 1e6, empty, empty, empty, np.zeros(UES, int), merged_in.copy(), job_s=job_s)
        chosen = schedule(replace(now, feedback=told.copy(), present=None if here is None else here(k)))
        yield k, told.tolist(), merged_in.tolist(), chosen
        merged_in[chosen] = k
        latest[chosen] = LOSSES[k, chosen]


@SOURCES
def test_oort_chooses_what_a_plain_python_oort_does(job_s):
    twin, percentiles = PlainOort(job_s), set()
    for k, told, merged_in, chosen in played(Oort(**KNOWN), job_s=job_s):
        assert chosen.tolist() == twin.choose(k, told, merged_in)
        percentiles.add(twin.percentile)
    assert len(percentiles) > 2  # the pacer has stepped in


class PlainOort:
    """Algorithm 1 of the paper, with lists and loops."""

    def __init__(self, job_s):
        self.seconds = [1 / share for share in distance_shares(CELL, 77_120.0, 40.0, QUORUM).tolist()]
        self.seconds = self.seconds if job_s is None else job_s.tolist()
        self.percentile, self.gained = 10, []

    def choose(self, k, told, merged_in):
        lots = np.random.default_rng([SEED, 14, k])
        if len(self.gained) >= 40 and k % 20 == 0 and sum(self.gained[-20:]) < sum(self.gained[-40:-20]):
            self.percentile = min(100, self.percentile + 5)
        ordered = sorted(self.seconds)
        at = (UES - 1) * self.percentile / 100
        low = math.floor(at)
        limit = ordered[low] + (at - low) * (ordered[min(low + 1, UES - 1)] - ordered[low])
        utility = {}
        for ue in range(UES):
            if math.isnan(told[ue]):
                continue
            penalty = (limit / self.seconds[ue]) ** 2 if self.seconds[ue] > limit else 1.0
            utility[ue] = 40 * told[ue] * penalty + math.sqrt(0.1 * math.log(k + 1) / (merged_in[ue] + 1))
        unknown = [ue for ue in range(UES) if ue not in utility]
        explored = min(round(max(0.3, 0.9 * 0.98 ** (k + 1)) * QUORUM), len(unknown))
        exploited = min(QUORUM - explored, len(utility))
        explored = QUORUM - exploited
        chosen = []
        if exploited:
            needed = sorted(utility.values(), reverse=True)[exploited - 1]
            weights = [value if value >= 0.95 * needed else 0.0 for value in utility.values()]
            chosen += self.drawn(lots, list(utility), weights, exploited)
        self.gained.append(sum(40 * told[ue] for ue in chosen))
        if explored:
            weights = [(1.0 if merged_in[ue] < 0 else 1e-9) / self.seconds[ue] for ue in unknown]
            chosen += self.drawn(lots, unknown, weights, explored)
        return sorted(chosen)

    @staticmethod
    def drawn(lots, ues, weights, count):
        return lots.choice(ues, count, replace=False, p=[weight / sum(weights) for weight in weights]).tolist()


def test_oort_goes_on_to_explore_three_of_ten():
    """After 200 rounds, with ten UEs known and ten unknown."""
    losses = np.append(np.ones(10), np.full(10, np.nan))
    merged_in, empty = np.append(np.full(10, 199), np.full(10, -1)), np.zeros(20)
    now = Moment(200, 100.0, 10, 1e6, empty, empty, empty, np.zeros(20, int), merged_in, feedback=losses)
    chosen = Oort(Cell.draw(20, seed=1), 10, SEED, 77_120.0, 40.0)(now)
    assert np.count_nonzero(chosen >= 10) == 3


def test_tiers_are_weighed_anew_if_the_loss_of_the_last_has_not_moved():
    schedule, empty = AdaptiveTiers(**KNOWN), np.zeros(UES)
    for k in (0, 20, 40):
        now = Moment(k, 1.0 * k, QUORUM, 1e6, empty, empty, empty, np.zeros(UES, int), np.zeros(UES, int))
        assert (schedule.memory["weights"] == 1).all()
        schedule(replace(now, feedback=np.arange(1.0, UES + 1)))
    assert sorted(schedule.memory["weights"]) == [0, 1, 2, 3]


@pytest.mark.parametrize("candidates", [3, 6, 12])
def test_power_of_choice_takes_the_highest_losses_among_the_drawn(candidates):
    schedule = power_of_choice(candidates)(cell=CELL, quorum=QUORUM, seed=SEED)
    for k, told, _, chosen in played(schedule):
        lots = np.random.default_rng([SEED, 15, k]).permutation(UES).tolist()
        drawn = [ue for ue in range(UES) if lots[ue] < candidates]
        losses = [math.inf if math.isnan(loss) else loss for loss in told]
        by_loss = sorted(drawn, key=lambda ue, losses=losses, lots=lots: (-losses[ue], lots[ue]))
        assert chosen.tolist() == sorted(by_loss[:QUORUM])


def test_power_of_choice_needs_as_many_candidates_as_it_chooses():
    with pytest.raises(ValueError, match="from the quorum, 3, to the number of UEs, 12, got 2"):
        power_of_choice(2)(cell=CELL, quorum=QUORUM, seed=SEED)


@SOURCES
def test_adaptive_tiers_choose_what_a_plain_twin_does(job_s):
    tiers = [own.tolist() for own in tiers_by_latency(CELL, 77_120.0, 40.0, 4, QUORUM).members]
    if job_s is not None:
        fastest_first = sorted(range(UES), key=job_s.tolist().__getitem__)
        tiers = [fastest_first[at : at + 3] for at in range(0, UES, 3)]
    last, before, weights, left_over = 0, [math.inf] * 4, [1.0] * 4, [10] * 4
    changed = 0
    for k, told, _, chosen in played(AdaptiveTiers(**KNOWN), job_s=job_s):
        lots = np.random.default_rng([SEED, 16, k])
        if k and k % 20 == 0:
            known = [[told[ue] for ue in own if not math.isnan(told[ue])] for own in tiers]
            losses = [sum(own) / len(own) if own else math.inf for own in known]
            if losses[last] >= before[last]:
                changed += 1
                for rank, tier in enumerate(sorted(range(4), key=lambda tier, losses=losses: -losses[tier])):
                    weights[tier] = 3.0 - rank
            before, left_over = losses, [10] * 4
        left = [weight if credit else 0.0 for weight, credit in zip(weights, left_over, strict=True)]
        left = left if any(left) else [float(credit > 0) for credit in left_over]
        last = int(lots.choice(4, p=[weight / sum(left) for weight in left]))
        left_over[last] -= 1
        rank = lots.permutation(UES).tolist()
        assert chosen.tolist() == sorted(sorted(tiers[last], key=rank.__getitem__)[:QUORUM])
    assert changed > 1


def test_refl_takes_those_who_will_be_present_least():
    """Rounds take 10 s, so that at second 30 what counts is seconds 40 to 50; UEs 0 to 2 are away already."""
    ends_s = [10.0, 20.0, 30.0, *(40.0 + 2.5 * np.arange(UES - 3)).tolist()]
    hours = Availability([Hours(((0.0, end_s),), 120.0) for end_s in ends_s])

    class Coming(Cell):
        def present(self, time_s):
            return hours.present(time_s)

    cell = Coming(**{name: getattr(CELL, name) for name in CELL.__dataclass_fields__})
    empty = np.zeros(UES)
    now = Moment(
        3, 30.0, QUORUM, 1e6, empty, empty, empty, np.zeros(UES, int), np.full(UES, -1), present=hours.present(30.0)
    )
    assert refl(cell, SEED)(now).tolist() == [3, 4, 5]


def test_without_hours_refl_draws():
    seen = {tuple(chosen) for _, _, _, chosen in played(refl(CELL, SEED))}
    assert len(seen) > 90  # of 220 sets, in 150 rounds


@pytest.mark.parametrize("make", [Oort, AdaptiveTiers, lambda **_: power_of_choice(5)(CELL, QUORUM, SEED)])
def test_absent_ues_are_chosen_only_when_too_few_are_present(make):
    def present(k):
        return np.arange(UES) < (2 if k % 7 == 3 else 5)

    for k, _, _, chosen in played(make(**KNOWN), present):
        assert len(set(chosen)) == QUORUM
        assert (chosen < (2 if k % 7 == 3 else 5)).sum() == min(QUORUM, 2 if k % 7 == 3 else 5)
