"""One kernel for each part of the language, against numpy and Python's integers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

N = 1024


@pytest.fixture
def kernel(host: Any) -> Any:
    return lambda name: host.kernel(name, "language")


@pytest.fixture
def signed(random: np.random.Generator) -> Any:
    return random.integers(-50, 50, N).astype(np.int32)


def test_a_function_that_is_not_inlined(
    host: Any, kernel: Any, random: np.random.Generator
) -> None:
    x, c = random.random(N, np.float32), np.float32([1, 2, 3, 4, 5])
    out = host.put(x)
    host.run(kernel("call_function"), 4, 256, host.put(c), host.put(x), out, N)
    assert np.allclose(host.get(out, x), np.polyval(c[::-1], x), rtol=1e-5)


def test_a_barrier_inside_a_called_function(
    host: Any, kernel: Any, random: np.random.Generator
) -> None:
    x = random.random(N, np.float32)
    out = host.put(np.zeros(4, np.float32))
    host.run(kernel("barrier_in_function"), 4, 256, host.put(x), out)
    expected = x.reshape(4, 256).sum(1) * 256 + 255 * 128
    assert np.allclose(host.get(out, np.zeros(4, np.float32)), expected, rtol=1e-5)


def test_tiles_of_cooperative_groups(host: Any, kernel: Any, signed: Any) -> None:
    out = host.put(np.zeros(128, np.int32))
    host.run(kernel("tile_sum"), 4, 256, host.put(signed), out)
    assert np.array_equal(host.get(out, np.zeros(128, np.int32)), signed.reshape(128, 8).sum(1))


def test_votes_and_bit_counts(host: Any, kernel: Any, signed: Any) -> None:
    out = host.put(np.zeros(64, np.uint32))
    host.run(kernel("votes"), 4, 256, host.put(signed), out, 32)
    found = host.get(out, np.zeros(64, np.uint32))
    ballots = (signed > 0).reshape(32, 32) @ (1 << np.arange(32, dtype=np.uint64))
    first = int(ballots[0])
    assert np.array_equal(found[:32], ballots.astype(np.uint32))
    assert found[32:38].tolist() == [
        *(1, 0, first.bit_count(), (first & -first).bit_length(), 32 - first.bit_length()),
        int(f"{first:032b}"[::-1], 2),
    ]


def test_half_and_bfloat16_round_to_even(
    host: Any, kernel: Any, random: np.random.Generator
) -> None:
    x = random.random(N, np.float32)
    out = host.put(x)
    host.run(kernel("small_floats"), 4, 256, host.put(x), out, N)
    bits = x.view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    expected = x.astype(np.float16).astype(np.float32) * 2 + rounded.view(np.float32)
    assert np.array_equal(host.get(out, x), expected)


def test_double_functions_to_the_last_bits(
    host: Any, kernel: Any, random: np.random.Generator
) -> None:
    x = random.random(N)
    out = host.put(x)
    host.run(kernel("double_functions"), 4, 256, host.put(x), out, N)
    errors = np.array([math.erf(value) for value in x])
    expected = np.exp(np.sin(x)) * np.sqrt(x) + x**3 + np.log1p(x) + errors
    assert np.abs(host.get(out, x) / expected - 1).max() < 1e-15


def test_single_functions(host: Any, kernel: Any, random: np.random.Generator) -> None:
    x = (random.random(N, np.float32) * 6).astype(np.float32)
    out = host.put(x)
    host.run(kernel("single_functions"), 4, 256, host.put(x), out, N)
    wide = x.astype(np.float64)
    expected = np.exp(wide) + np.log(wide + 1) + np.tanh(wide) + np.sin(wide)
    assert np.allclose(host.get(out, x), expected + (wide + 1) ** -0.5, rtol=1e-6)


def test_a_switch(host: Any, kernel: Any) -> None:
    x, i = (np.arange(N) % 9).astype(np.int32), np.arange(N)
    out = host.put(x)
    host.run(kernel("switch_case"), 4, 256, host.put(x), out, N)
    cases = [i * 3, i - 7, i ^ 0x55, i * i, ~i, i // 3, i % 7, i >> 2, -1 + 0 * i]
    assert np.array_equal(host.get(out, x), np.choose(x, cases))


def test_wide_integers(host: Any, kernel: Any, random: np.random.Generator) -> None:
    x = random.integers(1, 1 << 63, 512, dtype=np.uint64)
    out = host.put(x)
    host.run(kernel("wide_integers"), 2, 256, host.put(x), out, 512)
    modulus = 1 << 64
    expected = []
    for i, v in enumerate(map(int, x)):
        turned = ((v << (i & 63)) % modulus) | (v >> ((64 - i) & 63))
        total = ((v * (v * 3 % modulus)) >> 64) + v // 7 + v % 13 + v.bit_count() + turned
        expected.append((total + int(f"{v:064b}"[::-1], 2) + 64 - v.bit_length()) % modulus)
    assert np.array_equal(host.get(out, x), np.array(expected, np.uint64))


def test_a_local_array_with_a_variable_index(host: Any, kernel: Any, signed: Any) -> None:
    x = np.abs(signed)
    out = host.put(np.zeros(N, np.float32))
    host.run(kernel("local_array"), 4, 256, host.put(x), out, N)
    assert np.array_equal(host.get(out, np.zeros(N, np.float32)), (x & 15) ** 2 * np.float32(0.5))


def test_a_spin_lock_within_a_warp(host: Any, kernel: Any) -> None:
    lock, count = host.put(np.zeros(1, np.int32)), host.put(np.zeros(1, np.int32))
    host.run(kernel("spin_lock"), 8, 64, lock, count)
    assert host.get(count, np.zeros(1, np.int32))[0] == 512


def test_atomic_maximum_and_double_sum(host: Any, kernel: Any, random: np.random.Generator) -> None:
    x = random.random(N, np.float32)
    largest, total = host.put(np.zeros(1, np.int32)), host.put(np.zeros(1))
    host.run(kernel("atomics"), 4, 256, host.put(x), largest, total, N)
    assert host.get(largest, np.zeros(1, np.float32))[0] == x.max()
    assert host.get(total, np.zeros(1))[0] == np.add.accumulate(x, dtype=np.float64)[-1]


def test_a_scan_with_many_barriers(host: Any, kernel: Any, signed: Any) -> None:
    out = host.put(signed)
    host.run(kernel("scan"), 4, 256, host.put(signed), out)
    assert np.array_equal(host.get(out, signed), signed.reshape(4, 256).cumsum(1).ravel())


def test_device_pointers_inside_device_memory(host: Any, kernel: Any) -> None:
    nodes, out = host.put(np.zeros(1600, np.uint8)), host.put(np.zeros(1, np.int32))
    host.run(kernel("make_list"), 1, 128, nodes, 100)
    host.run(kernel("sum_list"), 1, 1, nodes, out)
    assert host.get(out, np.zeros(1, np.int32))[0] == sum(i * i for i in range(100))


def test_a_structure_by_value(host: Any, kernel: Any) -> None:
    out = host.put(np.zeros(32, np.float32))
    packed = np.arange(8, dtype=np.float32).tobytes() + (7).to_bytes(8, "little")
    packed += out.to_bytes(8, "little")
    assert host.cuda.launch_packed(kernel("by_value"), 0, 1, 1, 1, 32, 1, 1, 0, packed) == 0
    assert np.array_equal(host.get(out, np.zeros(32, np.float32)), np.arange(32) % 7)


def test_three_dimensions_of_grid_and_block(host: Any, kernel: Any) -> None:
    out = host.put(np.zeros(24 * 30, np.uint32))
    host.run(kernel("geometry"), (2, 3, 4), (5, 3, 2), out)
    found = host.get(out, np.zeros((24, 30), np.uint32))
    assert np.array_equal(found, np.arange(24)[:, None] * 1000 + np.arange(30))
