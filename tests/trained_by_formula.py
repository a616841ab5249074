"""Studies without training: ``run_all`` with results by a formula."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from perfeds2.runs import session
from perfeds2.runs.pool import Failure, Results
from perfeds2.runs.progress import Reporter
from perfeds2.runs.store import Result
from perfeds2.runs.training import Training
from perfeds2.studies import plan_trials

Formula = Callable[[Training], Result]


def trained_by(
    formula: Formula, tried: list[Training] | None = None, fails: Callable[[Training], Any] = lambda _: None
):
    """``run_all`` in one thread. ``fails`` may return an error's text, or an exception to raise."""

    def run_all(trainings, store, workers=None, reporter=None, **_):  # noqa: ARG001 (the signature of what it replaces)
        wanted = {one.key: one for one in trainings}
        missing = [one for one in wanted.values() if store.get(one.key) is None]
        reporter = reporter or Reporter()
        reporter.asked(len(wanted), len(wanted) - len(missing))
        failures = []
        for one in missing:
            reporter.started(0, one.title, 1)
            error = fails(one)
            if isinstance(error, BaseException):
                raise error
            if error:
                failures.append(Failure(one.title, 3, error))
                reporter.failed(0, error, again=False)
                continue
            if tried is not None:
                tried.append(one)
            store.put(one.key, formula(one))
            reporter.done(0)
        return Results(store, tuple(failures), len(wanted) - len(missing))

    return run_all


@contextmanager
def training(run_all: Any) -> Iterator[None]:
    """All studies train by this."""
    with pytest.MonkeyPatch.context() as patch:
        for place in (session, plan_trials):
            patch.setattr(place, "run_all", run_all)
        yield
