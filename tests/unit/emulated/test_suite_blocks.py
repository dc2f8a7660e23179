"""Kernels in which threads work together, against numpy, at three shapes of the launch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.suite import SHAPES, Array

Shape = tuple[int, int]
#: Makes of the values of a warp, or of a block, what its threads put out.
Group = Callable[[Array], Any]

pytestmark = pytest.mark.parametrize("shape", SHAPES, ids=str)


def values_for(shape: Shape, low: int = -100, high: int = 100) -> Array:
    """Return a value for each thread."""
    return np.random.default_rng(8).integers(low, high, shape).astype(np.int32)


def run(host: Any, name: str, shape: Shape, out: Array, *arguments: Any, shared: int = 0) -> Array:
    """Run a kernel whose last array is its output."""
    kernel, target = host.kernel(name, "suite/blocks"), host.put(out)
    given = [host.put(a) if isinstance(a, np.ndarray) else a for a in arguments]
    host.run(kernel, *shape, *given, target, shared=shared)
    found: Array = host.get(target, out)
    return found


def by_warp(x: Array, function: Group) -> Array:
    """Apply a function to the values of each warp."""
    found = np.zeros_like(x)
    for block in range(len(x)):
        for start in range(0, x.shape[1], 32):
            part = slice(start, min(start + 32, x.shape[1]))
            found[block, part] = function(x[block, part])
    return found


def as_int(value: int) -> int:
    """Return an unsigned word as a signed one."""
    return int(np.uint32(value & 0xFFFFFFFF).view(np.int32))


def bits(values: Array) -> int:
    """Return a word with the bits that are true."""
    return sum(1 << i for i, value in enumerate(values.tolist()) if value)


def reduced(v: Array) -> int:
    words = v.view(np.uint32)
    both = np.bitwise_and.reduce(words) ^ np.bitwise_xor.reduce(words)
    return as_int(int(v.sum()) ^ int(v.max()) ^ int(both))


def voted(v: Array) -> int:
    return as_int(bits(v > 0) ^ int((v > -90).all()) << 7 ^ int((v > 90).any()) << 9)


def grouped(v: Array) -> list[int]:
    return [as_int(bits((v & 3) == key)) for key in (v & 3).tolist()]


WARPS: dict[str, Group] = {
    "warp_sums": lambda v: v.sum(),
    "reduced": reduced,
    "voted": voted,
    "grouped": grouped,
    "agreed": lambda v: as_int(((1 << len(v)) - 1) ^ 1),
}


@pytest.mark.parametrize("name", WARPS)
def test_warps(host: Any, name: str, shape: Shape) -> None:
    x = values_for(shape)
    assert np.array_equal(run(host, name, shape, x, x), by_warp(x, WARPS[name]))


def counted(v: Array) -> int:
    return int((v > 0).sum()) * 4 + 2 * int((v > -100).all()) + int((v > 99).any())


BLOCKS: dict[str, Group] = {
    "inclusive_scan": np.cumsum,
    "odd_even_sort": np.sort,
    "reversed": lambda v: v[::-1],
    "counted": counted,
}


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks(host: Any, name: str, shape: Shape) -> None:
    x = values_for(shape)
    expected = x.copy()
    for block in range(len(x)):
        expected[block] = BLOCKS[name](x[block])
    assert np.array_equal(run(host, name, shape, x, x, shared=1024), expected)


@pytest.mark.parametrize("name", ["block_sums", "largest_places"])
def test_a_number_for_each_block(host: Any, name: str, shape: Shape) -> None:
    x = values_for(shape)
    found = run(host, name, shape, np.zeros(len(x), np.int32), x)
    expected = x.sum(1) if name == "block_sums" else x.argmax(1)
    if name == "largest_places":
        found, expected = x[range(len(x)), found], x.max(1)
    assert np.array_equal(found, expected)


def test_compaction_keeps_the_positive_ones(host: Any, shape: Shape) -> None:
    x = values_for(shape)
    out, count = host.put(np.zeros_like(x)), host.put(np.zeros(1, np.int32))
    host.run(host.kernel("compacted", "suite/blocks"), *shape, host.put(x), out, count)
    kept = int(host.get(count, np.zeros(1, np.int32))[0])
    found = host.get(out, x).ravel()[:kept]
    # Warps follow each other on this device, so the order is that of the elements.
    assert np.array_equal(found, x[x > 0])


def test_neighbours_beyond_the_block(host: Any, shape: Shape) -> None:
    x = values_for(shape)
    flat = np.concatenate([[0], x.ravel(), [0]])
    expected = flat[:-2] - 2 * flat[1:-1] + flat[2:]
    assert np.array_equal(run(host, "neighbours", shape, x, x).ravel(), expected)


def test_a_histogram(host: Any, shape: Shape) -> None:
    x = values_for(shape)
    found = run(host, "tallied", shape, np.zeros(16, np.int32), x)
    assert np.array_equal(found, np.bincount(x.ravel() & 15, minlength=16))


def test_atomic_operations(host: Any, shape: Shape) -> None:
    x = values_for(shape)
    first = np.zeros(12, np.uint32)
    first[[4, 6]] = 0xFFFFFFFF
    wide = np.zeros(7, np.uint64)
    wide[3] = (1 << 64) - 1
    cells, long_cells = host.put(first), host.put(wide)
    host.run(host.kernel("atomics", "suite/blocks"), *shape, host.put(x), cells, long_cells)
    found = host.get(cells, first)
    values, words = x.ravel(), x.ravel().view(np.uint32)
    signs = values.astype(np.int64)
    count = len(values)
    expected = [
        *(signs.sum(), -signs.sum(), min(0, signs.min()), max(0, signs.max())),
        *(words.min(), words.max(), np.bitwise_and.reduce(words)),
        *(np.bitwise_or.reduce(words), np.bitwise_xor.reduce(words)),
        *(count % 7, (7 - count) % 7),
    ]
    assert found[:11].tolist() == [int(value) & 0xFFFFFFFF for value in expected]
    assert found.view(np.float32)[11] == values.sum()
    longs = signs.view(np.uint64)
    expected = [
        *(signs.sum(), min(0, signs.min()), max(0, signs.max())),
        *(longs.min(), longs.max(), np.bitwise_xor.reduce(longs << np.uint64(20))),
    ]
    found = host.get(long_cells, wide)
    assert found[:6].tolist() == [int(value) % (1 << 64) for value in expected]
    assert found.view(np.float64)[6] == values.sum() * 0.5


def test_compare_and_swap_of_three_widths(host: Any, shape: Shape) -> None:
    x = values_for(shape)
    cells = [np.ones(1, kind) for kind in (np.uint32, np.uint64, np.uint16)]
    places = [host.put(cell) for cell in cells]
    host.run(host.kernel("swapped", "suite/blocks"), *shape, host.put(x), *places)
    product = 1
    for factor in x.ravel().view(np.uint32).tolist():
        product = product * (factor | 1) % (1 << 64)
    for cell, place in zip(cells, places, strict=True):
        assert int(host.get(place, cell)[0]) == product % (1 << 8 * cell.itemsize)


def test_the_last_block_sums_what_the_others_left(host: Any, shape: Shape) -> None:
    x, zeros = values_for(shape), np.zeros(shape[0], np.int32)
    found = run(host, "last_block", shape, np.zeros(1, np.int32), x, zeros, zeros[:1])
    assert found[0] == x.sum()


def test_copies_that_arrive_later(host: Any, shape: Shape) -> None:
    rounds = 3
    x = values_for((rounds, *shape))
    out = np.zeros(shape, np.int32)
    kernel, target = host.kernel("pipelined", "suite/blocks"), host.put(out)
    host.run(kernel, *shape, host.put(x), target, rounds)
    assert np.array_equal(host.get(target, out), x.sum(0)[:, ::-1])


def test_half_of_a_block_waits_for_the_other(host: Any, shape: Shape) -> None:
    x = values_for(shape)
    half = shape[1] // 64 * 32
    expected = np.zeros_like(x)
    expected[:, half : 2 * half] = x[:, :half] * 3
    assert np.array_equal(run(host, "relayed", shape, np.zeros_like(x), x), expected)


@pytest.mark.parametrize("name", ["normalised", "log_sum_exp"])
def test_rows_of_floats(host: Any, name: str, shape: Shape) -> None:
    x = (values_for(shape) / 25).astype(np.float32)
    wide = x.astype(np.float64)
    if name == "normalised":
        centred = wide - wide.mean(1, keepdims=True)
        expected = centred / np.sqrt(centred.var(1, keepdims=True) + 1e-5)
    else:
        expected = wide - np.log(np.exp(wide).sum(1, keepdims=True))
    found = run(host, name, shape, np.zeros_like(x), x)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_a_matrix_times_a_vector(host: Any, shape: Shape) -> None:
    random = np.random.default_rng(2)
    matrix, vector = random.random((8, 77), np.float32), random.random(77, np.float32)
    out = np.zeros(8, np.float32)
    target = host.put(out)
    kernel = host.kernel("matrix_vector", "suite/blocks")
    host.run(kernel, *shape, host.put(matrix), host.put(vector), target, 77)
    np.testing.assert_allclose(host.get(target, out), matrix @ vector, rtol=1e-5)


def test_a_transposition_and_a_generation_of_life(host: Any, shape: Shape) -> None:
    x = values_for((shape[0], 16, 16))
    found = run(host, "transposed", shape, np.zeros_like(x), x)
    assert np.array_equal(found, x.transpose(0, 2, 1))
    cells = x & 1
    turns = [(dy, dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1) if dy or dx]
    around = sum(np.roll(cells, turn, (1, 2)) for turn in turns)
    expected = (around == 3) | ((around == 2) & (cells == 1))
    assert np.array_equal(run(host, "life", shape, np.zeros_like(x), x), expected)


def test_places_of_threads(host: Any, shape: Shape) -> None:
    blocks, threads = shape
    found = run(host, "places", shape, np.zeros(shape, np.int32), shared=48)
    t = np.arange(threads)
    expected = t % 32 * 101 + 10000 * (t // 32) + 100000 * blocks + 48
    assert np.array_equal(found, np.broadcast_to(expected, shape))


def test_threads_of_a_warp_that_take_different_ways(host: Any, shape: Shape) -> None:
    x = values_for(shape)

    def alone(value: int) -> int:
        steps = range(min(value & 7, 6))
        return sum(i * 3 if value & 8 else -i for i in steps)

    sums = np.array([[alone(value) for value in row] for row in x.tolist()])
    expected = sums.copy()
    for t in range(shape[1]):
        if t ^ 1 < shape[1]:
            expected[:, t] += sums[:, t ^ 1]
    expected += 1000 * (x & 1)
    assert np.array_equal(run(host, "diverged", shape, np.zeros_like(x), x), expected)
