"""List the methods from the literature.

A method is a frozen dataclass: its fields are its settings, with the paper's defaults, and its docstring is its rule.
Related methods share a file. A method is an objective (what a UE computes), a merge (how uploads are merged), or names
one of each as ``objective`` and ``merge``. Class attributes say the rest: ``paper``; ``mode`` and ``rounds``, if they
are not semi-synchronous; and ``search``, the settings that an arena tunes, with the centre of the search if the spec
has no value.
"""

from collections.abc import Callable
from typing import Any

from perfeds2.learning.merges import MEAN, Mean, Merge, OfMean
from perfeds2.learning.methods.buffers import CA2FL, FedBuff
from perfeds2.learning.methods.contrast import MOON
from perfeds2.learning.methods.drafts import SAFA
from perfeds2.learning.methods.drift import FedDyn, Scaffold
from perfeds2.learning.methods.envelopes import PersAFL, PersAFLMoreau, PFedMe
from perfeds2.learning.methods.fairness import QFFL
from perfeds2.learning.methods.layers import FedALA, FedBABU, FedBN, FedPer, FedRep, LGFedAvg
from perfeds2.learning.methods.mixing import AsyncFedED, FedASMU, FedAsync
from perfeds2.learning.methods.optimisers import FADAS, FedAdagrad, FedAdam, FedAvgM, FedYogi
from perfeds2.learning.methods.own_models import APFL, Ditto
from perfeds2.learning.methods.steps import FedCompass, FedNova
from perfeds2.learning.methods.tiers import FedAT, TiFL
from perfeds2.learning.methods.weighing import REFL, SEAFL
from perfeds2.learning.objectives import FedAvg, Objective, Stateful
from perfeds2.learning.robust import ClippedMean, GeometricMedian, Krum, Median, MultiKrum, TrimmedMean

SERVERS: dict[str, type] = {
    "FedBuff": FedBuff,
    "FedAsync": FedAsync,
    "AsyncFedED": AsyncFedED,
    "CA2FL": CA2FL,
    "FADAS": FADAS,
    "SEAFL": SEAFL,
    "FedASMU": FedASMU,
    "REFL": REFL,
    "FedAvgM": FedAvgM,
    "FedAdam": FedAdam,
    "FedYogi": FedYogi,
    "FedAdagrad": FedAdagrad,
}  # methods whose merge any other method can use

METHODS: dict[str, type] = {
    **SERVERS,
    "SCAFFOLD": Scaffold,
    "FedDyn": FedDyn,
    "FedNova": FedNova,
    "MOON": MOON,
    "q-FFL": QFFL,
    "pFedMe": PFedMe,
    "Ditto": Ditto,
    "APFL": APFL,
    "PersA-FL": PersAFL,
    "PersA-FL-ME": PersAFLMoreau,
    "FedRep": FedRep,
    "FedPer": FedPer,
    "FedBABU": FedBABU,
    "LG-FedAvg": LGFedAvg,
    "FedBN": FedBN,
    "FedALA": FedALA,
    "SAFA": SAFA,
    "TiFL": TiFL,
    "FedAT": FedAT,
    "FedCompass": FedCompass,
}

ROBUST: dict[str, type] = {
    "median": Median,
    "trimmed-mean": TrimmedMean,
    "geometric-median": GeometricMedian,
    "krum": Krum,
    "multi-krum": MultiKrum,
    "clipped-mean": ClippedMean,
}  # merges that withstand hostile uploads

MERGES: dict[str, Callable[..., Merge | OfMean]] = {"mean": Mean, **SERVERS, **ROBUST}


def parts_of(method: Any) -> tuple[Objective | Stateful, Merge | OfMean]:
    """Return a method's objective and merge; each is the method itself unless it names another."""
    objective = getattr(method, "objective", method if hasattr(method, "batches") else FedAvg())
    merge = getattr(method, "merge", method if hasattr(method, "init") else MEAN)
    return objective, merge
