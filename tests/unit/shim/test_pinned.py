"""Pinned host memory: what may be named, and that copies use it."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np
import pytest
from helpers.fake_link import ARENA

from outlast.cuda_types import CUresult
from outlast.session.operations import Op
from outlast.shim import driver

ALREADY, NOT_REGISTERED = 712, 713
PATTERN = bytes(range(64))


@pytest.fixture
def pinned(context):
    """64 bytes of pinned memory."""
    result, address = driver.cuMemAllocHost(64)
    assert result == 0
    return address


@pytest.fixture
def memory(context):
    """64 bytes of device memory."""
    return driver.cuMemAlloc(64)[1]


def at(address, size=64):
    return (ctypes.c_char * size).from_address(address)


def test_pinned_memory_begins_at_a_page_and_is_usable_to_its_last_byte(context):
    for size in (1, 4096, (3 << 20) + 5):
        result, address = driver.cuMemAllocHost(size)
        assert result == 0
        assert address % mmap.PAGESIZE == 0
        assert at(address, size).raw == bytes(size)
        ctypes.memset(address, 0xAB, size)
        assert at(address, size).raw == b"\xab" * size
        assert driver.cuMemFreeHost(address) == (0,)


def test_impossible_sizes_and_flags_fail_as_natively(context):
    assert driver.cuMemHostAlloc(-1, 0) == (1, None)
    assert driver.cuMemHostAlloc(64, 8) == (1, None)
    assert driver.cuMemAllocHost(1 << 63) == (2, None)
    assert driver.cuMemAllocHost((1 << 63) - 1) == (2, None)


def test_no_bytes_are_allocated_at_null_which_can_be_freed(context):
    assert driver.cuMemAllocHost(0) == (0, 0)
    assert driver.cuMemFreeHost(0) == (0,)


def test_nothing_of_pinned_memory_travels(link, context):
    link.calls.clear()
    _, address = driver.cuMemHostAlloc(64, driver.CU_MEMHOSTALLOC_PORTABLE)
    driver.cuMemHostGetFlags(address)
    driver.cuMemFreeHost(address)
    assert link.calls == []


def test_flags_are_those_of_the_allocation_from_any_place_in_it(context):
    flags = driver.CU_MEMHOSTALLOC_PORTABLE | driver.CU_MEMHOSTALLOC_WRITECOMBINED
    _, address = driver.cuMemHostAlloc(64, flags)
    assert driver.cuMemHostGetFlags(address) == (0, flags)
    assert driver.cuMemHostGetFlags(address + 63) == (0, flags)
    assert driver.cuMemHostGetFlags(address + 64) == (1, None)
    own = bytearray(64)
    driver.cuMemHostRegister(own, 64, 1)
    assert driver.cuMemHostGetFlags(own) == (0, 1)


def test_only_what_was_allocated_can_be_freed_and_only_once(context, pinned):
    own = bytearray(64)
    driver.cuMemHostRegister(own, 64, 0)
    where = ctypes.addressof(ctypes.c_char.from_buffer(own))
    for address in (pinned + 1, where, 12345):
        assert driver.cuMemFreeHost(address) == (1,)
    assert driver.cuMemFreeHost(pinned) == (0,)
    assert driver.cuMemFreeHost(pinned) == (1,)


def test_memory_is_registered_once_and_unregistered_once(context):
    own = np.zeros(256, np.uint8)
    start = own.ctypes.data
    assert driver.cuMemHostUnregister(start) == (NOT_REGISTERED,)
    assert driver.cuMemHostRegister(start + 64, 128, 0) == (0,)
    for first, size in ((64, 128), (0, 65), (191, 1), (100, 8), (0, 256)):
        assert driver.cuMemHostRegister(start + first, size, 0) == (ALREADY,)
    assert driver.cuMemHostRegister(start, 64, 0) == (0,)
    assert driver.cuMemHostRegister(start + 192, 64, 0) == (0,)
    assert driver.cuMemHostUnregister(start + 65) == (1,)
    assert driver.cuMemHostUnregister(start + 64) == (0,)
    assert driver.cuMemHostUnregister(start + 64) == (NOT_REGISTERED,)
    assert driver.cuMemHostRegister(start + 64, 128, 0) == (0,)


def test_allocated_memory_is_neither_registered_nor_unregistered(context, pinned):
    assert driver.cuMemHostRegister(pinned, 64, 0) == (1,)
    assert driver.cuMemHostUnregister(pinned) == (1,)


def test_what_cannot_be_registered_is_refused(context):
    own = bytearray(64)
    assert driver.cuMemHostRegister(0, 64, 0) == (1,)
    assert driver.cuMemHostRegister(own, 0, 0) == (1,)
    assert driver.cuMemHostRegister(own, 64, 16) == (1,)
    assert driver.cuMemHostRegister(b"constant", 8, 0) == (1,)
    assert driver.cuMemHostRegister(ARENA + 4096, 64, 0) == (1,)
    assert driver.cuMemHostRegister(own, 64, driver.CU_MEMHOSTREGISTER_IOMEMORY) == (801,)
    assert driver.cuMemHostRegister(own, 64, driver.CU_MEMHOSTREGISTER_READ_ONLY) == (801,)
    assert driver.cuMemHostUnregister(0) == (1,)


def test_no_device_pointer_is_made_up_for_memory_that_no_device_reaches(context):
    _, address = driver.cuMemHostAlloc(64, driver.CU_MEMHOSTALLOC_DEVICEMAP)
    unsupported = CUresult.CUDA_ERROR_NOT_SUPPORTED
    assert driver.cuMemHostGetDevicePointer(address, 0) == (unsupported, None)
    assert driver.cuMemHostGetDevicePointer(address, 1) == (1, None)
    assert driver.cuMemHostGetDevicePointer(4096, 0) == (1, None)


def test_copies_go_to_and_from_pinned_memory(link, memory, pinned):
    at(pinned).raw = PATTERN
    assert driver.cuMemcpyHtoDAsync(memory, pinned + 8, 56, 0) == (0,)
    ctypes.memset(pinned, 0, 64)
    assert driver.cuMemcpyDtoHAsync(pinned + 16, memory, 48, 0) == (0,)
    assert driver.cuStreamSynchronize(0) == (0,)
    assert at(pinned).raw == bytes(16) + PATTERN[8:56]


def test_copies_beyond_the_end_of_pinned_memory_are_invalid(link, memory, pinned):
    assert driver.cuMemcpyHtoD(memory, pinned + 32, 33) == (1,)
    assert driver.cuMemcpyDtoH(pinned + 32, memory, 33) == (1,)
    assert not link.of(Op.COPY_HTOD) + link.of(Op.COPY_DTOH)


def test_a_copy_back_from_pinned_memory_has_the_bytes_of_the_copy_to_it(link, memory, pinned):
    """Rule of streams: the second copy reads what the first one writes, without a wait between."""
    _, stream = driver.cuStreamCreate(1)
    other = driver.cuMemAlloc(64)[1]
    driver.cuMemcpyHtoD(memory, PATTERN, 64)
    assert driver.cuMemcpyDtoHAsync(pinned, memory, 64, stream) == (0,)
    assert driver.cuMemcpyHtoDAsync(other, pinned, 64, stream) == (0,)
    out = bytearray(64)
    driver.cuMemcpyDtoH(out, other, 64)
    assert bytes(out) == PATTERN


def test_memory_that_is_freed_during_a_copy_lasts_until_the_copy_ends(
    link, memory, pinned, monkeypatch
):
    real = link.read_into
    landed = []

    def read_into(address, size, stream, flags, out):
        assert driver.cuMemFreeHost(pinned) == (0,)
        result = real(address, size, stream, flags, out)
        landed.append(bytes(out))
        return result

    monkeypatch.setattr(link, "read_into", read_into)
    driver.cuMemcpyHtoD(memory, PATTERN, 64)
    assert driver.cuMemcpyDtoH(pinned, memory, 64) == (0,)
    assert landed == [PATTERN]


def test_pinned_memory_goes_with_its_context(link, context, pinned):
    _, other = driver.cuCtxCreate(None, 0, 0)
    _, inside = driver.cuMemAllocHost(64)
    own = bytearray(64)
    driver.cuMemHostRegister(own, 64, 0)
    assert driver.cuCtxDestroy(other) == (0,)
    assert driver.cuMemFreeHost(inside) == (1,)
    assert driver.cuMemHostUnregister(own) == (NOT_REGISTERED,)
    assert driver.cuMemFreeHost(pinned) == (0,)


def test_pinned_memory_needs_a_context(link):
    driver.cuInit(0)
    assert driver.cuMemAllocHost(64) == (201, None)
    assert driver.cuMemHostRegister(bytearray(64), 64, 0) == (201,)
