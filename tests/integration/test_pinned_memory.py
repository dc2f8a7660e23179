"""Pinned host memory in a session: copies of any size, and what streams promise of them."""

from __future__ import annotations

import ctypes
import os
import threading

from helpers.program import Program, ok
from helpers.server_process import DEVICE, ServerProcess

from outlast.shim import driver as cuda

#: More than one frame; on a GPU also more than it copies at once.
SIZE = (24 << 20 if DEVICE == "cuda" else 3 << 20) + 17  # bytes


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


def test_copy_to_pinned_memory_returns_before_the_server_does_it(
    server: ServerProcess, program: Program
) -> None:
    pinned, memory, stream = ok(cuda.cuMemAllocHost(SIZE)), program.alloc(SIZE), program.stream(1)
    data = os.urandom(SIZE)
    program.write(memory, data)
    program.sync()
    with server.paused():
        ok(cuda.cuMemcpyDtoHAsync(pinned, memory, SIZE, stream))
        ok(cuda.cuMemsetD8Async(memory, 0, SIZE, stream))
        assert ctypes.string_at(pinned, SIZE) == bytes(SIZE)
    ok(cuda.cuStreamSynchronize(stream))
    assert ctypes.string_at(pinned, SIZE) == data
    ok(cuda.cuMemFreeHost(pinned))


def test_whoever_sees_a_later_event_passed_finds_the_bytes_of_the_copy_before_it(
    program: Program,
) -> None:
    """Two streams, two threads, many frames: no answer overtakes data."""
    pinned, memory = ok(cuda.cuMemAllocHost(SIZE)), program.alloc(SIZE)
    first, second = program.stream(1), program.stream(1)
    copied, later = program.event(2), program.event(2)
    seen: list[bool] = []

    def look(value: int) -> None:
        program.use_primary()
        while int(cuda.cuEventQuery(later)[0]):
            pass
        seen.append(ctypes.string_at(pinned, SIZE) == bytes([value]) * SIZE)

    for value in range(1, 9):
        ok(cuda.cuMemsetD8Async(memory, value, SIZE, first))
        ok(cuda.cuMemcpyDtoHAsync(pinned, memory, SIZE, first))
        program.record(copied, first)
        ok(cuda.cuStreamWaitEvent(second, copied, 0))
        program.record(later, second)
        thread = threading.Thread(target=look, args=(value,))
        thread.start()
        thread.join()
    assert seen == [True] * 8
    ok(cuda.cuMemFreeHost(pinned))


def test_a_forked_child_has_the_bytes_of_copies_that_were_on_their_way(program: Program) -> None:
    pinned, memory = ok(cuda.cuMemAllocHost(SIZE)), program.alloc(SIZE)
    data = os.urandom(SIZE)
    program.write(memory, data)
    ok(cuda.cuMemcpyDtoHAsync(pinned, memory, SIZE, program.stream(1)))
    child = os.fork()
    if not child:
        os._exit(int(ctypes.string_at(pinned, SIZE) != data))
    assert os.waitpid(child, 0)[1] == 0
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
