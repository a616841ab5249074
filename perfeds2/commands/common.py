"""What do commands share: flags from the settings, a spec from the flags, a bar while it runs."""

import inspect
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand

from perfeds2.commands.completion import of_setting, setting_keys
from perfeds2.errors import InputError
from perfeds2.spec.fields import Setting, settings
from perfeds2.spec.resolve import put, put_flags, put_text, read_toml, resolve

if TYPE_CHECKING:
    from perfeds2.runs.progress import Follower, Progress
    from perfeds2.runs.store import OtherStore
    from perfeds2.spec.fields import Spec


class SettingsCommand(TyperCommand):
    """A command whose help lists the names there are. They are looked up when it is shown: some need JAX."""

    settings: Sequence[Setting] = settings()
    own_defaults: Mapping[str, Sequence[Any]] = {}

    @classmethod
    def with_defaults(cls, own: Mapping[str, Sequence[Any]]) -> "type[SettingsCommand]":
        """For a command that has other defaults than the settings."""
        return type(cls.__name__, (cls,), {"own_defaults": own})

    def format_help(self, ctx: Any, formatter: Any) -> None:
        own = {name: ",".join(map(str, values)) for name, values in self.own_defaults.items()}
        texts = {each.keyword: each.help(own.get(each.keyword)) for each in self.settings}
        for parameter in self.params:
            if parameter.name in texts:
                parameter.help = texts[parameter.name]  # type: ignore[attr-defined]  # an option
        super().format_help(ctx, formatter)


def flag(name: str, help_: str, look: str = "", default: Any = None, **more: Any) -> Any:
    """A flag of a command, as the default of its parameter: ``flag("--retries", "How often …", "N", 2)``."""
    return typer.Option(default, name, help=help_, metavar=look or None, **more)


JOBS = flag(
    "--jobs",
    "How many processes train side by side: on a CPU each an algorithm with one seed, on a GPU with all seeds. The results are the same. (default: by cores, memory and work)",
    "N",
    min=1,
)

WORKERS_PANEL = {"rich_help_panel": "Workers"}
ON = flag("--on", "processes, ray or ray://HOST:PORT.", "ENGINE", "processes", **WORKERS_PANEL)
WORKERS = flag("--workers", "Trainings at a time. (default: one per core, or per GPU)", "N", **WORKERS_PANEL)
RETRIES = flag("--retries", "Attempts after a training failed.", "N", 2, **WORKERS_PANEL)
REUSE = flag("--reuse", "Take trainings from another study's folder. Repeatable.", "DIR", **WORKERS_PANEL)
TRACK = flag(
    "--track",
    "Tell a tracker every evaluation: tensorboard, wandb, trackio, mlflow, or your own FILE.py:NAME. Repeatable. It is told on this machine only, unless you have set it up otherwise (docs/how-to/live.md).",
    "NAME",
)


def _forget_compiled(wanted: bool | None) -> None:
    if wanted:
        os.environ["PERFEDS2_COMPILE_CACHE"] = "off"  # also for processes that are started from here


COMPILE_ANEW = flag(
    "--no-compile-cache",
    "Compile everything anew, and keep nothing in the user's cache.",
    callback=_forget_compiled,
    expose_value=False,
)
COMMON: dict[str, tuple[Any, Any]] = {  # a parameter's type and default
    "spec": (Path | None, flag("--spec", "A TOML file that stands for all flags; flags go over it.", "FILE")),
    "set_": (
        list[str] | None,
        flag(
            "--set",
            "Any setting: section.key=value or Method.key=value. Repeatable.",
            "KEY=VALUE",
            autocompletion=setting_keys,
        ),
    ),
    "out": (Path | None, flag("--out", "Where the results go. (default: a new folder in runs/)", "DIR")),
    "resume": (Path | None, flag("--resume", "Go on with a run that was interrupted or killed.", "DIR")),
    "no_compile_cache": (bool | None, COMPILE_ANEW),
    "yes": (bool, flag("--yes", "Start also what would take more than a day.", default=False)),
    "quiet": (bool, flag("--quiet", "No progress, no table.", default=False)),
}


def with_settings(command: Callable[..., None], leave_out: Sequence[str] = ()) -> Callable[..., None]:
    """Give a command, besides its own flags, one for every setting, and those every command has."""
    every = setting_flags(settings()) | COMMON
    return with_flags(command, {name: each for name, each in every.items() if name not in leave_out})


def setting_flags(known: Iterable[Setting]) -> dict[str, tuple[Any, Any]]:
    """A flag for each setting, by its keyword: a parameter's type and default."""
    flags: dict[str, tuple[Any, Any]] = {}
    for each in known:
        panel = {"rich_help_panel": each.panel}
        kind = str | None if each.look else bool | None
        flags[each.keyword] = (
            kind,
            flag(each.flag, each.description, each.look, autocompletion=of_setting(each), **panel),
        )
        if each.keyword == "seeds":
            flags["seed"] = (str | None, flag("--seed", "Just this one seed.", "SEED", **panel))
    return flags


