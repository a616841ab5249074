"""Shakespeare's plays: a UE is a speaking role, and an LSTM says which letter comes next in its lines.

A sample is LEAF's: 80 characters of a role's lines, and the character that follows. Windows are never stored: the text
stands on the device once, and a window is cut out where it is looked at.
"""

import string
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, UInt8

from perfeds2.learning.data import Batch, Counts, Part, RandomKey, Ue, draw_numbers, held_out_of, joined
from perfeds2.learning.datasets.plays import WINDOW, Role, check_edition, read_roles
from perfeds2.learning.files.sources import Download, Form, Found, Source
from perfeds2.learning.models.lstm import LSTM
from perfeds2.learning.partition import ByLabel, Natural, Split
from perfeds2.learning.task import Recipe

MOST_WINDOWS = 64  # of a part, in an evaluation
TEST_SHARE = 0.2  # of a role's lines
FEWEST_SAMPLES = 64  # of a role that can be a UE, beside the gap between its training and test part
OTHER = 0  # LEAF's newline, which its samples never hold: stands for any character that is not in the alphabet
ALPHABET = "\n !\"&'(),-.0123456789:;>?" + string.ascii_uppercase + "[]" + string.ascii_lowercase + "}"  # LEAF's 80
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


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["text", "start", "train_count", "test_start", "test_count"],
    meta_fields=[],
)
@dataclass(frozen=True)
class Windows:
    """All roles' lines flat on the device, a role a UE. Sample i is the characters i to i + 79, and character i + 80."""

    text: UInt8[Array, " m"]  # numbers of letters, role after role
    start: Counts  # a UE's first training window
    train_count: Counts  # how many windows it trains on
    test_start: Counts
    test_count: Counts

    @classmethod
    def of(cls, roles: Sequence[Role]) -> "Windows":
        """Split each role in time: it trains on what it says first. The two parts have no character in common."""
        samples = np.array([role.samples for role in roles])
        if samples.min() < WINDOW + 2:
            raise ValueError(f"a role needs {WINDOW + 2} samples to be split, got {samples.min()}.")
        usable = samples - WINDOW  # the windows that touch both parts are left out
        test = np.clip(np.round(usable * TEST_SHARE).astype(int), 1, usable - 1)
        start = np.concatenate([[0], np.cumsum(samples + WINDOW)[:-1]])
        text = jnp.asarray(np.concatenate([letters(role.text) for role in roles]))
        first, train, test_start, tests = (
            jnp.asarray(numbers, jnp.int32) for numbers in (start, usable - test, start + samples - test, test)
        )
        return cls(text, first, train, test_start, tests)

    @classmethod
    def join(cls, each: Sequence["Windows"]) -> "Windows":
        """Several, one behind the other."""

        def moved(one: Windows, at: int) -> Windows:
            return replace(one, start=one.start + at, test_start=one.test_start + at)

        return joined(each, [one.text.size for one in each], moved)

    def held_out(self) -> "Windows":
        """The last quarter of what each role trains on. A gap keeps the two apart, a short one where a role says little."""
        held = held_out_of(self.train_count)
        left = self.train_count - held
        train = jnp.maximum(left - WINDOW, (left + 1) // 2)
        return replace(self, train_count=train, test_start=self.start + left, test_count=held)

    @property
    def ues(self) -> int:
        return self.start.size

    def batches(self, key: RandomKey, ue: Ue, shape: tuple[int, ...]) -> Batch:
        """Training windows of one UE, drawn independently and with replacement."""
        return self._cut(self.start[ue] + draw_numbers(key, self.train_count[ue], shape))

    def lengths(self) -> tuple[int, int]:
        """How many windows of a part an evaluation looks at."""
        return MOST_WINDOWS, MOST_WINDOWS

    def train_part(self, ue: Ue, length: int) -> Part:
        return self._part(self.start[ue], self.train_count[ue], length)

    def test_part(self, ue: Ue, length: int) -> Part:
        return self._part(self.test_start[ue], self.test_count[ue], length)

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


def shakespeare_data(ues: int, split: Split, seed: int, found: Found) -> Windows:
    """Draw one UE per speaking role among those with at least 64 samples beside the gap. Ignores labels per UE."""
    if not isinstance(split, Natural | ByLabel):
        raise ValueError("each of its UEs is a role, who speaks as it speaks; leave --split out, or give natural.")
    roles = _read_once(found.files[0])
    roles = [role for role in roles if role.samples >= WINDOW + FEWEST_SAMPLES]
    if ues > len(roles):
        raise ValueError(f"there are {len(roles)} roles that say enough, got {ues} UEs; use fewer UEs.")
    chosen = np.random.default_rng([seed, 3]).choice(len(roles), ues, replace=False)
    return Windows.of([roles[number] for number in chosen])


_read_once = lru_cache(maxsize=1)(read_roles)  # for all seeds
shakespeare = Recipe(
    "shakespeare",
    LSTM(len(ALPHABET)),
    shakespeare_data,
    jax.ShapeDtypeStruct((WINDOW,), np.uint8),
    defaults={"cell": {"ues": 188}, "run": {"horizon_s": 2000.0, "target_accuracy": 0.3}},  # 188: the paper's number
    source=SHAKESPEARE,
)
