"""How good is the model after each simulated second, as it comes?

One training at a time, in a thread. The three cells are trained in turns, an evaluation each, so that their curves grow
together along simulated time. What is trained and evaluated is what ``perfeds2 compare`` does, to the last bit.
"""

import threading
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from perfeds2.errors import InputError
from perfeds2.play.rounds import without_nan

Row = dict[str, Any]
Doing = Literal["nothing", "preparing", "training", "done", "stopped", "failed"]
SHOWN = ("test_accuracy_personal", "test_accuracy")


class Trainer:
    """Trains what it is told to, until it is told to stop. Can be asked at any time what there is."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._number = 0  # of the training
        self._rows: list[Row] = []
        self._horizon_s: Any = None
        self._doing: Doing = "nothing"
        self._sentence = ""

    def start(self, settings: Mapping[str, Any]) -> int:
        """Begin a training. Refused while another one goes on. Returns its number."""
        with self._lock:
            if self._thread is not None and self._thread.is_alive():
                raise InputError("a training goes on already; stop it first.")
            self._number += 1
            self._horizon_s = settings.get("horizon_s")
            self._rows, self._doing, self._sentence, self._stop = [], "preparing", "", threading.Event()
            self._thread = threading.Thread(target=self._train, args=(dict(settings), self._stop), daemon=True)
            self._thread.start()
            return self._number

    def stop(self) -> None:
        """End the training at its next evaluation."""
        with self._lock:
            self._stop.set()

    def join(self, seconds: float) -> None:
        thread = self._thread
        if thread is not None:
            thread.join(seconds)

    def since(self, row: int) -> Row:
        """What there is from a row on."""
        with self._lock:
            known = {"number": self._number, "doing": self._doing, "sentence": self._sentence}
            known |= {"horizon_s": self._horizon_s}
            return known | {"first": row, "rows": [dict(each) for each in self._rows[max(row, 0) :]]}

    def _train(self, settings: Mapping[str, Any], stop: threading.Event) -> None:
        try:
            for row in train_in_turns(settings):
                with self._lock:
                    if not stop.is_set():
                        self._rows.append(row)
                        self._doing = "training"
                if stop.is_set():
                    return self._end("stopped")
            return self._end("done")
        except Exception as error:
            return self._end("failed", f"{error}" or type(error).__name__)

    def _end(self, doing: Doing, sentence: str = "") -> None:
        with self._lock:
            self._doing, self._sentence = doing, " ".join(sentence.split())


def train_in_turns(settings: Mapping[str, Any]) -> Iterator[Row]:
    """Train every algorithm, an evaluation each in turn, and give its row."""
    from perfeds2.learning.train import evaluation_points, train
    from perfeds2.spec.build import Stage, make_algorithms, make_task, make_timelines
    from perfeds2.spec.resolve import spec_from

    spec = spec_from(**settings)
    seed, run = spec.run.seeds[0], spec.run
    task, stage = make_task(spec, seed), Stage.of(spec, seed)
    algorithms, courses = make_algorithms(spec, stage), []
    for algorithm, timeline in zip(algorithms, make_timelines(spec, stage, algorithms), strict=True):
        points = evaluation_points(timeline, horizon_s=run.horizon_s, every_s=run.eval_every_s)
        courses.append((algorithm, points, train(task, timeline, algorithm.learner, points, seed=seed)))
    for turn in range(max(len(points) for _, points, _ in courses)):
        for algorithm, points, course in courses:
            if turn < len(points):
                values = next(course).values[turn]
                row = {"mode": algorithm.mode, "algorithm": algorithm.name, "time_s": points[turn].time_s}
                yield without_nan(row | {name: values[name] for name in SHOWN})
