"""perfeds2 report: draw a folder again."""

from pathlib import Path

import typer

from perfeds2.commands.common import flag
from perfeds2.console import guarded, say
from perfeds2.errors import InputError


def report(
    folder: Path = typer.Argument(
        help="A run's folder, an arena's, a plan's, a sweep's, or one of figures that perfeds2 reproduce made.",
        metavar="DIR",
    ),
    paper: bool = flag(
        "--paper", "Also PDF and PNG figures in a two-column paper's style, and a LaTeX table.", default=False
    ),
    out: Path | None = flag(
        "--out", "Where the paper figures go. (default: DIR/figures; DIR for reproduced ones)", "DIR"
    ),
    x: str = flag(
        "--x",
        "What curves are drawn over, and a sweep's targets against: seconds, rounds, joules or bits (of merged uploads).",
        "WHAT",
        "seconds",
    ),
    quiet: bool = flag("--quiet", "Print nothing.", default=False),
) -> None:
    """Draw a folder again: its page, and with --paper the figures for a paper."""
    with guarded("report", []):
        axes = ("seconds", "rounds", "joules", "bits")
        if x not in axes:
            raise InputError(f"--x {x!r} is not known; expected one of {', '.join(axes)}.")
        draw = next((draw for name, draw in DRAWN.items() if (folder / name).exists()), None)
        if draw is None:
            raise InputError(
                f"{folder} holds no finished run (no summary.json); expected a folder that perfeds2 wrote."
            )
        try:
            for path in draw(folder, paper, out, x):
                kind = {".html": "Report", ".tex": "Table", ".json": "Plan"}.get(path.suffix, "Figure")
                say(quiet, f"{kind}: {path}")
        except (LookupError, TypeError, AttributeError) as error:  # a file that reads well, and says something else
            raise InputError(f"{folder} does not hold what perfeds2 wrote ({type(error).__name__}: {error}).") from None
        except (ValueError, OSError) as error:  # a file of the folder is missing or corrupt, or cannot be written
            raise InputError(f"{folder}: {' '.join(str(error).split())}") from None


def _draw_run(folder: Path, paper: bool, out: Path | None, axis: str) -> list[Path]:
    from perfeds2.report.page import write_report

    written = [write_report(folder, axis)]
    if paper:
        from perfeds2.report.paper import write_paper_figures

        written += write_paper_figures(folder, out, axis)
    return written


def _draw_set(folder: Path, paper: bool, out: Path | None, axis: str) -> list[Path]:
    from perfeds2.paper.reproduce import command_of, load_figures
    from perfeds2.report.reproduction import write_figure, write_page

    figures = load_figures(["all"])
    written = [write_page(figures, folder, command_of(folder), axis=axis)]
    for figure in figures:
        if paper and (csv := folder / f"{figure.name}.csv").exists():
            written += write_figure(figure, csv, out or folder, axis)
    return written


def _draw_arena(folder: Path, paper: bool, out: Path | None, axis: str) -> list[Path]:  # noqa: ARG001 (its table is always written)
    from perfeds2.report.arena import write_arena

    return write_arena(folder, axis)


def _draw_sweep(folder: Path, paper: bool, out: Path | None, axis: str) -> list[Path]:  # noqa: ARG001 (its charts are for paper)
    from perfeds2.report.sweep import write_chart
    from perfeds2.runs.sweep import Sweep, read_sweep

    return write_chart(Sweep(folder, read_sweep(folder), ()), axis)


def _draw_plan(folder: Path, paper: bool, out: Path | None, axis: str) -> list[Path]:  # noqa: ARG001 (its figure is always drawn)
    from perfeds2.report.plan import redraw

    return redraw(folder)


DRAWN = {  # by what a folder has
    "reproduce.toml": _draw_set,
    "arena.json": _draw_arena,
    "sweep_summary.csv": _draw_sweep,
    "plan.json": _draw_plan,
    "summary.json": _draw_run,
}
