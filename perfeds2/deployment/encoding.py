"""Write an upload in the bits that the clock counts, and check it when it is read.

The numbers that are sent follow each other in the order of the names of their arrays. With ``--bits n``, each is a whole
number of n bits times the unit of its array; ``units`` has a float32 for each array. With ``--top-k``, ``places`` says
which numbers they are. With ``random-k``, both sides draw that. Whatever else compresses uploads has an ``encode`` and a
``decode``. The header is that of a safetensors file.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float, Int, Key

from perfeds2.deployment.transport import Arrays, Request
from perfeds2.deployment.validate import Form, arrays_of, bits_of, form_of, row_of
from perfeds2.errors import InputError
from perfeds2.learning.job import job_key, run_key
from perfeds2.learning.learner import Learner
from perfeds2.learning.transforms import OwnCompression, RandomK, numbers_sent
from perfeds2.spec.names import user_errors

NEIGHBOURS = (0, 1, -1, 2, -2)  # last digits of a unit that are tried, so that reading gives the same numbers
SPARE = 1.05  # largest ratio of the bits that a user's own encode writes to those that its function says


@dataclass(frozen=True)
class Encoding:
    """How the uploads of a run are written. The size of an encoded upload does not depend on its numbers."""

    learner: Learner
    form: Form  # names, shapes and dtypes of an upload
    seed: int = 0
    first_ue: int = 0  # UE of device 0, in an edge

    def __post_init__(self) -> None:
        if self.learner.top_k is not None and self.learner.compress is not None:
            raise InputError("--top-k and --compress were both given; a federation sends one of them.")
        if self._own is not None:
            self._check_own()

    def encode(self, update: Arrays, request: Request) -> Arrays:
        """Return the arrays to send instead of an upload.

        Raises:
            InputError: The user's own ``decode`` does not undo ``encode``.
        """
        if self._own is not None:
            with user_errors("--compress", self._own):
                sent = _as_arrays(self._own.encode(dict(update), self._key(request)))
                again = self._own.decode(dict(sent), self._key(request), self._zeros)
                is_exact = again.keys() == update.keys() and all(
                    np.array_equal(again[name], update[name]) for name in again
                )
            if not is_exact:
                raise InputError("--compress: decode does not give the upload back that encode got.")
            return sent
        flat, sent = row_of(update), {}
        places = self._drawn(request)
        if self._place_bits:
            zeros = np.flatnonzero(flat == 0)  # they fill up, so that all uploads have the same size
            places = np.sort(np.append(np.flatnonzero(flat), zeros)[: self._count])
            digits = places if self._place_bits > 1 else np.isin(np.arange(flat.size), places).astype(np.int64)
            sent["places"] = _packed(digits, self._place_bits)
        values, bits = flat[places].astype(np.float32), self.learner.bits
        if bits is None:
            return {"numbers": values, **sent}
        arrays, steps = np.split(values, np.searchsorted(places, self._ends)), _steps(bits)
        units = np.array([_unit(each, steps) for each in arrays], np.float32)
        each_unit = units[self._owner[places]]
        codes = np.rint(values / np.where(each_unit, each_unit, 1)).clip(-steps, steps).astype(np.int64) + steps
        return {"numbers": _packed(codes, bits), "units": units, **sent}

    def decode(self, came: Arrays, request: Request) -> Arrays:
        """Return an upload from what a device sent.

        Raises:
            ValueError: It is not what ``encode`` writes. Sizes and scales are checked before anything is unpacked.
        """
        if form_of(came) != self.encoded_form:
            raise ValueError("not an upload in the encoding of this run")
        if any(not np.isfinite(values).all() for values in came.values() if values.dtype.kind == "f"):
            raise ValueError("a number that is not finite")
        if self._own is not None:
            try:
                return _as_arrays(self._own.decode(dict(came), self._key(request), self._zeros))
            except Exception as error:  # what came may raise anything in the user's code
                raise ValueError(f"decode raised {type(error).__name__}") from None
        places = self._places_in(came["places"]) if self._place_bits else self._drawn(request)
        values, bits = came["numbers"], self.learner.bits
        if bits is not None:
            if (came["units"] < 0).any():
                raise ValueError("a unit below 0")
            codes, steps = _unpacked(values, self._count, bits), _steps(bits)
            if (codes > 2 * steps).any():
                raise ValueError("a number beyond the scale")
            with np.errstate(over="ignore"):  # what is infinite then is refused with the update
                values = (codes - steps).astype(np.float32) * came["units"][self._owner[places]]
        flat = np.zeros(self._owner.size, np.float32)
        flat[places] = values
        return arrays_of(flat, self.form)

    @cached_property
    def encoded_form(self) -> Form:
        """Return names, shapes and dtypes of an encoded upload."""
        return form_of(self.encode(self._zeros, Request(0, 0, 0)))

    # ---- which numbers are sent

    @cached_property
    def _owner(self) -> Int[np.ndarray, " d"]:
        """Return the number of the array that each number of an upload is in."""
        sizes = [math.prod(self.form[name][0]) for name in sorted(self.form)]
        return np.repeat(np.arange(len(sizes)), sizes)

    @cached_property
    def _ends(self) -> Int[np.ndarray, " ends"]:
        """Return where arrays begin, but the first."""
        return np.searchsorted(self._owner, np.arange(1, len(self.form)))

    @cached_property
    def _count(self) -> int:
        """Return how many numbers are sent."""
        share = self.learner.compress.share if isinstance(self.learner.compress, RandomK) else self.learner.top_k
        return self._owner.size if share is None else numbers_sent(share, self._owner.size)

    @cached_property
    def _place_bits(self) -> int:
        """Return the bits of a place, ⌈lg d⌉; 1 if every number has a bit that says whether it is sent; 0 if neither is needed."""
        count, size = self._count, self._owner.size
        if self.learner.top_k is None or count == size:
            return 0
        bits = math.ceil(math.log2(size))
        return bits if count * bits < size else 1

    def _drawn(self, request: Request) -> Int[np.ndarray, " k"]:
        """Return the places that both sides know."""
        if isinstance(self.learner.compress, RandomK):
            return np.flatnonzero(self.learner.compress.chosen(self._owner.size, self._key(request)))
        return np.arange(self._owner.size)

    def _places_in(self, packed: np.ndarray) -> Int[np.ndarray, " k"]:
        bits, size = self._place_bits, self._owner.size
        places = _unpacked(packed, self._count if bits > 1 else size, bits)
        if bits == 1:
            places = np.flatnonzero(places)
        if places.size != self._count or (np.diff(places) <= 0).any() or places[-1] >= size:
            raise ValueError("places that are too many, too few, doubled, unsorted or out of range")
        return places

    def _key(self, request: Request) -> Key[Array, ""]:
        return job_key(run_key(self.seed), self.first_ue + request.ue, request.version)

    # ---- a user's own compression

    @property
    def _own(self) -> Any:
        """Return the user's function with its ``encode`` and ``decode``; None for our own compressions."""
        compress = self.learner.compress
        if compress is None or isinstance(compress, RandomK):
            return None
        return compress.function if isinstance(compress, OwnCompression) else compress

    @property
    def _zeros(self) -> dict[str, np.ndarray]:
        return {name: np.zeros(shape, kind) for name, (shape, kind) in self.form.items()}

    def _check_own(self) -> None:
        if not (hasattr(self._own, "encode") and hasattr(self._own, "decode")):
            raise InputError(
                "--compress has no encode and decode, so a federation cannot send its uploads (docs/how-to/own-methods.md)."
            )
        shapes = {name: jax.ShapeDtypeStruct(shape, kind) for name, (shape, kind) in self.form.items()}
        said = self.learner.chain.size(shapes)
        bits = bits_of(self.encoded_form)
        if bits > SPARE * said:
            raise InputError(f"--compress says that an upload has {said:,.0f} bits, but its encode writes {bits:,}.")


