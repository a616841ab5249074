"""Who speaks in Shakespeare's plays, and what do they say?"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from perfeds2.learning.files.formats import DataBroken, naming, read_bytes, read_text

WINDOW = 80  # characters of a sample, before the one that follows
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
    with naming(path):
        is_json = ".json" in path.suffixes
        everyone = _roles_of_json(json.loads(read_bytes(path))) if is_json else roles_of_text(read_text(path))
        roles = sorted((role for role in everyone if role.samples), key=lambda role: role.name)
        if not roles:
            raise DataBroken(f"holds no role with more than {WINDOW} characters.")
    return roles


def count_roles(roles: Sequence[Role]) -> tuple[int, int, int]:
    """How many plays, roles and samples there are."""
    return len({role.play for role in roles}), len(roles), sum(role.samples for role in roles)


def check_edition(path: Path) -> None:
    """Raise DataBroken unless a text is the edition of the plays that LEAF reads."""
    found = count_roles(read_roles(path))
    if found != WHOLE:
        raise DataBroken(
            f"{path.name} has {found[0]} plays, {found[1]} roles and {found[2]} samples; LEAF's edition has {WHOLE[0]}, "
            f"{WHOLE[1]} and {WHOLE[2]}"
        )


def _roles_of_json(table: Any) -> list[Role]:
    """LEAF's layout: ``users``, ``hierarchies`` (their plays) and ``user_data`` with ``raw`` lines or windows x, y."""
    match table:
        case {"users": list(users), "hierarchies": list(plays), "user_data": dict(data)}:
            return [_role(user, play, data.get(user)) for user, play in zip(users, plays, strict=True)]
    raise DataBroken("lacks users, hierarchies or user_data, which LEAF's files have.")


def _role(user: str, play: str, lines: Any) -> Role:
    match lines:
        case {"raw": str(raw)}:
            return Role(user, play, _one_line(raw))
        case {"x": list(x), "y": list(y)} if len(x) == len(y):
            text = "".join([*x[:1], *y])
            if all(window == text[at : at + WINDOW] for at, window in enumerate(x)):
                return Role(user, play, text)
    raise DataBroken(f"holds neither the lines nor all windows of {user}, in order; use LEAF's unsampled all_data.")


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
