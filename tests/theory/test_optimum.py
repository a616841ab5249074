"""A* and K* by hand, and what must hold of them whatever the shares."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfeds2.theory.bounds import Premises, printed
from perfeds2.theory.optimum import optimum

KNOWN = Premises(smoothness=10.0, noise=3.0, diversity=5.0, gap=2.0, beta=0.01, staleness=2)  # L_Fβ = 0.1


def test_both_optima_by_hand():
    # second term at A = 1: 4(0.1 + 0.08)·8 = 5.76; ε = 11.52 gives A = 4. First: 2·2/(0.01·11.52) = 34.7
    found = optimum(KNOWN, 11.52, np.full(10, 0.1))
    assert found.accuracy_quorum == pytest.approx(4)
    assert found.accuracy_rounds == pytest.approx(34.722, abs=1e-3)
    assert found.least_quorum == pytest.approx(5)  # 1/(0.1·2)
    assert found.most_quorum == pytest.approx(10)
    assert found.least_rounds == pytest.approx(2)  # 1/(5·0.1)
    assert (found.quorum, found.rounds) == (5, 35)
    assert found.printed_quorum == pytest.approx(4)
    assert found.printed_rounds == pytest.approx(20)  # S/η
    assert not found.meets_target


def test_a_generous_target_takes_every_ue_and_one_pass_over_them():
    found = optimum(KNOWN, 1e9, np.full(10, 0.1))
    assert found.quorum == 10
    assert found.rounds == 1
    assert found.meets_target


def test_without_noise_and_diversity_any_quorum_is_accurate():
    found = optimum(replace(KNOWN, noise=0.0, diversity=0.0), 0.1, np.full(10, 0.1))
    assert found.accuracy_quorum == math.inf
    assert found.quorum == 10
    assert found.printed_quorum == pytest.approx(5)


def test_the_largest_share_caps_the_quorum():
    """A UE with 0.5 of the merges is merged at most once a round, so A ≤ 2 whatever ε allows."""
    found = optimum(replace(KNOWN, staleness=10), 1e9, np.array([0.5, 0.2, 0.2, 0.1]))
    assert found.quorum == 2


def test_nonsense_is_refused():
    with pytest.raises(ValueError, match="synchronous"):
        optimum(replace(KNOWN, staleness=0), 1.0, np.full(10, 0.1))
    with pytest.raises(ValueError, match="sum to 1"):
        optimum(KNOWN, 1.0, np.full(10, 0.2))
    with pytest.raises(ValueError, match="above 0"):
        optimum(KNOWN, 1.0, np.array([1.0, 0.0]))
    with pytest.raises(ValueError, match="epsilon"):
        optimum(KNOWN, -1.0, np.full(10, 0.1))


@given(
    weights=st.lists(st.floats(1, 3), min_size=1, max_size=30),
    epsilon=st.floats(1e-3, 1e4),
    staleness=st.integers(4, 40),
)
def test_the_corrected_optimum_keeps_every_share_in_its_range_and_reaches_the_first_term(weights, epsilon, staleness):
    shares = np.array(weights) / np.sum(weights)
    setting = replace(KNOWN, staleness=staleness)
    low, high = (1 - 1e-9) / (staleness * shares.min()), (1 + 1e-9) / shares.max()
    if not any(low <= quorum <= high for quorum in range(1, shares.size + 1)):
        with pytest.raises(ValueError, match="no quorum fits"):
            optimum(setting, epsilon, shares)
        return
    found = optimum(setting, epsilon, shares)
    assert 1 <= found.quorum <= shares.size
    assert (shares >= (1 - 1e-6) / (found.quorum * staleness)).all()
    assert (shares <= (1 + 1e-6) / found.quorum).all()
    assert (shares * found.quorum * found.rounds >= 1 - 1e-6).all()  # everyone is merged once
    assert printed(setting, found.quorum).start / found.rounds <= epsilon * (1 + 1e-6)
    assert found.printed_quorum <= found.least_quorum * (1 + 1e-12)
