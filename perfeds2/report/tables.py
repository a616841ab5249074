"""How is one table shown in the terminal, as Markdown, on a page and in LaTeX?

A table is columns and rows of cells; a cell is text, or pieces of text of which some are marked. Whatever a name in it
contains is shown as it is: every form escapes what has a meaning in it.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

from rich import table as rich_table
from rich.text import Text

Kind = Literal["", "best", "half", "warn", "dim", "holds", "fails", "undecided", "not run"]
TERMINAL: dict[str, str] = {  # how rich calls it
    "best": "bold", "half": "", "warn": "red", "dim": "dim",
    "holds": "green", "fails": "red", "undecided": "yellow", "not run": "dim",
}  # fmt: skip
IN_LATEX = {  # what a plain LaTeX cannot print, or takes for something else
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "%": r"\%", "#": r"\#", "_": r"\_",
    "^": r"\^{}", "~": r"\~{}", "<": r"$<$", ">": r"$>$", "|": r"$|$", '"': "''", "±": r"$\pm$", "−": r"$-$",
    "–": "--", "…": r"\dots{}", "×": r"$\times$", "≤": r"$\le$", "≥": r"$\ge$", "²": r"$^2$", "\n": " ",
    **{letter: rf"$\{name}$" for letter, name in zip(
        "αβγδεζηθκλμνξπρστφχψω",
        ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "kappa", "lambda", "mu", "nu", "xi", "pi", "rho", "sigma", "tau", "phi", "chi", "psi", "omega"],
        strict=True,
    )},
}  # fmt: skip


@dataclass(frozen=True)
class Span:
    """A piece of a cell that means something."""

    text: str
    kind: Kind = ""


Cell = str | Span | Sequence[Span]


@dataclass(frozen=True)
class Column:
    head: str
    side: Literal["left", "right"] = "right"
    wraps: bool = False  # where there is little room
    narrow: str | None = None  # its head in the terminal, if another


@dataclass(frozen=True)
class Table:
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]  # what a row lacks at its end is empty
    title: str | None = None
    caption: str | None = None


def table_of(
    rows: Sequence[Mapping[str, Cell]], title: str | None = None, caption: str | None = None, wraps: str | None = None
) -> Table:
    """Of rows that name their columns: numbers stand to the right; what begins with < is text; one column may wrap."""
    columns = [
        Column(name.removeprefix("<"), "left" if name.startswith("<") else "right", wraps=name == wraps)
        for name in rows[0]
    ]
    return Table(columns, [list(row.values()) for row in rows], title, caption)


def capitalised(text: str) -> str:
    """As a sentence begins."""
    return f"{text[0].upper()}{text[1:]}"


def listed(names: Sequence[str]) -> str:
    """One, two and three."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def seconds(value: float | None, unknown: str = "an unknown time") -> str:
    if value is None:
        return unknown
    return f"{value:,.0f} s" if abs(value) >= 100 else f"{value:.3g} s"


def _spans(cell: Cell) -> Sequence[Span]:
    spans = [Span(cell)] if isinstance(cell, str) else [cell] if isinstance(cell, Span) else cell
    return [span for span in spans if span.text]


def for_terminal(table: Table) -> rich_table.Table:
    """For rich; a line break in a head or cell stays one."""
    made = rich_table.Table(
        title=table.title, caption=table.caption and Text(table.caption), title_style="bold", title_justify="left",
        caption_justify="left", box=None, header_style="bold", pad_edge=False,
    )  # fmt: skip
    for column in table.columns:
        head = column.head if column.narrow is None else column.narrow
        made.add_column(Text(head), justify=column.side, no_wrap=not column.wraps)
    for row in table.rows:
        made.add_row(*(Text.assemble(*map(_span_in_terminal, _spans(cell))) for cell in row))
    return made


def _span_in_terminal(span: Span) -> tuple[str, str]:
    return ("\n" if span.kind == "warn" else "") + span.text, TERMINAL.get(span.kind, "")


def as_markdown(table: Table) -> str:
    """Rows of a Markdown table; what was best, or holds or fails, is bold."""
    rule = ["--:" if column.side == "right" else "---" for column in table.columns]
    rows = [[column.head for column in table.columns], *([_in_markdown(cell) for cell in row] for row in table.rows)]
    head, *body = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([head, f"|{'|'.join(rule)}|", *body])


def _in_markdown(cell: Cell) -> str:
    texts = [(span.text.replace("|", "\\|").replace("\n", "<br>"), span.kind) for span in _spans(cell)]
    marks = dict.fromkeys(("best", "holds", "fails"), "**{}**") | {"warn": " ({})"}
    return "".join(marks.get(kind, "{}").format(text) for text, kind in texts)


def as_html(table: Table, samples: Sequence[str] = (), kind: str = "") -> str:
    """A table of a page; ``samples`` are pieces of HTML before the first cell of each row, ``kind`` its CSS class."""
    kinds = [["text"] * (column.side == "left") + ["wraps"] * column.wraps for column in table.columns]
    sides = [f' class="{" ".join(names)}"' if names else "" for names in kinds]
    head = "".join(
        f'<th scope="col"{side}>{escape(column.head).replace(" %", "&nbsp;%")}</th>' if column.head else "<td></td>"
        for column, side in zip(table.columns, sides, strict=True)
    )
    rows = []
    for number, row in enumerate(table.rows):
        first, *others = (_in_html(cell) for cell in row)
        sample = f"{samples[number]} " if samples else ""
        cells = "".join(f"<td{side}>{cell}</td>" for cell, side in zip(others, sides[1:], strict=False))
        rows.append(f'<tr><th scope="row">{sample}{first}</th>{cells}</tr>')
    body = "\n".join(rows)
    style = f' class="{kind}"' if kind else ""
    return f"<table{style}>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>"


def _in_html(cell: Cell) -> str:
    texts = [(escape(span.text).replace("\n", "<br>"), span.kind) for span in _spans(cell)]
    marks = {"": "{}", "best": "<b>{}</b>"}
    return "".join(marks.get(kind, f'<span class="{kind}">{{}}</span>').format(text) for text, kind in texts)


def as_latex(table: Table, booktabs: bool = False) -> str:
    """A plain ``tabular`` that needs no package, or one with the rules of booktabs."""
    sides = "".join(column.side[0] for column in table.columns)
    rows = [[in_latex(column.head) for column in table.columns]]
    rows += [["".join(map(_span_in_latex, _spans(cell))) for cell in row] for row in table.rows]
    head, *body = (f"{' & '.join(row)} \\\\" for row in rows)
    top, middle, bottom = (r"\toprule", r"\midrule", r"\bottomrule") if booktabs else (r"\hline",) * 3
    return "\n".join([rf"\begin{{tabular}}{{{sides}}}", top, head, middle, *body, bottom, r"\end{tabular}"])


def _span_in_latex(span: Span) -> str:
    text = in_latex(span.text)
    return rf"\textbf{{{text}}}" if span.kind == "best" else f" ({text})" if span.kind == "warn" else text


def in_latex(text: str) -> str:
    """Text as LaTeX prints it; a letter that no plain font has becomes a question mark."""
    known = "".join(IN_LATEX.get(letter, letter if ord(letter) < 0x180 else "?") for letter in text)
    return re.sub(r"[\x00-\x1f\x7f-\x9f]", "", known)
