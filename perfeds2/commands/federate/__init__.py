"""perfeds2 federate …: the same protocol on real devices. One module says which machines there are, one what runs on them."""

import typer

from perfeds2.commands.federate.flags import in_one_sentence
from perfeds2.commands.federate.local import local
from perfeds2.commands.federate.machines import credentials, device, register, server
from perfeds2.commands.federate.runs import resume, stop, submit, watch

federate_app = typer.Typer(
    help="The same protocol for real: a federation of devices on Flower, with TLS and device keys. Start with: perfeds2 federate local"
)
federate_app.command()(local)
for command in (credentials, server, register, device, submit, resume, watch, stop):
    federate_app.command()(in_one_sentence(command))


@federate_app.callback(invoke_without_command=True)
def _without_command(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
