"""Run a study of one's own: a function that chooses trainings and makes rows of a table of their results.

The function takes the settings of the command line and ``train``, and yields rows::

    def quorums(spec, train):
        points = {str(a): spec.with_(protocol=spec.protocol.with_(quorum=a)) for a in (2, 5, 10)}
        for quorum, results in train(points).items():
            yield {"quorum": quorum, "accuracy": mean(one.rows[-1]["test_accuracy"] for one in results)}

``train`` takes a spec for each label, trains all its algorithms and seeds, and returns their results by label. Trainings are
found again by their settings, so a changed function trains only what is new.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import tomli_w

from perfeds2 import __version__
from perfeds2.errors import InputError
from perfeds2.files import Json, write_json
from perfeds2.learning.metrics import METRICS, recorded
from perfeds2.runs.costs import SPENT
from perfeds2.runs.folder import OWN
from perfeds2.runs.pool import check_work
from perfeds2.runs.session import Execution, Session, reading
from perfeds2.runs.store import Result, Row
from perfeds2.runs.table import write_csv
from perfeds2.runs.training import trainings_of
from perfeds2.spec.fields import Spec
from perfeds2.spec.names import Kind, Named
from perfeds2.spec.resolve import resolve
from perfeds2.studies.tune import train_or_refuse

STUDY = Kind("study")
Train = Callable[[Mapping[str, Spec]], dict[str, list[Result]]]


@dataclass(frozen=True)
class OwnStudy:
    """A user's study and the settings it starts from."""

    named: Named
    spec: Spec

    @property
    def unwritten(self) -> list[str]:
        """Return the names of objects that cannot be saved."""
        return self.spec.unwritten

    @property
    def question(self) -> str:
        """Return the first line of the function's docstring."""
        return (inspect.getdoc(self.named.value) or self.named.label).partition("\n")[0]

    def to_toml(self) -> str:
        return tomli_w.dumps({"study": str(self.named), "spec": self.spec.values()})


def make_study(reference: str, spec: Spec) -> OwnStudy:
    """Find a study by ``FILE.py:NAME``."""
    return OwnStudy(STUDY.named("study", reference), spec)


def read_study(path: Path) -> OwnStudy:
    """Read a study from its folder. This loads the file that defines it."""
    with reading(path, OWN) as values:
        return make_study(values["study"], resolve(values["spec"]))


def run_study(study: OwnStudy, path: Path, how: Execution = Execution()) -> list[Row]:  # noqa: B008 (frozen)
    """Call the study's function, train what it asks for and the folder lacks, and write its tables."""
    with Session.open(OWN, study, path, how, read_study) as session:
        trained: dict[str, list[Result]] = {}

        def train(specs: Mapping[str, Spec]) -> dict[str, list[Result]]:
            each = {label: trainings_of(spec, label) for label, spec in specs.items()}
            every = [one for trainings in each.values() for one in trainings]
            check_work(every, how.workers, yes=how.yes)
            train_or_refuse(every, session)
            results = {label: [session.store.get(one.key) for one in trainings] for label, trainings in each.items()}
            found = {label: [one for one in own if one is not None] for label, own in results.items()}
            trained.update(found)
            return found

        rows = checked(study, study.named.value(study.spec, train))
        evaluations = [{"label": label} | row for label, own in trained.items() for one in own for row in one.rows]
        metrics = recorded(evaluations[0]) if evaluations else METRICS
        heads = ("label", "algorithm", "seed", "round", "time_s", *metrics, *SPENT)
        write_csv(path / "study_metrics.csv", heads, evaluations)
        write_csv(path / "study.csv", dict.fromkeys(key for row in rows for key in row), rows)
        write_json(path / OWN.result, said(study, rows))
    return rows


def checked(study: OwnStudy, rows: Iterable[Row]) -> list[Row]:
    """Return the rows of a study.

    Raises:
        InputError: If they are no rows of a table.
    """
    what = f"{study.named} must yield rows: dictionaries of texts and numbers"
    if not isinstance(rows, Iterable):
        raise InputError(f"{what}; it returned {type(rows).__name__}.")
    found = list(rows)
    for row in found:
        if not isinstance(row, Mapping):
            raise InputError(f"{what}; it yielded {type(row).__name__}.")
        wrong = [key for key, value in row.items() if not isinstance(value, str | int | float | None)]
        if wrong:
            raise InputError(f"{what}; {wrong[0]} is {type(row[wrong[0]]).__name__}.")
    return found


def said(study: OwnStudy, rows: list[Row]) -> Json:
    """Return the content of study.json."""
    spec = study.spec
    about = {"perfeds2": __version__, "study": study.named.label, "question": study.question}
    return about | {"task": spec.task.name.label, "ues": spec.cell.ues, "seeds": list(spec.run.seeds), "rows": rows}
