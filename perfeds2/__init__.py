"""Time-aware federated learning for mobile edge networks.

The names below are imported when they are first used, so that ``import perfeds2`` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from perfeds2.allocation.bandwidth import Uplink, equal_share
    from perfeds2.learning.datasets import digits, synthetic
    from perfeds2.learning.evaluate import evaluate
    from perfeds2.learning.objectives import FedAvg, FedProx, PerFed
    from perfeds2.learning.replay import Learner, replay
    from perfeds2.learning.task import Task
    from perfeds2.network.cell import Cell
    from perfeds2.planning.plan import plan
    from perfeds2.runs.execute import Comparison, compare
    from perfeds2.runs.sweep import sweep
    from perfeds2.spec.build import Algorithm
    from perfeds2.timeline.rounds import Protocol
    from perfeds2.timeline.simulate import simulate
    from perfeds2.timeline.timeline import Timeline

_HOME = {
    "Cell": "network.cell",
    "Uplink": "allocation.bandwidth",
    "equal_share": "allocation.bandwidth",
    "Protocol": "timeline.rounds",
    "Timeline": "timeline.timeline",
    "simulate": "timeline.simulate",
    "Task": "learning.task",
    "digits": "learning.datasets",
    "synthetic": "learning.datasets",
    "FedAvg": "learning.objectives",
    "FedProx": "learning.objectives",
    "PerFed": "learning.objectives",
    "Learner": "learning.replay",
    "replay": "learning.replay",
    "evaluate": "learning.evaluate",
    "Algorithm": "spec.build",
    "compare": "runs.execute",
    "Comparison": "runs.execute",
    "sweep": "runs.sweep",
    "plan": "planning.plan",
}

__all__ = [
    "Algorithm",
    "Cell",
    "Comparison",
    "FedAvg",
    "FedProx",
    "Learner",
    "PerFed",
    "Protocol",
    "Task",
    "Timeline",
    "Uplink",
    "compare",
    "digits",
    "equal_share",
    "evaluate",
    "plan",
    "replay",
    "simulate",
    "sweep",
    "synthetic",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'perfeds2' has no attribute {name!r}")
    return getattr(import_module(f"perfeds2.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
