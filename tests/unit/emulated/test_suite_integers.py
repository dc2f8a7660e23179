"""Integer kernels that NVRTC made, against Python's integers."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.suite import COUNT, SHAPES, Array, run_each

M32, M64 = (1 << 32) - 1, (1 << 64) - 1


def signed(value: int, bits: int = 32) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def scrambled(x: int) -> int:
    x = (x ^ x >> 16) * 0x85EBCA6B & M32
    x = (x ^ x >> 13) * 0xC2B2AE35 & M32
    return x ^ x >> 16


def collatz(x: int) -> int:
    x, steps = x % 1000 + 1, 0
    while x != 1:
        x, steps = 3 * x + 1 if x & 1 else x // 2, steps + 1
    return steps


def is_prime(x: int) -> int:
    return int(x > 1 and all(x % d for d in range(2, math.isqrt(x) + 1)))


def random_after(x: int, count: int) -> int:
    for _ in range(count):
        x ^= x << 13 & M32
        x ^= x >> 17
        x ^= x << 5 & M32
    return x


def days(month: int) -> int:
    return [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31, 0][month]


def reverse(x: int, bits: int) -> int:
    return int(f"{x:0{bits}b}"[::-1], 2)


def permuted(x: int, y: int, selector: int) -> int:
    pool = x | y << 32
    return sum((pool >> 8 * (selector >> 4 * i & 7) & 0xFF) << 8 * i for i in range(4))


def parts(x: int, bits: int, is_signed: bool = False) -> list[int]:
    found = [x >> place & ((1 << bits) - 1) for place in range(0, 32, bits)]
    return [signed(part, bits) for part in found] if is_signed else found


def joined(values: list[int], bits: int) -> int:
    return sum((value & ((1 << bits) - 1)) << bits * i for i, value in enumerate(values))


def quotient(x: int, y: int) -> int:
    """Divide as C does."""
    return abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)


def signed_quotients(x: int, y: int) -> int:
    whole = quotient(x, y | 1)
    return whole + (x - whole * (y | 1)) * 5


def signed_longs(x: int, y: int) -> int:
    whole = quotient(x, y | 1)
    return whole - (x - whole * (y | 1)) + (x * y >> 64)


def funnels(x: int, y: int) -> int:
    pair, left, right = x | y << 32, x & 31, min(y & 63, 32)
    return (pair << left >> 32 & M32) ^ (pair >> right & M32)


def short_parts(x: int, y: int) -> int:
    plain = (x & 0xFFFFFF) * (y & 0xFFFFFF)
    return (plain ^ signed(x, 24) * signed(y, 24)) & M32


def dot_bytes(x: int, y: int) -> int:
    return 7 + sum(a * b for a, b in zip(parts(x, 8, True), parts(y, 8, True), strict=True))


def dot_halves(x: int, y: int) -> int:
    halves, quarters = parts(x, 16), parts(y, 8)
    return sum(halves[i] * (quarters[i] + quarters[i + 2]) for i in range(2)) + 3


def averages(x: int, y: int) -> int:
    return (x + y >> 1) ^ (x + y + 1 >> 1) ^ (signed(x) + signed(y) >> 1)


def byte_mix(x: int, y: int) -> int:
    bytes_, halves = list(zip(parts(x, 8), parts(y, 8), strict=True)), parts(x, 16, True)
    sums = joined([a + b for a, b in bytes_], 8)
    distances = joined([abs(a - b) for a, b in bytes_], 8)
    equal = joined([0xFF * (a == b) for a, b in bytes_], 8)
    largest = joined([max(p) for p in zip(halves, parts(y, 16, True), strict=True)], 16)
    return sums ^ distances ^ largest ^ equal


def long_bits(x: int, y: int) -> int:
    return reverse(x, 64) + y.bit_count() + ((64 - y.bit_length()) << 32) + (x >> (y & 63))


Reference = Callable[[int, int], int]
UNSIGNED: dict[str, Reference] = {
    "hashes": lambda x, y: scrambled(x) + scrambled(y),
    "divisors": math.gcd,
    "checksums": lambda x, y: zlib.crc32(x.to_bytes(4, "little")),
    "collatz_steps": lambda x, y: collatz(x),
    "whole_roots": lambda x, y: math.isqrt(x),
    "primes": lambda x, y: is_prime(x % 5000),
    "randoms": lambda x, y: random_after(x | 1, y % 20),
    "months": lambda x, y: days(x % 13) * 100 + days(y % 13),
    "counts": lambda x, y: (
        x.bit_count() + 100 * (32 - y.bit_length()) + 10000 * (x & -x).bit_length()
    ),
    "reversed": lambda x, y: reverse(x, 32) ^ permuted(x, y, 0x6420),
    "high_parts": lambda x, y: (x * y >> 32) + (signed(x) * signed(y) >> 32),
    "short_parts": short_parts,
    "funnels": funnels,
    "dot_bytes": dot_bytes,
    "dot_halves": dot_halves,
    "differences": lambda x, y: abs(x - y) + 3 + abs(signed(x) - signed(y)) + 4,
    "averages": averages,
    "quotients": lambda x, y: x // (y | 1) * 3 + x % (y | 1),
    "bytes": byte_mix,
}
SIGNED: dict[str, Reference] = {
    "signed_quotients": signed_quotients,
    "shifts": lambda x, y: (x >> (y & 31)) ^ (x << (y & 15)) ^ (x & M32) >> (y & 7),
}
LONG: dict[str, Reference] = {
    "long_quotients": lambda x, y: x // (y | 1) + x % (y | 1),
    "long_products": lambda x, y: (x * y >> 64) ^ x * y,
    "long_bits": long_bits,
}
ALL = [
    *((name, np.uint32, reference) for name, reference in UNSIGNED.items()),
    *((name, np.int32, reference) for name, reference in SIGNED.items()),
    *((name, np.uint64, reference) for name, reference in LONG.items()),
    ("signed_longs", np.int64, signed_longs),
]


def inputs(dtype: Any, seed: int) -> Array:
    """Return integers of all sizes."""
    random = np.random.default_rng(seed)
    bits = np.dtype(dtype).itemsize * 8
    values = random.integers(0, M64, COUNT, dtype=np.uint64, endpoint=True)
    values >>= random.integers(0, bits, COUNT).astype(np.uint64)
    values[:4] = 0, 1, (1 << bits) - 1, 1 << (bits - 1)
    return values.astype(dtype)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("name", "dtype", "reference"), ALL, ids=[case[0] for case in ALL])
def test_integers(
    host: Any, name: str, dtype: Any, reference: Reference, shape: tuple[int, int]
) -> None:
    xs, ys = inputs(dtype, 5), inputs(dtype, 6)
    kernel = host.kernel(name, "suite/integers")
    found = run_each(host, kernel, shape, xs, ys, np.zeros(COUNT, dtype))
    mask = (1 << found.itemsize * 8) - 1
    pairs = zip(xs.tolist(), ys.tolist(), strict=True)
    assert [int(v) & mask for v in found] == [reference(x, y) & mask for x, y in pairs]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_numbers_of_128_bits(host: Any, shape: tuple[int, int]) -> None:
    xs, ys = inputs(np.uint64, 5), inputs(np.uint64, 6)
    kernel = host.kernel("wide_sums", "suite/integers")
    found = run_each(host, kernel, shape, xs, ys, np.zeros((COUNT, 2), np.uint64))
    for x, y, (low, high) in zip(xs.tolist(), ys.tolist(), found.tolist(), strict=True):
        assert low | high << 64 == (x * y + (x << 64 | y) - (y << 32)) % (1 << 128)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_search_in_a_sorted_table(host: Any, shape: tuple[int, int]) -> None:
    xs, table = inputs(np.uint32, 5), np.sort(inputs(np.uint32, 6))
    kernel = host.kernel("search", "suite/integers")
    found = run_each(host, kernel, shape, xs, table, np.zeros(COUNT, np.int32))
    assert np.array_equal(found, np.searchsorted(table, xs))
