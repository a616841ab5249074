"""Compute how many bits a recorded uplink carries, and when an upload on it ends.

A trace is a piecewise constant rate. After its end it repeats, or its last rate holds forever. The bits sent are the
integral of the rate, and the duration of an upload is the inverse of that integral; both are exact and vectorized
over UEs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from jaxtyping import Float, Int

TraceEnd = Literal["repeat", "hold"]
MAX_BPS = 1e18
PerUe = Float[np.ndarray, " m"]
Steps = Int[np.ndarray, " m"]  # of each trace, as indices into the joined arrays
Joined = Float[np.ndarray, " j"]  # values of all traces, one after the other


@dataclass(frozen=True)
class Trace:
    """The rates of one uplink, each valid until the next time; the last one lasts as long as the one before it."""

    time_s: Float[np.ndarray, " k"]  # starts at 0 and increases
    bps: Float[np.ndarray, " k"]

    def __post_init__(self) -> None:
        if self.time_s.shape != self.bps.shape or self.time_s.ndim != 1 or not self.time_s.size:
            raise ValueError(f"a trace needs as many rates as seconds, got {self.bps.shape} and {self.time_s.shape}.")
        rises = np.diff(self.time_s, prepend=-1.0) > 0
        if self.time_s[0] != 0 or not rises.all() or not np.isfinite(self.time_s).all():
            raise ValueError(f"its times must start at 0 and increase, got {self.time_s[: rises.argmin() + 1][-3:]}.")
        wrong = ~((self.bps >= 0) & (self.bps <= MAX_BPS))
        if wrong.any() or not self.bps.any():
            raise ValueError(
                f"its rates must be from 0 to {MAX_BPS:g} bit/s and not all 0, got {self.bps[wrong.argmax()]:g}."
            )

    @property
    def lasts_s(self) -> float:
        """Length of the trace, after which it repeats."""
        return float(2 * self.time_s[-1] - self.time_s[-2]) if self.time_s.size > 1 else 1.0


class Traces:
    """The traces of several UEs, evaluated together."""

    def __init__(self, ues: Sequence[int], traces: Sequence[Trace], end: TraceEnd = "repeat") -> None:
        silent = [ue for ue, trace in zip(ues, traces, strict=True) if trace.bps[-1] == 0]
        if end == "hold" and silent:
            raise ValueError(
                f"the trace of UE {silent[0]} ends with 0 bit/s, which --trace-end hold would keep forever; use repeat."
            )
        self.ues: Int[np.ndarray, " m"] = np.array(ues, np.int64)
        self.traces = tuple(traces)
        self.end: TraceEnd = end
        sizes = [trace.time_s.size + 1 for trace in traces]  # including the end
        self._last = np.cumsum(sizes) - 1  # index of each trace's end in the joined arrays
        self._first = self._last - np.array(sizes) + 1
        at_s = [np.append(trace.time_s, trace.lasts_s) for trace in traces]
        bits = [np.cumsum(trace.bps * np.diff(own_s)) for trace, own_s in zip(traces, at_s, strict=True)]
        self._at_s = np.concatenate(at_s)
        self._bits = np.concatenate([np.append(0.0, own) for own in bits])  # bits carried by each time
        self._bps = np.concatenate([np.append(trace.bps, trace.bps[-1]) for trace in traces])
        self._period_s, self._period_bits = self._at_s[self._last], self._bits[self._last]
        # A single search finds the steps of all traces: the keys of trace i lie between i and i + 1.
        self._number, own = np.arange(len(sizes)), np.repeat(np.arange(len(sizes)), sizes)
        self._key_s, self._key_bits = own + self._at_s / self._period_s[own], own + self._bits / self._period_bits[own]

    @cached_property
    def mean_bps(self) -> PerUe:
        """Mean rate over the length of each trace."""
        return self._period_bits / self._period_s

    def rate_bps(self, time_s: float) -> PerUe:
        """Return the rates at a time."""
        _, phase_s = self._phase(np.full(self.ues.size, time_s))
        return self._bps[self._place(phase_s)]

    def carried(self, since_s: PerUe, until_s: PerUe) -> PerUe:
        """Return the bits carried between two times; 0 if the second is earlier."""
        until_s = np.maximum(since_s, until_s)
        (before, early_s), (periods, late_s) = self._phase(since_s), self._phase(until_s)
        return (periods - before) * self._period_bits + (self._until(late_s) - self._until(early_s))

    def done_s(self, since_s: PerUe, bits: PerUe) -> PerUe:
        """Return when this many bits have been carried, starting at these times."""
        periods, phase_s = self._phase(since_s)
        wanted = self._until(phase_s) + bits
        if self.end == "repeat":
            more = np.ceil(wanted / self._period_bits) - 1  # an upload that ends with the trace needs no repetition
            more = np.maximum(more, 0.0)
            wanted = np.maximum(wanted - more * self._period_bits, 0.0)
            periods = periods + more
        place = self._last_below(np.less, self._bits, self._key_bits, wanted, self._period_bits)
        with np.errstate(divide="ignore", invalid="ignore"):
            rest_s = np.where(wanted > self._bits[place], (wanted - self._bits[place]) / self._bps[place], 0.0)
        return np.maximum(periods * self._period_s + (self._at_s[place] + rest_s), since_s)

    def _phase(self, time_s: PerUe) -> tuple[PerUe, PerUe]:
        """Return how often each trace has repeated by then, and the time within it."""
        if self.end == "hold":
            return np.zeros(time_s.size), time_s
        periods = np.floor(time_s / self._period_s)
        return periods, np.clip(time_s - periods * self._period_s, 0.0, self._period_s)

    def _until(self, phase_s: PerUe) -> PerUe:
        """Return the bits that each trace has carried by a time within it."""
        place = self._place(phase_s)
        return self._bits[place] + self._bps[place] * (phase_s - self._at_s[place])

    def _place(self, phase_s: PerUe) -> Steps:
        """Return the step of each trace that contains a time: the last one that begins by then."""
        return self._last_below(np.less_equal, self._at_s, self._key_s, phase_s, self._period_s)

    def _last_below(self, below: np.ufunc, starts: Joined, keys: Joined, value: PerUe, period: PerUe) -> Steps:
        """Return the last step of each trace whose start is below a value: a search, then a correction of its rounding."""
        place = np.clip(np.searchsorted(keys, self._number + value / period) - 1, self._first, self._last)
        while (more := (place < self._last) & below(starts[np.minimum(place + 1, self._last)], value)).any():
            place = place + more
        while (less := (place > self._first) & ~below(starts[place], value)).any():
            place = place - less
        return place
