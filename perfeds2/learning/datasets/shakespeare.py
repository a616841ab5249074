"""Shakespeare's plays: each UE is a speaking role, and an LSTM predicts the next letter of its lines.

A sample is LEAF's: 80 characters of a role's lines, and the character that follows. Windows are not stored: the text
is in memory once, and a window is cut out when it is used.
"""

import json
import re
import string
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, UInt8

from perfeds2.learning.data import Batch, Counts, Part, RandomKey, Ue, draw_numbers, held_out_of
from perfeds2.learning.files.formats import DataBroken, naming, read_bytes, read_text
from perfeds2.learning.files.sources import Download, Form, Found, Source
from perfeds2.learning.models.lstm import LSTM
from perfeds2.learning.partition import ByLabel, Natural, Split
from perfeds2.learning.task import Recipe

WINDOW = 80  # characters of a sample before the one to predict
MARKER = "by William Shakespeare"
LAST_LINE = 124_195  # of the plays in the edition that LEAF reads
WHOLE = (36, 1129, 4_226_158)  # plays, roles and samples of that edition
MOST_WINDOWS = 64  # of a part, in an evaluation
TEST_SHARE = 0.2  # of a role's lines
FEWEST_SAMPLES = 64  # of a role that can be a UE, beside the gap between its training and test part
OTHER = 0  # LEAF's newline, which its samples never hold: stands for characters outside the alphabet
ALPHABET = "\n !\"&'(),-.0123456789:;>?" + string.ascii_uppercase + "[]" + string.ascii_lowercase + "}"  # LEAF's 80


# ---- the roles and their lines


@dataclass(frozen=True)
class Role:
    """One speaking role and all its lines."""

    name: str
    play: str
    text: str  # lines joined by spaces, with runs of spaces collapsed

    @property
    def samples(self) -> int:
        return max(len(self.text) - WINDOW, 0)


def read_roles(path: Path) -> list[Role]:
    """Return the roles with at least one sample, by name.

    The file is LEAF's JSON (``all_data`` or roles only) or the plays' text.
    """
    with naming(path):
        is_json = ".json" in path.suffixes
        everyone = _roles_of_json(json.loads(read_bytes(path))) if is_json else roles_of_text(read_text(path))
        roles = sorted((role for role in everyone if role.samples), key=lambda role: role.name)
        if not roles:
            raise DataBroken(f"holds no role with more than {WINDOW} characters.")
    return roles


def count_roles(roles: Sequence[Role]) -> tuple[int, int, int]:
    """Return the numbers of plays, roles and samples."""
    return len({role.play for role in roles}), len(roles), sum(role.samples for role in roles)


def check_edition(path: Path) -> None:
    """Raise DataBroken unless a text is the edition of the plays that LEAF reads."""
    found = count_roles(read_roles(path))
    if found != WHOLE:
        raise DataBroken(
            f"{path.name} has {found[0]} plays, {found[1]} roles and {found[2]} samples; LEAF's edition has {WHOLE[0]}, "
            f"{WHOLE[1]} and {WHOLE[2]}"
        )


def _roles_of_json(table: object) -> list[Role]:
    """Read LEAF's layout: ``users``, ``hierarchies`` (their plays), ``user_data`` (``raw`` lines or windows x, y)."""
    match table:
        case {"users": list(users), "hierarchies": list(plays), "user_data": dict(data)}:
            return [_role(user, play, data.get(user)) for user, play in zip(users, plays, strict=True)]
    raise DataBroken("lacks users, hierarchies or user_data, which LEAF's files have.")


def _role(user: str, play: str, lines: object) -> Role:
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

    A play begins where its author is named, except for the first time, which is the sonnets. A role's name is indented
    by two spaces and ends with a full stop; its further lines are indented by four. In the Comedy of Errors nothing is
    indented. Plays with one role and roles with at most two lines are left out.
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
    """Return the nearest line that is not blank, two to seven lines above."""
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


SHAKESPEARE = Source(
    "shakespeare",
    (
        Form("LEAF's roles", (("leaf_roles.json.gz", "leaf_roles.json"),)),
        Form(
            "Project Gutenberg's text",
            (("raw_data.txt.gz", "raw_data.txt", "1994-01-100.zip", "100.txt", "100.txt.gz"),),
        ),
        Form("LEAF's all_data", (("all_data.json", "all_data.json.gz"),)),
    ),
    (
        Download(
            "1994-01-100.zip",  # the file LEAF reads
            (
                "https://www.gutenberg.org/files/100/old/old/1994-01-100.zip",
                "https://www.gutenberg.org/files/100/old/1994-01-100.zip",
            ),
            None,
        ),
    ),
    "copyright 1990-1993 World Library, Inc.; for personal use only, not to be used or distributed commercially",
    check=check_edition,
)


