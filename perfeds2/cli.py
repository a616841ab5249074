"""The command line: parses, calls, prints."""

import inspect
import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from perfeds2.commands.federate import federate_app
from perfeds2.commands.replay import replay
from perfeds2.commands.spec_flags import SETTINGS
from perfeds2.console import guarded, hear_interrupts, heed, say

if TYPE_CHECKING:
    from perfeds2.learning.datasets.sources import Watch as FetchWatch
    from perfeds2.runs.execute import Watch
    from perfeds2.spec.fields import Spec

app = typer.Typer(
    name="perfeds2",
    help="Time-aware federated learning for mobile edge networks: who learns fastest in a wireless cell?",
    epilog="Start with: perfeds2 compare        Then: perfeds2 COMMAND --help",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _forget_compiled(wanted: bool | None) -> None:
    if wanted:
        os.environ["PERFEDS2_COMPILE_CACHE"] = "off"  # also for processes that are started from here


NoCompileCache = Annotated[
    bool | None,
    typer.Option(
        "--no-compile-cache",
        help="Compile everything anew, and keep nothing in the user's cache.",
        callback=_forget_compiled,
        expose_value=False,
    ),
]


def compare(**given: Any) -> None:
    """Run algorithms side by side on the same cell, data, fading and initial weights, and see who learns fastest.

    The terminal shows a table, the output folder gets everything: metrics.csv, timeline.npz, model.safetensors,
    summary.json and report.html, which opens offline. The same spec gives the same bytes of metrics.
    """
    _execute("compare", given)


def run(**given: Any) -> None:
    """Train one algorithm (PerFedS2 unless --algorithms says otherwise), with one seed unless told more."""
    _execute("run", given, {"algorithms": ["PerFedS2"], "seeds": [0]})


def simulate(**given: Any) -> None:
    """Play only the clock: who is merged when, how stale, who waits. Trains nothing."""
    _execute("simulate", given, {"seeds": [0]})


def _execute(command: str, given: dict[str, Any], defaults: dict[str, Any] | None = None) -> None:
    quiet: bool = given.pop("quiet")
    place: list[Path] = []
    with guarded(command, place):
        from perfeds2.runs.folder import Folder, alone, free_folder, open_folder

        resume: Path | None = given.pop("resume")
        out: Path | None = given.pop("out")
        spec = _spec(given, defaults or {}, resume)
        path = resume or out or free_folder(Path("runs"), f"{command}-{spec.task.name}")
        if not Folder(path).finished:
            from perfeds2.runs.execute import check, execute, execute_timelines

            if command != "simulate":
                _prepare_to_train()
            check(spec, command)
        folder = open_folder(path, spec)
        place.append(path)
        if folder.finished:
            say(quiet, f"{path} already holds this finished run.")
        else:
            with alone(path), _progress(quiet, command) as watch:
                folder.log(f"started: perfeds2 {' '.join(sys.argv[1:])}")
                if command == "simulate":
                    execute_timelines(spec, command, folder, watch)
                else:
                    execute(spec, command, folder, watch=watch)
        if not (path / "report.html").exists():
            from perfeds2.report.page import write_report

            write_report(path)
        if not quiet:
            from perfeds2.report.terminal import print_summary

            print_summary(json.loads((path / "summary.json").read_text(encoding="utf-8")))
            typer.echo(f"Results: {path}    Report: {path / 'report.html'}")


def plan(**given: Any) -> None:
    """Find the A and S that reach the target soonest, in seconds, for PerFedS2 on a cell.

    Seconds a round come from the simulated clock, rounds from the bounds and from short pilot trainings; the answer says
    which is which. The output folder gets plan.json and the curve over A as plan.png and plan.pdf.
    """
    quiet, as_json = given.pop("quiet"), given.pop("json")
    with guarded("plan", []):
        from perfeds2.runs.folder import free_folder, open_folder

        out: Path | None = given.pop("out")
        with_check: bool = given.pop("check")
        asked = {name: given.pop(name) for name in ("target_loss", "epsilon", "pilot_rounds")}
        asked["quorums"] = _whole_numbers("--quorums", given.pop("quorums"))
        asked["stalenesses"] = _whole_numbers("--stalenesses", given.pop("stalenesses"), or_unbounded=True)
        spec = _spec(given, {"algorithms": ["PerFedS2"], "seeds": [0]}, None)
        from perfeds2.planning.plan import check_request, make_plan
        from perfeds2.report.plan import print_plan, write_plan
        from perfeds2.runs.execute import check

        _prepare_to_train()
        check_request(spec, **asked)
        check(spec, "plan")
        path = out or free_folder(Path("runs"), f"plan-{spec.task.name}")
        folder = open_folder(path, spec)
        with _progress(quiet or as_json, "plan") as watch:
            made = make_plan(spec, **asked, check=with_check, watch=watch)
        write_plan(made, path)
        if folder.parts.exists():
            folder.close()
        if as_json:
            typer.echo(made.to_json())
        elif not quiet:
            print_plan(made)
            typer.echo(f"Plan: {path / 'plan.json'}    Curve: {path / 'plan.png'}")


def sweep(**given: Any) -> None:
    """Vary settings over a grid: perfeds2 sweep SPEC --grid quorum=1,2,5,10,20 --grid seed=0..19

    Runs on all cores (or GPUs) of this machine, or on a Ray cluster. The output folder gets sweep.csv (a row per point,
    algorithm, seed and evaluation), sweep_summary.csv and a chart. What is finished is never lost: the same command with
    --out, or --resume DIR, goes on.
    """
    quiet: bool = given.pop("quiet")
    place: list[Path] = []
    failures = 0
    with guarded("sweep", place):
        from perfeds2.report.sweep import print_failures, print_sweep, progress, write_chart
        from perfeds2.runs.folder import free_folder
        from perfeds2.runs.sweep import grid_from_flags, read_sweep, run_sweep
        from perfeds2.spec.fields import InputError

        resume, out = given.pop("resume"), given.pop("out")
        how = {name: given.pop(name) for name in ("on", "workers", "retries")}
        spec_file, also, texts = given.pop("file"), given.pop("spec"), given.pop("grid") or []
        assignments = given.pop("set_") or []
        flags = {name: value for name, value in given.items() if value is not None}
        if resume is not None:
            if spec_file or also or texts or assignments or flags or out:
                raise InputError(
                    "--resume takes everything from the folder's sweep.toml; give it without other settings."
                )
            grid = read_sweep(resume)
        else:
            if spec_file and also:
                raise InputError(f"the spec is given twice: {spec_file} and --spec {also}; give one of them.")
            values = _values(spec_file or also, flags, assignments, {"algorithms": ["PerFedS2"]})
            grid = grid_from_flags(values, texts, list(flags))
        path = resume or out or free_folder(Path("runs"), "sweep")
        place.append(path)
        with progress(quiet) as watch:
            swept = run_sweep(grid, path, **how, watch=watch)
        drawn = write_chart(swept)
        failures = len(swept.failures)
        if quiet:
            print_failures(swept.failures)
        else:
            print_sweep(swept)
            written = (path / "sweep.csv", path / "sweep_summary.csv", *drawn)
            typer.echo("\n".join(f"Wrote: {file}" for file in written))
        if failures:
            typer.echo(f"Try what failed again with: perfeds2 sweep --resume {shlex.quote(str(path))}", err=True)
    if failures:
        raise typer.Exit(1)


def report(
    folder: Annotated[
        Path, typer.Argument(help="A run's folder, or one of figures that perfeds2 reproduce made.", metavar="DIR")
    ],
    paper: Annotated[
        bool, typer.Option("--paper", help="Also PDF and PNG figures in a two-column paper's style.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", help="Where the paper figures go. (default: DIR/figures; DIR for reproduced ones)", metavar="DIR"
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing.")] = False,
) -> None:
    """Draw a folder again: its page, and with --paper the figures for a paper."""
    with guarded("report", []):
        from perfeds2.spec.fields import InputError

        is_set = (folder / "reproduce.toml").exists()
        if not (is_set or (folder / "summary.json").exists()):
            raise InputError(
                f"{folder} holds no finished run (no summary.json); expected a folder that perfeds2 wrote."
            )
        try:
            for path in _draw_set(folder, paper, out) if is_set else _draw_run(folder, paper, out):
                say(quiet, f"{'Report' if path.suffix == '.html' else 'Figure'}: {path}")
        except (LookupError, TypeError, AttributeError) as error:  # a file that reads well, and says something else
            raise InputError(f"{folder} does not hold what perfeds2 wrote ({type(error).__name__}: {error}).") from None
        except (ValueError, OSError) as error:  # a file of the folder is missing or corrupt, or cannot be written
            raise InputError(f"{folder}: {' '.join(str(error).split())}") from None


def _draw_run(folder: Path, paper: bool, out: Path | None) -> list[Path]:
    from perfeds2.report.page import write_report

    written = [write_report(folder)]
    if paper:
        from perfeds2.report.paper import write_paper_figures

        written += write_paper_figures(folder, out)
    return written


def _draw_set(folder: Path, paper: bool, out: Path | None) -> list[Path]:
    from perfeds2.paper.reproduce import command_of, load_figures
    from perfeds2.report.reproduction import write_figure
    from perfeds2.report.reproduction_page import write_page

    figures = load_figures(["all"])
    written = [write_page(figures, folder, command_of(folder))]
    for figure in figures:
        if paper and (csv := folder / f"{figure.name}.csv").exists():
            written += write_figure(figure, csv, out or folder)
    return written


def errata(
    numbers: Annotated[
        list[int] | None,
        typer.Argument(
            help="Which errata, by number, in full. (default: the numbers of all)", metavar="N", show_default=False
        ),
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print docs/errata.md: all of them in full.")] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="Only the numbers, a line each: erratum, what is measured, value (tabs).")
    ] = False,
) -> None:
    """Show by numbers where the paper's formulas err, and what is done instead.

    Nothing is looked up: every number is computed now, in a few seconds. For example, 'perfeds2 errata 9' runs
    Algorithm 2 as printed and shows that 11 of 20 UEs are never scheduled.
    """
    with guarded("errata", []):
        from perfeds2.paper.errata import errata_markdown, errata_table, errata_text

        if markdown:
            typer.echo(errata_markdown(), nl=False)
        else:
            typer.echo((errata_table if quiet else errata_text)(numbers or None))


def bench(
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only", help="Just this group: replay, clock, start-up, allocation or joint. Repeatable.", metavar="GROUP"
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of the random data and cells.", metavar="SEED", min=0)] = 0,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Where bench.json goes. (default: a new folder in runs/)", metavar="DIR"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the JSON instead of the table.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress, no table.")] = False,
) -> None:
    """Measure how fast this is, against bare NumPy and JAX loops, SimPy and a convex solver; a few minutes.

    Rivals take turns in one run and ratios are medians. A target that is missed is shown as missed. The group 'joint'
    asks whether planning the rounds and sharing the band for them pays in seconds to an accuracy.
    """
    with guarded("bench", []):
        from perfeds2.bench.bench import bench as measure
        from perfeds2.bench.bench import print_results, to_json
        from perfeds2.files import write_text
        from perfeds2.runs.folder import free_folder

        tell = None if quiet else lambda line: typer.echo(line, err=True)
        results = measure(only, seed=seed, tell=tell)
        path = out or free_folder(Path("runs"), "bench")
        path.mkdir(parents=True, exist_ok=True)
        write_text(path / "bench.json", to_json(results))
        if as_json:
            typer.echo(to_json(results), nl=False)
        elif not quiet:
            print_results(results)
            typer.echo(f"Results: {path / 'bench.json'}")


def reproduce(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Which figures: exp_1 … exp_8, or all.", metavar="FIGURE", show_default=False),
    ] = None,
    scale: Annotated[
        Literal["quick", "paper"],
        typer.Option("--scale", help="quick is 10 to 150 simulated seconds a run, paper 600 to 2,000."),
    ] = "quick",
    seeds: Annotated[
        str | None,
        typer.Option(
            "--seeds",
            help="How many (5 is 0..4), or which: 0,3,7 or 0..9. A verdict takes five. (default: 5, and 3 for quick)",
            metavar="SEEDS",
        ),
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            "--data-dir", help="Where the data sets are; else $PERFEDS2_DATA, then the user's cache.", metavar="DIR"
        ),
    ] = None,
    task: Annotated[
        list[str] | None,
        typer.Option("--task", help="Just the panels on mnist, cifar100 or shakespeare. Repeatable.", metavar="NAME"),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Where everything goes. (default: runs/reproduce-SCALE)", metavar="DIR")
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Try a setting instead of the paper's: learning.beta=0.02. Repeatable.",
            metavar="SECTION.KEY=VALUE",
        ),
    ] = None,
    claims: Annotated[
        bool, typer.Option("--claims", help="Print which claims of Section VI hold, by what is in --out.")
    ] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the claims as Markdown.")] = False,
    no_compile_cache: NoCompileCache = None,  # noqa: ARG001 (acts where it is parsed)
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar, no table.")] = False,
) -> None:
    """Run figures of the paper's Section VI again, with seeds, and judge what it claims.

    The same command again goes on where it was interrupted; runs that figures share are done once. The output folder
    gets every figure as CSV, PDF and PNG, and reproduction.html with the ledger of claims.
    """
    place: list[Path] = []
    with guarded("reproduce", place, go_on=f"perfeds2 {shlex.join(sys.argv[1:])}"):
        from perfeds2.paper.claims import ledger
        from perfeds2.paper.reproduce import command_of, load_figures, open_set, plan_runs
        from perfeds2.paper.reproduce import reproduce as run_figures
        from perfeds2.report.ledger import ledger_markdown, print_ledger, write_ledger
        from perfeds2.spec.fields import InputError, put_text, resolve

        if not names and not (claims or markdown):
            raise InputError("name figures (exp_1 … exp_8, or all), or ask for the --claims of what was run before.")
        path = out or Path("runs") / f"reproduce-{scale}"
        if names:
            from perfeds2.report.reproduction import write_figure
            from perfeds2.report.reproduction_page import write_page

            _prepare_to_train()
            seeds = seeds or ("3" if scale == "quick" else "5")
            figures, all_seeds = load_figures(names), resolve({"run": {"seeds": _seeds(seeds)}}).run.seeds
            changed: dict[str, Any] = {}
            for assignment in changes or ():
                put_text(changed, assignment)
            runs = plan_runs(figures, all_seeds, scale, task, changed)
            open_set(path, scale, changed)
            place.append(path)
            written: list[Path] = []
            with _progress(quiet, "reproduce") as watch:
                for figure, table in run_figures(figures, runs, path, watch, data_dir):
                    written += [table, *write_figure(figure, table, path)]
            written += write_ledger(ledger(path), path)
            written.append(write_page(load_figures(["all"]), path, command_of(path)))
            say(quiet, "\n".join(f"Wrote: {file}" for file in written))
        if markdown:
            typer.echo(ledger_markdown(ledger(path)))
        elif claims and not quiet:
            print_ledger(ledger(path))


