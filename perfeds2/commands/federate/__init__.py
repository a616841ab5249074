"""perfeds2 federate …: the same protocol on real devices. One module says which machines there are, one what runs on them."""

import typer

from perfeds2.commands.common import with_flags
from perfeds2.commands.federate.flags import CELL, CREDENTIALS, SETTINGS, SITE, FederationCommand, in_one_sentence
from perfeds2.commands.federate.local import local
from perfeds2.commands.federate.machines import credentials, device, register, server
from perfeds2.commands.federate.runs import resume, stop, submit, watch

federate_app = typer.Typer(
    help="The same protocol for real: a federation of devices on Flower, with TLS and device keys. Start with: perfeds2 federate local"
)
federate_app.command(cls=FederationCommand)(with_flags(local, SETTINGS))
TAKES = {
    credentials: {},
    server: CREDENTIALS,
    register: SITE,
    device: SITE,
    submit: SITE | {name: each for name, each in SETTINGS.items() if name not in CELL},
    resume: SITE,
    watch: {},
    stop: SITE,
}
for command, flags in TAKES.items():
    federate_app.command(cls=FederationCommand)(in_one_sentence(with_flags(command, flags)))


@federate_app.callback(invoke_without_command=True)
def _without_command(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
