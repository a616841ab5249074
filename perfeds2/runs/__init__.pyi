"""The public names of this package, for studies of your own."""

from perfeds2.runs.pool import PROCESSES as PROCESSES
from perfeds2.runs.progress import Board as Board
from perfeds2.runs.progress import Reporter as Reporter
from perfeds2.runs.progress import Tail as Tail
from perfeds2.runs.store import TRAININGS as TRAININGS
from perfeds2.runs.store import Store as Store
from perfeds2.runs.store import save_arrays as save_arrays
from perfeds2.runs.table import summarise_point as summarise_point
from perfeds2.runs.table import write_csv as write_csv
from perfeds2.runs.training import Training as Training
from perfeds2.runs.training import trainings_of as trainings_of

__all__: list[str]  # type: ignore[reportUnsupportedDunderAll]  # the names above
