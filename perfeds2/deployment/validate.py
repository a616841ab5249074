"""Can an update be merged? Nothing from the network is trusted."""

import math
from collections.abc import Mapping

import numpy as np

from perfeds2.deployment.transport import Arrays, Reply, Request
from perfeds2.learning.metrics import METRICS

Form = Mapping[str, tuple[tuple[int, ...], np.dtype]]  # name: shape and dtype


def form_of(params: Arrays) -> Form:
    """The names, shapes and dtypes an update of a model must have."""
    return {name: (values.shape, values.dtype) for name, values in params.items()}


def refusal(reply: Reply, request: Request, form: Form, norm_bound: float | None) -> str | None:
    """Why a reply to a request is refused, in words; None if it can be taken. ``norm_bound``: of ‖update‖₂."""
    if reply.ticket != request.ticket:
        return f"answers ticket {reply.ticket} instead"
    if reply.version != request.version:
        return f"answers version {reply.version} of a job on version {request.version}"
    for name, value in reply.metrics.items():
        if name not in METRICS or not isinstance(value, float):  # not a number is what a diverged model has
            return f"reports {name} = {value}"
    if not (math.isfinite(reply.compute_s) and reply.compute_s >= 0):
        return f"reports {reply.compute_s} seconds of computing"
    if request.kind == "evaluate":
        return None if set(reply.metrics) == set(METRICS) else "lacks metrics"
    if reply.update is None:
        return "has no update"
    return wrong_update(reply.update, form, norm_bound)


def wrong_update(update: Arrays, form: Form, norm_bound: float | None) -> str | None:
    if update.keys() != form.keys():
        missing, extra = sorted(form.keys() - update.keys()), sorted(update.keys() - form.keys())
        return f"lacks arrays {missing[:3]} and has extra {extra[:3]}"
    for name, (shape, dtype) in form.items():
        came = update[name]
        if came.shape != shape or came.dtype != dtype:
            return f"has {name} as {came.dtype}{list(came.shape)}, expected {dtype}{list(shape)}"
        if not np.isfinite(came).all():
            return f"has numbers in {name} that are not finite"
    norm = math.sqrt(sum(float(np.vdot(wide, wide)) for wide in (v.astype(np.float64) for v in update.values())))
    if norm_bound is not None and norm > norm_bound:
        return f"has norm {norm:.4g}, above the bound {norm_bound:.4g}"
    return None
