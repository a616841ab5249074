"""Say when uploads fail: outages, and how often an upload has to be sent until it is received without errors."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float

from perfeds2.network.link import Numbers

OutageRule = Literal["wait", "lose"]
STREAM = 19  # random stream: (seed, stream, version, attempt)
MAX_SENT = 100  # the last one is always received
ErrorRule = Literal["discard", "repeat", "harq"]


@dataclass(frozen=True)
class Outage:
    """A rate on the shared band below which an upload waits for a better signal, or is lost."""

    rule: OutageRule
    rate_bps: float


@dataclass(frozen=True)
class Errors:
    """What happens to an upload with errors: it is discarded, or sent again until one is received.

    An upload fails with probability q = 1 − exp(−m·B·N0/(p·g)) (Chen et al., arXiv 1909.07972), where p·g/(B·N0) is the
    signal-to-noise ratio. With ``harq`` the receiver keeps what it has heard and adds it up (chase combining), so the j-th
    transmission has j times the ratio.
    """

    rule: ErrorRule
    margin_db: float = 0.023  # m

    def probability(self, snr: Float[np.ndarray, " h"], transmission: int = 1) -> Float[np.ndarray, " h"]:
        """Return the probability that a transmission of UEs with these ratios fails, given that all before it did."""
        combined = transmission if self.rule == "harq" else 1
        with np.errstate(divide="ignore"):
            return -np.expm1(-(10 ** (self.margin_db / 10)) / (combined * snr))

    def draw(
        self, snr: Float[np.ndarray, " h"], luck: Float[np.ndarray, " h"]
    ) -> tuple[Numbers, Bool[np.ndarray, " h"]]:
        """Return how often each upload is sent, and whether it is lost, by a uniform number for each."""
        failed, sent = self.probability(snr), np.ones(snr.size, np.int64)
        if self.rule == "discard":
            return sent, luck < failed
        while (again := luck < failed).any() and sent.max() < MAX_SENT:
            sent += again
            failed = failed * self.probability(snr, int(sent.max()))
        return sent, np.zeros(snr.size, bool)

    def luck(self, seed: int, ues: Numbers, version: int, attempts: Numbers) -> Float[np.ndarray, " h"]:
        """Return a uniform number for the jobs of UEs on a model version; ``attempts`` counts earlier jobs on it."""
        luck = np.empty(ues.size)
        for attempt in np.unique(attempts).tolist():
            mine = attempts == attempt
            luck[mine] = np.random.default_rng([seed, STREAM, version, attempt]).random(int(ues.max()) + 1)[ues[mine]]
        return luck
