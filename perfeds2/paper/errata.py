"""Where does the paper contradict itself, and by how much?

Each erratum carries a function that computes its numbers here and now. ``docs/errata.md`` is what ``errata_markdown``
returns, and ``perfeds2 errata N`` prints one of them.
"""

import math
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float
from scipy.optimize import root_scalar
from scipy.special import lambertw

from perfeds2.allocation.bandwidth import Uplink, between, equal_finish, weighted_rate
from perfeds2.allocation.schedule import (
    Rows,
    achieved_shares,
    as_schedule,
    deficit,
    longest_gap,
    period,
    printed,
    printed_fixed,
)
from perfeds2.allocation.shares import equal_shares, nearest_feasible, share_bounds
from perfeds2.learning.partition import partition_by_label
from perfeds2.network.cell import Cell
from perfeds2.network.link import LN2, bandwidth_for_rate, rate_bps
from perfeds2.spec.fields import InputError
from perfeds2.theory import bounds
from perfeds2.theory.constants import Constants, diversity, noise, smoothness
from perfeds2.theory.optimum import optimum
from perfeds2.timeline.rounds import Protocol, Stale
from perfeds2.timeline.simulate import simulate

Numbers = list[tuple[str, int | float | str]]


@dataclass(frozen=True)
class Erratum:
    """One place in the paper: what it says, what is so, and the numbers that show it."""

    number: int
    where: str  # in the paper
    printed: str
    wrong: str
    ours: str  # what the product does
    show: Callable[[], Numbers]  # (what is measured, its value), computed when called
    code: tuple[str, ...]  # dotted names
    tests: tuple[str, ...]  # file::test


def errata_text(numbers: Sequence[int] | None = None) -> str:
    """For the terminal: these errata in full, or, without a choice, the numbers of all of them."""
    if numbers is None:
        blocks = [f"{item.number}. {item.where}\n" + _aligned(item.show()) for item in ERRATA]
        return "\n\n".join([*blocks, "In full: perfeds2 errata N"])
    return "\n\n".join(_in_full(item) for item in chosen(numbers))


def errata_table(numbers: Sequence[int] | None = None) -> str:
    """The bare numbers, one a line: erratum, what is measured, value, separated by tabs."""
    items = ERRATA if numbers is None else chosen(numbers)
    return "\n".join(f"{item.number}\t{label}\t{value}" for item in items for label, value in item.show())


def errata_markdown() -> str:
    """docs/errata.md."""
    listed = [_markdown_section(item) for item in ERRATA]
    first_new = next(at for at, item in enumerate(ERRATA) if item.number == FIRST_NEW)
    parts = [INTRODUCTION, *listed[:first_new], NEW, *listed[first_new:], SLIPS, LEFT_OPEN]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def chosen(numbers: Sequence[int]) -> list[Erratum]:
    """The errata with these numbers."""
    known = {item.number: item for item in ERRATA}
    for number in numbers:
        if number not in known:
            raise InputError(f"there is no erratum {number}; choose from 1 to {max(known)}.")
    return [known[number] for number in numbers]


def _in_full(item: Erratum) -> str:
    prose = {"printed": item.printed, "wrong": item.wrong, "ours": item.ours}
    lines = [f"{item.number}. {item.where}"]
    for name, text in prose.items():
        lines += textwrap.wrap(text, 100, initial_indent=f"  {name:<9}", subsequent_indent=" " * 11)
    for name, references in (("code", item.code), ("test", item.tests)):
        lines += [f"  {name if at == 0 else '':<9}{reference}" for at, reference in enumerate(references)]
    return "\n".join([*lines, _aligned(item.show())])


def _aligned(numbers: Numbers) -> str:
    if not numbers:
        return "  (a matter of names: no number)"
    width = max(len(label) for label, _ in numbers)
    return "\n".join(f"  {label:<{width}}  {_written(value)}" for label, value in numbers)


def _markdown_section(item: Erratum) -> str:
    numbers = item.show()
    table = [
        "| measured | |",
        "|---|---:|",
        *(f"| {_escaped(label)} | {_written(value)} |" for label, value in numbers),
    ]
    return "\n".join(
        [
            f"### {item.number}. {_escaped(item.where)}",
            "",
            f"**Printed.** {_escaped(item.printed)}",
            "",
            f"**Wrong.** {_escaped(item.wrong)}",
            "",
            f"**Ours.** {_escaped(item.ours)}",
            "",
            *(table if numbers else ["A matter of names: no number."]),
            "",
            f"* Command: `perfeds2 errata {item.number}`",
            "* Code: " + ", ".join(f"`{name}`" for name in item.code),
            "* Tests: " + ", ".join(f"`{name}`" for name in item.tests),
        ]
    )


def _escaped(text: str) -> str:
    return text.replace("*", r"\*").replace("|", r"\|")


def _written(value: int | float | str) -> str:
    """Three significant digits: what any machine computes the same."""
    if isinstance(value, str):
        return value
    if isinstance(value, int):
        return f"{value:,}"
    return format(float(f"{value:.3g}"), ",.6g" if 1e-4 <= abs(value) < 1e6 or value == 0 else ".3g")


def _below(value: float, limit: float) -> str:
    """An error that rounding makes, and each machine differently."""
    return f"below {limit:g}" if value < limit else f"{value:.1e}"


# The errata of the radio and of the rounds.


def _theorem_4_closed_form() -> Numbers:
    cell = Cell(np.array([100.0]), np.array([1e9]))
    signal = float(_usual_signal(cell)[0])
    bits, compute_s, end_s = 2e6, 0.2, 1.1
    rate = bits / (end_s - compute_s)
    load = rate * LN2 / signal  # Γ
    principal = float(np.real(lambertw(-load * np.exp(-load))))
    band = float(bandwidth_for_rate(rate, signal))
    reached_s = compute_s + bits / float(rate_bps(band, signal))
    return [
        ("Γ of a UE at 100 m that must send 2 Mbit in 0.9 s", load),
        ("printed denominator |W(−Γe^−Γ) + Γ|", _below(abs(principal + load), 1e-15)),
        ("our bandwidth (Hz)", band),
        ("it misses the finish time by (relative)", _below(abs(reached_s / end_s - 1), 1e-14)),
        ("rate no bandwidth exceeds, Γ = 1 (bit/s)", signal / LN2),
    ]


