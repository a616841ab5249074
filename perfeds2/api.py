"""Compare algorithms from Python: what the command does, as a function."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from perfeds2.report.run import finish_report
from perfeds2.runs.comparison import Comparison
from perfeds2.runs.folder import with_interval
from perfeds2.runs.pool import HERE
from perfeds2.runs.progress import Watch
from perfeds2.runs.session import Execution
from perfeds2.spec.resolve import nested, resolve
from perfeds2.studies.compare import prepare, train_spec


def compare(
    *,
    out: Path | str | None = None,
    watch: Watch | None = None,
    together: bool | None = None,
    jobs: int | None = 1,
    yes: bool = False,
    **settings: Any,
) -> Comparison:
    """Run algorithms side by side: ``compare(task="digits", ues=20, quorum=5, seeds=range(3), horizon_s=30)``.

    Settings are command-line flags as keywords, or whole sections (``cell={"layout": "equal"}``). Wherever a name is
    accepted, so is your own object: ``task`` takes a ``Task`` or a function of the seed, ``cell`` a ``Cell``, a
    subclass or a function, ``algorithms`` names and ``Algorithm`` objects. ``perfeds2.spec.build`` lists the
    arguments that each function may take.

    Args:
        out: The folder of the results and of ``report.html``; None writes nothing. A finished run there is loaded,
            an interrupted one resumed.
        watch: Called with a ``Progress`` while the run proceeds.
        together: Train seeds of equal shape in one batch; None does so on a GPU only.
        jobs: Number of training processes; None derives it from cores, memory and work. Results do not depend on it.
        yes: Run even if the estimate exceeds one day.
        **settings: Settings of the run.

    Returns:
        The summary, timelines, metrics and models of all algorithms and seeds. Its ``repr`` shows the notes.

    Raises:
        InputError: If a setting is invalid, the run would take over a day, or the folder holds something else.

    Example:
        >>> from perfeds2 import compare
        >>> found = compare(task="synthetic", ues=4, algorithms=["PerFedS2", "FedAvg-SYN"], seeds=[0], rounds=2)
        >>> [row["algorithm"] for row in found.summary["algorithms"]]
        ['PerFedS2', 'FedAvg-SYN']
    """
    how = Execution.from_python("compare", on=HERE, workers=jobs, together=together, watch=watch)
    values = nested(settings)
    spec, is_open = with_interval(resolve(values), values, None if out is None else Path(out))
    spec, trainings = prepare(spec, yes=yes, thin_out=is_open)
    how = replace(how, page=finish_report)
    return train_spec(spec, "compare", None if out is None else Path(out), how, trainings)
