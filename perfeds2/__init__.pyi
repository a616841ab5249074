"""The public names of the package, and where each is defined. ``__init__.py`` reads them here, and type checkers do."""

from typing import Final

from perfeds2.allocation.bandwidth import Allocation as Allocation
from perfeds2.allocation.bandwidth import Uplink as Uplink
from perfeds2.allocation.bandwidth import between as between
from perfeds2.allocation.bandwidth import equal_finish as equal_finish
from perfeds2.allocation.bandwidth import equal_share as equal_share
from perfeds2.allocation.schedule import by_distance as by_distance
from perfeds2.allocation.schedulers import Moment as Moment
from perfeds2.api import compare as compare
from perfeds2.errors import InputError as InputError
from perfeds2.learning import methods as methods
from perfeds2.learning.datasets import digits as digits
from perfeds2.learning.datasets import synthetic as synthetic
from perfeds2.learning.evaluate import evaluate as evaluate
from perfeds2.learning.learner import Learner as Learner
from perfeds2.learning.merges import Arrived as Arrived
from perfeds2.learning.merges import Mean as Mean
from perfeds2.learning.merges import Merge as Merge
from perfeds2.learning.merges import Optax as Optax
from perfeds2.learning.method import Method as Method
from perfeds2.learning.method import Rounds as Rounds
from perfeds2.learning.methods.fedbuff import FedBuff as FedBuff
from perfeds2.learning.models.model import Model as Model
from perfeds2.learning.models.model import mean_loss as mean_loss
from perfeds2.learning.objectives import FedAvg as FedAvg
from perfeds2.learning.objectives import FedProx as FedProx
from perfeds2.learning.objectives import Objective as Objective
from perfeds2.learning.objectives import PerFed as PerFed
from perfeds2.learning.objectives import descend as descend
from perfeds2.learning.objectives import from_gradient as from_gradient
from perfeds2.learning.partition import ByLabel as ByLabel
from perfeds2.learning.partition import Dirichlet as Dirichlet
from perfeds2.learning.partition import Natural as Natural
from perfeds2.learning.partition import Quantity as Quantity
from perfeds2.learning.replay import replay as replay
from perfeds2.learning.task import Task as Task
from perfeds2.learning.task import payload_bits as payload_bits
from perfeds2.network.cell import Cell as Cell
from perfeds2.network.radios import RADIOS as RADIOS
from perfeds2.network.radios import Radio as Radio
from perfeds2.privacy.accounting import noise_for as noise_for
from perfeds2.privacy.accounting import privacy_loss as privacy_loss
from perfeds2.report.run import write_paper_figures as write_paper_figures
from perfeds2.runs.comparison import Comparison as Comparison
from perfeds2.spec.resolve import spec_from as spec_from
from perfeds2.spec.stage import Algorithm as Algorithm
from perfeds2.studies.arena import arena as arena
from perfeds2.studies.plan import plan as plan
from perfeds2.studies.sweep import load_sweep as load_sweep
from perfeds2.studies.sweep import sweep as sweep
from perfeds2.studies.tune import tune as tune
from perfeds2.timeline.protocol import Protocol as Protocol
from perfeds2.timeline.record import Timeline as Timeline
from perfeds2.timeline.simulate import simulate as simulate

__version__: Final[str]
__all__: list[str]  # type: ignore[reportUnsupportedDunderAll]  # the names above
_NAMES: Final[dict[str, str]]  # the module of each name
