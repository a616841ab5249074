"""Share the uplink band among the UEs of a round.

A bandwidth policy is any function from an ``Uplink`` (what the base station knows when the round opens) to one
bandwidth per UE. The bandwidths hold until the round closes or a UE leaves or returns, also while a UE computes and
after it has finished.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from jaxtyping import Bool, Int

from perfeds2.allocation import finish, stepped
from perfeds2.network.link import LN2, Array, PerUe
from perfeds2.network.modulation import Link, Steps

Bandwidth = PerUe  # in Hz
Mask = Bool[np.ndarray, " n"]
MAX_STEPS = 200  # of ``proportional_fair``


@dataclass(frozen=True)
class Uplink:
    """What a bandwidth policy may look at when a round opens. Arrays have shape (n,)."""

    round: int
    bandwidth_hz: float  # B, to be shared
    signal_hz: PerUe  # p·h·d^−κ / N0 in this round
    compute_s: PerUe  # seconds of computing left before the UE can send
    bits: PerUe  # bits left to send; 0 for a UE with nothing to send
    shares: PerUe  # η, participation targets, summing to 1
    planned: Mask | None  # the round's planned UEs; None if the first arrivals close it
    most_bits_per_s_hz: float | None = None  # limit of the modulation; None for no limit
    link: Link | None = None  # what links carry; None: Shannon's rate up to the limit
    # Only for a policy that returns an ``Allocation``:
    cycles: PerUe | None = None  # of a job that begins now, so that its frequency can be chosen; 0 for other UEs
    cpu_hz: PerUe | None = None  # the highest frequency, with which ``compute_s`` is counted
    power_w: PerUe | float | None = None  # the highest transmit power, with which ``signal_hz`` is counted
    elapsed_s: float = 0.0  # since the round opened


@dataclass(frozen=True)
class Allocation:
    """What a policy chooses if it chooses more than bandwidth. Arrays have shape (n,)."""

    bandwidth_hz: Bandwidth
    power_w: PerUe  # while a UE sends, until the policy is asked again; at most ``Uplink.power_w``
    cpu_hz: PerUe  # for the whole of a job that begins now; at most ``Uplink.cpu_hz``


Policy = Callable[[Uplink], Bandwidth | Allocation]


def equal_share(uplink: Uplink) -> Bandwidth:
    """Give the same bandwidth to every UE whose upload has not arrived when the round opens.

    A UE that is still computing, and one that has finished, keeps its part until the round closes.

    Args:
        uplink: The state of the uplink when the round opens.

    Returns:
        The bandwidth of each UE in Hz, shape (n,).

    Example:
        >>> from perfeds2 import Cell, Protocol, equal_share, simulate
        >>> cell, fair = Cell.draw(4, seed=0), {"bandwidth": equal_share, "rounds": 2}
        >>> simulate(cell, Protocol(2), payload_bits=77_120, samples=120, **fair).rounds
        2
    """
    return _evenly(uplink, uplink.bits > 0)


def planned_share(uplink: Uplink) -> Bandwidth:
    """Give the same bandwidth to every planned UE with something to send; without a plan, act as ``equal_share``."""
    return _evenly(uplink, _planned(uplink))


def equal_finish(uplink: Uplink) -> Bandwidth:
    """Let all planned UEs finish at the same, earliest possible time (Theorem 2); the other UEs get no band.

    Without a plan, all UEs with something to send finish together. Which A of them arrive first is then decided by
    rounding errors and UE numbers (erratum 12), so use a schedule or another policy. A UE that is still computing
    holds its band from the start, because the allocation stays fixed for the whole round.

    Args:
        uplink: The state of the uplink when the round opens.

    Returns:
        The bandwidth of each UE in Hz, shape (n,).

    Example:
        >>> from perfeds2 import Cell, Protocol, equal_finish, simulate
        >>> cell, together = Cell.draw(4, seed=0), {"bandwidth": equal_finish, "rounds": 2}
        >>> simulate(cell, Protocol(4), payload_bits=77_120, samples=120, **together).rounds
        2
    """
    return _end_together(uplink, _planned(uplink), uplink.bits, uplink.compute_s)


def weighted_rate(uplink: Uplink) -> Bandwidth:
    """Let every UE send at a rate proportional to its share: r_i/η_i is equal (Theorem 4's other extreme)."""
    serve = (uplink.bits > 0) & (uplink.shares > 0)
    # Sending η_i bits in the same time, starting now, means sending at rates proportional to η_i.
    return _end_together(uplink, serve, uplink.shares, np.zeros(serve.size))


def between(theta: float) -> Callable[[Uplink], Bandwidth]:
    """Return a policy between Theorem 4's extremes: ``weighted_rate`` at θ = 0, all band to the planned UEs at θ = 1.

    Each UE outside the plan keeps 1 − θ of its weighted-rate bandwidth w_i. The rest goes to the planned UEs so that
    the last of them finishes as early as possible, with at least w_i each. With a plan:

    - b_i ≥ w_i for every planned UE and every θ (Theorem 4's lower bounds), and Σb = B;
    - a larger θ never delays the last planned UE of the round;
    - θ = 1 equals ``equal_finish`` exactly when ``equal_finish`` itself respects the lower bounds. It may not: a
      planned UE with few bits left can get less than w_i.

    Without a plan every UE is served, and the bounds b_i ≥ w_i would allow only w itself. Each UE then keeps (1 −
    θ)·w_i, and θ = 1 equals ``equal_finish``.

    Args:
        theta: θ, from 0 to 1.

    Returns:
        A policy: a function of an ``Uplink`` that returns the bandwidth of each UE in Hz, shape (n,).

    Example:
        >>> from perfeds2 import between, compare
        >>> half = compare(bandwidth=between(0.5), ues=4, algorithms=["PerFedS2"], seeds=[0], rounds=1)
        >>> half.timelines["PerFedS2", 0].rounds
        1
    """
    if not 0 <= theta <= 1:
        raise ValueError(f"theta must be from 0 (weighted_rate) to 1 (all band to the planned UEs), got {theta}.")

    def policy(uplink: Uplink) -> Bandwidth:
        serve, least = _planned(uplink), weighted_rate(uplink)
        if theta == 0 or not serve.any():
            return least
        bound = serve if uplink.planned is not None else np.zeros_like(serve)
        kept = np.where(bound, least, (1 - theta) * least)
        return kept * ~serve + _end_together(uplink, serve, uplink.bits, uplink.compute_s, kept)

    policy.__name__ = f"between({theta:g})"
    return policy


def in_each_cell(policy: Policy, ues: Sequence[Int[np.ndarray, " _"]], bandwidth_hz: Sequence[float]) -> Policy:
    """Return a policy that shares the band of each cell among its own UEs, whose numbers are ``ues``."""

    total_hz = sum(bandwidth_hz)

    def shared(uplink: Uplink) -> Bandwidth | Allocation:
        parts = [np.empty(uplink.bits.size) for _ in fields(Allocation)]
        for own, own_hz in zip(ues, bandwidth_hz, strict=True):
            columns = {name: column[own] for name, column in vars(uplink).items() if isinstance(column, np.ndarray)}
            columns["shares"] /= max(columns["shares"].sum(), 1e-300)
            part_hz = own_hz if uplink.bandwidth_hz == total_hz else own_hz * (uplink.bandwidth_hz / total_hz)
            answer = policy(replace(uplink, bandwidth_hz=part_hz, **columns))
            given = vars(answer).values() if isinstance(answer, Allocation) else (answer,)
            for part, column in zip(parts, given, strict=False):
                part[own] = column
        return Allocation(*parts) if chooses_more(policy) else parts[0]

    shared.__annotations__["return"] = Allocation if chooses_more(policy) else Bandwidth
    return shared


def max_throughput(uplink: Uplink) -> Bandwidth:
    """Maximize Σ r_i over the UEs with something to send.

    At the optimum all marginal rates dr/db = ln(1+x) − x/(1+x) are equal, hence all x = g_i/b_i are equal: the
    bandwidths are proportional to the signals, and a UE at the edge of the cell gets almost nothing.
    """
    signal = np.where(uplink.bits > 0, uplink.signal_hz, 0.0)
    total = signal.sum()
    return uplink.bandwidth_hz * signal / total if total > 0 else np.zeros(signal.size)


def proportional_fair(uplink: Uplink) -> Bandwidth:
    """Maximize Σ ln r_i over the UEs with something to send: (dr/db)/r equals the same λ for all of them.

    With x = g/b this reads φ(x) = λg for φ(x) = x·((1+x)ln(1+x) − x) / ((1+x)ln(1+x)), which increases with x. We
    find λ by Newton's method on 1/Σb, kept inside a bracket.
    """
    serve = uplink.bits > 0
    if not serve.any():
        return np.zeros(serve.size)
    signal, band = _signal(uplink, serve), uplink.bandwidth_hz
    snr = signal * signal.size / band  # x at equal shares
    at_equal_shares = np.exp(_log_fairness(snr)[0]) / signal
    low, high = at_equal_shares.min(), at_equal_shares.max()  # with λ above all of these, every UE gets less than B/n
    price, given, total = high, signal / snr, band
    for _ in range(MAX_STEPS):
        snr, slope = _at_fairness(price * signal, snr)
        given = signal / snr
        total = given.sum()
        if abs(total - band) < 1e-12 * band or high <= low * (1 + 1e-14):
            break
        low, high = (max(low, price), high) if total > band else (low, min(high, price))
        newton = price * (1 + (total / band - 1) * total / (given / slope).sum())
        price = newton if low < newton < high else np.sqrt(low * high)
    return _spread(serve, given * (band / total))


def chooses_more(policy: Policy) -> bool:
    """Return whether a policy says that it returns an ``Allocation``."""
    return inspect.signature(policy).return_annotation in (Allocation, Allocation.__name__)


def allocate(policy: Policy, uplink: Uplink) -> Bandwidth | Allocation:
    """Ask the policy for bandwidths and check them: b ≥ 0, finite, Σb ≤ B. Powers and frequencies stay at or below the highest."""
    answer = policy(uplink)
    bandwidth = np.asarray(answer.bandwidth_hz if isinstance(answer, Allocation) else answer, float)
    name = getattr(policy, "__name__", type(policy).__name__)
    is_share = bandwidth.shape == uplink.bits.shape and bandwidth.min() >= 0  # also rejects NaN
    if is_share and bandwidth.sum() <= uplink.bandwidth_hz * (1 + 1e-9):
        if not isinstance(answer, Allocation):
            return bandwidth
        if uplink.cycles is None:
            raise ValueError(
                f"bandwidth policy {name} gave an Allocation; define it as def {name}(uplink) -> Allocation."
            )
        most = uplink.power_w, uplink.cpu_hz
        for what, given, limit in zip(("power_w", "cpu_hz"), (answer.power_w, answer.cpu_hz), most, strict=True):
            values = np.asarray(given, float)
            if values.shape != bandwidth.shape or not ((values > 0) & (values <= np.asarray(limit) * (1 + 1e-9))).all():
                raise ValueError(
                    f"bandwidth policy {name} gave {what} {np.array2string(values, threshold=20)} in round {uplink.round}; "
                    f"expected {bandwidth.size} numbers above 0, at most uplink.{what}."
                )
        return answer
    raise ValueError(
        f"bandwidth policy {name} gave {np.array2string(bandwidth, threshold=20)} Hz in round {uplink.round}; expected "
        f"{uplink.bits.size} finite numbers ≥ 0 that sum to at most {uplink.bandwidth_hz:.9g} Hz."
    )


def _planned(uplink: Uplink) -> Mask:
    """Return the UEs to serve: those with something to send, and planned if there is a plan."""
    return uplink.bits > 0 if uplink.planned is None else uplink.planned & (uplink.bits > 0)


def _evenly(uplink: Uplink, serve: Mask) -> Bandwidth:
    return serve * (uplink.bandwidth_hz / max(np.count_nonzero(serve), 1))


def _end_together(
    uplink: Uplink,
    serve: Mask,
    bits: PerUe,
    compute_s: PerUe,
    least_hz: Bandwidth | None = None,
) -> Bandwidth:
    """Share the band so that the served UEs finish together; the others keep ``least_hz``, or 0 without it."""
    if not serve.any():
        return np.zeros(serve.size)
    least_hz = np.zeros(serve.size) if least_hz is None else least_hz
    band = uplink.bandwidth_hz - least_hz[~serve].sum()
    signal, link, bits = _signal(uplink, serve), uplink.link, bits[serve]
    if isinstance(link, Steps):
        bits = np.maximum(bits, finish.NO_BITS)
        found = stepped.finish_together(link, band, signal, bits, compute_s[serve], least_hz[serve])
        return _spread(serve, found)
    most = np.inf if uplink.most_bits_per_s_hz is None else uplink.most_bits_per_s_hz * LN2
    if link is not None:  # a share of Shannon's rate takes as long as all of it does for more bits
        bits, most = bits / link.share, link.most / link.share * LN2
    return _spread(serve, finish.finish_together(band, signal, bits, compute_s[serve], least_hz[serve], most))


def _spread(serve: Mask, bandwidth: Array) -> Bandwidth:
    """Return the bandwidths of the served UEs, with 0 for the others."""
    of_all = np.zeros(serve.size)
    of_all[serve] = bandwidth
    return of_all


def _signal(uplink: Uplink, serve: Mask) -> Array:
    signal = uplink.signal_hz[serve]
    if not signal.min() > 0:
        ue = int(np.flatnonzero(serve)[~(signal > 0)][0])
        raise ValueError(
            f"UE {ue} has a signal of {uplink.signal_hz[ue]} Hz in round {uplink.round} and can send nothing on any "
            f"bandwidth; expected a signal above 0."
        )
    return signal


def _at_fairness(target: Array, snr: Array) -> tuple[Array, Array]:
    """Return the x with φ(x) = target, from a guess, and the slope of ln φ against ln x.

    The slope lies between 1 and 2, so Newton's method converges quickly.
    """
    slope, target = np.ones(snr.size), np.log(target)
    for _ in range(MAX_STEPS):
        value, slope = _log_fairness(snr)
        step = (target - value) / slope
        snr = snr * np.exp(step)
        if np.abs(step).max() < 1e-7:  # its square is below float64 precision
            break
    return snr, slope


def _log_fairness(snr: Array) -> tuple[Array, Array]:
    """Return ln φ(x) of ``proportional_fair``, and its slope against ln x."""
    log = np.log1p(snr)
    gain = (1 + snr) * log - snr
    weak = snr < 1e-2
    if weak.any():  # x²/2 − x³/6 + x⁴/12 − …
        x = snr[weak]
        gain[weak] = x * x * (1 / 2 - x * (1 / 6 - x * (1 / 12 - x * (1 / 20 - x * (1 / 30 - x * (1 / 42 - x / 56))))))
    share = snr / (1 + snr)
    return np.log(share * gain / log), 1 + snr * log / gain - share - share / log
