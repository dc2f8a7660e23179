"""A stream that stands still until another thread's call lets it go on holds nobody else up."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from helpers import ptx
from helpers.gate import Gate
from helpers.program import Program, ok
from helpers.server_process import ServerProcess, assert_eventually

from outlast.shim import driver as cuda
from outlast.shim.process import process

#: Measured: so it does natively.
waits_on_a_gpu = pytest.mark.skipif(
    os.environ.get("TESTED_DEVICE") == "cuda",
    reason="cuModuleLoadData waits for a running kernel on a GPU",
)

NON_BLOCKING = cuda.CUstream_flags.CU_STREAM_NON_BLOCKING
NOT_READY = (cuda.CUresult.CUDA_ERROR_NOT_READY,)
DEADLINE = 20.0  # seconds
#: More than a device takes of one stream.
MANY = 2100
MIB = 1 << 20


class Blocked:
    """A stream behind a gate, and a thread that fills it."""

    def __init__(self, program: Program, fill: Callable[[int], None]) -> None:
        self.gate, self.stream = Gate(cuda), program.stream(NON_BLOCKING)
        self.passed = program.alloc(4)
        program.sync()
        self.gate.store_behind(self.passed, 1, self.stream)
        self.failure: BaseException | None = None

        def run() -> None:
            try:
                program.use_primary()
                fill(self.stream)
            except AssertionError as failure:
                self.failure = failure

        self.thread = threading.Thread(target=run)
        self.thread.start()

    def is_full(self) -> bool:
        """Whether the thread waits for room."""
        client = process.client
        assert client is not None
        stream = client.streams.get(self.stream)
        return stream.taken - stream.finished >= client.link.stream_credits

    def end(self) -> None:
        """Wait for the thread."""
        self.thread.join(DEADLINE)
        assert not self.thread.is_alive()
        assert self.failure is None


@contextmanager
def blocked(
    server: ServerProcess, program: Program, fill: Callable[[int], None]
) -> Iterator[Blocked]:
    """Have a thread fill a stream that stands still; let it go on at the end."""
    made = Blocked(program, fill)
    try:
        yield made
        assert cuda.cuStreamQuery(made.stream) == NOT_READY
        made.gate.open_in(server)
        made.end()
        ok(cuda.cuStreamSynchronize(made.stream))
        assert program.number(made.passed, 4) == 1
    finally:
        made.gate.open_in(server)
        made.thread.join(DEADLINE)


def test_others_go_on_while_a_thread_waits_for_room_in_its_stream(
    server: ServerProcess, program: Program
) -> None:
    kernel, target = program.new_tape()
    counted = program.alloc(8)
    other = program.stream(NON_BLOCKING)

    def fill(stream: int) -> None:
        for _ in range(MANY):
            program.launch(kernel, (("pointer", counted), ("u32", 1)), stream)

    with blocked(server, program, fill) as stuck:
        assert_eventually(stuck.is_full, "the stream is full")
        begun = time.monotonic()
        program.launch(kernel, (("pointer", target), ("u32", 7)), other)
        program.free(program.alloc(1 << 16))
        program.free(program.alloc(64 * MIB))
        ok(cuda.cuMemGetInfo())
        assert stuck.thread.is_alive()
        assert time.monotonic() - begun < DEADLINE
    assert program.number(target) == 7
    assert program.number(counted) == int("1" * MANY) % 2**64


@waits_on_a_gpu
def test_nothing_that_is_given_up_behind_a_stream_that_stands_still_is_waited_for(
    server: ServerProcess, program: Program
) -> None:
    """Modules, memory, streams, events and a context, some of which the stream still uses."""
    module = program.load(ptx.TAPE)
    used = program.kernel(module, "append")
    memory, large, ordered = program.alloc(8), program.alloc(64 * MIB), program.alloc(4096)
    context = program.context()
    ok(cuda.cuCtxPushCurrent(context))
    inside = program.stream(NON_BLOCKING)
    program.launch(program.kernel(program.load(ptx.TAPE), "nothing"), (), inside)
    ok(cuda.cuCtxPopCurrent())

    def fill(stream: int) -> None:
        program.launch(used, (("pointer", memory), ("u32", 1)), stream)
        ok(cuda.cuMemsetD8Async(large, 1, 64 * MIB, stream))

    with blocked(server, program, fill) as stuck:
        stuck.end()
        begun = time.monotonic()
        ok(cuda.cuModuleUnload(module))
        program.free(memory)
        program.free(large)
        program.free_in(stuck.stream, ordered)
        ok(cuda.cuEventDestroy(program.event()))
        ok(cuda.cuStreamDestroy(program.stream()))
        ok(cuda.cuCtxDestroy(context))
        again = program.kernel(program.load(ptx.TAPE), "append")
        fresh = ok(cuda.cuMemAlloc(64 * MIB))
        ok(cuda.cuMemGetInfo())
        assert time.monotonic() - begun < DEADLINE
    target = program.alloc(8)
    program.launch(again, (("pointer", target), ("u32", 3)))
    assert program.number(target) == 3
    program.free(fresh)


def test_copies_of_a_stream_that_stands_still_leave_room_for_others(
    server: ServerProcess, program: Program
) -> None:
    """More bytes than a worker keeps for a client that takes them."""
    size = 80 * MIB
    memory, pinned = program.alloc(size), ok(cuda.cuMemAllocHost(size))
    data = bytes(range(256)) * (4 * MIB // 256)

    def fill(stream: int) -> None:
        ok(cuda.cuMemcpyHtoDAsync(memory, data, len(data), stream))
        ok(cuda.cuMemcpyDtoHAsync(pinned, memory, size, stream))

    with blocked(server, program, fill) as stuck:
        stuck.end()
        program.alloc(4096)
        ok(cuda.cuMemGetInfo())
    assert ctypes.string_at(pinned, len(data)) == data
    assert ctypes.string_at(pinned + size - 16, 16) == bytes(16)
