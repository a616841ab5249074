"""Report errors and interruptions of a command in one sentence, with the documented exit status."""

import _thread
import atexit
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import typer

_interrupted = threading.Event()
_leaving = threading.Event()


def install_interrupt_handler() -> None:
    """Install a Ctrl-C handler that remembers interrupts and raises again those that Python drops."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
        sys.unraisablehook = _raise_again


def _interrupt(_: int, frame: FrameType | None) -> None:
    if _leaving.is_set():
        _exit()  # Ctrl-C pressed again during shutdown
    _interrupted.set()
    while frame is not None and frame.f_code is not _raise_again.__code__:
        frame = frame.f_back
    if frame is None:
        raise KeyboardInterrupt
    _press_later()  # Python drops what is raised in the hook


def _raise_again(dropped: Any) -> None:
    """Repeat a KeyboardInterrupt that was raised in a weak-reference or garbage-collector callback (JAX has one).

    Python would print "Exception ignored" and continue.
    """
    if issubclass(dropped.exc_type, KeyboardInterrupt):
        _press_later()
    else:
        sys.__unraisablehook__(dropped)


def _press_later() -> None:
    _thread.start_new_thread(_press, ())  # takes no lock, which the interrupted code may hold


def _press() -> None:
    time.sleep(0.05)
    if not _leaving.is_set():
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)  # interrupts blocking calls too


def _leave() -> None:
    """Make the process exit right after the message: after an interrupt JAX may crash while Python shuts down."""
    if _interrupted.is_set() and not _leaving.is_set():
        _leaving.set()
        atexit.register(_exit)  # exit handlers run in reverse order of registration


def _exit() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, RuntimeError):
            stream.flush()
    os._exit(130)


def raise_if_interrupted(_: object = None) -> None:
    """Raise KeyboardInterrupt if Ctrl-C was pressed; long-running work calls this regularly."""
    if _interrupted.is_set():
        raise KeyboardInterrupt


@contextmanager
def guarded(command: str, place: list[Path], go_on: str = "") -> Iterator[None]:
    """Print any error as one sentence and exit with the documented status: 2 for bad input, 130 for Ctrl-C, else 1."""
    from perfeds2.errors import InputError

    def begun() -> bool:
        return bool(place) and place[0].is_dir()

    def again() -> str:
        return go_on or (f"perfeds2 {command} --resume {place[0]}" if begun() else "")

    try:
        yield
    except typer.Exit:  # it has said why
        raise
    except InputError as error:
        give_up(2, f"perfeds2 {command}: {error}")
    except KeyboardInterrupt:
        _leave()
        saved = f" Finished work is in {place[0]}; continue with: {again()}" if begun() else ""
        give_up(130, f"\nInterrupted.{saved}")
    except Exception as error:
        if os.environ.get("PERFEDS2_DEBUG"):
            raise
        if isinstance(error, OSError) and error.strerror and error.filename:  # an error of the file system, not a bug
            saved = f"; finished work is kept; continue with: {again()}" if again() else ""
            give_up(1, f"perfeds2 {command}: {error.filename}: {error.strerror}{saved}.")
        where = "set PERFEDS2_DEBUG=1 for a traceback"
        if begun():
            with suppress(OSError), (place[0] / "traceback.log").open("a", encoding="utf-8") as log:
                log.write(traceback.format_exc())
                where = f"the traceback is in {log.name}"
        give_up(1, f"perfeds2 {command}: {type(error).__name__}: {' '.join(str(error).split())} ({where})")


def give_up(status: int, message: str) -> NoReturn:
    typer.echo(message, err=True)
    raise typer.Exit(status)


def say(quiet: bool, message: str) -> None:
    if not quiet:
        typer.echo(message)