def _sharing_against_turns() -> Numbers:
    numbers: Numbers = []
    for distance_m in (10.0, 50.0, 200.0):
        cell = Cell(np.full(4, distance_m), np.full(4, 1e9))
        first_two = np.array([True, True, False, False])
        turn = Uplink(
            0, cell.bandwidth_hz, _usual_signal(cell), np.zeros(4), np.full(4, 1e6), equal_shares(4), first_two
        )
        in_turns_s = 2 * _last_s(turn, equal_finish(turn))
        sharing_s = _last_s(replace(turn, planned=None), weighted_rate(turn))
        numbers.append(
            (f"4 UEs at {distance_m:g} m, A = 2: taking turns is slower by (%)", _percent(in_turns_s, sharing_s))
        )
    cell = Cell(np.full(4, 200.0), np.full(4, 1e9), cycles_per_sample=0.0)
    turns = as_schedule(np.array([[0, 1], [2, 3]]))
    end_s = [
        simulate(cell, Protocol(2), payload_bits=1e6, samples=0.0, rounds=100, bandwidth=policy, schedule=turns).end_s
        for policy in (equal_finish, between(0.5), weighted_rate)
    ]
    numbers.append(("on the clock, with fading, 200 m, 100 rounds: turns slower by (%)", _percent(end_s[0], end_s[2])))
    numbers.append(("the same, halfway between the extremes: slower by (%)", _percent(end_s[1], end_s[2])))
    return numbers


def _nats_for_bits() -> Numbers:
    cell = Cell.draw(20)
    band, signal = cell.bandwidth_hz / cell.ues, _usual_signal(cell)
    bits_a_second = rate_bps(band, signal)
    nats_a_second = band * np.log1p(signal / band)
    computing = [
        float(np.median(cell.compute_s(120.0) / (cell.compute_s(120.0) + 8e4 / rate)))
        for rate in (bits_a_second, nats_a_second)
    ]
    return [
        ("rate in bit/s over rate in nat/s, every UE", float(np.mean(bits_a_second / nats_a_second))),
        ("1/ln 2", 1 / LN2),
        ("computing, of a median UE's job, with log2 (%)", 100 * computing[0]),
        ("the same with ln (%)", 100 * computing[1]),
    ]


def _least_share() -> Numbers:
    quorum, max_staleness, rounds, ues = 5, 4, 200, 20
    by_print = max_staleness / rounds
    rare = np.full(ues, (1 - by_print) / (ues - 1))
    rare[0] = by_print
    low, _ = share_bounds(quorum, max_staleness)
    return [
        ("A = 5, S = 4, K = 200, 20 UEs: printed least share S/K", by_print),
        ("a UE at that share sits out at most so many rounds", int(longest_gap(deficit(rare, quorum, rounds), ues)[0])),
        ("our least share 1/(A·S)", low),
        ("a UE at that share sits out at most", int(longest_gap(deficit(equal_shares(ues), quorum, rounds), ues)[0])),
        ("printed least share at K = 20", max_staleness / 20),
        ("20 such shares sum to (must be 1)", ues * max_staleness / 20),
    ]


def _min_for_max() -> Numbers:
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


def _condition_on_beta() -> Numbers:
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


def _root_of_a() -> Numbers:
    sums = bounds.share_sums(deficit(equal_shares(20), 5, 8), equal_shares(20))
    return [
        ("20 equal UEs, A = 5: Σ η_i over a round, largest", float(sums.max())),
        ("√A", math.sqrt(5)),
        ("printed floor over the floor with the schedule's own sum", bounds.printed(SMALL, 5).floor / bounds.scheduled(SMALL, sums).floor),
    ]  # fmt: skip


def _algorithm_2() -> Numbers:
    equal = equal_shares(20)
    random = np.random.default_rng(0)
    uneven = [nearest_feasible(random.dirichlet(np.full(20, 3.0)), 5, 20) for _ in range(8)]
    literal = printed(equal, 5, 200)

    def off(plan: Callable[..., Rows], shares: Float[np.ndarray, " n"]) -> float:
        return float(100 * np.abs(achieved_shares(plan(shares, 5, 200), 20) / shares - 1).max())

    numbers: Numbers = [
        ("20 UEs, A = 5, 200 rounds, equal η, as printed: worst η is off by (%)", off(printed, equal)),
        ("UEs it never schedules", int((achieved_shares(literal, 20) == 0).sum())),
        ("fill-up behind the loop: off by (%)", off(printed_fixed, equal)),
        ("largest deficit first: off by (%)", off(deficit, equal)),
    ]
    for name, plan in (("fill-up behind the loop", printed_fixed), ("largest deficit first", deficit)):
        worst = float(np.median([off(plan, shares) for shares in uneven]))
        numbers.append((f"8 uneven η, {name}: off by (%, median)", worst))
    return numbers


def _one_round_late() -> Numbers:
    bound, rounds = 3, 400
    job_s = Cell.draw(20, seed=1).compute_s(200.0)
    by_print = _printed_refresh(job_s, 5, bound, rounds)
    # One bit on a loud link takes no time worth mentioning: jobs last job_s.
    cell = Cell(np.ones(20), 1e9 / job_s, cycles_per_sample=1e9)
    ours = simulate(cell, Protocol(5, bound), payload_bits=1.0, samples=1.0, rounds=rounds).staleness
    return [
        ("jobs of 1 s and 2.5 s, A = 1, S = 1, 3 rounds: stalest merge as printed", max(_printed_refresh(np.array([1.0, 2.5]), 1, 1, 3))),
        ("20 UEs, A = 5, S = 3, 400 rounds: stalest merge as printed", max(by_print)),
        ("merges staler than S", sum(stale > bound for stale in by_print)),
        ("stalest merge with our rule", int(ours.max())),
    ]  # fmt: skip


