"""Write a quantised upload in the bits that the clock counts, and read it with suspicion.

With ``--bits n``, every number is a whole number of n bits times the unit of its array. The numbers of all arrays follow
each other in the order of the names; ``units`` has a float32 for each array. The header is that of a safetensors file.
"""

import math

import numpy as np

from perfeds2.deployment.transport import Arrays
from perfeds2.deployment.validate import Form

FULL = 32  # bits per number without quantisation
NEIGHBOURS = (0, 1, -1, 2, -2)  # last digits of a unit that are tried, so that reading gives the same numbers


def encoded(update: Arrays, bits: int | None) -> Arrays:
    """Return the arrays to send instead of a quantised upload."""
    if bits is None or bits >= FULL:
        return update
    steps = 2 ** (bits - 1) - 1
    arrays = [update[name].ravel() for name in sorted(update)]
    units = [_unit(values, steps) for values in arrays]
    whole = [np.rint(values / unit if unit else values) for values, unit in zip(arrays, units, strict=True)]
    codes = np.clip(np.concatenate(whole), -steps, steps).astype(np.int64) + steps
    digits = codes[:, None] >> np.arange(bits - 1, -1, -1) & 1
    return {"numbers": np.packbits(digits.astype(np.uint8)), "units": np.array(units, np.float32)}


def decoded(came: Arrays, form: Form, bits: int | None) -> Arrays:
    """Return an upload from what a device sent.

    Raises:
        ValueError: It is not what ``encoded`` writes. Sizes are checked before anything is unpacked.
    """
    if bits is None or bits >= FULL:
        return came
    names = sorted(form)
    sizes = [math.prod(form[name][0]) for name in names]
    expected = {"numbers": (-(-sum(sizes) * bits // 8), np.uint8), "units": (len(names), np.float32)}
    if came.keys() != expected.keys() or any(
        came[name].shape != (size,) or came[name].dtype != kind for name, (size, kind) in expected.items()
    ):
        raise ValueError(f"not an update of {bits} bits per number")
    units, steps = came["units"], 2 ** (bits - 1) - 1
    if not (np.isfinite(units).all() and (units >= 0).all()):
        raise ValueError("a unit that is not a finite number of at least 0")
    digits = np.unpackbits(came["numbers"], count=sum(sizes) * bits).reshape(-1, bits)
    codes = digits.astype(np.int64) @ (1 << np.arange(bits - 1, -1, -1))
    if (codes > 2 * steps).any():
        raise ValueError("a number beyond the scale")
    values = (codes - steps).astype(np.float32) * np.repeat(units, sizes)
    arrays = np.split(values, np.cumsum(sizes)[:-1])
    return {name: each.reshape(form[name][0]).astype(form[name][1]) for name, each in zip(names, arrays, strict=True)}


def _unit(values: np.ndarray, steps: int) -> np.float32:
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
