"""Compute the numbers of the errata on theorems, lemmas and proofs."""

import math
from dataclasses import replace

import numpy as np
from scipy.optimize import root_scalar

from perfeds2.allocation.schedule import deficit
from perfeds2.allocation.shares import equal_shares
from perfeds2.paper.errata import Numbers
from perfeds2.theory import bounds
from perfeds2.theory.constants import Constants, diversity, noise, smoothness
from perfeds2.theory.optimum import optimum

Point = np.ndarray | float  # one w, or many
BEND = 4 / (3 * math.sqrt(3))  # the largest |f'''| of log cosh
SMALL = bounds.Premises(smoothness=1.0, noise=1.0, diversity=1.0, gap=1.0, beta=0.1, staleness=4)


def min_for_max() -> Numbers:
    shares = np.array([0.4, 0.3, 0.2, 0.1])
    few = optimum(replace(SMALL, staleness=5), 5.0, shares)
    long = optimum(SMALL, 0.01, equal_shares(4))
    return [
        ("S = 5, ε = 5, shares 0.4, 0.3, 0.2, 0.1: printed A*", few.printed_quorum),
        ("C4.2 asks for A ≥", few.least_quorum),
        ("printed A*: least A·S·η_i (C4.2 asks for 1)", float(few.printed_quorum * 5 * shares.min())),
        ("our A*", few.quorum),
        ("our A*: least A·S·η_i", float(few.quorum * 5 * shares.min())),
        ("four equal shares, S = 4, ε = 0.01: printed K*", long.printed_rounds),
        ("first term of the bound after it (target 0.01)", bounds.printed(SMALL, 1).start / long.printed_rounds),
        ("our K*", long.rounds),
        ("first term of the bound after it", bounds.printed(SMALL, 1).start / long.rounds),
    ]


def condition_on_beta() -> Numbers:
    scale, alpha, beta, rounds, start = 100.0, 1e-5, 0.05, 1000, 2.45
    constants = Constants(scale, scale, scale * BEND, 0.0, 0.0, 0.0, 0.0, gap=scale * math.log(math.cosh(start)))
    setting = bounds.Premises(smoothness(constants, alpha), 0.0, 0.0, constants.gap, beta, staleness=0)

    def mean_square(step: float) -> float:
        w, total = start, 0.0
        for _ in range(rounds):
            adapted = w - alpha * scale * math.tanh(w)
            gradient = (1 - alpha * scale / math.cosh(w) ** 2) * scale * math.tanh(adapted)
            total += gradient**2
            w -= step * gradient
        return total / rounds

    largest = bounds.largest_corrected_beta(setting.smoothness, 0)
    return [
        ("L_F = 1, S = 4: largest β, printed", bounds.largest_printed_beta(1.0, 4)),
        ("largest β, corrected", bounds.largest_corrected_beta(1.0, 4)),
        ("f = 100·log cosh w, S = 0: largest β, printed", bounds.largest_printed_beta(setting.smoothness, 0)),
        ("largest β, corrected", largest),
        ("promised mean ‖∇F‖² at β = 0.05 after 1,000 rounds", bounds.printed(setting, 1).after(rounds)),
        ("measured at β = 0.05", mean_square(beta)),
        ("measured at the largest corrected β", mean_square(largest)),
        ("promised there (sharpened bound)", bounds.sharpened(replace(setting, beta=largest), 0.0).after(rounds)),
    ]


def root_of_a() -> Numbers:
    sums = bounds.share_sums(deficit(equal_shares(20), 5, 8), equal_shares(20))
    return [
        ("20 equal UEs, A = 5: Σ η_i over a round, largest", float(sums.max())),
        ("√A", math.sqrt(5)),
        (
            "printed floor divided by the floor with the schedule's own sum",
            bounds.printed(SMALL, 5).floor / bounds.scheduled(SMALL, sums).floor,
        ),
    ]


