"""Hold the results of a comparison in memory, and write them to and read them from its folder."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from perfeds2.errors import InputError
from perfeds2.files import Json, read_json, write_json
from perfeds2.runs.costs import TIME
from perfeds2.runs.folder import Folder
from perfeds2.runs.phones import COLUMNS, MOST_UES, phone_rows
from perfeds2.runs.store import Arrays, Facts, Result, Row, load_arrays, read_rows, save_arrays, write_index
from perfeds2.runs.table import write_csv
from perfeds2.shown import as_html, axes_for, draw_curves, in_a_line, means_of
from perfeds2.spec.fields import Spec
from perfeds2.timeline.record import Timeline, load_timelines, save_timelines

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

Which = tuple[str, int]  # (algorithm, seed)
SHOWN_COLUMNS = (
    *("algorithm", "rounds", "staleness_mean", "waiting_share", "joules_per_merge"),
    *(TIME, "train_loss_personal", "test_accuracy", "test_accuracy_personal"),
)


@dataclass(frozen=True)
class Comparison:
    """The results of a comparison.

    Attributes:
        spec: The settings that were run.
        summary: The content of ``summary.json``: a row per algorithm, with statistics over seeds.
        timelines: The timeline of each (algorithm, seed).
        rows: One row per algorithm, seed and evaluation; empty if nothing was trained.
        ue_rows: One row per algorithm, seed and UE, with the metrics of the final model.
        models: The final weights of each (algorithm, seed), by parameter name.
        facts: Facts about each (algorithm, seed); empty for a loaded comparison and a federation.
    """

    spec: Spec
    summary: Json
    timelines: dict[Which, Timeline]
    rows: list[Row] = field(repr=False)
    ue_rows: list[Row] = field(repr=False)
    models: dict[Which, Arrays] = field(repr=False)
    facts: dict[Which, Facts] = field(default_factory=dict, repr=False)

    @property
    def metrics(self) -> "pd.DataFrame":
        """A table with one row per algorithm, seed and evaluation. Times are in simulated seconds."""
        import pandas as pd

        return pd.DataFrame(self.rows)

    def __repr__(self) -> str:
        said, seeds = self.summary, len(self.summary["seeds"])
        length = f"{said['rounds']:,} rounds" if said["horizon_s"] is None else f"{said['horizon_s']:g} s"
        many = f"{len(said['algorithms'])} algorithms", f"{seeds} seed{'s' * (seeds > 1)}"
        line = in_a_line(self, said["task"], f"{said['ues']:,} UEs", length, *many, self._best())
        return "\n".join([line, *(f"Note: {note}" for note in said["notes"])])

    def _best(self) -> str:
        """Say which algorithm ends with the highest mean personalised test accuracy."""
        rows = self.summary["algorithms"] if self.rows else []
        ends = [(row["test_accuracy_personal"]["mean"], row["algorithm"]) for row in rows]
        known = [end for end in ends if end[0] is not None]
        return "{1} ends highest at {0:.4g}".format(*max(known)) if known else "nothing trained"

    def _repr_html_(self) -> str:
        table = means_of(self.summary["algorithms"], SHOWN_COLUMNS)
        return as_html(repr(self), table, self.plot if self.rows else None)

    def frame(self) -> "pd.DataFrame":
        """Return the results as a table.

        Returns:
            One row per algorithm, seed and evaluation. If nothing was trained, one row per algorithm with means over
            seeds.
        """
        return self.metrics if self.rows else means_of(self.summary["algorithms"], SHOWN_COLUMNS)

    def plot(self, axes: "Axes | None" = None, *, metric: str = "test_accuracy_personal") -> "Axes":
        """Plot a metric over simulated time, as the mean over seeds of each algorithm.

        Args:
            axes: Where to draw; None makes a new figure.
            metric: A metric column of ``metrics``, such as ``test_accuracy`` or ``train_loss_personal``.

        Returns:
            The axes that were drawn on.

        Raises:
            InputError: If nothing was trained or there is no such metric.
        """
        if not self.rows:
            raise InputError(
                "nothing was trained, so there are no curves; .timelines[algorithm, seed].plot() draws rounds."
            )
        if metric not in self.rows[0]:
            raise InputError(f"there is no {metric!r}; expected one of {', '.join(list(self.rows[0])[4:])}.")
        return draw_curves(axes_for(axes, (6, 3)), self.metrics, "time_s", metric)


def write_results(comparison: Comparison, folder: Folder, trained: Sequence[tuple[str, Result]] = ()) -> None:
    """Write the documented files of a run, ``summary.json`` last: a folder that has a summary is complete.

    Args:
        comparison: What to write.
        folder: The run's folder; its ``parts/`` are deleted at the end.
        trained: Keys and results of the trainings, indexed so that other studies can reuse them.
    """
    names = _names(list(comparison.timelines))
    save_timelines(folder.path / "timeline.npz", {names[which]: t for which, t in comparison.timelines.items()})
    if comparison.models:
        weights = {
            f"{names[which]}/{key}".lstrip("/"): w
            for which, params in comparison.models.items()
            for key, w in params.items()
        }
        save_arrays(folder.path / "model.safetensors", weights)
        write_csv(folder.path / "metrics.csv", comparison.rows[0], comparison.rows)
        write_csv(folder.path / "ue_metrics.csv", comparison.ue_rows[0], comparison.ue_rows)
    if comparison.facts and comparison.spec.cell.ues <= MOST_UES:
        write_csv(
            folder.path / "phones.csv", COLUMNS, phone_rows(comparison.spec, comparison.timelines, comparison.facts)
        )
    if trained:
        write_index(folder.path, trained)
    write_json(folder.path / "summary.json", comparison.summary)
    folder.log("finished")
    folder.close()


def load_comparison(spec: Spec, folder: Folder) -> Comparison:
    """Load the results of a finished run from its folder."""
    path = folder.path
    summary, models = load_summary(path), load_models(spec, path)
    files = [path / f"{name}.csv" for name in ("metrics", "ue_metrics")]
    rows, ue_rows = ([row for own in read_rows(file).values() for row in own] if models else [] for file in files)
    timelines = load_timelines(path)
    found = {which: timelines[name] for which, name in _names(_every(spec, path)).items()}
    return Comparison(spec, summary, found, rows, ue_rows, models)


def load_models(spec: Spec, path: Path) -> dict[Which, Arrays]:
    """Return the final weights of each (algorithm, seed) of a finished run; none if nothing was trained."""
    if not (path / "model.safetensors").exists():
        return {}
    weights, _ = load_arrays(path / "model.safetensors")
    models: dict[Which, Arrays] = {}
    for which, name in _names(_every(spec, path)).items():
        start = f"{name}/".lstrip("/")
        models[which] = {key.removeprefix(start): w for key, w in weights.items() if key.startswith(start)}
    return models


def _every(spec: Spec, path: Path) -> list[Which]:
    return [(row["algorithm"], seed) for row in load_summary(path)["algorithms"] for seed in spec.run.seeds]


def load_summary(path: Path) -> Json:
    """Return the content of a run's summary.json."""
    return read_json(path / "summary.json")


def _names(every: Sequence[Which]) -> dict[Which, str]:
    """Return the prefix of each training in the files of a run; it is empty if there is only one training."""
    return {which: "/".join(map(str, which)) if len(every) > 1 else "" for which in every}
