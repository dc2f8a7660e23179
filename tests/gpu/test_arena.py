"""An arena on a GPU: memory that outlives its process, and memory that pending work uses."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from helpers import ptx

from outlast.server.drivers.arena import Arena

pytestmark = pytest.mark.gpu

MIB = 1 << 20
BASE, SIZE = 0x1800_0000_0000, 1 << 40

PRELUDE = """
import json, socket, sys
from cuda.bindings import driver as cuda
from outlast.server.drivers.arena import Arena
from outlast.server.drivers.placement import Block, Chunk

class Idle:
    def fence(self): return 0
    def done(self, fence): return True
    def wait(self, fence, timeout): return True
    def order_after(self, fence): pass

def ok(answer):
    assert not int(answer[0]), answer
    return answer[1] if len(answer) > 1 else None

ok(cuda.cuInit(0))
ok(cuda.cuCtxSetCurrent(ok(cuda.cuDevicePrimaryCtxRetain(0))))
arena = Arena(cuda, 0, base=int(sys.argv[1]), size=int(sys.argv[2]), fences=Idle())
"""

#: Fills memory, sends its descriptors and lives until it is killed.
OWNER = (
    PRELUDE
    + """
channel = socket.socket(fileno=int(sys.argv[3]))
for number, size in enumerate(json.loads(sys.argv[4])):
    code, address = arena.allocate(size)
    assert not code
    ok(cuda.cuMemsetD8(address, number + 1, size))
ok(cuda.cuCtxSynchronize())
chunks = arena.chunks()
shared = [arena.share(chunk) for chunk in chunks]
assert not any(code for code, _ in shared)
message = json.dumps([arena.allocations(), chunks]).encode()
socket.send_fds(channel, [message], [descriptor for _, descriptor in shared])
channel.recv(1)
"""
)

HEIR = (
    PRELUDE
    + """
blocks, chunks = json.loads(sys.argv[3])
descriptors = {Chunk(*chunk): int(fd) for chunk, fd in zip(chunks, sys.argv[4:])}
assert not arena.adopt([Block(*block) for block in blocks], descriptors)
for number, (address, size) in enumerate(blocks):
    data = bytearray(size)
    ok(cuda.cuMemcpyDtoH(data, address, size))
    assert data.count(number + 1) == size, number
arena.close()
"""
)


def child(code: str, *arguments: object, descriptors: list[int]) -> subprocess.Popen[bytes]:
    """Start a Python program with some of our descriptors."""
    command = [sys.executable, "-c", code, str(BASE), str(SIZE), *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(command, env=environment, pass_fds=descriptors)


def test_memory_outlives_its_process_and_is_taken_over_at_the_same_addresses() -> None:
    sizes = [700, 20 * MIB, 20 * MIB, 40 * MIB, 256 * MIB]
    here, there = socket.socketpair()
    with here:
        with there:
            owner = child(OWNER, there.fileno(), json.dumps(sizes), descriptors=[there.fileno()])
        message, descriptors, _, _ = socket.recv_fds(here, 1 << 16, 100)
        owner.send_signal(signal.SIGKILL)
        assert owner.wait(30) == -signal.SIGKILL
    try:
        blocks, chunks = json.loads(message)
        assert [size for _, size in sorted(blocks)] == sizes
        assert len(descriptors) == len(chunks) == 4
        heir = child(HEIR, message.decode(), *descriptors, descriptors=descriptors)
        assert heir.wait(60) == 0
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


class EventFences:
    """The work of some streams."""

    def __init__(self, cuda: Any, streams: list[Any]) -> None:
        self.cuda, self.streams = cuda, streams
        self.events: list[list[Any]] = []

    def fence(self) -> int:
        self.events.append([])
        for stream in self.streams:
            event = ok(self.cuda.cuEventCreate(2))
            ok(self.cuda.cuEventRecord(event, stream))
            self.events[-1].append(event)
        return len(self.events)

    def done(self, fence: int) -> bool:
        return not fence or not any(
            int(self.cuda.cuEventQuery(event)[0]) for event in self.events[fence - 1]
        )

    def wait(self, fence: int, timeout: float) -> bool:
        for event in self.events[fence - 1] if fence else ():
            ok(self.cuda.cuEventSynchronize(event))
        return True

    def order_after(self, fence: int) -> None:
        for event in self.events[fence - 1]:
            for stream in self.streams:
                ok(self.cuda.cuStreamWaitEvent(stream, event, 0))


def ok(answer: tuple[Any, ...]) -> Any:
    """Return the value of a call that must succeed."""
    assert not int(answer[0]), answer
    return answer[1] if len(answer) > 1 else None


@pytest.fixture
def cuda() -> Iterator[Any]:
    driver = pytest.importorskip("cuda.bindings.driver")
    ok(driver.cuInit(0))
    ok(driver.cuCtxPushCurrent(ok(driver.cuDevicePrimaryCtxRetain(0))))
    yield driver
    ok(driver.cuCtxPopCurrent())
    ok(driver.cuDevicePrimaryCtxRelease(0))


@pytest.mark.parametrize("size", [4096, 64 * MIB, 1024 * MIB])
def test_freed_memory_is_neither_unmapped_nor_written_before_pending_work_is_done(
    cuda: Any, size: int
) -> None:
    late = ok(cuda.cuModuleGetFunction(ok(cuda.cuModuleLoadData(ptx.SLOW.encode())), b"slow"))
    first, second = (ok(cuda.cuStreamCreate(1)) for _ in range(2))
    fences = EventFences(cuda, [first, second])
    arena = Arena(cuda, 0, base=BASE, size=SIZE, fences=fences)
    kinds = ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint64
    for number in range(3):
        code, address = arena.allocate(size)
        assert code == 0
        values = address + size - 4, 7, 50_000_000
        ok(cuda.cuLaunchKernel(late, 1, 1, 1, 1, 1, 1, 0, first, (values, kinds), 0))
        assert arena.release(address) == 0
        arena.trim()
        code, other = arena.allocate(size if number else size + 4 * MIB)
        assert code == 0
        ok(cuda.cuMemsetD32Async(other + size - 4, 9, 1, second))
        ok(cuda.cuStreamSynchronize(second))
        data = bytearray(4)
        ok(cuda.cuMemcpyDtoH(data, other + size - 4, 4))
        assert data[0] == 9
        ok(cuda.cuStreamSynchronize(first))
        ok(cuda.cuMemcpyDtoH(data, other + size - 4, 4))
        assert data[0] == 9
        assert arena.release(other) == 0
    arena.reclaim()
    assert (arena.mapped, arena.reclaimable) == (0, 0)
    arena.close()
