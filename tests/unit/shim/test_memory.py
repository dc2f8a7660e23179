"""Allocations, fills and copies."""

from __future__ import annotations

import array
import ctypes

import numpy as np
import pytest
from helpers.fake_link import ARENA

from outlast.session.operations import Op
from outlast.shim import driver


@pytest.fixture
def memory(context):
    """64 bytes of device memory."""
    result, address = driver.cuMemAlloc(64)
    assert result == 0
    return address


def contents(address, size=64):
    out = bytearray(size)
    assert driver.cuMemcpyDtoH(out, address, size) == (0,)
    return bytes(out)


def test_impossible_sizes_fail_as_natively(link, context):
    assert driver.cuMemAlloc(0) == (1, None)
    assert driver.cuMemAlloc(-1) == (1, None)
    assert driver.cuMemAlloc(1 << 63) == (2, None)
    assert driver.cuMemAlloc(1 << 40) == (2, None)
    with pytest.raises(TypeError):
        driver.cuMemAlloc(16.5)
    assert driver.cuMemAlloc(16)[0] == 0


def test_freeing_null_is_allowed_and_anything_unknown_is_invalid(link, memory):
    assert driver.cuMemFree(0) == (0,)
    assert driver.cuMemFree(memory + 8) == (1,)
    assert driver.cuMemFree(-1) == (1,)
    assert driver.cuMemFree(memory) == (0,)
    assert driver.cuMemFree(memory) == (1,)
    assert len(link.of(Op.MEM_FREE)) == 1


def test_a_free_the_link_cannot_take_leaves_the_allocation(link, memory):
    from outlast.errors import LogFull

    link.error = LogFull()
    assert driver.cuMemFree(memory) == (2,)
    assert driver.cuMemFree(memory) == (0,)


def test_an_address_handed_out_again_is_a_new_allocation(link, memory):
    driver.cuMemFree(memory)
    assert driver.cuMemGetAddressRange(memory) == (500, None, None)
    assert driver.cuMemAlloc(64) == (0, memory)
    assert driver.cuMemGetAddressRange(memory + 63) == (0, memory, 64)


def test_memory_info_is_asked(link, memory):
    assert driver.cuMemGetInfo() == (0, (1 << 30) - 64, 1 << 30)


def test_fills_write_elements_of_each_width(link, memory):
    assert driver.cuMemsetD8(memory, 0xAB, 64) == (0,)
    assert driver.cuMemsetD16(memory, 0x1234, 2) == (0,)
    assert driver.cuMemsetD32Async(memory + 8, 0x01020304, 1, 0) == (0,)
    assert contents(memory, 16) == b"\x34\x12\x34\x12" + b"\xab" * 4 + b"\4\3\2\1" + b"\xab" * 4
    flags = [call[1][-1] for call in link.of(Op.MEMSET)]
    assert flags == [1, 1, 0]


def test_fills_outside_an_allocation_or_of_bad_values_are_invalid(link, memory):
    assert driver.cuMemsetD8(memory, 0, 65) == (1,)
    assert driver.cuMemsetD32(memory + 2, 0, 1) == (1,)
    assert driver.cuMemsetD8(memory, 256, 1) == (1,)
    assert driver.cuMemsetD8(memory, -1, 1) == (1,)
    assert driver.cuMemsetD8(0, 0, 1) == (1,)
    assert driver.cuMemsetD8(memory, 0, -1) == (1,)
    assert driver.cuMemsetD8Async(memory, 0, 1, 0x40) == (400,)
    assert driver.cuMemsetD8(memory, 0, 0) == (0,)
    assert not link.of(Op.MEMSET)


PATTERN = bytes(range(64))


@pytest.mark.parametrize(
    "source",
    [
        PATTERN,
        bytearray(PATTERN),
        memoryview(PATTERN),
        np.frombuffer(PATTERN, np.float32),
        np.frombuffer(PATTERN, [("a", "<i4"), ("b", "<f4")]),
        array.array("I", PATTERN),
        (ctypes.c_ubyte * 64).from_buffer_copy(PATTERN),
        (ctypes.c_double * 8).from_buffer_copy(PATTERN),
    ],
    ids=lambda source: type(source).__name__,
)
def test_any_buffer_can_be_copied_to_the_device(source, link, memory):
    assert driver.cuMemcpyHtoD(memory, source, 64) == (0,)
    assert contents(memory) == PATTERN


