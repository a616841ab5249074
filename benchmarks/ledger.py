"""Print the ledger of the paper's claims as Markdown, as in docs/reports/ledger.md::

python -m benchmarks.ledger DIR --beside OTHER
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from perfeds2.report.ledger import MEANING, Ledger, best_table, ledger_table, open_ledgers, summary
from perfeds2.report.tables import Cell, Table, spans_of


def ledger_markdown(ledgers: Sequence[Ledger]) -> str:
    """Return the counts, then the judged claims as a Markdown table."""
    best = best_table(ledgers)
    parts = [*summary(ledgers), as_markdown(ledger_table(ledgers)), MEANING]
    return "\n\n".join([*parts, f"{best.title}:", as_markdown(best)] if best.rows else parts) + "\n"


def as_markdown(table: Table) -> str:
    """Render a table as Markdown, with best values and verdicts in bold."""
    rule = ["--:" if column.side == "right" else "---" for column in table.columns]
    rows = [[column.head for column in table.columns], *([_in_markdown(cell) for cell in row] for row in table.rows)]
    head, *body = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([head, f"|{'|'.join(rule)}|", *body])


def _in_markdown(cell: Cell) -> str:
    texts = [(span.text.replace("|", "\\|").replace("\n", "<br>"), span.kind) for span in spans_of(cell)]
    marks = dict.fromkeys(("best", "holds", "fails"), "**{}**") | {"warn": " ({})"}
    return "".join(marks.get(kind, "{}").format(text) for text, kind in texts)


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("::")[0])
    parser.add_argument("folder", type=Path, help="folder of perfeds2 reproduce")
    parser.add_argument("--beside", type=Path, help="another such folder, whose verdicts stand beside")
    asked = parser.parse_args(given)
    print(ledger_markdown(open_ledgers(asked.folder, asked.beside)))


if __name__ == "__main__":
    main()
