"""Copies have the bytes of their place in the order, whoever runs beside them (A3).

And memory that is freed while work still uses it is the next owner's only behind that work.
"""

from __future__ import annotations

import ctypes
import os

import pytest
from helpers import kernels
from helpers.program import Program, ok
from helpers.server_process import DEVICE

from outlast.shim import driver as cuda

NON_BLOCKING = cuda.CUstream_flags.CU_STREAM_NON_BLOCKING
ON_GPU = DEVICE == "cuda"
MIB = 1 << 20
#: How long the device is held up: others could overtake meanwhile.
LONG = 0.5 if ON_GPU else 0.02  # seconds
SHORT = 0.005  # seconds


class Delay:
    """A kernel that keeps a stream busy."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._kernel = program.kernel(program.load(kernels.PTX), "linger")

    def __call__(self, seconds: float, stream: int = 0) -> None:
        self._program.launch(self._kernel, (("u64", int(seconds * 1e9)),), stream)


def streams_of(program: Program) -> list[int]:
    """Return the legacy stream, one that is ordered with it, and one that is not."""
    return [0, program.stream(0), program.stream(NON_BLOCKING)]


def test_copy_to_plain_memory_is_there_when_the_call_returns(program: Program) -> None:
    """A3a: nobody synchronises."""
    delay = Delay(program)
    for size in (4, 64 << 10, 64 * MIB if ON_GPU else 2 * MIB):
        memory, out = program.alloc(size), bytearray(size)
        for value, stream in enumerate(streams_of(program), 42):
            program.sync()
            delay(LONG, stream)
            ok(cuda.cuMemsetD32Async(memory, value, size // 4, stream))
            ok(cuda.cuMemcpyDtoHAsync(out, memory, size, stream))
            assert out == value.to_bytes(4, "little") * (size // 4)


@pytest.mark.parametrize("registered", [False, True], ids=["allocated", "registered"])
def test_upload_from_pinned_memory_has_what_the_download_before_it_brought(
    program: Program, registered: bool
) -> None:
    """A3b: the old contents of the host memory go nowhere."""
    delay, streams = Delay(program), streams_of(program)
    for size in (12 * MIB, 64 * MIB) if ON_GPU else (3 * MIB + 4,):
        own = bytearray(size if registered else 1)
        if registered:
            ok(cuda.cuMemHostRegister(own, size, 0))
            pinned = ctypes.addressof(ctypes.c_char.from_buffer(own))
        else:
            pinned = int(ok(cuda.cuMemAllocHost(size)))
        source, target = program.alloc(size), program.alloc(size)
        for stream in streams:
            pattern = os.urandom(4)
            ctypes.memset(pinned, 0xEE, size)
            ok(cuda.cuMemsetD32(source, int.from_bytes(pattern, "little"), size // 4))
            program.sync()  # a fill holds no other stream up
            delay(SHORT, stream)
            ok(cuda.cuMemcpyDtoHAsync(pinned, source, size, stream))
            ok(cuda.cuMemcpyHtoDAsync(target, pinned, size, stream))
            ok(cuda.cuStreamSynchronize(stream))
            assert program.read(target, size) == pattern * (size // 4)
        ok((cuda.cuMemHostUnregister if registered else cuda.cuMemFreeHost)(pinned))


def test_source_may_be_changed_once_a_copy_to_the_device_has_returned(program: Program) -> None:
    """A3c: synchronous copies, and those from memory that is not pinned."""
    delay, stream = Delay(program), program.stream(NON_BLOCKING)
    for size in (4, 64 << 10, 5 * MIB):
        source, first, second = bytearray(b"\1" * size), program.alloc(size), program.alloc(size)
        delay(SHORT)
        ok(cuda.cuMemcpyHtoD(first, source, size))
        source[:] = b"\2" * size
        ok(cuda.cuMemcpyHtoDAsync(second, source, size, stream))
        source[:] = b"\3" * size
        assert program.read(first, size) == b"\1" * size
        ok(cuda.cuStreamSynchronize(stream))
        assert program.read(second, size) == b"\2" * size


def test_synchronous_copy_is_there_for_a_kernel_of_any_stream_two_hundred_times(
    program: Program,
) -> None:
    """No stream but the legacy one knows of it; programs count on it all the same."""
    kernel, target = program.new_tape()
    delay, streams = Delay(program), [program.stream(NON_BLOCKING) for _ in range(3)]
    large, copy = program.alloc(MIB + 8), program.alloc(8)
    for number in range(200):
        stream = streams[number % len(streams)]
        if not number % 4:
            delay(SHORT)  # the copy itself is late on the device
        if number % 2:
            program.write(target, number.to_bytes(8, "little"))
            program.launch(kernel, (("pointer", target), ("u32", 7)), stream)
            ok(cuda.cuMemcpyDtoDAsync(copy, target, 8, stream))
        else:
            data = bytes([number]) * MIB + (number * 10 + 7).to_bytes(8, "little")
            program.write(large, data)
            ok(cuda.cuMemcpyDtoDAsync(copy, large + MIB, 8, stream))
        out = bytearray(8)
        ok(cuda.cuMemcpyDtoHAsync(out, copy, 8, stream))
        assert int.from_bytes(out, "little") == number * 10 + 7


def test_memory_that_is_freed_under_a_running_kernel_is_the_next_owners_alone(
    program: Program,
) -> None:
    """The kernel goes on in one stream, the next owner begins in another one."""
    delay = Delay(program)
    first, second = program.stream(NON_BLOCKING), program.stream(NON_BLOCKING)
    for size in (4096, 40 * MIB):  # of a pool, and of its own
        for _ in range(20 if ON_GPU else 5):
            old = int(ok(cuda.cuMemAlloc(size)))
            delay(SHORT, first)
            ok(cuda.cuMemsetD8Async(old, 0xAA, size, first))
            program.free(old)
            new = int(ok(cuda.cuMemAlloc(size)))
            assert new == old
            ok(cuda.cuMemsetD8Async(new, 0x55, size, second))
            ok(cuda.cuStreamSynchronize(second))
            ok(cuda.cuStreamSynchronize(first))
            assert program.read(new + size - 4096, 4096) == b"\x55" * 4096
            program.free(new)
