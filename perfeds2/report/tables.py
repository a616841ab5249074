"""Render one table for the terminal, HTML and LaTeX.

A cell is text, or spans of text that may have a meaning. Every renderer escapes its own markup.
"""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Literal

from rich import table as rich_table
from rich.text import Text

from perfeds2.chart import LineStyle
from perfeds2.files import Json, write_text

Kind = Literal["", "best", "half", "warn", "dim", "holds", "fails", "undecided", "not run"]
IN_TERMINAL: dict[str, str] = {  # rich's styles
    "best": "bold",
    "warn": "red",
    "dim": "dim",
    "holds": "green",
    "fails": "red",
    "undecided": "yellow",
    "not run": "dim",
}
IN_LATEX = {  # characters that plain LaTeX cannot print or treats as markup
    **{letter: rf"\{letter}" for letter in "{}$&%#_"},
    **{letter: rf"\{letter}{{}}" for letter in "^~"},
    **{letter: f"${letter}$" for letter in "<>|"},
    "\\": r"\textbackslash{}",
    '"': "''",
    "±": r"$\pm$",
    "−": r"$-$",
    "–": "--",
    "…": r"\dots{}",
    "\n": " ",
    "×": r"$\times$",
    "≤": r"$\le$",
    "≥": r"$\ge$",
    "²": r"$^2$",
    **{
        letter: rf"$\{unicodedata.name(letter)[19:].lower()}$" for letter in "αβγδεζηθκμνξπρστφχψω"
    },  # GREEK SMALL LETTER …
    "λ": r"$\lambda$",  # Unicode spells it "lamda"
}


@dataclass(frozen=True)
class Span:
    """A piece of a cell's text and its meaning."""

    text: str
    kind: Kind = ""


Cell = str | Span | Sequence[Span]
Rows = list[list[Cell]]


@dataclass(frozen=True)
class Column:
    """The header and alignment of a column."""

    head: str
    side: Literal["left", "right"] = "right"
    wraps: bool = False  # if space is short
    narrow: str | None = None  # header in the terminal, if different


