"""Rows of device memory are filled and copied, and nothing between them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from outlast.server.drivers.base import Rows

INVALID_VALUE = 1


@pytest.fixture
def grid(host: Any) -> int:
    return int(host.put(np.arange(4096, dtype=np.uint8).reshape(64, 64)))


def table(host: Any, address: int) -> Any:
    return host.get(address, np.zeros((64, 64), np.uint8))


def test_rows_are_written_and_read_densely(host: Any, grid: int) -> None:
    data = np.random.default_rng(3).integers(0, 255, (10, 7), np.uint8)
    want = table(host, grid)
    want[5:15, 3:10] = data
    rows = Rows(10, 7, 64)
    assert host.cuda.write_rows(grid + 5 * 64 + 3, rows, data.tobytes(), 0) == 0
    result, got = host.cuda.read_rows(grid + 5 * 64 + 3, rows, 0)
    assert result == 0
    assert (table(host, grid) == want).all()
    assert bytes(got) == data.tobytes()


@pytest.mark.parametrize("width", [1, 2, 4])
def test_rows_are_filled(host: Any, grid: int, width: int) -> None:
    want = table(host, grid)
    want[2:6, 8 : 8 + 3 * width] = np.frombuffer(b"\x12\x34\x56\x78"[:width] * 3, np.uint8)
    value = int.from_bytes(b"\x12\x34\x56\x78"[:width], "little")
    assert host.cuda.fill_rows(grid + 2 * 64 + 8, Rows(4, 3 * width, 64), 3, value, width, 0) == 0
    assert (table(host, grid) == want).all()


def test_rows_are_copied_between_pitches(host: Any, grid: int) -> None:
    other = host.put(np.zeros((64, 64), np.uint8))
    assert host.cuda.copy_rows(other, Rows(8, 16, 32), grid, Rows(8, 16, 64), 0) == 0
    got = table(host, other).reshape(128, 32)[:8]
    assert (got[:, :16] == table(host, grid)[:8, :16]).all()
    assert not got[:, 16:].any()


@pytest.mark.parametrize(
    "rows", [Rows(0, 1, 1), Rows(2, 4, 3), Rows(65, 64, 64), Rows(2, 1, 1 << 40), Rows(1, 0, 1)]
)
def test_rows_that_overlap_or_lie_outside_are_refused(host: Any, grid: int, rows: Rows) -> None:
    fits = Rows(2, 4, 4)
    assert host.cuda.write_rows(grid, rows, bytes(min(rows.size, 1 << 20)), 0) == INVALID_VALUE
    assert host.cuda.read_rows(grid, rows, 0)[0] == INVALID_VALUE
    assert host.cuda.fill_rows(grid, rows, rows.width, 0, 1, 0) == INVALID_VALUE
    assert host.cuda.copy_rows(grid, rows, grid, fits, 0) == INVALID_VALUE
    assert host.cuda.copy_rows(grid, fits, grid, rows, 0) == INVALID_VALUE
    assert host.cuda.write_rows(grid, fits, b"short", 0) == INVALID_VALUE
    assert host.cuda.write_rows(grid, fits, bytes(8), 12345) == 400
