"""perfeds2 errata: where the paper errs."""

import typer

from perfeds2.commands.common import flag


def errata(
    numbers: list[int] | None = typer.Argument(
        None, help="Errata to show in full, by number. (default: a list of all)", metavar="N", show_default=False
    ),
    markdown: bool = flag("--markdown", "Print docs/reports/errata.md: a line for each.", default=False),
    quiet: bool = flag("--quiet", "Print only numbers: erratum, quantity and value, separated by tabs.", default=False),
) -> None:
    """Show where the paper's formulas are wrong, with numbers.

    For example, perfeds2 errata 9 shows that Algorithm 2 as printed never schedules 11 of 20 UEs.
    """
    from perfeds2.paper.errata import errata_markdown, errata_table, errata_text

    if markdown:
        typer.echo(errata_markdown(), nl=False)
    else:
        typer.echo((errata_table if quiet else errata_text)(numbers or None))