def with_flags(command: Callable[..., None], flags: Mapping[str, tuple[Any, Any]]) -> Callable[..., None]:
    """Let a command ask for flags where it says ``**given``."""
    own = [each for each in inspect.signature(command).parameters.values() if each.kind is not each.VAR_KEYWORD]
    parameters = [each.replace(kind=each.KEYWORD_ONLY) for each in own] + [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, (kind, default) in flags.items()
    ]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # functions take attributes
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def read_spec(given: dict[str, Any], defaults: Mapping[str, Any], resume: Path | None = None) -> "Spec":
    """From a spec file, then flags, then --set; or from the folder to be resumed. Takes them out of what was given."""
    spec_file, assignments, flags = take_settings(given)
    if resume is None:
        spec = resolve(nested_values(spec_file, flags, assignments, defaults))
        refuse_unused_flags(flags, assignments, spec.algorithms, spec.merges)
        return spec
    if flags or spec_file or assignments:
        raise InputError("--resume takes everything from the folder's spec.toml; give it without other settings.")
    if not (resume / "spec.toml").exists():
        raise InputError(f"--resume {resume} holds no run (no spec.toml); give the folder of a run that was started.")
    from perfeds2.runs.folder import read_run

    return read_run(resume)


def refuse_unused_flags(flags: Mapping[str, Any], assignments: Sequence[str], *methods: Any, **where: str) -> None:
    """Refuse settings of methods that do not take part."""
    from perfeds2.spec.methods import refuse_unused  # brings JAX

    refuse_unused(flags.get("tiers"), assignments, *methods, **where)


def take_settings(given: dict[str, Any]) -> tuple[Path | None, list[str], dict[str, Any]]:
    """The spec file, the assignments and the flags that were given."""
    spec_file, assignments = given.pop("spec"), list(given.pop("set_") or ())
    names = ["seed", *(each.keyword for each in settings())]
    return spec_file, assignments, {name: value for name in names if (value := given.pop(name, None)) is not None}


def nested_values(
    spec_file: Path | None, flags: Mapping[str, Any], assignments: Sequence[str], defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """A spec's nested values: from its file, then flags, then --set. ``defaults`` are a command's own, of its run."""
    values: dict[str, Any] = {} if spec_file is None else read_toml(spec_file)
    for key, value in defaults.items():
        if key not in values.get("run", {}):
            put(values, "run", key, value)
    put_flags(values, flags)
    for assignment in assignments:
        put_text(values, assignment)
    return values


def new_folder(out: Path | None, name: str) -> Path:
    """Where the results go: as asked, or the first of runs/name-1, runs/name-2, … that does not exist."""
    from perfeds2.runs.folder import free_folder

    return out or free_folder(Path("runs"), name)


@contextmanager
def followed(path: Path, track: Sequence[str] | None, page: str = "report.html") -> "Iterator[list[Follower]]":
    """Who follows a command from within: the page, and the trackers that were named. What only they need is gone at the end."""
    from perfeds2.report.live import LivePage
    from perfeds2.runs.progress import LIVE
    from perfeds2.runs.trackers import trackers

    live_page = LivePage(path, page)
    yield [live_page, *trackers(track or None, path)]
    live_page.settle()
    with suppress(OSError):  # a disk may be read-only
        (path / LIVE).unlink(missing_ok=True)  # of one that was killed at its very end


def say_reused(quiet: bool, others: "Sequence[OtherStore]") -> None:
    """Say how many trainings were taken from other folders, if any were given."""
    if others and not quiet:
        typer.echo(f"Reused {sum(other.taken for other in others)} trainings.")


@contextmanager
def watching(quiet: bool, command: str) -> "Iterator[Callable[[Progress], None]]":
    """Progress on stderr: simulated time and rounds a second. Quiet or not, Ctrl-C is heeded at every step."""
    from perfeds2.report.terminal import progress

    first: list[float] = []  # when the first rounds had been trained: compiling is over
    with progress(quiet, command) as tell:

        def watch(now: "Progress") -> None:
            if now.rounds and not first:
                first.append(time.monotonic())
            speed = now.rounds / max(time.monotonic() - first[0], 1.0) if first else 0.0
            detail = f"simulated {now.time_s:.4g} s, {speed:,.0f} rounds/s"
            tell(now.share, now.what, detail)

        yield watch


def prepare_to_train(trainings: int = 1, jobs: int | None = 1) -> None:
    """Several trainings have a core each, whoever trains them: then the bytes do not depend on how many cores there are.

    Where processes may share a GPU, this one takes no more of its memory than it needs.
    """
    from perfeds2.learning.compiled import deterministic, keep_compiled, one_core_each

    os.environ.update(deterministic())
    if jobs != 1:
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    if trainings > 1:
        one_core_each()
    keep_compiled()
