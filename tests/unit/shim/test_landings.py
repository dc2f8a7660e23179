"""Copies to pinned memory that nobody waits for: who has to, before their bytes are used."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from outlast.session.operations import Op
from outlast.shim import driver

PATTERN = bytes(range(64))


@pytest.fixture
def pinned(context):
    """64 bytes of pinned memory."""
    return driver.cuMemAllocHost(64)[1]


@pytest.fixture
def memory(context):
    """64 bytes of device memory with a pattern."""
    address = driver.cuMemAlloc(64)[1]
    driver.cuMemcpyHtoD(address, PATTERN, 64)
    return address


def at(address, size=64):
    return (ctypes.c_char * size).from_address(address)


def copy(pinned, memory, flags=1):
    """Copy to pinned memory in a stream of its own, without a wait."""
    stream = driver.cuStreamCreate(flags)[1]
    assert driver.cuMemcpyDtoHAsync(pinned, memory, 64, stream) == (0,)
    return stream


def test_a_copy_to_pinned_memory_is_not_waited_for(link, memory, pinned):
    stream = copy(pinned, memory)
    assert at(pinned).raw == bytes(64)
    assert driver.cuStreamSynchronize(stream) == (0,)
    assert at(pinned).raw == PATTERN
    assert not driver.process.client.landings


def test_a_copy_to_other_memory_is_waited_for_and_so_is_a_synchronous_one(link, memory, pinned):
    out = bytearray(64)
    driver.cuMemcpyDtoHAsync(out, memory, 64, 0)
    assert bytes(out) == PATTERN
    driver.cuMemcpyDtoH(pinned, memory, 64)
    assert at(pinned).raw == PATTERN
    half = np.zeros(64, np.uint8)
    driver.cuMemHostRegister(half, 32, 0)
    driver.cuMemcpyDtoHAsync(half, memory, 64, 0)
    assert half.tobytes() == PATTERN
    assert not link.landings


def test_an_object_in_pinned_memory_is_pinned_memory(link, memory, pinned):
    for target in (np.frombuffer(at(pinned), np.uint8), memoryview(at(pinned))):
        ctypes.memset(pinned, 0, 64)
        assert driver.cuMemcpyDtoHAsync(target, memory, 64, 0) == (0,)
        assert at(pinned).raw == bytes(64)
        driver.cuCtxSynchronize()
        assert at(pinned).raw == PATTERN


def test_a_copy_from_the_memory_waits_for_the_copy_to_it(link, memory, pinned):
    """Rule of streams: the second copy reads what the first one writes."""
    other = driver.cuMemAlloc(64)[1]
    stream = copy(pinned, memory)
    assert driver.cuMemcpyHtoDAsync(other, pinned + 60, 4, stream) == (0,)
    assert link.of(Op.COPY_HTOD)[-1][2] == PATTERN[60:]


def test_a_copy_from_an_object_that_may_be_there_waits_too(link, memory, pinned):
    other = driver.cuMemAlloc(64)[1]
    copy(pinned, memory)
    view = memoryview(at(pinned)).toreadonly()
    driver.cuMemcpyHtoDAsync(other, view, 64, 0)
    assert link.of(Op.COPY_HTOD)[-1][2] == PATTERN


def test_a_copy_from_elsewhere_waits_for_nothing(link, memory, pinned):
    copy(pinned, memory)
    other = driver.cuMemAlloc(64)[1]
    for source in (PATTERN, bytearray(PATTERN)):
        driver.cuMemcpyHtoDAsync(other, source, 64, 0)
        driver.cuMemcpyHtoD(other, source, 64)  # the copy's stream is not the legacy one's affair
    assert not link.landings[0].done


@pytest.mark.parametrize(
    "barrier",
    [
        lambda memory, pinned: driver.cuMemcpyHtoD(memory, PATTERN, 64),
        lambda memory, pinned: driver.cuMemsetD8(memory, 0, 64),
        lambda memory, pinned: driver.cuMemFree(memory),
        lambda memory, pinned: driver.cuMemFreeHost(pinned),
        lambda memory, pinned: driver.cuDevicePrimaryCtxReset(0),
        lambda memory, pinned: driver.cuDevicePrimaryCtxRelease(0),
    ],
)
def test_what_waits_in_cuda_waits_for_the_bytes(link, memory, pinned, barrier):
    """Programs take these calls for waits."""
    copy(pinned, memory, flags=0)
    assert barrier(memory, pinned) == (0,)
    assert link.landings[0].done


def test_what_does_not_wait_in_cuda_does_not_wait(link, context, memory, pinned):
    other = driver.cuMemAlloc(64)[1]
    ordered = driver.cuMemAllocAsync(64, 0)[1]
    also = driver.cuMemAllocHost(64)[1]
    copy(pinned, memory)
    assert driver.cuMemFreeAsync(other, 0) == (0,)
    assert driver.cuMemFree(ordered) == (0,)
    assert driver.cuMemFreeHost(also) == (0,)
    assert driver.cuMemsetD8Async(memory, 0, 64, 0) == (0,)
    assert not link.landings[0].done


def test_registered_memory_is_the_programs_own_again_when_the_bytes_are_there(link, memory):
    own = bytearray(128)
    driver.cuMemHostRegister(own, 128, 0)
    start = ctypes.addressof(ctypes.c_char.from_buffer(own))
    copy(start + 32, memory)
    assert not any(own)
    assert driver.cuMemHostUnregister(own) == (0,)
    assert own[32:96] == PATTERN


def test_a_destroyed_context_leaves_nothing_on_its_way(link, context):
    driver.cuCtxCreate(None, 0, 0)
    memory, pinned = driver.cuMemAlloc(64)[1], driver.cuMemAllocHost(64)[1]
    copy(pinned, memory)
    assert driver.cuCtxDestroy(driver.cuCtxGetCurrent()[1]) == (0,)
    assert link.landings[0].done


def test_a_late_failure_is_reported_once_by_a_call_that_waits_in_the_context(link, memory, pinned):
    link.fail_next[Op.COPY_DTOH] = 1
    stream = copy(pinned, memory)
    driver.cuMemcpyHtoDAsync(memory, pinned, 64, stream)
    assert link.landings[0].done
    assert driver.cuStreamQuery(stream) == (0,)
    assert driver.cuStreamSynchronize(stream) == (1,)
    assert driver.cuStreamSynchronize(stream) == (0,)
    assert at(pinned).raw == bytes(64)


def test_copies_that_ended_are_forgotten_while_others_come(link, memory, pinned):
    for _ in range(1000):
        copy(pinned, memory)
        link.landings[-1].wait()
    assert len(driver.process.client.landings._coming) <= 128
    copy(pinned, memory)
    assert driver.cuMemFreeHost(pinned) == (0,)
    assert all(landing.done for landing in link.landings)
