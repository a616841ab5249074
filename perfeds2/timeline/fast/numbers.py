"""Call NumPy's logarithms and draw its random numbers inside compiled loops."""

import ctypes
import inspect
from collections.abc import Callable
from typing import Any

import llvmlite.ir
import numba
import numba.core.config
import numpy as np
from numba import types
from numba.extending import intrinsic

Function = Callable[..., Any]
NJIT: Any = numba.njit  # its type stubs do not list all its options
CONFIG: Any = numba.core.config


def entrance(function: Function) -> Function:
    """Compile a function when Python first calls it, without the type checks that test runs wrap around it."""
    return NJIT(cache=CONFIG.CACHE_DIR != "", error_model="numpy")(inspect.unwrap(function))


def compiled(function: Function) -> Function:
    """Compile a function into the compiled functions that call it, because a call would copy its records of arrays."""
    inside = NJIT(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True, _nrt=False, forceinline=True)
    return inside(inspect.unwrap(function))


# ---- NumPy's logarithms and sums


class _Ufunc(ctypes.Structure):
    """The first fields of NumPy's ``PyUFuncObject`` after the object header, as in NumPy's C API."""

    _fields_ = (
        *((name, ctypes.c_int) for name in ("nin", "nout", "nargs", "identity")),
        *((name, ctypes.POINTER(ctypes.c_size_t)) for name in ("functions", "data")),
        ("ntypes", ctypes.c_int),
    )


def loop_of(ufunc: np.ufunc, kind: str = "d->d") -> tuple[int, int]:
    """Return the addresses of NumPy's float64 loop for a ufunc on this processor, and of the data it expects."""
    inside = _Ufunc.from_address(id(ufunc) + object.__basicsize__)
    if (inside.nin, inside.nout, inside.nargs, inside.ntypes) != (ufunc.nin, ufunc.nout, ufunc.nargs, ufunc.ntypes):
        raise RuntimeError("this NumPy keeps its loops elsewhere")
    number = list[str](ufunc.types).index(kind)
    return inside.functions[number], inside.data[number]


def loops() -> tuple[tuple[int, int], ...]:
    return loop_of(np.log1p), loop_of(np.log), loop_of(np.exp), loop_of(np.add, "dd->d")


@intrinsic
def _call(typing_context, loop, arguments, counts, steps, data):  # noqa: ARG001 (Numba passes it)
    """Call a ufunc loop with pointers to its arguments, their count, their strides and its data."""

    def generate(context, builder, signature, values):  # noqa: ARG001
        address = llvmlite.ir.IntType(64)
        kind = llvmlite.ir.FunctionType(llvmlite.ir.VoidType(), [address] * 4)
        builder.call(builder.inttoptr(values[0], kind.as_pointer()), values[1:])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), generate


call_loop: Any = _call  # Numba adds the first argument


@compiled
def apply(loop, values, count, call):
    """Apply a ufunc loop to the first ``count`` values, in place."""
    call[0] = call[1] = values.ctypes.data
    call[2] = count
    call[3] = call[4] = 8
    at = call.ctypes.data
    call_loop(loop[0], at, at + 16, at + 24, loop[1])


@compiled
def add_up(loop, values, count, total, call):
    """Sum the first ``count`` values in NumPy's order. ``total`` provides memory for the sum."""
    total[0] = 0.0
    call[0] = call[2] = total.ctypes.data
    call[1] = values.ctypes.data
    call[3] = count
    call[4] = call[6] = 0
    call[5] = 8
    at = call.ctypes.data
    call_loop(loop[0], at, at + 24, at + 32, loop[1])
    return total[0]


# ---- Order


@compiled
def smallest(values, count, rank):
    """Return the ``rank``-th smallest value, counting from 1. Reorders the values."""
    low, high, place = 0, count - 1, rank - 1
    while low < high:
        pivot = values[(low + high) // 2]
        i, j = low, high
        while i <= j:
            while values[i] < pivot:
                i += 1
            while pivot < values[j]:
                j -= 1
            if i <= j:
                values[i], values[j] = values[j], values[i]
                i += 1
                j -= 1
        if place <= j:
            high = j
        elif place >= i:
            low = i
        else:
            break
    return values[place]


@compiled
def sort(places, count, key, spare):
    """Sort stably by key: insertion sort on runs of 16, then merge the runs."""
    for start in range(0, count, 16):
        for i in range(start + 1, min(start + 16, count)):
            place, value, j = places[i], key[places[i]], i
            while j > start and key[places[j - 1]] > value:
                places[j] = places[j - 1]
                j -= 1
            places[j] = place
    width = 16
    while width < count:
        for start in range(0, count, 2 * width):
            i, middle, stop = start, min(start + width, count), min(start + 2 * width, count)
            j = middle
            for k in range(start, stop):
                if i < middle and (j >= stop or key[places[i]] <= key[places[j]]):
                    spare[k] = places[i]
                    i += 1
                else:
                    spare[k] = places[j]
                    j += 1
        for k in range(count):
            places[k] = spare[k]
        width *= 2


# ---- Random numbers of the fading: Philox 4×64, keyed by (seed, round, stream, UE)


@intrinsic
def _high(typing_context, a, b):  # noqa: ARG001 (Numba passes it)
    """Return the upper 64 bits of the product of two 64-bit numbers."""

    def generate(context, builder, signature, arguments):  # noqa: ARG001
        wide = llvmlite.ir.IntType(128)
        a, b = (builder.zext(argument, wide) for argument in arguments)
        return builder.trunc(builder.lshr(builder.mul(a, b), wide(64)), llvmlite.ir.IntType(64))

    return types.uint64(types.uint64, types.uint64), generate


upper: Any = _high  # Numba adds the first argument


@entrance
def draw(uniform, seed, first_round, stream, ues):
    """Fill row r with the uniform numbers U of these UEs in round ``first_round + r``."""
    four = np.empty(4)
    for row in range(uniform.shape[0]):
        drawn = np.int64(-1)
        for i in range(ues.size):
            if ues[i] // 4 != drawn:
                drawn = ues[i] // 4
                _philox(four, seed, np.uint64(first_round + row), np.uint64(drawn + 1), np.uint64(stream))
            uniform[row, i] = four[ues[i] % 4]


@compiled
def _philox(four, key_0, key_1, c0, c1):
    c2 = c3 = np.uint64(0)
    for turn in range(10):
        if turn:
            key_0 += np.uint64(0x9E3779B97F4A7C15)
            key_1 += np.uint64(0xBB67AE8584CAA73B)
        high_0, low_0 = upper(np.uint64(0xD2E7470EE14C6C93), c0), np.uint64(0xD2E7470EE14C6C93) * c0
        high_1, low_1 = upper(np.uint64(0xCA5A826395121157), c2), np.uint64(0xCA5A826395121157) * c2
        c0, c1, c2, c3 = high_1 ^ c1 ^ key_0, low_1, high_0 ^ c3 ^ key_1, low_0
    four[0], four[1] = np.float64(c0 >> np.uint64(11)) * 2.0**-53, np.float64(c1 >> np.uint64(11)) * 2.0**-53
    four[2], four[3] = np.float64(c2 >> np.uint64(11)) * 2.0**-53, np.float64(c3 >> np.uint64(11)) * 2.0**-53
