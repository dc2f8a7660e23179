"""Half and bfloat16 of kernels that NVRTC made with CUDA's headers, against numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.suite import COUNT, SHAPES, Array, run_each

Reference = Callable[[Array, Array], Array]

pytestmark = pytest.mark.parametrize("shape", SHAPES, ids=str)


def to_half(values: Array) -> Array:
    """Round to half, as numbers in double precision."""
    return values.astype(np.float16).astype(np.float64)


def to_brain(values: Array) -> Array:
    """Round to bfloat16 to the nearest, ties to even, as numbers in double precision.

    By way of float: what is rounded here has no more bits than it.
    """
    words = values.astype(np.float32).view(np.uint32)
    words = words + 0x7FFF + (words >> 16 & 1) & np.uint32(0xFFFF0000)
    return words.view(np.float32).astype(np.float64)


def brain_bits(values: Array) -> Array:
    """Return the bits of numbers that bfloat16 holds."""
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def inputs(rounded: Callable[[Array], Array], seed: int) -> Array:
    values = np.random.default_rng(seed).normal(0, 2, 2 * COUNT)
    values[np.abs(values) < 0.05] = 0.5
    return rounded(values)


HALF: dict[str, Reference] = {
    "half_sums": lambda x, y: to_half(x + to_half(y * 0.5)),
    "half_quotients": lambda x, y: to_half(x / y),
    "half_fused": lambda x, y: np.maximum(to_half(x * y + x), 0),
    "half_limits": lambda x, y: np.minimum(np.maximum(x, y), 2),
    "half_signs": lambda x, y: to_half(np.abs(x) + y),
    "half_roots": lambda x, y: to_half(to_half(np.sqrt(np.abs(x))) + to_half(1 / y)),
    "half_choices": np.minimum,
    "pair_sums": lambda x, y: to_half(x + to_half(y * y)),
    "pair_fused": lambda x, y: to_half(x * y + y),
    "pair_masks": lambda x, y: (x < y).astype(np.float64),
    "pair_saturated": lambda x, y: np.clip(to_half(x + y), 0, 1),
}
BRAIN: dict[str, Reference] = {
    "brain_sums": lambda x, y: to_brain(x + y),
    "brain_fused": lambda x, y: to_brain(x * y + x),
    "brain_limits": lambda x, y: np.maximum(x, np.minimum(y, 1)),
    "brain_pairs": lambda x, y: to_brain(x * y - x),
}
#: Where a sum in two roundings may differ from the one of a fused instruction, and functions.
INEXACT = {"half_sums", "half_signs", "half_quotients", "half_roots", "pair_sums"}


@pytest.mark.parametrize("name", HALF)
def test_half(host: Any, name: str, shape: tuple[int, int]) -> None:
    x, y = inputs(to_half, 1), inputs(to_half, 2)
    xs, ys = x.astype(np.float16), y.astype(np.float16)
    pairs = name.startswith("pair")
    if pairs:
        xs, ys = xs.view(np.uint32), ys.view(np.uint32)
    kernel = host.kernel(name, "suite/halves")
    found = run_each(host, kernel, shape, xs, ys, np.zeros_like(xs)).view(np.float16)
    expected = HALF[name](x, y)
    tolerance = 2e-3 if name in INEXACT else 0
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", BRAIN)
def test_bfloat16(host: Any, name: str, shape: tuple[int, int]) -> None:
    x, y = inputs(to_brain, 1), inputs(to_brain, 2)
    xs, ys = brain_bits(x), brain_bits(y)
    if name == "brain_pairs":
        xs, ys = xs.view(np.uint32), ys.view(np.uint32)
    kernel = host.kernel(name, "suite/halves")
    found = run_each(host, kernel, shape, xs, ys, np.zeros_like(xs)).view(np.uint16)
    assert np.array_equal(found, brain_bits(BRAIN[name](x, y)))


def test_floats_rounded_to_small_ones_and_back(host: Any, shape: tuple[int, int]) -> None:
    x, y = (np.random.default_rng(s).normal(0, 5, COUNT).astype(np.float32) for s in (1, 2))
    kernel = host.kernel("rounded", "suite/halves")
    found = run_each(host, kernel, shape, x, y, np.zeros_like(x))
    near = x.astype(np.float16)
    down = np.where(np.abs(near) > np.abs(x), np.nextafter(near, np.float16(0)), near)
    above = y.astype(np.float16)
    up = np.where(above < y, np.nextafter(above, np.float16(np.inf)), above)
    expected = near.astype(np.float64) + 2 * to_half(y) + 4 * to_brain(x) + down + up
    expected += np.rint(near.astype(np.float64))
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-5)


def test_atomic_sums_of_small_floats(host: Any, shape: tuple[int, int]) -> None:
    x = np.random.default_rng(4).integers(-4, 5, 40).astype(np.float16)
    totals = [host.put(np.zeros(2, np.uint16)) for _ in range(3)]
    kernel = host.kernel("half_totals", "suite/halves")
    host.run(kernel, *shape, host.put(x), *totals, len(x))
    half, pair, brain = (host.get(total, np.zeros(2, np.uint16)) for total in totals)
    assert half.view(np.float16).tolist() == [x.sum(), 0]
    assert pair.view(np.float16).tolist() == [x.sum(), x.sum()]
    assert brain.tolist() == [int(brain_bits(np.array([x.sum()]))[0]), 0]


def test_tensor_cores_multiply_tiles(host: Any, shape: tuple[int, int]) -> None:
    random = np.random.default_rng(5)
    a = random.normal(0, 1, (shape[0], 16, 16)).astype(np.float16)
    b = random.normal(0, 1, (shape[0], 16, 8)).astype(np.float16)
    out = np.zeros((shape[0], 16, 8), np.float32)
    target = host.put(out)
    kernel = host.kernel("tensor_product", "suite/halves")
    host.run(kernel, *shape, host.put(a), host.put(b), target)
    expected = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_allclose(host.get(target, out), expected, rtol=1e-6, atol=1e-6)