def _printed_refresh(job_s: Float[np.ndarray, " n"], quorum: int, bound: int, rounds: int) -> list[int]:
    """The staleness of every merge where w_{k+1} goes to the merged and to those with τ_k > S, as printed."""
    version, end_s, merges = np.zeros(job_s.size, int), job_s.copy(), []
    for k in range(rounds):
        first = np.lexsort((np.arange(job_s.size), end_s))[:quorum]
        merges += (k - version[first]).tolist()
        refresh = k - version > bound
        refresh[first] = True
        end_s[refresh] = end_s[first].max() + job_s[refresh]
        version[refresh] = k + 1
    return merges


def _starving() -> Numbers:
    cell = Cell.draw(20, seed=1)
    numbers: Numbers = []
    rules: tuple[Stale, ...] = ("restart", "wait", "ignore")
    for stale in rules:
        run = simulate(cell, Protocol(5, 3, stale), payload_bits=1e5, samples=200.0, rounds=400)
        numbers.append((f"20 UEs, A = 5, S = 3, 400 rounds, {stale}: UEs never merged", int(run.starved.size)))
        numbers.append((f"{stale}: simulated seconds for the 400 rounds", run.end_s))
    return numbers


def _ties() -> Numbers:
    cell = Cell.draw(20, seed=7)
    uplink = Uplink(
        0, cell.bandwidth_hz, cell.signal_hz(0), cell.compute_s(40.0), np.full(20, 1e6), equal_shares(20), None
    )
    ends = _ends_s(uplink, equal_finish(uplink))
    rows = deficit(equal_shares(20), 5, 40)
    run = simulate(
        cell, Protocol(5), payload_bits=1e6, samples=40.0, rounds=40, bandwidth=equal_finish, schedule=as_schedule(rows)
    )
    kept = (np.sort(run.ues, axis=1) == rows).all(axis=1)
    return [
        ("20 UEs served by Theorem 2: first and last arrival differ by (relative)", _below(float(np.ptp(ends) / ends.max()), 1e-12)),
        ("with a plan, rounds that close on the planned set (%)", float(100 * kept.mean())),
    ]  # fmt: skip


def _labels() -> Numbers:
    labels = np.repeat(np.arange(10), 400)
    numbers: Numbers = []
    for labels_per_ue in (1, 2, 4, 6, 8, 10):
        parts = partition_by_label(labels, 20, labels_per_ue, seed=0)
        mix = np.zeros((20, 10))
        for ue, (start, size) in enumerate(zip(parts.start, parts.train_count + parts.test_count, strict=True)):
            mix[ue] = np.bincount(labels[parts.order[start : start + size]], minlength=10) / size
        apart = np.abs(mix[:, None] - mix[None]).sum(axis=2)[np.triu_indices(20, 1)] / 2
        numbers.append(
            (f"l = {labels_per_ue}: two UEs' label mixes differ by (%, mean over pairs)", float(100 * apart.mean()))
        )
    return numbers


# The errata of the theory.


def _largest_batch() -> Numbers:
    constants = Constants(2.0, 3.0, 5.0, gradient_noise=4.0, hessian_noise=0.0, gradient_diversity=0.5, hessian_diversity=2.0, gap=7.0)  # fmt: skip
    sizes = [1, 100]
    return [
        ("batches of 1 and 100, α = 0, σ_G² = 16: variance of the first UE", constants.gradient_noise**2 / min(sizes)),
        ("printed σ_F², largest batch", noise(constants, 0.0, sizes, sizes, sizes, pick=max)),
        ("our σ_F², smallest batch", noise(constants, 0.0, sizes, sizes, sizes)),
    ]


def _sign() -> Numbers:
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
        ("floor that follows with one step less (sharpened)", bounds.sharpened(tiny, merge_error).floor),
    ]


