"""Pinned host memory in a session: copies of any size, and what streams promise of them."""

from __future__ import annotations

import ctypes
import os

from helpers.program import Program, ok

from outlast.shim import driver as cuda

SIZE = (3 << 20) + 17  # more than one frame


def test_copies_through_pinned_memory_keep_their_bytes(program: Program) -> None:
    source, target = (ok(cuda.cuMemHostAlloc(SIZE, 0)) for _ in range(2))
    memory, stream = program.alloc(SIZE), program.stream(1)
    data = os.urandom(SIZE)
    ctypes.memmove(source, data, SIZE)
    ok(cuda.cuMemcpyHtoDAsync(memory, source, SIZE, stream))
    ok(cuda.cuMemcpyDtoHAsync(target, memory, SIZE, stream))
    ok(cuda.cuStreamSynchronize(stream))
    assert ctypes.string_at(target, SIZE) == data
    for address in (source, target):
        ok(cuda.cuMemFreeHost(address))


def test_copy_from_pinned_memory_reads_what_a_copy_before_it_wrote(program: Program) -> None:
    """No synchronisation between the two: the order of the stream is enough."""
    pinned = ok(cuda.cuMemAllocHost(SIZE))
    first, second = program.alloc(SIZE), program.alloc(SIZE)
    stream = program.stream(1)
    data = os.urandom(SIZE)
    program.write(first, data)
    ok(cuda.cuMemcpyDtoHAsync(pinned, first, SIZE, stream))
    ok(cuda.cuMemcpyHtoDAsync(second, pinned, SIZE, stream))
    ok(cuda.cuStreamSynchronize(stream))
    assert program.read(second, SIZE) == data
    ok(cuda.cuMemFreeHost(pinned))


def test_the_device_says_that_memory_can_be_registered_and_not_mapped(program: Program) -> None:
    name = cuda.CUdevice_attribute
    register = name.CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED
    assert ok(cuda.cuDeviceGetAttribute(register, 0)) == 1
    own = bytearray(4096)
    ok(cuda.cuMemHostRegister(own, len(own), 0))
    assert ok(cuda.cuDeviceGetAttribute(name.CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 0)) == 0
    where = ctypes.addressof(ctypes.c_char.from_buffer(own))
    assert cuda.cuMemHostGetDevicePointer(where, 0) == (801, None)
    ok(cuda.cuMemHostUnregister(own))
