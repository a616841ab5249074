"""Validate replies. Nothing from the network is trusted."""

import math
import statistics
from collections.abc import Iterable, Mapping

import numpy as np

from perfeds2.deployment.transport import Arrays, Reply, Request
from perfeds2.learning.metrics import METRICS

Form = Mapping[str, tuple[tuple[int, ...], np.dtype]]  # name: (shape, dtype)
CLOCKS = (1.01, 1.0)  # a device's clock may run 1 % fast, plus 1 s of tolerance
REASONS = {"answers": "wrong job", "reports": "wrong report", "lacks": "missing part", "has": "wrong update"}
WORDS = 200  # longest text of a device that is logged, in characters
VOTES = 200  # number of most recent voters that count
STANDS_IN = 1 / 10  # of the model's norm: the usual norm until enough devices have voted
LARGEST_LOSS = 1e6  # that a schedule looks at
LARGEST = 1e18  # its square still fits into float32


def form_of(params: Arrays) -> Form:
    """Return the names, shapes and dtypes that an update of a model must have."""
    return {name: (values.shape, values.dtype) for name, values in params.items()}


def row_of(arrays: Arrays) -> np.ndarray:
    """Return the numbers of all arrays, in the order of their names."""
    return np.concatenate([arrays[name].ravel() for name in sorted(arrays)])


def arrays_of(row: np.ndarray, form: Form) -> dict[str, np.ndarray]:
    """Return the arrays of a row of their numbers."""
    names = sorted(form)
    parts = np.split(row, np.cumsum([math.prod(form[name][0]) for name in names])[:-1])
    return {name: part.reshape(form[name][0]).astype(form[name][1]) for name, part in zip(names, parts, strict=True)}


def bits_of(form: Form) -> int:
    """Return the bits of an update's numbers, without a header."""
    return 8 * sum(math.prod(shape) * dtype.itemsize for shape, dtype in form.values())


def in_words(said: object) -> str:
    """Return what a device said as one line of bounded length that is safe to log."""
    text = said if isinstance(said, str) else repr(said)
    line = "".join(letter if letter.isprintable() else " " for letter in text[:WORDS])
    return line + ("…" if len(text) > WORDS else "")


def refusal(
    reply: Reply, request: Request, form: Form, elapsed_s: float, *, hidden: bool = False, asked: bool = False
) -> str | None:
    """Return why a reply is refused, or None if it is valid.

    Args:
        reply: The reply to validate.
        request: The outstanding request with the same ticket.
        form: Names, shapes and dtypes that an update must have.
        elapsed_s: Seconds since the request was sent.
        hidden: Whether devices mask their updates, which are validated elsewhere.
        asked: Whether the schedule uses the reported loss.
    """
    if reply.version != request.version:
        return f"answers version {in_words(reply.version)} of a job on version {request.version}"
    if (why := wrong_metrics(reply.metrics)) is not None:
        return why
    loss = reply.metrics.get("train_loss", math.nan)
    if asked and request.kind == "train" and not 0 <= loss <= LARGEST_LOSS:
        return f"reports train_loss = {loss}, but the schedule needs one from 0 to {LARGEST_LOSS:g}"
    if not (_is_number(reply.compute_s) and 0 <= reply.compute_s <= elapsed_s * CLOCKS[0] + CLOCKS[1]):
        return f"reports {in_words(reply.compute_s)} seconds of computing within {elapsed_s:.3f} s"
    if request.kind == "evaluate":
        return None if set(reply.metrics) == set(METRICS) else "lacks metrics"
    if hidden:
        return None
    if reply.update is None:
        return "has no update"
    return wrong_update(reply.update, form)


def reason_of(why: str) -> str:
    """Return the kind of a refusal, by its verb: there are five kinds, whatever a device sends."""
    return next((REASONS[word] for word in why.split() if word in REASONS), "other")


def wrong_metrics(metrics: Mapping[str, float]) -> str | None:
    """Return why reported metrics are refused, or None if they are valid.

    Losses must be at least 0, or NaN or infinite if the model has diverged. Accuracies must be from 0 to 1; one may be
    NaN only if its loss is not finite (``learning/evaluate.py``).
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
    norm = norm_of(update)
    return None if norm <= LARGEST else f"has norm {norm:.4g}, above the bound {LARGEST:g}"


def _is_number(value: object) -> bool:
    return isinstance(value, float | int) and not isinstance(value, bool)


def _some(names: set[str]) -> list[str]:
    return sorted(in_words(name) for name in names)[:3]


# ---- the bound on norms


def norm_of(arrays: Arrays) -> float:
    """Return ‖·‖₂ of all arrays together, in float64; infinite on overflow."""
    with np.errstate(over="ignore"):
        return math.sqrt(sum(float(np.square(values, dtype=np.float64).sum()) for values in arrays.values()))


def shortened(update: Arrays, scale: float) -> Arrays:
    """Return an update times a factor, computed in float64 so that the server and a replay get the same bits.

    A factor of 0 gives zeros, also for an update that is not finite.
    """
    if scale == 0:
        return {name: np.zeros_like(values) for name, values in update.items()}
    return {name: (values * np.float64(scale)).astype(values.dtype) for name, values in update.items()}


class Norms:
    """The norm that updates are clipped to: a multiple of what devices usually send.

    It must withstand an attacker who is first, fast or patient:

    - Each device has one vote, the norm that it sent last, so a fast device cannot move the median alone.
    - Until half of the devices have voted (at least 3, at most 100), the bound is fixed: with the default factor of
      10, a step as long as the model itself. The first sender can do no worse.
    """

    def __init__(self, ues: int, votes: Iterable[tuple[int, float]] = ()) -> None:
        self.enough = min(ues, max(3, min(math.ceil(ues / 2), VOTES // 2)))
        self.votes: dict[int, float] = {}  # norm by device, oldest vote first
        for ue, norm in votes:
            self.add(ue, norm)

    def add(self, ue: int, norm: float) -> None:
        """Count the norm of an update, before it is clipped, as its device's vote. A zero update is not a vote."""
        if norm > 0:
            self.votes.pop(ue, None)
            self.votes[ue] = norm
            if len(self.votes) > VOTES:
                del self.votes[next(iter(self.votes))]

    @property
    def median(self) -> float | None:
        """Median of the votes; None while there are too few."""
        return None if len(self.votes) < self.enough else statistics.median(self.votes.values())

    def bound(self, factor: float, length: float, step: float) -> float:
        """Return the largest norm that is merged.

        Args:
            factor: Multiple of the usual norm; 0 turns the bound off.
            length: Norm of the model, ‖w_k‖.
            step: How far an update of norm 1 moves the model, β.
        """
        if factor == 0:
            return LARGEST
        whole = max(length, 1.0) / step
        usual = self.median or STANDS_IN * whole
        return min(factor * usual, LARGEST)
