"""Can a reply be believed? Nothing from the network is trusted."""

import bisect
import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from perfeds2.deployment.transport import Arrays, Reply, Request
from perfeds2.learning.metrics import METRICS

Form = Mapping[str, tuple[tuple[int, ...], np.dtype]]  # name: shape and dtype
CLOCKS = (1.01, 1.0)  # a device's clock may run 1 % faster than ours, and a second is nothing
WORDS = 200  # letters of what a device says that are worth writing down
VOTES = 200  # of the devices heard of last
STANDS_IN = 1 / 10  # of the model's length: a norm that is taken as usual while too few have voted
HARMLESS = 1 / 20  # of the model's length: a norm that is usual whatever the votes say
LARGEST = 1e18  # its square still fits into a float32


def form_of(params: Arrays) -> Form:
    """The names, shapes and dtypes an update of a model must have."""
    return {name: (values.shape, values.dtype) for name, values in params.items()}


def in_words(said: Any) -> str:
    """What a device says, on one line and not too long: it goes into a log that people and programs read."""
    text = said if isinstance(said, str) else repr(said)
    line = "".join(letter if letter.isprintable() else " " for letter in text[:WORDS])
    return line + ("…" if len(text) > WORDS else "")


def refusal(reply: Reply, request: Request, form: Form, elapsed_s: float) -> str | None:
    """Why a reply to a request is refused, in words; None if it can be taken. ``elapsed_s``: since the request went out."""
    if reply.version != request.version:
        return f"answers version {in_words(reply.version)} of a job on version {request.version}"
    if (why := wrong_metrics(reply.metrics)) is not None:
        return why
    if not (_is_number(reply.compute_s) and 0 <= reply.compute_s <= elapsed_s * CLOCKS[0] + CLOCKS[1]):
        return f"reports {in_words(reply.compute_s)} seconds of computing within {elapsed_s:.3f} s"
    if request.kind == "evaluate":
        return None if set(reply.metrics) == set(METRICS) else "lacks metrics"
    if reply.update is None:
        return "has no update"
    return wrong_update(reply.update, form)


def wrong_metrics(metrics: Mapping[str, float]) -> str | None:
    """Losses are at least 0, and not a number or infinite where the model has diverged; accuracies are shares.

    A model whose loss is not finite has no accuracy: then, and only then, that is not a number (``learning/evaluate.py``).
    """
    for name, value in metrics.items():
        if name not in METRICS or not _is_number(value):
            return f"reports {in_words(name)} = {in_words(value)}"
        if "loss" in name and value < 0:
            return f"reports {name} = {value}, expected at least 0"
        if "accuracy" in name and not 0 <= value <= 1:
            loss = metrics.get(name.replace("test_accuracy", "train_loss"), 0.0)
            if not math.isnan(value) or not _is_number(loss) or math.isfinite(loss):
                return f"reports {name} = {value}, expected from 0 to 1"
    return None


def wrong_update(update: Arrays, form: Form) -> str | None:
    if update.keys() != form.keys():
        missing, extra = form.keys() - update.keys(), update.keys() - form.keys()
        return f"lacks arrays {_some(missing)} and has extra {_some(extra)}"
    for name, (shape, dtype) in form.items():
        came = update[name]
        if not isinstance(came, np.ndarray) or came.shape != shape or came.dtype != dtype:
            what = f"{came.dtype}{list(came.shape)}" if isinstance(came, np.ndarray) else type(came).__name__
            return f"has {name} as {what}, expected {dtype}{list(shape)}"
        if not np.isfinite(came).all():
            return f"has numbers in {name} that are not finite"
    return None


def _is_number(value: Any) -> bool:
    return isinstance(value, float | int) and not isinstance(value, bool)


def _some(names: set[str]) -> list[str]:
    return sorted(in_words(name) for name in names)[:3]


# ---- how long an update may be


def norm_of(arrays: Arrays) -> float:
    """‖·‖₂ of all arrays together, in float64; infinite where that overflows."""
    with np.errstate(over="ignore"):
        return math.sqrt(sum(float(np.square(values, dtype=np.float64).sum()) for values in arrays.values()))


class Norms:
    """The bound on the norm of an update: a multiple of what the devices usually send.

    Think of an attacker who is first, or fast, or patient. Every device has one vote, its last accepted norm, so a fast one does
    not move the median alone. Until half of the devices have voted, a step that would move the model by its own length stands
    in for the bound: whoever comes first can do no worse. And a step that would hardly move the model is never refused, so tiny
    votes cannot shut the others out, and neither can honest devices that have little left to learn.
    """

    def __init__(self, ues: int, votes: Iterable[tuple[int, float]] = ()) -> None:
        self.enough = min(ues, max(3, min(math.ceil(ues / 2), VOTES // 2)))
        self.votes: dict[int, float] = {}  # device: norm; who voted longest ago comes first
        self._sorted: list[float] = []
        for ue, norm in votes:
            self.add(ue, norm)

    def add(self, ue: int, norm: float) -> None:
        """An update of this device was accepted. One that moves nothing is no vote."""
        if norm > 0:
            self._take_out(ue)
            self.votes[ue] = norm
            bisect.insort(self._sorted, norm)
            if len(self.votes) > VOTES:
                self._take_out(next(iter(self.votes)))

    def _take_out(self, ue: int) -> None:
        if (norm := self.votes.pop(ue, None)) is not None:
            del self._sorted[bisect.bisect_left(self._sorted, norm)]

    @property
    def median(self) -> float | None:
        """Of the votes; None while there are too few."""
        count = len(self._sorted)
        if count < self.enough:
            return None
        return (self._sorted[(count - 1) // 2] + self._sorted[count // 2]) / 2

    def bound(self, factor: float, length: float, step: float) -> float:
        """The largest norm that is taken, of a model that is so long, when an update of norm 1 moves it by ``step``."""
        if factor == 0:
            return LARGEST
        whole = max(length, 1.0) / step
        usual = STANDS_IN * whole if self.median is None else max(self.median, HARMLESS * whole)
        return min(factor * usual, LARGEST)
