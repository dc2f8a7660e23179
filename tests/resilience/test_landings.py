"""Copies to pinned memory that are on their way when something dies."""

from __future__ import annotations

import ctypes
import os

from helpers.program import Program, ok
from helpers.server_process import ServerProcess

from outlast.shim import driver as cuda

SIZES = (8, 5000, (2 << 20) + 3)


def test_copies_on_their_way_land_after_a_kill_as_they_were_ordered(
    server: ServerProcess, program: Program
) -> None:
    stream = program.stream(1)
    copies = []
    for size in SIZES:
        memory = program.alloc(size)
        copies += [(memory, ok(cuda.cuMemAllocHost(size)), os.urandom(size)) for _ in range(3)]
    program.sync()
    with server.paused():
        for memory, pinned, data in copies:
            # The next copy of this size changes the memory right behind this one.
            ok(cuda.cuMemcpyHtoDAsync(memory, data, len(data), stream))
            ok(cuda.cuMemcpyDtoHAsync(pinned, memory, len(data), stream))
        server.kill_workers()
    ok(cuda.cuStreamSynchronize(stream))
    for _, pinned, data in copies:
        assert ctypes.string_at(pinned, len(data)) == data


def test_memory_is_given_back_only_when_the_copy_has_come_from_the_next_worker(
    server: ServerProcess, program: Program
) -> None:
    stream, size = program.stream(1), SIZES[-1]
    own, data = bytearray(size), os.urandom(size)
    memory = program.alloc(size)
    program.write(memory, data)
    ok(cuda.cuMemHostRegister(own, size, 0))
    program.sync()
    with server.paused():
        ok(cuda.cuMemcpyDtoHAsync(own, memory, size, stream))
        server.kill_workers()
    ok(cuda.cuMemHostUnregister(own))
    assert bytes(own) == data


def test_bytes_that_have_landed_are_not_written_again_by_a_replay(
    server: ServerProcess, program: Program
) -> None:
    stream, size = program.stream(1), SIZES[-1]
    pinned, memory = ok(cuda.cuMemAllocHost(size)), program.alloc(size)
    ok(cuda.cuMemcpyDtoHAsync(pinned, memory, size, stream))
    ok(cuda.cuStreamSynchronize(stream))
    ctypes.memset(pinned, 0x77, size)
    server.kill()
    server.start()
    ok(cuda.cuStreamSynchronize(stream))
    assert program.link.statistics()["replayed_calls"]
    assert ctypes.string_at(pinned, size) == b"\x77" * size