def largest_batch() -> Numbers:
    constants = Constants(
        2.0, 3.0, 5.0, gradient_noise=4.0, hessian_noise=0.0, gradient_diversity=0.5, hessian_diversity=2.0, gap=7.0
    )
    sizes = [1, 100]
    return [
        ("batches of 1 and 100, α = 0, σ_G² = 16: variance of the first UE", constants.gradient_noise**2 / min(sizes)),
        ("printed σ_F², largest batch", noise(constants, 0.0, sizes, sizes, sizes, pick=max)),
        ("our σ_F², smallest batch", noise(constants, 0.0, sizes, sizes, sizes)),
    ]


def sign() -> Numbers:
    """F = w²/2 at w = 1 and noise that is −∇F: nothing moves."""
    beta, gradient = 0.1, 1.0
    error = -gradient
    merged = gradient + error
    first_line = -beta / 2 * gradient**2 - beta / 2 * merged**2 + beta / 2 * error**2 + beta**2 / 2 * merged**2
    second_line = -beta / 2 * gradient**2 + beta**2 * error**2 + (beta**2 - beta) * gradient**2
    tiny = replace(SMALL, beta=1e-6)
    merge_error = bounds.merge_error(tiny, 1.0)
    return [
        ("F = w²/2, w = 1, noise −∇F, β = 0.1: change of F, first line of (51)", first_line),
        ("change of F, second line of (51)", second_line),
        ("β = 1e-6, σ_F² = γ_F² = 1, A = 5: floor as printed", bounds.printed(tiny, 5).floor),
        ("floor that follows (proved)", bounds.proved(tiny, merge_error).floor),
        ("floor that follows from a shorter proof (sharpened)", bounds.sharpened(tiny, merge_error).floor),
    ]


