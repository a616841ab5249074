"""perfeds2 export: the weights of a run, for other programs."""

from pathlib import Path

import typer

from perfeds2.commands.common import QUIET, flag
from perfeds2.console import guarded, say
from perfeds2.errors import InputError

FORMATS = ("safetensors", "onnx")


def export(
    folder: Path = typer.Argument(help="The folder of a run or a federation that came to its end.", metavar="DIR"),
    out: Path = flag("--out", "The file to write.", "FILE", ...),
    format_: str = flag(
        "--format", "safetensors (named arrays) or onnx (a graph that runs anywhere).", "FORMAT", "safetensors"
    ),
    algorithm: str | None = flag("--algorithm", "Whose model, where the run has several.", "NAME"),
    seed: int | None = flag("--seed", "Of which seed, where the run has several.", "SEED"),
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
