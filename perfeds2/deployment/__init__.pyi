"""The public names of this package, for models and transports of your own."""

from perfeds2.deployment.device import compute_job as compute_job
from perfeds2.deployment.device import do_job as do_job
from perfeds2.deployment.device import evaluate_here as evaluate_here
from perfeds2.deployment.merging import StartModel as StartModel
from perfeds2.deployment.merging import merged as merged
from perfeds2.deployment.own import EquinoxModel as EquinoxModel
from perfeds2.deployment.own import own_samples as own_samples
from perfeds2.deployment.record import MergedUpdate as MergedUpdate
from perfeds2.deployment.record import Record as Record
from perfeds2.deployment.server import serve as serve
from perfeds2.deployment.setup import Setup as Setup
from perfeds2.deployment.transport import Changes as Changes
from perfeds2.deployment.transport import Presence as Presence
from perfeds2.deployment.transport import Reply as Reply
from perfeds2.deployment.transport import Request as Request
from perfeds2.deployment.transport import Transport as Transport
from perfeds2.deployment.validate import form_of as form_of
from perfeds2.deployment.validate import wrong_update as wrong_update
from perfeds2.timeline.protocol import assign_model as assign_model
from perfeds2.timeline.protocol import close_round as close_round
from perfeds2.timeline.protocol import end_jobs as end_jobs
from perfeds2.timeline.protocol import open_server as open_server
from perfeds2.timeline.record import save_timelines as save_timelines

__all__: list[str]  # type: ignore[reportUnsupportedDunderAll]  # the names above
