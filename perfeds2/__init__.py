"""Time-aware federated learning for mobile edge networks.

The names below are imported when they are first used, so that ``import perfeds2`` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
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

_NAMES = {  # by the module they are in
    "allocation.bandwidth": ("Uplink", "equal_share"),
    "learning.datasets": ("digits", "synthetic"),
    "learning.evaluate": ("evaluate",),
    "learning.objectives": ("FedAvg", "FedProx", "PerFed"),
    "learning.replay": ("Learner", "replay"),
    "learning.task": ("Task",),
    "network.cell": ("Cell",),
    "studies.plan": ("plan",),
    "runs.comparison": ("Comparison",),
    "studies.sweep": ("sweep",),
    "studies.tune": ("tune",),
    "spec.build": ("Algorithm",),
    "studies.compare": ("compare",),
    "timeline.protocol": ("Protocol",),
    "timeline.simulate": ("simulate",),
    "timeline.record": ("Timeline",),
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}
if not TYPE_CHECKING:  # whose reader takes the names above
    __all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'perfeds2' has no attribute {name!r}")
    return getattr(import_module(f"perfeds2.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return [*_HOME, "__version__"]
