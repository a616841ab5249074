"""Who speaks in Shakespeare's plays, and how do a role's lines become samples?

A sample is LEAF's: 80 characters of a role's lines, and the character that follows. Windows are never stored: the text
stands on the device once, and a window is cut out where it is looked at.
"""

import re
import string
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Key, UInt8

from perfeds2.learning.data import Batch, Part, draw_numbers
from perfeds2.learning.datasets.formats import DataBroken, read_json, read_text

WINDOW = 80
MOST_WINDOWS = 64  # of a part, in an evaluation
OTHER = 0  # LEAF's newline, which its samples never hold: stands for any character that is not in the alphabet
ALPHABET = "\n !\"&'(),-.0123456789:;>?" + string.ascii_uppercase + "[]" + string.ascii_lowercase + "}"  # LEAF's 80
MARKER = "by William Shakespeare"
LAST_LINE = 124_195  # of the plays, in the edition LEAF reads
WHOLE = (36, 1129, 4_226_158)  # plays, roles and samples of that edition


@dataclass(frozen=True)
class Role:
    """One speaking role, and all it says."""

    name: str
    play: str
    text: str  # lines joined by spaces, runs of spaces made one

    @property
    def samples(self) -> int:
        return max(len(self.text) - WINDOW, 0)


def read_roles(path: Path) -> list[Role]:
    """Roles with at least one sample, by name: from LEAF's JSON (``all_data`` or roles only) or from the plays' text."""
    everyone = _roles_of_json(path, read_json(path)) if ".json" in path.suffixes else roles_of_text(read_text(path))
    roles = sorted((role for role in everyone if role.samples), key=lambda role: role.name)
    if not roles:
        raise DataBroken(f"{path} holds no role with more than {WINDOW} characters.")
    return roles


def counts(roles: Sequence[Role]) -> tuple[int, int, int]:
    """How many plays, roles and samples there are."""
    return len({role.play for role in roles}), len(roles), sum(role.samples for role in roles)


def _roles_of_json(path: Path, table: Any) -> list[Role]:
    """LEAF's layout: ``users``, ``hierarchies`` (their plays) and ``user_data`` with ``raw`` lines or windows x, y."""
    match table:
        case {"users": list(users), "hierarchies": list(plays), "user_data": dict(data)}:
            pass
        case _:
            raise DataBroken(f"{path} lacks users, hierarchies or user_data, which LEAF's files have.")
    if len(users) != len(plays) or not all(isinstance(word, str) for word in [*users, *plays]):
        raise DataBroken(f"{path} holds {len(users)} users and {len(plays)} plays; expected a play for each user.")
    roles = []
    for user, play in zip(users, plays, strict=True):
        match data.get(user):
            case {"raw": str(raw)}:
                roles.append(Role(user, play, _one_line(raw)))
            case {"x": list(x), "y": list(y)} if len(x) == len(y) and all(isinstance(text, str) for text in [*x, *y]):
                text = "".join([*x[:1], *y])
                if any(window != text[at : at + WINDOW] for at, window in enumerate(x)):
                    raise DataBroken(
                        f"{path} holds not all windows of {user}, in order; use LEAF's unsampled all_data."
                    )
                roles.append(Role(user, play, text))
            case _:
                raise DataBroken(f"{path} holds neither the lines nor the windows of {user}.")
    return roles


def roles_of_text(text: str) -> list[Role]:
    """Cut Project Gutenberg's edition of 1994 into speaking roles, by LEAF's rules.

    A play begins where its author is named, from the second time on (the first are the sonnets). A role's name stands
    two spaces in and ends with a full stop, what it goes on saying stands four spaces in; in the Comedy of Errors
    nothing is indented. A play of one role is none, and a role of two lines is left out.
    """
    lines = text.splitlines()[1 : LAST_LINE + 2]
    named = [number for number, line in enumerate(lines) if MARKER in line]
    roles: dict[str, tuple[str, list[str]]] = {}
    for first, end in pairwise([*named[1:], len(lines)]):
        play = _title_above(lines, first)
        said = _lines_by_role(lines[first + 1 : end], indented=play != "THE COMEDY OF ERRORS")
        if len(said) < 2:
            continue
        for role, snippets in said.items():
            if len(snippets) > 2:
                name = re.sub(r"\W+", "_", f"{play}_{role}".replace(" ", "_"))
                roles.setdefault(name, (play, []))[1].extend(snippets)
    return [Role(name, play, _one_line("".join(f"{s}\n" for s in said))) for name, (play, said) in roles.items()]


