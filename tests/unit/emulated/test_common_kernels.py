"""Kernels as programs have them, against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np

N = 1 << 14


def test_vector_add_is_exact(host: Any, random: np.random.Generator) -> None:
    a, b = random.random(N, np.float32), random.random(N, np.float32)
    out = host.put(np.zeros_like(a))
    host.run(host.kernel("vector_add"), N // 256, 256, host.put(a), host.put(b), out, N)
    assert np.array_equal(host.get(out, a), a + b)


def test_threads_beyond_the_data_do_nothing(host: Any) -> None:
    a = np.ones(100, np.float32)
    out = host.put(np.zeros(128, np.float32))
    host.run(host.kernel("vector_add"), 1, 128, host.put(a), host.put(a), out, 100)
    expected = np.repeat(np.float32([2, 0]), [100, 28])
    assert np.array_equal(host.get(out, np.zeros(128, np.float32)), expected)


def test_saxpy_strides_over_the_grid(host: Any, random: np.random.Generator) -> None:
    x, y = random.random(N, np.float32), random.random(N, np.float32)
    py = host.put(y)
    host.run(host.kernel("saxpy"), 7, 96, 2.0, host.put(x), py, N)
    assert np.allclose(host.get(py, y), 2 * x + y, rtol=1e-6)


def test_tiled_matmul_with_ragged_edges(host: Any, random: np.random.Generator) -> None:
    n = 71
    a, b = random.random((n, n), np.float32), random.random((n, n), np.float32)
    out = host.put(np.zeros_like(a))
    host.run(host.kernel("matmul"), (5, 5, 1), (16, 16, 1), host.put(a), host.put(b), out, n)
    assert np.allclose(host.get(out, a), a @ b, rtol=1e-5)


def test_block_reduction_uses_shuffles_shared_memory_and_atomics(
    host: Any, random: np.random.Generator
) -> None:
    x = random.random(N, np.float32)
    out = host.put(np.zeros(1, np.float32))
    host.run(host.kernel("block_reduce"), N // 256, 256, host.put(x), out, N)
    assert np.isclose(host.get(out, np.zeros(1, np.float32))[0], x.sum(dtype=np.float64), rtol=1e-6)


def test_softmax_with_dynamic_shared_memory(host: Any, random: np.random.Generator) -> None:
    x = random.standard_normal((33, 200)).astype(np.float32)
    out = host.put(np.zeros_like(x))
    host.run(host.kernel("softmax"), 33, 96, host.put(x), out, 200, shared=12)
    powers = np.exp(x - x.max(1, keepdims=True))
    assert np.allclose(host.get(out, x), powers / powers.sum(1, keepdims=True), rtol=1e-5)


def test_two_steps_of_adamw(host: Any, random: np.random.Generator) -> None:
    p, g, m, v = (random.random(1000, np.float32) for _ in range(4))
    pointers = [host.put(array) for array in (p, g, m, v)]
    value, first, second = (array.astype(np.float64) for array in (p, m, v))
    for step in (1, 2):
        host.run(host.kernel("adamw"), 4, 256, *pointers, 1e-3, 0.9, 0.999, 1e-8, 0.01, step, 1000)
        first = 0.9 * first + 0.1 * g
        second = 0.999 * second + 0.001 * g.astype(np.float64) ** 2
        scaled = np.sqrt(second / (1 - 0.999**step)) + 1e-8
        value = value * (1 - 1e-5) - 1e-3 * (first / (1 - 0.9**step)) / scaled
    assert np.allclose(host.get(pointers[0], p), value, rtol=1e-4, atol=1e-6)


def test_histogram_with_atomics_in_both_memories(host: Any, random: np.random.Generator) -> None:
    x = random.integers(0, 256, N, dtype=np.uint8)
    out = host.put(np.zeros(256, np.uint32))
    host.run(host.kernel("histogram"), 9, 128, host.put(x), out, N)
    assert np.array_equal(host.get(out, np.zeros(256, np.uint32)), np.bincount(x, minlength=256))


def test_heat_stencil_in_two_dimensions(host: Any, random: np.random.Generator) -> None:
    a = random.random((50, 70), np.float32)
    out = host.put(np.zeros_like(a))
    host.run(host.kernel("heat"), (5, 4, 1), (16, 16, 1), host.put(a), out, 70, 50)
    expected = np.zeros_like(a)
    around = a[1:-1, :-2] + a[1:-1, 2:] + a[:-2, 1:-1] + a[2:, 1:-1] - 4 * a[1:-1, 1:-1]
    expected[1:-1, 1:-1] = a[1:-1, 1:-1] + np.float32(0.1) * around
    assert np.allclose(host.get(out, a), expected, atol=1e-6)


def test_module_variables_and_constants(host: Any) -> None:
    cuda, module = host.cuda, host.module("common")
    result, coefficients, size = cuda.cuModuleGetGlobal(module, b"coefficients")
    assert (result, size) == (0, 16)
    values = np.float32([1, 2, 3, 4])
    assert cuda.cuMemcpyHtoD(coefficients, values, 16)[0] == 0
    counter = cuda.cuModuleGetGlobal(module, b"counter")[1]
    before = host.get(counter, np.zeros(1, np.uint64))[0]
    y = np.linspace(0, 1e5, 1000, dtype=np.float32)
    py = host.put(y)
    host.run(host.kernel("use_globals"), 4, 256, py, 1000)
    i = np.arange(1000)
    expected = values[i & 3] * np.sin(i) + np.cos(y.astype(np.float64))
    assert np.abs(host.get(py, y) - expected).max() < 1e-5
    assert host.get(counter, np.zeros(1, np.uint64))[0] == before + 1000


def test_printf_formats_every_kind_of_argument_in_thread_order(host: Any) -> None:
    host.cuda.take_output()
    host.cuda.tag = 77
    host.run(host.kernel("hello"), 2, 2, 3)
    host.cuda.tag = 0
    assert host.cuda.take_output() == [
        (77, "hello from 0 of 3: 0.000000 text 0x0\n"),
        (77, "hello from 1 of 3: 0.500000 text 0x10000000000\n"),
        (77, "hello from 2 of 3: 1.000000 text 0x20000000000\n"),
    ]
