"""perfeds2 tune: which step sizes suit each algorithm?"""

import typer

from perfeds2.commands.common import flag, study
from perfeds2.errors import InputError
from perfeds2.spec.names import Values
from perfeds2.studies.search import RUNGS, TUNING_SEEDS

LEAVES_OUT = ("seeds", "seed", "rounds", "eval_every_s", "held_out", "stop_when_diverged")


def tune(
    context: typer.Context,
    search: list[str] | None = flag(
        "--search",
        "Values to try: beta=0.02,0.2 or PerFedS2.alpha=0.01,0.03. Repeatable. (default: alpha and beta)",
        "NAME=VALUES",
    ),
    tuning_seeds: int = flag(
        "--tuning-seeds", "Number of tuning seeds, separate from evaluation seeds.", "N", TUNING_SEEDS
    ),
    rungs: int = flag("--rungs", "Number of successive-halving rungs (factor 3).", "N", RUNGS),
    figure: str | None = flag("--figure", "Tune the cell and algorithms of a figure, exp_1 to exp_8.", "NAME"),
) -> None:
    """Find the step sizes that suit each algorithm.

    Uses successive halving on validation data, never on test data. Writes a folder with report.html, tune.csv and
    tuned.toml, which compare, sweep and reproduce take as --spec.
    """
    with study("tune", context) as asked:
        from perfeds2.studies.grid import parse_grid
        from perfeds2.studies.tune_space import make_search

        made = asked.earlier()
        if made is None:
            values = asked.values({})
            if figure is not None:
                values = _of_figure(figure, values)
            made = make_search(values, parse_grid(search or [], "--search"), seeds=tuning_seeds, rungs=rungs)
            asked.refuse_unused(made.spec.algorithms, made.spec.merges)
        asked.do(made, made.spec.task.name.label, [made.spec])


def _of_figure(name: str, values: Values) -> Values:
    """A figure's settings, with what was given over them."""
    from perfeds2.paper.figures import load_figures
    from perfeds2.studies.figure import merged

    (figure,) = load_figures([name])
    for section, inner in values.items():
        if not isinstance(inner, dict):
            raise InputError(f"{section} must be a section, [{section}], got {inner!r}.")
    task = str(values.get("task", {}).get("name", figure.panels[0].task))
    panel = next((panel for panel in figure.panels if panel.task == task), None)
    if panel is None:
        tasks = dict.fromkeys(panel.task for panel in figure.panels)
        raise InputError(f"--figure {name} has no panel on {task}; expected --task {' or '.join(tasks)}.")
    lines = {"run": {"algorithms": list(dict.fromkeys(line.algorithm for line in panel.lines))}}
    return merged(panel.settings["paper"], lines, values)
