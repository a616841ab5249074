"""Share what commands have in common: flags for settings, the spec they describe, progress, and the steps of a study."""

import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from functools import cache, partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand, TyperOption
from typer.models import OptionInfo

from perfeds2.commands.completion import of_setting, setting_keys
from perfeds2.console import guarded, say
from perfeds2.errors import InputError
from perfeds2.spec.fields import settings
from perfeds2.spec.names import Named, Value, Values
from perfeds2.spec.resolve import put, put_flags, put_text, read_toml, resolve
from perfeds2.spec.settings import Setting

if TYPE_CHECKING:
    from perfeds2.runs.pool import Failure
    from perfeds2.runs.progress import Follower
    from perfeds2.spec.fields import Spec

Flags = dict[str, tuple[Value, Value]]  # type and default, by parameter


BASIC = {  # settings that --help shows, by panel; those with a value are its example
    "Task": {"task": "mnist", "labels_per_ue": "2", "split": ""},
    "Cell": {"cell": "", "ues": "50", "devices": "10", "bandwidth_hz": "5e6"},
    "Cells": {},
    "Radio": {"radio": "umi", "bits": "8"},
    "Energy": {},
    "Rounds": {"quorum": "5", "max_staleness": "10", "schedule": "", "bandwidth": ""},
    "Learning": {"alpha": "", "beta": "0.05", "batch": "", "local_steps": "4"},
    "Privacy": {},
    "Run": {
        "algorithms": "PerFedS2,FedAvg-SYN",
        "algorithm": "FedAvgS2",
        "seeds": "10",
        "horizon_s": "",
        "rounds": "",
        "target_accuracy": "",
    },
}
ADVANCED = {"seed", "retries", "reuse", "yes"}  # flags other than settings that --help does not show
ALL = "perfeds2.help_all"  # set in a context to show every flag
NAMES = 5  # most names that --help lists of a kind


class SettingsCommand(TyperCommand):
    """A command with flags for settings: --help shows the basic ones and --help-all every one.

    Names are looked up when the help is shown, because some tables import JAX. The values of ``flags`` are the context's
    ``obj``; those of the function's own parameters are passed to it.
    """

    def __init__(
        self,
        flags: Flags,
        *,
        settings: Sequence[Setting] = settings(),
        own_defaults: Mapping[str, Sequence[Value]] | None = None,
        **more: Any,
    ) -> None:
        self.settings, self.own_defaults = settings, own_defaults or {}
        self.flags = {name: declared(name, *described) for name, described in flags.items()}
        more["params"] = [*more["params"], *(option for option, _ in self.flags.values())]
        super().__init__(**more)

    def invoke(self, ctx: Any) -> Any:
        ctx.obj = {
            name: read(value=ctx.params.pop(name)) for name, (_, read) in self.flags.items() if name in ctx.params
        }
        return super().invoke(ctx)

    def format_help(self, ctx: Any, formatter: Any) -> None:  # click's; newer typers bring their own click
        shown, full = copy(self), ALL in ctx.meta
        known = {each.keyword: each for each in self.settings}
        shown.params = []
        for option in map(copy, self.params):
            each, panel = known.get(option.name or ""), str(getattr(option, "rich_help_panel", ""))
            is_basic = option.name not in ADVANCED
            if isinstance(option, TyperOption) and each is not None and panel == each.panel:
                own = ",".join(map(str, self.own_defaults.get(each.keyword, ())))
                option.help = each.help(own, None if full else NAMES)
                option.rich_help_panel = panel if full else self._with_example(panel)
                is_basic = each.keyword in BASIC.get(panel, {each.keyword})
            if full or is_basic:
                shown.params.append(option)
        TyperCommand.format_help(shown, ctx, formatter)

    def _with_example(self, panel: str) -> str:
        """Return the title of a panel with an example of its flags."""
        names = {option.name for option in self.params}
        words = [
            f"--{name.replace('_', '-')} {value}"
            for name, value in BASIC.get(panel, {}).items()
            if value and name in names
        ]
        return f"{panel}, for example {' '.join(words)}" if words else panel


@cache
def declared(name: str, kind: Any, described: OptionInfo) -> tuple[TyperOption, Callable[..., Any]]:
    """Return the option of a flag, and what converts its value. Typer makes both of a function with this parameter."""
    app = typer.Typer(add_completion=False)

    @app.command()
    def read(value: kind = described) -> Any:  # type: ignore[valid-type]  # for Typer
        return value

    command: Any = typer.main.get_command(app)
    (option,) = command.params
    option.name = name
    return option, command.callback


def _show_all(context: typer.Context, wanted: bool) -> None:
    if wanted:
        context.meta[ALL] = True
        context.get_help()
        raise typer.Exit


def flag(name: str, help_: str, look: str = "", default: Value = None, **more: Value) -> Value:
    """Return a flag as the default of a command's parameter, such as ``flag("--retries", "Attempts …", "N", 2)``.

    ``name`` may hold several names, separated by spaces.
    """
    return typer.Option(default, *name.split(), help=help_, metavar=look, **more)


