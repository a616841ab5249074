"""perfeds2 play: a cell to play with, in the browser."""

import threading
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from perfeds2.commands.common import flag, take_settings
from perfeds2.commands.jax_setup import prepare_to_train
from perfeds2.console import guarded, say
from perfeds2.errors import InputError
from perfeds2.spec.names import Value, Values

if TYPE_CHECKING:
    from perfeds2.play.server import Playground

LEAVES_OUT = (
    *("algorithms", "seeds", "rounds", "eval_every_s", "target_accuracy", "stop_when_diverged"),
    *("resume", "out", "yes", "spec", "set_"),
)

DEFAULTS = {"horizon_s": [1]}


def play(
    context: typer.Context,
    port: int = flag("--port", "Port on this machine; 0 picks a free one.", "PORT", 0),
    no_open: bool = flag("--no-open", "Print the address and open no browser.", default=False),
    export: Path | None = flag("--export", "Write the page as one file that works offline.", "FILE.html"),
) -> None:
    """Play with a cell in the browser.

    Shows a synchronous, a semi-synchronous and an asynchronous cell side by side on the same fading. Ctrl-C ends it.
    """
    quiet = context.obj["quiet"]
    with guarded("play", []):
        _, _, flags = take_settings(context.obj | {"spec": None, "set_": None})
        if not 0 <= port < 2**16:
            raise InputError(f"--port must be from 0 to {2**16 - 1}, got {port}.")
        from perfeds2.play.knobs import knobs_at

        knobs, fixed = knobs_at(flags)
        prepare_to_train()
        if export is not None:
            return _export(export, knobs, fixed, quiet)
        from perfeds2.play.server import Playground

        return _serve(Playground(knobs, fixed), port, no_open, quiet)


def _export(path: Path, knobs: Value, fixed: Values, quiet: bool) -> None:
    from perfeds2.files import write_text
    from perfeds2.play.page import canned_page
    from perfeds2.report.terminal import progress_bar

    if path.is_dir() or not path.absolute().parent.is_dir():
        raise InputError(f"--export {path} cannot be written; give a file in a folder that exists.")
    with progress_bar(quiet, "play") as tell:
        write_text(path, canned_page(knobs, fixed, tell))
    say(quiet, f"Page: {path}")


def _serve(playground: "Playground", port: int, no_open: bool, quiet: bool) -> None:
    from perfeds2.play.server import PlayServer

    try:
        server = PlayServer(playground, port)
    except OSError as error:
        raise InputError(f"--port {port} cannot be used ({error.strerror}); give another, or none.") from None
    with server:
        typer.echo(f"{server.url}{'' if quiet else '    (stop with Ctrl-C)'}")
        if not no_open:
            threading.Thread(target=webbrowser.open, args=(server.url,), daemon=True).start()
        threading.Thread(target=_warm, args=(playground,), daemon=True).start()
        try:
            server.serve_forever(poll_interval=0.2)
        finally:
            playground.trainer.stop()
            playground.trainer.join(5.0)


def _warm(playground: "Playground") -> None:
    """Load what the first answer needs while the browser opens."""
    from contextlib import suppress

    with suppress(Exception):  # reported when the page asks
        playground.rounds({})
