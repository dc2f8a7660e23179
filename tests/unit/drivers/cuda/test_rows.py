"""Rows on the cuda device, with the emulated device in the place of a GPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from helpers.emulated_bindings import EmulatedBindings

from outlast.server.drivers.base import Rows
from outlast.server.drivers.cuda import CudaDriver

#: Far from the product's addresses and from those of other tests.
DEVICE, RANGE = 0x1F00_0000_0000, 64 << 30
ARENA, ARENA_SIZE = DEVICE + (8 << 30), 32 << 30
ENOUGH = 30.0  # seconds


@pytest.fixture(scope="module")
def driver() -> Iterator[CudaDriver]:
    bindings = EmulatedBindings(base=DEVICE, arena_size=RANGE, memory=1 << 30)
    driver = CudaDriver(cuda=bindings, base=ARENA, arena_size=ARENA_SIZE)
    assert driver.cuCtxSetCurrent(driver.cuDevicePrimaryCtxRetain(0)[1]) == (0,)
    yield driver
    driver.close()
    bindings.close()


@pytest.fixture
def memory(driver: CudaDriver) -> int:
    address = int(driver.cuMemAlloc(1 << 16)[1])
    assert driver.cuMemsetD8Async(address, 0, 1 << 16) == (0,)
    return address


def read(driver: CudaDriver, address: int, rows: Rows, stream: int = 0) -> bytes:
    result, data = driver.read_rows(address, rows, stream)
    assert result == 0
    assert driver.wait(driver.ticket(), ENOUGH)
    return bytes(data)


@pytest.mark.parametrize("legacy", [True, False])
def test_rows_are_written_filled_copied_and_read(
    driver: CudaDriver, memory: int, legacy: bool
) -> None:
    stream = 0 if legacy else driver.cuStreamCreateWithPriority(1, 0)[1]
    data = bytes(range(100)) * 3
    rows = Rows(30, 10, 64)
    assert driver.write_rows(memory, rows, data, stream) == 0
    assert read(driver, memory, rows, stream) == data
    assert read(driver, memory + 10, Rows(30, 54, 64), stream) == bytes(30 * 54)
    assert driver.copy_rows(memory + 32768, Rows(30, 10, 10), memory, rows, stream) == 0
    assert read(driver, memory + 32768, Rows(1, 300, 300), stream) == data
    assert driver.fill_rows(memory, Rows(2, 8, 64), 4, 0x1_0203, 2, stream) == 0
    assert read(driver, memory, Rows(3, 10, 64), stream)[:12] == b"\3\2" * 4 + data[8:10] + b"\3\2"


def test_what_is_no_rows_is_refused(driver: CudaDriver, memory: int) -> None:
    fits = Rows(2, 4, 4)
    for rows in (Rows(0, 4, 4), Rows(2, 4, 3), Rows(1, 0, 4)):
        assert driver.write_rows(memory, rows, bytes(rows.size), 0) == 1
        assert driver.read_rows(memory, rows, 0)[0] == 1
        assert driver.fill_rows(memory, rows, 4, 0, 1, 0) == 1
        assert driver.copy_rows(memory, fits, memory, rows, 0) == 1
    assert driver.write_rows(memory, fits, b"short", 0) == 1
    assert driver.read_rows(memory, Rows(2, 1 << 20, 1 << 20), 0)[0] == 1
    for result in (
        driver.write_rows(memory, fits, bytes(8), 99),
        driver.read_rows(memory, fits, 99)[0],
        driver.fill_rows(memory, fits, 4, 0, 1, 99),
        driver.copy_rows(memory, fits, memory, fits, 99),
    ):
        assert result == 400
