"""What is an erratum? Its prose comes from ``errata.toml``, its numbers from a function."""

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Numbers = list[tuple[str, int | float | str]]
Show = Callable[[], Numbers]


@dataclass(frozen=True)
class Erratum:
    """One place in the paper: what it says, what is so, and the numbers that show it."""

    number: int
    where: str  # in the paper
    printed: str
    wrong: str
    ours: str  # what the product does
    code: tuple[str, ...]  # dotted names
    tests: tuple[str, ...]  # file::test
    show: Show  # (what is measured, its value), computed when called


def load_errata(shown: Mapping[int, Show]) -> tuple[dict[str, str], tuple[Erratum, ...]]:
    """Return the surrounding texts, and the errata in order. An erratum without a function concerns names only."""
    read: dict[str, Any] = tomllib.loads(Path(__file__).with_name("errata.toml").read_text(encoding="utf-8"))
    prose = {name: text.strip() for name, text in read.items() if isinstance(text, str)}
    errata = []
    for number, said in read.items():
        if isinstance(said, dict):
            words = {key: " ".join(said[key].split()) for key in ("where", "printed", "wrong", "ours")}
            references: dict[str, Any] = {key: tuple(said[key]) for key in ("code", "tests")}
            errata.append(Erratum(int(number), **words, **references, show=shown.get(int(number), list)))
    return prose, tuple(errata)
