"""perfeds2 export: the weights of a run, for other programs."""

from pathlib import Path
from typing import Annotated

import typer

from perfeds2.console import guarded, say
from perfeds2.errors import InputError

FORMATS = ("safetensors", "onnx")


def export(
    folder: Annotated[
        Path, typer.Argument(help="The folder of a run or a federation that came to its end.", metavar="DIR")
    ],
    out: Annotated[Path, typer.Option("--out", help="The file to write.", metavar="FILE")],
    format_: Annotated[
        str,
        typer.Option(
            "--format", help="safetensors (named arrays) or onnx (a graph that runs anywhere).", metavar="FORMAT"
        ),
    ] = "safetensors",
    algorithm: Annotated[
        str | None, typer.Option("--algorithm", help="Whose model, where the run has several.", metavar="NAME")
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", help="Of which seed, where the run has several.", metavar="SEED")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing.")] = False,
) -> None:
    """Write a trained model as safetensors or ONNX."""
    with guarded("export", []):
        from perfeds2.deployment.setup import FILE, Setup
        from perfeds2.runs.export import export as write

        if format_ not in FORMATS:
            raise InputError(f"--format takes {' or '.join(FORMATS)}, got {format_!r}.")
        own = Setup.read(folder).model if (folder / FILE).exists() else None  # its model may be a user's own
        said = write(folder, "onnx" if format_ == "onnx" else "safetensors", algorithm, seed, out, own)
        say(quiet, f"{out}: {said}")