HELP_ALL = flag(
    "--help-all", "Show every flag and exit.", default=False, is_eager=True, expose_value=False, callback=_show_all
)
QUIET = flag("--quiet", "Print nothing.", default=False)
PANEL = {"rich_help_panel": "Workers"}
WORKERS = flag("--workers --jobs", "Trainings at a time. (default: automatic)", "N", min=1, **PANEL)

EPILOG = (
    "All settings: --help-all. Each also works in --set, spec files and Python. A NAME can be your own FILE.py:NAME."
)
TRAINING: Flags = {"workers": (int | None, WORKERS)}
STUDY: Flags = {  # flags of arena, plan, sweep and tune
    "workers": (int | None, WORKERS),
    "retries": (int, flag("--retries", "Attempts after a training failed.", "N", 2, **PANEL)),
    "reuse": (
        list[Path] | None,
        flag("--reuse", "Take trainings from another study's folder. Repeatable.", "DIR", **PANEL),
    ),
}
WITH_RESUME = {"resume", "quiet", "yes", "as_json", *STUDY}  # the folder has all other settings


def setting_flags(described: Iterable[Setting]) -> Flags:
    """Return the type and default of a flag for each setting, by keyword."""
    flags: Flags = {}
    for each in described:
        panel = {"rich_help_panel": each.panel}
        kind = str | None if each.look else bool | None
        flags[each.keyword] = (
            kind,
            flag(each.flag, each.description, each.look, autocompletion=of_setting(each), **panel),
        )
        if each.keyword == "seeds":
            flags["seed"] = (str | None, flag("--seed", "Just this one seed.", "SEED", **panel))
    flags["help_all"] = (bool, HELP_ALL)
    return flags


SETTINGS = setting_flags(settings())
COMMON: Flags = {
    "spec": (Path | None, flag("--spec", "TOML file with settings; flags override it.", "FILE")),
    "set_": (
        list[str] | None,
        flag(
            "--set",
            "Any setting: section.key=value or Method.key=value. Repeatable.",
            "KEY=VALUE",
            autocompletion=setting_keys,
        ),
    ),
    "out": (Path | None, flag("--out", "Results folder. (default: a new one in runs/)", "DIR")),
    "resume": (Path | None, flag("--resume", "Continue an interrupted or killed run.", "DIR")),
    "yes": (bool, flag("--yes", "Run even if the estimate exceeds one day.", default=False)),
    "quiet": (bool, QUIET),
}


def add_command(
    app: typer.Typer,
    command: Callable[..., None],
    flags: Flags | None = None,
    leave_out: Sequence[str] = (),
    defaults: Mapping[str, Sequence[Value]] | None = None,
    group: str = "Experiment",
) -> None:
    """Add a command with its own flags, flags it shares with other commands, and one for every setting.

    Args:
        app: Where it is added.
        command: A function that takes its own flags as parameters, and Typer's context with all others.
        flags: Flags it shares with other commands.
        leave_out: Settings and common flags it does not have.
        defaults: Its own defaults of settings, for the help.
        group: Its group in ``perfeds2 --help``.
    """
    for described in command.__defaults__ or ():
        if isinstance(described, OptionInfo):
            described.rich_help_panel = command.__name__.capitalize()
    every = {**(flags or {}), **SETTINGS, **COMMON}
    shown = partial(
        SettingsCommand, {name: every[name] for name in every if name not in leave_out}, own_defaults=defaults
    )
    app.command(cls=shown, rich_help_panel=group, epilog=EPILOG)(command)  # type: ignore[arg-type]  # it makes a command


def take_settings(given: Values) -> tuple[Path | None, list[str], Values]:
    """Return the spec file, the assignments and the flags that were given."""
    spec_file, assignments = given.pop("spec"), list[str](given.pop("set_") or ())
    names = ["seed", *(each.keyword for each in settings())]
    return spec_file, assignments, {name: value for name in names if (value := given.pop(name, None)) is not None}


def nested_values(
    spec_file: Path | None, flags: Mapping[str, Value], assignments: Sequence[str], defaults: Mapping[str, Value]
) -> Values:
    """Return a spec's nested values: from its file, then flags, then --set. ``defaults`` are the command's own."""
    values: Values = {} if spec_file is None else read_toml(spec_file)
    for key, value in defaults.items():
        if key not in values.get("run", {}):
            put(values, "run", key, value)
    put_flags(values, flags)
    for assignment in assignments:
        put_text(values, assignment)
    return values


def new_folder(out: Path | None, name: str) -> Path:
    """Return the folder for results: ``out``, or the first of runs/name-1, runs/name-2, … that does not exist."""
    from perfeds2.runs.folder import free_folder

    return out or free_folder(Path("runs"), name)


@contextmanager
def followed(path: Path, page: str = "report.html") -> "Iterator[list[Follower]]":
    """Yield what follows a command: its live page. Delete its files at the end."""
    from perfeds2.report.live import LivePage

    live_page = LivePage(path, page)
    yield [live_page]
    live_page.settle()
    remove_live(path)