data_app = typer.Typer(help="The real data sets: fetch them, see what is there, where.")
NAMES = "mnist, cifar100 or shakespeare"
DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", help="Look here first; else $PERFEDS2_DATA, then the user's cache.", metavar="DIR"),
]


@data_app.callback(invoke_without_command=True)
def _data_without_command(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@data_app.command("fetch")
def data_fetch(
    names: Annotated[list[str], typer.Argument(help=f"Which: {NAMES}, or all.", metavar="NAME...")],
    data_dir: Annotated[
        Path | None,
        typer.Option(
            "--data-dir", help="Put them here. (default: $PERFEDS2_DATA, else the user's cache)", metavar="DIR"
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar, print nothing.")] = False,
) -> None:
    """Download official files over HTTPS and check them. What is already there and right stays as it is."""
    with guarded("data fetch", []), _data_errors():
        from perfeds2.learning.datasets.sources import SOURCES, fetch, source

        wanted = [source(name) for name in (SOURCES if names == ["all"] else dict.fromkeys(names))]
        for each in wanted:
            with _download_bar(quiet, each.name) as watch:
                folder = fetch(each.name, data_dir, watch=watch)
            say(quiet, f"{each.name}: {folder} ({each.terms})")


@data_app.command("status")
def data_status(data_dir: DataDir = None) -> None:
    """What is there of each data set, where, and whether it is complete."""
    with guarded("data status", []), _data_errors():
        from perfeds2.learning.datasets.sources import status

        every = status(data_dir)
        for each in every:
            if each.found is not None:
                kind = "official files" if each.official else "not the official files' bytes"
                typer.echo(f"{each.name:<12} complete    {each.found.folder} ({each.found.form}; {kind})")
            elif each.missing:
                typer.echo(
                    f"{each.name:<12} incomplete  {', '.join(each.missing)} missing; perfeds2 data fetch {each.name}"
                )
            else:
                typer.echo(f"{each.name:<12} not found   perfeds2 data fetch {each.name}")
        typer.echo(f"Looked in {', '.join(map(str, every[0].looked_in))}.")


@data_app.command("path")
def data_path(
    name: Annotated[str | None, typer.Argument(help=f"Which: {NAMES}.", metavar="[NAME]")] = None,
    data_dir: DataDir = None,
) -> None:
    """Where a data set is; without a name, where data sets are looked for first."""
    with guarded("data path", []), _data_errors():
        from perfeds2.learning.datasets.sources import find, folders

        typer.echo(folders(data_dir)[0] if name is None else find(name, data_dir).folder)


@contextmanager
def _data_errors() -> Iterator[None]:
    """What is wrong with the data is for the user to put right."""
    from perfeds2.learning.datasets.sources import DataMissing, FetchFailed
    from perfeds2.spec.fields import InputError

    try:
        yield
    except (DataMissing, FetchFailed) as error:
        raise InputError(str(error)) from None


@contextmanager
def _download_bar(quiet: bool, name: str) -> "Iterator[FetchWatch | None]":
    """A bar on stderr: file, bytes, speed, time left."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task(name, total=None)

        def watch(file: str, done: int, total: int) -> None:
            progress.update(bar, description=f"{name}/{file}", completed=done, total=total or None)

        yield watch


def _with_settings(
    command: Callable[..., None], leave_out: tuple[str, ...] = (), own: dict[str, tuple[Any, Any]] | None = None
) -> Callable[..., None]:
    """Give a command the flags of SETTINGS, its own, and those every command has."""
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        inspect.Parameter(
            flag.replace("-", "_"),
            keyword,
            default=None,
            annotation=Annotated[
                str | None if look else bool | None,
                typer.Option(f"--{flag}", help=text, metavar=look or None, rich_help_panel=panel),
            ],
        )
        for flag, (_, _, look, panel, text) in SETTINGS.items()
        if flag not in leave_out
    ]
    common: dict[str, tuple[Any, Any]] = {
        "spec": (Annotated[Path | None, typer.Option("--spec", help="A TOML file that stands for all flags; flags go over it.", metavar="FILE")], None),
        "set_": (Annotated[list[str] | None, typer.Option("--set", help="Any setting of the spec: section.key=value. Repeatable.", metavar="KEY=VALUE")], None),
        "out": (Annotated[Path | None, typer.Option("--out", help="Where the results go. (default: a new folder in runs/)", metavar="DIR")], None),
        "resume": (Annotated[Path | None, typer.Option("--resume", help="Go on with a run that was interrupted or killed.", metavar="DIR")], None),
        "no_compile_cache": (NoCompileCache, None),
        "quiet": (Annotated[bool, typer.Option("--quiet", help="No progress bar, no table.")], False),
    }  # fmt: skip
    parameters += [
        inspect.Parameter(name, keyword, default=default, annotation=kind)
        for name, (kind, default) in {**(own or {}), **common}.items()
        if name not in leave_out
    ]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # functions take attributes
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def _spec(given: dict[str, Any], defaults: dict[str, Any], resume: Path | None) -> "Spec":
    """From a spec file, then flags, then --set; or from the folder to be resumed."""
    from perfeds2.spec.fields import InputError, read_toml, resolve

    spec_file, assignments = given.pop("spec"), given.pop("set_") or []
    flags = {name: value for name, value in given.items() if value is not None}
    if resume is not None:
        if flags or spec_file or assignments:
            raise InputError("--resume takes everything from the folder's spec.toml; give it without other settings.")
        if not (resume / "spec.toml").exists():
            raise InputError(
                f"--resume {resume} holds no run (no spec.toml); give the folder of a run that was started."
            )
        return resolve(read_toml(resume / "spec.toml"))
    return resolve(_values(spec_file, flags, assignments, defaults))


def _values(
    spec_file: Path | None, flags: dict[str, Any], assignments: list[str], defaults: dict[str, Any]
) -> dict[str, Any]:
    """A spec's nested values: from its file, then flags, then --set."""
    from perfeds2.spec.fields import put, put_text, read_toml

    values: dict[str, Any] = {} if spec_file is None else read_toml(spec_file)
    for key, value in defaults.items():
        if key not in values.get("run", {}):
            put(values, "run", key, value)
    for name, value in flags.items():
        section, key, *_ = SETTINGS[name.replace("_", "-")]
        put(values, section, key, _parse(name, value))
    for assignment in assignments:
        put_text(values, assignment)
    return values


def _parse(name: str, text: str) -> Any:
    """Lists from the command line; everything else is read by the spec."""
    match name:
        case "algorithms":
            return [part.strip() for part in text.split(",") if part.strip()]
        case "shares" if "," in text:
            return [part.strip() for part in text.split(",")]
        case "seed":
            return [text]
        case "seeds":
            return _seeds(text)
        case _:
            return text


def _whole_numbers(flag: str, text: str | None, *, or_unbounded: bool = False) -> list[int | None] | None:
    """``1,2,5`` as numbers; ``unbounded`` is none, where that may be."""
    from perfeds2.spec.fields import InputError

    if text is None:
        return None
    numbers: list[int | None] = []
    for part in (part.strip() for part in text.split(",")):
        if part == "unbounded" and or_unbounded:
            numbers.append(None)
        elif part.isdecimal():
            numbers.append(int(part))
        else:
            more = " (or 'unbounded')" if or_unbounded else ""
            raise InputError(f"{flag} takes whole numbers{more} between commas, such as 1,2,5; got {text!r}.")
    return numbers


def _seeds(text: str) -> list[Any]:
    """``5`` is 0 to 4; ``3,7`` those two; ``0..9`` a range."""
    seeds: list[Any] = []
    parts = text.split(",")
    for part in parts:
        first, dots, last = part.partition("..")
        if dots and first.strip().isdigit() and last.strip().isdigit() and int(last) - int(first) < 1_000_000:
            seeds += range(int(first), int(last) + 1)
        elif len(parts) == 1 and part.strip().isdigit() and int(part) < 1_000_000:
            seeds += range(int(part))
        else:
            seeds.append(part.strip())
    return seeds


@contextmanager
def _progress(quiet: bool, command: str) -> "Iterator[Watch]":
    """A bar on stderr: simulated time, rounds a second, time left. Quiet or not, Ctrl-C is heeded at every step."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield heed
        return
    import time

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[detail]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task(command, total=1.0, detail="starting …")
        first: list[float] = []  # when the first rounds had been trained: compiling is over

        shown = 0.0

        def watch(now: Any) -> None:
            nonlocal shown
            heed()
            if now.share < 1 and time.monotonic() - shown < 0.05:
                return
            shown = time.monotonic()
            if now.rounds and not first:
                first.append(time.monotonic())
            speed = now.rounds / max(time.monotonic() - first[0], 1.0) if first else 0.0
            progress.update(
                bar,
                completed=now.share,
                description=f"{now.algorithm} seed {now.seed}",
                detail=f"simulated {now.time_s:.4g} s, {speed:,.0f} rounds/s",
            )

        yield watch


def _prepare_to_train() -> None:
    from perfeds2.learning.compiled import deterministic, keep_compiled

    os.environ.update(deterministic())
    keep_compiled()


SIMULATE_LEAVES_OUT = (
    *("data-dir", "alpha", "beta", "eval-every-s", "target-accuracy", "stop-when-diverged", "no_compile_cache"),
)
PLAN_LEAVES_OUT = (
    *("algorithms", "seeds", "horizon-s", "rounds", "eval-every-s", "stop-when-diverged"),
    *("schedule", "bandwidth", "resume"),
)
PLAN_FLAGS: dict[str, tuple[Any, Any]] = {
    "target_loss": (Annotated[float | None, typer.Option("--target-loss", help="The personalised training loss to reach. (default: the loss at which a pilot meets --target-accuracy)", metavar="LOSS", rich_help_panel="Plan")], None),
    "epsilon": (Annotated[float | None, typer.Option("--epsilon", help="The mean of ‖∇F‖² that the bounds are asked for. (default: the pilot's on its way to the loss)", metavar="EPS", rich_help_panel="Plan")], None),
    "quorums": (Annotated[str | None, typer.Option("--quorums", help="The A to look at, such as 1,2,5. (default: about eight from 1 to n)", metavar="A,A", rich_help_panel="Plan")], None),
    "stalenesses": (Annotated[str | None, typer.Option("--stalenesses", help="The S to look at, such as 5,10,unbounded. (default: S, 2S and n)", metavar="S,S", rich_help_panel="Plan")], None),
    "pilot_rounds": (Annotated[int, typer.Option("--pilot-rounds", help="The first pilot gives up after so many rounds.", metavar="K", rich_help_panel="Plan")], 1000),
    "check": (Annotated[bool, typer.Option("--check", help="Train at a few A with other noise: predicted against measured.", rich_help_panel="Plan")], False),
    "json": (Annotated[bool, typer.Option("--json", help="Print the plan as JSON instead of tables.", rich_help_panel="Plan")], False),
}  # fmt: skip

SWEEP_FLAGS: dict[str, tuple[Any, Any]] = {
    "file": (Annotated[Path | None, typer.Argument(help="A TOML file that stands for all flags; flags and the grid go over it.", metavar="[SPEC]", show_default=False)], None),
    "grid": (Annotated[list[str] | None, typer.Option("--grid", help="A setting and its values, quorum=1,2,5 or seed=0..19; a flag's name or section.key. Repeatable; all combinations are run.", metavar="NAME=VALUES", rich_help_panel="Sweep")], None),
    "on": (Annotated[str, typer.Option("--on", help="Where: processes (of this machine), ray (started here) or ray://HOST:PORT.", metavar="ENGINE", rich_help_panel="Sweep")], "processes"),
    "workers": (Annotated[int | None, typer.Option("--workers", help="How many at a time. (default: one per core, or per GPU)", metavar="N", rich_help_panel="Sweep")], None),
    "retries": (Annotated[int, typer.Option("--retries", help="How often a failed run is tried again.", metavar="N", rich_help_panel="Sweep")], 2),
}  # fmt: skip

app.command()(_with_settings(compare))
app.command()(_with_settings(run))
app.command()(_with_settings(simulate, leave_out=SIMULATE_LEAVES_OUT))
app.command()(_with_settings(plan, PLAN_LEAVES_OUT, PLAN_FLAGS))
app.command()(_with_settings(sweep, own=SWEEP_FLAGS))
app.command()(reproduce)
app.command()(report)
app.command()(errata)
app.command()(bench)
app.add_typer(data_app, name="data")
app.add_typer(federate_app, name="federate")
app.command()(replay)


@app.callback(invoke_without_command=True)
def _without_command(
    context: typer.Context, version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False
) -> None:
    if version:
        from perfeds2 import __version__

        typer.echo(f"perfeds2 {__version__}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main() -> None:
    """The ``perfeds2`` command."""
    hear_interrupts()
    try:
        status = app(standalone_mode=False)
    except KeyboardInterrupt:
        status = 130
    except Exception as error:
        sentence = getattr(error, "format_message", None)  # what the parser itself has to say
        if sentence is None:
            raise
        told = sentence()
        see = "a spec goes behind --spec" if "unexpected extra argument" in told and ".toml" in told else "see --help"
        typer.echo(f"perfeds2: {told} ({see})", err=True)
        status = 2
    sys.exit(status if isinstance(status, int) else 0)


if __name__ == "__main__":
    main()
