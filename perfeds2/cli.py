"""Define the ``perfeds2`` command line and register its commands."""

import re
import sys
from typing import Annotated

import typer

from perfeds2.commands import arena, plan, play, run, simulate, study, sweep, tune
from perfeds2.commands.calibrate import calibrate
from perfeds2.commands.common import STUDY, TRAINING, add_command, reporting_errors
from perfeds2.commands.compare import compare
from perfeds2.commands.compile import compile_clock
from perfeds2.commands.data import data_app
from perfeds2.commands.errata import errata
from perfeds2.commands.export import export
from perfeds2.commands.federate import federate_app
from perfeds2.commands.fleet import fleet
from perfeds2.commands.methods import methods
from perfeds2.commands.replay import replay
from perfeds2.commands.report import report
from perfeds2.commands.reproduce import reproduce
from perfeds2.commands.watch import watch
from perfeds2.console import install_interrupt_handler
from perfeds2.learning.compiled import collect_rarely

COMMANDS = {  # commands without the settings of a run, and their groups in the help
    reproduce: "Experiment",
    report: "Look",
    watch: "Look",
    methods: "Look",
    errata: "Look",
    calibrate: "Deploy",
    replay: "Deploy",
    export: "Deploy",
    fleet: "Data",
}

app = typer.Typer(
    name="perfeds2",
    help="Find which federated learning algorithm learns fastest in a wireless cell.",
    epilog="Start with: perfeds2 compare        Then: perfeds2 COMMAND --help",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
add_command(app, compare, TRAINING)
add_command(app, run.run, TRAINING, defaults=run.DEFAULTS)
add_command(app, simulate.simulate, leave_out=simulate.LEAVES_OUT, defaults=simulate.DEFAULTS)
add_command(app, sweep.sweep, STUDY, defaults=sweep.DEFAULTS)
add_command(app, arena.arena, STUDY, arena.LEAVES_OUT)
add_command(app, study.study, STUDY, defaults=study.DEFAULTS)
add_command(app, plan.plan, STUDY, plan.LEAVES_OUT, plan.DEFAULTS, "Plan")
add_command(app, tune.tune, STUDY, tune.LEAVES_OUT, group="Plan")
add_command(app, play.play, leave_out=play.LEAVES_OUT, defaults=play.DEFAULTS, group="Look")
for command, group in COMMANDS.items():
    app.command(rich_help_panel=group)(reporting_errors(command))
app.command("compile", rich_help_panel="Experiment")(reporting_errors(compile_clock, "compile"))
app.add_typer(federate_app, name="federate", rich_help_panel="Deploy")
app.add_typer(data_app, name="data", rich_help_panel="Data")


@app.callback(invoke_without_command=True)
def _without_command(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the versions of perfeds2 and its main dependencies.")
    ] = False,
) -> None:
    if version:
        from perfeds2.commands.version import describe

        typer.echo(describe())
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main() -> None:
    """Run the ``perfeds2`` command and exit with its status."""
    install_interrupt_handler()
    collect_rarely()
    try:
        status = app(standalone_mode=False)
    except KeyboardInterrupt:
        status = 130
    except Exception as error:
        sentence = getattr(error, "format_message", None)  # set on click's parser errors
        if sentence is None:
            raise
        told = " ".join(dict.fromkeys(re.split(r"(?<=[.?]) ", sentence())))  # typer and click both suggest
        see = "give a spec with --spec" if "unexpected extra argument" in told and ".toml" in told else "see --help"
        typer.echo(f"perfeds2: {told} ({see})", err=True)
        status = 2
    sys.exit(status if isinstance(status, int) else 0)