def _unequal_participation() -> Numbers:
    """Two UEs, log cosh(w ∓ 1), the first merged three times as often; the run starts at the optimum of F, w = 0."""
    alpha, beta, rounds = 0.1, 2.5e-5, 400_000

    def slope(w: Float[np.ndarray, " m"], centre: float) -> Float[np.ndarray, " m"]:
        gradient = np.tanh(w - centre)
        return (1 - alpha * (1 - gradient**2)) * np.tanh(w - centre - alpha * gradient)

    def mean_square(w: Float[np.ndarray, " m"]) -> float:
        return float(np.mean(((slope(w, 1.0) + slope(w, -1.0)) / 2) ** 2))

    line = np.linspace(-10, 10, 20_001)
    gradients = np.stack([np.tanh(line - centre) for centre in (1.0, -1.0)])
    constants = Constants(
        1.0, 1.0, BEND, 0.0, 0.0, float(gradients.std(axis=0).max()), float((1 - gradients**2).std(axis=0).max()), gap=0.0
    )  # fmt: skip
    setting = bounds.Premises(smoothness(constants, alpha), 0.0, diversity(constants, alpha), 0.0, beta, staleness=4)
    w, models, tanh = 0.0, [], math.tanh  # slope() again, on plain numbers, which is faster
    for _ in range(rounds // 4):
        models.append(w)  # it moves by 1e-5 within the four rounds
        for centre in (1.0, 1.0, 1.0, -1.0):
            gradient = tanh(w - centre)
            w -= beta * (1 - alpha * (1 - gradient * gradient)) * tanh(w - centre - alpha * gradient)
    settled = root_scalar(
        lambda w: (3 * slope(np.array([w]), 1.0) + slope(np.array([w]), -1.0))[0], bracket=(0.0, 1.0)
    ).root
    return [
        (
            "shares 3/4 and 1/4, β = 2.5e-5, 400,000 rounds: claimed mean ‖∇F‖²",
            bounds.printed(setting, 1).after(rounds),
        ),
        ("measured", mean_square(np.array(models))),
        ("‖∇F‖² where the run settles, at any small β", mean_square(np.array([settled]))),
        ("claimed at β = 1e-9", bounds.printed(replace(setting, beta=1e-9), 1).floor),
    ]


def _noise_of_a_merge() -> Numbers:
    samples = np.array([1.0, -1.0])  # one UE's noise, σ = 1
    claimed = bounds.share_sums(np.array([[3]]), equal_shares(20))
    return [
        ("20 UEs, A = 1, σ = 1: E‖X‖²", float((samples**2).mean())),
        ("claimed, σ² Σ η_i over the round", float(claimed[0])),
    ]


def _deviation_of_a_merge() -> Numbers:
    gradients = np.array([-1.0] + [0.0] * 9)
    apart = (gradients - gradients.mean()) ** 2
    claimed = bounds.share_sums(np.array([[0]]), equal_shares(10))
    return [
        ("nine UEs at 0, one at 1, A = 1: γ²", float(apart.mean())),
        ("‖Y‖² when the odd one is merged", float(apart[0])),
        ("claimed, γ² Σ η_i over the round", float(apart.mean() * claimed[0])),
        ("our bound, γ² n/A", float(apart.mean() * bounds.spread_of_any_schedule(10, 1))),
    ]


def _unbound_index() -> Numbers:
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


def _once_in_s_plus_1() -> Numbers:
    turns = deficit(equal_shares(2), 1, 100)
    wide = deficit(equal_shares(20), 5, 100)
    return [
        ("2 UEs, A = 1, taking turns: stalest merge", int(longest_gap(turns, 2).max())),
        ("each UE's share", float(achieved_shares(turns, 2)[0])),
        ("least share by C4.2 at S = 1", share_bounds(1, 1)[0]),
        ("20 UEs, A = 5, taking turns: stalest merge", int(longest_gap(wide, 20).max())),
        ("least S by C4.2, 1/(A·η)", 1 / (5 * float(achieved_shares(wide, 20)[0]))),
    ]


def _accuracy_term() -> Numbers:
    epsilon = 0.5 * bounds.printed(SMALL, 1).floor
    found = optimum(SMALL, epsilon, equal_shares(4))
    return [
        ("second term of P4 at A = 1", bounds.printed(SMALL, 1).floor),
        ("at A = 4", bounds.printed(SMALL, 4).floor),
        ("A at which it is ε, for ε half of the former", found.accuracy_quorum),
        ("our A*", found.quorum),
        ("meets ε", "yes" if found.meets_target else "no"),
    ]


def _inner_step() -> Numbers:
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


def _loose_lemmas() -> Numbers:
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


def _theorem_2_against_4() -> Numbers:
    planned = np.array([True, True, False, False])
    uplink = Uplink(0, 1e6, np.full(4, 1e8), np.zeros(4), np.array([1e2, 1e6, 1e6, 1e6]), equal_shares(4), planned)
    least, fastest, kept = weighted_rate(uplink), equal_finish(uplink), between(1.0)(uplink)
    return [
        ("4 UEs, 2 planned, one of them with 100 bits left: its least band by Theorem 4 (Hz)", float(least[0])),
        ("its band where the planned end together, Theorem 2 (Hz)", float(fastest[0])),
        ("round with Theorem 2 (s)", _last_s(uplink, fastest)),
        ("round with the bound of Theorem 4 kept (s)", _last_s(uplink, kept)),
        ("keeping it is slower by (%)", _percent(_last_s(uplink, kept), _last_s(uplink, fastest))),
    ]


def _no_period() -> Numbers:
    root = math.sqrt(2)
    rows = deficit(np.array([root - 1, 2 - root]), 1, 3000)
    return [
        (
            "shares 1/12, 2/12, 3/12, 4/12, 2/12, A = 3: rounds after which they recur",
            period(deficit(np.array([1, 2, 3, 4, 2]) / 12, 3, 40)) or "none",
        ),
        *(
            (
                f"shares √2 − 1 and 2 − √2, A = 1: seen to recur in {rounds:,} rounds after",
                period(rows[:rounds]) or "none",
            )
            for rounds in (100, 500, 3000)
        ),
    ]


def _enough_staleness() -> Numbers:
    cell = Cell.draw(20)
    rows = deficit(equal_shares(20), 5, 40)
    end_s = {
        bound: simulate(
            cell, Protocol(5, bound), payload_bits=1e5, samples=120.0, rounds=40, bandwidth=equal_finish, schedule=as_schedule(rows)
        ).end_s
        for bound in (1, 2, 3, 4, 5)
    }  # fmt: skip
    return [
        ("20 equal UEs, A = 5, planned: stalest merge", int(longest_gap(rows, 20).max())),
        *((f"40 planned rounds at S = {bound} (s)", seconds) for bound, seconds in end_s.items()),
    ]


def _none() -> Numbers:
    return []


# What several of them need.

BEND = 4 / (3 * math.sqrt(3))  # the largest |f'''| of log cosh
SMALL = bounds.Premises(smoothness=1.0, noise=1.0, diversity=1.0, gap=1.0, beta=0.1, staleness=4)


def _usual_signal(cell: Cell) -> Float[np.ndarray, " n"]:
    """At the mean of the Rayleigh fading."""
    return cell.mean_signal_hz * cell.fading_scale * math.sqrt(math.pi / 2)


def _ends_s(uplink: Uplink, bandwidth_hz: Float[np.ndarray, " n"]) -> Float[np.ndarray, " s"]:
    """When those the round waits for are done."""
    serve = np.ones(uplink.bits.size, bool) if uplink.planned is None else uplink.planned
    return uplink.compute_s[serve] + uplink.bits[serve] / rate_bps(bandwidth_hz[serve], uplink.signal_hz[serve])


def _last_s(uplink: Uplink, bandwidth_hz: Float[np.ndarray, " n"]) -> float:
    return float(_ends_s(uplink, bandwidth_hz).max())


def _percent(slow: float, fast: float) -> float:
    return 100 * (slow / fast - 1)


_NETWORK = "tests/network/"
_ALLOCATION = "tests/allocation/"
_THEORY = "tests/theory/test_theory_errata.py::"
_CLAIMS = "tests/claims/test_protocol_errata.py::"
_HERE = "tests/paper/test_errata.py::"

FIRST_NEW = 16
ERRATA = (
    Erratum(
        1,
        "Theorem 4, eq. (33): the closed form of the bandwidth",
        "b > B·n·η·Z / ((T − Tcmp)(W(−Γe^−Γ) + Γ)).",
        "On the principal branch W(−Γe^−Γ) = −Γ for Γ ≤ 1. The denominator is 0 and the bandwidth infinite. The leading B "
        "also breaks the units.",
        "Solve b·ln(1 + g/b) = R for b, with g = p·h·d^−κ/N0 and Γ = R/g: b = −R / (W₋₁(−Γe^−Γ) + Γ). It has a solution only "
        "for Γ < 1: a UE's rate saturates however much band it gets. A rate beyond that is an error that names the UE.",
        _theorem_4_closed_form,
        ("perfeds2.network.link.bandwidth_for_rate", "perfeds2.network.link.nats_per_hz"),
        (
            _ALLOCATION
            + "test_bandwidth_policies.py::test_erratum_1_the_printed_bandwidth_is_infinite_and_the_corrected_one_ends_on_time",
            _CLAIMS + "test_erratum_1_the_printed_branch_gives_an_infinite_band",
        ),
    ),
    Erratum(
        2,
        "Section V-B, the example after Theorem 4",
        "Z/r(B/4) = 2Z/r(B/2), so all allocations between the two extremes take the same time.",
        "r is strictly concave in b and r(0) = 0, so r(B/4) > r(B/2)/2. Sharing the band all the time is strictly faster "
        "than taking turns.",
        "Both extremes and the points between them are policies. The clock measures the difference.",
        _sharing_against_turns,
        (
            "perfeds2.allocation.bandwidth.equal_finish",
            "perfeds2.allocation.bandwidth.weighted_rate",
            "perfeds2.allocation.bandwidth.between",
        ),
        (
            _ALLOCATION + "test_bandwidth_policies.py::test_erratum_2_sharing_the_band_all_the_time_beats_taking_turns",
            _NETWORK + "test_link.py::test_the_rate_is_strictly_concave_in_the_band",
        ),
    ),
    Erratum(
        3,
        "Eq. (9), the uplink rate",
        "r = b·ln(1 + SNR), with Z in bits.",
        "ln gives nat/s. Z bits over a rate in nat/s is too long by 1/ln 2.",
        "Rates in bit/s (log2). The factor is the same for all UEs, but it shifts the balance between computing and "
        "sending.",
        _nats_for_bits,
        ("perfeds2.network.link.rate_bps",),
        (_NETWORK + "test_link.py::test_the_paper_counts_nats_where_it_means_bits",),
    ),
    Erratum(
        4,
        "Section III-A, c_i in eqs. (9) and (11)",
        "c_i is the distance to the base station, and c_i is the CPU cycles a sample.",
        "One symbol, two quantities.",
        "`distance_m` and `cycles_per_sample`.",
        _none,
        ("perfeds2.network.cell.Cell", "perfeds2.network.device.compute_seconds"),
        (
            _NETWORK + "test_cell.py::test_the_signal_follows_path_loss_power_and_noise",
            _NETWORK + "test_cell.py::test_compute_seconds_by_hand",
        ),
    ),
    Erratum(
        5,
        "Section III-B and (C1.5), (C3.3), (C4.3)",
        "η_i ≥ S/K, or K ≥ S/η_i, from one merge at least in any S rounds.",
        "At least once in S rounds is K/S merges of A·K, so η_i ≥ 1/(A·S), at every K: the paper's own (C4.2). S/K asks "
        "too little of long runs and the impossible of short ones.",
        "1/(A·S) ≤ η_i ≤ 1/A is checked (at most one merge a round). The error names the UEs and offers the nearest "
        "shares that can be met. See also 20.",
        _least_share,
        ("perfeds2.allocation.shares.share_bounds", "perfeds2.allocation.shares.check_shares"),
        (
            _ALLOCATION
            + "test_shares.py::test_erratum_5_a_share_the_printed_bound_allows_is_merged_far_less_than_once_in_s_rounds",
            _THEORY + "test_5_at_least_once_in_s_rounds_bounds_the_share_by_a_and_s_not_by_k",
        ),
    ),
    Erratum(
        6,
        "Eqs. (42) and (43), K* and A*",
        "min{accuracy term, constraint term}.",
        "The constraints (C4.2) and (C4.3) are lower bounds, so they combine with a max. The printed A* can violate (C4.2), "
        "the printed K* can stop long before the target.",
        "The larger term, kept between 1 and n. The printed values stand beside the corrected ones. See also 21.",
        _min_for_max,
        ("perfeds2.theory.optimum.optimum",),
        (
            _THEORY + "test_6_the_printed_a_star_violates_c4_2_and_the_corrected_one_does_not",
            _THEORY + "test_6_the_printed_k_star_stops_before_the_target_and_the_corrected_one_does_not",
        ),
    ),
    Erratum(
        7,
        "Theorem 1, eq. (27), and eq. (58): the condition on β",
        "L_Fβ² − β + 2L_F²β²S² ≤ 1.",
        "The proof drops the bracket times a square, so the bracket must be ≤ 0. And T2 enters times β, so its last term is "
        "2L_F²β³S².",
        "L_Fβ − 1 + 2L_F²β²S² ≤ 0. The largest β follows in closed form: 2 / (L_F(1 + √(1 + 8S²))). The printed condition "
        "is reported beside it.",
        _condition_on_beta,
        (
            "perfeds2.theory.bounds.corrected_bracket",
            "perfeds2.theory.bounds.largest_corrected_beta",
            "perfeds2.theory.bounds.printed_bracket",
        ),
        (
            _THEORY + "test_7_a_step_the_printed_condition_admits_never_comes_to_rest",
            "tests/theory/test_bounds.py::test_the_largest_steps_are_the_roots_of_their_conditions",
        ),
    ),
    Erratum(
        8,
        "Appendix, eqs. (52) and (55) to (57): Σ_{i∈A_k} η_i ≤ √A",
        "The factor √A.",
        "The sum is at most 1, so √A is very loose. E[T1] in (52) uses 1, E[T2] in (55) the sum, Theorem 1 √A.",
        "The bound as stated, and beside it the same with the schedule's own sum. Neither is a true bound: see 15 to 18.",
        _root_of_a,
        ("perfeds2.theory.bounds.printed", "perfeds2.theory.bounds.scheduled", "perfeds2.theory.bounds.share_sums"),
        (_THEORY + "test_8_the_root_is_loose_and_the_schedules_own_shares_never_exceed_1",),
    ),
    Erratum(
        9,
        "Algorithm 2, the fill-up",
        "The step that fills the round up stands inside the loop over UEs.",
        "Executed literally, some UEs are never scheduled. Moved behind the loop it is exact for equal η, and off for "
        "uneven η.",
        "Largest deficit first: round k takes the A UEs with the smallest (merges so far − η_i·A·(k+1)). All three are "
        "kept, two for comparison.",
        _algorithm_2,
        (
            "perfeds2.allocation.schedule.deficit",
            "perfeds2.allocation.schedule.printed",
            "perfeds2.allocation.schedule.printed_fixed",
        ),
        (
            _ALLOCATION + "test_schedules.py::test_erratum_9_printed_never_schedules_some_ues",
            _ALLOCATION
            + "test_schedules.py::test_erratum_9_moving_the_fill_up_is_exact_for_equal_shares_and_deficit_is_closer_for_uneven_ones",
        ),
    ),
    Erratum(
        10,
        "Algorithm 1, the test behind the update",
        "w_{k+1} goes to UE i if i ∈ A_k or τ_k^i > S.",
        "The test comes one round late: an update of staleness S + 1 can be merged, against Assumption 1.",
        "A UE is refreshed when its model would be staler than S in the coming round. No merged update is ever staler "
        "than S.",
        _one_round_late,
        ("perfeds2.timeline.rounds.hand_out",),
        (
            _CLAIMS + "test_erratum_10_by_hand",
            _CLAIMS + "test_erratum_10_the_printed_rule_is_one_round_late_and_ours_is_not",
            "tests/timeline/test_timeline_properties.py::test_no_merged_update_is_staler_than_the_bound",
        ),
    ),
    Erratum(
        11,
        "Algorithm 1 against Section VI-B4: the UE that would be too stale",
        "Algorithm 1: it gets w_{k+1}, its job is thrown away. Section VI-B4: “other UEs may have to wait”.",
        "Two different policies. The first can starve a slow UE for ever.",
        "Three named policies: `restart` (Algorithm 1), `wait` (Section VI-B4, behind Fig. 10) and `ignore`. Every run "
        "reports its starved UEs.",
        _starving,
        ("perfeds2.timeline.rounds.Protocol", "perfeds2.timeline.timeline.Timeline.starved"),
        (
            _CLAIMS + "test_erratum_11_restart_starves_slow_ues_and_wait_starves_none",
            "tests/timeline/test_timeline_properties.py::test_waiting_starves_nobody",
        ),
    ),
    Erratum(
        12,
        "Theorem 2 with Algorithm 1's first A arrivals",
        "All UEs finish at the same time, and the first A close the round.",
        "Then which A arrive first is rounding noise.",
        "Times in float64, ties by UE number. Or the round closes on a planned set: give it a schedule.",
        _ties,
        ("perfeds2.allocation.bandwidth.equal_finish", "perfeds2.timeline.rounds.close_round"),
        (
            _ALLOCATION
            + "test_bandwidth_policies.py::test_erratum_12_without_a_plan_who_arrives_first_is_rounding_noise",
            "tests/timeline/test_rounds_by_hand.py::test_ties_go_to_the_smaller_number",
        ),
    ),
    Erratum(
        13,
        "Section VI-A3, the level l",
        "“the higher l is, the more diverse the datasets are”.",
        "l is the number of labels a UE has. More labels make UEs more alike. What grows with l is each UE's own task: it "
        "must tell more labels apart. So a worse curve at a larger l shows harder tasks, not more diverse UEs.",
        "The setting is called `labels_per_ue`. For CIFAR-100 it is l of its 100 labels.",
        _labels,
        ("perfeds2.learning.partition.partition_by_label",),
        (
            _HERE + "test_13_more_labels_make_ues_more_alike",
            "tests/learning/test_partition.py::test_parts_are_disjoint_and_hold_the_right_labels",
        ),
    ),
    Erratum(
        14,
        "Lemma 2, eq. (24): σ_F²",
        "D = max_i D_i.",
        "A variance bound for every UE needs the smallest batch among them.",
        "The smallest batch. `pick=max` gives the printed value.",
        _largest_batch,
        ("perfeds2.theory.constants.noise",),
        (
            "tests/theory/test_constants.py::test_the_noise_bound_takes_the_smallest_batch_and_the_printed_one_is_below_the_truth",
        ),
    ),
    Erratum(
        15,
        "Appendix, eq. (51): the proof of Theorem 1",
        "‖a + b‖² ≤ 2‖a‖² + 2‖b‖² is applied to the term with the coefficient (L_Fβ² − β)/2.",
        "Under the theorem's own condition the coefficient is negative, so the inequality points the wrong way, and the "
        "noise that cancels there does not cancel.",
        "The same steps with the right sign give, for 1 − L_Fβ ≥ 8L_F²β²S²: mean‖∇F‖² ≤ 2Δ/(βK) + (3 − L_Fβ + "
        "4L_F²β²S²)·E[T1], a floor that β does not remove. `printed` stays for planning, `proved` and `sharpened` stand "
        "beside it. Proofs: docs/theory.md.",
        _sign,
        (
            "perfeds2.theory.bounds.printed",
            "perfeds2.theory.bounds.proved",
            "perfeds2.theory.bounds.sharpened",
        ),
        (
            _THEORY + "test_15_the_printed_step_makes_the_objective_fall_while_the_model_stands_still",
            "tests/theory/test_bounds.py::test_every_single_run_stays_below_the_proved_bounds_with_its_own_error",
        ),
    ),
    Erratum(
        16,
        "Theorem 1, eq. (28): unequal participation",
        "The mean of ‖∇F‖² goes to 0 with small β and many rounds.",
        "Not only unproved: false where UEs take part unequally. The run settles at a stationary point of Σ η_i F_i, not "
        "of F. Two UEs with log cosh(w ∓ 1), no sampling noise, A = 1; every assumption holds on the whole line and β meets "
        "every condition. The run even starts at the optimum of F.",
        "`proved` and `sharpened` keep a floor with θ·γ_F², θ = n·max η or n/A.",
        _unequal_participation,
        ("perfeds2.theory.bounds.merge_error", "perfeds2.theory.bounds.spread_of_shares"),
        (
            _THEORY + "test_15_theorem_1_fails_when_participation_is_unequal",
            _HERE + "test_16_the_claim_of_theorem_1_is_exceeded",
        ),
    ),
    Erratum(
        17,
        "Appendix, eq. (48): E‖X‖²",
        "E‖X‖² ≤ σ_F² Σ_{i∈A_k} η_i.",
        "X is an average over the A merged UEs, each with noise up to σ_F²; how often they take part does not make it "
        "smaller. The factor is 1.",
        "`merge_error` uses σ_F².",
        _noise_of_a_merge,
        ("perfeds2.theory.bounds.merge_error",),
        (_THEORY + "test_new_the_noise_of_a_merge_does_not_shrink_with_the_shares",),
    ),
    Erratum(
        18,
        "Appendix, eq. (50): E‖Y‖²",
        "E‖Y‖² ≤ γ_F² Σ_{i∈A_k} η_i.",
        "Lemma 3 bounds the average over all UEs, not over those merged.",
        "θ·γ_F² with θ = n/A for any schedule, or n·max η under a slightly stronger assumption (docs/theory.md).",
        _deviation_of_a_merge,
        ("perfeds2.theory.bounds.spread_of_any_schedule", "perfeds2.theory.bounds.spread_of_shares"),
        (
            _THEORY + "test_new_the_average_over_all_ues_does_not_bound_the_one_that_is_merged",
            "tests/theory/test_bounds.py::test_with_any_participation_n_over_a_makes_up_for_the_average",
        ),
    ),
    Erratum(
        19,
        "Appendix, eqs. (54), (55) and (58): T2 in one round",
        "T2 ≤ 2L_F²β²S² (‖X + Y‖² + ‖(1/A) Σ ∇F(w_{j−τ})‖²), with an index j that is not bound, later read as k.",
        "A sum over S past rounds is replaced by S times one of its terms. For one round, with j = k, it is false. Only "
        "the sum over the rounds has that form.",
        "Our proof sums over the rounds first (docs/theory.md).",
        _unbound_index,
        ("perfeds2.theory.bounds.sharpened",),
        (_HERE + "test_19_one_round_of_staleness_exceeds_its_claim_and_the_sum_does_not",),
    ),
    Erratum(
        20,
        "Section III-C on (C1.3), eq. (40) and (C4.2): once in S rounds",
        "Staleness at most S means at least one merge in any S rounds.",
        "A UE merged in round k gets w_{k+1} and may be merged in round k + 1 + S: once in S + 1 rounds. The sum in (C1.3) has "
        "S + 1 terms, too. The necessary range is η_i ≥ 1/(A(S+1)).",
        "We keep the stricter 1/(A·S) for shares and A*, as the paper does. `check_schedule` counts exactly.",
        _once_in_s_plus_1,
        ("perfeds2.allocation.schedule.longest_gap", "perfeds2.allocation.schedule.check_schedule"),
        (_THEORY + "test_new_staleness_s_lets_a_ue_be_merged_once_in_s_plus_1_rounds",),
    ),
    Erratum(
        21,
        "P4 and eq. (43): the accuracy term of A*",
        "A* is set where the second term of P4 equals ε.",
        "The second term grows with √A, so this is the largest A that keeps ε. Where (C4.2) needs more UEs a round, ε is "
        "missed whatever is chosen.",
        "`Optimum.meets_target` says so. A* is also at most 1/max η, or the largest share could not be realised.",
        _accuracy_term,
        ("perfeds2.theory.optimum.optimum", "perfeds2.theory.optimum.Optimum.meets_target"),
        (_THEORY + "test_new_the_accuracy_term_bounds_a_from_above",),
    ),
    Erratum(
        22,
        "Lemma 1: no condition on α",
        "F is smooth with L_F = 4L + αρC if Assumptions 2 to 4 hold.",
        "It needs α ≤ 1/L, as Lemmas 2 and 3 say. For a larger α it is false.",
        "A larger α is an error.",
        _inner_step,
        ("perfeds2.theory.constants.smoothness",),
        (
            "tests/theory/test_constants.py::test_an_inner_step_above_one_over_l_is_refused",
            _HERE + "test_22_a_long_inner_step_breaks_lemma_1",
        ),
    ),
    Erratum(
        23,
        "Theorem 2 against the lower bound of Theorem 4, eq. (33)",
        "The optimum keeps b_k^i above the weighted-rate band for every UE.",
        "The two theorems disagree. A planned UE with few bits left needs next to no band; the fastest round (Theorem 2) "
        "gives it less than Theorem 4's least. Keeping that least makes the round longer.",
        "`equal_finish` is Theorem 2 exactly. `between(θ)` keeps Theorem 4's bounds at every θ.",
        _theorem_2_against_4,
        ("perfeds2.allocation.bandwidth.equal_finish", "perfeds2.allocation.bandwidth.between"),
        (
            _ALLOCATION + "test_bandwidth_policies.py::test_equal_finish_itself_does_not_keep_theorem_4s_lower_bounds",
            _ALLOCATION
            + "test_bandwidth_policies.py::test_theorem_4_every_point_between_gives_the_planned_ues_at_least_their_weighted_rate",
        ),
    ),
    Erratum(
        24,
        "Theorem 3: the schedule recurs",
        "Given η, the UEs are scheduled with a recurrence pattern.",
        "The proof shows that a recurring schedule can match η, not that η makes one. With period K_p every η_i is a whole "
        "number over A·K_p: an irrational share has no period. What is seen to recur only grows with how long one looks.",
        "`period` returns a period only where it is seen twice, else None.",
        _no_period,
        ("perfeds2.allocation.schedule.period", "perfeds2.allocation.schedule.as_schedule"),
        (
            _ALLOCATION + "test_schedules.py::test_theorem_3_fractional_shares_recur_with_their_common_denominator",
            _HERE + "test_24_an_irrational_share_has_no_period",
        ),
    ),
    Erratum(
        25,
        "Section VI-B4: “when S ≥ 5” (loose, not wrong)",
        "With equal η, A = 5 and 20 UEs, all scheduled UEs arrive within S rounds when S ≥ 5.",
        "They take turns, once in n/A = 4 rounds, so they are at most 3 rounds stale: S = 3 is enough. On that plan S = 3, 4 "
        "and 5 are one and the same run; differences between them must come from first arrivals.",
        "`longest_gap` gives the least S of a schedule; the error of `check_schedule` names it.",
        _enough_staleness,
        ("perfeds2.allocation.schedule.longest_gap", "perfeds2.allocation.schedule.check_schedule"),
        (_HERE + "test_25_on_the_papers_plan_three_rounds_of_staleness_are_enough",),
    ),
    Erratum(
        26,
        "Lemmas 2 and 3, eqs. (24) and (26) (loose, not wrong)",
        "The factors 12 and 192.",
        "The same assumptions give at most a third of σ_F², and 24 for 192 (docs/theory.md).",
        "The code keeps the paper's constants.",
        _loose_lemmas,
        ("perfeds2.theory.constants.noise", "perfeds2.theory.constants.diversity"),
        (
            "tests/theory/test_constants.py::test_lemma_2_covers_sampled_meta_gradients_and_a_third_of_it_would_do",
            "tests/theory/test_constants.py::test_lemma_3_covers_unequal_quadratics_and_24_would_do_for_192",
        ),
    ),
)

INTRODUCTION = """
# Errata

Where the paper contradicts itself, or a formula does not compute, the product does the corrected thing by default and
keeps the printed form where someone would want to compare. This page says where, and shows each case by numbers.

The numbers are computed, not typed: `perfeds2 errata` prints them all, `perfeds2 errata 9` one erratum in full, and
`perfeds2 errata --markdown` this page. Equation numbers are the paper's; where they lead in the code is in
[paper-to-code.md](paper-to-code.md), proofs are in [theory.md](theory.md).

## Known from the start
"""

NEW = """
## Found while building

Numbers 1 to 15 were known when the work began. These came up on the way.
"""

SLIPS = """
## Slips of the pen

They change no number here, but a reader may stumble.

* Eq. (34) has T_k^i on both sides; the right one is T_k^j.
* The other extreme after eq. (38) says i, j ∈ A_k; it means all UEs in flight.
* Theorem 1 calls L_F a steplength; the step is β.
* Lemma 2 says α_i, everything else α. Assumption 4 draws from p_i, eq. (2) from H_i, and p_i is the transmit power.
* Eq. (59) starts from f(w_0), meaning F(w_0), and sums k from 1 to K first, from 0 to K − 1 at the end.
* Algorithm 2 loops to N, elsewhere n, and counts UEs from 1 in the loop and from 0 in the fill-up.
* Section VI-B3 says that a larger A is poorer and, two sentences on, of the same figure, that it is better.
"""

LEFT_OPEN = """
## Left open by the paper, fixed by us

| what | ours | where |
|---|---|---|
| CPU cycles a sample | 100 a model parameter; then a median device computes about as long as it sends | `perfeds2.learning.task.cycles_per_sample` |
| CPU frequencies | log-uniform from 0.2 to 2 GHz | `perfeds2.network.cell.Cell.draw` |
| Rayleigh parameter 40 | the scale of the coefficient h, redrawn each round | `perfeds2.network.cell.Cell.signal_hz` |
| UEs at distance 0 | at least 1 m | `perfeds2.network.cell.MIN_DISTANCE_M` |
| local data sizes | log-normal, spread 0.6 | `perfeds2.learning.partition.partition_by_label` |
| η in the “distance” setting | in proportion to 1 / (expected seconds to compute and send at an equal share of the band) | `perfeds2.allocation.shares.distance_shares` |
| what FedAvg and FedProx upload | one local gradient, as PerFedAvg does; `local_steps` generalises all three | `perfeds2.learning.replay.local_update` |
| FedProx at one local step | equals FedAvg: the proximal term is 0 where a job starts | `perfeds2.learning.objectives.FedProx` |
| test accuracy | reported both ways, for every algorithm: of the global model, and after one personal gradient step | `perfeds2.learning.evaluate.evaluate` |
| when a model is handed out | only when a round closes, not when an update arrives | `perfeds2.timeline.rounds.hand_out` |
| `wait` with many UEs | at most A·(S+1) UEs hold a job; more could not be served in time; the others wait for their turn | `perfeds2.timeline.rounds.open_server` |
| `ignore` | a UE that is too stale finishes, its update is refused, and it gets the next model | `perfeds2.timeline.rounds.close_round` |
"""