@dataclass(frozen=True)
class Table:
    """Columns and rows of cells."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]  # missing trailing cells are empty
    title: str | None = None
    caption: str | None = None
    kind: str = ""  # CSS class
    styles: Sequence[LineStyle] = ()  # line samples before the first cell of each row, on a page


def text_column(head: str, narrow: str | None = None) -> Column:
    """Return a left-aligned column that may wrap."""
    return Column(head, "left", wraps=True, narrow=narrow)


# ---- text


def capitalised(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}"


def listed(names: Sequence[str]) -> str:
    """Join names as in "one, two and three"."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def counted(count: int, what: str) -> str:
    """Return a count with its noun, such as "1 seed" or "2 seeds"."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def seconds(value: float | None, unknown: str = "an unknown time") -> str:
    """Format a duration with three significant digits."""
    if value is None:
        return unknown
    return f"{value:,.0f} s" if abs(value) >= 100 else f"{value:.3g} s"


def estimate(mean: float | None, half: float | None, form: str, scale: float = 1, *, best: bool = False) -> list[Span]:
    """Format a mean ± half of its 95 % interval."""
    if mean is None:
        return [Span("–")]
    spread = "" if half is None else f" ± {scale * half:{form}}"
    return [Span(f"{scale * mean:{form}}", "best" if best else ""), Span(spread, "half")]


def signed(found: Json | None, form: str, scale: float = 1) -> list[Span]:
    """Format a mean difference with its sign ± half its interval, in bold if the interval excludes 0."""
    if found is None or found["mean"] is None:
        return [Span("–")]
    mean, low, high = found["mean"], found["low"], found["high"]
    text = f"{'−' if mean < 0 else '+'}{abs(scale * mean):{form}}"
    if low is None:
        return [Span(text)]
    return [Span(text, "best" if low > 0 or high < 0 else ""), Span(f" ± {scale * (high - low) / 2:{form}}", "half")]


def p_value(p: float) -> str:
    """Format a p-value with three decimals."""
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


# ---- renderers


def spans_of(cell: Cell) -> Sequence[Span]:
    """Return the spans of a cell that have text."""
    spans = [Span(cell)] if isinstance(cell, str) else [cell] if isinstance(cell, Span) else cell
    return [span for span in spans if span.text]


def for_terminal(table: Table) -> rich_table.Table:
    """Render a table with rich, keeping line breaks in headers and cells."""
    made = rich_table.Table(title=table.title, box=None, pad_edge=False, title_style="bold", header_style="bold")
    made.title_justify = made.caption_justify = "left"
    made.caption = None if table.caption is None else Text(table.caption)
    for column in table.columns:
        head = column.head if column.narrow is None else column.narrow
        made.add_column(Text(head), justify=column.side, no_wrap=not column.wraps)
    for row in table.rows:
        made.add_row(*(Text.assemble(*map(_span_in_terminal, spans_of(cell))) for cell in row))
    return made


def _span_in_terminal(span: Span) -> tuple[str, str]:
    return ("\n" if span.kind == "warn" else "") + span.text, IN_TERMINAL.get(span.kind, "")


def as_html(table: Table) -> str:
    """Render a table as HTML."""
    kinds = [["text"] * (column.side == "left") + ["wraps"] * column.wraps for column in table.columns]
    sides = [f' class="{" ".join(names)}"' if names else "" for names in kinds]
    head = "".join(
        f'<th scope="col"{side}>{escape(column.head).replace(" %", "&nbsp;%")}</th>' if column.head else "<td></td>"
        for column, side in zip(table.columns, sides, strict=True)
    )
    rows = []
    for number, row in enumerate(table.rows):
        first, *others = (_in_html(cell) for cell in row)
        sample = f"{line_sample(table.styles[number])} " if table.styles else ""
        cells = "".join(f"<td{side}>{cell}</td>" for cell, side in zip(others, sides[1:], strict=False))
        rows.append(f'<tr><th scope="row">{sample}{first}</th>{cells}</tr>')
    body, style = "\n".join(rows), f' class="{table.kind}"' if table.kind else ""
    return f"<table{style}>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>"


def _in_html(cell: Cell) -> str:
    texts = [(escape(span.text).replace("\n", "<br>"), span.kind) for span in spans_of(cell)]
    marks = {"": "{}", "best": "<b>{}</b>"}
    return "".join(marks.get(kind, f'<span class="{kind}">{{}}</span>').format(text) for text, kind in texts)


MARKS = {  # marker shapes in a line sample, by Matplotlib's name
    "x": "M10 2l8 8M18 2l-8 8",
    "o": "M11 6a3 3 0 1 0 6 0a3 3 0 1 0 -6 0",
    "^": "M14 2.5l4 7h-8z",
    "v": "M14 9.5l4 -7h-8z",
    "s": "M11 3h6v6h-6z",
    "D": "M14 2l4 4l-4 4l-4 -4z",
    "P": "M14 2v8M10 6h8",
    "*": "M14 2v8M10.5 4l7 4M10.5 8l7 -4",
}


def line_sample(style: LineStyle) -> str:
    """Draw a short sample of a line as SVG."""
    dashes, colour = " ".join(map(str, style.dash_px)), style.colour
    line = f'<line x1="0" y1="6" x2="28" y2="6" stroke="{colour}" stroke-width="2.5" stroke-dasharray="{dashes}"/>'
    if style.marker:
        line += f'<path d="{MARKS[style.marker]}" fill="{colour}" stroke="{colour}" stroke-width="2"/>'
    return f'<svg class="line" width="28" height="12" aria-hidden="true">{line}</svg>'


def as_latex(table: Table) -> str:
    """Render a table as a ``tabular`` with the rules of the package booktabs."""
    sides = "".join(column.side[0] for column in table.columns)
    rows = [[in_latex(column.head) for column in table.columns]]
    rows += [["".join(map(_span_in_latex, spans_of(cell))) for cell in row] for row in table.rows]
    head, *body = (f"{' & '.join(row)} \\\\" for row in rows)
    first, middle, last = r"\toprule", r"\midrule", r"\bottomrule"
    return "\n".join([rf"\begin{{tabular}}{{{sides}}}", first, head, middle, *body, last, r"\end{tabular}"])


def write_latex(path: Path, about: str, *tables: Table) -> Path:
    """Write tables as LaTeX, with ``about`` as a comment above them. Return the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    needs = r"% Needs \usepackage{booktabs}."
    write_text(path, "\n".join([f"% {in_latex(about)}", needs, *map(as_latex, tables), ""]))
    return path


def _span_in_latex(span: Span) -> str:
    text = in_latex(span.text)
    return rf"\textbf{{{text}}}" if span.kind == "best" else f" ({text})" if span.kind == "warn" else text


def in_latex(text: str) -> str:
    """Escape text for LaTeX. Characters that plain fonts lack become question marks."""
    known = "".join(IN_LATEX.get(letter, letter if ord(letter) < 0x180 else "?") for letter in text)
    return re.sub(r"[\x00-\x1f\x7f-\x9f]", "", known)
