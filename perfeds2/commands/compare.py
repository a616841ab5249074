"""perfeds2 compare: train several algorithms on equal terms."""

from collections.abc import Mapping

import typer

from perfeds2.commands.common import remove_live, study
from perfeds2.commands.jax_setup import prepare_to_train
from perfeds2.console import say
from perfeds2.spec.names import Value, Values


def compare(context: typer.Context) -> None:
    """Compare algorithms on the same cell, data, fading and initial weights.

    Writes a folder with report.html, summary.json, metrics.csv and more files.
    """
    do_spec("compare", context, {})


def do_spec(command: str, context: typer.Context, defaults: Mapping[str, Value]) -> None:
    """Do compare, run or simulate."""
    trains = command != "simulate"
    with study(command, context) as asked:
        from perfeds2.runs.folder import Folder, claimed, with_interval

        spec = asked.earlier() or asked.spec(defaults)
        name, more, is_open = spec.task.name.label, Values(), False
        path = asked.folder(name)
        if trains and asked.resume is None:
            spec, is_open = with_interval(spec, asked.values(defaults), path)
        if Folder(path).finished:
            from perfeds2.report.run import finish_report

            with claimed(path, spec):  # it holds this run and no other
                say(asked.quiet, f"{path} already holds this finished run.")
                finish_report(path)
                remove_live(path)
            if not asked.quiet:
                asked.kind.print(path)
            return
        if trains:
            prepare_to_train(len(spec.algorithms) * len(spec.run.seeds), asked.given.get("workers"))
        from perfeds2.studies.compare import prepare

        usual_s = spec.run.eval_every_s
        spec, prepared = prepare(spec, yes=asked.given["yes"], trains=trains, thin_out=is_open)
        if spec.run.eval_every_s != usual_s:
            say(asked.quiet, _thinned(spec.run.eval_every_s, usual_s))
        if trains:
            more["trainings"] = prepared
        asked.do(spec, name, command=command, **more)


def _thinned(every_s: float | None, usual_s: float | None) -> str:
    return (
        f"Evaluating every {every_s:.3g} s: every {usual_s:.3g} s, as usual, would take longer than the training "
        "(see --eval-every-s)."
    )
