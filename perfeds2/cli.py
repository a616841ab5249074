"""The command line: which commands are there?"""

import re
import sys
from typing import Annotated

import typer

from perfeds2.commands import arena, plan, play, run, simulate, sweep, tune
from perfeds2.commands.calibrate import calibrate
from perfeds2.commands.common import SettingsCommand, with_settings
from perfeds2.commands.compare import compare
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
from perfeds2.console import hear_interrupts
from perfeds2.learning.compiled import collect_rarely

app = typer.Typer(
    name="perfeds2",
    help="Time-aware federated learning for mobile edge networks: who learns fastest in a wireless cell?",
    epilog="Start with: perfeds2 compare        Then: perfeds2 COMMAND --help",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(cls=SettingsCommand)(with_settings(compare))
app.command(cls=SettingsCommand.with_defaults(run.DEFAULTS))(with_settings(run.run))
app.command(cls=SettingsCommand.with_defaults(simulate.DEFAULTS))(with_settings(simulate.simulate, simulate.LEAVES_OUT))
app.command(cls=SettingsCommand.with_defaults(plan.SHOWN))(with_settings(plan.plan, plan.LEAVES_OUT))
app.command(cls=SettingsCommand.with_defaults(play.DEFAULTS))(with_settings(play.play, play.LEAVES_OUT))
app.command(cls=SettingsCommand.with_defaults(sweep.DEFAULTS))(with_settings(sweep.sweep))
app.command(cls=SettingsCommand)(with_settings(tune.tune, tune.LEAVES_OUT))
app.command(cls=SettingsCommand)(with_settings(arena.arena, arena.LEAVES_OUT))
COMMANDS = (reproduce, report, watch, errata, methods, replay, fleet, calibrate, export)  # those without settings
for command in COMMANDS:
    app.command()(command)
app.add_typer(data_app, name="data")
app.add_typer(federate_app, name="federate")


@app.callback(invoke_without_command=True)
def _without_command(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version, and of what it depends on.")] = False,
) -> None:
    if version:
        from perfeds2.commands.version import describe

        typer.echo(describe())
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main() -> None:
    """The ``perfeds2`` command."""
    hear_interrupts()
    collect_rarely()
    try:
        status = app(standalone_mode=False)
    except KeyboardInterrupt:
        status = 130
    except Exception as error:
        sentence = getattr(error, "format_message", None)  # what the parser itself has to say
        if sentence is None:
            raise
        told = " ".join(dict.fromkeys(re.split(r"(?<=[.?]) ", sentence())))  # typer and click both suggest: once
        see = "a spec goes behind --spec" if "unexpected extra argument" in told and ".toml" in told else "see --help"
        typer.echo(f"perfeds2: {told} ({see})", err=True)
        status = 2
    sys.exit(status if isinstance(status, int) else 0)
