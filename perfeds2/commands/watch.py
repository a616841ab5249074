"""perfeds2 watch: follow the progress and the curves of a running command."""

import time
from contextlib import closing
from pathlib import Path

import typer

from perfeds2.console import give_up, guarded
from perfeds2.errors import InputError
from perfeds2.spec.names import refusing_code

LOOK_EVERY_S = 0.5
GONE_S = 30.0  # after this long, the server is not just restarting
WAIT_S = 20.0  # for a command that was just started


def watch(
    folder: Path = typer.Argument(
        help="The folder that the command writes into.",
        metavar="DIR",
    ),
) -> None:
    """Follow a running command: its curves, its progress and the time left.

    Run it in another terminal. Ctrl-C stops only this view. The folder's report.html shows the same and reloads itself.
    """
    try:
        with guarded("watch", []), refusing_code():
            said, well = follow(folder)
    except typer.Exit as left:
        if left.exit_code == 130:
            typer.echo("The command itself continues.", err=True)
        raise
    if well:
        typer.echo(said)
    else:
        give_up(1, f"perfeds2 watch: {said}.")


def follow(folder: Path) -> tuple[str, bool]:
    """Watch until the command ends. Return what became of it, in words, and whether it finished."""
    from perfeds2.kinds import KINDS
    from perfeds2.report.live import BoardLines, Picture, ending
    from perfeds2.report.terminal import redrawn
    from perfeds2.runs.folder import FEDERATION
    from perfeds2.runs.progress import DONE, LIVE, Board, Tail
    from perfeds2.runs.store import TRAININGS

    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; give the --out folder of a command that was started.")
    if FEDERATION.is_in(folder):
        return follow_federation(folder)
    is_own_study = (folder / LIVE).exists() or (folder / TRAININGS).is_dir()
    if not is_own_study and not any(kind.folder.is_in(folder) for kind in KINDS.values()):
        raise InputError(f"{folder} holds no run; expected a folder that perfeds2 writes to.")
    board, began_s = Board(), time.monotonic()
    with (
        closing(Tail(folder)) as tail,
        redrawn(False, Picture, BoardLines(), stays=True) as show,
    ):
        while True:
            is_dead = board.is_dead  # read before the last look, because it may have ended normally since
            board.take(tail.read())
            if not tail.is_open:
                results = [kind.folder.result for kind in KINDS.values() if (folder / kind.folder.result).exists()]
                if results:
                    return f"The command in {folder} has finished (see {results[0]})", True
                if is_own_study:
                    return f"Nothing works in {folder} any more; its trainings are there", True
                if time.monotonic() - began_s > WAIT_S:
                    return f"the command in {folder} ended before anything was trained", False
            elif show is not None:
                show(board)
            if board.end or (is_dead and board.is_dead):
                return ending(board, str(folder)), board.end == DONE
            time.sleep(LOOK_EVERY_S)


def follow_federation(folder: Path) -> tuple[str, bool]:
    """Watch a federation, which also reports the state of its devices."""
    from perfeds2.deployment.setup import Setup
    from perfeds2.deployment.status import STOPPED, live_table, read_status
    from perfeds2.runs.folder import Folder
    from perfeds2.runs.progress import born

    Setup.read(folder)
    seen_s = time.monotonic()
    with live_table(quiet=False) as show:
        while True:
            finished, status = Folder(folder).finished, read_status(folder)
            if show is not None and status is not None:
                show(status)
            if finished:
                return f"the federation has finished: {folder}", True
            if status is not None and status.phase == STOPPED:
                return f"the federation stopped at round {status.round}: {status.warning}", False
            if status is None or born(status.process):
                seen_s = time.monotonic()
            elif time.monotonic() - seen_s > GONE_S:
                again = f"continue with: perfeds2 federate resume {folder}"
                return f"the federation's server was killed in round {status.round}; {again}", False
            time.sleep(LOOK_EVERY_S)