def _title_above(lines: Sequence[str], at: int) -> str:
    """The nearest line that says something, two to seven lines above."""
    above = [lines[max(at - up, 0)].strip() for up in range(2, 8)]
    return next(filter(None, above), "")


def _lines_by_role(lines: Sequence[str], *, indented: bool) -> dict[str, list[str]]:
    begins = re.compile(r"  ([a-zA-Z][a-zA-Z ]*)\. (.*)" if indented else r"([a-zA-Z][a-zA-Z ]*)\. (.*)")
    margin = "    " if indented else ""
    said: dict[str, list[str]] = {}
    speaker = None
    for line in lines:
        if match := begins.match(line):
            speaker = match[1].upper()
            if not indented and speaker.startswith("ACT "):
                speaker = None
            else:
                said.setdefault(speaker, []).append(match[2])
        elif speaker is not None and line.startswith(margin):
            if not indented and line.startswith("<"):
                speaker = None  # a stage direction
            else:
                said[speaker].append(line[len(margin) :])
    return said


def _one_line(raw: str) -> str:
    return re.sub(r"  +", " ", raw.replace("\n", " "))


# ---- roles as UEs


@partial(jax.tree_util.register_dataclass, data_fields=["text", "start", "train", "test_start", "test"], meta_fields=[])
@dataclass(frozen=True)
class Windows:
    """All roles' lines flat on the device, a role a UE. Sample i is the characters i to i + 79, and character i + 80."""

    text: UInt8[Array, " m"]  # numbers of letters, role after role
    start: Int[Array, " n"]  # a UE's first training window
    train: Int[Array, " n"]  # how many windows it trains on
    test_start: Int[Array, " n"]
    test: Int[Array, " n"]

    @classmethod
    def of(cls, roles: Sequence[Role], *, test_fraction: float = 0.2) -> "Windows":
        """Split each role in time: it trains on what it says first. The two parts have no character in common."""
        samples = np.array([role.samples for role in roles])
        if samples.min() < WINDOW + 2:
            raise ValueError(f"a role needs {WINDOW + 2} samples to be split, got {samples.min()}.")
        usable = samples - WINDOW  # the windows that touch both parts are left out
        test = np.clip(np.round(usable * test_fraction).astype(int), 1, usable - 1)
        start = np.concatenate([[0], np.cumsum(samples + WINDOW)[:-1]])
        text = jnp.asarray(np.concatenate([letters(role.text) for role in roles]))
        first, train, test_start, tests = (
            jnp.asarray(numbers, jnp.int32) for numbers in (start, usable - test, start + samples - test, test)
        )
        return cls(text, first, train, test_start, tests)

    @property
    def ues(self) -> int:
        return self.start.size

    def batches(self, key: Key[Array, ""], ue: Int[Array, ""], shape: tuple[int, ...]) -> Batch:
        """Training windows of one UE, drawn independently and with replacement."""
        return self._cut(self.start[ue] + draw_numbers(key, self.train[ue], shape))

    def lengths(self) -> tuple[int, int]:
        """How many windows of a part an evaluation looks at."""
        return MOST_WINDOWS, MOST_WINDOWS

    def train_part(self, ue: Int[Array, ""], length: int) -> Part:
        return self._part(self.start[ue], self.train[ue], length)

    def test_part(self, ue: Int[Array, ""], length: int) -> Part:
        return self._part(self.test_start[ue], self.test[ue], length)

    def _part(self, start: Int[Array, ""], size: Int[Array, ""], length: int) -> Part:
        """All windows of a part, or so many evenly spaced: neighbours say nearly the same."""
        number = jnp.arange(length)
        spread = jnp.where(size > length, number * size // length, jnp.minimum(number, size - 1))
        return *self._cut(start + spread), number < size

    def _cut(self, at: Int[Array, "*s"]) -> Batch:
        return self.text[at[..., None] + jnp.arange(WINDOW)], self.text[at + WINDOW].astype(jnp.int32)


def letters(text: str) -> UInt8[np.ndarray, " m"]:
    """Characters as numbers of the alphabet's letters."""
    codes = np.frombuffer(text.encode("utf-32-le", "replace"), np.uint32)
    table = np.full(256, OTHER, np.uint8)
    table[[ord(letter) for letter in ALPHABET]] = np.arange(len(ALPHABET))
    return np.where(codes < 256, table[np.minimum(codes, 255)], np.uint8(OTHER))
