"""The names of the package, and where each is defined. ``__init__.py`` reads them here, and type checkers do."""

from typing import Final

from perfeds2.allocation.bandwidth import Uplink as Uplink
from perfeds2.allocation.bandwidth import equal_share as equal_share
from perfeds2.learning.datasets import digits as digits
from perfeds2.learning.datasets import synthetic as synthetic
from perfeds2.learning.evaluate import evaluate as evaluate
from perfeds2.learning.objectives import FedAvg as FedAvg
from perfeds2.learning.objectives import FedProx as FedProx
from perfeds2.learning.objectives import PerFed as PerFed
from perfeds2.learning.replay import Learner as Learner
from perfeds2.learning.replay import replay as replay
from perfeds2.learning.task import Task as Task
from perfeds2.network.cell import Cell as Cell
from perfeds2.runs.comparison import Comparison as Comparison
from perfeds2.spec.build import Algorithm as Algorithm
from perfeds2.studies.compare import compare as compare
from perfeds2.studies.plan import plan as plan
from perfeds2.studies.sweep import sweep as sweep
from perfeds2.studies.tune import tune as tune
from perfeds2.timeline.protocol import Protocol as Protocol
from perfeds2.timeline.record import Timeline as Timeline
from perfeds2.timeline.simulate import simulate as simulate

__version__: Final[str]
__all__: list[str]  # type: ignore[reportUnsupportedDunderAll]  # the names above
_NAMES: Final[dict[str, str]]  # a name's module