def _as_arrays(made: Mapping[str, Any]) -> dict[str, np.ndarray]:
    return {name: np.asarray(values) for name, values in made.items()}


def _steps(bits: int) -> int:
    return 2 ** (bits - 1) - 1


def _packed(codes: Int[np.ndarray, " k"], bits: int) -> np.ndarray:
    """Write whole numbers in this many bits each, most significant bit first."""
    digits = np.empty((codes.size, bits), np.uint8)
    for place in range(bits):
        digits[:, place] = codes >> (bits - 1 - place) & 1
    return np.packbits(digits)


def _unpacked(packed: np.ndarray, count: int, bits: int) -> Int[np.ndarray, " k"]:
    digits = np.unpackbits(packed, count=count * bits).reshape(count, bits)
    codes = np.zeros(count, np.int64)
    for place in range(bits):
        codes = codes << 1 | digits[:, place]
    return codes


def _unit(values: Float[np.ndarray, " k"], steps: int) -> np.float32:
    """Return the unit of which quantised values are multiples."""
    largest = np.abs(values).max(initial=0.0)
    for most in (steps, steps - 1):
        for away in NEIGHBOURS if most and largest else ():
            unit = np.float32(largest / most)
            for _ in range(abs(away)):
                unit = np.nextafter(unit, np.float32(math.copysign(math.inf, away)))
            if unit > 0 and (np.rint(values / unit) * unit == values).all():
                return unit
    return np.float32(largest / steps)
