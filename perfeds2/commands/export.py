"""perfeds2 export: write the weights of a run for other programs."""

from pathlib import Path

import typer

from perfeds2.commands.common import QUIET, flag
from perfeds2.console import guarded, say
from perfeds2.errors import InputError

FORMATS = ("safetensors", "onnx")


def export(
    folder: Path = typer.Argument(help="Folder of a finished run or federation.", metavar="DIR"),
    out: Path = flag("--out", "File to write.", "FILE", ...),
    format_: str = flag(
        "--format", "safetensors (named arrays) or onnx (a graph that runs anywhere).", "FORMAT", "safetensors"
    ),
    algorithm: str | None = flag("--algorithm", "Algorithm whose model is exported, if there are several.", "NAME"),
    seed: int | None = flag("--seed", "Seed whose model is exported, if there are several.", "SEED"),
    quiet: bool = QUIET,
) -> None:
    """Write a trained model as safetensors or ONNX."""
    with guarded("export", []):
        from perfeds2.deployment.setup import FILE, Setup
        from perfeds2.runs.export import export as write

        if format_ not in FORMATS:
            raise InputError(f"--format takes {' or '.join(FORMATS)}, got {format_!r}.")
        own = Setup.read(folder).model if (folder / FILE).exists() else None  # the model may be the user's own
        said = write(folder, "onnx" if format_ == "onnx" else "safetensors", algorithm, seed, out, own)
        say(quiet, f"{out}: {said}")
