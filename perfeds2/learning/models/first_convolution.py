"""Compute a network's first convolution on a GPU without materialising patches.

Its images are data, so only its weights have a gradient. As a matrix times patches, nearly all of LeNet-5's time goes
into writing and reading patches: each pixel 25 times, for each product again. The two kernels here read images
directly. Both are linear in what is differentiated, so each is its own derivative.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jaxtyping import Array, Float

Ref: TypeAlias = Any  # an array in the memory of the device, which JAX gives no public type
COLUMNS, WARPS = 64, 1  # points of a row per program, and its warps: the best of about twenty choices on an H200
LEAST = 16  # smallest number of rows and columns of a matrix product on a GPU
INTERPRETED = False  # True: run on a CPU, for tests


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def convolve(side: int, weight: Float[Array, "p o"], images: Float[Array, "c h w b"]) -> Float[Array, "o i j b"]:
    """Convolve images with ``side`` × ``side`` kernels; ``weight`` is (row, column, channel) × maps."""
    return _said(side, weight, images)


def _remember(side: int, weight: Array, images: Array) -> tuple[Array, Array]:
    return _said(side, weight, images), images


def _gradient(side: int, images: Array, slopes: Array) -> tuple[Array, Array]:
    return _of_weight(side, slopes, images), jnp.zeros_like(images)


convolve.defvjp(_remember, _gradient)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _said(side: int, weight: Array, images: Array) -> Float[Array, "o i j b"]:
    channels, height, width, samples = images.shape
    shape = (weight.shape[1], height - side + 1, (width - side + 1) * samples)
    grid = (shape[1], pl.cdiv(shape[2], COLUMNS))
    found = _call(_said_kernel, side, samples, grid, shape, weight, images.reshape(channels, height, -1))
    return found.reshape(*shape[:2], -1, samples)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _of_weight(side: int, slopes: Float[Array, "o i j b"], images: Array) -> Float[Array, "p o"]:
    """Return the gradient of ``weight``: one program per row of points, then the sum."""
    channels, height, _, samples = images.shape
    maps, rows = slopes.shape[:2]
    shape = (rows, side, _filled(side * channels), _filled(maps))
    given = slopes.reshape(maps, rows, -1), images.reshape(channels, height, -1)
    found = _call(_of_weight_kernel, side, samples, (rows,), shape, *given).sum(axis=0)
    return found[:, : side * channels, :maps].reshape(-1, maps)


_said.defjvp(lambda side, now, dots: (_said(side, *now), _said(side, dots[0], now[1])))
_of_weight.defjvp(lambda side, now, dots: (_of_weight(side, *now), _of_weight(side, dots[0], now[1])))


def _call(
    kernel: Callable[..., None], side: int, samples: int, grid: tuple[int, ...], shape: tuple[int, ...], *given: Array
) -> Array:
    made = jax.ShapeDtypeStruct(shape, given[0].dtype)
    told = plgpu.CompilerParams(num_warps=WARPS, num_stages=2)
    call = pl.pallas_call(partial(kernel, side, samples), made, grid=grid, compiler_params=told, interpret=INTERPRETED)
    return call(*given)


def _filled(size: int) -> int:
    """Round a number of rows or columns up to what a GPU multiplies."""
    return max(LEAST, pl.next_power_of_2(size))


# ---- the kernels; a row of points, with all samples of each point, is one long row of columns


def _said_kernel(side: int, samples: int, weight: Ref, images: Ref, said: Ref) -> None:
    """Compute the next columns of one row, for all maps."""
    (maps, _, wide), row, channels = said.shape, pl.program_id(0), images.shape[0]
    columns = pl.program_id(1) * COLUMNS + jax.lax.iota(jnp.int32, COLUMNS)
    high, taps = _filled(maps), side * channels
    total = jnp.zeros((high, COLUMNS), said.dtype)
    for number in range(side):  # rows of the kernel
        map_, tap = _numbers(high, _filled(taps))
        there = (map_ < maps) & (tap < taps)
        own = plgpu.load(weight.at[number * taps + tap, map_], mask=there, other=0.0)
        total = total + jnp.dot(own, _seen(side, samples, images, row + number, columns))
    map_, _ = _numbers(high, COLUMNS)
    column = jnp.broadcast_to(columns[None, :], map_.shape)
    plgpu.store(said.at[map_, row, column], total, mask=(map_ < maps) & (column < wide))


def _of_weight_kernel(side: int, samples: int, slopes: Ref, images: Ref, found: Ref) -> None:
    """Compute the contribution of one row of points to the gradient."""
    (maps, _, wide), row, (taps, high) = slopes.shape, pl.program_id(0), found.shape[2:]

    def add(part: Array, totals: tuple[Array, ...]) -> tuple[Array, ...]:
        columns = part * COLUMNS + jax.lax.iota(jnp.int32, COLUMNS)
        _, map_ = _numbers(COLUMNS, high)
        column = jnp.broadcast_to(columns[:, None], map_.shape)
        slope = plgpu.load(slopes.at[map_, row, column], mask=(map_ < maps) & (column < wide), other=0.0)
        return tuple(
            total + jnp.dot(_seen(side, samples, images, row + number, columns), slope)
            for number, total in enumerate(totals)
        )

    nothing = (jnp.zeros((taps, high), found.dtype),) * side
    for number, total in enumerate(jax.lax.fori_loop(0, pl.cdiv(wide, COLUMNS), add, nothing)):
        plgpu.store(found.at[row, number, *_numbers(taps, high)], total)


def _seen(side: int, samples: int, images: Ref, row: Array, columns: Array) -> Array:
    """Return the pixels under one row of the kernel, as taps × columns."""
    channels, _, wide = images.shape
    tap, _ = _numbers(_filled(side * channels), columns.size)
    column = jnp.broadcast_to(columns[None, :], tap.shape)
    there = (tap < side * channels) & (column < wide - (side - 1) * samples)
    return plgpu.load(images.at[tap % channels, row, tap // channels * samples + column], mask=there, other=0.0)


def _numbers(rows: int, columns: int) -> tuple[Array, Array]:
    """Return the row and the column of every entry."""
    size = (rows, columns)
    return jax.lax.broadcasted_iota(jnp.int32, size, 0), jax.lax.broadcasted_iota(jnp.int32, size, 1)