# ---- the samples of a UE


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Windows:
    """All roles' lines on the device, one role per UE. Sample i is characters i to i + 79, and character i + 80."""

    text: UInt8[Array, "*lanes m"]  # indices of letters, role after role
    start: Counts  # a UE's first training window
    train_count: Counts  # number of training windows
    test_start: Counts
    test_count: Counts

    @classmethod
    def of(cls, roles: Sequence[Role]) -> "Windows":
        """Split each role in time: it trains on its first lines. The two parts share no character."""
        samples = np.array([role.samples for role in roles])
        if samples.min() < WINDOW + 2:
            raise ValueError(f"a role needs {WINDOW + 2} samples to be split, got {samples.min()}.")
        usable = samples - WINDOW  # windows that overlap both parts are left out
        test = np.clip(np.round(usable * TEST_SHARE).astype(int), 1, usable - 1)
        start = np.concatenate([[0], np.cumsum(samples + WINDOW)[:-1]])
        text = jnp.asarray(np.concatenate([letters(role.text) for role in roles]))
        first, train, test_start, tests = (
            jnp.asarray(numbers, jnp.int32) for numbers in (start, usable - test, start + samples - test, test)
        )
        return cls(text, first, train, test_start, tests)

    def held_out(self) -> "Windows":
        """Hold out the last quarter of each role's training windows.

        A gap keeps the two parts apart; it is shorter for a role with few windows.
        """
        held = held_out_of(self.train_count)
        left = self.train_count - held
        train = jnp.maximum(left - WINDOW, (left + 1) // 2)
        return replace(self, train_count=train, test_start=self.start + left, test_count=held)

    @property
    def ues(self) -> int:
        return self.start.size

    def batches(self, key: RandomKey, ue: Ue, shape: tuple[int, ...]) -> Batch:
        """Draw training windows of one UE, independently and with replacement."""
        return self._cut(self.start[ue] + draw_numbers(key, self.train_count[ue], shape))

    def lengths(self) -> tuple[int, int]:
        """Return the numbers of windows that an evaluation takes from a training and a test part."""
        return MOST_WINDOWS, MOST_WINDOWS

    def train_part(self, ue: Ue, length: int) -> Part:
        return self._part(self.start[ue], self.train_count[ue], length)

    def test_part(self, ue: Ue, length: int) -> Part:
        return self._part(self.test_start[ue], self.test_count[ue], length)

    def _part(self, start: Int[Array, ""], size: Int[Array, ""], length: int) -> Part:
        """Return all windows of a part, or ``length`` evenly spaced ones, because neighbours are nearly the same."""
        number = jnp.arange(length)
        spread = jnp.where(size > length, number * size // length, jnp.minimum(number, size - 1))
        return *self._cut(start + spread), number < size

    def _cut(self, at: Int[Array, "*s"]) -> Batch:
        return self.text[at[..., None] + jnp.arange(WINDOW)], self.text[at + WINDOW].astype(jnp.int32)


def letters(text: str) -> UInt8[np.ndarray, " m"]:
    """Return the index of each character in the alphabet."""
    codes = np.frombuffer(text.encode("utf-32-le", "replace"), np.uint32)
    table = np.full(256, OTHER, np.uint8)
    table[[ord(letter) for letter in ALPHABET]] = np.arange(len(ALPHABET))
    return np.where(codes < 256, table[np.minimum(codes, 255)], np.uint8(OTHER))


def shakespeare_data(ues: int, split: Split, seed: int, found: Found) -> Windows:
    """Draw one role per UE, among those with at least 64 samples beside the gap. Ignores labels per UE."""
    if not isinstance(split, Natural | ByLabel):
        raise ValueError("each UE is a role with its own lines; leave --split out, or give natural.")
    roles = _read_once(found.files[0])
    roles = [role for role in roles if role.samples >= WINDOW + FEWEST_SAMPLES]
    if ues > len(roles):
        raise ValueError(f"only {len(roles)} roles have enough text, got {ues} UEs; use fewer UEs.")
    chosen = np.random.default_rng([seed, 3]).choice(len(roles), ues, replace=False)
    return Windows.of([roles[number] for number in chosen])


_read_once = lru_cache(maxsize=1)(read_roles)  # shared by all seeds
shakespeare = Recipe(
    "shakespeare",
    LSTM(len(ALPHABET)),
    shakespeare_data,
    jax.ShapeDtypeStruct((WINDOW,), np.uint8),
    defaults={"cell": {"ues": 188}, "run": {"horizon_s": 20_000.0, "target_accuracy": 0.3}},  # 188 UEs as in the paper
    source=SHAKESPEARE,
)