def targets():
    return [
        bytearray(64),
        np.zeros(16, np.float32),
        np.zeros(8, [("a", "<i4"), ("b", "<f4")]),
        array.array("I", bytes(64)),
        (ctypes.c_double * 8)(),
    ]


@pytest.mark.parametrize("target", targets(), ids=lambda target: type(target).__name__)
def test_any_writable_buffer_can_be_copied_to(target, link, memory):
    driver.cuMemcpyHtoD(memory, PATTERN, 64)
    assert driver.cuMemcpyDtoH(target, memory, 64) == (0,)
    assert bytes(target) == PATTERN or target.tobytes() == PATTERN


def test_host_addresses_work_in_both_directions(link, memory):
    source, target = np.frombuffer(PATTERN, np.uint8), np.zeros(64, np.uint8)
    assert driver.cuMemcpyHtoD(memory, source.ctypes.data, 64) == (0,)
    assert driver.cuMemcpyDtoH(target.ctypes.data, memory, 64) == (0,)
    assert target.tobytes() == PATTERN


def test_bad_host_memory_is_invalid_and_never_touched(link, memory):
    assert driver.cuMemcpyHtoD(memory, 0, 64) == (1,)
    assert driver.cuMemcpyHtoD(memory, None, 64) == (1,)
    assert driver.cuMemcpyHtoD(memory, b"short", 64) == (1,)
    assert driver.cuMemcpyHtoD(memory, ARENA + 4096, 64) == (1,)
    assert driver.cuMemcpyDtoH(0, memory, 64) == (1,)
    assert driver.cuMemcpyDtoH(bytes(64), memory, 64) == (1,)
    assert driver.cuMemcpyDtoH(bytearray(63), memory, 64) == (1,)
    assert driver.cuMemcpyDtoH(np.zeros((16, 8), np.uint8)[:, ::2], memory, 64) == (1,)
    with pytest.raises(TypeError):
        driver.cuMemcpyHtoD(memory, "text", 4)
    assert not link.of(Op.COPY_HTOD) + link.of(Op.COPY_DTOH)


def test_copies_outside_one_allocation_are_invalid(link, memory):
    host = bytearray(128)
    for address, size in ((memory, 65), (memory + 1, 64), (memory - 1, 1), (0, 1), (-1, 1)):
        assert driver.cuMemcpyHtoD(address, host, size) == (1,)
        assert driver.cuMemcpyDtoH(host, address, size) == (1,)
        assert driver.cuMemcpyDtoD(memory, address, size) == (1,)
        assert driver.cuMemcpyDtoD(address, memory, size) == (1,)
    assert driver.cuMemcpyHtoD(memory, host, -1) == (1,)
    assert driver.cuMemcpyHtoD(memory, host, 0) == (0,)
    assert contents(memory) == bytes(64)


def test_the_source_may_change_once_a_copy_to_the_device_returned(link, memory):
    source = bytearray(PATTERN)
    assert driver.cuMemcpyHtoDAsync(memory, source, 64, 0) == (0,)
    source[:] = bytes(64)
    assert contents(memory) == PATTERN


def test_asynchronous_copies_carry_their_stream_and_no_sync_flag(link, memory):
    _, stream = driver.cuStreamCreate(1)
    out = bytearray(32)
    driver.cuMemcpyHtoDAsync(memory, PATTERN, 64, stream)
    driver.cuMemcpyDtoDAsync(memory + 32, memory, 32, stream)
    assert driver.cuMemcpyDtoHAsync(out, memory + 32, 32, stream) == (0,)
    assert bytes(out) == PATTERN[:32]
    assert link.of(Op.COPY_HTOD)[0][1] == (memory, stream, 0)
    assert link.of(Op.COPY_DTOD)[0][1] == (memory + 32, memory, stream, 32, 0)
    assert link.of(Op.COPY_DTOH)[0][1] == (memory + 32, stream, 32, 0)
    driver.cuMemcpyHtoD(memory, PATTERN, 1)
    assert link.calls[-1][1] == (memory, 0, 1)


def test_pointers_of_the_bindings_are_understood(link, memory):
    bindings = pytest.importorskip("cuda.bindings.driver")
    assert driver.cuMemcpyHtoD(bindings.CUdeviceptr(memory), PATTERN, 64) == (0,)
    assert driver.cuMemFree(bindings.CUdeviceptr(memory)) == (0,)
    assert int(bindings.CUstream(driver.CUstream(64))) == 64
