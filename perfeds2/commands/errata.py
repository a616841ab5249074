"""perfeds2 errata: where the paper errs."""

import typer

from perfeds2.commands.common import flag
from perfeds2.console import guarded


def errata(
    numbers: list[int] | None = typer.Argument(
        None, help="Which errata, by number, in full. (default: the numbers of all)", metavar="N", show_default=False
    ),
    markdown: bool = flag("--markdown", "Print docs/reports/errata.md: all of them in full.", default=False),
    quiet: bool = flag(
        "--quiet", "Only the numbers, a line each: erratum, what is measured, value (tabs).", default=False
    ),
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