def remove_live(path: Path) -> None:
    """Remove the record of progress, which a command that was killed at the very end leaves behind."""
    from perfeds2.runs.progress import LIVE

    with suppress(OSError):  # the disk may be read-only
        (path / LIVE).unlink(missing_ok=True)


class Study:
    """A request to a command that trains, and the steps that these commands have in common."""

    def __init__(self, command: str, given: Values) -> None:
        from perfeds2.kinds import KINDS  # imports NumPy

        self.command, self.given, self.kind = command, given, KINDS[command]
        self.spec_file, self.assignments, self.flags = take_settings(given)
        self.quiet: bool = given["quiet"]
        self.resume: Path | None = given["resume"]
        self.place: list[Path] = []  # holds the folder once it is known
        self.failures: Sequence[Failure] = ()

    def earlier(self) -> Value:
        """Return the request in the folder of --resume; None without."""
        return None if self.resume is None else self.kind.read(self.resume)

    def values(self, defaults: Mapping[str, Value]) -> Values:
        """Return the spec's nested values, from its file, then flags, then --set."""
        return nested_values(self.spec_file, self.flags, self.assignments, defaults)

    def spec(self, defaults: Mapping[str, Value]) -> "Spec":
        spec = resolve(self.values(defaults))
        self.refuse_unused(spec.algorithms, spec.merges)
        return spec

    def refuse_unused(self, algorithms: Iterable[Named], merges: Iterable[Named], **where: str) -> None:
        """Refuse settings of methods that do not take part."""
        from perfeds2.spec.methods import refuse_unused  # imports JAX

        refuse_unused(self.flags.get("tiers"), self.assignments, algorithms, merges, **where)

    def folder(self, name: str) -> Path:
        """Return the folder to write to; without --out it gets the command, this name and a number."""
        if not self.place:
            self.place.append(self.resume or new_folder(self.given["out"], f"{self.command}-{name}".rstrip("-")))
        return self.place[0]

    def do(self, request: Value, name: str = "", specs: "Iterable[Spec]" = (), **more: Value) -> Value:
        """Train what the folder lacks, write the tables and the page, and print them.

        Args:
            request: What is asked for, as the kind's ``run`` takes it.
            name: The name of a new folder, without the command and its number.
            specs: All settings of the study, to warn about their fleets.
            **more: Further arguments of the kind's ``run``.

        Returns:
            The results.
        """
        from perfeds2.report.live import progress
        from perfeds2.runs.pool import HERE, PROCESSES, WorkerChoice
        from perfeds2.runs.session import Execution
        from perfeds2.runs.store import open_others
        from perfeds2.spec.fleet_warnings import fleet_warnings

        for spec in {str(spec.cell.kind): spec for spec in specs}.values():
            for line in fleet_warnings(spec):
                say(self.quiet, f"Warning: {line}")
        given, path, kind = self.given, self.folder(name), self.kind
        others = open_others(given.get("reuse") or ())
        on = PROCESSES if "retries" in given else HERE
        workers = WorkerChoice(given.get("workers", 1), on, given.get("retries", 2))
        drawn: list[Path] = []
        with followed(path) as followers, progress(self.quiet, self.command) as watch:
            how = Execution(
                workers,
                others,
                watch,
                given.get("yes", False),
                followers,
                page=lambda path: drawn.extend(kind.draw(path)),
                typed=f"perfeds2 {' '.join(sys.argv[1:])}",
            )
            found = kind.run(request, path=path, how=how, **more)
        self.failures = getattr(found, "failures", ())
        if others:
            say(self.quiet, f"Reused {sum(other.taken for other in others)} trainings.")
        if drawn and not self.quiet:
            kind.print(path)
        if tables := kind.folder.tables:
            written = (*(path / name for name in tables), *drawn)
            say(self.quiet, "\n".join(f"Wrote: {file}" for file in written))
        return found


@contextmanager
def study(command: str, context: typer.Context) -> Iterator[Study]:
    """Yield the request to a command, and exit with status 1 if trainings failed."""
    sources = {name: context.get_parameter_source(name) for name in (*context.params, *context.obj)}
    typed = {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}
    made = Study(command, context.obj)
    with guarded(command, made.place):
        if made.resume is not None and typed - WITH_RESUME:
            raise InputError("--resume takes everything from the folder; give it without other settings.")
        yield made
        if made.failures:
            from perfeds2.report.live import print_failures

            print_failures(made.failures)
            again = f"perfeds2 {command} --resume {shlex.quote(str(made.place[0]))}"
            typer.echo(f"Retry failed trainings with: {again}", err=True)
    if made.failures:
        raise typer.Exit(1)


def show_help(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def reporting_errors(command: Callable[..., None], name: str = "", extra: Callable[[], None] = lambda: None) -> Any:
    """Print an error of a command as one sentence."""

    @wraps(command)
    def called(**given: Value) -> None:
        with guarded(name or command.__name__, []):
            extra()
            command(**given)

    return called
