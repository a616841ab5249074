"""Can an update be merged? Nothing from the network is trusted."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from perfeds2.deployment.transport import Arrays, Job, Reply
from perfeds2.learning.metrics import METRICS

Form = Mapping[str, tuple[tuple[int, ...], np.dtype]]  # name: shape and dtype


@dataclass(frozen=True)
class Rules:
    """What an update must fulfil beyond being well-formed, and what happens to devices that send others."""

    norm_bound: float | None = None  # the largest ‖update‖₂ that is merged
    set_aside_after: int = 3  # failures in a row

    def __post_init__(self) -> None:
        if self.norm_bound is not None and not self.norm_bound > 0:
            raise ValueError(f"norm_bound must be above 0 (or None for no bound), got {self.norm_bound}.")
        if self.set_aside_after < 1:
            raise ValueError(f"set_aside_after must be at least 1, got {self.set_aside_after}.")


def form_of(params: Arrays) -> Form:
    """The names, shapes and dtypes an update of a model must have."""
    return {name: (values.shape, values.dtype) for name, values in params.items()}


def refusal(reply: Reply, job: Job, form: Form, rules: Rules) -> str | None:
    """Why a reply to a job is refused, in words; None if it can be taken."""
    if reply.ticket != job.ticket:
        return f"answers ticket {reply.ticket} instead"
    if reply.version != job.version:
        return f"answers version {reply.version} of a job on version {job.version}"
    for name, value in reply.metrics.items():
        if name not in METRICS or not isinstance(value, float):  # not a number is what a diverged model has
            return f"reports {name} = {value}"
    if not (math.isfinite(reply.compute_s) and reply.compute_s >= 0):
        return f"reports {reply.compute_s} seconds of computing"
    if job.kind == "evaluate":
        return None if set(reply.metrics) == set(METRICS) else "lacks metrics"
    if reply.update is None:
        return "has no update"
    return wrong_form(reply.update, form) or wrong_values(reply.update, rules)


def wrong_form(update: Arrays, form: Form) -> str | None:
    if update.keys() != form.keys():
        missing, extra = sorted(form.keys() - update.keys()), sorted(update.keys() - form.keys())
        return f"lacks arrays {missing[:3]} and has extra {extra[:3]}"
    for name, (shape, dtype) in form.items():
        came = update[name]
        if came.shape != shape or came.dtype != dtype:
            return f"has {name} as {came.dtype}{list(came.shape)}, expected {dtype}{list(shape)}"
    return None


def wrong_values(update: Arrays, rules: Rules) -> str | None:
    for name, values in update.items():
        if not np.isfinite(values).all():
            return f"has numbers in {name} that are not finite"
    norm = math.sqrt(sum(float(np.vdot(wide, wide)) for wide in (v.astype(np.float64) for v in update.values())))
    if rules.norm_bound is not None and norm > rules.norm_bound:
        return f"has norm {norm:.4g}, above the bound {rules.norm_bound:.4g}"
    return None
