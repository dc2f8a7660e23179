"""``wmma`` of kernels that NVRTC made, against numpy: every shape, type and order in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from helpers.suite import Array

#: Blocks and threads of a block; each warp does the same, so only one is worth while.
SHAPES = [(1, 32), (3, 32), (2, 32)]


@dataclass(frozen=True)
class Tile:
    """A kernel: its shape, types, and whether A, B and C lie in memory by rows."""

    shape: tuple[int, int, int]
    given: str
    result: Any
    rows: tuple[bool, bool, bool]


TILES = {
    "halves": Tile((16, 16, 16), "f16", np.float32, (True, False, True)),
    "half_sums": Tile((32, 8, 16), "f16", np.float16, (False, True, False)),
    "brains": Tile((8, 32, 16), "bf16", np.float32, (True, True, False)),
    "singles": Tile((16, 16, 8), "f32", np.float32, (False, False, True)),
    "doubles": Tile((8, 8, 4), "f64", np.float64, (True, True, True)),
    "bytes": Tile((16, 16, 16), "s8", np.int32, (True, False, True)),
    "clamped": Tile((32, 8, 16), "u8", np.int32, (True, True, False)),
    "wide_bytes": Tile((8, 32, 16), "u8", np.int32, (False, False, True)),
}
DTYPES = {"f16": np.float16, "f32": np.float32, "f64": np.float64, "s8": np.int8, "u8": np.uint8}


def in_memory(matrices: Array, by_rows: bool, kind: str = "") -> Array:
    """Return matrices as they lie in memory."""
    ordered = matrices if by_rows else matrices.transpose(0, 2, 1)
    if kind == "bf16":
        return (np.ascontiguousarray(ordered, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return np.ascontiguousarray(ordered, DTYPES[kind] if kind else matrices.dtype)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", TILES)
def test_tiles(host: Any, name: str, shape: tuple[int, int]) -> None:
    tile, random, blocks = TILES[name], np.random.default_rng(9), shape[0]
    m, n, k = tile.shape
    low, high = {"s8": (-128, 128), "u8": (0, 256)}.get(tile.given, (-8, 9))
    scale = 1 if tile.result is np.int32 else 0.25  # so that sums are exact
    a = random.integers(low, high, (blocks, m, k)) * scale
    b = random.integers(low, high, (blocks, k, n)) * scale
    c = random.integers(-100, 100, (blocks, m, n)).astype(tile.result)
    if name == "clamped":
        c[:, ::2] = (1 << 31) - 100
    rows_a, rows_b, rows_c = tile.rows
    given = in_memory(c, rows_c)
    out = host.put(np.zeros_like(given))
    arguments = [in_memory(a, rows_a, tile.given), in_memory(b, rows_b, tile.given), given]
    kernel = host.kernel(name, "suite/tiles")
    host.run(kernel, *shape, *(host.put(argument) for argument in arguments), out)
    exact = a @ b + c.astype(np.float64)
    if name == "clamped":
        exact = np.minimum(exact, (1 << 31) - 1)
    doubled = exact.astype(tile.result) * 2  # of integers with wrapping
    assert np.array_equal(host.get(out, given), in_memory(doubled, rows_c))


@pytest.mark.parametrize("shape", [(1, 32), (3, 64), (2, 96)], ids=str)
def test_tiles_by_way_of_shared_memory(host: Any, shape: tuple[int, int]) -> None:
    random = np.random.default_rng(9)
    a, b = (random.integers(-8, 9, (shape[0], 16, 16)) * 0.25 for _ in range(2))
    c = random.integers(-100, 100, (shape[0], 16, 16)).astype(np.float32)
    out = host.put(np.zeros_like(c))
    arguments = [in_memory(a, True, "f16"), in_memory(b, False, "f16"), c]
    kernel = host.kernel("shared_halves", "suite/tiles")
    host.run(kernel, *shape, *(host.put(argument) for argument in arguments), out)
    assert np.array_equal(host.get(out, c), (2 * (a @ b) + c).astype(np.float32))
