"""Show where the paper contradicts itself, and by how much.

``errata.toml`` describes the errors, with the numbers that ``benchmarks/errata`` computes. ``errata_markdown`` writes
``docs/reports/errata.md``, a line for each, and ``perfeds2 errata N`` prints one erratum.
"""

import re
import textwrap
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfeds2.errors import InputError

Numbers = list[tuple[str, int | float | str]]  # what is measured, and its value


@dataclass(frozen=True)
class Erratum:
    """One place in the paper: what it says, what is correct, and the numbers that show it."""

    number: int
    where: str  # in the paper
    printed: str
    wrong: str
    ours: str  # what the product does
    code: tuple[str, ...]  # dotted names
    tests: tuple[str, ...]  # file::test
    numbers: Numbers  # empty if it concerns names only


def load_errata() -> tuple[dict[str, str], tuple[Erratum, ...]]:
    """Return the surrounding texts, and the errata in order."""
    read: dict[str, Any] = tomllib.loads(Path(__file__).with_name("errata.toml").read_text(encoding="utf-8"))
    prose = {name: text.strip() for name, text in read.items() if isinstance(text, str)}
    errata = []
    for number, said in read.items():
        if isinstance(said, dict):
            words = {key: " ".join(said[key].split()) for key in ("where", "printed", "wrong", "ours")}
            references: dict[str, Any] = {key: tuple(said[key]) for key in ("code", "tests")}
            numbers = [(label, value) for label, value in said.get("numbers", [])]
            errata.append(Erratum(int(number), **words, **references, numbers=numbers))
    return prose, tuple(errata)


PROSE, ERRATA = load_errata()


def errata_text(numbers: Sequence[int] | None = None) -> str:
    """Return the given errata in full, or the numbers of all of them, for the terminal."""
    if numbers is None:
        blocks = [f"{item.number}. {item.where}\n" + _aligned(item.numbers) for item in ERRATA]
        return "\n\n".join([*blocks, "In full: perfeds2 errata N"])
    return "\n\n".join(_in_full(item) for item in chosen(numbers))


def errata_table(numbers: Sequence[int] | None = None) -> str:
    """Return one line per number: erratum, label and value, separated by tabs."""
    items = ERRATA if numbers is None else chosen(numbers)
    return "\n".join(f"{item.number}\t{label}\t{value}" for item in items for label, value in item.numbers)


def errata_markdown() -> str:
    """Return the text of docs/reports/errata.md."""
    rows = [
        f"| [{item.number}](../reference/errata.md#erratum-{item.number}) | {escaped(item.where)} | {_first_sentence(escaped(item.wrong))} |"
        for item in ERRATA
    ]
    table = "\n".join(["| | place | what is wrong |", "|---|---|---|", *rows])
    return "\n\n".join([PROSE["introduction"], table]) + "\n"


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=[.])\s+(?=[A-Z])", text)[0]


def chosen(numbers: Sequence[int]) -> list[Erratum]:
    """Return the errata with these numbers."""
    known = {item.number: item for item in ERRATA}
    for number in numbers:
        if number not in known:
            raise InputError(f"there is no erratum {number}; choose from 1 to {max(known)}.")
    return [known[number] for number in numbers]


def _in_full(item: Erratum) -> str:
    prose = {"printed": item.printed, "wrong": item.wrong, "ours": item.ours}
    prose |= {"code": ", ".join(item.code), "tests": ", ".join(item.tests)}
    lines = [f"{item.number}. {item.where}"]
    for name, text in prose.items():
        lines += textwrap.wrap(
            text, 100, initial_indent=f"  {name:<9}", subsequent_indent=" " * 11, break_long_words=False
        )
    return "\n".join([*lines, _aligned(item.numbers)])


def _aligned(numbers: Numbers) -> str:
    if not numbers:
        return "  (concerns names only: no number)"
    width = max(len(label) for label, _ in numbers)
    return "\n".join(f"  {label:<{width}}  {shown(value)}" for label, value in numbers)


def escaped(text: str) -> str:
    """Return text for a table in Markdown."""
    return text.replace("*", r"\*").replace("|", r"\|")


def shown(value: int | float | str) -> str:
    """Return a value with three significant digits, which are the same on every machine."""
    if isinstance(value, str):
        return value
    if isinstance(value, int):
        return f"{value:,}"
    return format(float(f"{value:.3g}"), ",.6g" if 1e-4 <= abs(value) < 1e6 or value == 0 else ".3g")
