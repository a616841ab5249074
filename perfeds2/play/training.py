"""Train the three cells, and report their accuracy over simulated time as it becomes known.

One training runs at a time, in a thread. The cells are trained in turns of one evaluation, so that their curves grow
together along simulated time. Training and evaluation match ``perfeds2 compare`` bit for bit.
"""

import threading
from collections.abc import Iterator
from itertools import zip_longest

from perfeds2.errors import InputError
from perfeds2.play.knobs import Answer, Keywords
from perfeds2.play.rounds import without_nan

SHOWN = ("test_accuracy_personal", "test_accuracy")


class Trainer:
    """Runs one training at a time in a thread. Can be asked for its state at any time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._rows: list[Answer] = []
        self._number = 0
        self._known: Answer = {"number": 0, "doing": "nothing", "sentence": "", "horizon_s": None}

    def start(self, settings: Keywords) -> int:
        """Start a training and return its number.

        Raises:
            InputError: Another training is running.
        """
        with self._lock:
            if self._thread is not None and self._thread.is_alive():
                raise InputError("a training is already running; stop it first.")
            self._number += 1
            self._known = {"number": self._number, "doing": "preparing", "sentence": ""}
            self._known["horizon_s"] = settings.get("horizon_s")
            self._rows, self._stop = [], threading.Event()
            self._thread = threading.Thread(target=self._train, args=(dict(settings), self._stop), daemon=True)
            self._thread.start()
            return self._number

    def stop(self) -> None:
        """Stop the training at its next evaluation."""
        with self._lock:
            self._stop.set()

    def join(self, seconds: float) -> None:
        if self._thread is not None:
            self._thread.join(seconds)

    def since(self, row: int) -> Answer:
        """Return the state of the training, and its evaluations from row ``row`` on."""
        with self._lock:
            return self._known | {"first": row, "rows": self._rows[max(row, 0) :]}

    def _train(self, settings: Keywords, stop: threading.Event) -> None:
        end: Answer = {"doing": "done"}
        try:
            for row in train_in_turns(settings):
                with self._lock:
                    if stop.is_set():
                        end = {"doing": "stopped"}
                        break
                    self._rows.append(row)
                    self._known["doing"] = "training"
        except Exception as error:
            end = {"doing": "failed", "sentence": " ".join(str(error).split()) or type(error).__name__}
        with self._lock:
            self._known |= end


def train_in_turns(settings: Keywords) -> Iterator[Answer]:
    """Train all algorithms in turns of one evaluation, and yield a row for each evaluation."""
    from perfeds2.runs.trainer import Workbench, train_alone
    from perfeds2.runs.training import trainings_of
    from perfeds2.spec.resolve import spec_from

    prepared = map(Workbench().prepare, trainings_of(spec_from(**settings)))
    for number, turn in enumerate(zip_longest(*(train_alone(one) for one in prepared))):
        for one, state in filter(None, turn):
            row = {"mode": one.algorithm.mode, "algorithm": one.algorithm.name, "time_s": one.points[number].time_s}
            yield without_nan(row | {name: state.values[number][name] for name in SHOWN})