def unequal_participation() -> Numbers:
    """Two UEs, log cosh(w ∓ 1), the first merged three times as often; the run starts at the optimum of F, w = 0."""
    alpha, beta, rounds = 0.1, 2.5e-5, 400_000

    def slope(w: Point, centre: float) -> Point:
        gradient = np.tanh(w - centre)
        return (1 - alpha * (1 - gradient**2)) * np.tanh(w - centre - alpha * gradient)

    def merged(w: Point) -> Point:
        return 3 * slope(w, 1.0) + slope(w, -1.0)

    def mean_square(w: Point) -> float:
        return float(np.mean(((slope(w, 1.0) + slope(w, -1.0)) / 2) ** 2))

    line = np.linspace(-10, 10, 20_001)
    gradients = np.stack([np.tanh(line - centre) for centre in (1.0, -1.0)])
    constants = Constants(
        1.0,
        1.0,
        BEND,
        0.0,
        0.0,
        float(gradients.std(axis=0).max()),
        float((1 - gradients**2).std(axis=0).max()),
        gap=0.0,
    )
    setting = bounds.Premises(smoothness(constants, alpha), 0.0, diversity(constants, alpha), 0.0, beta, staleness=4)
    w, models = 0.0, []
    for _ in range(rounds // 4):  # four rounds at a time, in which w moves by 1e-5
        models.append(w)
        w -= beta * merged(w)
    settled = root_scalar(merged, bracket=(0.0, 1.0)).root
    return [
        (
            "shares 3/4 and 1/4, β = 2.5e-5, 400,000 rounds: claimed mean ‖∇F‖²",
            bounds.printed(setting, 1).after(rounds),
        ),
        ("measured", mean_square(np.array(models))),
        ("‖∇F‖² where the run converges, at any small β", mean_square(settled)),
        ("claimed at β = 1e-9", bounds.printed(replace(setting, beta=1e-9), 1).floor),
    ]


def noise_of_a_merge() -> Numbers:
    samples = np.array([1.0, -1.0])  # one UE's noise, σ = 1
    claimed = bounds.share_sums(np.array([[3]]), equal_shares(20))
    return [
        ("20 UEs, A = 1, σ = 1: E‖X‖²", float((samples**2).mean())),
        ("claimed, σ² Σ η_i over the round", float(claimed[0])),
    ]


def deviation_of_a_merge() -> Numbers:
    gradients = np.array([-1.0] + [0.0] * 9)
    apart = (gradients - gradients.mean()) ** 2
    claimed = bounds.share_sums(np.array([[0]]), equal_shares(10))
    return [
        ("gradient 0 at nine UEs and 1 at the tenth, A = 1: γ²", float(apart.mean())),
        ("‖Y‖² when the tenth is merged", float(apart[0])),
        ("claimed, γ² Σ η_i over the round", float(apart.mean() * claimed[0])),
        ("our bound, γ² n/A", float(apart.mean() * bounds.spread_of_any_schedule(10, 1))),
    ]


def unbound_index() -> Numbers:
    """F = w²/2, two equal UEs that take turns (A = 1, S = 1), no noise, β = 1/2: w = 1, 1/2, 0, −1/4."""
    beta, w, staleness = 0.5, [1.0], (0, 1, 1, 1)
    merged = []
    for k, stale in enumerate(staleness):
        merged.append(w[k - stale])  # ∇F(w_{k−τ}) is w_{k−τ}
        w.append(w[k] - beta * merged[k])
    apart = [(w[k] - w[k - stale]) ** 2 for k, stale in enumerate(staleness)]  # T2
    claims = [2 * beta**2 * square for square in np.square(merged)]
    return [
        ("F = w²/2, A = 1, S = 1, β = 1/2, round 3: T2", apart[3]),
        ("claimed with j = k", float(claims[3])),
        ("T2 summed over the rounds", sum(apart)),
        ("claimed for the sum", float(sum(claims))),
    ]


def accuracy_term() -> Numbers:
    epsilon = 0.5 * bounds.printed(SMALL, 1).floor
    found = optimum(SMALL, epsilon, equal_shares(4))
    return [
        ("second term of P4 at A = 1", bounds.printed(SMALL, 1).floor),
        ("at A = 4", bounds.printed(SMALL, 4).floor),
        ("A at which it equals ε, for ε half of its value at A = 1", found.accuracy_quorum),
        ("our A*", found.quorum),
        ("meets ε", "yes" if found.meets_target else "no"),
    ]


def inner_step() -> Numbers:
    """f = log cosh w: L = C = 1 and ρ = 4/(3√3) on the whole line."""
    constants = Constants(1.0, 1.0, BEND, 0.0, 0.0, 0.0, 0.0, gap=0.0)
    line = np.linspace(-5, 5, 10_001)
    slope, bend = np.tanh(line), np.cosh(line) ** -2.0
    third = -2 * slope * bend

    def sharpest(alpha: float) -> float:
        """The largest |F''|: F'' = (1 − α·f'')²·f''(u) − α·f'''·f'(u), u = w − α·f'."""
        there = np.tanh(line - alpha * slope)
        return float(np.abs((1 - alpha * bend) ** 2 * (1 - there**2) - alpha * third * there).max())

    far = 4.0
    as_printed = 4 * constants.smoothness + far * constants.hessian_lipschitz * constants.gradient_bound
    return [
        ("f = log cosh w, α = 4: largest |F''|", sharpest(far)),
        ("printed L_F = 4L + αρC", as_printed),
        ("α = 1/L = 1: largest |F''|", sharpest(1.0)),
        ("L_F there", smoothness(constants, 1.0)),
    ]


def loose_lemmas() -> Numbers:
    known = Constants(2.0, 3.0, 5.0, 4.0, 6.0, 0.5, 2.0, gap=7.0)
    alpha, size = 0.1, 40
    gradient = known.gradient_noise**2 / size * (1 + (alpha * known.smoothness) ** 2)
    hessian = (alpha * known.hessian_noise) ** 2 / size
    enough = 4 * gradient + hessian * (known.gradient_bound**2 + known.gradient_noise**2 / size)
    alone = replace(known, hessian_diversity=0.0)
    return [
        ("L = 2, C = 3, σ_G = 4, σ_H = 6, α = 0.1, batches of 40: σ_F²", noise(known, alpha, size, size, size)),
        ("what the same assumptions give", enough),
        ("γ_F² for γ_G = 1/2, γ_H = 0", diversity(alone, alpha)),
        ("what the same assumptions give", 24 * alone.gradient_diversity**2),
    ]


NUMBERS = {
    6: min_for_max,
    7: condition_on_beta,
    8: root_of_a,
    14: largest_batch,
    15: sign,
    16: unequal_participation,
    17: noise_of_a_merge,
    18: deviation_of_a_merge,
    19: unbound_index,
    21: accuracy_term,
    22: inner_step,
    26: loose_lemmas,
}
