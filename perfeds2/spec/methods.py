"""Which methods of the literature have a name here? docs/methods.md says what each is, and where its twin and its tests are.

A method is what a UE computes, how its upload is merged, and in which rounds. What all methods have (batch, β, local steps,
quorum) is the comparison's, so that all run on equal terms; what only a method has comes from its paper. A method that decides
who is merged when has rounds of its own.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

from perfeds2.learning.keeping import APFL, Ditto, FedPer, FedRep, Keeping, PFedMe, Scaffold
from perfeds2.learning.merges import (
    CA2FL,
    FADAS,
    AsyncFedED,
    FedAsync,
    FedOpt,
    Mean,
    Merge,
    Momentum,
    OfMean,
    Stale,
    WithControl,
)
from perfeds2.learning.objectives import OBJECTIVES, FedAvg, FedProx, Moreau, Objective, PerFed
from perfeds2.learning.tier_merges import ByTier, Cached
from perfeds2.spec.modes import MODES, algorithm_name


@dataclass(frozen=True)
class Combination:
    """What a UE computes, in which rounds, and how it is merged. Each part is called with the learning settings it names."""

    objective: Callable[..., Objective | Keeping]
    mode: str
    merge: Callable[..., Merge | OfMean] = Mean
    rounds: Literal["one tier", "all tiers", "draft"] | None = None  # of its own; None: those of the mode


METHODS = {
    "FedBuff": Combination(FedAvg, "S2", Stale),
    "FedAsync": Combination(FedProx, "ASY", FedAsync),
    "AsyncFedED": Combination(FedAvg, "ASY", AsyncFedED),
    "CA2FL": Combination(FedAvg, "S2", CA2FL),
    "FADAS": Combination(FedAvg, "S2", FADAS),
    "FedAvgM": Combination(FedAvg, "S2", Momentum),
    "FedAdam": Combination(FedAvg, "S2", partial(FedOpt, "adam")),
    "FedYogi": Combination(FedAvg, "S2", partial(FedOpt, "yogi")),
    "FedAdagrad": Combination(FedAvg, "S2", partial(FedOpt, "adagrad", first_decay=0.0)),
    "SCAFFOLD": Combination(Scaffold, "S2", WithControl),
    "pFedMe": Combination(PFedMe, "S2"),
    "Ditto": Combination(Ditto, "S2"),
    "APFL": Combination(APFL, "S2"),
    "PersA-FL": Combination(PerFed, "ASY", partial(Stale, "constant")),
    "PersA-FL-ME": Combination(Moreau, "ASY", partial(Stale, "constant")),
    "FedRep": Combination(FedRep, "S2"),
    "FedPer": Combination(FedPer, "S2"),
    "SAFA": Combination(FedAvg, "S2", Cached, rounds="draft"),
    "TiFL": Combination(FedAvg, "SYN", rounds="one tier"),
    "FedAT": Combination(FedProx, "ASY", ByTier, rounds="all tiers"),
}

ALGORITHMS = {
    algorithm_name(name, mode): Combination(OBJECTIVES[name], mode) for mode in MODES for name in OBJECTIVES
} | METHODS
