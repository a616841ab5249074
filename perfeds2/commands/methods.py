"""perfeds2 methods: list the methods and their settings."""

from typing import TYPE_CHECKING

import typer

from perfeds2.commands.completion import of_kind
from perfeds2.spec.names import Value
from perfeds2.spec.values import METHOD

if TYPE_CHECKING:
    from perfeds2.spec.methods import ListedMethod


def methods(
    name: str | None = typer.Argument(
        None, help="One method in full. (default: all, a row each)", metavar="METHOD", autocompletion=of_kind(METHOD)
    ),
) -> None:
    """List the methods with their rules, papers and settings.

    Set one with --set Ditto.pull=0.1, in a spec file below [methods.Ditto], in a grid as Ditto.pull, or in Python as
    Ditto(pull=0.1).
    """
    from perfeds2.spec.fields import own_settings
    from perfeds2.spec.methods import find_method, listed_methods

    if name is not None:
        typer.echo(_described(find_method(name)))
    else:
        from rich.console import Console
        from rich.table import Column, Table

        table = Table(Column("method", no_wrap=True), "rule", "rounds", "settings", "paper", box=None, pad_edge=False)
        for method in listed_methods():
            defaults = [f"{key}={each.default}" for key, each in own_settings(method.make).items()]
            rule = str(method.make.__doc__).splitlines()[0]
            table.add_row(method.name, rule, method.rounds, ", ".join(defaults), method.make.paper)
        Console().print(table)


def _described(method: "ListedMethod") -> str:
    """Return a method's rule, paper, rounds and settings as text."""
    import inspect
    from dataclasses import fields

    from perfeds2.spec.fields import own_settings

    make: Value = method.make
    rule = inspect.cleandoc(make.__doc__)
    lines = [f"{method.name} ({make.paper})", "", rule, "", f"Rounds: {method.rounds}"]
    helps = {field.name: field.metadata.get("help", "") for field in fields(make)}
    rows = [(f"{method.name}.{key} = {each.default}", helps[key]) for key, each in own_settings(make).items()]
    width = max((len(setting) for setting, _ in rows), default=0)
    return "\n".join([*lines, *(f"{setting:{width}}  {text}" for setting, text in rows)])
