"""perfeds2 export: write the weights of a run for other programs."""

from pathlib import Path

import typer

from perfeds2.commands.common import QUIET, flag
from perfeds2.console import say


def export(
    folder: Path = typer.Argument(help="Folder of a finished run or federation.", metavar="DIR"),
    out: Path = flag("--out", "File to write.", "FILE", ...),
    algorithm: str | None = flag("--algorithm", "Algorithm whose model is exported, if there are several.", "NAME"),
    seed: int | None = flag("--seed", "Seed whose model is exported, if there are several.", "SEED"),
    quiet: bool = QUIET,
) -> None:
    """Write a trained model as a safetensors file."""
    from perfeds2.runs.export import export as write

    say(quiet, f"{out}: {write(folder, algorithm, seed, out)}")
