"""Recursion, tables of functions, virtual functions and jumps of kernels that NVRTC made."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from helpers.suite import SHAPES

COUNT = 101

pytestmark = pytest.mark.parametrize("shape", SHAPES, ids=str)


@cache
def fibonacci(n: int) -> int:
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


@cache
def ackermann(m: int, n: int) -> int:
    if m == 0:
        return n + 1
    return ackermann(m - 1, 1) if n == 0 else ackermann(m - 1, ackermann(m, n - 1))


def selected(x: int) -> int:
    return sorted(x * (i * 7 + 3) % 101 for i in range(12))[6]


def chosen(x: int) -> int:
    operations: list[Callable[[int, int], int]] = [
        lambda a, b: a + b,
        lambda a, b: a * b,
        min,
    ]
    return operations[x % 3](x, 7) + operations[(x + 1) % 3](3, x)


def measured(x: int) -> int:
    return (x % 9) ** 2 * 10 + 4 if x & 1 else 2 * (x % 7) * 10


def paired(x: int) -> int:
    first, second, third = x, x + 1, x & 0xFF
    for i in range(3):
        step = i + x % 5
        first, second, third = first + step, second * 2, (third ^ step) & 0xFF
    return first + second * 7 + (third - 256 if third > 127 else third)


def folded(x: int) -> int:
    total = 0
    for i in range(x % 20):
        total = total * 3 + i * x
    return total


def tangled(x: int) -> int:
    """The jumps of the kernel as a machine of states."""
    steps, value, place = 0, x, "second" if x & 1 else "first"
    while True:
        if place == "first":
            value = value // 2 + 3 if value >= 0 else -(-value // 2) + 3
            steps += 1
            if steps > 40:
                return value
        value = value * 3 - 7
        value = (value + (1 << 31)) % (1 << 32) - (1 << 31)
        steps += 1
        if steps > 40:
            return value
        place = "first"
        if value & 4:
            continue
        value ^= steps
        if not value & 2:
            return value * 100 + steps
        place = "second"


CASES: dict[str, Callable[[int], int]] = {
    "fibonaccis": lambda x: fibonacci(x % 12),
    "ackermanns": lambda x: ackermann(x % 3, x % 4),
    "selections": selected,
    "queens_counts": lambda x: [2, 10, 4][x % 3],
    "chosen": chosen,
    "objects": measured,
    "structures": paired,
    "lambdas": folded,
    "jumps": tangled,
}


@pytest.mark.parametrize("name", CASES)
def test_calls(host: Any, name: str, shape: tuple[int, int]) -> None:
    xs = np.arange(COUNT, dtype=np.int32)
    out = host.put(np.zeros_like(xs))
    host.run(host.kernel(name, "suite/calls"), *shape, host.put(xs), out, COUNT)
    expected = np.array([CASES[name](x) for x in range(COUNT)], np.int64).astype(np.int32)
    assert np.array_equal(host.get(out, xs), expected)


def test_barriers_at_each_level_of_a_recursion(host: Any, shape: tuple[int, int]) -> None:
    x = np.random.default_rng(1).integers(0, 50, shape).astype(np.int32)
    out = host.put(np.zeros_like(x))
    host.run(host.kernel("descended", "suite/calls"), *shape, host.put(x), out, 4)
    expected = x.copy()
    for _ in range(4):
        expected = expected + np.roll(expected, -1, 1)
    assert np.array_equal(host.get(out, x), expected - 4 - 3 - 2 - 1)
