"""List the methods from the literature.

A method is a frozen dataclass: its fields are its settings, with the paper's defaults, and its docstring is its rule.
Each has a file of its own, or shares one with a variant. It is an objective (what a UE computes), a merge (how uploads
are merged), or names one of each as ``objective`` and ``merge``, and it may plan its ``rounds``. Class attributes say the
rest: ``paper``; ``mode``, if it is not semi-synchronous; and ``search``, the settings that an arena tunes, with the centre
of the search if the spec has no value.
"""

from perfeds2.learning.merges import MEAN, Mean, Merge
from perfeds2.learning.method import Method
from perfeds2.learning.methods.apfl import APFL
from perfeds2.learning.methods.asyncfeded import AsyncFedED
from perfeds2.learning.methods.baselines import Local, MostFrequentLabel, NoTraining
from perfeds2.learning.methods.ca2fl import CA2FL
from perfeds2.learning.methods.ditto import Ditto
from perfeds2.learning.methods.fadas import FADAS
from perfeds2.learning.methods.fedala import FedALA
from perfeds2.learning.methods.fedasmu import FedASMU
from perfeds2.learning.methods.fedasync import FedAsync
from perfeds2.learning.methods.fedat import FedAT
from perfeds2.learning.methods.fedavgm import FedAvgM
from perfeds2.learning.methods.fedbabu import FedBABU
from perfeds2.learning.methods.fedbn import FedBN
from perfeds2.learning.methods.fedbuff import FedBuff
from perfeds2.learning.methods.fedcompass import FedCompass
from perfeds2.learning.methods.feddyn import FedDyn
from perfeds2.learning.methods.fednova import FedNova
from perfeds2.learning.methods.fedopt import FedAdagrad, FedAdam, FedYogi
from perfeds2.learning.methods.fedrep import FedPer, FedRep
from perfeds2.learning.methods.lg_fedavg import LGFedAvg
from perfeds2.learning.methods.moon import MOON
from perfeds2.learning.methods.persa_fl import PersAFL, PersAFLMoreau
from perfeds2.learning.methods.pfedme import PFedMe
from perfeds2.learning.methods.qffl import QFFL
from perfeds2.learning.methods.refl import REFL
from perfeds2.learning.methods.safa import SAFA
from perfeds2.learning.methods.scaffold import Scaffold
from perfeds2.learning.methods.seafl import SEAFL
from perfeds2.learning.methods.tifl import TiFL
from perfeds2.learning.objectives import FedAvg, Objective
from perfeds2.learning.robust import ClippedMean, GeometricMedian, Krum, Median, MultiKrum, TrimmedMean

SERVERS: dict[str, type[Merge]] = {
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

METHODS: dict[str, type[Method]] = {
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

BASELINES: dict[str, type[Method]] = {
    "Local": Local,
    "NoTraining": NoTraining,
    "MostFrequentLabel": MostFrequentLabel,
}  # what a UE reaches without the others

LISTED: dict[str, type[Method]] = {**METHODS, **BASELINES}

ROBUST: dict[str, type[Merge]] = {
    "median": Median,
    "trimmed-mean": TrimmedMean,
    "geometric-median": GeometricMedian,
    "krum": Krum,
    "multi-krum": MultiKrum,
    "clipped-mean": ClippedMean,
}  # merges that withstand hostile uploads

MERGES: dict[str, type[Merge]] = {"mean": Mean, **SERVERS, **ROBUST}


def parts_of(method: Method) -> tuple[Objective, Merge]:
    """Return a method's objective and merge, or the plain gradient and the mean."""
    objective, merge = method.objective, method.merge
    return FedAvg() if objective is None else objective, MEAN if merge is None else merge
