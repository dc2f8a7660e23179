"""Floating-point kernels that NVRTC made, against numpy in double precision."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from helpers.suite import COUNT, SHAPES, Array, Each, check_each, run_each

ROOT_HALF = math.sqrt(0.5)
erf = np.vectorize(math.erf, otypes=[float])
erfc = np.vectorize(math.erfc, otypes=[float])
lgamma = np.vectorize(math.lgamma, otypes=[float])
# As the kernels have it, products of float that are wrapped to float.
FAR = np.float32(1e7)


def integral(x: Array, _: Array) -> Array:
    return np.floor(x) + 10 * np.ceil(x) + 100 * np.rint(x) + 1000 * np.trunc(x)


def integers(x: Array, y: Array) -> Array:
    return np.trunc(x) + 10 * np.rint(x) + 100 * np.ceil(x) + np.trunc(y)


def classes(x: Array, y: Array) -> Array:
    return 2 + 4 * (x < 0) + 8 * (x < y)  # x / 0 is infinite, and no NaN


def fast(x: Array, y: Array) -> Array:
    return np.exp(x) + np.sin(y) + np.log(y) + x / y + y**1.5


SINGLE = {
    "axpby": Each(lambda x, y: 2.5 * x - y / 3, 1e-6, 1e-6),
    "clamped": Each(lambda x, y: np.minimum(np.maximum(x, -1), y)),
    "magnitude": Each(np.hypot, 1e-6),
    "inverse_root": Each(lambda x, y: y**-0.5 + y**0.5, 1e-6),
    "exponentials": Each(lambda x, y: np.exp(x) - np.exp2(y) + np.expm1(x), 1e-5, 1e-5),
    "logarithms": Each(lambda x, y: np.log(y) + np.log2(y) * np.log10(y) + np.log1p(y), 1e-5, 1e-6),
    "circular": Each(lambda x, y: np.sin(x) * np.cos(y) + np.tan(y / 4), 1e-5, 1e-6),
    "far_sine": Each(lambda x, y: np.sin((x.astype(np.float32) * FAR).astype(float)), 1e-5, 1e-6),
    "arcs": Each(
        lambda x, y: np.arctan2(x, y) + np.arcsin(x * 0.05) + np.arccos(y * 0.2), 1e-5, 1e-6
    ),
    "hyperbolic": Each(lambda x, y: np.sinh(x) + np.cosh(x) + np.tanh(y), 1e-5, 5e-4),
    "powers": Each(lambda x, y: y**x, 1e-5),
    "cube_root": Each(lambda x, y: np.cbrt(x), 1e-6),
    "error_function": Each(lambda x, y: erf(x) + erfc(y), 1e-5, 1e-6),
    "log_gamma": Each(lambda x, y: lgamma(y), 1e-5, 1e-6),
    "sigmoid": Each(lambda x, y: 1 / (1 + np.exp(-x)), 1e-5),
    "gelu": Each(lambda x, y: 0.5 * x * (1 + erf(x * ROOT_HALF)), 1e-5, 1e-6),
    "integral": Each(integral),
    "remainders": Each(
        lambda x, y: np.fmod((x.astype(np.float32) * np.float32(100)).astype(float), y), 0, 1e-7
    ),
    "signs": Each(lambda x, y: np.copysign(y, x) + np.abs(x), 1e-6),
    "neighbours": Each(lambda x, y: np.nextafter(x.astype(np.float32), y.astype(np.float32))),
    "fast": Each(fast, 1e-5, 1e-5),
    "saturated": Each(lambda x, y: np.clip(x, 0, 1)),
    "newton": Each(lambda x, y: np.sqrt(y), 1e-6),
}
WHOLE = {
    "classes": Each(classes),
    "integers": Each(integers),
    "bits": Each(
        lambda x, y: x.astype(np.float32).view(np.int32) ^ y.astype(np.float32).view(np.int32)
    ),
}
DOUBLE = {
    "doubles": Each(
        lambda x, y: np.exp(x) * np.log(y) + y**x + np.sin(x) / np.cos(y * 0.3), 1e-12, 1e-13
    ),
    "double_roots": Each(
        lambda x, y: np.sqrt(y) + np.cbrt(x) + y**-0.5 + np.hypot(x, y) + x * y + 1, 1e-13, 1e-13
    ),
    "double_errors": Each(
        lambda x, y: erf(x) + np.arctan(x) + np.log1p(y) + np.tanh(x), 1e-13, 1e-14
    ),
    "quotients": Each(lambda x, y: x * y, 1e-15),
}


@pytest.fixture(scope="module")
def xs() -> Array:
    values = np.random.default_rng(3).normal(0, 3, COUNT).astype(np.float32)
    values[:4] = 0.5, -0.5, 2.5, -1.0
    return values


@pytest.fixture(scope="module")
def ys() -> Array:
    values = np.random.default_rng(4).uniform(0.05, 4, COUNT).astype(np.float32)
    values[:4] = 1.0, 0.5, 2.0, 0.25
    return values


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", [*SINGLE, *WHOLE])
def test_single_precision(
    host: Any, name: str, shape: tuple[int, int], xs: Array, ys: Array
) -> None:
    case = SINGLE.get(name) or WHOLE[name]
    like = np.zeros(COUNT, np.float32 if name in SINGLE else np.int32)
    found = run_each(host, host.kernel(name, "suite/floats"), shape, xs, ys, like)
    expected = case.reference(xs.astype(np.float64), ys.astype(np.float64))
    check_each(found, expected.astype(like.dtype) if not case.relative else expected, case)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", DOUBLE)
def test_double_precision(
    host: Any, name: str, shape: tuple[int, int], xs: Array, ys: Array
) -> None:
    x, y = xs.astype(np.float64), ys.astype(np.float64)
    found = run_each(host, host.kernel(name, "suite/floats"), shape, x, y, np.zeros(COUNT))
    check_each(found, DOUBLE[name].reference(x, y), DOUBLE[name])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sums_rounded_up_and_down_are_neighbours(
    host: Any, shape: tuple[int, int], xs: Array, ys: Array
) -> None:
    x, y = xs.astype(np.float64) / 3, ys.astype(np.float64) / 7
    kernel = host.kernel("rounded_up", "suite/floats")
    found = run_each(host, kernel, shape, x, y, np.zeros(COUNT))
    exact = [math.fsum((a, b, -(a + b))) == 0 for a, b in zip(x, y, strict=True)]
    assert np.all((found == 0) == np.array(exact))
    assert np.all(found <= np.spacing(np.abs(x + y)))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_both_precisions_in_one_kernel(
    host: Any, shape: tuple[int, int], xs: Array, ys: Array
) -> None:
    x, y = xs.astype(np.float64) / 3, ys.astype(np.float64)
    like = np.zeros(COUNT, np.float32)
    found = run_each(host, host.kernel("mixed", "suite/floats"), shape, x, y, like)
    np.testing.assert_allclose(found, x * y + x, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_loops_that_threads_leave_at_different_times(
    host: Any, shape: tuple[int, int], xs: Array, ys: Array
) -> None:
    def steps(re: float, im: float) -> int:
        a = b = 0.0
        count = 0
        while count < 200 and a * a + b * b <= 4:
            a, b = a * a - b * b + re, 2 * (a * b) + im
            count += 1
        return count

    like = np.zeros(COUNT, np.int32)
    found = run_each(host, host.kernel("mandelbrot", "suite/floats"), shape, xs, ys, like)
    points = zip(xs.astype(float) * 0.4, ys.astype(float) * 0.4 - 0.8, strict=True)
    different = found != [steps(re, im) for re, im in points]
    assert different.sum() <= COUNT // 50  # the point itself is a fused product on the device
